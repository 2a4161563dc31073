"""Waits of a timeline: the number, how it comes about, and the verifier's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from triton_ext.analysis.backward_flow import Point, Position, Step, StepKind
from triton_ext.analysis.timeline import Lane, Place, Term, Wait
from triton_ext.ir import Operation
from triton_ext.ir.functions import callee_of

from . import async_events
from .async_events import Commit, WaitUnit
from .copies_in_flight import copies_in_flight
from .instruction_count import AsyncIssue
from .target import Counter, Direction, Queue
from .value_origins import token_origins
from .wait_coverage import Violation
from .wait_distance import Distance, distance_of
from .wait_numbers import WaitNumbers

__all__ = ["WaitFacts", "kind_of", "lane_of", "place_of"]

_COUNTERS: Final = {
    Counter.VMCNT: "VMcnt",
    Counter.ASYNCCNT: "ASYNCcnt",
    Counter.TENSORCNT: "TENSORcnt",
}
_WHAT: Final = {Direction.LOAD: "loads", Direction.STORE: "stores", None: ""}
#: Edges in program direction.
_EDGES: Final = {
    StepKind.ENTER: "out of {}",
    StepKind.PREVIOUS: "round {}",
    StepKind.LEAVE: "into {}",
    StepKind.SKIP: "past {}",
    StepKind.BRANCH: "along {}",
    StepKind.CALL: "through {}",
    StepKind.CALLER: "from {}",
}


def lane_of(queue: Queue) -> Lane:
    """Returns the lane of a queue."""
    return Lane(_COUNTERS[queue.counter], _WHAT[queue.direction])


def place_of(op: Operation) -> Place:
    """Returns the user's source line, or the line of the IR if unknown."""
    known = op.loc.resolve() if op.loc is not None else None
    if known is not None:
        return Place(*known)
    error = op.error("")
    return Place(error.filename, error.line, error.column)


def kind_of(op: Operation) -> str:
    """Returns the name of an operation without its dialect."""
    return op.name.rpartition(".")[2]


class WaitFacts:
    """Creates the waits of a timeline.

    Args:
        numbers: The verifier's view of the module.
        labels: Names of the copies.
    """

    def __init__(self, numbers: WaitNumbers, labels: Mapping[Operation, str]) -> None:
        self._numbers = numbers
        self._events = numbers.coverage.events
        self._labels = labels
        self._unsafe = {
            self._nearest(violation)
            for checked in numbers.results.values()
            for violation in checked.violations
        }

    def item(self, wait: async_events.Wait) -> Wait:
        """Returns the timeline entry of a wait."""
        numbers = self._numbers
        number = numbers.number(wait)
        best = numbers.largest(wait) if number is not None else None
        distance = self._distance(wait)
        unit, counted = self._counted(wait, distance)
        walk = distance.walk if distance is not None else None
        last = walk.last if walk is not None else None
        in_front = numbers.coverage.flow.before(wait.op)
        return Wait(
            place=place_of(wait.op),
            op=wait.op.name,
            counter=_COUNTERS[wait.counter],
            unit=wait.unit.value,
            num=wait.num,
            tokens=self._token_labels(wait),
            has_tokens=bool(wait.tokens),
            counted_unit=unit.value,
            counted=counted,
            terms=self._terms(walk.terms if walk is not None else ()),
            sum=distance.count if distance is not None else wait.num,
            awaited=self._labels.get(last, "") if last is not None else "",
            path=self.path(walk.steps) if walk is not None else (),
            is_constrained=distance is None or distance.constrained,
            retires=self._retired(wait, in_front),
            unsafe=wait.op in self._unsafe,
            best=best if best is not None and number is not None and best > number else None,
            is_useless=numbers.is_useless(wait),
            tokens_disagree=numbers.disagrees(wait),
        )

    def path(self, steps: Sequence[Step]) -> tuple[str, ...]:
        """Returns the edges of a backward path in words, in program direction."""
        told: list[str] = []
        edges = [step for step in reversed(steps) if step.op is not None and step.kind in _EDGES]
        runs = [(key, len(list(g))) for key, g in groupby(edges, key=lambda s: (s.kind, s.op))]
        while runs:
            (kind, op), times = runs.pop(0)
            if op is None:
                continue
            name = f"{_named(op)} (line {place_of(op).line})"
            crossed = _crossed(kind, op, runs)
            if crossed is not None:
                told.append(f"through {f'{crossed} iterations of ' if crossed > 1 else ''}{name}")
                del runs[: 2 if crossed > 1 else 1]
                continue
            text = _EDGES[kind].format(name)
            told.append(text if times == 1 else f"{text} {times} times")
        return tuple(told)

    def _nearest(self, violation: Violation) -> Operation | None:
        """Returns the wait that a use relies on first: the last one before it."""
        for step in violation.steps:
            event = self._event(step.op) if step.kind is StepKind.EVENT else None
            counter = event.counter if isinstance(event, async_events.Wait) else None
            if counter is violation.obligation.queue.counter:
                return step.op
        return None

    def _event(self, op: Operation | None) -> async_events.Event | None:
        return self._events.get(op) if op is not None else None

    def _distance(self, wait: async_events.Wait) -> Distance | None:
        """Returns what may stay in flight; ``None`` if the number stays as it is."""
        if wait.unit is WaitUnit.INSTRUCTIONS:
            return None
        if wait.counter is not Counter.TENSORCNT and self._events.counts_groups and not wait.tokens:
            return None
        return distance_of(wait, self._events, self._numbers.coverage.flow)

    def _counted(self, wait: async_events.Wait, distance: Distance | None) -> tuple[WaitUnit, int]:
        """Returns the number that ``tritonamdgpu-update-async-wait-count`` gives a wait."""
        if distance is None:
            return wait.unit, wait.num
        if wait.counter is not Counter.TENSORCNT and self._events.counts_groups:
            return WaitUnit.GROUPS, min(wait.num, distance.count)
        return WaitUnit.INSTRUCTIONS, self._events.target.clamp(distance.count)

    def _terms(self, terms: Sequence[tuple[Operation, int]]) -> tuple[Term, ...]:
        told: dict[tuple[Operation, int], int] = {}
        for term in terms:
            told[term] = told.get(term, 0) + 1
        return tuple(
            Term(self._labels.get(op, ""), place_of(op), cost, times)
            for (op, cost), times in told.items()
        )

    def _token_labels(self, wait: async_events.Wait) -> tuple[str, ...]:
        named: dict[str, None] = {}
        for token in wait.tokens:
            for op in token_origins(token):
                if isinstance(self._event(op), Commit):
                    of = [o for t in op.operands for o in token_origins(t) if o in self._labels]
                    named.update((self._labels[o], None) for o in of)
                elif op in self._labels:
                    named[self._labels[op]] = None
        return tuple(named)

    def _retired(self, wait: async_events.Wait, in_front: Position) -> tuple[str, ...]:
        coverage = self._numbers.coverage
        issues = [
            event
            for event in self._events
            if isinstance(event, AsyncIssue) and event.queue.counter is wait.counter
        ]
        before = copies_in_flight(in_front, issues, coverage)
        point = in_front.point
        behind_it = Position(Point(point.block, point.index + 1))
        left = [issue for issue in issues if issue.op in before]
        behind = copies_in_flight(behind_it, left, coverage)
        return tuple(self._labels[op] for op in before if op not in behind)


def _crossed(
    kind: StepKind, op: Operation, runs: Sequence[tuple[tuple[StepKind, Operation | None], int]]
) -> int | None:
    """Returns how often the region entered by an edge runs; ``None`` if it is not left."""
    if kind is not StepKind.LEAVE:
        return None
    round_it = runs[0][1] if runs and runs[0][0] == (StepKind.PREVIOUS, op) else 0
    rest = runs[1:] if round_it else runs
    return round_it + 1 if rest and rest[0][0] == (StepKind.ENTER, op) else None


def _named(op: Operation) -> str:
    callee = callee_of(op) if op.name.endswith(".call") else None
    return f"the call of @{callee}" if callee is not None else f"the '{kind_of(op)}'"
