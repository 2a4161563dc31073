"""Alias sets: the allocations that a memory descriptor may refer to.

The *alias set* of a ``!ttg.memdesc`` value holds every allocation that it may be a part of:

1. ``ttg.local_alloc`` and ``ttng.tmem_alloc`` allocate.
2. Views (index, subslice, transposition, reshape, reinterpretation, and others in
   :mod:`~triton_ext.analysis.memory_effects`) refer to the allocations of their source, and
   ``arith.select`` to those of either choice.
3. A result of ``ttng.warp_group_dot_wait`` refers to the allocations of its operand; ``ub.poison``
   refers to none.
4. Block arguments, results of structured control flow, captures, and arguments and results of
   calls refer to what flows in (:mod:`~triton_ext.analysis.value_flow`).
5. The result of any other operation may refer to the allocations of its operands, or to others.

A set is *incomplete* if it may include unknown memory: arguments of a function that is not private
or has no callers, results of functions without a body, and (5)::

    sets = AliasSets.of(module)
    for allocation in sets.alias_set(value).allocations: ...
    sets.may_alias(one, other)

:meth:`AliasSets.of` a function alone knows neither its callers nor what it calls, so its arguments
and the results of calls are incomplete.

Safe direction: a set may be too large, never too small.  Not told apart: parts of one allocation
(:mod:`~triton_ext.analysis.buffer_reference`, :mod:`~triton_ext.analysis.buffer_regions`), the
iterations of a loop and the calls of a function.  Two allocations count as different memory even
where the allocator gives both the same bytes, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..ir import Module, Operation, OpResult, Use, Value
from ..ir.dialects import ttg
from ..ir.functions import FUNCTIONS
from .memory_effects import Memory, effects_of, memory_of
from .value_flow import Sources, ValueFlow

__all__ = ["AliasSet", "AliasSets", "is_allocation", "is_buffer", "is_memdesc", "view_source"]

_ALLOCATIONS: Final = frozenset({ttg.LocalAllocOp.NAME, "ttng.tmem_alloc"})
#: Operations whose n-th result is their n-th operand.
_PASS_ON: Final = frozenset({"ttng.warp_group_dot_wait"})


@dataclass(frozen=True, slots=True)
class AliasSet:
    """The allocations that a memory descriptor may refer to.

    Attributes:
        allocations: Results of ``ttg.local_alloc`` and ``ttng.tmem_alloc``.
        is_complete: Whether it always refers to one of them.
    """

    allocations: frozenset[Value] = frozenset()
    is_complete: bool = True

    def may_alias(self, other: AliasSet) -> bool:
        """Returns whether two descriptors may refer to the same allocation."""
        if not (self.is_complete and other.is_complete):
            return True
        return not self.allocations.isdisjoint(other.allocations)


class AliasSets:
    """The alias sets of the memory descriptors of a module or function.

    The module must not change while this is used.

    Args:
        flow: The edges of control flow and calls.
    """

    __slots__ = ("_flow", "_sets")

    def __init__(self, flow: ValueFlow | None = None) -> None:
        self._flow = flow or ValueFlow()
        self._sets: dict[Value, AliasSet] = {}

    @classmethod
    def of(cls, root: Module | Operation) -> AliasSets:
        """Returns the alias sets of a module, or of one function without its callers and callees.

        Args:
            root: A module, its operation, or a function.
        """
        top = root.op if isinstance(root, Module) else root
        return cls() if top.name in FUNCTIONS else cls(ValueFlow.of_module(top))

    def alias_set(self, value: Value) -> AliasSet:
        """Returns the allocations that a value may refer to.

        Args:
            value: A memory descriptor, of shared or tensor memory.
        """
        found = self._sets.get(value)
        if found is None:
            found = self._sets[value] = self._collected(value)
        return found

    def may_alias(self, one: Value, other: Value) -> bool:
        """Returns whether two values may refer to the same allocation."""
        return self.alias_set(one).may_alias(self.alias_set(other))

    def values_of(self, allocation: Value) -> list[Value]:
        """Returns the values that may refer to an allocation, the allocation first.

        Args:
            allocation: A memory descriptor; if it is no allocation, returns its possible parts.
        """
        found = [allocation]
        seen = {allocation}
        for value in found:
            for use in value.uses:
                for other in self._targets(use):
                    if other not in seen and is_memdesc(other):
                        seen.add(other)
                        found.append(other)
        return found

    def _collected(self, value: Value) -> AliasSet:
        allocations: set[Value] = set()
        is_complete = True
        seen = {value}
        todo = [value]
        while todo:
            current = todo.pop()
            if is_allocation(current):
                allocations.add(current)
                continue
            sources = self.sources(current)
            is_complete &= sources.is_complete
            todo += [each for each in sources.values if each not in seen]
            seen.update(sources.values)
        return AliasSet(frozenset(allocations), is_complete)

    # ---- the edges, in both directions

    def sources(self, value: Value) -> Sources:
        """Returns the descriptors whose memory a value may refer to, one step back."""
        found = self._flow.sources(value)
        if found is None and isinstance(value, OpResult):
            found = _operation_sources(value)
        if found is not None and found.is_complete:
            return found
        around = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op
        known = found.values if found is not None else ()
        outside = () if around.name in FUNCTIONS else _handed_to_unknown(around)
        return Sources((*known, *outside), is_complete=False)

    def _targets(self, use: Use) -> tuple[Value, ...]:
        found = self._flow.targets(use)
        if found is not None:
            return found
        op = use.op
        if op.name in _PASS_ON:
            return op.results[use.index : use.index + 1]
        around = op.parent_op
        if around is not None and op.parent is not None and op.parent.terminator is op:
            op = around
        return (*op.results, *(arg for region in op.regions for arg in region.blocks[0].args))


def _operation_sources(value: OpResult) -> Sources | None:
    """Returns the operands that a result is one of, or ``None`` if unknown."""
    op = value.owner
    if op.name in _PASS_ON and value.index < len(op.operands):
        return Sources((op.operands[value.index],))
    if effects_of(op).is_view:
        return Sources(tuple(filter(is_memdesc, op.operands)))
    return Sources(()) if op.name == "ub.poison" else None


def _handed_to_unknown(op: Operation) -> list[Value]:
    """Returns the descriptors that an operation uses itself, or that its regions yield."""
    ends = (block.terminator for region in op.regions for block in region.blocks)
    used = [*op.operands, *(x for end in ends if end is not None for x in end.operands)]
    return [value for value in dict.fromkeys(used) if is_memdesc(value)]


def view_source(op: Operation) -> Value | None:
    """Returns the descriptor of which an operation creates a view.

    Args:
        op: Any operation.

    Returns:
        ``None`` for an operation that creates no view, or chooses among several (``arith.select``).
    """
    sources = tuple(filter(is_memdesc, op.operands)) if effects_of(op).is_view else ()
    return sources[0] if len(sources) == 1 else None


def is_memdesc(value: Value) -> bool:
    """Returns whether a value names a part of shared or tensor memory."""
    return memory_of(value) in (Memory.SHARED, Memory.TENSOR)


def is_buffer(value: Value) -> bool:
    """Returns whether a value names a part of shared memory, not of tensor memory."""
    return memory_of(value) is Memory.SHARED


def is_allocation(value: Value) -> bool:
    """Returns whether a value is the result of an allocation."""
    return isinstance(value, OpResult) and value.owner.name in _ALLOCATIONS
