"""Layouts for TDM copies: row indices in registers, blocks in LDS, WMMA accumulators.

The classes are Gluon's.  Every layout made here is legal for the tensor data mover (TDM);
:mod:`.checks` has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.experimental.gluon.language import (
    BlockedLayout,
    PaddedSharedLayout,
    SliceLayout,
    SwizzledSharedLayout,
)

from . import hosts
from .numbers import constant_function, opaque, positive, power_of_two, powers_of_two

__all__ = [
    "PartitionedDot",
    "index_layout",
    "partitioned_dot_layouts",
    "partitioned_layout",
    "smem_layout",
    "wmma_layout",
]

#: Padding that puts the rows of a block into different banks: one access of the widest kind.
_PAD_BITS = 128
#: Largest padding interval that a descriptor can hold: 256 dwords (CDNA5 ISA, TDM).
_MAX_INTERVAL_BITS = 256 * 32


_require_partitions = opaque(hosts.require_partitions)


@opaque
def _partitioned_class() -> Any:
    return hosts.cdna5().PartitionedSharedLayout


@opaque
def _wmma_class() -> Any:
    from triton.experimental.gluon.language.amd import AMDWMMALayout

    return AMDWMMALayout


@opaque
def _bits(function: str, bits: Any) -> int:
    if power_of_two(function, "bits", bits) not in (8, 16, 32, 64):
        raise ValueError(f"{function}: elements of {bits} bits, expected 8, 16, 32 or 64")
    return int(bits)


@constant_function
def index_layout(rows: int, num_warps: int, threads_per_warp: int = 32) -> Any:
    """Returns the layout of the row indices of a gather or scatter.

    All lanes of a wave hold all of its rows, because the TDM reads them from scalar registers.
    The rows are split over the waves, so each wave issues only its part of the instructions.

    Args:
        rows: Rows of the block, a power of two.
        num_warps: Waves of the workgroup, a power of two.
        threads_per_warp: Lanes of a wave.

    Raises:
        TypeError, ValueError: A number is not a power of two.
    """
    name = "index_layout"
    rows = power_of_two(name, "rows", rows)
    num_warps = power_of_two(name, "num_warps", num_warps)
    threads_per_warp = power_of_two(name, "threads_per_warp", threads_per_warp)
    split = num_warps if rows >= num_warps else 1
    parent = BlockedLayout(
        [rows // split, 1], [1, threads_per_warp], [split, num_warps // split], [1, 0]
    )
    return SliceLayout(1, parent)


@constant_function
def smem_layout(block_shape: list[int], bits: int, pad: bool = True) -> Any:
    """Returns an LDS layout of a block, by default with padding after each row.

    Args:
        block_shape: Shape of the block, outermost first, powers of two.
        bits: Element width.
        pad: Whether to pad; gathers of Triton 3.7 do not support padding.

    Raises:
        TypeError, ValueError: A size is not a power of two, or elements are not whole bytes.
    """
    block_shape = powers_of_two("smem_layout", "block_shape", block_shape)
    bits = _bits("smem_layout", bits)
    interval = min(block_shape[-1], _MAX_INTERVAL_BITS // bits)
    order = list(reversed(range(len(block_shape))))
    if not pad:
        return SwizzledSharedLayout(1, 1, 1, order)
    return PaddedSharedLayout.with_identity_for(
        [[interval, max(1, _PAD_BITS // bits)]], list(block_shape), order
    )


@constant_function
def partitioned_layout(
    block_shape: list[int], bits: int, dim: int, num_partitions: int = 2, num_groups: int = 1
) -> Any:
    """Returns a layout whose pieces along one dimension lie in different LDS partitions.

    For loads only: the TDM neither stores from nor gathers into such a layout.

    Args:
        block_shape: Shape of the block, outermost first, powers of two.
        bits: Element width.
        dim: The dimension that is cut.
        num_partitions: Neighbouring pieces that lie in different partitions.
        num_groups: Repetitions of the partitions along ``dim``.

    Raises:
        UnsupportedError: The host has no such layouts (before 3.8).
        TypeError, ValueError: The dimension cannot be cut into so many pieces; or as smem_layout.
    """
    _require_partitions()
    name = "partitioned_layout"
    block_shape = powers_of_two(name, "block_shape", block_shape)
    num_partitions = positive(name, "num_partitions", num_partitions)
    num_groups = positive(name, "num_groups", num_groups)
    if dim not in range(len(block_shape)):
        raise ValueError(f"{name}: dim is {dim}, the block has {len(block_shape)} dimensions")
    pieces = num_partitions * num_groups
    size = block_shape[dim]
    if num_partitions < 2 or pieces & (pieces - 1) or size % pieces:
        raise ValueError(
            f"partitioned_layout: expected 2 or more partitions that cut {size} into a power of "
            f"two of pieces, got {num_partitions} partitions x {num_groups} groups"
        )
    piece = list(block_shape)
    piece[dim] = size // pieces
    return _partitioned_class()(num_partitions, num_groups, dim, smem_layout(piece, bits))


@constant_function
def wmma_layout(num_warps: int, warps_m: int, instr_shape: list[int]) -> Any:
    """Returns the layout of a WMMA accumulator, with ``warps_m`` waves along M.

    Args:
        num_warps: Waves of the workgroup, a power of two.
        warps_m: Waves along M, a power of two; the others go along N.
        instr_shape: M, N and K of one WMMA instruction.

    Raises:
        TypeError, ValueError: A number is not a power of two, or ``warps_m`` exceeds
            ``num_warps``.
    """
    name = "wmma_layout"
    num_warps = power_of_two(name, "num_warps", num_warps)
    warps_m = power_of_two(name, "warps_m", warps_m)
    instr_shape = powers_of_two(name, "instr_shape", instr_shape, 3)
    if warps_m > num_warps:
        raise ValueError(f"{name}: {warps_m} waves along M, the workgroup has {num_warps}")
    return _wmma(_bases(warps_m, num_warps // warps_m), [], instr_shape)


@constant_function
def _bases(warps_m: int, warps_n: int) -> list[list[int]]:
    along_n = [[0, 1 << i] for i in range(warps_n.bit_length() - 1)]
    return along_n + [[1 << i, 0] for i in range(warps_m.bit_length() - 1)]


@constant_function
def _wmma(warp_bases: list[list[int]], reg_bases: list[list[int]], instr_shape: list[int]) -> Any:
    layout = _wmma_class()
    if "warp_bases" in layout.__dataclass_fields__:
        return layout(3, True, warp_bases, reg_bases, list(instr_shape))
    # 3.6 takes the number of waves along each dimension instead.
    waves = [1 << sum(bool(b[dim]) for b in warp_bases) for dim in (0, 1)]
    return layout(3, True, waves, list(instr_shape))


@dataclass(frozen=True)
class PartitionedDot:
    """Layouts of a dot with partitioned operands.

    Attributes:
        a: LDS layout of the left operand, [M, K], cut along M; ``None`` if it is not cut.
        b: LDS layout of the right operand, [K, N], cut along N.
        acc: Layout of the accumulator.
    """

    a: Any
    b: Any
    acc: Any


@constant_function
def partitioned_dot_layouts(
    block_shape: list[int],
    bits: int,
    num_warps: int,
    instr_shape: list[int],
    cut_a: bool = True,
) -> PartitionedDot:
    """Proposes partitioned layouts for a dot, so that waves read LDS without conflicts.

    Two waves that issue an LDS access together conflict if both access the same physical
    partition.  Here waves 0 and 1, and waves 2 and 3, get opposite quarters of the product.  So
    they read different halves of the left *and* of the right operand, which lie in different
    partitions::

                N half 0   N half 1
        M half 0   wave 0     wave 2
        M half 1   wave 3     wave 1

    Args:
        block_shape: M, N and K of the block, powers of two.
        bits: Element width of the operands.
        num_warps: Waves of the workgroup: 4 or 8.
        instr_shape: M, N and K of one WMMA instruction.
        cut_a: Whether to partition the left operand too; a gathered operand cannot be.

    Raises:
        UnsupportedError: The host has no partitioned layouts (before 3.8).
        TypeError, ValueError: The block is too small to be cut, ``num_warps`` is not 4 or 8, or a
            number is not a power of two.
    """
    _require_partitions()
    name = "partitioned_dot_layouts"
    block_m, block_n, block_k = powers_of_two(name, "block_shape", block_shape, 3)
    instr_shape = powers_of_two(name, "instr_shape", instr_shape, 3)
    num_warps = positive(name, "num_warps", num_warps)
    tiles_m, tiles_n = block_m // instr_shape[0], block_n // instr_shape[1]
    # 8 waves: the third bit halves the rows of a quarter.
    least_m = num_warps // 2
    if num_warps not in (4, 8) or tiles_m < least_m or tiles_n < 2:
        raise ValueError(
            f"partitioned_dot_layouts: expected 4 or 8 waves and a product of at least "
            f"{max(2, least_m) * instr_shape[0]} x {2 * instr_shape[1]}, got {num_warps} waves and "
            f"{block_m} x {block_n}"
        )
    half_m, half_n = tiles_m // 2, tiles_n // 2
    warps = [[half_m, half_n], [0, half_n]]
    if num_warps == 8:
        half_m //= 2
        warps.append([half_m, 0])
    registers = [[0, 1 << i] for i in range(half_n.bit_length() - 1)]
    registers += [[1 << i, 0] for i in range(half_m.bit_length() - 1)]
    return PartitionedDot(
        a=partitioned_layout([block_m, block_k], bits, 0) if cut_a else None,
        b=partitioned_layout([block_k, block_n], bits, 1),
        acc=_wmma(warps, registers, instr_shape),
    )
