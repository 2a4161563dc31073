"""The view of an operation that a rule gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import VerifyError
from ...ir import Operation, Value
from ...ir.types import IndexType, IntegerType, PointerType, TensorType, Type, parse_type
from .info import AxisInfo

__all__ = ["Kind", "Rule", "Rules", "Types", "Visit"]


#: The head of a tensor type: sizes, and an element without brackets of its own but a pointer's.
_TENSOR = re.compile(r"tensor<((?:\d{1,19}x)*)(!tt\.ptr<[^<>]*>|\w+)(?=[,>])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a type that rules need; skips encodings, which are slow to parse.

    Attributes:
        shape: Shape of a tensor, or of the tensor a pointer points to; ``(1,)`` for others.
        element: Element type; the type itself for other types.
        is_tensor: Whether it is a tensor.
    """

    shape: tuple[int, ...]
    element: Type
    is_tensor: bool

    @property
    def stride(self) -> int:
        """Bytes between neighbouring pointers of a contiguous group; 1 for numbers."""
        if not isinstance(self.element, PointerType):
            return 1
        return max(1, (self.element.pointee.bit_width or 8) // 8)

    @property
    def width(self) -> int | None:
        """Bits of an integer (64 for ``index``); ``None`` for other types."""
        if isinstance(self.element, IndexType):
            return 64
        return self.element.width if isinstance(self.element, IntegerType) else None


class Types:
    """The types of values; parses each text once.

    Args:
        aliases: The module's type aliases.
    """

    __slots__ = ("_aliases", "_kinds", "_types")

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._kinds: dict[str, Kind] = {}
        self._types: dict[str, Type] = {}

    def of(self, value: Value) -> Type:
        """Returns the complete type.

        Raises:
            VerifyError: The printed form does not contain it.
        """
        return self._parse(value.type)

    def kind(self, value: Value) -> Kind:
        """Returns the properties that rules need; those of a plain scalar if the type is unknown.

        Raises:
            VerifyError: The sizes of the type are unknown.
        """
        text = value.known_type or "none"
        found = self._kinds.get(text)
        if found is None:
            try:
                found = self._kinds[text] = self._read(text)
            except VerifyError as error:
                owner = value.owner
                (owner if isinstance(owner, Operation) else owner.parent_op).fail(error.message)
        return found

    def shape(self, value: Value) -> tuple[int, ...]:
        """Returns the shape as in :class:`Kind`."""
        return self.kind(value).shape

    def _parse(self, text: str) -> Type:
        found = self._types.get(text)
        if found is None:
            found = self._types[text] = parse_type(text, self._aliases)
        return found

    def _read(self, text: str) -> Kind:
        match = _TENSOR.match(text)
        if match is not None:
            shape = tuple(int(size) for size in match[1].split("x")[:-1])
            return Kind(shape or (1,), self._parse(match[2]), True)
        type_ = self._parse(text)
        block = type_.pointee if isinstance(type_, PointerType) else type_
        if isinstance(block, TensorType):
            element = block.element if block is type_ else type_
            return Kind(block.static_shape or (1,), element, block is type_)
        return Kind((1,), type_, False)


@dataclass(frozen=True, slots=True)
class Visit:
    """One operation with the states of its operands.

    Attributes:
        op: The operation; it has a result.
        operands: The state of each operand.
        types: The types of values.
    """

    op: Operation
    operands: tuple[AxisInfo, ...]
    types: Types

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result; ``(1,)`` for a scalar."""
        return self.types.shape(self.op.results[0])

    @property
    def width(self) -> int | None:
        """Bits of the result's integers (64 for ``index``); ``None`` for other results."""
        return self.types.kind(self.op.results[0]).width

    @property
    def stride(self) -> int:
        """Bytes of the result's pointee; 1 for results without pointers."""
        return self.types.kind(self.op.results[0]).stride


#: Returns the state of all results of an operation; ``None``: nothing is known.
Rule = Callable[[Visit], "AxisInfo | None"]
Rules = Mapping[str, Rule]
