"""The analysis of a module, and the questions that passes ask it."""

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

#: The rules that need no vendor.
RULES: Rules = MappingProxyType({**ARITH, **TENSORS})


class RangeAnalysis:
    """The ranges of the integers of a module; see the package for what they mean.

    The module is read once, when this is made; after an edit, make another one.
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
            rules: Rules of a vendor by the operation's name; they come before ours.
            programs: The greatest program id on an axis (0, 1, 2), where the caller knows it.

        Raises:
            VerifyError: An operation is malformed.
        """
        return cls(module, RULES if rules is None else {**RULES, **rules}, programs or {})

    def range(self, value: Value, block: Block | None = None) -> IntegerRange | None:
        """Returns the range of an integer, or of the elements of a tensor of integers.

        Args:
            value: The value.
            block: Where it is used: what is assumed there holds as well.

        Returns:
            ``None`` for a value that is no integer; every number for one that is not reached.
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
        """Returns the greatest number of iterations of a loop each time that it is entered.

        Args:
            loop: An ``scf.for`` or ``scf.while``.

        Returns:
            ``None`` where it is not known.
        """
        return self._execution.trips.get(loop)

    def total_trip_count(self, loop: Operation) -> int:
        """Returns the trip counts of a loop and of the loops around it, multiplied.

        A loop of unknown length counts as one iteration more than are run one by one.
        """
        total = 1
        around: Operation | None = loop
        while around is not None:
            if around.name in ("scf.for", "scf.while"):
                count = self.trip_count(around)
                total *= MOST_ITERATIONS + 1 if count is None else count
            around = around.parent_op
        return total
