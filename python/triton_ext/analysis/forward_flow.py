"""Forward data flow over the blocks and regions of a function.

A state flows from the function's entry through every operation, in every possible order: along
branches, into and out of the regions of ``scf`` operations, around loops, into each partition of
``ttg.warp_specialize`` and through its default region.  States are joined where paths meet.
Straight-line code is revisited until its incoming state no longer grows.

It skips regions that are no control flow (``tt.reduce``, ``tt.scan``, ``tt.map_elementwise``).
The regions of an unknown operation may each run any number of times.

Termination: states only grow at joins, so the states must have a greatest element, and
:meth:`Transfer.update` must never revoke a decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ..ir import Block, Operation, Region
from ..ir.dialects import ttg
from ..ir.dominance import Dominance
from ..ir.functions import RETURNS

__all__ = ["Edge", "FlowState", "Transfer", "run_forward"]

#: Operations whose regions compute a value from values.
_NO_CONTROL_FLOW: Final = frozenset({"tt.reduce", "tt.scan", "tt.map_elementwise"})
_CONCURRENT: Final = (ttg.WarpSpecializeOp.NAME, ttg.PARTITIONS)
_CHOICES: Final = ("scf.if", "scf.index_switch", "scf.execute_region")


class FlowState(Protocol):
    """A state, changed in place."""

    def copy(self: S) -> S:
        """Returns an independent copy."""

    def join(self: S, other: S) -> None:
        """Adds the state of another path."""


S = TypeVar("S", bound=FlowState)
S_contra = TypeVar("S_contra", bound=FlowState, contravariant=True)


@dataclass(frozen=True, slots=True)
class Edge:
    """A control-flow edge from one piece of straight-line code to another.

    Attributes:
        block: The target block.
        loop: The operation whose regions run again; ``None`` for a branch.
        is_back: Whether earlier values may belong to a previous run of the same code.
        starts_partition: Whether the warps of a partition of ``ttg.warp_specialize`` start here.
    """

    block: Block
    loop: Operation | None = None
    is_back: bool = False
    starts_partition: bool = False


class Transfer(Protocol[S_contra]):
    """Changes states at operations and edges."""

    def update(self, op: Operation, state: S_contra) -> None:
        """Changes the state before an operation to the one after it.

        For an operation with regions, covers only the part before them.
        """

    def cross(self, edge: Edge, state: S_contra) -> None:
        """Changes a state on an edge."""


@dataclass(frozen=True, slots=True)
class _Point:
    """The start of a piece of straight-line code: a block, and the number of operations skipped."""

    block: Block
    index: int


class _Flow(Generic[S]):
    def __init__(self, function: Operation, transfer: Transfer[S]) -> None:
        self.function = function
        self.transfer = transfer
        self.dominances: dict[Region, Dominance] = {}
        self.irreducible: dict[Region, bool] = {}
        self.inputs: dict[_Point, S] = {}
        self.outputs: dict[_Point, S] = {}

    def run(self, start: S) -> S | None:
        entry = _Point(self.function.regions[0].blocks[0], 0)
        self.inputs[entry] = start
        todo = deque([entry])
        left: dict[Operation, S] = {}
        while todo:
            point = todo.popleft()
            state = self.inputs[point].copy()
            stopped = self._through(point, state)
            if point in self.outputs and self.outputs[point] == state:
                continue
            self.outputs[point] = state
            end = point.block.ops[-1] if point.block.ops else None
            if stopped is not None:
                steps = self._into(stopped)
            elif end is not None and end.successors:
                steps = self._along(end)
            elif point.block.parent.parent is self.function:
                if end is not None and end.name in RETURNS:
                    left[end] = state
                continue
            else:
                steps = self._out_of(point.block.parent)
            for edge, index in steps:
                target = _Point(edge.block, index)
                handed = state.copy()
                self.transfer.cross(edge, handed)
                if target in self.inputs:
                    self.inputs[target].join(handed)
                else:
                    self.inputs[target] = handed
                todo.append(target)
        found: S | None = None
        for state in left.values():
            if found is None:
                found = state.copy()
            else:
                found.join(state)
        return found

    def _through(self, point: _Point, state: S) -> Operation | None:
        """Goes through straight-line code; returns an operation with regions if it ends there."""
        for op in point.block.ops[point.index :]:
            self.transfer.update(op, state)
            if op.regions and op.name not in _NO_CONTROL_FLOW:
                return op
        return None

    # ---- control-flow edges, each with the number of operations skipped in the target block

    def _along(self, branch: Operation) -> Iterator[tuple[Edge, int]]:
        for block in branch.successors:
            yield Edge(block, is_back=self._is_back(branch, block)), 0

    def _into(self, op: Operation) -> Iterator[tuple[Edge, int]]:
        regions = [region for region in op.regions if region.blocks]
        if op.name == "scf.while":
            regions = regions[:1]
        for region in regions:
            is_partition = op.name in _CONCURRENT and region.isolated
            yield Edge(region.blocks[0], starts_partition=is_partition), 0
        always_enters = op.name in (*_CHOICES, *_CONCURRENT, "scf.while")
        if not always_enters or (op.name == "scf.if" and len(regions) < 2):
            yield self._behind(op)

    def _out_of(self, region: Region) -> Iterator[tuple[Edge, int]]:
        around = region.parent
        if around.name in _CONCURRENT and (region.isolated or around.name == ttg.PARTITIONS):
            return  # a partition has no successor
        if around.name == "scf.while":
            before, after = around.regions
            if region is after:
                yield Edge(before.blocks[0], around, is_back=True), 0
                return
            yield Edge(after.blocks[0]), 0
        elif around.name not in (*_CHOICES, *_CONCURRENT):
            for each in around.regions:
                yield Edge(each.blocks[0], around, is_back=True), 0
        yield self._behind(around)

    def _behind(self, op: Operation) -> tuple[Edge, int]:
        assert op.parent is not None  # only a module has no parent
        return Edge(op.parent), op.parent.ops.index(op) + 1

    def _is_back(self, branch: Operation, target: Block) -> bool:
        """Returns whether a branch may lead to code that has run before.

        In an irreducible region every branch may.
        """
        region, source = target.parent, branch.parent
        if region not in self.dominances:
            self.dominances[region] = Dominance(region)
            self.irreducible[region] = _is_irreducible(region, self.dominances[region])
        if self.irreducible[region] or source is None:
            return True
        return self.dominances[region].dominates(target, source)


def _is_irreducible(region: Region, over: Dominance) -> bool:
    """Returns whether a cycle remains after removing the edges to a dominating block."""
    forward = {
        block: [
            each
            for op in block.ops[-1:]
            for each in op.successors
            if not over.dominates(each, block)
        ]
        for block in over.order
    }
    waiting = dict.fromkeys(forward, 0)
    for targets in forward.values():
        for target in targets:
            waiting[target] += 1
    ready = [block for block, count in waiting.items() if not count]
    for block in ready:
        for target in forward[block]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return len(ready) < len(forward)


def run_forward(function: Operation, transfer: Transfer[S], start: S) -> S | None:
    """Runs a data flow through a function.

    Args:
        function: A function with a body.
        transfer: The effects of operations and edges.
        start: The state at the entry.

    Returns:
        The joined state of all returns; ``None`` for a function that never returns.
    """
    return _Flow(function, transfer).run(start)
