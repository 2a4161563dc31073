"""What a rule sees of the operation that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir import Operation, Value
from ...ir.types import IndexType, IntegerType, PointerType, TensorType, Type, parse_type
from .info import AxisInfo

__all__ = ["Rule", "Rules", "Types", "Visit"]


class Types:
    """The types of values, each text read once.

    Args:
        aliases: The module's.
    """

    __slots__ = ("_aliases", "_known")

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._known: dict[str, Type] = {}

    def of(self, value: Value) -> Type | None:
        """The type, or ``None`` where the printed form does not tell it."""
        text = value.known_type
        if text is None:
            return None
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = parse_type(text, self._aliases)
        return found

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a tensor or of what a pointer to one points to; ``(1,)`` for others."""
        type_ = self.of(value)
        if isinstance(type_, PointerType):
            type_ = type_.pointee
        return type_.static_shape if isinstance(type_, TensorType) and type_.shape else (1,)

    def element(self, value: Value) -> Type | None:
        """The type of an element; of the value itself for what is no tensor."""
        type_ = self.of(value)
        return type_.element if isinstance(type_, TensorType) else type_

    def stride(self, value: Value) -> int:
        """Bytes from one pointer to the next one of a contiguous group; 1 for numbers."""
        element = self.element(value)
        if not isinstance(element, PointerType):
            return 1
        return max(1, (element.pointee.bit_width or 8) // 8)


@dataclass(frozen=True, slots=True)
class Visit:
    """One operation with what is known about its operands.

    Attributes:
        op: The operation; it has a result.
        operands: What is known about each operand.
        types: To ask for types.
    """

    op: Operation
    operands: tuple[AxisInfo, ...]
    types: Types

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the result; ``(1,)`` for a scalar."""
        return self.types.shape(self.op.results[0])

    @property
    def width(self) -> int | None:
        """Bits of the result's integers (64 for ``index``); ``None`` where it has none."""
        element = self.types.element(self.op.results[0])
        if isinstance(element, IndexType):
            return 64
        return element.width if isinstance(element, IntegerType) else None

    @property
    def stride(self) -> int:
        """Bytes of what the result points to; 1 where it holds no pointers."""
        return self.types.stride(self.op.results[0])


#: What an operation's results are, all of them alike; ``None``: nothing is known of them.
Rule = Callable[[Visit], "AxisInfo | None"]
Rules = Mapping[str, Rule]
