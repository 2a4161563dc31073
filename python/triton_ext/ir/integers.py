"""Integers as MLIR prints and reads them: decimal, or hexadecimal bits of their type."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_DIGITS", "read_integer"]

#: Most decimal digits that Python converts to a number; more take quadratic time.
MAX_DIGITS: Final = 4300
_INTEGER: Final = re.compile(
    rf"(-?)(0x[0-9a-fA-F]+|\d{{1,{MAX_DIGITS}}})\s*(?::\s*(?:[su]?i(\d{{1,9}})|index)\s*)?\Z",
    re.ASCII,
)


def read_integer(text: str) -> int | None:
    """``integer-attribute ::= '-'? (decimal | '0x' digits) (':' integer-type)?``.

    Hexadecimal digits are bits: ``0xFFFFFFFF : i32`` is -1.

    Args:
        text: An attribute as printed.

    Returns:
        The number; ``None`` if it is not one, does not fit its type, or has more than
        :data:`MAX_DIGITS` digits.
    """
    match = _INTEGER.match(text)
    if match is None:
        return None
    is_hexadecimal = match[2].startswith("0x")
    number = int(match[2][2:], 16) if is_hexadecimal else int(match[2])
    if match[3] is not None:
        width = int(match[3])
        if number >> width:
            return None
        if is_hexadecimal and not match[1] and width and number >> (width - 1):
            number -= 1 << width
    return -number if match[1] else number
