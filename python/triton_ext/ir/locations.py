"""Source locations as MLIR prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ParseError
from ..strings import SKIPPED_STRING, STRING_BODY, unquote
from .lexer import Source, find_group_end

__all__ = ["Location"]

_STRING = f'"({STRING_BODY})"'
_FILE = re.compile(_STRING + r"\s*:\s*(\d{1,9})\s*:\s*(\d{1,9})")
_NAME = re.compile(_STRING + r"\s*(\(?)")
_ALIAS = re.compile(r"#[A-Za-z0-9_$.-]+")
#: Tokens before the first position in a text: a position, a name, an alias, metadata.
_STEP = re.compile(rf"{_FILE.pattern}|{SKIPPED_STRING}|({_ALIAS.pattern})|(fused)\s*(?=<)|//[^\n]*")
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Location:
    """A location.

    Attributes:
        raw: The text as printed, ``loc(#loc3)`` or its contents.
    """

    raw: str
    _aliases: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def resolve(self) -> tuple[str, int, int] | None:
        """Returns file name, line and column of the innermost user source position.

        Follows aliases and names; takes the callee of a call site, and the first known one of fused
        locations.

        Returns:
            ``None`` for an unknown location.
        """
        # In every kind of location the first candidate comes first in the text.
        stack = [(self.raw, 0)]
        seen: set[str] = set()
        while stack:
            text, position = stack.pop()
            step = _STEP.search(text, position)
            if step is None:
                continue
            if step[2] is not None:
                return _unescape(step[1]), int(step[2]), int(step[3])
            end: int | None = step.end()
            if step[5] is not None:
                end = _end_of_group(text, step.end())
            if end is not None:
                stack.append((text, end))
            alias = step[4]
            if alias is not None and alias not in seen:
                seen.add(alias)
                stack.append((self._aliases.get(alias, ""), 0))
        return None

    @property
    def name(self) -> str | None:
        """The name of a name location, such as a variable's; ``None`` for other kinds."""
        text = self._peel(self.raw)
        match = _NAME.match(text)
        if match is None or _FILE.match(text) is not None:
            return None
        return _unescape(match[1])

    @property
    def callers(self) -> tuple[Location, ...]:
        """Returns the call sites into which the innermost position was inlined, nearest first."""
        found: list[Location] = []
        self._collect_callers(self.raw, set(), found)
        return tuple(found)

    def _collect_callers(self, raw: str, seen: set[str], found: list[Location]) -> None:
        """Appends the callers of a location, the nearest first."""
        chain: list[str] = []
        text = self._peel(raw)
        while text not in seen and len(seen) < _MAX_DEPTH:
            seen.add(text)
            if text.startswith("callsite("):
                text, caller = _split_callsite(text)
                chain.append(caller)
            else:
                parts = self._parts(text) if _FILE.match(text) is None else []
                if not parts:
                    break
                text = parts[0]
            text = self._peel(text)
        # The callee may itself have been inlined: its callers are nearer.
        for caller in reversed(chain):
            found.append(Location(caller, self._aliases))
            self._collect_callers(caller, seen, found)

    def _peel(self, text: str) -> str:
        """Removes ``loc(...)`` and follows aliases."""
        for _ in range(_MAX_DEPTH):
            text = text.strip()
            if text.startswith("loc(") and text.endswith(")"):
                text = text[4:-1]
            elif _ALIAS.fullmatch(text):
                text = self._aliases.get(text, "unknown")
            else:
                return text
        return "unknown"

    def _parts(self, text: str) -> list[str]:
        """Returns the direct parts of a composite location, the most specific first."""
        if text.startswith("callsite("):
            return list(_split_callsite(text))
        if text.startswith("fused"):
            inner = text[len("fused") :].lstrip()
            if inner.startswith("<"):
                end = _end_of_group(inner, 0)
                if end is None:
                    return []
                inner = inner[end:].lstrip()
            return _split_list(inner[1 : inner.rfind("]")]) if inner.startswith("[") else []
        match = _NAME.match(text)
        if match is not None and match[2]:
            return [text[match.end() : text.rfind(")")]]
        return []


def _end_of_group(text: str, start: int) -> int | None:
    """Returns the offset after a group; ``None`` if it does not end."""
    try:
        return find_group_end(Source(text), start)
    except ParseError:
        return None


def _split_callsite(text: str) -> tuple[str, str]:
    """Returns callee and caller of ``callsite(callee at caller)``."""
    inner = text[len("callsite(") : text.rfind(")")]
    parts = _split(inner, re.compile(r"(?<!\s)\s+at\s+"))
    return parts[0], parts[1] if len(parts) > 1 else "unknown"


def _split_list(text: str) -> list[str]:
    return _split(text, re.compile(r","))


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Splits at separators outside of brackets and strings."""
    step = re.compile(
        SKIPPED_STRING + r"|//[^\n]*|[(\[<{]|[)\]>}]|" + separator.pattern
    )  # pattern: ours
    parts, depth, start = [], 0, 0
    for match in step.finditer(text):
        token = match[0]
        if token in "([<{":
            depth += 1
        elif token in ")]>}":
            depth -= 1
        elif depth == 0 and token[0] not in '"/':
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return parts


def _unescape(text: str) -> str:
    return unquote(f'"{text}"') if "\\" in text else text
