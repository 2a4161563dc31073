"""Finds missing barriers between accesses to shared memory.

Threads that access the same memory, one of them writing, need a barrier of the CTA in between.
Every function is analysed forward (:mod:`~triton_ext.analysis.forward_flow`) with the accesses
since the last barrier as state:

1. A barrier of the module clears the state; :class:`~triton_ext.analysis.memory_effects.Barrier`
   tells which operations contain one.  An operation with scratch contains one between its writes
   and its reads, unless no warp needs the data of another one.
2. An operation that overlaps a pending access needs a barrier before it, which is then assumed to
   exist on every path.
3. A thread waits for its own copies only.  So a barrier is needed after the wait, unless another
   wait or barrier follows before memory is accessed.
4. A call has the accesses that are pending at the callee's returns, at the place of its memory.
   A callee without a body reads and writes the buffers that it gets.

Vendors exclude pairs that need no barrier (``skip``).  Asynchronous operations in flight are
ignored: their waits count, as in Triton's own pass (``lib/Analysis/Membar.cpp``).

Safe direction: there may be more barriers than needed, never fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ...ir import Module, Operation
from ...ir.functions import CALLS, callee_of, symbol_of
from ..allocation import ModuleAllocation
from ..forward_flow import Edge, run_forward
from ..memory_effects import NO_BARRIER, Barrier, Effects, effects_of
from .accesses import HANDED, Accesses, Pair, Pending, Skip, accesses_of, never

__all__ = ["Barriers", "find_barriers"]


@dataclass(frozen=True, slots=True)
class Barriers:
    """Missing barriers.

    Attributes:
        before: Operations that need one before them, each with a pair that requires it.
        after: Waits that need one after them.
        relaxed: Operations whose own barrier is unnecessary, because another one follows before
            memory is accessed.
    """

    before: Mapping[Operation, Pair]
    after: tuple[Operation, ...] = ()
    relaxed: tuple[Operation, ...] = ()


def find_barriers(
    module: Module,
    allocation: ModuleAllocation,
    skip: Skip = never,
    features: Set[str] | None = None,
) -> Barriers:
    """Finds missing barriers.

    Args:
        module: The module.
        allocation: The places of its buffers.
        skip: Returns whether a pair of accesses needs no barrier.
        features: Capabilities of the host (``triton_ext.host.features``), which determine the
            barriers that operations contain; ``None`` for the newest host.

    Raises:
        VerifyError: An operation is malformed.
    """
    summaries: dict[str | None, Pending] = {}
    before: dict[Operation, Pair] = {}
    after: dict[Operation, None] = {}
    relaxed: dict[Operation, None] = {}
    for function, accesses in accesses_of(module, allocation):
        walk = _Walk(accesses, skip, summaries, features)
        left = run_forward(function, walk, Pending())
        if left is not None:
            summaries[symbol_of(function)] = accesses.left_open(left)
        before |= walk.before
        after |= walk.after
        relaxed |= walk.relaxed
    return Barriers(before, tuple(after), tuple(relaxed))


@dataclass(frozen=True, slots=True)
class _Stages:
    """The barriers that an operation contains."""

    before: bool
    between: bool
    after: bool


class _Walk:
    """Propagates accesses through a function, and places barriers."""

    def __init__(
        self,
        accesses: Accesses,
        skip: Skip,
        summaries: Mapping[str | None, Pending],
        features: Set[str] | None,
    ) -> None:
        self.features = features
        self.accesses = accesses
        self.skip = skip
        self.summaries = summaries
        self.before: dict[Operation, Pair] = {}
        self.after: dict[Operation, None] = {}
        self.relaxed: dict[Operation, None] = {}

    def cross(self, edge: Edge, state: Pending) -> None:
        """Converts the accesses at an edge."""
        if edge.starts_partition:
            state.clear()
        else:
            self.accesses.cross(edge, state)

    def update(self, op: Operation, state: Pending) -> None:
        """Adds the accesses of an operation; clears them at barriers."""
        effects = effects_of(op)
        if effects.relaxed_by and effects.barrier_on(self.features) and self._meets_later(op):
            self.relaxed[op] = None
        stages = self._stages(op, effects)
        if op in self.before or stages.before:
            state.clear()
        if op in self.after or (effects.waits and not self._meets_later(op)):
            self.after[op] = None
            state.clear()
            return
        current = self._current(op).copy()
        scratch = self.accesses.scratch(op)
        if scratch is not None:
            current.write(scratch, op)
        pair = self.accesses.hazard(state, current, self.skip)
        if pair is not None:
            self.before[op] = pair
            state.clear()
        if stages.between:
            state.clear()
            current.clear()
        if scratch is not None:
            current.read(scratch, op)
        state.join(current)
        if stages.after:
            state.clear()

    def _current(self, op: Operation) -> Pending:
        if op.name not in CALLS:
            return self.accesses.of(op)
        summary = self.summaries.get(callee_of(op))
        if summary is None:
            summary = Pending()
            summary.read(HANDED, op)
            summary.write(HANDED, op)
        return self.accesses.at_call(op, summary)

    def _stages(self, op: Operation, effects: Effects) -> _Stages:
        between = self.accesses.meets_inside(op)
        barrier = effects.barrier_on(self.features) if op not in self.relaxed else NO_BARRIER
        return _Stages(
            before=Barrier.BEFORE in barrier,
            between=between,
            after=Barrier.AFTER in barrier and not between,
        )

    def _meets_later(self, op: Operation) -> bool:
        """Returns whether a wait or barrier follows before an access to memory or a branch."""
        block = op.parent
        assert block is not None  # only a module has no block
        ops = block.ops
        for following in ops[ops.index(op) + 1 :]:
            effects = effects_of(following)
            stages = self._stages(following, effects)
            if following in self.before or stages.before or effects.waits:
                return True
            if stages.between:
                return False
            if stages.after:
                return True
            if not effects.is_free:
                return False
        return False
