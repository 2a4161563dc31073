"""``-verify-diagnostics``: compares what was reported with the comments of the input.

::

    designator ::= '// expected-' kind '-re'? count? place? '{{' text '}}'
    kind       ::= 'error' | 'warning' | 'remark' | 'note'
    place      ::= '@' ('+' digits | '-' digits | 'above' | 'below' | 'unknown')

Without a place the line itself is meant; ``above`` and ``below`` are the nearest line without a
designator.  The text has to occur in the message; in the ``-re`` form what stands in further double
braces is a regular expression; those of a file that take longer than some seconds together are
refused.  A count (``expected-error 2 {{x}}``) expects it so many times.

What looks like a designator and is none is an error: MLIR passes over it, and it tests nothing.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from triton_ext.errors import ParseError
from triton_ext.host.diagnostics import Diagnostic, of_error
from triton_ext.strings import lines_of

__all__ = ["Expectation", "MatchTime", "expectations", "verify"]

_DESIGNATOR = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<re>-re)?"
    r"(?:[ \t]*@[ \t]*(?P<place>[+-]\d{1,18}|above|below|unknown))?"
    r"(?:[ \t]*(?P<count>\d{1,18}))?[ \t]*\{\{"
)
# Text that was meant as a designator: it starts a comment, or has braces.
_ALMOST = re.compile(r"(//[ \t]*)?(expected-[a-z]+)")
_BRACE = re.compile(r"[{}]")
_SECONDS = 5.0
_TOO_LONG = f"the regular expressions of this file take longer than {_SECONDS:g} s"
_NESTED = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One designator.

    Attributes:
        kind: Severity of the diagnostic.
        line: Where it is expected; 0: where no place is known.
        text: As written.
        pattern: The compiled text, where it has regular expressions in it.
        stands: Line and column of the designator.
        count: How often it is expected.
    """

    kind: str
    line: int
    text: str
    pattern: re.Pattern[str] | None
    stands: tuple[int, int]
    count: int = 1

    def accepts(self, message: str) -> bool:
        """Returns whether a message is the expected one."""
        if self.pattern is None:
            return self.text in message
        return self.pattern.search(message) is not None


class MatchTime:
    """Seconds that all regular expressions of a file may take together.

    Some patterns take a time that is exponential in the length of a message, ``(a+)+$`` for one.
    """

    def __init__(self) -> None:
        self._seconds = _SECONDS

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Counts the time of a block, and ends it when all is spent.

        Outside of the main thread there is no limit.

        Raises:
            TimeoutError: The time is spent.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: object) -> NoReturn:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        start = time.monotonic()
        # Zero would be no limit.
        signal.setitimer(signal.ITIMER_REAL, max(self._seconds, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self._seconds -= time.monotonic() - start


def expectations(
    text: str, left: MatchTime | None = None, first_line: int = 0
) -> list[Expectation]:
    """Returns the designators of a text in order.

    Args:
        text: The text.
        left: Time that its regular expressions may take.
        first_line: Number of the lines before the text in its file.

    Raises:
        ParseError: A comment is almost a designator, or its regular expression cannot be compiled.
    """
    left = left or MatchTime()
    found: list[Expectation] = []
    below: list[int] = []
    last_plain = first_line
    for number, line in enumerate(lines_of(text), start=first_line + 1):
        designators = list(_on_line(line, number))
        if not designators:
            for index in below:
                found[index] = replace(found[index], line=number)
            below.clear()
            last_plain = number
            continue
        for match, message in designators:
            place = match["place"]
            if place == "below":
                below.append(len(found))
            line_number = {None: number, "below": number, "above": last_plain, "unknown": 0}.get(
                place
            )
            if line_number is None:
                line_number = number + int(place)
            stands = (number, match.start() + 1)
            count = int(match["count"] or 1)
            pattern = _compiled(message, stands, line, left) if match["re"] else None
            one = Expectation(match["kind"], line_number, message, pattern, stands, count)
            found.append(one)
    return found


def verify(
    diagnostics: Sequence[Diagnostic],
    text: str,
    filename: str,
    *,
    only_expected: bool,
    without_notes: bool = False,
    left: MatchTime | None = None,
    first_line: int = 0,
) -> list[Diagnostic]:
    """Returns an error for everything that was reported and not expected, or the reverse.

    Args:
        diagnostics: What was reported about ``text``.
        text: With its designators.
        filename: Name of the text; a diagnostic about another file has no place in it.
        only_expected: Do not mind diagnostics that nobody expects.
        without_notes: Whoever reported gave no notes: that an expected one is missing says nothing,
            which is a remark instead of an error.
        left: Time that the regular expressions of the file may still take.
        first_line: Number of the lines before the text in its file.
    """
    left = left or MatchTime()
    try:
        expected = expectations(text, left, first_line)
    except ParseError as error:
        return [replace(of_error(error), filename=filename)]
    lines = lines_of(text)
    missing = [one.count for one in expected]
    at_line: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index, one in enumerate(expected):
        at_line[one.kind, one.line].append(index)
    problems = []
    for diagnostic, optional in _flat(diagnostics):
        line = diagnostic.line if diagnostic.filename == filename else 0
        match = None
        for index in at_line[diagnostic.severity, line]:
            one = expected[index]
            if not missing[index]:
                continue
            try:
                with left.spent() if one.pattern is not None else contextlib.nullcontext():
                    is_expected = one.accepts(diagnostic.message)
            except TimeoutError:
                return [_problem(one, _TOO_LONG, filename, lines[one.stands[0] - 1 - first_line])]
            if is_expected:
                match = index
                break
        if match is not None:
            missing[match] -= 1
        elif not optional and not only_expected:
            problems.append(_unexpected(diagnostic))
    for one, count in zip(expected, missing, strict=True):
        if not count:
            continue
        severity, what = "error", "was not produced"
        if without_notes and one.kind == "note":
            severity, what = "remark", "is not known: this Triton keeps its notes to itself"
        elif count > 1:
            what += f" {count} times" if count == one.count else f" {count} more times"
        said = f'expected {one.kind} "{one.text}" {what}'
        problems.append(
            _problem(one, said, filename, lines[one.stands[0] - 1 - first_line], severity)
        )
    return problems


def _problem(
    one: Expectation, said: str, filename: str, source_line: str, severity: str = "error"
) -> Diagnostic:
    """A diagnostic at a designator."""
    number, column = one.stands
    return Diagnostic(
        severity=severity,
        message=said,
        filename=filename,
        line=number,
        column=column,
        source_line=source_line,
    )


def _on_line(line: str, number: int) -> Iterator[tuple[re.Match[str], str]]:
    """The designators of a line, each with the text between its braces."""
    start = line.find("//")
    if start < 0 or "expected-" not in line:
        return
    matches = list(_DESIGNATOR.finditer(line, start))
    ends = [*(match.start() for match in matches[1:]), len(line)]
    spans: deque[tuple[int, int]] = deque()
    for match, limit in zip(matches, ends, strict=False):
        end = line.rfind("}}", match.end(), limit)
        if end < 0:
            _refuse(line, number, match.start(), "expected '}}' behind the text of this designator")
        spans.append((match.start(), end))
        yield match, line[match.end() : end]
    brace = -1
    for almost in _ALMOST.finditer(line, start):
        if brace < almost.end():
            found = _BRACE.search(line, almost.end())
            brace = len(line) if found is None else found.start()
        if almost[1] is None and not line.startswith("{{", brace):
            continue
        at = almost.start(2)
        while spans and spans[0][1] <= at:
            spans.popleft()
        if not spans or at < spans[0][0]:
            _refuse(line, number, at, "this is almost a designator, and tests nothing")


def _refuse(line: str, number: int, at: int, message: str) -> NoReturn:
    raise ParseError(
        message,
        line=number,
        column=at + 1,
        source_line=line,
        notes=(
            "expected-error, -warning, -remark or -note, then '-re' or nothing, then '@+1', '@-1', "
            "'@above', '@below', '@unknown' or nothing, then '{{text}}'",
        ),
    )


def _compiled(text: str, stands: tuple[int, int], line: str, left: MatchTime) -> re.Pattern[str]:
    parts = _NESTED.split(text)
    pattern = "".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts))
    try:
        # A warning of Python's, about a set in a set for one, would name this file.
        with left.spent(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # LLVM's ``.`` does not stop at line ends, and messages have several lines.
            return re.compile(pattern, re.DOTALL)  # pattern: the user's, with a time limit
    except (re.error, OverflowError, RecursionError, TimeoutError) as error:
        problem = f"'{text}' has an invalid regular expression: {error}"
        raise ParseError(
            _TOO_LONG if isinstance(error, TimeoutError) else problem,
            line=stands[0],
            column=stands[1],
            source_line=line,
        ) from error


def _flat(diagnostics: Sequence[Diagnostic]) -> Iterator[tuple[Diagnostic, bool]]:
    """Every diagnostic and note, and whether nobody has to expect it.

    Notes of our errors have no place of their own: they count as at the error's line, and need
    not be expected.
    """
    for diagnostic in diagnostics:
        yield diagnostic, False
        for note in diagnostic.notes:
            if note.filename or note.line:
                yield note, False
            else:
                yield _at(note, diagnostic), True


def _at(note: Diagnostic, diagnostic: Diagnostic) -> Diagnostic:
    return Diagnostic(
        severity=note.severity,
        message=note.message,
        filename=diagnostic.filename,
        line=diagnostic.line,
        column=diagnostic.column,
    )


def _unexpected(diagnostic: Diagnostic) -> Diagnostic:
    return Diagnostic(
        severity="error",
        message=f"unexpected {diagnostic.severity}: {diagnostic.message}",
        filename=diagnostic.filename,
        line=diagnostic.line,
        column=diagnostic.column,
        source_line=diagnostic.source_line,
    )
