"""Strings as MLIR prints them (the grammar's ``string-literal``)."""

from __future__ import annotations

import re

__all__ = ["quote", "unquote"]

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
