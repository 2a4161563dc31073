"""Texts of modules: split a file, leave out comments or locations, write aliases out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from triton_ext.ir import Module

__all__ = ["expand_aliases", "split", "without_comments", "without_locations"]

_STRING = r'"(?:[^"\\\n]|\\.)*"'
# A comment, or a string that may hold what looks like one.
_STRING_OR_COMMENT = re.compile(_STRING + r"|//[^\n]*")
_LOCATION = re.compile(_STRING + r"|//[^\n]*|[ \t]*(?<![\w.$-])loc\(")
_LOCATION_ALIAS = re.compile(r"^#loc[\w$.-]* = loc\(.*\)[ \t]*\n?", re.MULTILINE)
_BRACKET = re.compile(_STRING + r"|[()]")
_ALIAS = re.compile(_STRING + r"|//[^\n]*|(?<![\w$.%@-])[#!][A-Za-z_][\w$.-]*")


def split(text: str, marker: str) -> list[tuple[int, str]]:
    """Returns the parts of a file with the number of lines in front of each.

    A marker stands at the start of a line; the rest of its line belongs to nobody.
    """
    pattern = re.compile(rf"^{re.escape(marker)}[^\n]*\n?", re.MULTILINE)
    parts, start = [], 0
    for match in [*pattern.finditer(text), None]:
        end = len(text) if match is None else match.start()
        parts.append((text.count("\n", 0, start), text[start:end]))
        start = end if match is None else match.end()
    return parts


def without_comments(text: str) -> str:
    """Takes out comments, with the line of those that have one to themselves."""

    def keep_strings(match: re.Match[str]) -> str:
        return match[0] if match[0][0] == '"' else ""

    lines = []
    for line in text.splitlines(keepends=True):
        kept = _STRING_OR_COMMENT.sub(keep_strings, line) if "//" in line else line
        if kept is line:
            lines.append(line)
        elif kept.strip():
            lines.append(kept.rstrip() + "\n")
    return "".join(lines)


def without_locations(text: str) -> str:
    """Takes out the locations of operations and arguments, and their aliases."""
    if "loc" not in text:
        return text
    text = _LOCATION_ALIAS.sub("", text)
    kept: list[str] = []
    position = 0
    while True:
        match = _LOCATION.search(text, position)
        if match is None:
            break
        end = match.end()
        if text[match.start()] in '"/' or text[: match.start()].endswith(("=", "= ")):
            # A string, a comment, or an attribute whose value is a location.
            kept.append(text[position:end])
        else:
            kept.append(text[position : match.start()])
            end = _closing(text, end)
        position = end
    kept.append(text[position:])
    return "".join(kept)


def expand_aliases(module: Module) -> str:
    """Returns the text of a module with what the aliases stand for in their places."""
    expanded: dict[str, str] = {}
    text = str(module)
    for name, raw in module.aliases.items():
        definition = re.compile(
            rf"^{re.escape(name)}[ \t]*=[ \t]*{re.escape(raw)}[ \t]*\n?", re.MULTILINE
        )
        text = definition.sub("", text, count=1)
        expanded[name] = raw
    return _expand(text, expanded, ())


def _expand(text: str, aliases: Mapping[str, str], inside: tuple[str, ...]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[0]
        raw = aliases.get(name)
        if raw is None or name in inside:
            return name
        # #loc1 = loc("x":1:2) stands for what is inside.
        peeled = raw[4:-1] if raw.startswith("loc(") and raw.endswith(")") else raw
        return _expand(peeled, aliases, (*inside, name))

    return _ALIAS.sub(one, text)


def _closing(text: str, position: int) -> int:
    """The end of a group whose opening parenthesis stands in front of ``position``."""
    depth = 1
    for match in _BRACKET.finditer(text, position):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)
