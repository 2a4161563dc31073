"""Texts of modules: split a file, leave out comments or locations, write aliases out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from triton_ext.errors import UnsupportedError
from triton_ext.ir import Module, Operation
from triton_ext.ir.lexer import Source
from triton_ext.ir.segments import AttributesSlot, RegionSlot, cut
from triton_ext.strings import SKIPPED_STRING, lines_of

__all__ = [
    "expand_aliases",
    "normalize",
    "split",
    "with_names_of",
    "with_types_in_line",
    "without_comments",
    "without_locations",
]

#: The most characters that a module with its aliases written out, or all of them, may have.
MAX_EXPANDED = 64 << 20

_IMPLY_TERMINATORS = frozenset({"scf.for", "scf.if"})
_PROPERTIES = {"tt.reduce": ("axis",), "tt.scan": ("axis", "reverse")}
# A comment, or a string that may hold what looks like one.
STRING_OR_COMMENT = re.compile(SKIPPED_STRING + r"|//[^\n]*")
_LOCATION = re.compile(SKIPPED_STRING + r"|//[^\n]*|(?<![ \t])[ \t]*(?<![\w.$-])loc\(")
_LOCATION_ALIAS = re.compile(r"^#loc[\w$.-]* = loc\(.*\)[ \t]*\n?", re.MULTILINE)
_DEFINITION = re.compile(r"^([#!][\w.$-]+)[ \t]*=[ \t]*", re.MULTILINE)
# MLIR prints no line that begins so; a string has no end of a line in it.
_TYPES_ON_A_LINE = re.compile(r"(?<=\S)[ \t]*\n[ \t]*(?=(?::|->) )")
_REST_OF_LINE = re.compile(r"[ \t]*\n?")
_VALUE = re.compile(SKIPPED_STRING + r"|//[^\n]*|%[\w$.-]+")
_BRACKET = re.compile(SKIPPED_STRING + r"|//[^\n]*|[()]")
_ALIAS = re.compile(SKIPPED_STRING + r"|//[^\n]*|(?<![\w$.%@-])[#!][A-Za-z_][\w$.-]*")


def split(text: str, marker: str) -> list[tuple[int, str]]:
    """Returns the parts of a file with the number of lines in front of each.

    A marker stands at the start of a line; the rest of its line belongs to nobody.
    """
    pattern = re.compile(rf"^{re.escape(marker)}[^\n]*\n?", re.MULTILINE)
    parts, start, first_line = [], 0, 0
    for match in [*pattern.finditer(text), None]:
        end = len(text) if match is None else match.start()
        parts.append((first_line, text[start:end]))
        behind = end if match is None else match.end()
        first_line += text.count("\n", start, behind)
        start = behind
    return parts


def without_comments(text: str) -> str:
    """Takes out comments and the lines that are empty without them."""

    def keep_strings(match: re.Match[str]) -> str:
        return match[0] if match[0][0] == '"' else ""

    lines = []
    for line in lines_of(text, keep_ends=True):
        kept = STRING_OR_COMMENT.sub(keep_strings, line) if "//" in line else line
        if kept is line:
            lines += [line] if line.strip() else []
        elif kept.strip():
            lines.append(kept.rstrip() + "\n")
    return "".join(lines)


def with_types_in_line(text: str) -> str:
    """Puts the types of an operation that stand on a line of their own where MLIR prints them."""
    return _TYPES_ON_A_LINE.sub(" ", text)


def normalize(module: Module) -> None:
    """Rewrites what people may write in forms that MLIR does not print.

    1. The terminators of ``scf.if`` and ``scf.for`` without results, which have no operands, are
       not printed.
    2. Properties of the operations without a custom form come before the regions.
    """
    for op in list(module.op.walk()):
        if op.name == "scf.yield" and not op.operands and op.parent_op is not None:
            if op.parent_op.name in _IMPLY_TERMINATORS and not op.parent_op.is_quoted:
                op.erase()
        elif op.name in _PROPERTIES and op.is_quoted and op.regions:
            _move_properties(op)


def _move_properties(op: Operation) -> None:
    segments = cut(op)
    at = next(i for i, segment in enumerate(segments) if isinstance(segment, RegionSlot)) - 1
    opener = segments[at]
    found = {name: op.attributes[name] for name in _PROPERTIES[op.name] if name in op.attributes}
    if not found or not isinstance(opener, str) or any(_opens(each) for each in segments[: at + 1]):
        return
    for name in found:
        op.remove_attribute(name)
    for number, segment in enumerate(segments[:-1]):
        behind = segments[number + 1]
        if isinstance(segment, AttributesSlot) and not segment.text and isinstance(behind, str):
            segments[number + 1] = behind.removeprefix(" ")
    front, _, rest = opener.rpartition("(")
    listed = ", ".join(f"{name} = {text}" for name, text in found.items())
    segments[at] = f"{front}<{{{listed}}}> ({rest}"


def _opens(segment: object) -> bool:
    """Returns whether a piece of text opens a dictionary of properties."""
    return isinstance(segment, AttributesSlot) or (isinstance(segment, str) and "<{" in segment)


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
        if text[match.start()] in '"/' or text.endswith(("=", "= "), 0, match.start()):
            # A string, a comment, or an attribute whose value is a location.
            kept.append(text[position:end])
        else:
            kept.append(text[position : match.start()])
            end = _closing(text, end)
        position = end
    kept.append(text[position:])
    return "".join(kept)


def with_names_of(text: str, other: str) -> str:
    """Returns a text with its values named as in another text of the same module.

    Raises:
        UnsupportedError: They do not mention as many values.
    """
    names = [m[0] for m in _VALUE.finditer(other) if m[0][0] == "%"]
    found = [m for m in _VALUE.finditer(text) if m[0][0] == "%"]
    if len(names) != len(found):
        raise UnsupportedError(
            f"Triton prints {len(found)} mentions of values with locations and {len(names)} "
            "without: expected as many, to name the ones as the others; "
            "-mlir-use-nameloc-as-prefix keeps the names of locations"
        )
    pieces, position = [], 0
    for match, name in zip(found, names, strict=True):
        pieces += [text[position : match.start()], name]
        position = match.end()
    return "".join([*pieces, text[position:]])


def expand_aliases(module: Module) -> str:
    """Returns the text of a module with what the aliases stand for in their places.

    An alias that stands for itself stays inside of itself.

    Raises:
        ParseError: The text would be longer than :data:`MAX_EXPANDED`; the error points at the
            alias.
    """
    source = Source(str(module), module.source.filename)
    text = source.text
    pieces, position, offsets = [], 0, dict[str, int]()
    for match in _DEFINITION.finditer(text):
        name, raw = match[1], module.aliases.get(match[1])
        if raw is None or name in offsets or not text.startswith(raw, match.end()):
            continue
        end = _REST_OF_LINE.match(text, match.end() + len(raw))
        offsets[name] = match.start()
        pieces.append(text[position : match.start()])
        position = end.end() if end is not None else len(text)
    body = "".join([*pieces, text[position:]])
    return _Expansion(module.aliases, source, offsets).expand(body)


class _Expansion:
    """Aliases and what they stand for, each worked out once.

    Args:
        aliases: What each stands for in other aliases.
        source: The text, for errors.
        offsets: Where each is defined.
    """

    def __init__(
        self, aliases: Mapping[str, str], source: Source, offsets: Mapping[str, int]
    ) -> None:
        self._aliases = aliases
        self._source = source
        self._offsets = offsets
        self._done: dict[str, str] = {}
        self._budget = MAX_EXPANDED

    def expand(self, text: str) -> str:
        """Returns a text with all that its aliases stand for."""
        for match in _ALIAS.finditer(text):
            if match[0] in self._aliases:
                self._work_out(match[0])
        self._budget = MAX_EXPANDED
        return self._filled(text)

    def _work_out(self, name: str) -> None:
        """Works out an alias behind those that it names, without recursion."""
        stack = [name]
        begun: set[str] = set()
        while stack:
            top = stack[-1]
            raw = self._aliases[top]
            if top not in begun and top not in self._done:
                begun.add(top)
                stack += self._named(raw, begun)
            if stack[-1] != top:
                continue
            stack.pop()
            if top not in self._done:
                # #loc1 = loc("x":1:2) stands for what is inside.
                peeled = raw[4:-1] if raw.startswith("loc(") and raw.endswith(")") else raw
                self._done[top] = self._filled(peeled)

    def _named(self, raw: str, begun: set[str]) -> list[str]:
        """The aliases in a text that are still to be worked out, each once."""
        names = dict.fromkeys(match[0] for match in _ALIAS.finditer(raw))
        return [n for n in names if n in self._aliases and n not in self._done and n not in begun]

    def _filled(self, text: str) -> str:
        """Puts in what has been worked out."""
        pieces, position = [], 0
        for match in _ALIAS.finditer(text):
            found = self._done.get(match[0], match[0])
            pieces += [text[position : match.start()], found]
            position = match.end()
            self._spend(len(found), match[0])
        self._budget -= len(text)
        return "".join([*pieces, text[position:]])

    def _spend(self, size: int, name: str) -> None:
        self._budget -= size
        if self._budget < 0:
            self._source.error(
                self._offsets.get(name, 0),
                f"aliases written out take more than {MAX_EXPANDED} characters",
                "leave out --mlir-print-local-scope",
            )


def _closing(text: str, position: int) -> int:
    """The end of a group whose opening parenthesis stands in front of ``position``."""
    depth = 1
    for match in _BRACKET.finditer(text, position):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)
