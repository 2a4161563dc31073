"""Rules of the tensor data mover (TDM), checked before the compiler asserts.

Each function takes plain numbers and Gluon's layout classes and returns the violations as
sentences; it needs no traced kernel.  (!) marks rules that no host checks: a kernel that breaks
them compiles to wrong code.  Sources: the verifiers of ``amdg`` operations of Triton 3.7 to 3.9,
and the descriptor fields ``pad_interval`` (powers of two from 2 to 256 dwords), ``pad_amount``
(1 to 128 dwords) and ``tile_dim`` (16 bits) of the CDNA5 ISA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .waits import MAX_TENSORCNT, load_instructions, rows_instructions

__all__ = [
    "block_problems",
    "column_problems",
    "layout_problems",
    "partition_problems",
    "row_index_problems",
    "tensor_problems",
    "wait_problems",
]

_MAX_DIM: Final = 65535
_MAX_RANK: Final = 5
_DWORD_BITS: Final = 32
_MIN_INTERVAL, _MAX_INTERVAL, _MAX_PAD = 2, 256, 128


def block_problems(block_shape: Sequence[int], bits: int, *, of_rows: bool = False) -> list[str]:
    """Returns the violations in the shape of a block.

    Args:
        block_shape: Outermost first.
        bits: Element width.
        of_rows: Whether the block belongs to a gather or scatter.
    """
    found = []
    rank = len(block_shape)
    if not 1 <= rank <= _MAX_RANK:
        found.append(f"the block {list(block_shape)} has {rank} dimensions, expected 1 to 5")
    for dim, size in enumerate(block_shape):
        if size < 1 or size & (size - 1):
            found.append(f"dimension {dim} of the block is {size}, expected a power of two")
        elif size > _MAX_DIM:
            found.append(f"dimension {dim} of the block is {size}, a descriptor holds {_MAX_DIM}")
    if bits < 8:
        found.append(f"elements of {bits} bits: expected 8 or more; copy packed bytes instead")
    if of_rows and rank != 2:
        found.append(f"expected a block [rows, columns], got {list(block_shape)}")
    elif of_rows and block_shape[-1] * bits % _DWORD_BITS:
        found.append(
            f"a row of {block_shape[-1]} elements of {bits} bits is not whole dwords: expected a "
            f"multiple of {_DWORD_BITS // bits} columns"
        )
    return found


def tensor_problems(shape: Sequence[int | None], strides: Sequence[int | None]) -> list[str]:
    """Returns the violations in shape and strides of a tensor.

    Args:
        shape: Sizes, outermost first; ``None`` for a size that is not constant.
        strides: In elements, likewise.
    """
    found = [
        f"size {dim} of the tensor is {size}, expected 0 or more"
        for dim, size in enumerate(shape)
        if size is not None and size < 0
    ]
    found += [
        f"stride {dim} is {stride}, expected 0 or more"
        for dim, stride in enumerate(strides[:-1])
        if stride is not None and stride < 0
    ]
    last = strides[-1] if strides else 1
    if last is None:
        found.append("the last stride is not constant, expected 1: rows must be contiguous")
    elif last != 1:
        found.append(f"the last stride is {last}, expected 1: rows must be contiguous")
    return found


def layout_problems(
    layout: Any, block_shape: Sequence[int], bits: int, *, store: bool
) -> list[str]:
    """Returns the violations in the LDS layout of a block.

    Args:
        layout: Gluon's, padded or swizzled.
        block_shape: Outermost first.
        bits: Element width.
        store: Whether the copy is from LDS.
    """
    kind = type(layout).__name__
    if kind == "SwizzledSharedLayout":
        found = []
        if layout.max_phase != 1:
            found.append(
                f"the data mover does not swizzle: expected max_phase 1, got {layout.max_phase}; "
                "pad instead (xamd.smem_layout)"
            )
        return found + _order_problems(list(layout.order), len(block_shape))
    if kind == "PaddedSharedLayout":
        return _padding_problems(layout, block_shape, bits, store=store)
    return [f"expected a padded or unswizzled LDS layout, got {kind}; xamd.smem_layout makes one"]


def _order_problems(order: list[int], rank: int) -> list[str]:
    expected = list(reversed(range(rank)))
    if order == expected:
        return []
    return [f"the data mover writes rows: expected order {expected}, got {order}"]


def _padding_problems(
    layout: Any, block_shape: Sequence[int], bits: int, *, store: bool
) -> list[str]:
    found = []
    pairs = layout.interval_padding_pairs
    if len(pairs) != 1:
        found.append(f"a descriptor holds one padding, the layout has {len(pairs)}: {pairs}")
    for interval, pad in pairs:
        dwords = interval * bits / _DWORD_BITS
        if not _MIN_INTERVAL <= dwords <= _MAX_INTERVAL or interval & (interval - 1):  # (!)
            found.append(
                f"padding every {interval} elements of {bits} bits: expected a power of two from "
                f"{_MIN_INTERVAL * _DWORD_BITS // bits} to {_MAX_INTERVAL * _DWORD_BITS // bits} "
                "elements (2 to 256 dwords)"
            )
        if pad * bits % _DWORD_BITS or not 1 <= pad * bits // _DWORD_BITS <= _MAX_PAD:  # (!)
            found.append(
                f"padding of {pad} elements of {bits} bits: expected a multiple of "
                f"{max(1, _DWORD_BITS // bits)} up to {_MAX_PAD * _DWORD_BITS // bits} elements "
                "(1 to 128 dwords)"
            )
        if store and interval != block_shape[-1]:
            found.append(
                f"a copy from LDS supports padding only after whole rows: expected an interval of "
                f"{block_shape[-1]} elements, got {interval}"
            )
    # Layouts of rows list the bases of the last dimension first, then those of the one before.
    bases = [list(basis) for basis in layout.offset_bases]
    expected = []
    for dim in reversed(range(len(block_shape))):
        for bit in range(block_shape[dim].bit_length() - 1):
            expected.append([1 << bit if i == dim else 0 for i in range(len(block_shape))])
    if bases != expected:
        found.append(
            "the data mover writes rows: expected a layout that maps offsets to the elements in "
            "row-major order (PaddedSharedLayout.with_identity_for)"
        )
    return found


def partition_problems(
    layout: Any, block_shape: Sequence[int], bits: int, num_warps: int, kind: str
) -> list[str]:
    """Returns the violations in a partitioned LDS layout.

    Args:
        layout: Gluon's ``PartitionedSharedLayout``.
        block_shape: Outermost first.
        bits: Element width.
        num_warps: Waves of the workgroup.
        kind: ``load``, ``store``, ``gather`` or ``scatter``.
    """
    if kind != "load":
        return [f"a {kind} does not support partitioned layouts; use xamd.smem_layout"]
    partitions, groups, dim = layout.num_partitions, layout.num_groups, layout.partition_dim
    pieces = partitions * groups
    if not 0 <= dim < len(block_shape):
        return [f"partition_dim is {dim}, the block has {len(block_shape)} dimensions"]
    found = []
    if partitions < 2:
        found.append(f"num_partitions is {partitions}: expected 2 or more")
    if num_warps < partitions:
        found.append(
            f"{num_warps} waves cannot fill {partitions} partitions, each fills one: expected at "
            "least as many waves"
        )
    if block_shape[dim] % pieces:
        found.append(
            f"dimension {dim} of the block is {block_shape[dim]}: it cannot be cut into "
            f"{partitions} partitions x {groups} groups"
        )
        return found
    piece = list(block_shape)
    piece[dim] //= pieces
    inner = getattr(layout.partition_layout, "shape", piece)
    if list(inner) != piece:  # (!)
        found.append(f"a piece has shape {piece}, its layout has {list(inner)}")
    count = load_instructions(pieces, num_warps)
    if count > MAX_TENSORCNT:
        found.append(f"{count} instructions per wave, TENSORcnt counts to {MAX_TENSORCNT}")
    return found + layout_problems(layout.partition_layout, piece, bits, store=False)


def row_index_problems(
    shape: Sequence[int],
    dtype: str,
    rows: int,
    lane_bases: Sequence[Sequence[int]] | None,
    register_bases: Sequence[Sequence[int]] | None,
) -> list[str]:
    """Returns the violations in the row indices of a gather or scatter.

    Args:
        shape: Shape of the row index tensor.
        dtype: Its element type: ``int16`` or ``int32``.
        rows: Rows of the LDS buffer.
        lane_bases: Lane bases of the tensor's linear layout; ``None`` if not known yet.
        register_bases: Register bases, likewise.
    """
    found = []
    if dtype not in ("int16", "int32"):
        found.append(f"row indices of type {dtype}, expected int16 or int32; use .to(gl.int32)")
    if len(shape) != 1:
        found.append(f"row indices of shape {list(shape)}, expected one dimension")
        return found
    if shape[0] != rows:  # (!)
        found.append(f"{shape[0]} row indices for an LDS buffer of {rows} rows")
    if lane_bases is not None and any(any(basis) for basis in lane_bases):
        found.append(
            "row indices are spread over the lanes of a wave, but the data mover reads them from "
            "scalar registers: every lane must hold all rows of its wave (xamd.index_layout)"
        )
    if register_bases is not None and not found:
        per_wave = 1 << sum(any(basis) for basis in register_bases)
        count = rows_instructions(per_wave, 16 if dtype == "int16" else 32)
        if count > MAX_TENSORCNT:
            found.append(
                f"{per_wave} rows per wave are {count} instructions, TENSORcnt counts to "
                f"{MAX_TENSORCNT}: spread the rows over the waves (xamd.index_layout), or gather "
                "fewer"
            )
    return found


def column_problems(column: int | None, bits: int) -> list[str]:
    """Returns the violations in a constant first column of a gather or scatter."""
    if column is None:
        return []
    if column < 0:
        return [f"column {column} is negative"]
    if column * bits % _DWORD_BITS:
        return [
            f"column {column} of elements of {bits} bits starts inside of a dword: expected a "
            f"multiple of {_DWORD_BITS // bits}"
        ]
    return []


def wait_problems(num_ops: object) -> list[str]:
    """Returns the violations in the operand of a wait."""
    if isinstance(num_ops, bool) or not isinstance(num_ops, int):
        return [f"expected a constant number of operations in flight, got {num_ops!r}"]
    if not 0 <= num_ops <= MAX_TENSORCNT:
        return [f"{num_ops} operations in flight: expected 0 to {MAX_TENSORCNT} (TENSORcnt)"]
    return []
