"""The view of one operation that a rule gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir import Operation, Value
from ..axis_info import Types
from .interval import IntegerRange

__all__ = ["Found", "Rule", "Rules", "Visit", "width_of"]


def width_of(value: Value, types: Types) -> int | None:
    """Returns the bits of an integer or of a tensor's; ``None`` for other values and ``i0``."""
    return types.kind(value).width or None


@dataclass(frozen=True, slots=True)
class Visit:
    """One operation with the ranges of its operands.

    Attributes:
        op: The operation; one of its results is an integer, and all of its operands are.
        operands: The range of each operand, or of the elements of a tensor.
        types: The types of values.
        programs: The known greatest program ids by axis.
    """

    op: Operation
    operands: tuple[IntegerRange, ...]
    types: Types
    programs: Mapping[int, int]

    @property
    def width(self) -> int:
        """Bits of the first result that is an integer."""
        widths = (width_of(result, self.types) for result in self.op.results)
        return next(width for width in widths if width is not None)


#: The range of all results, or one for each; ``None``: every number is possible.
Found = IntegerRange | tuple[IntegerRange, ...] | None
Rule = Callable[[Visit], Found]
Rules = Mapping[str, Rule]
