"""Forward plans on a GPU: every dtype, groups, depthwise, epilogues, one to three dimensions."""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from fprop_cases import ACTIVATIONS, Case, check, clamp_and_tilt, convolve, draw
from gpu_comparison import MARKS, NIGHTLY, bits, compile_ahead, skip_without_gpu
from planned import plan_fprop
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES

skip_without_gpu()
pytestmark = MARKS

CASES = [(dtype, number) for number in range(500 if NIGHTLY else 40) for dtype in DTYPES["fprop"]]


def drawn(dtype: torch.dtype, number: int) -> Case:
    """The same case at every call and on every machine."""
    rng = random.Random(f"{dtype} {number}")
    return draw(rng, (dtype,), pixels=24, fp8_out=True)


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, len(CASES), timeout_s=900 if NIGHTLY else 150)


@pytest.mark.parametrize(("dtype", "number"), CASES, ids=str)
def test_random_geometry(dtype, number):
    case = drawn(dtype, number)
    first = check(case, "cuda")
    # The second launch goes around Triton's front door.
    second = check(case, "cuda")
    assert torch.equal(bits(first), bits(second))
    for config in case.other_configs("cuda"):
        check(case, "cuda", config)


def problem(**changes: object) -> ConvProblem:
    values = {
        "batch": 8,
        "in_channels": 128,
        "out_channels": 256,
        "input_size": (28, 28),
        "filter_size": (3, 3),
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    return ConvProblem(**{**values, **changes})


FULL = EpilogueSpec(bias=True, scale=True, residual=True, out_scale=True, amax=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES["fprop"][:-1], ids=str)
def test_every_epilogue(dtype, activation):
    spec = replace(FULL, activation=activation, function=clamp_and_tilt)
    check(Case(problem=problem(), dtype=dtype, spec=spec, one_scale=False), "cuda")
    check(Case(problem=problem(), dtype=dtype, spec=replace(spec, function=None)), "cuda")


@pytest.mark.parametrize("co", [64, 128, 256, 320, 512, 1280])
@pytest.mark.parametrize("per_image", [False, True])
def test_a_residual_fits_beside_every_tile(co, per_image):
    spec = EpilogueSpec(
        bias=True, residual=True, residual_per_image=per_image, activation="relu", amax=per_image
    )
    for size in ((7, 7), (28, 28), (56, 56)):
        case = Case(
            problem=problem(out_channels=co, input_size=size), dtype=torch.float16, spec=spec
        )
        check(case, "cuda")


@pytest.mark.parametrize("changes", [
    {"filter_size": (1, 1), "padding": ((0, 0), (0, 0))},
    {"filter_size": (1, 1), "padding": ((0, 0), (0, 0)), "stride": (2, 2)},
    {"in_channels": 3, "filter_size": (7, 7), "stride": (2, 2), "padding": ((3, 3), (3, 3))},
    {"in_channels": 16}, {"in_channels": 32}, {"groups": 32}, {"groups": 16}, {"groups": 4},
    {"in_channels": 256, "groups": 256, "filter_size": (7, 7), "padding": ((3, 3), (3, 3))},
    {"in_channels": 96, "out_channels": 96, "groups": 96},
    {"in_channels": 160, "groups": 4}, {"in_channels": 72, "out_channels": 72, "groups": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float32], ids=str)
def test_common_layers(dtype, changes):
    out_dtype = torch.float16 if dtype.itemsize == 1 else None
    spec = EpilogueSpec(bias=True, out_dtype=out_dtype)
    check(Case(problem=problem(**changes), dtype=dtype, spec=spec, given_out=True), "cuda")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("group_ci", [1, 4, 8, 16, 20, 40, 72])
def test_a_group_does_not_see_its_neighbours(group_ci, bad):
    grouped = problem(in_channels=3 * group_ci, out_channels=72, groups=3)
    case = Case(problem=grouped, dtype=torch.float16)
    x, weight, _ = case.tensors("cuda")
    x[:, group_ci : 2 * group_ci] = bad
    y = case.plan(x).run(x, weight)
    expected = convolve(grouped, x.double(), weight.double())
    assert torch.equal(y.isfinite(), expected.isfinite())
    assert not y[:, 24:48].isfinite().any()


def test_fp8_that_is_too_large_saturates():
    one = problem(in_channels=16, out_channels=16, filter_size=(1, 1), padding=((0, 0), (0, 0)))
    x, weight, _ = Case(problem=one, dtype=torch.float16).tensors("cuda")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        spec = EpilogueSpec(scale=True, out_dtype=dtype, amax=True)
        plan = plan_fprop(one, x.stride(), x.dtype, x.device, spec)
        amax = torch.zeros(1, device="cuda")
        scale = torch.full((1,), 1e6, device="cuda")
        y = plan.run(x, weight, EpilogueArguments(scale=scale, amax=amax)).float()
        assert y.isfinite().all()
        assert y.abs().max() == torch.finfo(dtype).max
        assert amax > 1e6


def test_a_graph_with_an_epilogue_replays():
    spec = replace(FULL, activation="gelu")
    case = Case(problem=problem(), dtype=torch.float16, spec=spec)
    x, weight, operands = case.tensors("cuda")
    plan = case.plan(x)
    plan.run(x, weight, operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plan.run(x, weight, operands)
    x.mul_(0.5)
    graph.replay()
    amax = operands.amax.clone()
    expected = plan.run(x, weight, operands)
    assert torch.equal(bits(y), bits(expected))
    assert torch.equal(amax, operands.amax)


def compile_part(index: int, count: int) -> None:
    """Runs every ``count``-th random case once; errors are for the tests to find."""
    for dtype, number in CASES[index::count]:
        case = drawn(dtype, number)
        x, weight, operands = case.tensors("cuda")
        with contextlib.suppress(Exception):
            for config in (None, *case.other_configs("cuda")):
                case.plan(x, config).run(x, weight, operands)


if __name__ == "__main__":
    compile_part(int(sys.argv[1]), int(sys.argv[2]))
