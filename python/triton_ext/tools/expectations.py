"""``-verify-diagnostics``: compares what was reported with the comments of the input.

::

    designator ::= '// expected-' kind '-re'? count? place? '{{' text '}}'
    kind       ::= 'error' | 'warning' | 'remark' | 'note'
    place      ::= '@' ('+' digits | '-' digits | 'above' | 'below' | 'unknown')

Without a place the line itself is meant; ``above`` and ``below`` are the nearest line without a
designator.  The text has to occur in the message; in the ``-re`` form what stands in further double
braces is a regular expression.  A count (``expected-error 2 {{x}}``) expects it so many times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_ext.host.diagnostics import Diagnostic

__all__ = ["Expectation", "expectations", "verify"]

_DESIGNATOR = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<re>-re)?[ \t]*"
    r"(?:@[ \t]*(?P<place>[+-]\d+|above|below|unknown))?[ \t]*(?P<count>\d+)?[ \t]*\{\{"
)
_NESTED = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One designator.

    Attributes:
        kind: Severity of the diagnostic.
        line: Where it is expected; 0: where no place is known.
        text: As written.
        is_pattern: Whether the text has regular expressions in it.
        stands: Line and column of the designator.
    """

    kind: str
    line: int
    text: str
    is_pattern: bool
    stands: tuple[int, int]

    def accepts(self, message: str) -> bool:
        """Whether a message is the expected one."""
        if not self.is_pattern:
            return self.text in message
        parts = _NESTED.split(self.text)
        pattern = "".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts))
        # LLVM's ``.`` does not stop at line ends, and messages have several lines.
        return re.search(pattern, message, re.DOTALL) is not None


def expectations(text: str) -> list[Expectation]:
    """Returns the designators of a text in order.

    Raises:
        ValueError: A regular expression cannot be compiled; the message has its place.
    """
    found: list[Expectation] = []
    below: list[tuple[int, int]] = []
    last_plain = 0
    for number, line in enumerate(text.splitlines(), start=1):
        designators = list(_on_line(line))
        if not designators:
            for index, count in below:
                for at in range(index, index + count):
                    found[at] = _moved(found[at], number)
            below.clear()
            last_plain = number
            continue
        for match, message in designators:
            place, count = match["place"], int(match["count"] or 1)
            if place == "below":
                below.append((len(found), count))
            line_number = {None: number, "below": number, "above": last_plain, "unknown": 0}.get(
                place
            )
            if line_number is None:
                line_number = number + int(place)
            stands = (number, match.start() + 1)
            one = Expectation(match["kind"], line_number, message, bool(match["re"]), stands)
            _check_pattern(one)
            found += [one] * count
    return found


def verify(
    diagnostics: Sequence[Diagnostic],
    text: str,
    filename: str,
    *,
    only_expected: bool,
    without_notes: bool = False,
) -> list[Diagnostic]:
    """Returns an error for everything that was reported and not expected, or the reverse.

    Args:
        diagnostics: What was reported about ``text``.
        text: With its designators.
        filename: Name of the text; a diagnostic about another file has no place in it.
        only_expected: Do not mind diagnostics that nobody expects.
        without_notes: Whoever reported gave no notes: that an expected one is missing says nothing,
            which is a remark instead of an error.
    """
    try:
        missing = expectations(text)
    except ValueError as error:
        return [Diagnostic(severity="error", message=str(error), filename=filename)]
    problems = []
    for diagnostic, optional in _flat(diagnostics):
        line = diagnostic.line if diagnostic.filename == filename else 0
        match = next(
            (
                e
                for e in missing
                if e.kind == diagnostic.severity
                and e.line == line
                and e.accepts(diagnostic.message)
            ),
            None,
        )
        if match is not None:
            missing.remove(match)
        elif not optional and not only_expected:
            problems.append(_unexpected(diagnostic))
    lines = text.splitlines()
    for expected in missing:
        number, column = expected.stands
        severity, what = "error", "was not produced"
        if without_notes and expected.kind == "note":
            severity, what = "remark", "is not known: this Triton keeps its notes to itself"
        problems.append(
            Diagnostic(
                severity=severity,
                message=f'expected {expected.kind} "{expected.text}" {what}',
                filename=filename,
                line=number,
                column=column,
                source_line=lines[number - 1],
            )
        )
    return problems


def _on_line(line: str) -> Iterator[tuple[re.Match[str], str]]:
    """The designators of a line, each with the text between its braces."""
    if "expected-" not in line or "//" not in line:
        return
    matches = list(_DESIGNATOR.finditer(line, line.index("//")))
    ends = [*(match.start() for match in matches[1:]), len(line)]
    for match, limit in zip(matches, ends, strict=False):
        end = line.rfind("}}", match.end(), limit)
        if end >= 0:
            yield match, line[match.end() : end]


def _moved(one: Expectation, line: int) -> Expectation:
    return Expectation(one.kind, line, one.text, one.is_pattern, one.stands)


def _check_pattern(one: Expectation) -> None:
    try:
        one.accepts("")
    except re.error as error:
        raise ValueError(
            f"line {one.stands[0]}: '{one.text}' has an invalid regular expression: {error}"
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
