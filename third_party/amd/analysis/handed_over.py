"""Finds waits that other warps may rely on, which walks from uses of LDS do not see.

A correct wait may be longer than the uses of LDS after it require, because its data is handed over
to others.  This covers

1. everything a wait may wait for, if other warps use one of its buffers: in another partition of
   ``ttg.warp_specialize``, or outside of the partitions;
2. everything awaited before an operation that signals others: an arrival at an mbarrier, a
   barrier, a fence, an atomic operation, a call that cannot be followed, inline assembly with side
   effects, and operations of unknown dialects.  Each wait counts that precedes one on some path,
   up to waits that let nothing through.

Safe direction: shortening a wait that is not listed does not change what others see; a listed one
may interest nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from triton_ext.analysis.alias_sets import is_buffer, view_source
from triton_ext.analysis.backward_flow import Step, StepKind
from triton_ext.analysis.nearest_walk import nearest_walks
from triton_ext.ir import Block, Operation, Region, Value
from triton_ext.ir.dialects import ttg
from triton_ext.ir.functions import CALLS, FUNCTIONS

from .async_events import Wait, WaitUnit
from .copies_in_flight import copies_in_flight
from .instruction_count import AsyncIssue
from .target import Counter
from .wait_coverage import WaitCoverage

__all__ = ["HandedOver"]

#: Dialects whose operations signal nobody, except those with one of the words below.
_KNOWN: Final = ("arith.", "amdg.", "cf.", "math.", "scf.", "tt.", "ttg.", "ttng.", "ub.")
_TELLS: Final = frozenset({"arrive", "atomic", "barrier", "fence"})
#: Operations on mbarriers and barriers that signal nobody.
_SILENT: Final = frozenset({"expect", "init", "inval", "wait"})
#: Operations with buffer operands that do not access them.
_NO_USE: Final = frozenset({ttg.LocalDeallocOp.NAME, ttg.WarpSpecializeOp.NAME, ttg.PARTITIONS})


class HandedOver:
    """The waits of a module that others may rely on.

    Args:
        coverage: The obligations of the module, which must not change meanwhile.
    """

    def __init__(self, coverage: WaitCoverage) -> None:
        self._coverage = coverage

    def relies_on(self, wait: Wait) -> bool:
        """Returns whether others may rely on a wait."""
        return wait.op in self._told or self._is_shared(wait)

    # ---- signals

    @cached_property
    def _told(self) -> frozenset[Operation]:
        """Returns the waits before operations that signal others."""
        coverage, found = self._coverage, set[Operation]()
        units: dict[Counter, set[WaitUnit]] = {}
        for wait in coverage.events.waits:
            units.setdefault(wait.counter, set()).add(wait.unit)
        for op in self._coverage.module.walk():
            if not self._tells(op):
                continue
            for counter, used in units.items():
                start = coverage.flow.before(op)
                waits = _Waits(coverage, counter, is_mixed=len(used) > 1)
                walks = nearest_walks(coverage.flow, start, waits)
                if walks.gave_up:
                    return frozenset(wait.op for wait in coverage.events.waits)
                found |= walks.crossed
        return frozenset(found)

    def _tells(self, op: Operation) -> bool:
        if op.name in FUNCTIONS or op.name == "builtin.module":
            return False
        if op.name in CALLS:
            return not self._coverage.flow.walks_through(op)
        if not op.name.startswith(_KNOWN):
            return True
        words = frozenset(op.name.partition(".")[2].split("_"))
        if not words.isdisjoint(_TELLS) or "mbarrier" in words:
            return words.isdisjoint(_SILENT)
        return "asm" in words and "pure = true" not in op.text

    # ---- buffers shared with other warps

    def _is_shared(self, wait: Wait) -> bool:
        if not self._users:
            return False
        own = _warps_of(wait.op)
        shared = [
            event
            for event in self._coverage.events
            if isinstance(event, AsyncIssue)
            and event.queue.counter is wait.counter
            and any(
                user is not own
                for buffer in (*event.writes, *event.reads)
                for user in self._users_of(buffer)
            )
        ]
        return bool(copies_in_flight(self._coverage.flow.before(wait.op), shared, self._coverage))

    def _users_of(self, buffer: Value) -> Iterator[Region]:
        allocations = self._coverage.references.allocations(buffer)
        for allocation, users in self._users.items():
            if allocations is None or allocation is None or allocation in allocations:
                yield from users

    @cached_property
    def _users(self) -> dict[Value | None, set[Region]]:
        """Returns the warps that use each allocation or unknown buffer; {} without partitions."""
        users: dict[Value | None, set[Region]] = {}
        has_partitions = False
        for op in self._coverage.module.walk():
            has_partitions = has_partitions or op.name == ttg.WarpSpecializeOp.NAME
            if op.name in _NO_USE or view_source(op) is not None:
                continue
            for operand in op.operands:
                if is_buffer(operand):
                    found = self._coverage.references.allocations(operand)
                    for allocation in found if found is not None else (None,):
                        users.setdefault(allocation, set()).add(_warps_of(op))
        return users if has_partitions else {}


def _warps_of(op: Operation) -> Region:
    """Returns the partition around an operation, or the body of its function."""
    block = op.parent
    while block is not None:
        if block.parent.isolated:
            return block.parent
        block = block.parent_op.parent
    raise op.error("an operation that uses a buffer must be inside a function")


@dataclass(frozen=True, slots=True)
class _Waits:
    """Crosses the waits on a counter, back to those that let nothing through.

    Attributes:
        coverage: The module.
        counter: The counter.
        is_mixed: Whether some of the waits count groups and others instructions.
    """

    coverage: WaitCoverage
    counter: Counter
    is_mixed: bool

    def step(self, step: Step, block: Block) -> _Waits | bool:
        if step.kind in (StepKind.START, StepKind.UNKNOWN):
            return False
        event = self.coverage.events.get(step.op) if step.op is not None else None
        if step.kind is not StepKind.EVENT or not isinstance(event, Wait):
            return self
        if event.counter is not self.counter or self.coverage.rule(event)[1] != 0:
            return self
        # Only instruction waits cover uncommitted copies.
        is_last = event.unit is not WaitUnit.GROUPS or not self.is_mixed
        return False if is_last else self
