"""Device functions that place the tiles of an output; several kernels walk it in this order."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["tile_position"]


@triton.jit
def tile_position(tile, num_m, num_n, GROUP_SIZE_M: tl.constexpr):
    """Row and column of a tile, GROUP_SIZE_M rows at a time so that weights stay in L2."""
    width = GROUP_SIZE_M * num_n
    first_m = (tile // width) * GROUP_SIZE_M
    group_m = min(num_m - first_m, GROUP_SIZE_M)
    return first_m + (tile % width) % group_m, (tile % width) // group_m
