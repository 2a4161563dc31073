"""Base class and operand reader of typed views.

A view is a frozen dataclass that names the operands, results and attributes of one operation, as it
was when the view was created.  ``View.match(op)`` returns it, or ``None`` for every other
operation.  Operands are found by the printed form (keywords and brackets between them), so views
need operations in their custom form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from ...errors import VerifyError
from ..attribute_values import Attribute, parse_attribute
from ..nodes import Operation
from ..segments import AttributesSlot, CommentSlot, LocationSlot, OperandSlot, RegionSlot
from ..values import OpResult, Value

__all__ = ["OpReader", "View", "literals"]

V = TypeVar("V", bound="View")

_INTEGER = re.compile(r"\s*(?:,\s*)?(-?\d{1,4300})\b(?!\s*x)", re.ASCII)


def literals(op: Operation) -> tuple[str, ...]:
    """Returns the text before each operand, then the text after the last one.

    The first starts at the operation's name; attribute dictionaries and regions are omitted.
    """
    found: list[str] = []
    text = ""
    if op._segments is None:
        source, spans, cuts = op.source.text, op._operand_spans or (), op._attr_spans
        end = op._loc[0] if isinstance(op._loc, tuple) else op._span[3]
        marks = [(spans[i], spans[i + 1], True) for i in range(0, len(spans), 2)]
        marks += [(cuts[i], cuts[i + 1], False) for i in range(0, len(cuts), 2)]
        marks += [(*region._span, False) for region in op._regions]
        position = op._span[2]
        for start, stop, is_operand in sorted(marks):
            text += source[position:start]
            position = max(position, stop)
            if is_operand:
                found.append(text)
                text = ""
        return (*found, text + source[position:end])
    for segment in op._segments:
        if isinstance(segment, OperandSlot):
            found.append(text)
            text = ""
        elif isinstance(segment, str):
            text += segment
        elif not isinstance(segment, (AttributesSlot, CommentSlot, LocationSlot, RegionSlot)):
            out: list[str] = []
            segment.write(op, out)
            text += "".join(out)
    found.append(text)
    start = found[0].find(op.name)
    if start > 0:
        found[0] = found[0][start:]
    return tuple(found)


class OpReader:
    """Takes the operands of an operation one by one.

    Args:
        op: The operation.
    """

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.operands = op.operands
        self.words = literals(op)
        self.next = 0

    def fail(self, expected: str) -> VerifyError:
        """Returns the error for an operation in an unexpected form."""
        return self.op.error(f"expected {expected} in '{self.op.name}'")

    # ---- operands

    def take(self, what: str = "another operand") -> Value:
        """Returns the next operand.

        Raises:
            VerifyError: There is none.
        """
        if self.next >= len(self.operands):
            raise self.fail(what)
        self.next += 1
        return self.operands[self.next - 1]

    def result(self) -> OpResult:
        """Returns the first result.

        Raises:
            VerifyError: There is none.
        """
        if not self.op.results:
            raise self.fail("a result")
        return self.op.results[0]

    def take_optional(self, keyword: str = "") -> Value | None:
        """Returns the next operand, if any, if the text before it ends with the keyword."""
        if self.next >= len(self.operands) or not self.follows(keyword):
            return None
        return self.take()

    def follows(self, keyword: str) -> bool:
        """Returns whether the text before the next operand ends with a keyword, if given."""
        word = self.words[self.next]
        if keyword.isalpha():
            return re.search(rf"\b{keyword}\s*(?:=\s*)?\Z", word) is not None  # pattern: letters
        return word.rstrip().endswith(keyword)

    def take_bracket(self) -> tuple[Value, ...]:
        """Returns the operands in the brackets before the next one."""
        if not self.follows("["):
            return ()
        found = [self.take()]
        while self.next < len(self.operands) and "]" not in self.words[self.next]:
            found.append(self.take())
        return tuple(found)

    def take_rest(self) -> tuple[Value, ...]:
        """Returns all remaining operands."""
        found = self.operands[self.next :]
        self.next = len(self.operands)
        return found

    def take_until(self, keyword: str) -> tuple[Value, ...]:
        """Returns the operands up to one that follows the keyword."""
        found = []
        while self.next < len(self.operands) and not self.follows(keyword):
            found.append(self.take())
        return tuple(found)

    def integer_here(self, name: str) -> int:
        """Returns the number printed after the last taken operand.

        Args:
            name: Its attribute in the generic form.

        Raises:
            VerifyError: There is none.
        """
        if name in self.op.attributes:
            return self.integer(name)
        match = _INTEGER.match(self.words[self.next])
        if match is None:
            raise self.fail(f"the number '{name}'")
        return int(match[1])

    @property
    def head(self) -> str:
        """The text between the name and the first operand, without ``,`` and blanks."""
        return self.words[0].removeprefix(self.op.name).strip(" ,")

    # ---- attributes

    def attribute(self, name: str) -> Attribute | None:
        """Returns an attribute of the dictionaries, or ``None``."""
        text = self.op.attributes.get(name)
        if text is None:
            return None
        module = self.op.module
        return parse_attribute(text, module.aliases if module is not None else None)

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer attribute.

        Raises:
            VerifyError: It is missing without a default, or not an integer.
        """
        found = self.attribute(name)
        if found is None and default is not None:
            return default
        value = found.value if found is not None else None
        if not isinstance(value, int):
            raise self.fail(f"the integer attribute '{name}'")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Returns an integer attribute, or ``None``."""
        return self.integer(name) if name in self.op.attributes else None

    def flag(self, name: str) -> bool:
        """Returns a unit or boolean attribute; false if missing."""
        found = self.attribute(name)
        return found is not None and found.value is True

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns a dense array or array of integers; empty if missing."""
        found = self.attribute(name)
        value = found.value if found is not None else ()
        if not isinstance(value, tuple):
            raise self.fail(f"a list of integers as '{name}'")
        numbers = tuple(x for x in value if isinstance(x, int))
        if len(numbers) != len(value):
            raise self.fail(f"a list of integers as '{name}'")
        return numbers


@dataclass(frozen=True, slots=True)
class View:
    """Base of all views.

    Attributes:
        op: The operation.
    """

    NAME: ClassVar[str]
    op: Operation

    @classmethod
    def match(cls: type[V], op: Operation) -> V | None:
        """Returns the view of an operation, or ``None`` if it is another operation.

        Raises:
            VerifyError: The operation has the name, but not the operands or attributes.
        """
        return cls._of(OpReader(op)) if op.name == cls.NAME else None

    @classmethod
    def _of(cls: type[V], reader: OpReader) -> V:
        """Creates the view of an operation with the right name."""
        raise NotImplementedError
