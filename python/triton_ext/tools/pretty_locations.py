"""Locations as ``--mlir-pretty-debuginfo`` prints them: short, for reading only.

``loc("kernel.py":3:7)`` becomes ``kernel.py:3:7``; call sites and fused locations follow
``printLocationInternal`` of MLIR's ``AsmPrinter.cpp``.  An alias is written out where a whole
location is one and stays a name inside of another location; its definition becomes short as well.
A location of a kind that is not known, or nested too deep, stays as it was.

Each alias is read once, also one that cannot be read: time grows in proportion to the text and to
what is written out.
"""

from __future__ import annotations

import re

from triton_ext.errors import ParseError
from triton_ext.ir.lexer import Source, find_group_end
from triton_ext.strings import SKIPPED_STRING, STRING, unquote
from triton_ext.tools.ir_text import MAX_EXPANDED

__all__ = ["with_pretty_locations"]

_OUTSIDE = re.compile(SKIPPED_STRING + r"|//[^\n]*|(?<![\w.$-])loc\(")
_DEFINITION = re.compile(r"^(#[\w$.-]+)[ \t]*=[ \t]*loc\(", re.MULTILINE)
_FILE = re.compile(rf"({STRING})\s*:\s*(\d+)\s*:\s*(\d+)(?:\s+to\s+(\d*)\s*:\s*(\d+))?")
_NAME = re.compile(rf"({STRING})\s*(\(?)\s*")
_ALIAS = re.compile(r"#[\w$.-]+")
_WORD = re.compile(r"unknown\b|callsite\s*\(\s*|fused\s*(?=[<\[])")
_AT = re.compile(r"\s*at\s+")
_COMMA = re.compile(r"\s*,\s*")
_OPEN_LIST = re.compile(r"\s*\[\s*")
_CLOSE = re.compile(r"\s*[)\]]")
# Deeper than anything that was inlined, and what Python can do.
_MAX_DEPTH = 200


class _Unreadable(Exception):
    """A location of a kind that is not known."""


def with_pretty_locations(text: str) -> str:
    """Returns the text of a module with its locations in the short form.

    Args:
        text: A module printed with locations.

    Raises:
        ParseError: Its locations would be longer than :data:`MAX_EXPANDED` together.
    """
    aliases = _Aliases(text)
    pieces, position, left = [], 0, MAX_EXPANDED
    known: dict[str, str] = {}
    while (found := _OUTSIDE.search(text, position)) is not None:
        end = found.end()
        short = text[found.start() : end]
        if short == "loc(":
            end = _closing(text, found.end())
            if end == found.end():
                break  # No module; what is behind it would be searched again and again.
            whole = text[found.start() : end]
            if whole not in known:
                known[whole] = aliases.short(text[found.end() : end - 1]) or whole
            short = known[whole]
            left -= len(short)
            if left < 0:
                Source(text).error(
                    found.start(),
                    f"locations written out take more than {MAX_EXPANDED} characters",
                    "leave out --mlir-pretty-debuginfo",
                )
        pieces += [text[position : found.start()], short]
        position = end
    return "".join([*pieces, text[position:]])


def _closing(text: str, inside: int) -> int:
    """The offset behind the end of the group that is open at ``inside``; that where none is."""
    try:
        return find_group_end(Source(text), inside - 1)
    except ParseError:
        return inside


class _Aliases:
    """The aliases of locations in a module, each of which is read once.

    Args:
        text: The module.
    """

    def __init__(self, text: str) -> None:
        self._values: dict[str, str] = {}
        self._shorts: dict[str, str | None] = {}
        self._kinds: dict[str, str] = {}
        position = 0
        while (match := _DEFINITION.search(text, position)) is not None:
            position = _closing(text, match.end())
            if position == match.end():
                break
            self._values[match[1]] = text[match.end() : position - 1].strip()

    def short(self, inner: str) -> str | None:
        """Returns the short form of what stands in ``loc(...)``; ``None`` if it is unreadable."""
        key = inner = inner.strip()
        for _ in range(_MAX_DEPTH):
            if inner not in self._values:
                break
            key, inner = inner, self._values[inner]
        if key not in self._shorts:
            self._shorts[key] = self._read(inner)
        return self._shorts[key]

    def kind(self, name: str) -> str:
        """Returns the kind of the location behind an alias, as :func:`_kind` does."""
        if name not in self._kinds:
            self._kinds[name] = _kind(self._values.get(name, ""), 0)
        return self._kinds[name]

    def _read(self, inner: str) -> str | None:
        try:
            short, end = _Reader(inner, self).read(0, 0)
        except _Unreadable:
            return None
        return short if end == len(inner) else None


def _kind(text: str, position: int) -> str:
    """Returns ``file`` or ``name`` for a location of that kind at an offset, else nothing."""
    if _FILE.match(text, position):
        return "file"
    return "name" if _NAME.match(text, position) else ""


class _Reader:
    """Reads a location and writes its short form.

    Args:
        text: The location.
        aliases: The aliases in it.
    """

    def __init__(self, text: str, aliases: _Aliases) -> None:
        self._text = text
        self._aliases = aliases

    def read(self, position: int, depth: int) -> tuple[str, int]:
        """The short form of the location at an offset, and the offset behind it.

        Raises:
            _Unreadable: It is of no known kind, or nested too deep.
        """
        text = self._text
        if depth > _MAX_DEPTH:
            raise _Unreadable
        if match := _FILE.match(text, position):
            name, line, column, last_line, last_column = match.groups()
            to = "" if last_column is None else f" to {last_line}:{last_column}"
            return f"{unquote(name)}:{line}:{column}{to}", match.end()
        if match := _NAME.match(text, position):
            if not match[2]:
                return match[1], match.start(2)
            child, end = self.read(match.end(), depth + 1)
            shown = "" if child == "[unknown]" else f"({child})"
            return match[1] + shown, self._past(_CLOSE, end)
        if match := _ALIAS.match(text, position):
            return match[0], match.end()
        match = _WORD.match(text, position)
        if match is None:
            raise _Unreadable
        if match[0] == "unknown":
            return "[unknown]", match.end()
        if match[0].startswith("callsite"):
            return self._call_site(match.end(), depth)
        return self._fused(match.end(), depth)

    def _call_site(self, position: int, depth: int) -> tuple[str, int]:
        callee, end = self.read(position, depth + 1)
        start = self._past(_AT, end)
        caller, after = self.read(start, depth + 1)
        # Only a name at a place in a file stands on one line.
        on_one_line = (self._kind(position), self._kind(start)) == ("name", "file")
        separator = " at " if on_one_line else "\n at "
        return f"{callee}{separator}{caller}", self._past(_CLOSE, after)

    def _fused(self, position: int, depth: int) -> tuple[str, int]:
        text, metadata = self._text, ""
        if text.startswith("<", position):
            try:
                end = find_group_end(Source(text), position)
            except ParseError as error:
                raise _Unreadable from error
            metadata, position = text[position:end], end
        position = self._past(_OPEN_LIST, position)
        parts: list[str] = []
        while True:
            part, end = self.read(position, depth + 1)
            parts.append(part)
            comma = _COMMA.match(text, end)
            if comma is None:
                return f"{metadata}[{', '.join(parts)}]", self._past(_CLOSE, end)
            position = comma.end()

    def _past(self, pattern: re.Pattern[str], position: int) -> int:
        match = pattern.match(self._text, position)
        if match is None:
            raise _Unreadable
        return match.end()

    def _kind(self, position: int) -> str:
        """Returns the kind of a location, or of the one behind its alias, as :func:`_kind` does."""
        alias = _ALIAS.match(self._text, position)
        return _kind(self._text, position) if alias is None else self._aliases.kind(alias[0])
