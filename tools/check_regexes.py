"""Finds regular expressions that may backtrack for cubic time or longer.

``python tools/check_regexes.py`` analyses each pattern with regexploit.  The patterns are the first
arguments of calls of :mod:`re` in the sources of the package and of the tools: literals, sums,
f-strings and names of module-level strings.  An unknown part counts as one letter.

Not found: patterns that reach :mod:`re` through a parameter, and quadratic time.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from environment import ROOT, say

with warnings.catch_warnings():
    # regexploit imports sre_parse, which Python keeps under another name since 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from regexploit.ast.sre import SreOpParser
    from regexploit.redos import find

_FOLDERS = ("python", "third_party", "tools")
# Stars that may repeat the same characters: 2 of them are quadratic.
_ALLOWED_STARS = 2
# Above this regexploit means a star within a star.
_EXPONENTIAL = 10
# A pattern that ends with the alternatives of any character and of the end always matches, so it
# never goes back.
_ALWAYS_MATCHES = re.compile(r"\(\\Z\)\s?\|\s?\(\.\)\s?\)\Z")
_FUNCTIONS = {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression of a source file.

    Attributes:
        line: Its line, from 1.
        text: The pattern.
        flags: Flags of :mod:`re`.
    """

    line: int
    text: str
    flags: int = 0


def patterns_of(source: str) -> Iterator[Pattern]:
    """Yields the regular expressions of a Python source."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _text(value, names)
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=function), args=[first, *others]
            ) if function in _FUNCTIONS:
                options = [*others, *(keyword.value for keyword in node.keywords)]
                flags = sum(_flags(option) for option in options)
                yield Pattern(node.lineno, _text(first, names), flags)


def problem_of(pattern: Pattern) -> str | None:
    """Returns why a pattern may take cubic time or longer, ``None`` where it does not."""
    if _ALWAYS_MATCHES.search(pattern.text):
        return None
    try:
        found = list(find(SreOpParser().parse_sre(pattern.text, pattern.flags)))
    except (re.error, AttributeError) as error:
        return f"not analysed: {error}"
    worst = max(found, key=lambda each: each.starriness, default=None)
    if worst is None or worst.starriness <= _ALLOWED_STARS:
        return None
    growth = "exponential" if worst.starriness > _EXPONENTIAL else f"degree {worst.starriness}"
    return f"{growth} time for many of {worst.repeated_character}"


def _text(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the text of an expression, with one letter for each unknown part."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("latin-1")
        case ast.Name(id=name):
            return names.get(name, "x")
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
    return "x"


def _flags(node: ast.expr) -> int:
    match node:
        case ast.Attribute(value=ast.Name(id="re"), attr=name):
            return int(getattr(re, name))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _flags(left) | _flags(right)
    return 0


def main() -> int:
    """Checks all sources; returns the exit status."""
    count = failed = 0
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for pattern in patterns_of(path.read_text(encoding="utf-8")):
                count += 1
                problem = problem_of(pattern)
                if problem is not None:
                    failed += 1
                    place = f"{path.relative_to(ROOT)}:{pattern.line}"
                    say(f"{place}: error: {problem}: {pattern.text!r}")
    say(f"regular expressions: {count} checked, {failed} refused")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
