"""Finds regular expressions that may backtrack for cubic time or longer.

``python tools/check_regexes.py`` analyses each pattern with regexploit.  The patterns are the first
arguments of calls of :mod:`re` in the sources of the package and of the tools: literals, sums,
f-strings, joined lists, and constants of modules, imported ones too.  A conditional expression
gives one pattern for each arm.  A part that is known at run time alone counts as one letter.

Not found: patterns that reach :mod:`re` through a parameter, and quadratic time.
"""

from __future__ import annotations

import ast
import functools
import itertools
import pathlib
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
# Folders of sources, and the packages that they are; the first that fits counts.
_PACKAGES = (
    ("third_party/nvidia", "triton_ext.backends.nvidia"),
    ("third_party/amd", "triton_ext.backends.amd"),
    ("python", ""),
    ("tools", ""),
)
# A part of a pattern that is known at run time alone.
_UNKNOWN = "x"
# Patterns of one expression with conditionals in it.
_MOST_ARMS = 64
# Stars that may repeat the same characters: 2 of them are quadratic.
_ALLOWED_STARS = 2
# Above this regexploit means a star within a star.
_EXPONENTIAL = 10
# A pattern that ends with the alternatives of any character and of the end always matches, so it
# never goes back.
_ALWAYS_MATCHES = re.compile(r"\(\\Z\)\s?\|\s?\(\.\)\s?\)\Z")
_FUNCTIONS = {"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub"}


class _Parser(SreOpParser):  # type: ignore[misc]
    """Takes a repetition that never goes back for one that may: the safe side."""

    def from_POSSESSIVE_REPEAT(self, data: object) -> object:
        return self.from_MAX_REPEAT(data)


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


class _Module:
    """A source file, whose constants may be parts of patterns.

    Args:
        source: Its text.
        name: Its dotted name, from which relative imports start.
        is_package: Whether it is an ``__init__.py``.
    """

    def __init__(self, source: str, name: str = "", is_package: bool = False) -> None:
        self.tree = ast.parse(source)
        self._constants: dict[str, ast.expr] = {}
        # Names that are imported: the module, and the name there, empty for the module itself.
        self._imports: dict[str, tuple[str, str]] = {}
        self._names: list[str] = []
        package = name.split(".") if is_package else name.split(".")[:-1]
        for statement in self.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    self._constants[target] = value
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                    self._constants[target] = value
                case ast.Import(names=aliases):
                    for alias in aliases:
                        if alias.asname or "." not in alias.name:
                            self._imports[alias.asname or alias.name] = alias.name, ""
                case ast.ImportFrom(module=origin, names=aliases, level=level):
                    start = package[: len(package) - level + 1] if level else []
                    parts = [*start, *([origin] if origin else [])]
                    for alias in aliases:
                        self._imports[alias.asname or alias.name] = ".".join(parts), alias.name

    def texts(self, node: ast.expr) -> tuple[str, ...]:
        """Returns the texts that an expression may have, with one letter for an unknown part."""
        match node:
            case ast.Constant(value=str(text)):
                return (text,)
            case ast.Constant(value=bytes(data)):
                return (data.decode("latin-1"),)
            case ast.Name(id=name):
                return self.constant(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                if attribute == "pattern" and name in self._constants:
                    return self.constant(name)
                other = _module(".".join(filter(None, self._imports.get(name, ()))))
                return (_UNKNOWN,) if other is None else other.constant(attribute)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="compile"), args=args):
                return self.texts(args[0])
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join")):
                return self._joined(node.args[0], glue)
            case ast.JoinedStr(values=parts):
                return self._sums(parts)
            case ast.FormattedValue(value=value):
                return self.texts(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._sums([left, right])
            case ast.IfExp(body=body, orelse=other_arm):
                return tuple(dict.fromkeys(self.texts(body) + self.texts(other_arm)))
        return (_UNKNOWN,)

    def constant(self, name: str) -> tuple[str, ...]:
        """Returns the texts that a name of this module may stand for."""
        if name in self._names:  # It is defined by itself.
            return (_UNKNOWN,)
        self._names.append(name)
        try:
            if name in self._constants:
                return self.texts(self._constants[name])
            origin, there = self._imports.get(name, ("", ""))
            other = _module(origin)
            return (_UNKNOWN,) if other is None or not there else other.constant(there)
        finally:
            self._names.pop()

    def _sums(self, parts: list[ast.expr]) -> tuple[str, ...]:
        made = itertools.product(*map(self.texts, parts))
        return tuple(dict.fromkeys("".join(each) for each in itertools.islice(made, _MOST_ARMS)))

    def _joined(self, node: ast.expr, glue: str) -> tuple[str, ...]:
        match node:
            case ast.Name(id=name) if name in self._constants:
                return self._joined(self._constants[name], glue)
            case ast.Name(id=name) if other := _module(self._imports.get(name, ("", ""))[0]):
                return other._joined(ast.Name(self._imports[name][1]), glue)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) if parts:
                glued = [each for part in parts for each in (ast.Constant(glue), part)]
                return self._sums(glued[1:])
        return (_UNKNOWN,)


@functools.cache
def _module(name: str) -> _Module | None:
    """Reads a module of the package or of the tools; returns ``None`` for others."""
    for folder, package in _PACKAGES:
        if name != package and package and not name.startswith(f"{package}."):
            continue
        rest = name[len(package) :].strip(".").split(".")
        stem = ROOT.joinpath(folder, *rest)
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if name and path.is_file():
                is_package = path.name == "__init__.py"
                return _Module(path.read_text(encoding="utf-8"), name, is_package)
    return None


def _name_of(path: pathlib.Path) -> str:
    """Returns the dotted name of a source file."""
    for folder, package in _PACKAGES:
        if path.is_relative_to(ROOT / folder):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            return ".".join([*filter(None, [package]), *parts]).removesuffix(".__init__")
    return ""


def patterns_of(source: str, path: pathlib.Path | None = None) -> Iterator[Pattern]:
    """Yields the regular expressions of a Python source.

    Args:
        source: Its text.
        path: Its file, for its relative imports.
    """
    is_package = path is not None and path.name == "__init__.py"
    module = _Module(source, "" if path is None else _name_of(path), is_package)
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=function), args=[first, *others]
            ) if function in _FUNCTIONS:
                options = [*others, *(keyword.value for keyword in node.keywords)]
                flags = sum(_flags(option) for option in options)
                for text in module.texts(first):
                    yield Pattern(node.lineno, text, flags)


def problem_of(pattern: Pattern) -> str | None:
    """Returns why a pattern may take cubic time or longer, ``None`` where it does not."""
    if _ALWAYS_MATCHES.search(pattern.text):
        return None
    try:
        found = list(find(_Parser().parse_sre(pattern.text, pattern.flags)))
    except (re.error, AttributeError) as error:
        if sys.version_info < (3, 11) and "multiple repeat" in str(error):
            return None  # The arm of a newer Python.
        return f"not analysed: {error}"
    worst = max(found, key=lambda each: each.starriness, default=None)
    if worst is None or worst.starriness <= _ALLOWED_STARS:
        return None
    growth = "exponential" if worst.starriness > _EXPONENTIAL else f"degree {worst.starriness}"
    return f"{growth} time for many of {worst.repeated_character}"


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
            for pattern in patterns_of(path.read_text(encoding="utf-8"), path):
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
