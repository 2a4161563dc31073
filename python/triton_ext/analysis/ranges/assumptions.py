"""The facts about integers of ``llvm.intr.assume``, and where they hold."""

from __future__ import annotations

from ...ir import Block, Module, Operation, Region, Value
from ...ir.dialects import arith
from ...ir.dominance import Dominance
from ..axis_info import Types
from .interval import Bounds, IntegerRange
from .visit import width_of

__all__ = ["Assumptions"]

_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Assumptions:
    """The facts that a module assumes.

    A fact assumed in a block holds in all of it, and in every block that it dominates.  Comparisons
    with constants are facts about the other operand; the condition itself is true, and so are both
    sides of an ``arith.andi``.

    Args:
        module: The module.
        types: The types of its values.
    """

    __slots__ = ("_dominance", "_facts", "_types")

    def __init__(self, module: Module, types: Types) -> None:
        self._types = types
        self._facts: dict[Value, list[tuple[Block, IntegerRange]]] = {}
        self._dominance: dict[Region, Dominance] = {}
        for op in module.walk():
            if op.name == "llvm.intr.assume" and op.operands and op.parent is not None:
                self._assume(op.operands[0], op.parent)

    def narrowed(self, found: IntegerRange, value: Value, block: Block) -> IntegerRange:
        """Returns the range of a value in a block, narrowed by the facts there."""
        for where, fact in self._facts.get(value, ()):
            if fact.width == found.width and self._holds(where, block):
                found = found.met(fact)
        return found

    def _holds(self, where: Block, block: Block) -> bool:
        """Returns whether every path to a block goes through a block with assumptions."""
        inner: Block | None = block
        while inner is not None:
            if inner is where:
                return True
            region = inner.parent
            if region is where.parent and self._dominance_in(region).dominates(where, inner):
                return True
            inner = region.parent.parent
        return False

    def _dominance_in(self, region: Region) -> Dominance:
        if region not in self._dominance:
            self._dominance[region] = Dominance(region)
        return self._dominance[region]

    def _assume(self, condition: Value, block: Block) -> None:
        pending = [condition]
        while pending:
            truth = pending.pop()
            self._add(truth, block, IntegerRange.constant(1, 1))
            owner = truth.owner
            if not isinstance(owner, Operation):
                continue
            if owner.name == "arith.andi":
                pending.extend(owner.operands)
            view = arith.CmpIOp.match(owner)
            if view is not None:
                kind, sign = view.predicate[-2:], view.predicate[:-2]
                self._compared(view.lhs, sign, kind, view.rhs, block)
                self._compared(view.rhs, sign, _SWAPPED.get(kind, kind), view.lhs, block)

    def _compared(self, value: Value, sign: str, kind: str, other: Value, block: Block) -> None:
        """Adds the fact ``value <kind> other``."""
        width, number = width_of(value, self._types), arith.constant_int(other)
        if width is None or number is None or arith.constant_int(value) is not None:
            return
        exact = IntegerRange.constant(width, number)
        full = IntegerRange.full(width)
        if kind == "eq":
            self._add(value, block, exact)
        elif sign == "s":
            within = _within(kind, exact.smin, full.smin, full.smax)
            if within is not None:
                self._add(value, block, full.narrowed(signed=within))
        elif sign == "u":
            within = _within(kind, exact.umin, full.umin, full.umax)
            if within is not None:
                self._add(value, block, full.narrowed(unsigned=within))

    def _add(self, value: Value, block: Block, fact: IntegerRange) -> None:
        self._facts.setdefault(value, []).append((block, fact))


def _within(kind: str, number: int, lowest: int, highest: int) -> Bounds | None:
    return {
        "lt": (lowest, number - 1),
        "le": (lowest, number),
        "gt": (number + 1, highest),
        "ge": (number, highest),
    }.get(kind)
