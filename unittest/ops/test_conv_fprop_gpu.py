"""Forward plans on a GPU: residuals beside every tile, saturation, a graph with an epilogue."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from fprop_cases import Case, check
from gpu_comparison import MARKS, bits, skip_without_gpu
from planned import plan_fprop
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem

skip_without_gpu()
pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def _plugin():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


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
