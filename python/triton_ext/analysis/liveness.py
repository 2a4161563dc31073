"""Live ranges of shared-memory buffers.

Operations of a function are numbered in post-order, so an operation follows everything in its
regions.  A live range is one interval of these numbers, and the path of concurrent regions of the
allocation.  Properties:

1. Whenever an allocated buffer may be read or written later in the execution, the number of the
   current operation is in the buffer's interval.  (An interval is a hull: a buffer may be dead in
   the middle of it.)
2. A use is one by any value whose alias set (:mod:`~triton_ext.analysis.alias_sets`) contains the
   buffer.  Calls count as unknown operations.
3. A buffer used in a region of an operation but allocated outside lives to the end of the
   operation: loops run again, and the regions of ``ttg.warp_specialize`` run concurrently.
4. Buffers of different regions of one ``ttg.warp_specialize`` are live at the same time whatever
   their intervals (:meth:`LiveRange.meets`).

Buffers of asynchronous operations (copies, ``wgmma``) must be kept live in the IR by the wait, as
upstream does: the wait takes the buffer, or ``ttg.local_dealloc`` follows it.

Safe direction: a range may be too long, never too short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir import Block, Operation, Region, Value
from ..ir.dialects import ttg
from ..ir.functions import FUNCTIONS
from .alias_sets import AliasSets, is_buffer

__all__ = ["LiveRange", "Liveness", "pairs_that_meet"]


@dataclass(frozen=True, slots=True)
class LiveRange:
    """A half-open interval of operation numbers, and its concurrent regions.

    Attributes:
        start: Number of the first operation.
        end: One past the last one.
        regions: Each ``ttg.warp_specialize`` around the allocation, outermost first, as its own
            number and that of the region.
    """

    start: int
    end: int
    regions: tuple[tuple[int, int], ...] = ()

    def meets(self, other: LiveRange) -> bool:
        """Returns whether both are live at the same time."""
        if self.start < other.end and other.start < self.end:
            return True
        for one, two in zip(self.regions, other.regions, strict=False):
            if one != two:
                return one[0] == two[0]
        return False


def pairs_that_meet(ranges: Sequence[LiveRange]) -> list[tuple[int, int]]:
    """Returns the pairs of ranges that are live at the same time, by index, the smaller first."""
    found = []
    alive: list[int] = []
    for i in sorted(range(len(ranges)), key=lambda i: ranges[i].start):
        start, end = ranges[i].start, ranges[i].end
        alive = [j for j in alive if ranges[j].end > start]
        found += [(min(i, j), max(i, j)) for j in alive if ranges[j].start < end]
        alive.append(i)
    inside = [i for i, live in enumerate(ranges) if live.regions]
    for number, i in enumerate(inside):
        one = ranges[i]
        for j in inside[number + 1 :]:
            two = ranges[j]
            if not (one.start < two.end and two.start < one.end) and one.meets(two):
                found.append((i, j))
    return sorted(found)


class Liveness:
    """Live ranges of the buffers of one function, which must not change meanwhile.

    Args:
        function: The function.
    """

    def __init__(self, function: Operation) -> None:
        self.function = function
        self._numbers: dict[Operation, int] = {}
        self._first: dict[Operation, int] = {}
        self.order: list[Operation] = []
        self._alias_sets = AliasSets()
        self._number(function)

    def number(self, op: Operation) -> int:
        """Returns the number of an operation."""
        return self._numbers[op]

    @property
    def whole(self) -> LiveRange:
        """Returns the range of the whole function."""
        return LiveRange(0, len(self.order))

    def at(self, op: Operation) -> LiveRange:
        """Returns the range of one operation, without its nested operations."""
        number = self._numbers[op]
        return LiveRange(number, number + 1, self._path(op))

    def aliases(self, allocation: Value) -> list[Value]:
        """Returns the values of the function that may name a part of a buffer, itself first."""
        return self._alias_sets.values_of(allocation)

    def of_buffer(self, allocation: Value) -> LiveRange:
        """Returns the range of a buffer and all of its aliases.

        Args:
            allocation: Result of a ``ttg.local_alloc`` or of a call.
        """
        owner = allocation.owner
        if not isinstance(owner, Operation):
            raise ValueError("only the result of an operation is a buffer")
        ranges = [self._of_value(alias) for alias in self.aliases(allocation)]
        start = min(low for low, _ in ranges)
        return LiveRange(start, max(high for _, high in ranges), self._path(owner))

    def of_call(self, op: Operation) -> LiveRange:
        """Returns the range of a callee's memory: while it runs, and while its buffers are used.

        A buffer that a call returns is assumed to be allocated by the callee, even if it came from
        the caller.
        """
        found = self.at(op)
        ranges = [self.of_buffer(result) for result in op.results if is_buffer(result)]
        start = min([found.start, *(live.start for live in ranges)])
        return LiveRange(start, max([found.end, *(live.end for live in ranges)]), found.regions)

    # ---- numbering

    def _number(self, op: Operation) -> None:
        self._first[op] = len(self.order)
        for region in op.regions:
            for block in region.blocks:
                for nested in block.ops:
                    self._number(nested)
        self._numbers[op] = len(self.order)
        self.order.append(op)

    def _path(self, op: Operation) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        while op is not self.function and op.parent is not None:
            region, around = op.parent.parent, op.parent.parent.parent
            if around.name.startswith("ttg.warp_specialize"):
                holder = around
                if around.name == ttg.PARTITIONS and around.parent_op:
                    holder = around.parent_op
                # The default region comes first, whichever operation holds the partitions.
                index = around.regions.index(region) + (holder is not around)
                found.append((self._numbers[holder], index))
                if holder is not around:
                    around = holder
            op = around
        return tuple(reversed(found))

    # ---- ranges of one value

    def _of_value(self, value: Value) -> tuple[int, int]:
        """Returns the hull of the operations between the definition and the last use."""
        owner = value.owner
        block = owner.parent if isinstance(owner, Operation) else owner
        if block is None:
            return 0, len(self.order)
        start = self._numbers[owner] if isinstance(owner, Operation) else self._start_of(block)
        end = start + 1
        uses: dict[Block, int] = {}
        for op in dict.fromkeys(value._users):
            around = _ancestor_in(op, block.parent)
            if around is None or around.parent is None:
                return 0, len(self.order)
            last = self._numbers[around] + 1
            uses[around.parent] = max(uses.get(around.parent, 0), last)
        end = max(end, uses.get(block, 0))
        live_out = _live_out(block, uses)
        for other in live_out:
            end = max(end, self._end_of(other))
        for other, last in uses.items():
            if other is not block:
                start, end = min(start, self._start_of(other)), max(end, last)
        for other in live_out:
            if other is not block:
                start = min(start, self._start_of(other))
        return start, end

    def _start_of(self, block: Block) -> int:
        if block.ops:
            return self._first[block.ops[0]]
        return self._numbers[block.parent_op]

    def _end_of(self, block: Block) -> int:
        if block.ops:
            return self._numbers[block.ops[-1]] + 1
        return self._numbers[block.parent_op]


def _live_out(block: Block, uses: Iterable[Block]) -> set[Block]:
    """Returns the blocks at whose end a value of ``block`` is live."""
    found: set[Block] = set()
    todo = [other for other in uses if other is not block]
    seen = set(todo)
    while todo:
        for branch in todo.pop().predecessors:
            source = branch.parent
            if source is None:
                continue
            found.add(source)
            if source is not block and source not in seen:
                seen.add(source)
                todo.append(source)
    return found


def _ancestor_in(op: Operation, region: Region) -> Operation | None:
    """Returns the operation of a region that is or contains ``op``."""
    around: Operation | None = op
    while around is not None and around.parent is not None:
        if around.parent.parent is region:
            return around
        if around.name in FUNCTIONS:
            return None
        around = around.parent_op
    return None
