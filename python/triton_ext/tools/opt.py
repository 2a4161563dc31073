"""``triton-opt``: runs our passes over the text of a module.

Flags are spelled as upstream's ``triton-opt`` spells them: one ``-pass-name`` (or ``--pass-name``)
per pass, run in the order given; ``-split-input-file``, ``-verify-diagnostics``, ``-o``.  Only the
passes of this package are there (``-list-passes`` names them).

Comments are left out of the output, as MLIR leaves them out (FileCheck would find its own patterns
in them); ``-keep-comments`` prints every byte that no pass touched as it was.

A pass reports an error at the user's source line, which an operation's location tells.  For an
operation without a location that is its place in the input, as in MLIR.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext import backends
from triton_ext.errors import ParseError, SourceError, VerifyError
from triton_ext.ir import Module, parse
from triton_ext.passes import Pass

__all__ = ["PASSES", "SUMMARY", "add_arguments", "main", "run"]

SUMMARY = "run passes of triton-ext over a module's text (triton-opt)"

# Command line name to a loader of the pass's class; nothing of a vendor is imported before its use.
PASSES: dict[str, Callable[[], type[Pass]]] = {
    "triton-ext-lower-im2col": lambda: _exported("nvidia", "lower-im2col"),
}

# A comment, or a string that may hold what looks like one.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')

_SPLIT = re.compile(r"^// -----[^\n]*\n?", re.MULTILINE)

# // expected-error @+1 {{text}}; also @-1, @below, @above, @unknown, or no place: this line.
_EXPECTED = re.compile(
    r"//\s*expected-([a-z-]+)\s*(?:@\s*([+-]\d+|below|above|unknown)\s*)?\{\{(.*?)\}\}"
)


@dataclass(frozen=True, slots=True)
class _Expectation:
    kind: str
    line: int
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``triton-opt``."""
    parser.add_argument("file", nargs="?", default="-", help="input; - or nothing: standard input")
    parser.add_argument("-o", dest="output", default="-", metavar="FILE", help="output; -: stdout")
    for names, text in (
        (("-split-input-file", "--split-input-file"), "treat parts between // ----- as modules"),
        (("-keep-comments", "--keep-comments"), "print comments and blank lines as they were"),
        (("-verify-diagnostics", "--verify-diagnostics"), "check expected-error comments"),
        (("-list-passes", "--list-passes"), "print the names of the passes"),
    ):
        parser.add_argument(*names, action="store_true", help=text)
    for name in PASSES:
        parser.add_argument(
            f"--{name}", f"-{name}", dest="passes", action="append_const", const=name, help="a pass"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the console script ``triton-opt`` and returns its exit status."""
    parser = argparse.ArgumentParser(prog="triton-opt", description=SUMMARY, allow_abbrev=False)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> int:
    """Runs the passes; 0 if all went well, 1 after a diagnostic that nobody expected."""
    if arguments.list_passes:
        sys.stdout.write("".join(f"{name}\n" for name in PASSES))
        return 0
    try:
        text = sys.stdin.read() if arguments.file == "-" else _read(arguments.file)
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{arguments.file}: error: cannot be read: {error}\n")
        return 1
    filename = "<stdin>" if arguments.file == "-" else arguments.file
    parts = _split(text) if arguments.split_input_file else [(0, text)]
    printed: list[str] = []
    good = True
    for first_line, part in parts:
        # Empty lines in front keep the line numbers of the whole file.
        module, failure = _transform("\n" * first_line + part, filename, arguments.passes or [])
        if arguments.verify_diagnostics:
            good &= _verify(failure, "\n" * first_line + part, filename)
        elif failure is not None:
            sys.stderr.write(f"{failure}\n")
            good = False
        if failure is None:
            output = str(module)[first_line:]
            printed.append(output if arguments.keep_comments else _without_comments(output))
    if good:
        _write(arguments.output, "// -----\n".join(printed))
    return 0 if good else 1


def _exported(vendor: str, name: str) -> type[Pass]:
    loaded: type[Pass] = backends.load(vendor, name)
    return loaded


def _read(path: str) -> str:
    return pathlib.Path(path).read_text(encoding="utf-8")


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(path).write_text(text, encoding="utf-8")


def _without_comments(text: str) -> str:
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


def _split(text: str) -> list[tuple[int, str]]:
    """Returns the parts of a file with the number of lines in front of each."""
    parts, start = [], 0
    for match in [*_SPLIT.finditer(text), None]:
        end = len(text) if match is None else match.start()
        parts.append((text.count("\n", 0, start), text[start:end]))
        start = end if match is None else match.end()
    return parts


def _transform(
    text: str, filename: str, names: Sequence[str]
) -> tuple[Module | None, SourceError | None]:
    try:
        module = parse(text, filename)
        for name in names:
            PASSES[name]()().run(module)
    except (ParseError, VerifyError) as error:
        return None, error
    except SourceError as error:
        return None, error if error.line else _located_error(text, filename, names, error)
    return module, None


def _located_error(
    text: str, filename: str, names: Sequence[str], error: SourceError
) -> SourceError:
    """Runs the passes again over a module whose operations all have a location."""
    module = parse(text, filename)
    for op in list(module.walk()):
        if op.parent is not None and (op.loc is None or op.loc.resolve() is None):
            line, column = _place(op)
            op.set_loc(f'loc("{filename}":{line}:{column})')
    try:
        for name in names:
            PASSES[name]()().run(module)
    except SourceError as located:
        return located
    return error


def _place(op: Any) -> tuple[int, int]:
    """Line and column of an operation in its text."""
    try:
        op.fail("")
    except VerifyError as error:
        return error.line, error.column
    raise AssertionError("Operation.fail raises")


def _verify(error: SourceError | None, text: str, filename: str) -> bool:
    """Compares a diagnostic with the expected ones of a part; tells every difference.

    A pass stops at its first error, so a part has at most one diagnostic.
    """
    expected = list(_expectations(text))
    good = True
    for strange in [e for e in expected if e.kind != "error"]:
        sys.stderr.write(
            f"{filename}:{strange.line}: error: expected-{strange.kind} is not supported, "
            "only expected-error is\n"
        )
        expected.remove(strange)
        good = False
    if error is not None:
        match = next(
            (e for e in expected if e.text in error.message and e.line in (0, error.line)), None
        )
        if match is not None:
            expected.remove(match)
        else:
            sys.stderr.write(f"{error}\n")
            sys.stderr.write(f"{filename}: error: the error above was not expected\n")
            good = False
    for missing in expected:
        place = f"{filename}:{missing.line}" if missing.line else filename
        sys.stderr.write(f'{place}: error: expected error "{missing.text}" was not produced\n')
        good = False
    return good


def _expectations(text: str) -> list[_Expectation]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, place, message in _EXPECTED.findall(line):
            if place == "unknown":
                found.append(_Expectation(kind, 0, message))
                continue
            offset = {"": 0, "below": 1, "above": -1}.get(place)
            line_number = number + (int(place) if offset is None else offset)
            found.append(_Expectation(kind, line_number, message))
    return found
