"""Strings as MLIR prints them (the grammar's ``string-literal``), and the lines of a text."""

from __future__ import annotations

import re
import sys

__all__ = [
    "SKIPPED_STRING",
    "STRING",
    "STRING_BODY",
    "lines_of",
    "quote",
    "unquote",
    "without_carriage_returns",
    "without_leak_report",
]

# A group that is repeated takes Python about 190 bytes for each time, in case that it has to go
# back; Python 3.10 cannot be told that it never has to.
_TIMES = "*+" if sys.version_info >= (3, 11) else "*"
#: A regular expression of what stands between the quotes of a string.
STRING_BODY = r'[^"\\\n]*(?:\\.[^"\\\n]*)' + _TIMES
#: A regular expression of a string with its quotes.
STRING = f'"{STRING_BODY}"'
#: The same for searches that pass over strings.  One that is not closed counts as far as it goes:
#: a search that tried again behind each of its escaped quotes would take quadratic time.
SKIPPED_STRING = STRING + "?"
# A string, a comment or a carriage return.
_RETURN = re.compile(SKIPPED_STRING + r"|//[^\n\r]*\r?|\r")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LEAK_REPORT = re.compile(
    r"^(?:nanobind: (?:leaked|this is likely caused)| - leaked | - \.\.\. skipped|"
    r"See https://nanobind\.)[^\n]*\n?",
    re.M,
)
_ESCAPE = re.compile(rb'\\(?:([0-9A-Fa-f]{2})|([nt\\"]))')


def quote(text: str) -> str:
    """A string as MLIR prints it: printable ASCII, ``\\\\`` for a backslash, else two digits."""
    out = ['"']
    for byte in text.encode("utf-8", "surrogateescape"):
        character = chr(byte)
        if character == "\\":
            out.append("\\\\")
        elif 32 <= byte < 127 and character != '"':
            out.append(character)
        else:
            out.append(f"\\{byte:02X}")
    return "".join([*out, '"'])


def unquote(literal: str) -> str:
    """The text of a quoted string."""

    def decode(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes([int(match[1], 16)])
        return {b"n": b"\n", b"t": b"\t"}.get(match[2], match[2])

    raw = literal[1:-1].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(decode, raw).decode("utf-8", "surrogateescape")


def lines_of(text: str, *, keep_ends: bool = False) -> list[str]:
    """The lines of a text as MLIR counts them: only a line feed ends one.

    ``str.splitlines`` also stops at form feeds, U+0085, U+2028 and others, which MLIR takes for
    characters of a line.

    Args:
        text: The text.
        keep_ends: Whether the lines keep the line feed, and a carriage return in front of it.
    """
    lines: list[str] = _LINE.findall(text)
    return lines if keep_ends else [line.removesuffix("\n").removesuffix("\r") for line in lines]


def without_carriage_returns(text: str) -> str:
    """Replaces carriage returns by what they are to MLIR.

    In front of a line feed one is a part of the end of the line.  Elsewhere it is a blank, which
    also ends a comment, and no end of a line; in a string it is a character like any other.
    """
    if "\r" not in text:
        return text
    text = text.replace("\r\n", "\n")

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found[0] == '"' or found[-1] != "\r" else " " * len(found)

    return _RETURN.sub(blank, text) if "\r" in text else text


def without_leak_report(text: str) -> str:
    """Drops the lines in which nanobind lists what Triton's library never frees.

    Triton 3.9 prints them when a process ends, behind the error that ended it.

    Args:
        text: What a process wrote to standard error.
    """
    return _LEAK_REPORT.sub("", text)
