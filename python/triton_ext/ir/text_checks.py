"""Checks that texts given to edits can be read back by this package and every host.

Edits take types, attributes and locations as text, and a text that closes a brace or opens a
comment would change the meaning of what follows.  It is refused at the edit, where the cause is
known, instead of in the next parser.

Safe direction: only text that no host reads is refused.  The contents of the angle brackets of a
type or an attribute belong to its dialect; only their brackets and aliases are checked.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import ParseError
from ..strings import SKIPPED_STRING, STRING_BODY
from . import lexer
from .lexer import Source, find_group_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .nodes import Operation

__all__ = [
    "check_alias",
    "check_attribute",
    "check_location",
    "check_type",
    "require_attached",
    "require_text",
]

#: Attributes that are the same in every dialect, and most of those that passes write.
_PLAIN = re.compile(r'unit|true|false|-?\d+(?: : (?:i\d+|index))?|"[\w.: -]*"', re.ASCII)
_NAME = re.compile(rf"(?!\Z){STRING_BODY}")
_ALIAS_NAME = re.compile(r"[#!](?:\d+|[A-Za-z_$-][\w$-]*)", re.ASCII)
#: Aliases in a text: without a dialect before, and parameters after.
_ALIASES = re.compile(SKIPPED_STRING + r"|//[^\n]*|(?<![\w$.%@])[#!][\w$-]+(?![\w$.<-])", re.ASCII)
#: Outside of brackets: words, numbers, symbols, a type after a colon or an arrow.
_OUTSIDE = re.compile(
    r"(?:[\w$.:@#!+ \t]+|->|-(?!>))*(?:([(\[{<])|(" + lexer.STRING + r")|(\Z)|(.))",
    re.ASCII | re.DOTALL,
)
_FILE = re.compile(r"\s*:\s*\d+\s*:\s*\d+(?:\s+to\s+\d*\s*:\s*\d+)?")
_STRING = re.compile(lexer.STRING)
_AT = re.compile(r"\s+at\b\s*")
_BLANKS = re.compile(r"\s*")
_MAX_DEPTH = 200

#: The problem of a text, empty if there is none, and the aliases that it names.
_Finding = tuple[str, tuple[str, ...]]


def require_text(value: object, what: str) -> None:
    """Raises if a value is not a string.

    Raises:
        TypeError: It is not; the message contains ``what``.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a text for {what}, found {value!r}")


def require_attached(op: Operation, what: str) -> None:
    """Raises if an operation was erased.

    Raises:
        VerifyError: It is in no module.
    """
    if op.module is None:
        op.fail(f"cannot {what} of '{op.name}': it was erased")


def check_attribute(op: Operation, name: str, text: str, *, holder: str = "") -> None:
    """Raises if an attribute could not be read back.

    Args:
        op: The operation for the error.
        name: Name of the attribute.
        text: Its value.
        holder: Name of the operation that gets it; by default that of ``op``.

    Raises:
        TypeError: Name or value is not a string.
        VerifyError: One of them is malformed, or an alias is undefined.
    """
    holder = holder or op.name
    require_text(name, f"the name of an attribute of '{holder}'")
    require_text(text, f"attribute '{name}' of '{holder}'")
    if _NAME.fullmatch(name) is None:
        op.fail(
            f"cannot set an attribute of '{holder}': expected its name, without quotes, "
            f"found '{name}'"
        )
    if _PLAIN.fullmatch(text) is None:
        _check(op, f"cannot set attribute '{name}' of '{holder}' to '{text}'", _attribute(text))


def check_type(op: Operation, what: str, text: str) -> None:
    """Raises if a type could not be read back.

    Args:
        op: The operation that would print it.
        what: The value of this type.
        text: The type.

    Raises:
        TypeError: It is not a string.
        VerifyError: It is malformed, or an alias is undefined.
    """
    require_text(text, f"the type of {what}")
    _check(op, f"cannot make '{text}' the type of {what}", _type(text))


def check_location(op: Operation, what: str, text: str) -> None:
    """Raises if a location, ``loc(...)``, could not be read back.

    Args:
        op: The operation that would print it.
        what: What it is the location of.
        text: The location.

    Raises:
        VerifyError: It is malformed, or an alias is undefined.
    """
    _check(op, f"cannot make '{text}' the location of {what}", _location(text))


def check_alias(op: Operation, name: str, text: str) -> None:
    """Raises if the definition of an alias could not be read back.

    Raises:
        TypeError: Name or text is not a string.
        VerifyError: One of them is malformed, or an alias in the text is undefined.
    """
    require_text(name, "the name of an alias")
    require_text(text, f"what alias '{name}' stands for")
    if _ALIAS_NAME.fullmatch(name) is None:
        op.fail(
            f"cannot add alias '{name}'",
            "expected '#' (an attribute) or '!' (a type), and letters, digits or '$_-'",
        )
    check = _type if name[0] == "!" else _location if text.startswith("loc(") else _attribute
    _check(op, f"cannot let alias '{name}' stand for '{text}'", check(text))


def _check(op: Operation, what: str, finding: _Finding) -> None:
    problem, names = finding
    if not problem and names:
        module = op.module
        aliases: Mapping[str, str] = module.aliases if module is not None else {}
        unknown = [name for name in names if name not in aliases]
        if unknown and module is not None:
            problem = f"alias '{unknown[0]}' is not defined"
    if problem:
        op.fail(f"{what}: {problem}")


def _names(text: str) -> tuple[str, ...]:
    if "#" not in text and "!" not in text:
        return ()
    return tuple(name for name in _ALIASES.findall(text) if name[0] in "#!")


@lru_cache(maxsize=1024)
def _attribute(text: str) -> _Finding:
    problem = _structure(text)
    if not problem and not {"#", "!", "<"} & set(text):
        # No dialect is involved: the whole grammar is known.
        from .attribute_values import parse_attribute

        try:
            parse_attribute(text)
        except ParseError as error:
            problem = error.message
    return problem, _names(text)


@lru_cache(maxsize=1024)
def _type(text: str) -> _Finding:
    from .parser import parse_optional_type

    problem = _structure(text)
    if not problem:
        try:
            if parse_optional_type(Source(text), 0) != len(text):
                problem = "it is not one type"
        except ParseError as error:
            problem = error.message
    return problem, _names(text)


def _structure(text: str) -> str:
    """Returns the problem with brackets, strings or comments of a value; empty if none."""
    if not text.strip():
        return "it is empty"
    source = Source(text)
    position = 0
    while True:
        match = _OUTSIDE.match(text, position)
        assert match is not None  # the alternatives cover every character and the end
        position = match.end()
        if match[1] is not None:
            try:
                position = find_group_end(source, position - 1)
            except ParseError as error:
                return error.message
        elif match[3] is not None:
            return ""
        elif match[4] is not None:
            if match[4] == '"':
                return "expected '\"' at the end of its string"
            if text.startswith("//", position - 1):
                return "it has a comment, which would hide the text after it"
            return f"unexpected {match[4]!r}"


class _Malformed(Exception):
    """A location breaks the grammar; the message says what is expected."""


@lru_cache(maxsize=1024)
def _location(text: str) -> _Finding:
    """``location ::= 'loc' '(' instance ')'``."""
    try:
        end = _instance(text, 4, 0)
        if text[end:].strip() != ")":
            raise _Malformed("expected one location in 'loc(...)'")
    except _Malformed as error:
        return str(error), ()
    except ParseError as error:
        return error.message, ()
    return "", _names(text)


def _instance(text: str, position: int, depth: int) -> int:
    """Returns the end of a location without ``loc(...)``.

    ``instance ::= alias | 'unknown' | string (':' line ':' column ('to' line? ':' column)?)? |
    string '(' instance ')' | 'callsite' '(' instance 'at' instance ')' |
    'fused' ('<' attribute '>')? '[' instance (',' instance)* ']'``
    """
    if depth > _MAX_DEPTH:
        raise _Malformed(f"locations are nested more than {_MAX_DEPTH} deep")
    position = _blanks(text, position)
    if text.startswith("unknown", position):
        return position + len("unknown")
    if text.startswith("#", position):
        name = lexer.ALIAS_USE.match(text, position)
        if name is None:
            raise _Malformed("expected the name of an alias behind '#'")
        end = name.end()
        return find_group_end(Source(text), end) if text.startswith("<", end) else end
    if text.startswith("callsite", position):
        position = _expect(text, _blanks(text, position + len("callsite")), "(")
        at = _AT.match(text, _instance(text, position, depth + 1))
        if at is None:
            raise _Malformed("expected 'at' and the caller in 'callsite(...)'")
        return _expect(text, _instance(text, at.end(), depth + 1), ")")
    if text.startswith("fused", position):
        return _fused(text, _blanks(text, position + len("fused")), depth)
    string = _STRING.match(text, position)
    if string is None:
        raise _Malformed(
            "expected 'unknown', an alias, a string, 'callsite' or 'fused', found "
            + (f"'{text[position:]}'" if text[position:] else "the end")
        )
    file = _FILE.match(text, string.end())
    if file is not None:
        return file.end()
    position = _blanks(text, string.end())
    if text.startswith(":", position):
        raise _Malformed('expected a line and a column, as in "file":1:2')
    if text.startswith("(", position):
        return _expect(text, _instance(text, position + 1, depth + 1), ")")
    return string.end()


def _fused(text: str, position: int, depth: int) -> int:
    if text.startswith("<", position):
        position = _blanks(text, find_group_end(Source(text), position))
    position = _expect(text, position, "[")
    if text.startswith("]", _blanks(text, position)):
        return _blanks(text, position) + 1
    while True:
        position = _blanks(text, _instance(text, position, depth + 1))
        if not text.startswith(",", position):
            return _expect(text, position, "]")
        position += 1


def _expect(text: str, position: int, character: str) -> int:
    position = _blanks(text, position)
    if not text.startswith(character, position):
        found = f"'{text[position:]}'" if text[position:] else "the end"
        raise _Malformed(f"expected '{character}', found {found}")
    return position + 1


def _blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    assert match is not None  # matches the empty text, too
    return match.end()
