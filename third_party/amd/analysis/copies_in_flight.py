"""Which copies may be in flight at a point of a module.

Safe direction: a copy that may be in flight is named; one that is named may be retired on every
path that an execution takes.  Where nothing is known of what ran before, anything may be in flight.
What retires a copy is defined in
:mod:`triton_ext.backends.amd.analysis.wait_coverage`, numbers 4 to 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from triton_ext.analysis.backward_flow import Position, Step, StepKind
from triton_ext.analysis.nearest_walk import nearest_walks
from triton_ext.ir import Block, Operation

from .instruction_count import AsyncIssue
from .wait_coverage import Pending, WaitCoverage

__all__ = ["copies_in_flight"]


def copies_in_flight(
    position: Position, candidates: Iterable[AsyncIssue], coverage: WaitCoverage
) -> dict[Operation, int]:
    """The copies that may be in flight at a position.

    Args:
        position: The position.
        candidates: The copies that are asked about.
        coverage: The module, and what its waits let through.

    Returns:
        For each such copy how many times control went back to the start of a loop around it, on
        the nearest path since it was issued.
    """
    found: dict[Operation, int] = {}
    for issue in candidates:
        if not issue.instructions.hi:
            continue
        around = _around(issue.op)
        walks = nearest_walks(coverage.flow, position, _Seeker(coverage, issue, Pending()))
        if walks.gave_up and not walks.found:
            found[issue.op] = 0
        for end in walks.found:
            found[issue.op] = sum(
                step.kind is StepKind.PREVIOUS and step.op in around for step in end.steps
            )
    return found


def _around(op: Operation) -> frozenset[Operation]:
    """The operations around one."""
    found = []
    outer = op.parent_op
    while outer is not None:
        found.append(outer)
        outer = outer.parent_op
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Seeker:
    """Looks for one copy.

    Attributes:
        coverage: The module.
        issue: The copy.
        pending: What the waits that were passed let through.
    """

    coverage: WaitCoverage
    issue: AsyncIssue
    pending: Pending

    def step(self, step: Step, block: Block) -> _Seeker | bool:
        if step.kind is StepKind.START:
            return False
        if step.kind is StepKind.UNKNOWN or step.op is None:
            return True
        if step.kind is StepKind.EVENT:
            return self._cross(step.op)
        return replace(self, pending=self.pending.across(step, block))

    def _cross(self, op: Operation) -> _Seeker | bool:
        coverage, queue = self.coverage, self.issue.queue
        if self.pending.retires(op, coverage.events.get(op), queue):
            return False
        if op is self.issue.op:
            return True
        before = coverage.before(op, queue, self.pending)
        return False if before is None else replace(self, pending=before)
