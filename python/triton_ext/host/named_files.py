"""Finds locations whose files Triton must not read.

Triton shows the line of a location under a diagnostic, and reads the file for it.
"""

from __future__ import annotations

import re

from triton_ext.host.diagnostics import Diagnostic
from triton_ext.source_files import LARGEST_SOURCE_BYTES, is_source_file
from triton_ext.strings import STRING_BODY, unquote

__all__ = ["refused_file"]

# A string without a closing quote counts as far as it goes: its text is not searched again.
_STRING = re.compile(f'"({STRING_BODY})("?)')
# MLIR takes a null character for a blank.
_BLANKS = re.compile(r"[\s\0]*")
# Lines that are comments or empty, from the start of a line.
_COMMENT_LINES = re.compile(r"[\s\0]*(?://[^\n]*\n[\s\0]*)*")


def refused_file(text: str, filename: str) -> Diagnostic | None:
    """Returns an error about a location whose file must not be read, if there is one.

    Every string before a colon counts, also in comments: nothing is missed.

    Args:
        text: The module, through :func:`~triton_ext.strings.without_carriage_returns`: a carriage
            return ends a comment in MLIR, but not here.
        filename: Its name, for the error.
    """
    known: dict[str, bool] = {}
    colons = _Colons(text)
    for match in _STRING.finditer(text):
        raw = match[1]
        if not match[2]:
            continue
        if known.get(raw) is False or not colons.follows(match.end()):
            continue
        # C reads a name up to its first null character.
        name = unquote(match[0]).encode("utf-8", "surrogateescape").partition(b"\0")[0]
        known[raw] = is_source_file(name) is False
        if known[raw]:
            return Diagnostic(
                severity="error",
                message=f"expected a regular file of at most {LARGEST_SOURCE_BYTES >> 20} MiB in a "
                f"location, found {match[0]}, which Triton would read to show its line",
                filename=filename,
                line=text.count("\n", 0, match.start()) + 1,
                column=match.start() - text.rfind("\n", 0, match.start()),
            )
    return None


class _Colons:
    """Finds colons behind blanks and comments, in time that is linear in the text.

    Args:
        text: The text; positions are asked for in ascending order.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        # The last line feed that was found.
        self._line_feed = -1
        # The last run of comment lines that was read.
        self._start = self._end = -1

    def follows(self, position: int) -> bool:
        """Returns whether a colon is the next token from a position on."""
        text = self._text
        position = _end_of(_BLANKS, text, position)
        if text.startswith("//", position):
            if self._line_feed < position:
                self._line_feed = text.find("\n", position)
                if self._line_feed < 0:
                    self._line_feed = len(text)
            line = self._line_feed + 1
            if not self._start <= line <= self._end:
                self._start, self._end = line, _end_of(_COMMENT_LINES, text, line)
            position = self._end
        return text.startswith(":", position)


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()
