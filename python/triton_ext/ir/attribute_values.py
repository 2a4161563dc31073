"""Attributes as Python values.

``parse_attribute`` turns printed text into one of the classes here (or an encoding of
:mod:`triton_ext.ir.encodings`); ``print`` returns the text, byte for byte as MLIR prints it.  An
unknown attribute is an :class:`OpaqueAttr` that keeps its text.  Every attribute has a ``value``:
the plain Python value for passes (``int``, ``str``, ``tuple``, ...).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import VerifyError
from ..strings import quote
from .text_checks import require_text

if TYPE_CHECKING:
    from .aliases import AliasTable

__all__ = [
    "ArrayAttr",
    "Attribute",
    "BoolAttr",
    "DenseArrayAttr",
    "DenseElementsAttr",
    "DictionaryAttr",
    "FloatAttr",
    "IntegerAttr",
    "OpaqueAttr",
    "Printable",
    "StringAttr",
    "SymbolRefAttr",
    "TypeAttr",
    "UnitAttr",
    "parse_attribute",
]

_BARE_KEY = re.compile(r"[A-Za-z_][\w$.]*\Z", re.ASCII)
_BARE_SYMBOL = re.compile(r"[A-Za-z_][\w$.]*\Z", re.ASCII)


class Printable:
    """Base of attributes and types."""

    __slots__ = ()

    def print(self, aliases: AliasTable | None = None) -> str:
        """Returns the text; with ``aliases``, parts that have an alias are printed as it."""
        if aliases is not None:
            name = aliases.name_of(self)
            if name is not None:
                return name
        return self._text(aliases)

    def _text(self, aliases: AliasTable | None) -> str:
        """Returns the text without an alias for the whole."""
        raise NotImplementedError

    def verify(self) -> None:
        """Checks rules beyond the syntax.

        Raises:
            VerifyError: A rule is broken; the message has the offending value.
        """

    def _fail(self, message: str) -> None:
        raise VerifyError(f"{message}, in '{self.print()}'")

    def __str__(self) -> str:
        return self.print()


class Attribute(Printable):
    """Base of all attributes."""

    __slots__ = ()

    @property
    def value(self) -> object:
        """The plain Python value; for encodings and opaque attributes, the attribute itself."""
        return self


@dataclass(frozen=True, slots=True)
class UnitAttr(Attribute):
    """An attribute without a value: ``{mutable}``."""

    @property
    def value(self) -> bool:
        """Always true."""
        return True

    def _text(self, aliases: AliasTable | None) -> str:
        return "unit"


@dataclass(frozen=True, slots=True)
class BoolAttr(Attribute):
    """``true`` or ``false``, an integer of type ``i1``."""

    flag: bool

    @property
    def value(self) -> bool:
        """The flag."""
        return self.flag

    def _text(self, aliases: AliasTable | None) -> str:
        return "true" if self.flag else "false"


@dataclass(frozen=True, slots=True)
class IntegerAttr(Attribute):
    """``4 : i32``.

    Attributes:
        number: The number.
        type: Its type; ``None`` if not printed.
    """

    number: int
    type: Printable | None = None

    @property
    def value(self) -> int:
        """The number."""
        return self.number

    def _text(self, aliases: AliasTable | None) -> str:
        return f"{self.number}{_typed(self.type, aliases)}"


#: Exponent and mantissa width of each float type that prints in hexadecimal if decimal is not
#: exact; the sign takes one more bit.
_FLOAT_BITS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 10)}


@dataclass(frozen=True, slots=True)
class FloatAttr(Attribute):
    """``1.000000e+00 : f32``, or the bits in hexadecimal if decimal is not exact.

    Attributes:
        literal: The number as printed.
        type: Its type; ``None`` if not printed, which means ``f64``.
    """

    literal: str
    type: Printable | None = None

    @property
    def value(self) -> float:
        """The number.

        Raises:
            VerifyError: The format of the type is unknown.
        """
        if not self.literal.lower().startswith("0x"):
            return float(self.literal)
        name = "f64" if self.type is None else str(self.type)
        if name not in _FLOAT_BITS:
            raise VerifyError(f"expected bits of {', '.join(_FLOAT_BITS)}, found '{self}'")
        return _decode_float(int(self.literal, 16), *_FLOAT_BITS[name])

    def _text(self, aliases: AliasTable | None) -> str:
        return f"{self.literal}{_typed(self.type, aliases)}"


def _decode_float(bits: int, exponent_width: int, mantissa_width: int) -> float:
    """Returns the number of IEEE 754 bits of any width."""
    if (exponent_width, mantissa_width) == (11, 52):
        return float(struct.unpack("<d", struct.pack("<Q", bits & (1 << 64) - 1))[0])
    mantissa = bits & (1 << mantissa_width) - 1
    exponent = bits >> mantissa_width & (1 << exponent_width) - 1
    sign = -1.0 if bits >> (mantissa_width + exponent_width) & 1 else 1.0
    bias = (1 << (exponent_width - 1)) - 1
    if exponent == (1 << exponent_width) - 1:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_width)
    return sign * math.ldexp(mantissa | 1 << mantissa_width, exponent - bias - mantissa_width)


@dataclass(frozen=True, slots=True)
class StringAttr(Attribute):
    """``"cuda:90"``; invalid UTF-8 is kept as surrogates."""

    text: str
    type: Printable | None = None

    @property
    def value(self) -> str:
        """The text without quotes and escapes."""
        return self.text

    def _text(self, aliases: AliasTable | None) -> str:
        return f"{quote(self.text)}{_typed(self.type, aliases)}"


@dataclass(frozen=True, slots=True)
class SymbolRefAttr(Attribute):
    """``@f`` or ``@module::@f``.

    Attributes:
        path: The names from the outermost in.
    """

    path: tuple[str, ...]

    @property
    def value(self) -> str:
        """The last name."""
        return self.path[-1]

    def _text(self, aliases: AliasTable | None) -> str:
        return "::".join(
            f"@{name if _BARE_SYMBOL.match(name) else quote(name)}" for name in self.path
        )


@dataclass(frozen=True, slots=True)
class TypeAttr(Attribute):
    """A type used as an attribute."""

    type: Printable

    @property
    def value(self) -> Printable:
        """The type."""
        return self.type

    def _text(self, aliases: AliasTable | None) -> str:
        return self.type.print(aliases)


@dataclass(frozen=True, slots=True)
class ArrayAttr(Attribute):
    """``[1 : i32, "x"]``."""

    items: tuple[Attribute, ...]

    @property
    def value(self) -> tuple[object, ...]:
        """The values of the items."""
        return tuple(item.value for item in self.items)

    def _text(self, aliases: AliasTable | None) -> str:
        return f"[{', '.join(item.print(aliases) for item in self.items)}]"


@dataclass(frozen=True, slots=True)
class DenseArrayAttr(Attribute):
    """``array<i32: 1, 2>``.

    Attributes:
        element: Type of the elements.
        items: The elements, attributes without types.
    """

    element: Printable
    items: tuple[Attribute, ...]

    @property
    def value(self) -> tuple[object, ...]:
        """The values of the elements."""
        return tuple(item.value for item in self.items)

    def _text(self, aliases: AliasTable | None) -> str:
        items = ", ".join(item.print() for item in self.items)
        return f"array<{self.element.print(aliases)}{': ' if items else ''}{items}>"


@dataclass(frozen=True, slots=True)
class DenseElementsAttr(Attribute):
    """``dense<0> : tensor<4xi32>``.

    Attributes:
        body: The contents of the angle brackets: a scalar, nested lists, or a string of bits; an
            :class:`OpaqueAttr` for other text.
        type: The tensor's type.
    """

    body: Attribute
    type: Printable

    @property
    def is_splat(self) -> bool:
        """Returns whether all elements are one printed scalar."""
        return isinstance(self.body, (BoolAttr, IntegerAttr, FloatAttr))

    @property
    def value(self) -> object:
        """The scalar of a splat, else nested tuples; the text of bits."""
        if isinstance(self.body, FloatAttr):
            element = getattr(self.type, "element", None)
            return FloatAttr(self.body.literal, element).value
        return self.body.value

    def _text(self, aliases: AliasTable | None) -> str:
        return f"dense<{self.body.print(aliases)}> : {self.type.print(aliases)}"


@dataclass(frozen=True, slots=True)
class DictionaryAttr(Attribute):
    """``{a = 1 : i32, b}``.

    Attributes:
        entries: Names and attributes in printed order.
    """

    entries: tuple[tuple[str, Attribute], ...]

    @property
    def value(self) -> dict[str, object]:
        """Name to value."""
        return {name: item.value for name, item in self.entries}

    def get(self, name: str) -> Attribute | None:
        """Returns the entry of a name, or ``None``."""
        return next((item for known, item in self.entries if known == name), None)

    def _text(self, aliases: AliasTable | None) -> str:
        entries = []
        for name, item in self.entries:
            key = name if _BARE_KEY.match(name) else quote(name)
            unit = isinstance(item, UnitAttr)
            entries.append(key if unit else f"{key} = {item.print(aliases)}")
        return "{" + ", ".join(entries) + "}"


@dataclass(frozen=True, slots=True)
class OpaqueAttr(Attribute):
    """An attribute kept as text: a keyword, a location, one of an unknown dialect.

    Attributes:
        text: The text.
        why: The unknown part of an encoding, ``"'#ttg.blocked' has no 'colour'"``.
    """

    text: str
    why: str = field(default="", compare=False, repr=False)

    @property
    def value(self) -> str:
        """The text."""
        return self.text

    def _text(self, aliases: AliasTable | None) -> str:
        return self.text


def _typed(type_: Printable | None, aliases: AliasTable | None) -> str:
    return "" if type_ is None else f" : {type_.print(aliases)}"


def parse_attribute(
    text: str, aliases: AliasTable | Mapping[str, str] | None = None, filename: str = "<string>"
) -> Attribute:
    """Parses one attribute that fills the whole text.

    Args:
        text: The text, ``array<i32: 1, 2>`` for instance; ``unit`` is a unit attribute.
        aliases: Definitions of ``#name`` and ``!name``, ``module.aliases`` for instance.
        filename: Name of the text in errors.

    Raises:
        ParseError: The text is not an attribute, or an alias is undefined.
        TypeError: ``text`` is not a string.
    """
    require_text(text, "an attribute")
    from .value_parser import parse_attribute_text

    return parse_attribute_text(text, aliases, filename)
