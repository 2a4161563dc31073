"""The analysis of a module, and the queries of passes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...ir import Block, Module, Operation, Value
from ...ir.functions import FUNCTIONS
from ..axis_info import Types
from .arith import ARITH
from .assumptions import Assumptions
from .flow import MOST_ITERATIONS, Execution
from .interval import IntegerRange
from .tensors import TENSORS
from .visit import Rules, width_of

__all__ = ["RULES", "RangeAnalysis"]

#: The vendor-independent rules.
RULES: Rules = MappingProxyType({**ARITH, **TENSORS})


class RangeAnalysis:
    """The ranges of the integers of a module; the package defines the terms.

    Reads the module once, when created; create another one after an edit.
    """

    __slots__ = ("_assumptions", "_execution", "_types")

    def __init__(self, module: Module, rules: Rules, programs: Mapping[int, int]) -> None:
        self._types = Types(module.aliases)
        self._assumptions = Assumptions(module, self._types)
        self._execution = Execution(self._types, rules, self._assumptions, programs)
        for op in module.walk():
            if op.name in FUNCTIONS:
                self._execution.run(op)

    @classmethod
    def of(
        cls,
        module: Module,
        rules: Rules | None = None,
        programs: Mapping[int, int] | None = None,
    ) -> RangeAnalysis:
        """Analyses every function of a module.

        Args:
            module: The module.
            rules: Rules of a vendor by the operation's name; they take precedence.
            programs: Known greatest program ids by axis (0, 1, 2).

        Raises:
            VerifyError: An operation is malformed.
        """
        return cls(module, RULES if rules is None else {**RULES, **rules}, programs or {})

    def range(self, value: Value, block: Block | None = None) -> IntegerRange | None:
        """Returns the range of an integer, or of the elements of a tensor of integers.

        Args:
            value: The value.
            block: The block of the use: its assumptions apply too.

        Returns:
            ``None`` for a value that is not an integer; the full range for an unreachable one.
        """
        found = self._execution.seen.get(value)
        if found is None:
            width = width_of(value, self._types)
            if width is None:
                return None
            found = IntegerRange.full(width)
        return found if block is None else self._assumptions.narrowed(found, value, block)

    def is_reached(self, value: Value) -> bool:
        """Tells whether an execution may define an integer; false for other values."""
        return value in self._execution.seen

    def trip_count(self, loop: Operation) -> int | None:
        """Returns the greatest trip count of a loop, per entry.

        Args:
            loop: An ``scf.for`` or ``scf.while``.

        Returns:
            ``None`` if unknown.
        """
        return self._execution.trips.get(loop)

    def total_trip_count(self, loop: Operation) -> int:
        """Returns the product of the trip counts of a loop and its enclosing loops.

        A loop of unknown length counts as one iteration more than the limit.
        """
        total = 1
        around: Operation | None = loop
        while around is not None:
            if around.name in ("scf.for", "scf.while"):
                count = self.trip_count(around)
                total *= MOST_ITERATIONS + 1 if count is None else count
            around = around.parent_op
        return total
