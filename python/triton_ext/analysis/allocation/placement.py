"""Placement: finds offsets for items with live ranges.

Two items that *meet* must not overlap in memory; *neighbours* (the buffers of one partitioned
value) must not touch the same physical partition.  The end of the highest item is minimised.

Every placement can be improved to one in which the items, in the order of their offsets, lie as low
as the earlier ones allow.  So it suffices to search orders (:func:`first_fit`).  :func:`place`
tries orders that are often good, moves items forward in the best of them, and then searches
exhaustively with a bound, each step limited in number, so it always terminates.  Very many live
items are placed in the order of time instead (:mod:`.sweep`).  ``lower_bound`` is a proof: no
placement ends below it.  A placement is *optimal* if it ends there, or if the exhaustive search
was complete.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..liveness import LiveRange, pairs_that_meet
from .sweep import are_many, lower_bound, swept_offsets
from .triton_order import offsets_of_triton

__all__ = ["Item", "Placement", "Problem", "first_fit", "place"]

#: Limit of offset queries of the exhaustive search.
_QUESTIONS = 12_000
#: Limit of orders tried to lower the highest end; fewer if one has many items.
_MOVES = 400
_PLACED = _MOVES * 200
#: Limit of pairs of items for Triton's order, which takes quadratic time.
_MOST_MEETING = 40_000
#: Limit of items of an exhaustive search, which recurses for each of them.
_MOST = 200


@dataclass(frozen=True, slots=True)
class Item:
    """An item that needs memory.

    Attributes:
        size: In bytes; may be 0.
        live: Live range.
        alignment: Alignment of its offset, in bytes.
        group: Items of one group are neighbours; -1 for none.
    """

    size: int
    live: LiveRange
    alignment: int = 1
    group: int = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets.

    Attributes:
        offsets: In bytes, one for each item.
        total: End of the highest item.
        lower_bound: No placement has a smaller total.
        is_optimal: Whether the total is proven minimal.
    """

    offsets: tuple[int, ...]
    total: int
    lower_bound: int
    is_optimal: bool


class Problem:
    """Items and their conflicts.

    Args:
        items: The items.
        partition_size: Bytes of one physical partition; 0 if the memory is not partitioned.
    """

    def __init__(self, items: Sequence[Item], partition_size: int = 0) -> None:
        self.items = tuple(items)
        self.partition_size = partition_size
        count = range(len(self.items))
        self.neighbours: list[list[int]] = [[] for _ in count]
        self.meeting: list[list[int]] = [[] for _ in count]
        sized = [i for i in count if self.items[i].size]
        groups: dict[int, list[int]] = {}
        for i in sized:
            if self.items[i].group != -1:
                groups.setdefault(self.items[i].group, []).append(i)
        grouped = {pair for group in groups.values() for pair in itertools.combinations(group, 2)}
        lives = [self.items[i].live for i in sized]
        pairs = {(sized[i], sized[j]) for i, j in pairs_that_meet(lives)}
        for i, j in sorted(pairs | grouped):
            # Without partitions, neighbours are ordinary buffers.
            kept = self.neighbours if partition_size and (i, j) in grouped else self.meeting
            kept[i].append(j)
            kept[j].append(i)

    def offset_of(self, item: int, offsets: Sequence[int], lowest: int = 0) -> int:
        """Returns the lowest free offset of an item, given those already placed (not -1).

        Args:
            item: The item.
            offsets: Offsets of the items; its own is ignored.
            lowest: Lower limit, a multiple of its alignment.
        """
        size, alignment = self.items[item].size, self.items[item].alignment
        taken = [
            (offsets[j], offsets[j] + self.items[j].size)
            for j in self.meeting[item]
            if offsets[j] >= 0
        ]
        unit = self.partition_size
        for j in self.neighbours[item]:
            if offsets[j] >= 0:
                end = offsets[j] + self.items[j].size
                taken.append((offsets[j] // unit * unit, -(-end // unit) * unit))
        taken.sort()
        found = lowest
        for start, end in taken:
            if start >= found + size:
                break
            if end > found:
                found = -(-end // alignment) * alignment
        return found

    @cached_property
    def cliques(self) -> list[tuple[int, ...]]:
        """Sets of simultaneously live items, one for each operation where an item begins.

        They hold the heaviest set of each concurrent region.
        """
        items = self.items
        sized = sorted((i for i, item in enumerate(items) if item.size), key=self._start)
        points = sorted({(items[i].live.start, items[i].live.regions) for i in sized})
        found = set()
        begun, alive = 0, list[int]()
        for point, regions in points:
            while begun < len(sized) and self._start(sized[begun]) <= point:
                alive.append(sized[begun])
                begun += 1
            alive = [i for i in alive if point < items[i].live.end]
            found.add(self._alive_at(sorted(alive), regions))
        kept = []
        holders: dict[int, list[frozenset[int]]] = {}  # larger cliques of an item
        for clique in sorted(found, key=lambda clique: (-len(clique), clique)):
            members = frozenset(clique)
            larger = min((holders.get(i, []) for i in clique), key=len, default=[])
            if clique and not any(members < other for other in larger):
                kept.append(clique)
                for i in clique:
                    holders.setdefault(i, []).append(members)
        return kept

    def _start(self, item: int) -> int:
        return self.items[item].live.start

    def _alive_at(self, here: list[int], regions: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Returns the buffers live at a point of some regions, and concurrently, by number."""
        if not regions:
            return tuple(here)
        # For each other concurrent region its heaviest set.
        others: dict[tuple[int, int], list[int]] = {}
        for i, item in enumerate(self.items):
            for (op, region), (other_op, other) in zip(regions, item.live.regions, strict=False):
                if (op, region) != (other_op, other):
                    if op == other_op and item.size and i not in here:
                        others.setdefault((other_op, other), []).append(i)
                    break
        for members in others.values():
            best: list[int] = []
            for each in members:
                start = self.items[each].live.start
                alive = [
                    i
                    for i in members
                    if self.items[i].live.start <= start < self.items[i].live.end
                    and all(self.items[i].live.meets(self.items[h].live) for h in here)
                    and self.items[i].live.regions == self.items[each].live.regions
                ]
                if self._weight(alive) > self._weight(best):
                    best = alive
            here += best
        return tuple(sorted(here))

    def _weight(self, members: Iterable[int]) -> int:
        return sum(self.items[i].size for i in members)

    def lower_bound(self) -> int:
        """Returns a number of bytes that every placement needs."""
        bound = max((self._weight(clique) for clique in self.cliques), default=0)
        groups: dict[int, list[int]] = {}
        for item in self.items:
            if self.partition_size and item.group != -1 and item.size:
                groups.setdefault(item.group, []).append(item.size)
        unit = self.partition_size
        for sizes in groups.values():
            bound = max(bound, min(_with_top(sizes, top, unit) for top in range(len(sizes))))
        return bound

    def is_solved_by(self, offsets: Sequence[int]) -> bool:
        """Returns whether offsets are aligned and separate all conflicts."""
        return all(
            offsets[i] % item.alignment == 0
            and self.offset_of(i, offsets, lowest=offsets[i]) == offsets[i]
            for i, item in enumerate(self.items)
            if item.size
        )

    def total(self, offsets: Sequence[int]) -> int:
        """Returns the end of the highest item."""
        return max((o + item.size for o, item in zip(offsets, self.items, strict=True)), default=0)


def _with_top(sizes: Sequence[int], top: int, unit: int) -> int:
    """Returns the least end of neighbours if one is the highest: the others fill partitions."""
    return sizes[top] + sum(-(-size // unit) * unit for i, size in enumerate(sizes) if i != top)


def first_fit(problem: Problem, order: Iterable[int]) -> list[int]:
    """Gives each item, in order, the lowest offset that the earlier ones leave free."""
    offsets = [-1] * len(problem.items)
    for item in order:
        offsets[item] = problem.offset_of(item, offsets)
    return offsets


def place(
    items: Sequence[Item], partition_size: int = 0, preferred: Sequence[int] | None = None
) -> Placement:
    """Finds offsets that end as low as possible.

    Args:
        items: The items.
        partition_size: Bytes of one physical partition; 0 if the memory is not partitioned.
        preferred: Offsets to return if they are valid and no lower placement was found; ignored if
            very many items are live at the same time.

    Returns:
        The offsets, deterministically.
    """
    if are_many([item for item in items if item.size]):
        return _place_many(items, partition_size)
    problem = Problem(items, partition_size)
    bound = problem.lower_bound()
    if preferred is not None and not problem.is_solved_by(preferred):
        preferred = None
    if preferred is not None and problem.total(preferred) == bound:
        return Placement(tuple(preferred), bound, bound, True)
    offsets = _best_of(problem, _orders(problem), bound)
    if problem.total(offsets) > bound:
        offsets = _improve(problem, offsets, bound)
    proven = problem.total(offsets) == bound
    if not proven:
        search = _Search(problem, offsets, bound)
        search.run()
        offsets, proven = search.best, search.ended or search.best_total == bound
    if preferred is not None and problem.total(preferred) == problem.total(offsets):
        offsets = list(preferred)
    return Placement(tuple(offsets), problem.total(offsets), bound, proven)


def _place_many(items: Sequence[Item], partition_size: int) -> Placement:
    offsets = swept_offsets(items, partition_size)
    total = max(offset + item.size for offset, item in zip(offsets, items, strict=True))
    bound = lower_bound(items)
    return Placement(tuple(offsets), total, bound, total == bound)


def _best_of(problem: Problem, orders: Iterable[list[int]], bound: int) -> list[int]:
    """Returns the best placement of some orders; stops at one that reaches the bound."""
    best: list[int] = []
    for order in orders:
        offsets = first_fit(problem, order)
        if not best or problem.total(offsets) < problem.total(best):
            best = offsets
        if problem.total(best) == bound:
            break
    return best


def _orders(problem: Problem) -> Iterable[list[int]]:
    items = problem.items
    order = list(range(len(items)))
    yield order
    yield sorted(order, key=lambda i: -items[i].size)
    yield sorted(order, key=lambda i: (items[i].live.start, -items[i].size))
    yield sorted(order, key=lambda i: (items[i].live.start - items[i].live.end, -items[i].size))
    yield sorted(order, key=lambda i: -items[i].size * (items[i].live.end - items[i].live.start))
    yield sorted(order, key=lambda i: (-items[i].live.end, -items[i].size))
    heaviest = max(problem.cliques, key=problem._weight, default=())
    yield sorted(order, key=lambda i: (i not in heaviest, -items[i].size))
    yield sorted(
        order,
        key=lambda i: -sum(items[j].size for j in (*problem.meeting[i], *problem.neighbours[i], i)),
    )
    # Placed again in this order, no item lies above its place in Triton's; partitions do not
    # matter, because those of a lower neighbour only move down.
    triton = None
    if sum(map(len, problem.meeting)) <= _MOST_MEETING:
        triton = offsets_of_triton(items, problem.partition_size, knows_partitions=True)
    if triton is not None:
        yield sorted(order, key=lambda i: (triton[i], i))
    # Values with several buffers are the hardest to place.
    yield sorted(order, key=lambda i: (items[i].group == -1, -items[i].size))


def _improve(problem: Problem, offsets: list[int], bound: int) -> list[int]:
    """Moves items to earlier places in the order: the highest first, then any."""
    best = now = offsets
    best_total = total = problem.total(offsets)
    source = random.Random(len(offsets))
    order = sorted(range(len(now)), key=lambda i: (now[i], i))
    for move in range(min(_MOVES, _PLACED // max(1, len(order)))):
        if best_total <= bound:
            break
        if move % 2:
            at = source.randrange(len(order))
        else:
            at = next(n for n, i in enumerate(order) if now[i] + problem.items[i].size == total)
        to = source.randrange(at + 1)
        tried = [*order[:to], order[at], *order[to:at], *order[at + 1 :]]
        found = first_fit(problem, tried)
        if problem.total(found) <= total:
            # Accept equal totals: there are plateaus.
            now, total, order = found, problem.total(found), tried
            if move % 8 == 0:
                order.sort(key=lambda i: (found[i], i))
        if total < best_total:
            best, best_total = now, total
    return best


class _Search:
    """Searches all orders with non-decreasing offsets, pruned by the bound.

    Args:
        problem: The items.
        offsets: A known placement.
        bound: Stop at this total.
    """

    def __init__(self, problem: Problem, offsets: list[int], bound: int) -> None:
        self.problem = problem
        self.bound = bound
        self.best = offsets
        self.best_total = problem.total(offsets)
        self.questions = 0
        self.ended = False

    def run(self) -> None:
        """Searches until done, the bound is reached or the limit is exceeded."""
        count = len(self.problem.items)
        if count > _MOST:
            return
        self._extend([-1] * count, [i for i in range(count) if self.problem.items[i].size], 0)
        self.best = [max(offset, 0) for offset in self.best]
        self.ended = self.questions < _QUESTIONS

    def _extend(self, offsets: list[int], rest: list[int], lowest: int) -> None:
        if not rest:
            total = self.problem.total(offsets)
            if total < self.best_total:
                self.best, self.best_total = list(offsets), total
            return
        problem, items = self.problem, self.problem.items
        self.questions += len(rest)
        waiting = set(rest)
        need = max((problem._weight(waiting.intersection(c)) for c in problem.cliques), default=0)
        if lowest + need >= self.best_total:
            return
        places = [(problem.offset_of(i, offsets), i) for i in rest]
        if any(offset + items[i].size >= self.best_total for offset, i in places):
            return
        # Above the end of a waiting item nothing keeps it from lying where it fits now.
        limit = min(self._end(offset, i) for offset, i in places)
        places = [(offset, i) for offset, i in places if lowest <= offset < limit]
        places.sort(key=lambda place: (place[0], -items[place[1]].size, place[1]))
        for offset, i in places:
            if self.questions >= _QUESTIONS or self.best_total <= self.bound:
                return
            offsets[i] = offset
            self._extend(offsets, [j for j in rest if j != i], offset)
            offsets[i] = -1

    def _end(self, offset: int, item: int) -> int:
        """Returns the end of what an item touches."""
        end = offset + self.problem.items[item].size
        unit = self.problem.partition_size
        return -(-end // unit) * unit if self.problem.neighbours[item] else end
