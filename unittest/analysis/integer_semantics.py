"""The operations of ``arith`` on bit patterns, as MLIR's documentation defines them.

Integers are bit patterns: numbers from 0 on.  ``None`` is poison, or undefined behaviour.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

UNFLAGGED: dict[str, Callable[[int, int], int]] = {
    "andi": operator.and_,
    "ori": operator.or_,
    "xori": operator.xor,
    "minui": min,
    "maxui": max,
}
WRAPPING: dict[str, Callable[[int, int], int]] = {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "shli": operator.lshift,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **{sign + kind: getattr(operator, kind) for sign in "su" for kind in ("lt", "le", "gt", "ge")},
}
DIVISIONS = ("divsi", "divui", "ceildivsi", "ceildivui", "floordivsi", "remsi", "remui")
SHIFTS = ("shli", "shrsi", "shrui")
BINARY = (*UNFLAGGED, *WRAPPING, *DIVISIONS, "shrsi", "shrui", "minsi", "maxsi")
#: The flags that an operation may have.
FLAGS = {
    **dict.fromkeys(WRAPPING, ("nsw", "nuw")),
    **dict.fromkeys(("divsi", "divui", "shrsi", "shrui"), ("exact",)),
    "extui": ("nneg",),
    "trunci": ("nsw", "nuw"),
}


def signed(bits: int, width: int) -> int:
    """The signed number of a bit pattern."""
    return bits - (bits >> (width - 1) << width)


def cut(number: int, width: int) -> int:
    """The bit pattern of a number that is cut to a width."""
    return number % (1 << width)


def fits(number: int, width: int) -> bool:
    """Tells if a signed number has so few bits."""
    return signed(cut(number, width), width) == number


def binary(name: str, a: int, b: int, width: int, flags: frozenset[str] = frozenset()):
    """The result of an operation of two integers of a width."""
    if name in UNFLAGGED:
        return UNFLAGGED[name](a, b)
    if name in SHIFTS and b >= width:
        return None
    if name in WRAPPING:
        exact = WRAPPING[name](a, b)
        if "nuw" in flags and exact != cut(exact, width):
            return None
        by = b if name == "shli" else signed(b, width)
        if "nsw" in flags and not fits(WRAPPING[name](signed(a, width), by), width):
            return None
        return cut(exact, width)
    if name in DIVISIONS and b == 0:
        return None
    if name in ("shrsi", "shrui"):
        lost = a % (1 << b)
        shifted = (signed(a, width) if name == "shrsi" else a) >> b
        return None if "exact" in flags and lost else cut(shifted, width)
    if name[-2:] == "si":
        a, b = signed(a, width), signed(b, width)
    if name in ("minsi", "maxsi"):
        return cut(min(a, b) if name == "minsi" else max(a, b), width)
    return _divided(name, a, b, width, flags)


def _divided(name: str, a: int, b: int, width: int, flags: frozenset[str]):
    toward_zero = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if "exact" in flags and toward_zero * b != a:
        return None
    if name.startswith("rem"):
        return cut(a - b * toward_zero, width)
    quotient = {"ceil": -(-a // b), "floo": a // b}.get(name[:4], toward_zero)
    # The least number divided by -1.
    if name[-2:] == "si" and not fits(quotient, width):
        return None
    return cut(quotient, width)


def compared(predicate: str, a: int, b: int, width: int) -> int:
    """The outcome of ``arith.cmpi``."""
    if predicate[0] == "s":
        a, b = signed(a, width), signed(b, width)
    return int(COMPARE[predicate](a, b))


def cast(name: str, bits: int, before: int, after: int, flags: frozenset[str] = frozenset()):
    """The result of ``extsi``, ``extui`` or ``trunci``."""
    number = signed(bits, before)
    if "nneg" in flags and number < 0:
        return None
    if name == "extsi":
        return cut(number, after)
    if name == "trunci":
        if "nuw" in flags and bits >= 1 << after:
            return None
        if "nsw" in flags and not fits(number, after):
            return None
    return cut(bits, after)


def flag_text(name: str, flags: frozenset[str]) -> str:
    """The flags as they are printed behind the operands."""
    if not flags:
        return ""
    if flags <= {"nsw", "nuw"}:
        return f" overflow<{', '.join(sorted(flags))}>"
    return f" {', '.join(flags)}"
