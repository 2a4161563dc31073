"""Views of ``arith`` operations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..attribute_values import Attribute, DenseElementsAttr
from ..lexer import Source, find_group_end
from ..nodes import Operation
from ..value_parser import parse_attribute_prefix
from ..values import OpResult, Value
from .view import OpReader, View, literals

__all__ = [
    "BINARY",
    "BinaryOp",
    "CmpIOp",
    "ConstantOp",
    "SelectOp",
    "constant_int",
    "poison_flags",
]

_NAME = re.compile(r"arith\.constant\s*")
_FLAG = re.compile(r"\b(?:nsw|nuw|exact|nneg)\b")
#: Attributes with the flags in the generic form, and the flag if the name implies it.
_FLAG_ATTRIBUTES = {"overflowFlags": "", "isExact": "exact", "nonNeg": "nneg"}

#: Operations with two operands and a result of one type.
BINARY = frozenset(
    {"arith.addf", "arith.addi", "arith.andi", "arith.ceildivsi", "arith.ceildivui"}
    | {"arith.divf", "arith.divsi", "arith.divui", "arith.floordivsi", "arith.maxnumf"}
    | {"arith.maximumf", "arith.maxsi", "arith.maxui", "arith.minimumf", "arith.minnumf"}
    | {"arith.minsi", "arith.minui", "arith.mulf", "arith.muli", "arith.ori", "arith.remf"}
    | {"arith.remsi", "arith.remui", "arith.shli", "arith.shrsi", "arith.shrui", "arith.subf"}
    | {"arith.subi", "arith.xori"}
)


@dataclass(frozen=True, slots=True)
class ConstantOp(View):
    """``%c = arith.constant 4 : i32``.

    Attributes:
        attribute: The constant with its type.
        result: The result.
    """

    NAME: ClassVar[str] = "arith.constant"
    attribute: Attribute
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> ConstantOp:
        op = reader.op
        found = reader.attribute("value")
        if found is None:
            text = op.text
            match = _NAME.search(text)
            if match is None:
                raise reader.fail("a constant")
            position = match.end()
            if text.startswith("{", position):
                position = find_group_end(Source(text), position)
            module = op.module
            aliases = module.aliases if module is not None else None
            found, _ = parse_attribute_prefix(text, aliases, position)
        return cls(op, found, reader.result())

    @property
    def value(self) -> object:
        """The constant: a number or a bool; the element of a splat; nested tuples."""
        return self.attribute.value

    @property
    def is_splat(self) -> bool:
        """Returns whether it is a tensor of one value."""
        return isinstance(self.attribute, DenseElementsAttr) and self.attribute.is_splat


def constant_int(value: Value) -> int | None:
    """Returns the constant of a value, or of all of its elements; ``None`` if unknown."""
    owner = value.owner
    view = ConstantOp.match(owner) if isinstance(owner, Operation) else None
    number = view.value if view is not None else None
    return int(number) if isinstance(number, int) else None


def poison_flags(op: Operation) -> frozenset[str]:
    """Returns the flags whose violation makes the result poison.

    Args:
        op: An operation of ``arith``.

    Returns:
        A set of ``nsw``, ``nuw`` (no signed, no unsigned overflow), ``exact`` (nothing is rounded
        or shifted out) and ``nneg`` (the operand is not negative).
    """
    found: set[str] = set()
    for text in literals(op)[1:]:
        # A colon starts the types of a result; flags come before it.
        found.update(_FLAG.findall(text.partition(":")[0]))
    for name, flag in _FLAG_ATTRIBUTES.items():
        if name in op.attributes:
            found.update([flag] if flag else _FLAG.findall(op.attributes[name]))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class BinaryOp(View):
    """Any of :data:`BINARY`: ``%r = arith.addi %a, %b : i32``.

    Attributes:
        lhs: Left operand.
        rhs: Right operand.
        result: The result.
    """

    NAME: ClassVar[str] = "arith.addi"
    lhs: Value
    rhs: Value
    result: OpResult

    @classmethod
    def match(cls, op: Operation) -> BinaryOp | None:
        """Returns the view of a binary operation, or ``None``."""
        if op.name not in BINARY:
            return None
        reader = OpReader(op)
        return cls(op, reader.take(), reader.take(), reader.result())


@dataclass(frozen=True, slots=True)
class CmpIOp(View):
    """``%r = arith.cmpi slt, %a, %b : i32``.

    Attributes:
        predicate: ``eq``, ``ne``, ``slt``, ``sle``, ``sgt``, ``sge``, ``ult``, ``ule``, ``ugt``
            or ``uge``.
        lhs: Left operand.
        rhs: Right operand.
        result: The result.
    """

    NAME: ClassVar[str] = "arith.cmpi"
    predicate: str
    lhs: Value
    rhs: Value
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> CmpIOp:
        op = reader.op
        if not reader.head:
            raise reader.fail("a predicate")
        return cls(op, reader.head, reader.take(), reader.take(), reader.result())


@dataclass(frozen=True, slots=True)
class SelectOp(View):
    """``%r = arith.select %c, %a, %b : i32``.

    Attributes:
        condition: The condition.
        true_value: The result if it is true.
        false_value: The result if it is false.
        result: The result.
    """

    NAME: ClassVar[str] = "arith.select"
    condition: Value
    true_value: Value
    false_value: Value
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> SelectOp:
        op = reader.op
        return cls(op, reader.take(), reader.take(), reader.take(), reader.result())
