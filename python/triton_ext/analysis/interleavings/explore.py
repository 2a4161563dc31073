"""Explores a kernel: one order of its partitions for each of its data-dependent choices.

:mod:`~.memory` says why one order stands for all.  Where the number of iterations or a condition is
not known, both answers are followed; the same question has the same answer in every partition.
States that are the same apart from how long they ran are followed once, so loops end, and what is
found holds for any number of iterations.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ...ir import Operation
from .arithmetic import Fork, Precision, Restart
from .machine import InfeasibleError, Machine
from .memory import Violation
from .numbers import Term
from .program import Copy, Kernel, NotDecided, Spawn, Wait, fail
from .state import DONE, Event, State

__all__ = ["Limits", "Outcome", "explore"]

_RESTARTS: Final = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is explored at most.

    Attributes:
        states: States.
        steps: Instructions.
    """

    states: int = 60_000
    steps: int = 6_000_000


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
        states: States that were followed.
        steps: Instructions that were followed.
    """

    kernel: Kernel
    violation: Violation | None = None
    undecided: NotDecided | None = None
    trace: Event | None = None
    conditions: dict[Term, tuple[float, float]] = field(default_factory=dict)
    loops: dict[Term, Operation] = field(default_factory=dict)
    states: int = 0
    steps: int = 0

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
    for _ in range(_RESTARTS):
        try:
            return _Explorer(kernel, precision, limits or Limits()).run()
        except Restart:
            continue
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
                    violation.op, f"it may be that {violation.message}, if bounds change meanwhile"
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
        outcome.states, outcome.steps = len(seen), self.steps
        if outcome.violation is None and outcome.undecided is None:
            outcome.undecided = doubtful
        return outcome

    def _follow(self, state: State) -> list[State]:
        """Runs a state up to the next question; returns a state for each answer."""
        step = self.machine.step
        order, last = self.order, len(self.order) - 1
        until = self.steps + 4096
        while True:
            part = state.parts[order[state.turn]]
            goes_on = part.pc >= 0
            if goes_on:
                self.steps += 1
                try:
                    goes_on = step(state, part)
                except Fork as fork:
                    return self._answers(state, fork)
            if not goes_on:
                if state.turn == last:
                    self._deadlock(state)
                state.turn += 1
            elif state.has_news:
                # Partitions that wait for it go on first: all stay as close as they can, and fewer
                # states differ.
                state.has_news, state.turn = False, 0
                if state.parts[0].pc == DONE:
                    return []
                if self.steps > until:
                    return self._answers(state, None)

    def _answers(self, state: State, fork: Fork | None) -> list[State]:
        if fork is None:
            self._settle(state)
            return [state]
        found = []
        for answer in fork.answers:
            child = state.copy()
            answer(child)
            if all(known.low <= known.high for known in child.domains.values()):
                self._settle(child)
                found.append(child)
        return found

    def _settle(self, state: State) -> None:
        state.settle(self.kernel.touching)
        state.collect()
        state.lower(self.kernel.terms, self.precision.floor)

    def _deadlock(self, state: State) -> None:
        """Refuses a state in which nobody goes on."""
        for part in state.parts:
            if part.pc < 0:
                continue
            instruction = self.kernel.code[part.pc]
            if isinstance(instruction, Wait):
                view = self.machine.view(part, instruction.barrier, instruction.op)
                slot = self.kernel.slot_of(view, instruction.op)
                barrier = state.barriers[slot]
                name = self.kernel.slot_name(slot)
                notes = [
                    f"phase {barrier.phases} of {name} has {barrier.count - barrier.pending} of "
                    f"{barrier.count} arrivals"
                ]
                if barrier.tx_bytes > 0:
                    notes.append(f"and {barrier.tx_bytes} bytes outstanding")
                if barrier.tx_bytes < 0:
                    notes.append(f"and copies brought {-barrier.tx_bytes} bytes too many")
                raise Violation(
                    instruction.op,
                    f"{self.kernel.names[part.number]} waits for phase {barrier.phases} of "
                    f"mbarrier {name}, which never completes",
                    (),
                    *notes,
                )
        fail(self.kernel.function, "nobody goes on")


def _is_feasible(state: State) -> bool:
    return all(low <= high for low, high in state.conditions.values())
