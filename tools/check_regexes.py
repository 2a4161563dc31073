"""Finds regular expressions that may backtrack for cubic time or longer.

``python tools/check_regexes.py`` analyses each pattern with regexploit.  The patterns are the first
arguments, or those called ``pattern``, of calls of :mod:`re` in the sources of the package and of
the tools, whatever the module and its functions are imported as: literals, sums, f-strings, joined
lists, and constants of modules, imported ones too.  A conditional expression gives one pattern for
each arm.  What :func:`re.escape` returns counts as one letter.

A pattern with another part that is known at run time alone is refused, and so is one with too many
arms, and a function of :mod:`re` that is used without a call.  A comment ``# pattern: REASON`` on a
line of the call allows it.

Not found: a local variable of the name of a constant, :mod:`re` under a name that no import gives
it, and quadratic time.
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
_UNKNOWN = "\ue000"
# Patterns of one expression with conditionals in it.
_MOST_ARMS = 64
# Stars that may repeat the same characters: 2 of them are quadratic.
_ALLOWED_STARS = 2
# Above this regexploit means a star within a star.
_EXPONENTIAL = 10
# A pattern that ends with the alternatives of any character and of the end always matches, so it
# never goes back.
_ALWAYS_MATCHES = re.compile(r"\(\\Z\)\s?\|\s?\(\.\)\s?\)\Z")
_FUNCTIONS = frozenset(
    ("compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")
)
_ALLOWED = re.compile(r"# pattern: \S")


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
        problem: Why it is not known; empty if it is.
    """

    line: int
    text: str
    flags: int = 0
    problem: str = ""


class _Module:
    """A source file, whose constants may be parts of patterns.

    Args:
        source: Its text.
        name: Its dotted name, from which relative imports start.
        is_package: Whether it is an ``__init__.py``.
    """

    def __init__(self, source: str, name: str = "", is_package: bool = False) -> None:
        self.tree = ast.parse(source)
        # Names of the module ``re``, and of its functions with what they are there.
        self.re_names: set[str] = set()
        self.re_functions: dict[str, str] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    self.re_names |= {a.asname or a.name for a in aliases if a.name == "re"}
                case ast.ImportFrom(module="re", names=aliases, level=0):
                    self.re_functions |= {a.asname or a.name: a.name for a in aliases}
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
            case ast.Constant(value=int(number)):
                return (str(number),)
            case ast.Constant(value=bytes(data)):
                return (data.decode("latin-1"),)
            case ast.Name(id=name):
                return self.constant(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                if attribute == "pattern" and name in self._constants:
                    return self.constant(name)
                other = _module(".".join(filter(None, self._imports.get(name, ()))))
                return (_UNKNOWN,) if other is None else other.constant(attribute)
            case ast.Call(func=function, args=[first, *_]) if (
                called := self.function_of_re(function)
            ) in ("compile", "escape"):
                return self.texts(first) if called == "compile" else ("x",)
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

    def function_of_re(self, node: ast.expr) -> str:
        """Returns the name of the function of :mod:`re` that an expression is, else nothing."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self.re_names:
                return attribute
            case ast.Name(id=name):
                return self.re_functions.get(name, "")
        return ""

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

    def flags(self, node: ast.expr) -> int:
        """Returns the flags of :mod:`re` that an expression stands for; 0 for another one."""
        match node:
            case ast.Attribute() | ast.Name():
                return int(getattr(re.RegexFlag, self.function_of_re(node) or "NOFLAG", 0))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.flags(left) | self.flags(right)
        return 0

    def _sums(self, parts: list[ast.expr]) -> tuple[str, ...]:
        made = itertools.product(*map(self.texts, parts))
        texts = ["".join(each) for each in itertools.islice(made, _MOST_ARMS + 1)]
        return tuple(dict.fromkeys(texts)) if len(texts) <= _MOST_ARMS else (_UNKNOWN,)

    def _joined(self, node: ast.expr, glue: str) -> tuple[str, ...]:
        match node:
            case ast.Name(id=name) if name in self._constants:
                return self._joined(self._constants[name], glue)
            case ast.Name(id=name) if other := _module(self._imports.get(name, ("", ""))[0]):
                return other._joined(ast.Name(self._imports[name][1]), glue)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) if parts:
                glued = [each for part in parts for each in (ast.Constant(glue), part)]
                return self._sums(glued[1:])
            case ast.Dict(keys=keys) if None not in keys:
                return self._joined(ast.Tuple([key for key in keys if key is not None]), glue)
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
    lines = source.split("\n")
    called: set[ast.expr] = set()
    for node in ast.walk(module.tree):  # A call comes before its function.
        if isinstance(node, ast.Call):
            called.add(node.func)
            if module.function_of_re(node.func) in _FUNCTIONS:
                yield from _patterns_of_call(module, node, _is_allowed(node, lines))
        elif isinstance(node, ast.Attribute | ast.Name) and node not in called:
            name = module.function_of_re(node)
            if name in _FUNCTIONS and not _is_allowed(node, lines):
                yield Pattern(node.lineno, name, problem="its pattern is not known: no call")


def _is_allowed(node: ast.expr, lines: list[str]) -> bool:
    """Returns whether a line of an expression has the comment that allows unknown patterns."""
    end = node.end_lineno or node.lineno
    return any(_ALLOWED.search(line) for line in lines[node.lineno - 1 : end])


def _patterns_of_call(module: _Module, call: ast.Call, is_allowed: bool) -> Iterator[Pattern]:
    by_name = [each.value for each in call.keywords if each.arg == "pattern"]
    given = [*call.args[:1], *by_name]
    options = [*call.args[1:], *(each.value for each in call.keywords if each.arg != "pattern")]
    flags = 0
    for option in options:
        flags |= module.flags(option)
    for text in module.texts(given[0]) if given else (_UNKNOWN,):
        problem = ""
        if _UNKNOWN in text and not is_allowed:
            problem = f"not known before it runs, or more than {_MOST_ARMS} arms"
        yield Pattern(call.lineno, text.replace(_UNKNOWN, "x"), flags, problem)


def problem_of(pattern: Pattern) -> str | None:
    """Returns why a pattern may take cubic time or longer, ``None`` where it does not."""
    return _slow(pattern) or pattern.problem or None


def _slow(pattern: Pattern) -> str | None:
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
