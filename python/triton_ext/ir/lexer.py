"""Source texts, positions in them, and the regular expressions of tokens.

MLIR's printed form is so regular that a parser of *structure* only (values, regions, attribute
dictionaries, types, locations) needs no full token stream: everything else is kept as text.  The
expressions below jump from one relevant character to the next; :data:`STEP` is the main one.

Every expression runs in linear time: a repeated group is always followed by alternatives that cover
every character, so it never backtracks.
"""

from __future__ import annotations

import re
from typing import NoReturn

from ..errors import ParseError
from ..strings import STRING, STRING_BODY

__all__ = ["STRING", "Source", "find_group_end"]

BARE_ID = r"[A-Za-z_][\w$]*(?:\.[\w$]+)*"
SUFFIX_ID = r"(?:\d+|[A-Za-z$._-][\w$.-]*)"

#: Kinds of stops of :data:`STEP`, by ``lastindex`` of the match.
(VALUE, NEWLINE, OPEN, CLOSE, ANGLE, BRACE, UNBRACE, QUOTED, LOC, CARET, COMMENT, END, OTHER) = (
    range(1, 14)
)
STEP = re.compile(
    r"""(?:[^%^"()\[\]<>{}\n/l-]+ | l(?!oc\s*\() | (?<=[\w$.@\#!])l | ->| -(?!>) | /(?!/))*
    (?: (%"""
    + SUFFIX_ID
    + r"""(?:\#\d+)?)
      | (\n) | ([(\[]) | ([)\]>]) | (<) | (\{) | (\}) | ("""
    + STRING
    + r""") | (loc) | (\^"""
    + SUFFIX_ID
    + r""") | (//[^\n]*) | (\Z) | (.) )""",
    re.VERBOSE | re.ASCII,
)

#: Blank space and comments.
TRIVIA = re.compile(r"(?:\s+|//[^\n]*)*", re.ASCII)
#: A comment at the end of a line, with the blanks before it.
SAME_LINE_COMMENT = re.compile(r"[ \t]*//[^\n]*")
#: Blanks on one line.
BLANKS = re.compile(r"[ \t]*")

#: ``{`` that opens an attribute dictionary: an entry, or nothing, follows on the same line, or an
#: entry with a value on the next.
DICTIONARY_START = re.compile(
    r"\{(?:[ \t]*\}|[ \t]*(?:"
    + STRING
    + r"|"
    + BARE_ID
    + r")\s*[=,}]|\s*(?:"
    + STRING
    + r"|"
    + BARE_ID
    + r")\s*=)",
    re.ASCII,
)
#: One operation's results and name; the groups are name, count, bare name, quoted name.
OPERATION_HEAD = re.compile(
    r"(?:(%"
    + SUFFIX_ID
    + r")(?::(\d+))?\s*=\s*)?(?:("
    + BARE_ID
    + r')|"('
    + STRING_BODY
    + r')"(?=\s*\())',
    re.ASCII,
)
#: One group of a result list, with what follows it.
RESULT_GROUP = re.compile(r"(%" + SUFFIX_ID + r")(?::(\d+))?\s*([=,])\s*", re.ASCII)
VALUE_NAME = re.compile(r"%" + SUFFIX_ID + r"(?:#\d+)?", re.ASCII)
BLOCK_NAME = re.compile(r"\^" + SUFFIX_ID, re.ASCII)
#: Tokens that can only start an operation, a label, an alias, or follow the last operation.
OPERATION_START = re.compile(
    r"(?:\Z|\}|\^|%"
    + SUFFIX_ID
    + r"(?::\d+)?(?:[ \t]*,[ \t]*%"
    + SUFFIX_ID
    + r"(?::\d+)?)*[ \t]*=(?!=)|"
    + STRING
    + r"[ \t]*\(|[A-Za-z_][\w$]*\.[\w$]|(?:module|return|func|unrealized_conversion_cast)\b"
    + r"|[\#!][\w$.-]+\s*=|\{-\#)",
    re.ASCII,
)
#: Possible start of another operation on the same line: a name with its dialect or a quoted name,
#: after complete text.  :func:`find_second_operation` decides.
MAYBE_SECOND_OPERATION = re.compile(
    r"[^\s,{(\[<=:][ \t]+(?:[A-Za-z_][\w$]*\.[\w$]|" + STRING + r"[ \t]*\()", re.ASCII
)
_TOP_LEVEL_STEP = re.compile(
    STRING
    + r"""([ \t]*\()?
    | ->[ \t]*
    | ([(\[{<])
    | [@!\#%^][\w$.-]*
    | ([A-Za-z_][\w$]*(\.[\w$.]+)?)
    | .""",
    re.ASCII | re.VERBOSE | re.DOTALL,
)
#: The use of an alias, or of a dialect's attribute.
ALIAS_USE = re.compile(r"[#!][A-Za-z0-9_$.-]+", re.ASCII)
ALIAS_HEAD = re.compile(r"([#!][A-Za-z0-9_$.-]+)[ \t]*=[ \t]*", re.ASCII)
#: The beginning of a type: a name, or the short form that starts at its ``<``.  Blanks and comments
#: may follow the name of a builtin type.
TYPE_HEAD = re.compile(
    r"(?:tensor|vector|memref|complex|tuple)(?:\s|//[^\n]*)*(?=<)"
    r"|!?[A-Za-z_][\w$]*(?:\.[\w$]+)*|(?=<)",
    re.ASCII,
)

#: A block's name that ends the searched text.
BLOCK_BEFORE = re.compile(r"\^[\w$.-]+\s*\Z", re.ASCII)
COLON = re.compile(r"\s*:\s*")

_FLAT = {
    "<": re.compile(r'<[^"()\[\]<>{}/-]*(?:->[^"()\[\]<>{}/-]*)*>'),
    "{": re.compile(r'\{[^"()\[\]<>{}/]*\}'),
    "(": re.compile(r'\([^"()\[\]<>{}/]*\)'),
    "[": re.compile(r'\[[^"()\[\]<>{}/]*\]'),
}
_GROUP_STEP = re.compile(
    r"(?:[^\"()\[\]<>{}/>=-]+|->|[<>=]=|-(?!>)|=(?!=)|/(?!/))*"
    r"(?:([(\[{<])|([)\]}>])|(" + STRING + r")|(//[^\n]*)|(\Z)|(.))",
    re.ASCII | re.DOTALL,
)
BYTE_ORDER_MARK = "\ufeff"
CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Source:
    """A text with a name; turns offsets into lines and columns when an error needs them.

    Args:
        text: The whole text.
        filename: Name of the text for the user.
    """

    __slots__ = ("filename", "text")

    def __init__(self, text: str, filename: str = "<string>") -> None:
        self.text = text
        self.filename = filename

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Returns line and column, both counted from 1, of an offset."""
        start = self.text.rfind("\n", 0, offset) + 1
        return self.text.count("\n", 0, start) + 1, offset - start + 1

    def line_at(self, offset: int) -> str:
        """Returns the line with an offset, without its newline."""
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    def error(self, offset: int, message: str, *notes: str) -> NoReturn:
        """Raises a :class:`~triton_ext.errors.ParseError` that points at an offset."""
        line, column = self.line_and_column(offset)
        raise ParseError(
            message,
            filename=self.filename,
            line=line,
            column=column,
            source_line=self.line_at(offset),
            notes=notes,
        )


def find_second_operation(source: Source, start: int, end: int) -> int:
    """Returns the offset of a second operation in the text after an operation's name, or -1.

    Printed modules have one operation on a line, and the parser relies on it.  In brackets, strings
    and symbols a dotted word is not an operation.
    """
    position = start
    while position < end:
        match = _TOP_LEVEL_STEP.match(source.text, position, end)
        assert match is not None  # the last alternative takes anything
        if match[2] is not None:
            position = find_group_end(source, position)
            continue
        if position > start and (match[1] is not None or match[4] is not None):
            return position
        position = match.end()
    return -1


def find_group_end(source: Source, start: int) -> int:
    """Returns the offset after the bracket that closes the one at ``start``.

    Brackets nest in any mixture; those inside strings and comments, ``->`` and comparisons do not
    count.

    Args:
        source: The text.
        start: Offset of ``(``, ``[``, ``{`` or ``<``.

    Raises:
        ParseError: A bracket is closed by the wrong one or not at all, or a string does not end.
    """
    text = source.text
    flat = _FLAT[text[start]].match(text, start)
    if flat is not None:
        return flat.end()
    stack = [start]
    position = start + 1
    while True:
        match = _GROUP_STEP.match(text, position)
        assert match is not None  # the alternatives cover every character and the end
        position = match.end()
        kind = match.lastindex
        if kind == 1:
            stack.append(position - 1)
        elif kind == 2:
            opener = stack.pop()
            if text[position - 1] != CLOSER[text[opener]]:
                unbalanced(source, position - 1, opener)
            if not stack:
                return position
        elif kind == 5:
            unclosed(source, stack[-1])
        elif kind == 6:
            unexpected(source, position - 1)


def unbalanced(source: Source, offset: int, opener: int) -> NoReturn:
    """Raises the error for a closing bracket that does not fit the one still open."""
    text = source.text
    line, column = source.line_and_column(opener)
    source.error(
        offset,
        f"expected '{CLOSER[text[opener]]}', found '{text[offset]}'",
        f"to match this '{text[opener]}' at {source.filename}:{line}:{column}",
    )


def unclosed(source: Source, opener: int) -> NoReturn:
    """Raises the error for a bracket that is never closed."""
    bracket = source.text[opener]
    source.error(opener, f"expected '{CLOSER[bracket]}' to match this '{bracket}', found the end")


def unexpected(source: Source, offset: int) -> NoReturn:
    """Raises the error for a character that starts no token."""
    character = source.text[offset]
    if character == '"':
        source.error(offset, "expected '\"' at the end of this string on the same line")
    if character == "%":
        source.error(offset, "expected the name of an SSA value behind '%'")
    if character == "^":
        source.error(offset, "expected the name of a block behind '^'")
    if character == BYTE_ORDER_MARK:
        source.error(
            offset,
            "unexpected byte order mark (U+FEFF)",
            "save the file as UTF-8 without one: MLIR does not read it either",
        )
    source.error(offset, f"unexpected character {character!r}")
