"""Shifted products on a GPU: random geometries, last layers, what is not finite, odd addresses."""

from __future__ import annotations

import contextlib
import random
import sys

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import family_plans
import torch
import triton_ext
from col2im_cases import DTYPES, draw, draw_config, draw_problem
from fprop_cases import ACTIVATIONS, Case, check, convolve
from gpu_comparison import MARKS, NIGHTLY, bits, compile_ahead, skip_without_gpu
from planned import plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext.ops import conv2d
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.families.kn2row import KN2ROW, Col2ImConfig

skip_without_gpu()
pytestmark = MARKS

CASES = range(400 if NIGHTLY else 32)
CUDA = torch.device("cuda")
SMALL = Col2ImConfig(block_m=64, rows=3)


def drawn(number: int) -> tuple[Case, Col2ImConfig]:
    """The same case at every call and on every machine."""
    rng = random.Random(number)
    return draw(rng, pixels=150, activations=tuple(ACTIVATIONS)), draw_config(rng)


def plan_of(problem, x, config=None, spec=PLAIN):
    return family_plans.plan_of(KN2ROW, problem, x, device_of(CUDA, "test"), config, spec)


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, len(CASES), timeout_s=900 if NIGHTLY else 60)


@pytest.mark.parametrize("number", CASES)
def test_random_geometry(number):
    case, config = drawn(number)
    first = check(case, "cuda", config)
    # The second launch goes around Triton's front door.
    second = check(case, "cuda", config)
    assert torch.equal(bits(first), bits(second))


LAST = {
    "vae": problem_of(ci=128, co=3, size=(512, 512), padding=1),
    "vae of odd size": problem_of(n=2, ci=128, co=3, size=(333, 259), padding=1),
    "unet": problem_of(n=8, ci=320, co=4, size=(64, 64), padding=1),
    "super-resolution": problem_of(n=2, ci=64, co=3, size=(224, 224), taps=(5, 5), padding=2),
    "audio": problem_of(n=8, ci=64, co=1, size=(24000,), taps=(7,), padding=3),
    "dilated": problem_of(n=2, ci=128, co=2, size=(96, 320), padding=2, dilation=2),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAST)
def test_last_layers(name, dtype):
    problem = LAST[name]
    case = Case(problem=problem, dtype=dtype, spec=EpilogueSpec(bias=True))
    configs = family_plans.configs_of(KN2ROW, problem, dtype, device_of(CUDA, "test"))
    assert configs
    # The first of every tile and number of stages.
    for config in {(c.block_m, c.num_stages): c for c in reversed(configs)}.values():
        check(case, "cuda", config)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 12))
def test_what_is_not_finite_shows_where_torch_has_it(number, bad):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=12)
    shapes = (problem.x_shape, problem.w_shape)
    tensors = [channels_last(shape, torch.float16, i, "cuda") for i, shape in enumerate(shapes)]
    # Infinity times zero is NaN: the only zeros are those of the padding.
    x, weight = (torch.where(t == 0, torch.ones_like(t), t) for t in tensors)
    changed = (x, weight)[number % 2]
    changed[tuple(rng.randrange(extent) for extent in changed.shape)] = bad
    y = plan_of(problem, x, SMALL, EpilogueSpec(out_dtype=torch.float32)).run(x, weight)
    expected = convolve(problem, x.double().cpu(), weight.double().cpu())
    assert torch.equal(y.isnan().cpu(), expected.isnan())
    assert torch.equal(y.isfinite().cpu(), expected.isfinite())


def test_an_odd_address_is_read():
    problem = LAST["vae"]
    x, weight = (
        channels_last(shape, torch.float16, 1, "cuda")
        for shape in (problem.x_shape, problem.w_shape)
    )
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    moved = memory[1:].as_strided(x.shape, x.stride()).copy_(x)
    plan = plan_of(problem, x)
    assert torch.equal(bits(plan.run(moved, weight)), bits(plan.run(x, weight)))


def test_a_graph_of_a_last_layer_replays():
    problem = LAST["vae"]
    x, weight = (
        channels_last(shape, torch.float16, 1, "cuda")
        for shape in (problem.x_shape, problem.w_shape)
    )
    assert isinstance(plan_fprop(problem, x.stride(), x.dtype, x.device).config, Col2ImConfig)
    with torch.no_grad():
        conv2d(x, weight, padding=1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = conv2d(x, weight, padding=1)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, conv2d(x, weight, padding=1))


def warm(index: int, count: int) -> None:
    """Runs a share of the cases, for Triton's cache."""
    for number in CASES[index::count]:
        case, config = drawn(number)
        x, weight, operands = case.tensors("cuda")
        with contextlib.suppress(Exception):
            plan_of(case.problem, x, config, case.spec).run(x, weight, operands)


if __name__ == "__main__":
    warm(int(sys.argv[1]), int(sys.argv[2]))
