"""Diagnostics as values: ours, and those that Triton's C++ writes to file descriptor 2.

Triton hands no diagnostic to Python: it prints them, and raises an error without details.  This
module reads the printed diagnostics back.  Text around them (the module of a failed pipeline, its
reproducer, a stack trace) is kept as *other* text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from triton_ext.errors import SourceError, quoted_line, shortened
from triton_ext.strings import lines_of

__all__ = ["Diagnostic", "Printed", "of_error", "of_errors", "read_printed"]

_SEVERITY = r"(?P<severity>error|warning|remark|note)"
# Lines may be as long as a module: no pattern takes more than linear time.
# file:line:col: error: text; and what MLIR prints where no handler of diagnostics is set up.
_HEADS = (
    re.compile(rf"(?P<file>[^\n]*?):(?P<line>\d+):(?P<column>\d+): {_SEVERITY}: ?(?P<text>.*)"),
    re.compile(rf"(?:<unknown>:0|loc\(.*?\)|(?P<file>[^\s:][^:\n]*)): {_SEVERITY}: ?(?P<text>.*)"),
    re.compile(rf"{_SEVERITY}: ?(?P<text>.*)"),
)
# Behind "loc(": the first position in a file, then the first severity.
_LOCATION_PLACE = re.compile(r'"(?P<file>[^"\n]*)":(?P<line>\d+):(?P<column>\d+)')
_LOCATION_END = re.compile(rf"\): {_SEVERITY}: ?(?P<text>.*)")
_CARET = re.compile(r"[ \t]*\^[~ ]*")
# Output of a failed pass manager after the diagnostics: a module, resources, a stack trace.
_DUMP = re.compile(
    r"(?:module\b.*\{|\"builtin\.module\".*|#[\w.$-]+ = .*|![\w.$-]+ = .*|\{-#.*"
    r"|PLEASE (?:submit|ATTACH).*|Stack dump.*)"
)
# Says only that something failed, which the diagnostics in front of it said better, or that the
# reproducer in the input is not for whoever reads the module.
_ECHO = re.compile(
    r"Failures have been detected while processing|Pipeline failed while executing"
    r"|ignoring unknown external resources for 'mlir_reproducer'"
)
# Last words of LLVM before it aborts.  Triton survives some aborts and then reports a signal.
_LAST_WORDS = ("LLVM ERROR:", "UNREACHABLE executed", "terminate called")
_CAUGHT = re.compile(r"A signal was caught while processing")
_ASSERTION = "Assertion "
_SOURCE_PLACE = re.compile(r"(?<![^/\s:])(?P<file>[^/\s:]+):(?P<line>\d+): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """An error, a warning, a remark or a note.

    Attributes:
        severity: ``error``, ``warning``, ``remark`` or ``note``.
        message: The text, possibly of several lines.
        filename: As the user knows it; empty where no place is known.
        line: Counted from 1; 0 where no place is known.
        column: Counted from 1; 0 where no place is known.
        source_line: The text of that line, for the caret.
        notes: The notes that belong to it.
    """

    severity: str
    message: str
    filename: str = ""
    line: int = 0
    column: int = 0
    source_line: str | None = None
    notes: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        place = self.filename or "<unknown>"
        if self.line:
            place = f"{place}:{self.line}:{self.column}"
        elif not self.filename and self.severity == "note":
            return f"note: {self.message}"
        lines = [f"{place}: {self.severity}: {shortened(self.message)}"]
        if self.source_line is not None and self.column:
            lines += quoted_line(self.source_line, self.column)
        lines += [str(note) for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Printed:
    """Output of the host, taken apart.

    Attributes:
        diagnostics: In order, notes with what they belong to.
        other: The text that is no diagnostic.
        last_words: Why the library gave up: a failed assertion, or that it caught a signal; empty
            if it did not.
    """

    diagnostics: tuple[Diagnostic, ...]
    other: str
    last_words: str = ""


def of_error(error: SourceError) -> Diagnostic:
    """Returns an error of ours as a diagnostic; its notes have no place."""
    return Diagnostic(
        severity="error",
        message=error.message,
        filename=error.filename if error.filename != "<unknown>" else "",
        line=error.line,
        column=error.column,
        source_line=error.source_line,
        notes=tuple(Diagnostic(severity="note", message=note) for note in error.notes),
    )


def of_errors(error: SourceError) -> list[Diagnostic]:
    """Returns an error of ours and those that were found together with it."""
    return [of_error(error), *(each for other in error.others for each in of_errors(other))]


def read_printed(text: str) -> Printed:
    """Reads what the host printed to file descriptor 2.

    A line that looks like a diagnostic begins one; the lines behind it, up to the next one or a
    dump, continue its message, but for the source line and the caret.
    """
    found: list[Diagnostic] = []
    other: list[str] = []
    body: list[str] | None = None
    last_words = ""
    for line in lines_of(text):
        if _gives_up(line):
            _finish(found, body)
            body = None
            last_words = last_words or _shortened(line)
            continue
        head = _head(line)
        if head is not None:
            _finish(found, body)
            body = []
            _begin(found, head)
        elif body is None or _DUMP.fullmatch(line):
            # A source line under a diagnostic may look like the start of a module.
            if body is not None and not body and found[-1].line and found[-1].source_line is None:
                body.append(line)
                continue
            _finish(found, body)
            body = None
            other.append(line)
        elif _CARET.fullmatch(line) and body:
            found[-1] = replace(found[-1], source_line=body.pop())
            _finish(found, body)
            body = None
        else:
            body.append(line)
    _finish(found, body)
    if any(_CAUGHT.search(d.message) for d in found):
        last_words = last_words or "it caught a signal"
        found = [d for d in found if not _CAUGHT.search(d.message)]
    kept = _attach_notes(d for d in found if not _ECHO.search(d.message))
    return Printed(kept, "".join(f"{line}\n" for line in other), last_words)


def _gives_up(line: str) -> bool:
    """Returns whether a line has last words of LLVM."""
    if any(words in line for words in _LAST_WORDS):
        return True
    return " failed" in line.partition(_ASSERTION)[2]


def _shortened(line: str) -> str:
    """The assertion and its file without the folder that Triton was built in."""
    before, _, behind = line.partition(_ASSERTION)
    said, failed, rest = behind.rpartition("' failed")
    place = _SOURCE_PLACE.search(before)
    if place is None or not failed or not said.startswith(("'", "`")):
        return line.strip()
    dot = "." if rest.startswith(".") else ""
    return f"{_ASSERTION}{said}{failed}{dot} ({place['file']}:{place['line']})"


def _head(line: str) -> dict[str, str] | None:
    """The parts of a line that begins a diagnostic; ``None`` for another one."""
    if line.startswith("loc(") and (place := _LOCATION_PLACE.search(line)) is not None:
        end = _LOCATION_END.search(line, place.end())
        if end is not None:
            return place.groupdict() | end.groupdict()
    heads = (pattern.fullmatch(line) for pattern in _HEADS)
    return next((match.groupdict() for match in heads if match is not None), None)


def _begin(found: list[Diagnostic], fields: dict[str, str]) -> None:
    found.append(
        Diagnostic(
            severity=fields["severity"],
            message=fields["text"],
            filename=fields.get("file") or "",
            line=int(fields.get("line") or 0),
            column=int(fields.get("column") or 0),
        )
    )


def _finish(found: list[Diagnostic], body: list[str] | None) -> None:
    if body:
        message = "\n".join([found[-1].message, *body]).rstrip()
        found[-1] = replace(found[-1], message=message)


def _attach_notes(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    kept: list[Diagnostic] = []
    for diagnostic in diagnostics:
        if diagnostic.severity == "note" and kept:
            kept[-1] = replace(kept[-1], notes=(*kept[-1].notes, diagnostic))
        else:
            kept.append(diagnostic)
    return tuple(kept)
