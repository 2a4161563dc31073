"""Backward walks over control flow: what may have run before a point of a module.

A walk starts before an operation and repeatedly asks for the steps that lead back from its
position.  Each step crosses one *event* (an operation chosen by the user of the walk), or one edge
of the control flow.  Properties:

1. Every execution that reaches a point took some sequence of the steps.  So the minimum of a cost
   over all walks never exceeds the cost of the execution.
2. A loop with a known trip count that is entered from below is left above its first iteration only
   after that many iterations (exactly up to :data:`MOST_COUNTED`, at least so many above), and is
   never skipped if the number is not zero.
3. A function that is entered from below, at a call, is left at that call.  One in which the walk
   started is left at each of its calls, and at the start of the kernel if it may be one.
4. The default region of ``ttg.warp_specialize`` continues with the warps before it.  A partition
   runs on its own warps, on which only partitions ran before: of this operation, if it executes
   repeatedly, or of others that the same kernel can reach.

Not covered, and a step of kind ``UNKNOWN`` (it is unknown what ran before): calls of functions
outside of the module, recursion, and branches to a block outside of their region.  Conditions are
not correlated: both edges of each are walked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ..ir import Block, Module, Operation, Region, Value
from ..ir.functions import CALLS, FUNCTIONS, RETURNS, callee_of, symbol_of
from .trip_count import trip_count
from .value_flow import successor_parts

__all__ = ["MOST_COUNTED", "BackwardFlow", "Point", "Position", "Step", "StepKind", "trip_count"]

#: Maximum number of iterations that are counted; further ones are not distinguished.
MOST_COUNTED: Final = 16

#: Operations that run exactly one of their regions, once.
_RUN_ONCE: Final = frozenset(
    {"scf.execute_region", "scf.if", "scf.index_switch", "ttg.warp_specialize"}
)
_YIELDS: Final = frozenset({"scf.yield", "ttg.warp_yield"})


class StepKind(Enum):
    """Kind of a step between two positions.

    Attributes:
        EVENT: An event.
        ENTER: The end of a region; the walk comes from after the enclosing operation.
        PREVIOUS: The end of a loop's body; the walk comes from the start of the next iteration.
        LEAVE: The start of a region; the walk continues before the enclosing operation.
        SKIP: An operation none of whose regions ran.
        BRANCH: An edge between blocks.
        CALL: A ``return``; the walk comes from after the call.
        CALLER: The start of a function; the walk continues before a call of it.
        START: The start of a kernel, or of the warps of a partition: nothing ran before.
        UNKNOWN: It is unknown what ran before.
    """

    EVENT = "event"
    ENTER = "enter"
    PREVIOUS = "previous"
    LEAVE = "leave"
    SKIP = "skip"
    BRANCH = "branch"
    CALL = "call"
    CALLER = "caller"
    START = "start"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Point:
    """The point before ``block.ops[index]``, or the end of the block."""

    block: Block
    index: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """An operation that the walk entered from below.

    Attributes:
        op: A loop with a known trip count, or a call.
        walked: Iterations that were entered.
    """

    op: Operation
    walked: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a walk.

    Attributes:
        point: The point.
        frames: Counted loops and calls that were entered from below, outermost first.
    """

    point: Point
    frames: tuple[_Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step back.

    Attributes:
        kind: The kind of step.
        op: The event, or the operation whose region, iteration or call it crosses, or ``None``.
        position: The next position; ``None`` after ``START`` and ``UNKNOWN``.
        renames: The earlier name of a value; other values keep their names.
    """

    kind: StepKind
    op: Operation | None
    position: Position | None
    renames: Mapping[Value, Value] = field(default_factory=dict, compare=False)


class BackwardFlow:
    """The steps that lead back from each point of a module, which must not change meanwhile.

    Args:
        module: The module.
        is_event: Returns whether a walk visits an operation.  One with regions is walked through
            even if there is no event inside.
    """

    def __init__(self, module: Module, is_event: Callable[[Operation], bool]) -> None:
        self._is_event = is_event
        self._functions = {symbol_of(op): op for op in module.walk() if op.name in FUNCTIONS}
        self._calls: dict[Operation, list[Operation]] = {}
        self._partitions: dict[Operation, list[Region]] = {}
        callees: dict[Operation, set[Operation]] = {}
        for function in self._functions.values():
            called = callees.setdefault(function, set())
            for op in function.walk():
                if op.name in CALLS:
                    callee = self._functions.get(callee_of(op))
                    if callee is not None:
                        self._calls.setdefault(callee, []).append(op)
                        called.add(callee)
                elif op.name == "ttg.warp_specialize":
                    self._partitions.setdefault(function, []).extend(op.regions[1:])
        self._callees = callees
        self._recursive = frozenset(f for f in callees if _reaches(f, f, callees))
        self._relevant: dict[Operation, bool] = {}
        self._stops: dict[Block, tuple[int, ...]] = {}
        self._indices: dict[Block, dict[Operation, int]] = {}
        self._above: dict[Block, tuple[Step, ...]] = {}

    def before(self, op: Operation) -> Position:
        """Returns the position before an operation, with no knowledge of how it was reached."""
        return Position(self._point_before(op))

    def steps(self, position: Position) -> tuple[Step, ...]:
        """Returns every step that may lead back from a position; at least one."""
        block, index = position.point.block, position.point.index
        stops = self._stops_of(block)
        nearest = bisect_left(stops, index) - 1
        if nearest >= 0:
            return self._across(block, stops[nearest], position.frames)
        return tuple(
            step
            for above in self._above_block(block)
            for step in self._counted(above, position.frames)
        )

    def walks_through(self, call: Operation) -> bool:
        """Returns whether walks follow a call; if not, it is unknown what ran before it."""
        return self._known_callee(call) is not None

    # ---- inside a block

    def _stops_of(self, block: Block) -> tuple[int, ...]:
        """Returns the positions of the operations in a block that a walk does not skip."""
        found = self._stops.get(block)
        if found is None:
            found = tuple(i for i, op in enumerate(block.ops) if self._is_relevant(op))
            self._stops[block] = found
        return found

    def _is_relevant(self, op: Operation) -> bool:
        known = self._relevant.get(op)
        if known is None:
            known = self._is_event(op) or any(
                self._is_relevant(nested)
                for region in op.regions
                for block in region.blocks
                for nested in block.ops
            )
            if op.name in CALLS and not known:
                callee = self._known_callee(op)
                known = callee is None or self._is_relevant(callee)
            self._relevant[op] = known
        return known

    def _known_callee(self, op: Operation) -> Operation | None:
        """Returns the function that a call runs; ``None`` if the walk cannot follow it."""
        callee = self._functions.get(callee_of(op))
        if callee is None or not callee.regions or callee in self._recursive:
            return None
        return callee

    def _point_before(self, op: Operation) -> Point:
        block = op.parent
        if block is None:
            raise op.error("a walk cannot start at an operation outside of a block")
        places = self._indices.get(block)
        if places is None:
            places = self._indices[block] = {other: i for i, other in enumerate(block.ops)}
        return Point(block, places[op])

    def _across(self, block: Block, index: int, frames: tuple[_Frame, ...]) -> tuple[Step, ...]:
        """Returns the steps from after the operation at an index."""
        op = block.ops[index]
        before = Position(Point(block, index), frames)
        if op.name in CALLS:
            return self._into_call(op, frames)
        if not op.regions:
            return (Step(StepKind.EVENT, op, before),)
        if op.name == "scf.for":
            return self._into_for(op, before)
        regions = op.regions[:1] if op.name in ("scf.while", "ttg.warp_specialize") else op.regions
        steps = []
        for region in regions:
            for end in _ends(region):
                renames = _names(op.results, _handed_out(end))
                steps.append(Step(StepKind.ENTER, op, Position(_end(end), frames), renames))
        may_skip = len(op.regions) < 2 if op.name == "scf.if" else not _always_runs(op)
        if may_skip or not steps:
            steps.append(Step(StepKind.SKIP, op, before))
        return tuple(steps)

    def _into_for(self, op: Operation, before: Position) -> tuple[Step, ...]:
        body, trips = op.regions[0].blocks[0], trip_count(op)
        steps = []
        if trips != 0:
            frames = before.frames if trips is None else (*before.frames, _Frame(op, 1))
            renames = _names(op.results, _handed_out(body))
            steps.append(Step(StepKind.ENTER, op, Position(_end(body), frames), renames))
        if not trips:
            renames = _names(op.results, op.operands[3:])
            steps.append(Step(StepKind.SKIP, op, before, renames))
        return tuple(steps)

    def _into_call(self, op: Operation, frames: tuple[_Frame, ...]) -> tuple[Step, ...]:
        callee = self._known_callee(op)
        if callee is None:
            return (Step(StepKind.UNKNOWN, op, None),)
        ends = [b for b in callee.regions[0].blocks if b.ops and b.ops[-1].name in RETURNS]
        inside = (*frames, _Frame(op))
        return tuple(
            Step(
                StepKind.CALL,
                op,
                Position(_end(end), inside),
                _names(op.results, end.ops[-1].operands),
            )
            for end in ends
        ) or (Step(StepKind.UNKNOWN, op, None),)

    # ---- above a block

    def _above_block(self, block: Block) -> tuple[Step, ...]:
        """Returns the steps from the start of a block, ignoring entered frames."""
        found = self._above.get(block)
        if found is None:
            if block is block.parent.blocks[0]:
                found = tuple(self._above_region(block.parent, block))
            else:
                found = tuple(_branch(op, block) for op in block.predecessors)
            self._above[block] = found = found or (Step(StepKind.UNKNOWN, None, None),)
        return found

    def _above_region(self, region: Region, block: Block) -> list[Step]:
        op = region.parent
        if op.name in FUNCTIONS:
            return self._above_function(op, block)
        if op.name == "builtin.module":
            return [Step(StepKind.START, op, None)]
        if op.name.startswith("ttg.warp_specialize") and region.isolated:
            return self._above_partition(op)
        before = Position(self._point_before(op))
        if op.name == "scf.for":
            carried = block.args[1:]
            inits = _names(carried, op.operands[3:])
            yielded = _names(carried, _handed_out(block))
            inits[block.args[0]] = op.operands[0]
            return [
                Step(StepKind.PREVIOUS, op, Position(_end(block)), yielded),
                Step(StepKind.LEAVE, op, before, inits),
            ]
        if op.name == "scf.while":
            other = next(r for r in op.regions if r is not region).blocks[0]
            handed = _names(block.args, _handed_out(other))
            if region is op.regions[1]:
                return [Step(StepKind.ENTER, op, Position(_end(other)), handed)]
            inits = _names(block.args, op.operands)
            return [
                Step(StepKind.PREVIOUS, op, Position(_end(other)), handed),
                Step(StepKind.LEAVE, op, before, inits),
            ]
        steps = [Step(StepKind.LEAVE, op, before)]
        if op.name not in _RUN_ONCE:
            # The order and number of runs of its regions are unknown.
            ends = [end for other in op.regions for end in _ends(other)]
            steps.extend(Step(StepKind.ENTER, op, Position(_end(end))) for end in ends)
        return steps

    def _above_function(self, op: Operation, block: Block) -> list[Step]:
        calls = self._calls.get(op, [])
        steps = [
            Step(
                StepKind.CALLER,
                call,
                Position(self._point_before(call)),
                _names(block.args, call.operands),
            )
            for call in calls
        ]
        if not self._is_only_called(op):
            steps.append(Step(StepKind.START, op, None))
        return steps

    def _above_partition(self, op: Operation) -> list[Step]:
        steps = [Step(StepKind.START, op, None)]
        partitions = self._partitions_beside(op)
        if len({region.parent for region in partitions}) > 1 or self._may_repeat(op):
            # The backend chooses which warps run which partition.
            ends = [_end(end) for region in partitions for end in _ends(region)]
            steps.extend(Step(StepKind.ENTER, op, Position(end)) for end in ends)
        return steps

    def _partitions_beside(self, op: Operation) -> list[Region]:
        """Returns the partitions that one kernel may run in the same warps as an operation's."""
        function = op.parent_op
        while function is not None and function.name not in FUNCTIONS:
            function = function.parent_op
        run: set[Operation] = set()
        for entry in self._callees:
            if not self._is_only_called(entry):
                reached = _reached(entry, self._callees)
                if function in reached:
                    run |= reached
        run = run or set(self._callees)
        return [
            region
            for each, partitions in self._partitions.items()
            if each in run
            for region in partitions
        ]

    def _is_only_called(self, function: Operation) -> bool:
        """Returns whether a function cannot be a kernel."""
        is_private = " private " in function.text.partition("@")[0]
        return bool(self._calls.get(function)) and is_private

    def _may_repeat(self, op: Operation) -> bool:
        parent = op.parent_op
        while parent is not None and parent.name not in FUNCTIONS:
            if parent.name not in ("scf.if", "scf.execute_region", "scf.index_switch"):
                return True
            parent = parent.parent_op
        if parent is None:
            return True
        return len(parent.regions[0].blocks) > 1 or bool(self._calls.get(parent))

    def _counted(self, step: Step, frames: tuple[_Frame, ...]) -> tuple[Step, ...]:
        """Returns a step from the start of a block for a walk that entered ``frames``."""
        top = frames[-1] if frames else None
        if step.kind is StepKind.CALLER or (step.kind is StepKind.START and top is not None):
            if top is not None and (step.kind is StepKind.START or top.op is not step.op):
                return ()
            return (_moved(step, frames[:-1]),)
        if top is None or top.op is not step.op:
            return (_moved(step, frames),)
        trips = trip_count(top.op) or 0
        if step.kind is StepKind.PREVIOUS:
            if top.walked == trips:
                return ()
            return (_moved(step, (*frames[:-1], _Frame(top.op, _saturated(top.walked + 1)))),)
        if step.kind is StepKind.LEAVE:
            ran_enough = top.walked >= min(trips, MOST_COUNTED)
            return (_moved(step, frames[:-1]),) if ran_enough else ()
        return (_moved(step, frames),)


def _reaches(
    start: Operation, goal: Operation, callees: Mapping[Operation, set[Operation]]
) -> bool:
    """Returns whether a function calls another one, directly or not."""
    seen: set[Operation] = set()
    todo = [start]
    while todo:
        for callee in callees[todo.pop()]:
            if callee is goal:
                return True
            if callee not in seen:
                seen.add(callee)
                todo.append(callee)
    return False


def _reached(start: Operation, callees: Mapping[Operation, set[Operation]]) -> frozenset[Operation]:
    """Returns a function and all that it calls, directly or not."""
    seen = {start}
    todo = [start]
    while todo:
        more = callees[todo.pop()] - seen
        seen |= more
        todo.extend(more)
    return frozenset(seen)


def _saturated(walked: int) -> int:
    return min(walked, MOST_COUNTED)


def _moved(step: Step, frames: tuple[_Frame, ...]) -> Step:
    if step.position is None:
        return step
    return Step(step.kind, step.op, Position(step.position.point, frames), step.renames)


def _names(later: Sequence[Value], earlier: Sequence[Value]) -> dict[Value, Value]:
    return dict(zip(later, earlier, strict=False))


def _end(block: Block) -> Point:
    return Point(block, len(block.ops))


def _ends(region: Region) -> list[Block]:
    """Returns the blocks from which control leaves a region."""
    return [b for b in region.blocks if not (b.ops and b.ops[-1].successors)]


def _handed_out(block: Block) -> tuple[Value, ...]:
    """Returns what a block passes to the enclosing operation, or to its next region."""
    last = block.ops[-1] if block.ops else None
    if last is None:
        return ()
    if last.name in _YIELDS:
        return last.operands
    return last.operands[1:] if last.name == "scf.condition" else ()


def _always_runs(op: Operation) -> bool:
    """Returns whether an operation always runs one of its regions."""
    return op.name in (
        "scf.execute_region",
        "scf.index_switch",
        "scf.while",
        "ttg.warp_specialize",
    )


def _branch(op: Operation, block: Block) -> Step:
    """Returns the edge from a terminator to one of its successors."""
    source = op.parent
    if source is None:
        return Step(StepKind.UNKNOWN, op, None)
    handed = [part for each, part in successor_parts(op, op.operands) if each is block]
    renames = _names(block.args, handed[0]) if len(handed) == 1 else {}
    return Step(StepKind.BRANCH, op, Position(_end(source)), renames)
