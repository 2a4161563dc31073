"""A model of how Triton places buffers: a start from a list of gaps, then rounds of colouring.

The idea is that of "Algorithms for compile-time memory optimization" (Gergov, SODA 1999) with
Triton's extension: what overlaps behind the first step is moved up, colour by colour, until nothing
does.  Placing the items anew in the order of these offsets, each as low as it can lie, never ends
higher: a search that starts from there is never worse than Triton.  Partitions are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..liveness import LiveRange

__all__ = ["SizedItem", "offsets_of_triton"]


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


def offsets_of_triton(items: Sequence[SizedItem]) -> list[int]:
    """The offset of each item as Triton would place them."""
    order = sorted(range(len(items)), key=lambda i: -items[i].size)
    offsets = _starts(items, order)
    while True:
        clashes = _clashes(items, offsets)
        _colour(items, order, offsets, clashes)
        if not any(_clashes(items, offsets).values()):
            return [offsets[i] for i in range(len(items))]


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


def _clashes(items: Sequence[SizedItem], offsets: dict[int, int]) -> dict[int, list[int]]:
    return {
        i: [
            j
            for j in offsets
            if i != j
            and items[i].live.meets(items[j].live)
            and offsets[i] < offsets[j] + items[j].size
            and offsets[j] < offsets[i] + items[i].size
        ]
        for i in offsets
    }


def _colour(
    items: Sequence[SizedItem],
    order: list[int],
    offsets: dict[int, int],
    clashes: dict[int, list[int]],
) -> None:
    colours: dict[int, int] = {}
    for i in order:
        taken = {colours[j] for j in clashes[i] if j in colours}
        colours[i] = next(c for c in range(len(order)) if c not in taken)
    for i in order:
        if colours[i]:
            above = max(offsets[j] + items[j].size for j in clashes[i])
            offsets[i] = _aligned(above, items[i])
