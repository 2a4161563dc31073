"""Gradients of filters over few output channels, drawn, and their swapped problems."""

from __future__ import annotations

import random

import torch
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.partial_im2col import swapped_case


def draw_swapped(rng: random.Random, *, pixels: int, channels: int = 24) -> ConvProblem:
    """A random problem whose x and dy can be swapped, of 1 to 8 output channels.

    Args:
        rng: Draws.
        pixels: The largest side.
        channels: The most input channels.
    """
    while True:
        dims = rng.randint(1, 3)
        taps = (*(rng.randint(1, 3) for _ in range(dims - 1)), rng.randint(2, 6))
        dilation = (*(rng.randint(1, 2) for _ in range(dims - 1)), 1)
        reach = [(count - 1) * step for count, step in zip(taps, dilation, strict=True)]
        # Half of them have no padding of dy in H: then planes are packed, too.
        padding = [(rng.randint(0, far), rng.randint(0, far)) for far in reach]
        if dims == 2 and rng.random() < 0.5:
            padding[0] = (reach[0], reach[0])
        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=8 * rng.randint(1, channels // 8),
            out_channels=rng.randint(1, 8),
            input_size=tuple(rng.randint(1, pixels) for _ in range(dims)),
            filter_size=taps,
            stride=(1,) * dims,
            padding=tuple(padding),
            dilation=dilation,
        )
        if min(problem.output_size) > 0 and problem.taps > 1:
            return problem


def turned(dw: torch.Tensor) -> torch.Tensor:
    """dw [Ci, Co, *taps] of the swapped problem as that of the other one, [Co, Ci, *taps]."""
    return dw.transpose(0, 1).flip(tuple(range(2, dw.dim())))


def swapped_of(problem: ConvProblem) -> ConvProblem:
    """The swapped problem, which there is."""
    swapped = swapped_case(Case(direction="wgrad", problem=problem, dtype=torch.float16))
    assert swapped is not None
    return swapped.problem
