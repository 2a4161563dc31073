"""Tokens of LLVM's textual IR (LLVM Language Reference, "Identifiers" and "High Level Structure").

Only what tells one operand from the next is distinguished: names, strings, brackets, commas and
everything else that hangs together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..errors import ParseError

__all__ = ["CLOSING", "OPENING", "Token", "TokenKind", "group_end", "split_commas", "tokenize"]

OPENING: Final = "([{<"
CLOSING: Final = ")]}>"


class TokenKind(Enum):
    """Kinds of tokens."""

    LOCAL = "local name"
    GLOBAL = "global name"
    METADATA = "metadata"
    STRING = "string"
    NUMBER = "number"
    WORD = "word"
    PUNCTUATION = "punctuation"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and where it stands in the text it was read from.

    Attributes:
        kind: The token's kind.
        text: Its characters, quotes and sigils included.
        start: Offset of the first one.
    """

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset behind the last character."""
        return self.start + len(self.text)


_NAME = r'(?:"[^"]*"|[-a-zA-Z$._0-9]+)'
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+|;[^\n]*)
    |(?P<local>%{_NAME})
    |(?P<global>@{_NAME})
    |(?P<metadata>![-a-zA-Z$._0-9\\]*|\#[-a-zA-Z$._0-9]+)
    |(?P<string>c?"[^"]*")
    |(?P<number>[-+]?[0-9][-+.0-9a-zA-Z]*)
    |(?P<word>\.\.\.|[-a-zA-Z$._][-a-zA-Z$._0-9]*)
    |(?P<punctuation>[,=(){{}}\[\]<>*|:^])""",
    re.VERBOSE,
)
_KINDS: Final = {kind.name.lower(): kind for kind in TokenKind}


def tokenize(text: str, first_line: int = 1) -> list[Token]:
    """Returns the tokens of a text without spaces and comments.

    Args:
        text: The text, from the start of a line on.
        first_line: The number of that line in errors.

    Raises:
        ParseError: A character begins no token.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _error(text, position, first_line)
        group = match.lastgroup
        if group is not None and group != "space":
            tokens.append(Token(_KINDS[group], match[0], position))
        position = match.end()
    return tokens


def _error(text: str, position: int, first_line: int) -> ParseError:
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    found = text[position]
    return ParseError(
        "this string has no end"
        if found == '"'
        else f"expected a token of LLVM IR, found {found!r}",
        filename="<llvm>",
        line=text.count("\n", 0, position) + first_line,
        column=position - line_start + 1,
        source_line=text[line_start : line_end if line_end >= 0 else len(text)],
    )


def group_end(tokens: list[Token], index: int) -> int:
    """Returns the index behind the bracket that closes the one at ``index``; -1 for none."""
    depth = 0
    for i in range(index, len(tokens)):
        text = tokens[i].text
        if text in OPENING:
            depth += 1
        elif text in CLOSING:
            depth -= 1
            if depth == 0:
                return i + 1
    return -1


def split_commas(tokens: list[Token]) -> list[list[Token]]:
    """Splits where a comma stands outside of brackets; no tokens give no parts."""
    if not tokens:
        return []
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.text in OPENING:
            depth += 1
        elif token.text in CLOSING:
            depth -= 1
        elif token.text == "," and depth == 0:
            parts.append([])
            continue
        parts[-1].append(token)
    return parts
