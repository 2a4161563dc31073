"""What a rule sees of the operation that it is asked about."""

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
    """What rules need of a type; encodings are left unread, which would take most of the time.

    Attributes:
        shape: Sizes of a tensor, or of what a pointer to one points to; ``(1,)`` for others.
        element: The type of an element; the type itself of what is no tensor.
        is_tensor: Whether it is a tensor.
    """

    shape: tuple[int, ...]
    element: Type
    is_tensor: bool

    @property
    def stride(self) -> int:
        """Bytes from one pointer to the next one of a contiguous group; 1 for numbers."""
        if not isinstance(self.element, PointerType):
            return 1
        return max(1, (self.element.pointee.bit_width or 8) // 8)

    @property
    def width(self) -> int | None:
        """Bits of an integer (64 for ``index``); ``None`` for what is none."""
        if isinstance(self.element, IndexType):
            return 64
        return self.element.width if isinstance(self.element, IntegerType) else None


class Types:
    """The types of values, each text read once.

    Args:
        aliases: The module's.
    """

    __slots__ = ("_aliases", "_kinds", "_types")

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._kinds: dict[str, Kind] = {}
        self._types: dict[str, Type] = {}

    def of(self, value: Value) -> Type:
        """The whole type.

        Raises:
            VerifyError: The printed form does not tell it.
        """
        return self._parse(value.type)

    def kind(self, value: Value) -> Kind:
        """What rules need of it; a scalar without properties where the type is not told.

        Raises:
            VerifyError: The sizes of the type are not known.
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
        """The shape as in :class:`Kind`."""
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
        return self.types.kind(self.op.results[0]).width

    @property
    def stride(self) -> int:
        """Bytes of what the result points to; 1 where it holds no pointers."""
        return self.types.kind(self.op.results[0]).stride


#: What an operation's results are, all of them alike; ``None``: nothing is known of them.
Rule = Callable[[Visit], "AxisInfo | None"]
Rules = Mapping[str, Rule]
