"""A model of Triton's placement of buffers: initial offsets from a list of gaps, then colouring.

The algorithm is that of "Algorithms for compile-time memory optimization" (Gergov, SODA 1999) with
Triton's extension: items that still overlap after the first step are moved up, colour by colour,
until none do.  Placing the items again in the order of these offsets, each as low as possible,
never ends higher: a search that starts from there is never worse than Triton.

Partitions are handled in two ways.  Up to 3.8 the initial step ignores them: neighbours that start
in the same partition are moved apart by the colouring, which may never terminate.  From 3.9 on the
initial step separates neighbours, and every partition that they touch counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ..liveness import LiveRange, pairs_that_meet

__all__ = ["SizedItem", "offsets_by_rank", "offsets_of_triton"]

# Terminating placements of random values took at most 12 rounds.
_ROUNDS: Final = 1000


class SizedItem(Protocol):
    """An item that needs memory (:class:`~triton_ext.analysis.allocation.placement.Item`)."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def live(self) -> LiveRange:
        """Live range."""

    @property
    def alignment(self) -> int:
        """Alignment of its offset."""

    @property
    def group(self) -> int:
        """Items of one group are neighbours; -1 for an item without."""


def offsets_of_triton(
    items: Sequence[SizedItem], partition_size: int = 0, *, knows_partitions: bool = False
) -> list[int] | None:
    """Returns the offsets of the items in Triton's placement.

    Args:
        items: The items, values before scratch.
        partition_size: Bytes of one physical partition; 0 if neighbours may share one.
        knows_partitions: Whether the initial step knows partitions.

    Returns:
        The offsets; ``None`` if Triton would not terminate, which only partitions can cause.
    """
    unit = _Partitions(partition_size, knows_partitions)
    order = sorted(range(len(items)), key=lambda i: -items[i].size)
    offsets = _starts(items, order, unit)
    seen = set()
    pairs = _pairs(items, unit)
    clashes = _clashes(items, offsets, pairs, unit)
    for _ in range(_ROUNDS):
        _colour(items, order, offsets, clashes, unit)
        clashes = _clashes(items, offsets, pairs, unit)
        if not any(clashes.values()):
            return [offsets[i] for i in range(len(items))]
        state = tuple(offsets[i] for i in order)
        if state in seen:
            return None
        seen.add(state)
    return None


def offsets_by_rank(
    items: Sequence[SizedItem],
    ranks: Sequence[tuple[int, int]],
    partition_size: int = 0,
    *,
    knows_partitions: bool = False,
) -> list[int] | None:
    """Returns the offsets as :func:`offsets_of_triton`, for items in any order.

    Args:
        items: The items.
        ranks: Rank of each; among items of one size smaller ranks come first.
        partition_size: As there.
        knows_partitions: As there.
    """
    order = sorted(range(len(items)), key=lambda i: ranks[i])
    found = offsets_of_triton(
        [items[i] for i in order], partition_size, knows_partitions=knows_partitions
    )
    if found is None:
        return None
    offsets = [0] * len(items)
    for i, offset in zip(order, found, strict=True):
        offsets[i] = offset
    return offsets


@dataclass(frozen=True, slots=True)
class _Partitions:
    """A release's view of physical partitions.

    Attributes:
        size: Bytes; 0 for none.
        known: Whether all partitions that an item touches count, or only the first.
    """

    size: int
    known: bool

    def keep_apart(self, one: SizedItem, two: SizedItem) -> bool:
        """Returns whether two items must not share a partition."""
        return self.size > 0 and one.group == two.group != -1

    def last(self, offset: int, item: SizedItem) -> int:
        """Returns the last partition that an item touches."""
        return (offset + (item.size - 1) * self.known) // self.size

    def share(self, at: int, one: SizedItem, there: int, two: SizedItem) -> bool:
        """Returns whether two items touch the same partition."""
        first, other = at // self.size, there // self.size
        return first <= self.last(there, two) and other <= self.last(at, one)


def _aligned(offset: int, item: SizedItem) -> int:
    return -(-offset // item.alignment) * item.alignment


def _starts(items: Sequence[SizedItem], order: list[int], unit: _Partitions) -> dict[int, int]:
    """Repeatedly gives the lowest gap to the first item that is live in it and in no other gap."""
    gaps = [(0, 0, 1 << 60)]
    offsets: dict[int, int] = {}
    waiting = list(order)
    while waiting:
        gaps.sort(key=lambda gap: gap[0])
        offset, start, end = gaps.pop(0)
        fitting = []
        chosen = None
        for i in waiting:
            live = items[i].live
            if not (live.start < end and start < live.end):
                continue
            if any(live.start < e and s < live.end for _, s, e in gaps):
                continue
            fitting.append(i)
            at = _aligned(offset, items[i])
            if not any(
                unit.share(at, items[i], offsets[j], items[j])
                for j in _kept_apart(items, i, offsets, unit)
            ):
                chosen = i
                break
        if chosen is None:
            if fitting:
                # The gap is considered again if one of them does not conflict with neighbours.
                clear = [
                    max(
                        (unit.last(offsets[j], items[j]) + 1) * unit.size
                        for j in _kept_apart(items, i, offsets, unit)
                    )
                    for i in fitting
                ]
                gaps.append((min(clear), start, end))
            continue
        live = items[chosen].live
        offsets[chosen] = _aligned(offset, items[chosen])
        above = offsets[chosen] + items[chosen].size
        gaps.append((above, max(start, live.start), min(end, live.end)))
        if start < live.start:
            gaps.append((offset, start, live.end))
        if live.end < end:
            gaps.append((offset, live.start, end))
        waiting.remove(chosen)
    return offsets


def _kept_apart(
    items: Sequence[SizedItem], item: int, offsets: dict[int, int], unit: _Partitions
) -> list[int]:
    """Returns the items with an offset from which the initial step separates an item."""
    if not (unit.known and unit.size) or items[item].group == -1:
        return []
    return [j for j in offsets if j != item and unit.keep_apart(items[item], items[j])]


def _pairs(items: Sequence[SizedItem], unit: _Partitions) -> list[tuple[int, int, bool]]:
    """Returns the pairs that must not overlap, or (true) not share a partition either."""
    pairs = [(i, j, False) for i, j in pairs_that_meet([item.live for item in items])]
    if unit.size:
        grouped = [i for i, item in enumerate(items) if item.group != -1]
        pairs += [
            (i, j, True)
            for i, j in itertools.combinations(grouped, 2)
            if unit.keep_apart(items[i], items[j])
        ]
    return pairs


def _clashes(
    items: Sequence[SizedItem],
    offsets: dict[int, int],
    pairs: Sequence[tuple[int, int, bool]],
    unit: _Partitions,
) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {i: set() for i in offsets}
    for i, j, is_apart in pairs:
        at, there = offsets[i], offsets[j]
        if is_apart:
            clash = unit.share(at, items[i], there, items[j])
        else:
            clash = at < there + items[j].size and there < at + items[i].size
        if clash:
            found[i].add(j)
            found[j].add(i)
    return found


def _colour(
    items: Sequence[SizedItem],
    order: list[int],
    offsets: dict[int, int],
    clashes: dict[int, set[int]],
    unit: _Partitions,
) -> None:
    colours: dict[int, int] = {}
    for i in order:
        taken = {colours[j] for j in clashes[i] if j in colours}
        colours[i] = next(c for c in range(len(order)) if c not in taken)
    for i in order:
        if colours[i]:
            above = max(
                (unit.last(offsets[j], items[j]) + 1) * unit.size
                if unit.keep_apart(items[i], items[j])
                else offsets[j] + items[j].size
                for j in clashes[i]
            )
            offsets[i] = _aligned(above, items[i])
