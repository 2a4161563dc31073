"""Whether the buffers of a module fit into LDS, in this package's placement and in Triton's.

What operations need while they run is taken from above where only Triton knows it: twice the bytes
of all of their tensors.  So a module may be said not to fit that does, never the other way round.
Values that Triton's allocation could not place without an end (hosts without
``amd-partition-placement``) are taken to be aligned to a partition, which
:mod:`triton_ext.backends.amd.passes.align_partitioned_shared` does.  Newer hosts place one buffer
after the other, each as low as it can lie (observed on 3.9): the worst order counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from triton_ext.analysis.allocation import (
    BufferKind,
    FunctionAllocation,
    Item,
    Scratch,
    allocate,
    reserved_bytes,
    unknown_scratch,
)
from triton_ext.analysis.allocation.triton_order import offsets_of_triton
from triton_ext.ir import Module, Operation
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.types import MemDescType, TensorType

from .lds import Lds

__all__ = ["needed_bytes"]

_ALIGNMENT: Final = 128
# Items of which every order is tried.
_MOST: Final = 6


def needed_bytes(module: Module, lds: Lds, *, knows_partitions: bool) -> int | None:
    """Bytes of LDS that a module needs, or a few more; ``None`` where Triton would never end.

    Args:
        module: The module.
        lds: What there is.
        knows_partitions: Whether the host places partitioned values apart from the start (3.9).

    Raises:
        VerifyError: A buffer has no size that is known.
    """
    types = AliasTable(module.aliases)
    known = Scratch(module.op, types)

    def scratch(op: Operation) -> tuple[int, int]:
        found = known(op)
        return found if found is not None else (2 * _tensor_bytes(op, types), _ALIGNMENT)

    found = allocate(module, partition_size=lds.partition_bytes, scratch=scratch)
    totals = [found.total]
    for function in found.functions.values():
        if knows_partitions:
            total: int | None = _lowest_fits(_items(function, types), lds.partition_bytes)
        else:
            everything_is_known = not unknown_scratch(module)
            total = _with_values_aligned(function, types, lds, try_without=everything_is_known)
        if total is None:
            return None
        totals.append(total)
    return max(totals)


def _tensor_bytes(op: Operation, types: AliasTable) -> int:
    total = 0
    for value in (*op.operands, *op.results):
        type_ = types.type(value.type)
        if isinstance(type_, TensorType):
            total += type_.num_elements * max(8, type_.bit_width or 64) // 8
    return total


def _items(function: FunctionAllocation, types: AliasTable, alignment: int = 1) -> list[Item]:
    """What Triton places: with its sizes, partitioned values aligned to something."""
    groups = {buffer.op: n for n, buffer in enumerate(function.buffers) if buffer.index}
    items = []
    # Triton looks at values first, then at what operations need.
    for buffer in sorted(function.buffers, key=lambda b: b.kind is not BufferKind.EXPLICIT):
        size = buffer.size
        if buffer.kind is BufferKind.EXPLICIT and buffer.value is not None:
            type_ = types.type(buffer.value.type)
            size = reserved_bytes(type_) if isinstance(type_, MemDescType) else size
        group = groups.get(buffer.op, -1)
        aligned = max(buffer.alignment, alignment) if group >= 0 else buffer.alignment
        items.append(Item(size, buffer.live, aligned, group))
    return items


def _with_values_aligned(
    function: FunctionAllocation, types: AliasTable, lds: Lds, *, try_without: bool
) -> int | None:
    """Bytes that Triton 3.8 needs, partitioned values aligned to a partition if they have to be."""
    totals: list[int] = []
    for alignment in (1, lds.partition_bytes) if try_without else (lds.partition_bytes,):
        items = _items(function, types, alignment)
        offsets = offsets_of_triton(items, lds.partition_bytes)
        if offsets is not None:
            ends = (at + item.size for at, item in zip(offsets, items, strict=True))
            totals.append(max(ends, default=0))
    return min(totals, default=None)


def _lowest_fits(items: list[Item], partition_size: int) -> int:
    """The most bytes that items take which are placed in turn, each as low as it can lie.

    Of all orders, or of those by size and of the program where there are too many.
    """
    orders: Iterable[Sequence[Item]]
    if len(items) > _MOST:
        by_size = sorted(items, key=lambda item: item.size)
        orders = [items, items[::-1], by_size, by_size[::-1]]
    else:
        # Items of one group are alike but for their order: one of those is enough.
        numbers = itertools.permutations(range(len(items)))
        chosen = (order for order in numbers if _keeps_groups(order, items))
        orders = ([items[i] for i in order] for order in chosen)
    return max((_lowest_fit(order, partition_size) for order in orders), default=0)


def _keeps_groups(order: Sequence[int], items: Sequence[Item]) -> bool:
    latest: dict[int, int] = {}
    for i in order:
        group = items[i].group
        if group != -1 and latest.get(group, -1) > i:
            return False
        latest[group] = i
    return True


def _lowest_fit(items: Sequence[Item], partition_size: int) -> int:
    placed: list[tuple[Item, int]] = []
    for item in items:
        at = 0
        while (above := _clash(item, at, placed, partition_size)) is not None:
            at = -(-above // item.alignment) * item.alignment
        placed.append((item, at))
    return max((at + item.size for item, at in placed), default=0)


def _clash(
    item: Item, at: int, placed: Sequence[tuple[Item, int]], partition_size: int
) -> int | None:
    """Where to try next if an item cannot lie at an offset."""
    for other, start in placed:
        end = start + other.size
        if item.group == other.group != -1:
            # Not in the same partitions, all of them.
            start = start // partition_size * partition_size
            end = -(-end // partition_size) * partition_size
        elif not item.live.meets(other.live):
            continue
        if at < end and start < at + item.size:
            return end
    return None
