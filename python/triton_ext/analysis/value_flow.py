"""Edges between values that control flow and calls make equal.

Edges follow block arguments of branches, values that ``scf`` regions yield and loops carry,
captures of ``ttg.warp_specialize``, and arguments and results of functions in the module.  They
join all paths, without conditions, iterations or call stacks.

:meth:`ValueFlow.sources` and :meth:`ValueFlow.targets` are the two directions of one relation.

Safe direction: there may be more edges than executions take, never fewer.  A value that may also
come from elsewhere is marked (:attr:`Sources.is_complete`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ..ir import Block, BlockArgument, Operation, OpResult, Region, Use, Value
from ..ir.dialects import ttg
from ..ir.functions import CALLS, FUNCTIONS, callee_of, symbol_of, visibility_of

__all__ = ["Sources", "ValueFlow", "successor_parts"]

T = TypeVar("T")

_YIELD_RESULTS: Final = frozenset(
    {"scf.execute_region", "scf.if", "scf.index_switch", ttg.WarpSpecializeOp.NAME}
)
_SPECIALIZE: Final = ttg.WarpSpecializeOp.NAME
_PARTITIONS: Final = ttg.PARTITIONS


@dataclass(frozen=True, slots=True)
class Sources:
    """The values that another one may be.

    Attributes:
        values: The values, in program order.
        is_complete: Whether it is always one of them.
    """

    values: tuple[Value, ...]
    is_complete: bool = True


_UNKNOWN: Final = Sources((), is_complete=False)


class ValueFlow:
    """The edges between the values of a module or function, which must not change meanwhile.

    Args:
        functions: The functions of the module by symbol; others have no edges.
        calls: The calls of each function by its symbol.
    """

    __slots__ = ("_calls", "_functions")

    def __init__(
        self,
        functions: Mapping[str, Operation] | None = None,
        calls: Mapping[str, tuple[Operation, ...]] | None = None,
    ) -> None:
        self._functions = functions or {}
        self._calls = calls or {}

    @classmethod
    def of_module(cls, top: Operation) -> ValueFlow:
        """Returns the edges of a module, including calls.

        Args:
            top: The module's operation.
        """
        functions: dict[str, Operation] = {}
        calls: dict[str, list[Operation]] = {}
        for op in top.walk():
            if op.name in FUNCTIONS:
                functions[symbol_of(op) or ""] = op
            elif op.name in CALLS:
                calls.setdefault(callee_of(op) or "", []).append(op)
        return cls(functions, {name: tuple(found) for name, found in calls.items()})

    # ---- backwards

    def sources(self, value: Value) -> Sources | None:
        """Returns the values that control flow or a call passes to a value.

        Args:
            value: The value.

        Returns:
            ``None`` for a value that its operation or the header of a counting loop computes.
        """
        if isinstance(value, BlockArgument):
            return self._argument_sources(value)
        return self._result_sources(value) if isinstance(value, OpResult) else None

    def origins(self, value: Value) -> Sources:
        """Returns the values that a value may be, back along all edges.

        Args:
            value: The value.

        Returns:
            Values computed by operations or loop headers, and unknown ones; only the latter make
            the sources incomplete.
        """
        found: dict[Value, None] = {}
        is_complete = True
        seen: set[Value] = set()
        todo = [value]
        while todo:
            current = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            sources = self.sources(current)
            if sources is None or not sources.values:
                found[current] = None
            if sources is not None:
                is_complete &= sources.is_complete
                todo += reversed(sources.values)
        return Sources(tuple(found), is_complete)

    def _argument_sources(self, value: BlockArgument) -> Sources | None:
        block, index = value.owner, value.index
        region, op = block.parent, block.parent_op
        if block is not region.blocks[0]:
            return _all_of(
                x for branch in block.predecessors for x in _handed(branch, block, index)
            )
        if op.name in FUNCTIONS:
            return self._passed(op, index)
        if op.name == "scf.for":
            if index == 0:
                return None
            return _all_of([_at(op.operands, 2 + index), *_yielded(region, index - 1)])
        if op.name == "scf.while":
            if region is op.regions[0]:
                return _all_of([_at(op.operands, index), *_yielded(op.regions[1], index)])
            return _all_of(_yielded(op.regions[0], index + 1))
        if op.name in (_SPECIALIZE, _PARTITIONS):
            return _all_of([_at(ttg.captures_of(op), index)])
        return _UNKNOWN

    def _result_sources(self, value: OpResult) -> Sources | None:
        op, index = value.owner, value.index
        if op.name == "scf.for":
            return _all_of([_at(op.operands, 3 + index), *_yielded(op.regions[0], index)])
        if op.name == "scf.while":
            return _all_of(_yielded(op.regions[0], index + 1))
        if op.name in _YIELD_RESULTS:
            regions = op.regions[:1] if op.name == _SPECIALIZE else op.regions
            return _all_of(x for region in regions for x in _yielded(region, index))
        if op.name in CALLS:
            callee = self._functions.get(callee_of(op) or "")
            if callee is None or not callee.regions:
                return _UNKNOWN
            return _all_of(_yielded(callee.regions[0], index))
        return None

    def _passed(self, function: Operation, index: int) -> Sources:
        """Returns what the calls of a function pass; a public one may have other callers."""
        calls = self._calls.get(symbol_of(function) or "", ())
        found = _all_of(_at(call.operands, index) for call in calls)
        if calls and visibility_of(function) == "private":
            return found
        return Sources(found.values, is_complete=False)

    # ---- forwards

    def targets(self, use: Use) -> tuple[Value, ...] | None:
        """Returns the values that an operand may become, along control flow or a call.

        Args:
            use: An operand.

        Returns:
            ``None`` if the operation passes nothing on.
        """
        op, index = use.op, use.index
        if op.successors:
            return tuple(_branch_targets(op, index))
        if op.name == "scf.for":
            return _present([_first_arg(op.regions[0], index - 2), _at(op.results, index - 3)])
        if op.name == "scf.while":
            return _present([_first_arg(op.regions[0], index)])
        if op.name in (_SPECIALIZE, _PARTITIONS):
            return _present(_first_arg(region, index) for region in _isolated_regions(op))
        if op.name in CALLS:
            callee = self._functions.get(callee_of(op) or "")
            if callee is None or not callee.regions:
                return None
            return _present([_first_arg(callee.regions[0], index)])
        around = op.parent_op
        if around is None or op.parent is None or op.parent.terminator is not op:
            return None
        return self._leaving(around, op.parent.parent, index)

    def _leaving(self, around: Operation, region: Region, index: int) -> tuple[Value, ...] | None:
        """Returns the values that an operand of a terminator becomes after its region."""
        if around.name in FUNCTIONS:
            calls = self._calls.get(symbol_of(around) or "", ())
            return _present(_at(call.results, index) for call in calls)
        if around.name == "scf.for":
            return _present([_first_arg(region, index + 1), _at(around.results, index)])
        if around.name == "scf.while":
            before, after = around.regions
            if region is after:
                return _present([_first_arg(before, index)])
            return _present([_first_arg(after, index - 1), _at(around.results, index - 1)])
        if around.name in _YIELD_RESULTS:
            return _present([_at(around.results, index)])
        return () if around.name == _PARTITIONS else None


def _all_of(values: Iterable[Value | None]) -> Sources:
    """Returns values as sources; a missing one (malformed text) makes them incomplete."""
    listed = list(values)
    found = tuple(dict.fromkeys(value for value in listed if value is not None))
    return Sources(found, is_complete=None not in listed)


def _present(values: Iterable[Value | None]) -> tuple[Value, ...]:
    return tuple(value for value in values if value is not None)


def _at(values: Sequence[Value], index: int) -> Value | None:
    return values[index] if 0 <= index < len(values) else None


def _first_arg(region: Region, index: int) -> Value | None:
    # The first argument of a loop's body is the induction variable, which no operand becomes.
    first = 1 if region.parent.name == "scf.for" else 0
    return _at(region.blocks[0].args, index) if index >= first else None


def _yielded(region: Region, index: int) -> list[Value | None]:
    """Returns an operand of every terminator that leaves a region."""
    ends = (block.terminator for block in region.blocks)
    return [_at(end.operands, index) for end in ends if end is not None and not end.successors]


def _isolated_regions(op: Operation) -> list[Region]:
    """Returns the regions of the partitions, which take captures as arguments."""
    found = [region for region in op.regions if region.isolated]
    for region in op.regions:
        for nested in (nested for block in region.blocks for nested in block.ops):
            if nested.name == _PARTITIONS and not nested.operands:
                found += nested.regions
    return found


def _handed(branch: Operation, block: Block, index: int) -> list[Value | None]:
    """Returns what a branch passes to an argument, once per mention of the block."""
    parts = successor_parts(branch, branch.operands)
    return [_at(part, index) for each, part in parts if each is block]


def _branch_targets(branch: Operation, index: int) -> list[Value]:
    parts = successor_parts(branch, range(len(branch.operands)))
    return [block.args[part.index(index)] for block, part in parts if index in part]


def successor_parts(branch: Operation, handed: Sequence[T]) -> Iterator[tuple[Block, Sequence[T]]]:
    """Yields the successors of a branch, each with its part of the operands.

    The operands of the successors follow the condition, one successor after the other.

    Args:
        branch: An operation with successors.
        handed: Its operands, or a value for each.  In malformed text they may be too few; then no
            successor gets any.
    """
    at = len(handed) - sum(len(each.args) for each in branch.successors)
    for successor in branch.successors:
        count = len(successor.args) if at >= 0 else 0
        yield successor, handed[at : at + count]
        at += count
