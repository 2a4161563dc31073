"""The parser of attributes, types and encodings.

Reads values only; :mod:`triton_ext.ir.parser` reads the structure of a module.  Every method
``parse_x`` reads one grammar production at the position and raises
:class:`~triton_ext.errors.ParseError` with the position if it does not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from ..strings import unquote
from . import types as ty
from .aliases import AliasTable
from .attribute_values import (
    ArrayAttr,
    Attribute,
    BoolAttr,
    DenseArrayAttr,
    DenseElementsAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    OpaqueAttr,
    StringAttr,
    SymbolRefAttr,
    TypeAttr,
    UnitAttr,
)
from .integers import MAX_DIGITS, read_integer
from .lexer import STRING, Source, find_group_end

__all__ = ["ValueParser", "parse_attribute_prefix", "parse_attribute_text", "parse_type_text"]

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"(-?)(0x[0-9A-Fa-f]+|\d+(?:\.\d*(?:[eE][-+]?\d+)?)?)(?![\w$])", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_STRING = re.compile(STRING)
_WORD = re.compile(r"[A-Za-z_][\w$]*(?:\.[\w$]+)*", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)
_SIGNED = re.compile(r"([#!])([A-Za-z_][\w$.-]*|\d+)", re.ASCII)
_SYMBOL = re.compile(r"@(?:(" + STRING + r")|([A-Za-z_][\w$.-]*))", re.ASCII)
_INTEGER_TYPE = re.compile(r"(si|ui|i)(\d+)\Z", re.ASCII)
_SIZE = re.compile(r"(\d+|\?)x", re.ASCII)
_SHAPE = re.compile(r"\d+(?:x\d+)*", re.ASCII)
_MAX_NESTING = 64

_Make = Callable[[ty.Shape, ty.Type, Attribute | None, bool], ty.Type]
_DESCRIPTORS: Mapping[str, _Make] = {
    "tt.tensordesc": ty.TensorDescType,
    "ttng.tensordesc_im2col": ty.TensorDescIm2ColType,
}


class ValueParser:
    """Reads from a text; the position advances.

    Args:
        text: The text.
        aliases: The aliases.
        filename: Name of the text in errors.
        position: The start.
    """

    def __init__(
        self, text: str, aliases: AliasTable, filename: str = "<string>", position: int = 0
    ) -> None:
        self.source = Source(text, filename)
        self.text = text
        self.aliases = aliases
        self.position = position
        self._nesting = 0

    # ---- tokens

    def skip(self) -> None:
        """Skips blanks and comments."""
        match = _SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def peek(self, literal: str) -> bool:
        """Returns whether a text follows."""
        self.skip()
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        """Skips a text if it follows; returns whether it did."""
        found = self.peek(literal)
        if found:
            self.position += len(literal)
        return found

    def expect(self, literal: str) -> None:
        """Skips a text that must follow."""
        if not self.accept(literal):
            self.fail(f"expected '{literal}'")

    def accept_match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Skips and returns a match of a pattern, if there is one."""
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def expect_match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Skips and returns a match of a pattern that must follow."""
        match = self.accept_match(pattern)
        if match is None:
            self.fail(f"expected {what}")
        return match

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raises the error for the present position, with the text found there."""
        if position is not None:
            self.source.error(position, message)
        self.skip()
        rest = self.text[self.position : self.position + 20].split("\n")[0]
        self.source.error(self.position, f"{message}, found {repr(rest) if rest else 'the end'}")

    def end(self) -> None:
        """Checks that nothing follows."""
        self.skip()
        if self.position != len(self.text):
            self.fail("expected the end")

    def list_of(self, item: Callable[[], object], closer: str) -> None:
        """``list ::= (item (',' item)*)? closer``."""
        if self.accept(closer):
            return
        while True:
            item()
            if not self.accept(","):
                break
        self.expect(closer)

    def integer(self) -> int:
        """``integer ::= '-'? digit+``."""
        return self.number_of(self.expect_match(_INTEGER, "an integer")[0])

    def number_of(self, digits: str) -> int:
        """Returns the number of digits that end at the position."""
        if len(digits) > MAX_DIGITS:
            self.fail(
                f"expected a number of at most {MAX_DIGITS} digits, found {len(digits)}",
                self.position - len(digits),
            )
        return int(digits)

    def raw_group(self) -> str:
        """Returns the text of the bracket that opens at the position, with both brackets."""
        self.skip()
        start = self.position
        self.position = find_group_end(self.source, start)
        return self.text[start : self.position]

    def _nested(self) -> None:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            self.fail(f"expected values nested at most {_MAX_NESTING} deep")

    # ---- attributes

    def parse_attribute(self) -> Attribute:
        """Any attribute.

        ``attribute ::= 'unit' | 'true' | 'false' | number (':' type)? | string (':' type)? |
        symbol | '[' attributes ']' | dictionary | dense-array | dense-elements | '#' alias |
        '#' dialect '.' name body? | type | text``
        """
        self._nested()
        self.skip()
        character = self.text[self.position : self.position + 1]
        found: Attribute
        if character == "#":
            found = self._parse_dialect_attribute()
        elif character == "[":
            found = self._parse_array()
        elif character == "{":
            found = self.parse_dictionary()
        elif character == '"':
            literal = self.expect_match(_STRING, "a string with its end on the same line")[0]
            found = StringAttr(unquote(literal), self._parse_optional_type())
        elif character == "@":
            found = self._parse_symbol()
        elif character == "!" or character == "(":
            found = TypeAttr(self.parse_type())
        elif character == "-" or character.isdigit():
            found = self._parse_number(typed=True)
        else:
            found = self._parse_word()
        self._nesting -= 1
        return found

    def _parse_optional_type(self) -> ty.Type | None:
        """``optional-type ::= (':' type)?``."""
        return self.parse_type() if self.accept(":") else None

    def _parse_number(self, *, typed: bool) -> Attribute:
        """``number ::= '-'? (hexadecimal | decimal)``, with its type where one is allowed."""
        match = self.expect_match(_NUMBER, "a number")
        literal = match[0]
        is_hex = match[2].startswith("0x")
        if not is_hex and "." not in literal:
            whole = self.number_of(literal)
            return IntegerAttr(whole, self._parse_optional_type() if typed else None)
        type_ = self._parse_optional_type() if typed else None
        if not is_hex or (is_hex and isinstance(type_, ty.FloatType)):
            return FloatAttr(literal, type_)
        text = literal if type_ is None else f"{literal} : {type_}"
        number = read_integer(text) if typed else None
        # An element without a type may be the bits of a float.
        return OpaqueAttr(text) if number is None else IntegerAttr(number, type_)

    def _parse_array(self) -> ArrayAttr:
        """``array ::= '[' (attribute (',' attribute)*)? ']'``."""
        self.expect("[")
        items: list[Attribute] = []
        self.list_of(lambda: items.append(self.parse_attribute()), "]")
        return ArrayAttr(tuple(items))

    def parse_dictionary(self) -> DictionaryAttr:
        """``dictionary ::= '{' (entry (',' entry)*)? '}'``."""
        self.expect("{")
        entries: list[tuple[str, Attribute]] = []
        self.list_of(lambda: entries.append(self.parse_entry()), "}")
        return DictionaryAttr(tuple(entries))

    def parse_entry(self) -> tuple[str, Attribute]:
        """``entry ::= (name | string) ('=' attribute)?``."""
        match = self.accept_match(_KEY) or self.expect_match(_STRING, "the name of an attribute")
        name = unquote(match[0]) if match[0].startswith('"') else match[0]
        return name, self.parse_attribute() if self.accept("=") else UnitAttr()

    def _parse_symbol(self) -> SymbolRefAttr:
        """``symbol ::= '@' name ('::' '@' name)*``."""
        path = []
        while True:
            match = self.expect_match(_SYMBOL, "the name of a symbol")
            path.append(unquote(match[1]) if match[1] is not None else match[2])
            if not self.accept("::"):
                return SymbolRefAttr(tuple(path))

    def _parse_word(self) -> Attribute:
        """``word ::= 'true' | 'false' | 'unit' | array | dense | builtin-type | keyword``."""
        start = self.position
        match = _WORD.match(self.text, start)
        if match is None:
            self.fail("expected an attribute")
        word = match[0]
        if word in ("true", "false", "unit"):
            self.position = match.end()
            return UnitAttr() if word == "unit" else BoolAttr(word == "true")
        if word == "array" and self.text.startswith("<", match.end()):
            return self._parse_dense_array(match.end())
        if word == "dense" and self.text.startswith("<", match.end()):
            return self._parse_dense_elements(match.end())
        type_ = self._parse_optional_builtin_type(word)
        if type_ is not None:
            return TypeAttr(type_)
        self.position = match.end()
        if self.text[self.position : self.position + 1] in ("<", "("):
            self.raw_group()
        if word in ("sparse", "dense_resource", "opaque"):
            self._parse_optional_type()
        return OpaqueAttr(self.text[start : self.position])

    def _parse_dense_array(self, position: int) -> DenseArrayAttr:
        """``dense-array ::= 'array' '<' type (':' scalar (',' scalar)*)? '>'``."""
        self.position = position + 1
        element = self.parse_type()
        items: list[Attribute] = []
        if self.accept(":"):
            self.list_of(lambda: items.append(self._parse_scalar()), ">")
        else:
            self.expect(">")
        return DenseArrayAttr(element, tuple(items))

    def _parse_scalar(self) -> Attribute:
        """``scalar ::= number | 'true' | 'false' | string | '[' scalars ']'``, without types."""
        self.skip()
        if self.accept("["):
            items: list[Attribute] = []
            self.list_of(lambda: items.append(self._parse_scalar()), "]")
            return ArrayAttr(tuple(items))
        for word, flag in (("true", True), ("false", False)):
            if self.accept(word):
                return BoolAttr(flag)
        match = self.accept_match(_STRING)
        if match is not None:
            return StringAttr(unquote(match[0]))
        return self._parse_number(typed=False)

    def _parse_dense_elements(self, position: int) -> DenseElementsAttr:
        """``dense-elements ::= 'dense' '<' scalar? '>' ':' type``."""
        start = position
        self.position = position + 1
        scalar = (
            _NUMBER.match(self.text, self.position)
            or self.text[self.position : self.position + 1] in ('"', "[")
            or self.text.startswith(("true", "false"), self.position)
        )
        if scalar:
            body = self._parse_scalar()
            self.expect(">")
        else:
            self.position = start
            body = OpaqueAttr(self.raw_group()[1:-1])
        self.expect(":")
        type_ = self.parse_type()
        # Hexadecimal bits are a float's only if the elements are floats.
        if (
            isinstance(body, OpaqueAttr)
            and body.text.startswith("0x")
            and isinstance(getattr(type_, "element", None), ty.FloatType)
        ):
            body = FloatAttr(body.text)
        return DenseElementsAttr(body, type_)

    def _parse_dialect_attribute(self) -> Attribute:
        """``dialect-attribute ::= '#' alias | '#' dialect '.' name body? | '#' dialect body``."""
        from .encodings import READERS

        start = self.position
        name = self.expect_match(_SIGNED, "the name of an attribute behind '#'")[2]
        reader = READERS.get(name)
        if reader is not None:
            return reader(self, start)
        if "." not in name and not self.text.startswith("<", self.position):
            found = self.aliases.attribute(f"#{name}")
            if found is None:
                self.fail(f"undefined attribute alias '#{name}'", start)
            return found
        if self.text.startswith("<", self.position):
            self.raw_group()
        return OpaqueAttr(self.text[start : self.position])

    # ---- types

    def parse_type(self) -> ty.Type:
        """``type ::= builtin-type | '!' alias | '!' dialect '.' name body? | function-type``."""
        self._nested()
        self.skip()
        found: ty.Type
        if self.peek("("):
            found = self._parse_function_type()
        elif self.peek("!"):
            found = self._parse_dialect_type()
        else:
            match = _WORD.match(self.text, self.position)
            builtin = None if match is None else self._parse_optional_builtin_type(match[0])
            if builtin is None:
                self.fail("expected a type")
            found = builtin
        self._nesting -= 1
        return found

    def _parse_function_type(self) -> ty.FunctionType:
        """``function-type ::= '(' types? ')' '->' (type | '(' types? ')')``."""
        inputs: list[ty.Type] = []
        results: list[ty.Type] = []
        self.expect("(")
        self.list_of(lambda: inputs.append(self.parse_type()), ")")
        self.expect("->")
        if self.accept("("):
            self.list_of(lambda: results.append(self.parse_type()), ")")
        else:
            results.append(self.parse_type())
        return ty.FunctionType(tuple(inputs), tuple(results))

    def _parse_optional_builtin_type(self, word: str) -> ty.Type | None:
        """``builtin-type ::= integer-type | float-type | 'index' | tensor | vector``.

        Args:
            word: The name that the type starts with.

        Returns:
            The type; ``None`` for another word.
        """
        start = self.position
        match = _INTEGER_TYPE.match(word)
        if match is not None and len(match[2]) < 9:
            self.position += len(word)
            return ty.IntegerType(int(match[2]), match[1][:-1])
        if word in ty.FLOAT_BITS or word == "index":
            self.position += len(word)
            return ty.IndexType() if word == "index" else ty.FloatType(word)
        if word in ("tensor", "vector"):
            self.position += len(word)
            if not self.accept("<"):
                self.position = start
                return None
            if self.peek("*") or self.peek("["):
                return self._opaque_type(start, len(word))
            shape, element, encoding = self._parse_block()
            if word == "tensor":
                return ty.TensorType(shape, element, encoding)
            return ty.VectorType(shape, element)
        if word in ("none", "memref", "tuple", "complex", "opaque"):
            return self._opaque_type(start, len(word))
        return None

    def _opaque_type(self, start: int, length: int) -> ty.OpaqueType:
        end = self.position = start + length
        if self.peek("<"):
            self.raw_group()
        else:
            self.position = end
        return ty.OpaqueType(self.text[start : self.position])

    def _parse_block(self) -> tuple[ty.Shape, ty.Type, Attribute | None]:
        """``block ::= (size 'x')* type (',' attribute)? '>'``."""
        shape = self._parse_sizes()
        element = self.parse_type()
        encoding = self.parse_attribute() if self.accept(",") else None
        self.expect(">")
        return shape, element, encoding

    def _parse_sizes(self) -> ty.Shape:
        """``(size 'x')*``, ``size ::= digit+ | '?'``."""
        self.skip()
        sizes: list[int | None] = []
        while (match := _SIZE.match(self.text, self.position)) is not None:
            self.position = match.end(1)
            sizes.append(None if match[1] == "?" else self.number_of(match[1]))
            self.position = match.end()
        return tuple(sizes)

    def _parse_dialect_type(self) -> ty.Type:
        """``dialect-type ::= '!' alias | '!' dialect '.' name body?``."""
        start = self.position
        name = self.expect_match(_SIGNED, "the name of a type behind '!'")[2]
        if name == "ttg.async.token":
            return ty.AsyncTokenType()
        if self.text.startswith("<", self.position):
            if name == "tt.ptr":
                return self._parse_pointer()
            if name == "ttg.memdesc":
                return self.parse_memdesc_body()
            if name in _DESCRIPTORS:
                return self._parse_descriptor(_DESCRIPTORS[name])
            self.raw_group()
        elif "." not in name:
            text = self.aliases.alias_text(f"!{name}")
            if text is None or text.strip() == f"!{name}":
                self.fail(f"undefined type alias '!{name}'", start)
            return self.aliases.type(text)
        return ty.OpaqueType(self.text[start : self.position])

    def _parse_pointer(self) -> ty.PointerType:
        """``pointer ::= '<' type (',' (integer | string))? '>'``."""
        self.expect("<")
        pointee = self.parse_type()
        space: int | str = 1
        if self.accept(","):
            literal = self.accept_match(_STRING)
            space = self.integer() if literal is None else unquote(literal[0])
        self.expect(">")
        return ty.PointerType(pointee, 1 if space == "global" else space)

    def _parse_descriptor(self, make: _Make) -> ty.Type:
        """``descriptor ::= '<' ('tensor' '<' block | block)``."""
        self.expect("<")
        as_tensor = self.accept("tensor")
        if as_tensor:
            self.expect("<")
        shape, element, layout = self._parse_block()
        if as_tensor:
            self.expect(">")
        return make(shape, element, layout, as_tensor)

    def parse_memdesc_body(self) -> ty.MemDescType:
        """The body of a memory descriptor, also its short form.

        ``memdesc ::= '<' sizes type ',' encoding ',' space (',' 'mutable')? (',' shape)? '>'``
        """
        self.expect("<")
        shape = self._parse_sizes()
        element = self.parse_type()
        self.expect(",")
        encoding = self.parse_attribute()
        self.expect(",")
        space = self.parse_attribute()
        mutable, alloc = False, None
        while self.accept(","):
            if not mutable and alloc is None and self.accept("mutable"):
                mutable = True
                continue
            if alloc is not None:
                self.fail("expected '>'")
            sizes = self.expect_match(_SHAPE, "'mutable' or the shape of the allocation")
            alloc = tuple(self.number_of(size) for size in sizes[0].split("x"))
        self.expect(">")
        return ty.MemDescType(shape, element, encoding, space, mutable, alloc)


def parse_attribute_text(
    text: str, aliases: AliasTable | Mapping[str, str] | None, filename: str
) -> Attribute:
    """Parses one attribute that fills the whole text; see ``parse_attribute``."""
    parser = ValueParser(text, AliasTable.of(aliases), filename)
    found = parser.parse_attribute()
    parser.end()
    return found


def parse_attribute_prefix(
    text: str, aliases: AliasTable | Mapping[str, str] | None = None, position: int = 0
) -> tuple[Attribute, int]:
    """Parses one attribute at a position; also returns the offset after it."""
    parser = ValueParser(text, AliasTable.of(aliases), "<string>", position)
    return parser.parse_attribute(), parser.position


def parse_type_text(text: str, aliases: AliasTable, filename: str) -> ty.Type:
    """Parses one type that fills the whole text; also the short form of a memory descriptor."""
    parser = ValueParser(text, aliases, filename)
    found = parser.parse_memdesc_body() if parser.peek("<") else parser.parse_type()
    parser.end()
    return found
