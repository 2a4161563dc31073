"""Random convolutions to few output channels, and configurations of the kernel that shifts."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from family_plans import H200, case_of
from fprop_cases import Case
from fprop_cases import draw as draw_any
from triton_ext.ops.core.family import config_refusals
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.few_channels import KN2ROW, Col2ImConfig

__all__ = ["DTYPES", "draw", "draw_config", "draw_problem"]

DTYPES = (torch.float16, torch.bfloat16)

# Only the problem can be refused with these.
_WIDE = Col2ImConfig(block_m=256, rows=1)
_LARGE = replace(H200, smem_bytes=1 << 30)


def draw_problem(rng: random.Random, *, pixels: int) -> ConvProblem:
    """A random problem that the kernel takes, of at least one pixel.

    Args:
        rng: Draws.
        pixels: The largest side.
    """
    while True:
        dims = rng.randint(1, 2)

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=rng.choice((8, 8, 16, 16, 24, 32, 40, 72, 128)),
            out_channels=rng.choice((1, 2, 3, 3, 4, 5, 8)),
            input_size=several(1, pixels),
            filter_size=several(1, 5),
            stride=(1,) * dims,
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=several(1, 3),
        )
        # Some taps and channels are too many.
        if min(problem.output_size) > 0 and not config_refusals(
            _WIDE, case_of(KN2ROW, problem), _LARGE
        ):
            return problem


def draw(rng: random.Random, *, pixels: int, activations: tuple[str, ...]) -> Case:
    """A random case; arguments as for :func:`draw_problem` and ``fprop_cases.draw``."""
    case = draw_any(rng, DTYPES, activations=activations)
    return replace(case, problem=draw_problem(rng, pixels=pixels))


def draw_config(rng: random.Random) -> Col2ImConfig:
    """A configuration, often of a few rows, of which a problem needs many programs."""
    return Col2ImConfig(
        block_m=rng.choice((64, 64, 128)),
        rows=rng.choice((1, 2, 3, 7, 40)),
        num_warps=rng.choice((4, 4, 8)),
        num_stages=rng.choice((1, 2, 3)),
    )
