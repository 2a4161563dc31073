"""Finds the copies that may be in flight at a point of a module.

Safe direction: a copy that may be in flight is returned; a returned copy may be retired on every
feasible path.  If it is unknown what ran before, anything may be in flight.  Rules 5 to 8 of
:mod:`triton_ext.backends.amd.analysis.wait_coverage` define what retires a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from triton_ext.analysis.backward_flow import Position, Step, StepKind
from triton_ext.analysis.nearest_walk import AlsoHere, nearest_walks
from triton_ext.ir import Block, Operation

from .instruction_count import AsyncIssue
from .target import Queue
from .wait_coverage import Pending, WaitCoverage

__all__ = ["copies_in_flight"]


def copies_in_flight(
    position: Position, candidates: Iterable[AsyncIssue], coverage: WaitCoverage
) -> dict[Operation, int]:
    """Returns the copies that may be in flight at a position.

    Args:
        position: The position.
        candidates: The copies to consider.
        coverage: The module, and what its waits let through.

    Returns:
        For each such copy the number of back edges of its enclosing loops on the nearest path from
        it to the position.
    """
    asked: dict[Queue, list[Operation]] = {}
    for issue in candidates:
        if issue.instructions.hi:
            asked.setdefault(issue.queue, []).append(issue.op)
    found: dict[Operation, int] = {}
    for queue, ops in asked.items():
        # One walk for all copies: a kernel may have hundreds.
        walks = nearest_walks(coverage.flow, position, _Seeker(coverage, queue, Pending()))
        ends = {end.op: end.steps for end in walks.found}
        unknown = (e.steps for e in walks.found if e.steps[-1].kind is StepKind.UNKNOWN)
        anything = next(unknown, () if walks.gave_up else None)
        for op in ops:
            steps = ends.get(op, anything)
            if steps is not None:
                found[op] = _iterations(steps, op)
    return found


def _iterations(steps: tuple[Step, ...], op: Operation) -> int:
    """Counts the edges to the previous iteration of a loop around an operation."""
    again = [step.op for step in steps if step.kind is StepKind.PREVIOUS]
    around = _around(op) if again else frozenset()
    return sum(loop in around for loop in again)


def _around(op: Operation) -> frozenset[Operation]:
    """Returns the operations around an operation."""
    found = []
    outer = op.parent_op
    while outer is not None:
        found.append(outer)
        outer = outer.parent_op
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Seeker:
    """Searches for the copies of a queue.

    Attributes:
        coverage: The module.
        queue: The queue.
        pending: What the passed waits let through.
    """

    coverage: WaitCoverage
    queue: Queue
    pending: Pending

    def step(self, step: Step, block: Block) -> _Seeker | AlsoHere[_Seeker] | bool:
        if step.kind is StepKind.START:
            return False
        if step.kind is StepKind.UNKNOWN or step.op is None:
            return True
        if step.kind is StepKind.EVENT:
            return self._cross(step.op)
        return self._with(self.pending.across(step, block))

    def _cross(self, op: Operation) -> _Seeker | AlsoHere[_Seeker] | bool:
        coverage, queue = self.coverage, self.queue
        event = coverage.events.get(op)
        if self.pending.retires(op, event, queue):
            return False
        before = coverage.before(op, queue, self.pending)
        is_copy = isinstance(event, AsyncIssue) and event.queue == queue
        if before is None:
            return is_copy
        return AlsoHere(self._with(before)) if is_copy else self._with(before)

    def _with(self, pending: Pending) -> _Seeker:
        return self if pending is self.pending else replace(self, pending=pending)
