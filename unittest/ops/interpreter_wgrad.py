"""wgrad in Triton's interpreter; ``test_wgrad.py`` runs this file with ``TRITON_INTERPRET=1``.

Reference: torch's own gradient on the CPU in fp64.  The interpreter multiplies in fp32 and rounds
once, so the largest error, relative to the largest value of the reference, is at most half an
epsilon of dw's dtype, and fp32's errors of the sum; bf16 is truncated instead of rounded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import triton_ext.ops  # noqa: F401 - installs the plugin
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.wgrad_config import WgradConfig
from triton_ext.ops.wgrad_plan import WgradPlan, make_plan

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

LIMITS = {
    torch.float16: torch.finfo(torch.float16).eps,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps * 1.01,
    torch.float32: 1e-5,
}

SMALL = WgradConfig(block_co=64, block_ci=16, block_pixels=16, num_stages=2, num_warps=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A gradient of a filter: the convolution and how it is computed."""

    n: int = 2
    ci: int = 8
    co: int = 8
    size: tuple[int, ...] = (6, 7)
    taps: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    dtype: torch.dtype = torch.float16
    out_dtype: torch.dtype | None = None
    programs: int = 4
    config: WgradConfig | None = SMALL

    @property
    def problem(self) -> ConvProblem:
        """What is computed."""
        return ConvProblem(
            batch=self.n,
            in_channels=self.ci,
            out_channels=self.co,
            input_size=self.size,
            filter_size=self.taps,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x and dy, standard normal, channels-last."""
        generator = torch.Generator().manual_seed(0)

        def normal(channels: int, size: tuple[int, ...]) -> torch.Tensor:
            rows = torch.randn(self.n, *size, channels, generator=generator).to(self.dtype)
            return rows.movedim(-1, 1)

        return normal(self.ci, self.size), normal(self.co, self.problem.output_size)

    def plan(self, x: torch.Tensor, dy: torch.Tensor) -> WgradPlan:
        """The plan for these tensors."""
        return make_plan(
            self.problem,
            x.stride(),
            dy.stride(),
            self.dtype,
            x.device,
            self.config,
            self.out_dtype,
            self.programs,
        )


def reference(problem: ConvProblem, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """torch's gradient in fp64; it knows equal sides only, so all padding is done in front."""
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.double(), sides)
    weight = torch.zeros(problem.w_shape, dtype=torch.float64)
    zeros = [0] * problem.dims
    return torch.ops.aten.convolution_backward(
        dy.double(), padded, weight, None, problem.stride, zeros, problem.dilation, False, zeros,
        problem.groups, [False, True, False],
    )[1]  # fmt: skip


def check(case: Case, dw: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> None:
    expected = reference(case.problem, x, dy)
    dtype = case.dtype if case.out_dtype is None else case.out_dtype
    assert dw.shape == expected.shape
    assert dw.dtype == dtype
    assert dw.movedim(1, -1).is_contiguous()
    error = (dw.double() - expected).abs().max().item()
    # "not greater" would let NaN through.
    assert error <= LIMITS[dtype] * max(expected.abs().max().item(), 1.0)


def run(case: Case) -> torch.Tensor:
    x, dy = case.tensors()
    dw = case.plan(x, dy).run(x, dy)
    check(case, dw, x, dy)
    return dw


FIXED = {
    "plain": Case(),
    "one image": Case(n=1),
    "one pixel": Case(n=1, size=(1, 1), taps=(1, 1)),
    "same": Case(padding=((1, 1), (1, 1))),
    "unequal padding": Case(padding=((3, 0), (0, 2))),
    "unequal filter": Case(taps=(1, 5), size=(3, 11)),
    "largest stride": Case(size=(19, 17), stride=(8, 8)),
    "stride and dilation": Case(
        stride=(2, 2), dilation=(3, 2), padding=((2, 1), (0, 3)), size=(9, 10)
    ),
    "filter fits with its padding only": Case(size=(2, 1), taps=(5, 4), padding=((2, 1), (1, 2))),
    "1x1": Case(taps=(1, 1)),
    "1x1 strided": Case(taps=(1, 1), stride=(2, 3)),
    "1x1 padded": Case(taps=(1, 1), padding=((1, 2), (3, 0))),
    "RGB": Case(ci=3),
    "odd channels": Case(ci=13, co=7),
    "one channel": Case(ci=1, co=1),
    "several blocks": Case(ci=40, co=136, n=1),
    "odd tails": Case(ci=37, co=75, n=1),
    "groups": Case(ci=16, co=24, groups=2),
    "groups, odd": Case(ci=9, co=6, groups=3),
    "depthwise": Case(ci=6, co=6, groups=6),
    "1-D": Case(
        size=(30,), taps=(5,), stride=(2,), padding=((2, 1),), dilation=(2,), ci=24, co=16
    ),
    "3-D": Case(
        size=(5, 6, 7), taps=(2, 3, 3), stride=(2, 1, 3), padding=((2, 1), (0, 1), (1, 1)),
        dilation=(1, 2, 1),
    ),
    "whole tiles only": Case(programs=1),
    "fp32": Case(out_dtype=torch.float32),
    "fp32, whole tiles, odd": Case(out_dtype=torch.float32, programs=1, ci=5),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_fixed(name, dtype):
    run(replace(FIXED[name], dtype=dtype))
