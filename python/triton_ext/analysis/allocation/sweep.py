"""Placement of very many buffers in almost linear time.

The buffers are placed in the order in which they begin, and in the order in which they end, each in
the smallest gap between live ones; the lower result counts.  It never examines pairs of buffers.

Safe direction: concurrent regions and neighbours may get more memory than they need.  Buffers in
regions of one operation are live as long as all of them together, and so are neighbours; in
partitioned memory, neighbours take whole partitions.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .triton_order import SizedItem

__all__ = ["are_many", "lower_bound", "swept_offsets"]

#: Number of simultaneously live pairs that a pairwise search handles in a few seconds.
_MOST_PAIRS: Final = 50_000


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory that an item takes for some time."""

    start: int
    end: int
    size: int
    alignment: int


def are_many(items: Sequence[SizedItem], most: int = _MOST_PAIRS) -> bool:
    """Returns whether too many items are live at the same time for a pairwise search.

    Args:
        items: The items, with those of size 0 if the search compares them, too.
        most: Number of pairs of live items that is not too many.
    """
    ends: list[int] = []
    pairs = 0
    for item in sorted(items, key=lambda item: item.live.start):
        while ends and ends[0] <= item.live.start:
            heapq.heappop(ends)
        pairs += len(ends)
        if pairs > most:
            return True
        heapq.heappush(ends, item.live.end)
    return False


def lower_bound(items: Sequence[SizedItem]) -> int:
    """Returns the largest sum of live bytes, ignoring concurrent regions."""
    changes = [(item.live.start, item.size) for item in items]
    changes += [(item.live.end, -item.size) for item in items]
    bound = total = 0
    for _, change in sorted(changes):  # ends come before starts
        total += change
        bound = max(bound, total)
    return bound


def swept_offsets(items: Sequence[SizedItem], partition_size: int = 0) -> list[int]:
    """Finds an offset for each item.

    Args:
        items: The items.
        partition_size: Bytes of one physical partition; 0 if the memory is not partitioned.

    Returns:
        Offsets in bytes.
    """
    blocks = _blocks(items, partition_size)
    backwards = [_Block(-b.end, -b.start, b.size, b.alignment) for b in blocks]
    found = [_swept(blocks), _swept(backwards)]
    return min(
        found,
        key=lambda offsets: max(
            (offset + item.size for offset, item in zip(offsets, items, strict=True)), default=0
        ),
    )


def _blocks(items: Sequence[SizedItem], partition_size: int) -> list[_Block]:
    spans: dict[object, tuple[int, int]] = {}
    for item in items:
        for key in _keys(item):
            start, end = spans.get(key, (item.live.start, item.live.end))
            spans[key] = (min(start, item.live.start), max(end, item.live.end))
    blocks = []
    for item in items:
        live = [spans[key] for key in _keys(item)] or [(item.live.start, item.live.end)]
        size, alignment = item.size, item.alignment
        if partition_size and item.group != -1:
            size = -(-size // partition_size) * partition_size
            alignment = max(alignment, partition_size)
        start, end = min(start for start, _ in live), max(end for _, end in live)
        blocks.append(_Block(start, end, size, alignment))
    return blocks


def _keys(item: SizedItem) -> list[object]:
    """Returns the keys that an item shares with those it must never share memory with."""
    keys: list[object] = [op for op, _ in item.live.regions]
    return keys if item.group == -1 else [*keys, ("group", item.group)]


def _swept(blocks: Sequence[_Block]) -> list[int]:
    """Places blocks in the order in which they begin."""
    gaps = _Gaps()
    alive: list[tuple[int, int]] = []
    offsets = [0] * len(blocks)
    for i in sorted(range(len(blocks)), key=lambda i: (blocks[i].start, -blocks[i].size)):
        block = blocks[i]
        if not block.size:
            continue
        while alive and alive[0][0] <= block.start:
            _, ended = heapq.heappop(alive)
            gaps.free(offsets[ended], offsets[ended] + blocks[ended].size)
        offsets[i] = gaps.take(block.size, block.alignment)
        heapq.heappush(alive, (block.end, i))
    return offsets


class _Gaps:
    """Free memory: gaps between used blocks, and everything above them."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._top = 0

    def take(self, size: int, alignment: int) -> int:
        """Takes the smallest gap that is large enough, or the end; returns the offset."""
        for at in range(bisect_left(self._by_size, (size, 0)), len(self._by_size)):
            width, start = self._by_size[at]
            offset = -(-start // alignment) * alignment
            if offset + size <= start + width:
                self._remove(start)
                self._add(start, offset)
                self._add(offset + size, start + width)
                return offset
        offset = -(-self._top // alignment) * alignment
        self._add(self._top, offset)
        self._top = offset + size
        return offset

    def free(self, start: int, end: int) -> None:
        """Frees memory, and merges it with adjacent gaps."""
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        if end in self._ends:
            behind, end = end, self._ends[end]
            self._remove(behind)
        if end == self._top:
            self._top = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            self._ends[start], self._starts[end] = end, start
            insort(self._by_size, (end - start, start))

    def _remove(self, start: int) -> None:
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
