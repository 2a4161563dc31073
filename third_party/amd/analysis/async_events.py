"""The asynchronous operations of a module: what is issued, committed and waited for.

An asynchronous operation that is not known here is refused by name.  Left out, it would make the
numbers of waits behind it too high.
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

#: Type of what asynchronous operations hand to the waits for them.
_TOKEN: Final = "!ttg.async.token"
#: Words in the names of operations that start or wait for something that runs on.
_RUNS_ON: Final = frozenset({"async", "tdm", "tma", "wait"})
#: Names of the operations that are understood; arrivals at mbarriers take part in no counter.
KNOWN: Final = (
    ISSUING
    | ARRIVALS
    | {ttg.AsyncCommitGroupOp.NAME, ttg.AsyncWaitOp.NAME, amdg.AsyncWaitOp.NAME}
    | {amdg.TdmWaitOp.NAME, amdg.TdmWaitOp.INTRINSIC}
)
#: How the names of all of them start.
ASYNC: Final = ("amdg.async_", "amdg.buffer_load_to_local", "ttg.async_")


class WaitUnit(Enum):
    """What the number of a wait counts."""

    GROUPS = "groups"
    OPERATIONS = "operations"
    INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class Commit:
    """``ttg.async_commit_group``: what was issued by address since the last one is a group."""

    op: Operation


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait.

    Attributes:
        op: The operation.
        counter: What it waits for.
        unit: What ``num`` counts.
        num: What may be in flight behind it.
        tokens: What it waits for instead, if any.
        is_for_all: Whether it waits for copies that no commit follows as well.
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
        lowering: What the host makes of them.

    Attributes:
        target: The GPU.
        lowering: What the host makes of the operations.

    Raises:
        VerifyError: An operation cannot be read, or an encoding is not known.
        NotModelledError: An asynchronous operation is not known.
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
        """What an operation is, or ``None``."""
        return self._events.get(op)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits, in the order of the text."""
        return tuple(event for event in self if isinstance(event, Wait))

    def is_event(self, op: Operation) -> bool:
        """Whether a walk that follows tokens and counts instructions has to see an operation."""
        return op in self._events or any(
            type_text(result) == _TOKEN for result in op.results if op.regions or op.operands
        )

    @property
    def counts_groups(self) -> bool:
        """Whether waits for copies count groups to the end, and nobody counts instructions."""
        marks = self.lowering.async_marks and self.target.copy_counter is Counter.VMCNT
        return marks or self.target.waits_count_groups

    def weight(self, issue: AsyncIssue) -> int:
        """What an operation adds to the distance of a wait behind it."""
        is_copy = issue.queue.counter is self.target.copy_counter
        return 0 if is_copy and self.counts_groups else issue.instructions.lo

    @property
    def commit_weight(self) -> int:
        """What a commit adds to the distance of a wait behind it."""
        return 1 if self.counts_groups else 0

    def queues(self, counter: Counter) -> tuple[Queue, ...]:
        """The queues that a counter counts."""
        if counter is Counter.TENSORCNT:
            return (self.target.tdm_queue,)
        return tuple(dict.fromkeys(self.target.copy_queue(direction) for direction in Direction))


def _refuse_asynchronous(op: Operation) -> None:
    """Refuses an operation that may start or wait for something, and is not known.

    Raises:
        NotModelledError: It is one.
    """
    if not op.name.startswith(ASYNC):
        if is_listed(op.name):
            return
        words = frozenset(op.name.partition(".")[2].split("_"))
        has_token = any(type_text(result) == _TOKEN for result in op.results)
        if words.isdisjoint(_RUNS_ON) and not has_token:
            return
    error = op.error(
        f"'{op.name}' is asynchronous, and what it issues or waits for is not known",
        "triton-ext knows the operations of Triton 3.6 to 3.9: update it, or leave the numbers of "
        "waits to Triton (TRITON_EXT_WAITS=host in a compile)",
    )
    raise NotModelledError.of(error)


def _commit(op: Operation) -> Commit | None:
    return Commit(op) if op.name == ttg.AsyncCommitGroupOp.NAME else None


def _wait(op: Operation, target: Target) -> Wait | None:
    groups = ttg.AsyncWaitOp.match(op)
    if groups is not None:
        # A negative number asks for everything, as in upstream's pass.
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
