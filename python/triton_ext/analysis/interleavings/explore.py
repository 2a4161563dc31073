"""Explores a kernel: one order of its partitions for each of its data-dependent choices.

:mod:`~.memory` says why one order stands for all.  Where the number of iterations or a condition is
not known, both answers are followed; the same question has the same answer in every partition.
States that are the same apart from how long they ran are followed once, so loops end, and what is
found holds for any number of iterations.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NoReturn

from ...ir import Operation
from .arithmetic import Fork, InfeasibleError, Precision, Restart
from .machine import Machine
from .memory import Violation
from .numbers import Term
from .program import Copy, Kernel, NotDecided, Spawn, Test, Wait, fail
from .state import DONE, Barrier, Event, Part, State

__all__ = ["Limits", "Outcome", "explore"]

_RESTARTS: Final = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is explored at most.

    Attributes:
        states: States.
        steps: Instructions.
    """

    states: int = 6_000
    steps: int = 300_000


@dataclass(slots=True)
class Outcome:
    """The answer for one kernel.

    Attributes:
        kernel: The kernel.
        violation: What refutes it, if anything does.
        undecided: What could not be followed, if anything.
        trace: The last event before the violation.
        conditions: Least and largest value of the bounds for which the violation happens.
        loops: The loop of a bound.
        assumed: Loops that are assumed to run at least once.
        in_range: Operations whose indices are assumed to be in range.
        states: States that were followed.
        steps: Instructions that were followed.
    """

    kernel: Kernel
    violation: Violation | None = None
    undecided: NotDecided | None = None
    trace: Event | None = None
    conditions: dict[Term, tuple[float, float]] = field(default_factory=dict)
    loops: dict[Term, Operation] = field(default_factory=dict)
    assumed: tuple[Operation, ...] = ()
    in_range: tuple[Operation, ...] = ()
    states: int = 0
    steps: int = 0

    def empty_loops(self) -> list[Operation]:
        """Returns the loops that do not run at all where the violation happens."""
        return [
            self.loops[bound]
            for bound, (_, high) in self.conditions.items()
            if high <= 0 and bound in self.loops
        ]

    @property
    def is_proved(self) -> bool:
        """True for a kernel that is right."""
        return self.violation is None and self.undecided is None


def explore(kernel: Kernel, limits: Limits | None = None) -> Outcome:
    """Explores a kernel.

    Args:
        kernel: The kernel.
        limits: How much is explored at most.
    """
    precision = Precision()
    refuted: Outcome | None = None
    for _ in range(_RESTARTS):
        try:
            found = _Explorer(kernel, precision, limits or Limits()).run()
        except Restart:
            continue
        empty = set(found.empty_loops()) - precision.positive if found.violation else set()
        if refuted is None and not empty:
            return found
        if empty:
            # Kernels may rely on loops that run; what is wrong apart from that matters more.
            refuted = refuted or found
            precision.positive |= empty
            continue
        assert refuted is not None
        if found.undecided is not None:
            return refuted
        found.assumed = tuple(precision.positive)
        return found
    if refuted is not None:
        return refuted
    return Outcome(
        kernel,
        undecided=NotDecided(
            kernel.function, "its arithmetic of stages and phases is not followed"
        ),
    )


class _Explorer:
    def __init__(self, kernel: Kernel, precision: Precision, limits: Limits) -> None:
        self.kernel = kernel
        self.precision = precision
        self.limits = limits
        self.machine = Machine(kernel, precision)
        self.steps = 0
        self.order = self._priorities()

    def _priorities(self) -> list[int]:
        """The partitions, those that fill shared memory behind those that read it."""
        code = self.kernel.code
        starts = {0: 0}
        for instruction in code:
            if isinstance(instruction, Spawn):
                starts.update(instruction.parts)
        ends = sorted([*starts.values(), len(code)])
        fills = {}
        for part, start in starts.items():
            end = ends[ends.index(start) + 1]
            fills[part] = any(isinstance(each, Copy) for each in code[start:end])
        return sorted(starts, key=lambda part: (fills[part], part))

    def run(self) -> Outcome:
        """Follows all paths."""
        start = State(self.kernel.facts, self.kernel.last_loops)
        start.parts[0].pc = 0
        outcome = Outcome(self.kernel)
        queue = deque([start])
        seen = {start.key()}
        doubtful: NotDecided | None = None
        while queue:
            state = queue.popleft()
            try:
                children = self._follow(state)
            except Violation as violation:
                if _is_feasible(state):
                    outcome.violation, outcome.trace = violation, state.trace
                    outcome.conditions = state.conditions
                    break
                doubtful = doubtful or NotDecided(
                    violation.op,
                    f"it is not known whether conditions exclude that {violation.message}",
                )
                continue
            except NotDecided as undecided:
                outcome.undecided = undecided
                break
            except InfeasibleError:
                continue
            for child in children:
                key = child.key()
                if key not in seen:
                    seen.add(key)
                    queue.append(child)
            if len(seen) > self.limits.states or self.steps > self.limits.steps:
                outcome.undecided = NotDecided(
                    self.kernel.function,
                    f"it has more than {len(seen) - 1} states ({self.steps} steps)",
                )
                break
        outcome.loops = self.machine.loops
        outcome.in_range = tuple(self.machine.in_range)
        outcome.states, outcome.steps = len(seen), self.steps
        if outcome.violation is None and outcome.undecided is None:
            outcome.undecided = doubtful
        return outcome

    def _follow(self, state: State) -> list[State]:
        """Runs a state up to the next question; returns a state for each answer."""
        step = self.machine.step
        until = self.steps + 4096
        part = state.parts[state.turn]
        while True:
            if part.pc < 0 or isinstance(self.kernel.code[part.pc], Test):
                part = self._next_part(state)
                state.turn = part.number
            self.steps += 1
            try:
                goes_on = step(state, part)
            except Fork as fork:
                return self._answers(state, fork)
            if not goes_on:
                state.blocked |= 1 << part.number
            elif not state.has_news:
                continue
            else:
                state.has_news, state.blocked = False, 0
                if state.parts[0].pc == DONE:
                    return []
                if self.steps > until:
                    return self._answers(state, None)
            part = self._next_part(state)
            state.turn = part.number

    def _next_part(self, state: State) -> Part:
        """Chooses who goes on; every choice is right, but some lead to fewer states.

        Partitions that read what others write go first, so that all stay close to each other.  In
        front of an iteration, one that is behind in the same loop goes first.
        """
        found = [
            part
            for part in map(state.parts.__getitem__, self.order)
            if part.pc >= 0 and not state.blocked >> part.number & 1
        ]
        if not found:
            self._deadlock(state)
        first = found[0]
        if len(found) > 1 and isinstance(self.kernel.code[first.pc], Test):
            domain, _ = first.loops[-1]
            if domain is not None:
                return min(found, key=lambda part: state.reach(part, domain))
        return first

    def _answers(self, state: State, fork: Fork | None) -> list[State]:
        if fork is None:
            self._settle(state)
            return [state]
        found = []
        for answer in fork.answers:
            child = state.copy()
            answer(child)
            try:
                for domain, known in child.domains.items():
                    self.machine.arithmetic.tighten(child, domain, known)
            except InfeasibleError:
                continue
            if all(known.low <= known.high for known in child.domains.values()):
                self._settle(child)
                found.append(child)
        return found

    def _settle(self, state: State) -> None:
        state.settle(self.kernel.touching)
        state.collect()
        state.lower(self.kernel.terms, self.precision.floor)

    def _deadlock(self, state: State) -> NoReturn:
        """Refuses a state in which nobody goes on."""
        events: list[Event] = []
        notes: list[str] = []
        for part in state.parts:
            if part.pc < 0:
                continue
            instruction = self.kernel.code[part.pc]
            slot, phase = -1, 0
            if isinstance(instruction, Wait):
                view = self.machine.view(part, instruction.barrier, instruction.op)
                slot = self.kernel.slot_of(view, instruction.op)
                barrier = state.barriers.get(slot)
                if barrier is None:
                    fail(instruction.op, "this waits while the mbarrier is invalidated")
                phase = barrier.phases
                note = self._missing(slot, barrier)
                notes += [note] if note not in notes else []
            events.append(Event(part.number, instruction.op, "stuck", slot, phase))
        first = next((event for event in events if event.slot >= 0), None)
        if first is None:
            fail(self.kernel.function, "nobody goes on")
        raise Violation(
            first.op,
            f"{self.kernel.names[first.part]} waits for phase {first.phase} of "
            f"mbarrier {self.kernel.slot_name(first.slot)}, which never completes",
            events,
            *notes,
        )

    def _missing(self, slot: int, barrier: Barrier) -> str:
        """Returns why a phase does not complete."""
        bytes_ = ""
        if barrier.tx_bytes > 0:
            bytes_ = f", and {barrier.tx_bytes} bytes outstanding"
        if barrier.tx_bytes < 0:
            bytes_ = f", and copies brought {-barrier.tx_bytes} bytes too many"
        return (
            f"phase {barrier.phases} of {self.kernel.slot_name(slot)} has "
            f"{barrier.count - barrier.pending} of {barrier.count} arrivals{bytes_}"
        )


def _is_feasible(state: State) -> bool:
    if state.is_doubtful:
        return False
    for bound, (low, high) in state.conditions.items():
        residue, modulus = state.residues.get(bound, (0, 1))
        if low > high or (low == high and int(low) % modulus != residue):
            return False
    return True
