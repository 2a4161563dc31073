"""Random convolutions over few channels, and configurations of the kernel that gathers them."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from fprop_cases import Case
from fprop_cases import draw as draw_any
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.few_channels import FewChannelsConfig

__all__ = ["DTYPES", "draw", "draw_config", "draw_problem"]

DTYPES = (torch.float16, torch.bfloat16)


def draw_problem(rng: random.Random, *, pixels: int) -> ConvProblem:
    """A random problem of few channels that gives at least one pixel.

    Args:
        rng: Draws.
        pixels: The largest side.
    """
    while True:
        dims = rng.randint(1, 3)

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        taps = several(1, 4)
        if dims == 1 or rng.random() < 0.2:
            taps = (*taps[:-1], rng.randint(1, 12))
        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=rng.choice((1, 2, 3, 3, 4, 4, 5, 6, 7)),
            out_channels=rng.choice((1, 3, 8, 16, 24, 40, 72)),
            input_size=several(1, pixels),
            filter_size=taps,
            stride=several(1, 4),
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=(*several(1, 2)[1:], 1),
        )
        if min(problem.output_size) > 0:
            return problem


def draw(rng: random.Random, *, pixels: int, activations: tuple[str, ...]) -> Case:
    """A random case; arguments as for :func:`draw_problem` and ``fprop_cases.draw``."""
    case = draw_any(rng, DTYPES, activations=activations)
    return replace(case, problem=draw_problem(rng, pixels=pixels))


def draw_config(rng: random.Random) -> FewChannelsConfig | None:
    """A configuration, often a small one, of which a problem needs many tiles and steps."""
    if rng.random() < 0.3:
        return None
    return FewChannelsConfig(
        block_m=rng.choice((64, 64, 128)),
        block_n=rng.choice((16, 32, 64)),
        block_k=rng.choice((16, 16, 32, 64)),
        num_warps=4,
        programs_per_sm=rng.choice((1, 2, 8)),
        loads_ahead=rng.choice((0, 2)),
    )
