"""Constant folding (property 4) of operations with constant operands.

An operation that is poison has no constant: one that breaks a flag such as ``nsw``, divides by
zero, overflows in a signed division, or shifts by the width of its type or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...ir.dialects import arith
from .visit import Visit

__all__ = ["FOLDS", "FOLDS_MODULO", "POISON", "Poison", "predicate_of"]


class Poison:
    """The type of :data:`POISON`."""


#: Represents a result that is poison.
POISON: Final = Poison()
Folded = int | Poison | None


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_SIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.shli": lambda a, b: a << b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.divsi": _divide,
    "arith.remsi": lambda a, b: a - b * _divide(a, b),
    "arith.shrsi": lambda a, b: a >> b,
    "arith.minsi": min,
    "arith.maxsi": max,
}
_UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.shrui": lambda a, b: a >> b,
    "arith.minui": min,
    "arith.maxui": max,
}
_WRAPS = frozenset({"arith.addi", "arith.subi", "arith.muli", "arith.shli"})
_QUOTIENTS = frozenset({"arith.divsi", "arith.divui"})
_REMAINDERS = frozenset({"arith.remsi", "arith.remui"})
_SHIFTS = frozenset({"arith.shli", "arith.shrsi", "arith.shrui"})
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _same_operands(visit: Visit) -> bool:
    # Hosts decide branches with MLIR's folder, which knows this too.
    return visit.op.operands[0] is visit.op.operands[1]


def _fits(number: int, width: int) -> bool:
    return -(1 << (width - 1)) <= number < 1 << (width - 1)


def _read(number: int, name: str, width: int) -> int:
    """Returns a constant with the signedness that an operation reads; signed true is -1."""
    if name in _UNSIGNED:
        return number & ((1 << width) - 1)
    return -number if width == 1 else number


def _fold_binary(visit: Visit, width: int) -> Folded:
    a, b = (x.constant for x in visit.operands)
    name = visit.op.name
    if name in ("arith.muli", "arith.andi") and (a == 0 or b == 0):
        return 0
    if name in ("arith.subi", "arith.xori") and _same_operands(visit):
        return 0
    if name in _REMAINDERS and (b == 1 or (b == -1 and name == "arith.remsi")):
        return 0
    if a is None or b is None:
        return None
    if name in _QUOTIENTS | _REMAINDERS and b == 0:
        return POISON
    if name in _SHIFTS and not 0 <= b & ((1 << width) - 1) < width:
        return POISON
    a, b = _read(a, name, width), _read(b, name, width)
    number = (_UNSIGNED if name in _UNSIGNED else _SIGNED)[name](a, b)
    if name == "arith.divsi" and not _fits(number, width):
        return POISON
    return POISON if _breaks_flag(visit, a, b, number, width) else number


def _breaks_flag(visit: Visit, a: int, b: int, number: int, width: int) -> bool:
    """Returns whether ``number``, the result for ``a`` and ``b``, violates a flag."""
    name, mask = visit.op.name, (1 << width) - 1
    if name not in _WRAPS | _QUOTIENTS | _SHIFTS:
        return False
    flags = arith.poison_flags(visit.op)
    if "exact" in flags and a != (number << b if name in _SHIFTS else number * b):
        return True
    if "nsw" in flags and not _fits(number, width):
        return True
    return "nuw" in flags and not 0 <= _SIGNED[name](a & mask, b & mask) <= mask


def _fold_extui(visit: Visit, width: int) -> Folded:
    number = visit.operands[0].constant
    bits = visit.types.kind(visit.op.operands[0]).element.bit_width
    if number is None or bits is None:
        return None
    if number < 0 and "nneg" in arith.poison_flags(visit.op):
        return POISON
    return number & ((1 << bits) - 1)


def _fold_extsi(visit: Visit, width: int) -> Folded:
    bits = visit.types.kind(visit.op.operands[0]).element.bit_width
    number = visit.operands[0].constant
    return -number if number is not None and bits == 1 else number


def _fold_trunci(visit: Visit, width: int) -> Folded:
    number = visit.operands[0].constant
    if number is None:
        return None
    bits = visit.types.kind(visit.op.operands[0]).element.bit_width
    flags = arith.poison_flags(visit.op)
    if "nsw" in flags and not _fits(number, width):
        return POISON
    if "nuw" in flags and (bits is None or number & ((1 << bits) - 1) >= 1 << width):
        return POISON
    return number if width > 1 else number & 1


def _fold_index_cast(visit: Visit, width: int) -> Folded:
    number = visit.operands[0].constant
    return number if width > 1 or number is None else number & 1


def _fold_compare(visit: Visit, width: int) -> Folded:
    a, b = (x.constant for x in visit.operands)
    predicate = predicate_of(visit)
    if predicate is not None and _same_operands(visit):
        return int(predicate[-2:] in ("eq", "le", "ge"))
    bits = visit.types.kind(visit.op.operands[0]).element.bit_width
    if a is None or b is None or predicate is None or bits is None:
        return None
    if predicate[0] == "u":
        a, b = a & ((1 << bits) - 1), b & ((1 << bits) - 1)
    elif bits == 1:
        a, b = -a, -b
    return int(_COMPARE[predicate[-2:]](a, b))


def predicate_of(visit: Visit) -> str | None:
    """Returns the predicate of an ``arith.cmpi``, or ``None`` if it is unknown."""
    view = arith.CmpIOp.match(visit.op)
    predicate = view.predicate if view is not None else ""
    return predicate if predicate[-2:] in _COMPARE else None


#: Constant folders by operation; the result is truncated to the width afterwards.
FOLDS: dict[str, Callable[[Visit, int], Folded]] = {
    **dict.fromkeys((*_SIGNED, *_UNSIGNED), _fold_binary),
    "arith.cmpi": _fold_compare,
    "arith.extsi": _fold_extsi,
    "arith.extui": _fold_extui,
    "arith.index_cast": _fold_index_cast,
    "arith.index_castui": _fold_index_cast,
    "arith.trunci": _fold_trunci,
}
#: Those whose low bits do not depend on the signedness of the operands.
FOLDS_MODULO = frozenset(
    {"arith.addi", "arith.andi", "arith.extsi", "arith.extui", "arith.index_cast", "arith.muli"}
    | {"arith.ori", "arith.shli", "arith.subi", "arith.trunci", "arith.xori"}
)
