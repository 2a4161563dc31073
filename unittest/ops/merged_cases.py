"""Convolutions whose groups can be merged, drawn, and a configuration of small tiles for them."""

from __future__ import annotations

import random

from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.merged_groups import MergedConfig, merge_factors

__all__ = ["draw_grouped", "draw_merged"]


def draw_grouped(rng: random.Random, *, pixels: int) -> ConvProblem:
    """A random convolution of 2 to 32 groups, some of which can be merged.

    Args:
        rng: Draws.
        pixels: The largest side.
    """
    while True:
        dims = rng.choice((1, 2, 2, 3))

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        groups = rng.choice((2, 4, 6, 8, 16, 32))
        of_x, of_y = (rng.choice((1, 2, 3, 4, 8, 8, 16, 24)) for _ in range(2))
        taps, dilation = several(1, 3), several(1, 2)
        # As much padding as the filter reaches, so that every direction is a convolution.
        reach = [(count - 1) * step for count, step in zip(taps, dilation, strict=True)]
        problem = ConvProblem(
            batch=rng.randint(1, 3),
            in_channels=groups * of_x,
            out_channels=groups * of_y,
            input_size=several(1, pixels),
            filter_size=taps,
            stride=(1,) * dims if rng.random() < 0.5 else several(1, 3),
            padding=tuple((rng.randint(0, far), rng.randint(0, far)) for far in reach),
            dilation=dilation,
            groups=groups,
        )
        is_small = max(problem.in_channels, problem.out_channels) <= 128
        if is_small and min(problem.output_size) > 0 and merge_factors(problem):
            return problem


def draw_merged(rng: random.Random, problem: ConvProblem, block_k: int = 16) -> MergedConfig:
    """A configuration of a problem, of tiles smaller than a GPU multiplies."""
    config = ConvConfig(
        block_m=rng.choice((16, 32)),
        block_n=16,
        block_k=block_k,
        num_stages=2,
        num_warps=4,
        store_parts=rng.choice((1, 2)),
        taps_inner=rng.random() < 0.5,
    )
    return MergedConfig(rng.choice(merge_factors(problem)), config)
