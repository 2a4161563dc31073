"""Collects the asynchronous operations of a module: issues, commits and waits.

Unknown asynchronous operations are refused by name: ignoring one would make the numbers of later
waits too high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final, TypeAlias

from triton_ext.analysis.axis_info import AxisInfoAnalysis
from triton_ext.analysis.memory_effects import is_listed
from triton_ext.analysis.type_text import type_text
from triton_ext.errors import NotModelledError
from triton_ext.ir import Module, Operation, Value
from triton_ext.ir.dialects import ttg

from ..dialect import amdg
from .axis_info import AXIS_INFO_RULES
from .instruction_count import ISSUING, AsyncIssue, count
from .lds_use import ARRIVALS
from .target import Counter, Direction, Lowering, Queue, Target

__all__ = ["ASYNC", "KNOWN", "AsyncEvents", "Commit", "Event", "Wait", "WaitUnit"]

#: Type of the tokens that connect asynchronous operations and waits.
_TOKEN: Final = "!ttg.async.token"
#: Words in the names of operations that start or wait for asynchronous work.
_RUNS_ON: Final = frozenset({"async", "tdm", "tma", "wait"})
#: Names of the known operations; arrivals at mbarriers use no counter.
KNOWN: Final = (
    ISSUING
    | ARRIVALS
    | {ttg.AsyncCommitGroupOp.NAME, ttg.AsyncWaitOp.NAME, amdg.AsyncWaitOp.NAME}
    | {amdg.TdmWaitOp.NAME, amdg.TdmWaitOp.INTRINSIC}
)
#: Prefixes of all their names.
ASYNC: Final = ("amdg.async_", "amdg.buffer_load_to_local", "ttg.async_")


class WaitUnit(Enum):
    """Unit of the number of a wait."""

    GROUPS = "groups"
    OPERATIONS = "operations"
    INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class Commit:
    """``ttg.async_commit_group``: groups the copies by address since the last commit."""

    op: Operation


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait.

    Attributes:
        op: The operation.
        counter: The counter.
        unit: Unit of ``num``.
        num: How many may stay in flight.
        tokens: Tokens that it waits for instead, if any.
        is_for_all: Whether it also waits for uncommitted copies.
    """

    op: Operation
    counter: Counter
    unit: WaitUnit
    num: int
    tokens: tuple[Value, ...]
    is_for_all: bool = False


Event: TypeAlias = AsyncIssue | Commit | Wait


class AsyncEvents:
    """The asynchronous operations of a module.

    Args:
        module: The module.
        target: The GPU.
        lowering: The host's lowering.

    Attributes:
        target: The GPU.
        lowering: The host's lowering.

    Raises:
        VerifyError: An operation cannot be read, or an encoding is unknown.
        NotModelledError: An asynchronous operation is unknown.
    """

    def __init__(self, module: Module, target: Target, lowering: Lowering) -> None:
        self.target = target
        self.lowering = lowering
        self._events: dict[Operation, Event] = {}

        @cache
        def axis_info() -> AxisInfoAnalysis:
            return AxisInfoAnalysis.of(module, rules=AXIS_INFO_RULES)

        for op in module.walk():
            if op.name not in KNOWN:
                _refuse_asynchronous(op)
                continue
            event = count(op, axis_info, target, lowering) or _commit(op) or _wait(op, target)
            if event is not None:
                self._events[op] = event

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events.values())

    def __len__(self) -> int:
        return len(self._events)

    def get(self, op: Operation) -> Event | None:
        """Returns the event of an operation, or ``None``."""
        return self._events.get(op)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Returns the waits, in program order."""
        return tuple(event for event in self if isinstance(event, Wait))

    def is_event(self, op: Operation) -> bool:
        """Returns whether a walk over tokens and instructions must visit an operation."""
        return op in self._events or any(
            type_text(result) == _TOKEN for result in op.results if op.regions or op.operands
        )

    @property
    def counts_groups(self) -> bool:
        """Returns whether waits for copies stay in groups and nobody counts instructions."""
        marks = self.lowering.async_marks and self.target.copy_counter is Counter.VMCNT
        return marks or self.target.waits_count_groups

    def weight(self, issue: AsyncIssue) -> int:
        """Returns what an operation adds to the distance of a later wait."""
        is_copy = issue.queue.counter is self.target.copy_counter
        return 0 if is_copy and self.counts_groups else issue.instructions.lo

    @property
    def commit_weight(self) -> int:
        """Returns what a commit adds to the distance of a later wait."""
        return 1 if self.counts_groups else 0

    def queues(self, counter: Counter) -> tuple[Queue, ...]:
        """Returns the queues of a counter."""
        if counter is Counter.TENSORCNT:
            return (self.target.tdm_queue,)
        return tuple(dict.fromkeys(self.target.copy_queue(direction) for direction in Direction))


def _refuse_asynchronous(op: Operation) -> None:
    """Refuses an unknown operation that may be asynchronous.

    Raises:
        NotModelledError: It may be.
    """
    if not op.name.startswith(ASYNC):
        if is_listed(op.name):
            return
        words = frozenset(op.name.partition(".")[2].split("_"))
        has_token = any(type_text(result) == _TOKEN for result in op.results)
        if words.isdisjoint(_RUNS_ON) and not has_token:
            return
    error = op.error(
        f"'{op.name}' is asynchronous, but what it issues or waits for is not known",
        "triton-ext knows the operations of Triton 3.6 to 3.9: update it, or leave the numbers of "
        "waits to Triton (TRITON_EXT_WAITS=host in a compile)",
    )
    raise NotModelledError.of(error)


def _commit(op: Operation) -> Commit | None:
    return Commit(op) if op.name == ttg.AsyncCommitGroupOp.NAME else None


def _wait(op: Operation, target: Target) -> Wait | None:
    groups = ttg.AsyncWaitOp.match(op)
    if groups is not None:
        # A negative number waits for everything, as in upstream's pass.
        is_for_all, num = groups.num < 0 and not groups.tokens, max(0, groups.num)
        return Wait(op, target.copy_counter, WaitUnit.GROUPS, num, groups.tokens, is_for_all)
    counted = amdg.AsyncWaitOp.match(op)
    if counted is not None:
        return Wait(op, target.copy_counter, WaitUnit.INSTRUCTIONS, counted.num_inst, ())
    tdm = amdg.TdmWaitOp.match(op)
    if tdm is not None:
        unit = WaitUnit.INSTRUCTIONS if tdm.counts_instructions else WaitUnit.OPERATIONS
        tokens = () if tdm.counts_instructions else tdm.tokens
        return Wait(op, Counter.TENSORCNT, unit, max(0, tdm.num), tokens)
    return None
