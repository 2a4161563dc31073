"""Finds the largest provable number of each wait, and waits without effect.

A larger number of a wait only weakens what is proven.  So the obligations that depend on it hold
up to some number and fail above; bisection finds it, with all other numbers fixed.  Waits that
others may rely on (:mod:`.handed_over`) get no larger number.

Safe direction: a number returned here is proven safe; a larger one may be safe too.  A wait is
called useless only if nothing that it waits for can be outstanding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from triton_ext.analysis.backward_flow import Step, StepKind
from triton_ext.analysis.nearest_walk import nearest_walks
from triton_ext.ir import Block, Operation, Value

from .async_events import Commit, Wait, WaitUnit
from .handed_over import HandedOver
from .instruction_count import AsyncIssue
from .target import Counter, Queue
from .wait_coverage import Checked, Obligation, Pending, WaitCoverage, renamed_tokens

__all__ = ["WaitNumbers"]


class WaitNumbers:
    """Tries numbers of waits.

    Args:
        coverage: The obligations; its ``numbers`` record the decisions.

    Attributes:
        coverage: The obligations.
        results: Result of each obligation with the numbers decided so far.
    """

    def __init__(self, coverage: WaitCoverage) -> None:
        self.coverage = coverage
        self._handed_over = HandedOver(coverage)
        self.results: dict[Obligation, Checked] = {
            obligation: coverage.check(obligation) for obligation in coverage.obligations()
        }

    def number(self, wait: Wait) -> int | None:
        """Returns the number of a wait, or ``None`` if its tokens decide."""
        return self.coverage.rule(wait)[1]

    def decide(self, wait: Wait, number: int) -> None:
        """Fixes the number of a wait."""
        resting = self._resting_on(wait)
        self.coverage.numbers[wait.op] = number
        for obligation in resting:
            self.results[obligation] = self.coverage.check(obligation)

    def lower(self, obligation: Obligation, waits: Iterable[Wait]) -> bool:
        """Makes an obligation hold by the smallest change to one of some waits.

        Args:
            obligation: A violated obligation.
            waits: The waits on the path, preferred ones first.

        Returns:
            Whether a change made it hold.
        """
        for wait in waits:
            number = self.number(wait)
            if not number:
                continue
            best = self._bisected(wait, 0, number - 1, obligation)
            if best is not None:
                self.decide(wait, best)
                return True
        return False

    def largest(self, wait: Wait) -> int | None:
        """Returns the largest number of a wait that keeps all obligations that hold.

        Returns:
            ``None`` if no number matters, tokens decide, or others may rely on the wait.
        """
        number = self.number(wait)
        if self._handed_over.relies_on(wait):
            return None
        resting = [o for o in self._resting_on(wait) if self.results[o].holds]
        if number is None or not resting:
            return None
        most = self.coverage.events.target.max_wait  # practically unlimited
        if number >= most:
            return number
        best = most + 1
        for obligation in resting:
            # Most obligations hold with the limit of the earlier ones, which takes one check.
            largest = self._bisected(wait, number, best, obligation)
            best = largest if largest is not None else number
            if best == number:
                return number
        return best if best <= most else None

    def _resting_on(self, wait: Wait) -> list[Obligation]:
        return [o for o, checked in self.results.items() if wait.op in checked.waits]

    def _bisected(self, wait: Wait, low: int, high: int, obligation: Obligation) -> int | None:
        """Returns the largest number in ``low`` to ``high`` with which an obligation holds."""
        before = self.coverage.numbers.get(wait.op)

        def holds(number: int) -> bool:
            self.coverage.numbers[wait.op] = number
            return self.coverage.check(obligation).holds

        try:
            if holds(high):
                return high
            if not holds(low):
                return None
            while high - low > 1:
                middle = (low + high) // 2
                if holds(middle):
                    low = middle
                else:
                    high = middle
            return low
        finally:
            if before is None:
                del self.coverage.numbers[wait.op]
            else:
                self.coverage.numbers[wait.op] = before

    # ---- properties of waits

    def is_useless(self, wait: Wait) -> bool:
        """Returns whether nothing that a wait waits for can be outstanding."""
        coverage = self.coverage
        unit, number, tokens = coverage.rule(wait)
        for queue in coverage.events.queues(wait.counter):
            passing = _Passing(unit, number, frozenset(tokens))
            seeker = _Outstanding(coverage, queue, passing, Pending())
            walks = nearest_walks(coverage.flow, coverage.flow.before(wait.op), seeker)
            if walks.found or walks.gave_up:
                return False
        return True

    def disagrees(self, wait: Wait) -> bool:
        """Returns whether the number of a wait lets through what its tokens request."""
        if not wait.tokens or wait.unit is not WaitUnit.GROUPS:
            return False
        seeker = _Token(self.coverage, wait.num, frozenset(wait.tokens))
        flow = self.coverage.flow
        return bool(nearest_walks(flow, flow.before(wait.op), seeker).found)


@dataclass(frozen=True, slots=True)
class _Passing:
    """The newest operations, which a wait lets through.

    Attributes:
        unit: Unit of the count.
        left: How many more the wait lets through; ``None`` with tokens.
        tokens: Tokens that the wait waits for instead.
    """

    unit: WaitUnit
    left: int | None
    tokens: frozenset[Value]


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """Searches for an outstanding operation of a queue that a wait waits for.

    Attributes:
        coverage: The module.
        queue: The queue.
        passing: What the wait lets through; ``None`` after the newest awaited operation.
        pending: What earlier waits let through.
    """

    coverage: WaitCoverage
    queue: Queue
    passing: _Passing | None
    pending: Pending

    def step(self, step: Step, block: Block) -> _Outstanding | bool:
        if step.kind is StepKind.START:
            return False
        if step.kind is StepKind.UNKNOWN or step.op is None:
            return True
        if step.kind is not StepKind.EVENT:
            passing = self.passing
            if passing is not None and passing.tokens:
                tokens = renamed_tokens(passing.tokens, step, block)
                # From here on a token without a name may belong to any operation.
                kept = len(tokens) == len(passing.tokens)
                passing = replace(passing, tokens=tokens) if kept else None
            pending = self.pending.across(step, block)
            return replace(self, passing=passing, pending=pending)
        return self._cross(step.op)

    def _cross(self, op: Operation) -> _Outstanding | bool:
        event = self.coverage.events.get(op)
        passing, pending = self.passing, self.pending
        if pending.retires(op, event, self.queue):
            return False
        if passing is not None and any(result in passing.tokens for result in op.results):
            passing = None
        if isinstance(event, AsyncIssue) and event.queue == self.queue:
            if passing is not None and passing.left is not None:
                passing = _one_more(passing, event)
            if passing is None:
                return True
            pending = pending.issued(event)
        elif isinstance(event, Commit) and self.queue.counter is not Counter.TENSORCNT:
            if pending.groups == 0:
                return False
            pending = pending.committed()
            if passing is not None and passing.unit is WaitUnit.GROUPS and passing.left is not None:
                left = passing.left - 1
                passing = replace(passing, left=left) if left >= 0 else None
        elif isinstance(event, Wait) and event.counter is self.queue.counter:
            pending = self.coverage.passed(event, pending)
        if pending.instructions == 0 or pending.operations == 0:
            return False
        return replace(self, passing=passing, pending=pending)


def _one_more(passing: _Passing, issue: AsyncIssue) -> _Passing | None:
    """Returns what may still pass before one more operation; ``None`` if the wait covers it."""
    if passing.unit is WaitUnit.GROUPS or passing.left is None:
        return passing
    count = issue.instructions.hi if passing.unit is WaitUnit.INSTRUCTIONS else 1
    left = passing.left - count
    return replace(passing, left=left) if left >= 0 else None


@dataclass(frozen=True, slots=True)
class _Token:
    """Searches for the operation of a token among those that a number lets through.

    Attributes:
        coverage: The module.
        left: Groups that the number still lets through.
        tokens: The tokens, by their names at this point of the walk.
    """

    coverage: WaitCoverage
    left: int
    tokens: frozenset[Value]

    def step(self, step: Step, block: Block) -> _Token | bool:
        if step.kind in (StepKind.START, StepKind.UNKNOWN) or step.op is None:
            return False
        if step.kind is not StepKind.EVENT:
            tokens = renamed_tokens(self.tokens, step, block)
            return replace(self, tokens=tokens) if tokens else False
        if not isinstance(self.coverage.events.get(step.op), Commit):
            return self
        if self.left == 0:
            return False
        if any(result in self.tokens for result in step.op.results):
            return True
        return replace(self, left=self.left - 1)
