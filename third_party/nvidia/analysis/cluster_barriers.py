"""Where barriers between the CTAs of a cluster are missing.

CTAs of a cluster access each other's shared memory: conversions and reductions across CTAs,
multicast copies, stores and arrivals at another CTA's mbarrier.  *Distributed* are the accesses of
these operations.

1. :func:`find_cluster_barriers`: a distributed access and another one of the same bytes need a
   barrier of the cluster in between, unless both are of one allocation: then the program itself
   keeps them apart, as with mbarriers.  A kernel ends with one, so that no CTA leaves while another
   one still accesses its memory.
2. :func:`find_init_sync`: an mbarrier that other CTAs use must be initialized before they do.  The
   place is behind every ``ttng.init_barrier`` of such an mbarrier and in front of every use; a
   barrier of the cluster that stands between them already does.

Sources: ``lib/Dialect/TritonNvidiaGPU/Transforms/ClusterBarrierInsertion.cpp`` and
``MBarrierUtilities.cpp`` of Triton.

Safe direction: there may be more barriers than needed, never fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from triton_ext.analysis.allocation import ModuleAllocation, stays_in_ctas
from triton_ext.analysis.forward_flow import Edge, run_forward
from triton_ext.analysis.membar import Accesses, Pair, Pending, accesses_of
from triton_ext.analysis.memory_effects import Access, Kind, effects_of
from triton_ext.analysis.warps import number_of
from triton_ext.ir import Block, Module, Operation, Region, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.dominance import Dominance, post_dominators
from triton_ext.ir.functions import CALLS, RETURNS, callee_of, symbol_of, visibility_of
from triton_ext.ir.integers import read_integer
from triton_ext.ir.types import MemDescType, TensorType

from .barriers import TMA_LOADS

__all__ = ["InitSync", "find_cluster_barriers", "find_init_sync"]

_BARRIER: Final = "ttng.cluster_barrier"
_INIT: Final = "ttng.init_barrier"
_MMAS: Final = frozenset({"ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"})
_REMOTE: Final = frozenset({"ttng.clc_try_cancel", "ttng.async_shared_store"})


@dataclass(frozen=True, slots=True)
class InitSync:
    """Where the initialization of mbarriers is made known to the cluster.

    Attributes:
        before: The operation that the fence goes in front of.
        needs_barrier: Whether a barrier of the cluster has to follow it; there is one otherwise.
    """

    before: Operation
    needs_barrier: bool


def find_cluster_barriers(
    module: Module, allocation: ModuleAllocation
) -> Mapping[Operation, Pair | None]:
    """Finds operations that need a barrier of the cluster in front of them.

    Args:
        module: A module for clusters of several CTAs.
        allocation: Where its buffers lie.

    Returns:
        Each with a pair of accesses that needs it; ``None`` for the end of a kernel.
    """
    facts = _Facts(module)
    found: dict[Operation, Pair | None] = {}
    summaries: dict[str | None, Pending] = {}
    for function, accesses in accesses_of(module, allocation):
        walk = _Walk(accesses, facts, summaries, visibility_of(function) == "public")
        left = run_forward(function, walk, Pending())
        if left is not None:
            summaries[symbol_of(function)] = accesses.left_open(left)
        found |= walk.before
    # Functions that are LLVM's already: only their end is known.
    for op in module.op.walk():
        around = op.parent_op
        if op.name == "llvm.return" and around is not None and "nvvm.kernel" in around.attributes:
            found[op] = None
    return found


def find_init_sync(module: Module, allocation: ModuleAllocation) -> list[InitSync]:
    """Finds where functions have to make the initialization of mbarriers known.

    Args:
        module: A module for clusters of several CTAs.
        allocation: Where its buffers lie.

    Raises:
        VerifyError: There is no place for it in a function, or no use of its mbarriers.
    """
    facts = _Facts(module)
    found = []
    for function, accesses in accesses_of(module, allocation):
        place = _InitPlace(function, accesses, facts).find()
        if place is not None:
            found.append(place)
    return found


class _Facts:
    """Facts about the operations of a module for clusters."""

    def __init__(self, module: Module) -> None:
        self.ctas = number_of(module.op, "ttg.num-ctas", 1)
        self.two_ctas = module.op.attributes.get("ttng.two-ctas", "").strip() == "true"
        self.aliases = AliasTable.of(module.aliases)

    def is_distributed(self, op: Operation, accesses: Accesses, *, reads: bool) -> bool:
        """Returns whether an access reaches into the memory of another CTA.

        Args:
            op: The operation.
            accesses: The accesses of its function.
            reads: Whether the access is a read.
        """
        if op.name == ttg.ConvertLayoutOp.NAME:
            source, target = accesses.layout(op.operands[0]), accesses.layout(op.results[0])
            return reads and (source is None or target is None or not stays_in_ctas(source, target))
        if op.name == "tt.reduce":
            return reads and self._is_split(op, accesses)
        if op.name in _REMOTE:
            return self.ctas > 1
        if op.name == "ttng.tmem_copy":
            return self.two_ctas
        if op.name in TMA_LOADS:
            return "multicast" in op.attributes
        if op.name == "ttng.arrive_barrier":
            return _is_multicast_arrival(op)
        return self._completes_elsewhere(op)

    def uses_other_ctas_mbarrier(self, op: Operation) -> bool:
        """Returns whether an operation may complete or arrive at another CTA's mbarrier."""
        if op.name in TMA_LOADS:
            return "multicast" in op.attributes
        if op.name in _REMOTE:
            return True
        if op.name == "ttng.barrier_expect":
            return "fromCTA" in op.attributes
        if op.name == "ttng.arrive_barrier":
            return _is_multicast_arrival(op) or "fromCTA" in op.attributes
        return self._completes_elsewhere(op)

    def is_shared_mbarrier(self, mbarrier: Value) -> bool:
        """Returns whether CTAs share an mbarrier by its type."""
        type_ = self.aliases.type(mbarrier.type)
        return not isinstance(type_, MemDescType) or type_.shape[0] != self.ctas

    def _is_split(self, op: Operation, accesses: Accesses) -> bool:
        """Returns whether the axis of a reduction is divided among CTAs."""
        layout = accesses.layout(op.operands[0])
        axis = read_integer(op.attributes.get("axis", ""))
        type_ = accesses.type(op.operands[0])
        if layout is None or axis is None or not isinstance(type_, TensorType):
            return True
        return any(basis[axis] for basis in layout.in_bases("block"))

    def _completes_elsewhere(self, op: Operation) -> bool:
        """Returns whether a product or commit arrives at mbarriers of other CTAs."""
        if op.name in _MMAS:
            if "multicast" not in op.attributes:
                return self.two_ctas
            buffers = [v for v in op.operands if self._is_operand(v)]
        elif op.name == "ttng.tc_gen5_commit":
            buffers = [v for v in op.operands[1:] if self._is_operand(v)]
        else:
            return False
        return self.two_ctas or any(self._is_broadcast(buffer) for buffer in buffers)

    def _is_operand(self, value: Value) -> bool:
        type_ = self.aliases.type(value.type)
        return isinstance(type_, MemDescType) and type_.element.bit_width != 64

    def _is_broadcast(self, buffer: Value) -> bool:
        """Returns whether several CTAs hold the same part of a buffer."""
        type_ = self.aliases.type(buffer.type)
        bases = getattr(getattr(type_, "encoding", None), "cga_bases", ())
        return any(not any(basis) for basis in bases)


def _is_multicast_arrival(op: Operation) -> bool:
    return (read_integer(op.attributes.get("multicastCTA", "0")) or 0) != 0


class _Walk:
    """Carries accesses through a function, and decides on barriers of the cluster."""

    def __init__(
        self,
        accesses: Accesses,
        facts: _Facts,
        summaries: Mapping[str | None, Pending],
        is_kernel: bool,
    ) -> None:
        self.accesses = accesses
        self.facts = facts
        self.summaries = summaries
        self.is_kernel = is_kernel
        self.before: dict[Operation, Pair | None] = {}

    def cross(self, edge: Edge, state: Pending) -> None:
        """Changes the accesses on an edge."""
        self.accesses.cross(edge, state)

    def update(self, op: Operation, state: Pending) -> None:
        """Adds what an operation accesses; ends what barriers end."""
        if op.name == _BARRIER or op in self.before:
            state.clear()
        if op.name in RETURNS:
            if self.is_kernel:
                self.before[op] = None
                state.clear()
            return
        if op.name in CALLS:
            summary = self.summaries.get(callee_of(op), Pending())
            current = self.accesses.at_call(op, summary)
        else:
            current = self.accesses.of(op).copy()
        scratch = self.accesses.scratch(op)
        if scratch is not None:
            current.write(scratch, op)
        pair = self.accesses.hazard(state, current, self._is_apart)
        if pair is not None:
            self.before[op] = pair
            state.clear()
        if scratch is not None:
            if self.facts.is_distributed(op, self.accesses, reads=True):
                state.clear()
            current.read(scratch, op)
        state.join(current)

    def _is_apart(self, pair: Pair) -> bool:
        """Returns whether two accesses are of one CTA, or the program keeps them apart itself."""
        buffer = pair.before_slice.buffer
        if buffer is not None and buffer == pair.after_slice.buffer:
            return True
        return not any(
            self.facts.is_distributed(op, self.accesses, reads=reads)
            for op, reads in ((pair.before, pair.before_reads), (pair.after, pair.after_reads))
        )


class _InitPlace:
    """Looks for the place in a function where mbarriers are made known to the cluster."""

    def __init__(self, function: Operation, accesses: Accesses, facts: _Facts) -> None:
        self.function = function
        self.accesses = accesses
        self.facts = facts
        self.region = function.regions[0]

    def find(self) -> InitSync | None:
        """Returns the place; ``None`` where no mbarrier is used by another CTA."""
        inits = [op for op in self.function.walk() if op.name == _INIT and self._is_for_cluster(op)]
        if not inits:
            return None
        tracked = frozenset().union(*(self.accesses.allocations(op.operands[0]) for op in inits))
        anchors = list(dict.fromkeys(self._top_level(op) for op in inits))
        uses = [op for block in self.region.blocks for op in block.ops if self._uses(op, tracked)]
        if not uses:
            self.function.fail("expected a use of the mbarriers that are initialized, found none")
        over, under = _dominators(self.region), post_dominators(self.region)
        first = self._behind_inits(anchors, under)
        last = self._in_front_of_uses(uses, over)
        if not _dominates(first, last, over):
            self.function.fail(
                "expected a place behind every initialization of an mbarrier that other CTAs use, "
                "and in front of every use of it, found none"
            )
        return self._reusing(first, last, over, under)

    def _is_for_cluster(self, init: Operation) -> bool:
        mbarrier = init.operands[0]
        if self.facts.is_shared_mbarrier(mbarrier):
            return True
        mine = self.accesses.allocations(mbarrier)
        for op in self.function.walk():
            if not self.facts.uses_other_ctas_mbarrier(op):
                continue
            for effect in effects_of(op).shared:
                if effect.kind is not Kind.BARRIER:
                    continue
                if not mine.isdisjoint(self.accesses.allocations(effect.value)):
                    return True
        return False

    def _top_level(self, op: Operation) -> Operation:
        """The operation of the function's own blocks that is or holds an operation."""
        while op.parent is not None and op.parent.parent is not self.region:
            around = op.parent_op
            assert around is not None  # it stands in the function
            op = around
        return op

    def _uses(self, op: Operation, tracked: frozenset[Value]) -> bool:
        return any(
            not tracked.isdisjoint(self.accesses.allocations(effect.value))
            for inner in op.walk()
            if inner.name not in (_INIT, ttg.LocalAllocOp.NAME)
            for effect in effects_of(inner).shared
            if effect.access is not Access.HOLD
        )

    def _behind_inits(
        self, anchors: list[Operation], under: Mapping[Block, frozenset[Block]]
    ) -> Operation:
        block = _nearest([_block(op) for op in anchors], under)
        if block is None:
            self.function.fail(
                "expected a block that every initialization of an mbarrier leads to, found none"
            )
        inside = [block.ops.index(op) for op in anchors if op.parent is block]
        return block.ops[max(inside) + 1 if inside else 0]

    def _in_front_of_uses(
        self, uses: list[Operation], over: Mapping[Block, frozenset[Block]]
    ) -> Operation:
        block = _nearest([_block(op) for op in uses], over)
        if block is None:
            self.function.fail(
                "expected a block that leads to every use of an mbarrier, found none"
            )
        inside = [block.ops.index(op) for op in uses if op.parent is block]
        return block.ops[min(inside) if inside else -1]

    def _reusing(
        self,
        first: Operation,
        last: Operation,
        over: Mapping[Block, frozenset[Block]],
        under: Mapping[Block, frozenset[Block]],
    ) -> InitSync:
        """The place in front of the last use, or of a barrier that stands in between."""
        there: Operation | None = None
        for block in self.region.blocks:
            for op in block.ops:
                if op.name != _BARRIER or not _dominates(op, last, over):
                    continue
                if not _post_dominates(op, first, under):
                    continue
                if there is None or _dominates(there, op, over):
                    there = op
        if there is None:
            return InitSync(last, needs_barrier=True)
        is_relaxed = there.attributes.get("relaxed", "").strip() == "true"
        return InitSync(there if is_relaxed else last, needs_barrier=False)


def _block(op: Operation) -> Block:
    assert op.parent is not None  # it stands in a function
    return op.parent


def _nearest(blocks: list[Block], sets: Mapping[Block, frozenset[Block]]) -> Block | None:
    """The block nearest to all of some blocks that (post-)dominates each of them."""
    reached = [sets[block] for block in blocks if block in sets]
    common = frozenset.intersection(*reached) if reached else frozenset()
    return max(common, key=lambda block: len(sets[block]), default=None)


def _dominators(region: Region) -> dict[Block, frozenset[Block]]:
    """The blocks that dominate each block that can be reached, itself included."""
    over = Dominance(region)
    return {
        block: frozenset(each for each in over.order if over.dominates(each, block))
        for block in over.order
    }


def _dominates(one: Operation, other: Operation, over: Mapping[Block, frozenset[Block]]) -> bool:
    mine, its = _block(one), _block(other)
    if mine is its:
        return mine.ops.index(one) <= mine.ops.index(other)
    return mine in over.get(its, frozenset())


def _post_dominates(
    one: Operation, other: Operation, under: Mapping[Block, frozenset[Block]]
) -> bool:
    mine, its = _block(one), _block(other)
    if mine is its:
        return mine.ops.index(one) >= mine.ops.index(other)
    return mine in under.get(its, frozenset())
