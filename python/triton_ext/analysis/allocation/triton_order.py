"""A model of how Triton places buffers: a start from a list of gaps, then rounds of colouring.

The idea is that of "Algorithms for compile-time memory optimization" (Gergov, SODA 1999) with
Triton's extension: what overlaps behind the first step is moved up, colour by colour, until nothing
does.  Placing the items anew in the order of these offsets, each as low as it can lie, never ends
higher: a search that starts from there is never worse than Triton.

With partitions this is what Triton does where the start knows nothing of them (3.8): neighbours
that start in the same partition are moved apart in the rounds, which may go on forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ..liveness import LiveRange

__all__ = ["SizedItem", "offsets_of_triton"]

# Of the placements of random values that end, none took more than 12.
_ROUNDS: Final = 1000


class SizedItem(Protocol):
    """What needs memory (:class:`~triton_ext.analysis.allocation.placement.Item`)."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def live(self) -> LiveRange:
        """When it is needed."""

    @property
    def alignment(self) -> int:
        """What its offset is a multiple of."""

    @property
    def group(self) -> int:
        """Items of one group are neighbours; -1 for an item without."""


def offsets_of_triton(items: Sequence[SizedItem], partition_size: int = 0) -> list[int] | None:
    """The offset of each item as Triton would place them.

    Args:
        items: What needs memory.
        partition_size: Bytes of one physical partition; 0 where neighbours may share one.

    Returns:
        The offsets; ``None`` if Triton would never end, which only partitions can cause.
    """
    order = sorted(range(len(items)), key=lambda i: -items[i].size)
    offsets = _starts(items, order)
    seen = set()
    clashes = _clashes(items, offsets, partition_size)
    for _ in range(_ROUNDS):
        _colour(items, order, offsets, clashes, partition_size)
        clashes = _clashes(items, offsets, partition_size)
        if not any(clashes.values()):
            return [offsets[i] for i in range(len(items))]
        state = tuple(offsets[i] for i in order)
        if state in seen:
            return None
        seen.add(state)
    return None


def _aligned(offset: int, item: SizedItem) -> int:
    return -(-offset // item.alignment) * item.alignment


def _starts(items: Sequence[SizedItem], order: list[int]) -> dict[int, int]:
    """Takes the lowest gap, gives it to the first item that is alive in it and in no other gap."""
    gaps = [(0, 0, 1 << 60)]
    offsets: dict[int, int] = {}
    waiting = list(order)
    while waiting:
        gaps.sort(key=lambda gap: gap[0])
        offset, start, end = gaps.pop(0)
        for i in waiting:
            live = items[i].live
            others = any(live.start < e and s < live.end for _, s, e in gaps)
            if live.start < end and start < live.end and not others:
                break
        else:
            continue
        offsets[i] = _aligned(offset, items[i])
        above = offsets[i] + items[i].size
        gaps.append((above, max(start, live.start), min(end, live.end)))
        if start < live.start:
            gaps.append((offset, start, live.end))
        if live.end < end:
            gaps.append((offset, live.start, end))
        waiting.remove(i)
    return offsets


def _are_neighbours(one: SizedItem, two: SizedItem, partition_size: int) -> bool:
    return partition_size > 0 and one.group == two.group != -1


def _clashes(
    items: Sequence[SizedItem], offsets: dict[int, int], partition_size: int
) -> dict[int, list[int]]:
    def clash(i: int, j: int) -> bool:
        one, two = items[i], items[j]
        if _are_neighbours(one, two, partition_size) and (
            offsets[i] // partition_size == offsets[j] // partition_size
        ):
            return True
        return (
            one.live.meets(two.live)
            and offsets[i] < offsets[j] + two.size
            and offsets[j] < offsets[i] + one.size
        )

    return {i: [j for j in offsets if i != j and clash(i, j)] for i in offsets}


def _colour(
    items: Sequence[SizedItem],
    order: list[int],
    offsets: dict[int, int],
    clashes: dict[int, list[int]],
    partition_size: int,
) -> None:
    colours: dict[int, int] = {}
    for i in order:
        taken = {colours[j] for j in clashes[i] if j in colours}
        colours[i] = next(c for c in range(len(order)) if c not in taken)
    for i in order:
        if colours[i]:
            above = max(
                (offsets[j] // partition_size + 1) * partition_size
                if _are_neighbours(items[i], items[j], partition_size)
                else offsets[j] + items[j].size
                for j in clashes[i]
            )
            offsets[i] = _aligned(above, items[i])
