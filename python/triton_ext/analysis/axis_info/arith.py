"""Rules for ``arith``; the numbers in comments are the properties of the package's docstring."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from ...ir.attribute_values import BoolAttr, DenseElementsAttr, FloatAttr, IntegerAttr
from ...ir.dialects import arith
from ...ir.integers import MAX_DIGITS
from .folds import predicate_of
from .info import LIMIT, AxisInfo, exact, join, largest_power
from .visit import Rule, Visit

__all__ = ["ARITH", "add"]


#: Integers and splats of them as MLIR prints them; the rest is left to the view.
_INTEGER = re.compile(
    rf"arith\.constant (?:dense<)?(-?\d{{1,{MAX_DIGITS}}}|true|false)(?:>? : |\s|\Z)", re.ASCII
)


def _constant(visit: Visit) -> AxisInfo | None:
    shape, width = visit.shape, visit.width
    # Parsing the encoding in the type of a splat takes longer than the rest of the rule.
    printed = _INTEGER.search(visit.op.text)
    if printed is not None and width is not None:
        number = int(printed[1]) if printed[1][-1] != "e" else int(printed[1] == "true")
        return AxisInfo.splat(exact(number, width), shape)
    view = arith.ConstantOp.match(visit.op)
    scalar = view.attribute if view is not None else None
    if isinstance(scalar, DenseElementsAttr):
        scalar = scalar.body
    if isinstance(scalar, (BoolAttr, IntegerAttr)) and width is not None:
        return AxisInfo.splat(exact(int(scalar.value), width), shape)
    if isinstance(scalar, (FloatAttr, IntegerAttr)):
        ones = (1,) * len(shape)
        return AxisInfo(ones, ones, shape)  # (3) for a constant that is not an integer.
    return None


# ---- sums


def _constancy(visit: Visit) -> tuple[int, ...]:
    """(3) for elementwise operations: the result repeats where all operands repeat."""
    first, *others = (x.constancy for x in visit.operands)
    for other in others:
        first = tuple(map(math.gcd, first, other))
    return first


def _scaled(divisor: int, factor: int) -> int:
    return min(divisor * factor, LIMIT)


def add(visit: Visit) -> AxisInfo:
    """``arith.addi``; ``tt.addptr``, whose offset counts elements."""
    lhs, rhs = visit.operands
    stride = visit.stride if visit.op.name == "tt.addptr" else 1
    runs, divisors = [], []
    for d in range(lhs.rank):
        # (1) A contiguous group keeps its steps where the other operand repeats one element.
        run = max(
            math.gcd(lhs.contiguity[d], rhs.constancy[d]),
            math.gcd(lhs.constancy[d], rhs.contiguity[d]),
        )
        # (2) The first element of a group is the sum of the operands' first elements.
        divisor = math.gcd(
            lhs.group_divisor(d, run, stride), _scaled(rhs.group_divisor(d, run), stride)
        )
        both = min(lhs.contiguity[d], rhs.contiguity[d])
        if run == 1 and both > 1:
            # base + t and base' + t: base + base' + 2t, with bases of aligned groups.
            bases = math.gcd(
                lhs.group_divisor(d, both, stride), _scaled(rhs.group_divisor(d, both), stride)
            )
            divisor = max(divisor, math.gcd(bases, 2 * stride))
        runs.append(run)
        divisors.append(divisor)
    return AxisInfo(tuple(runs), tuple(divisors), _constancy(visit))


def _subtract(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    runs, divisors = [], []
    for d in range(lhs.rank):
        # (1) A contiguous right operand would make the result descend.
        run = math.gcd(lhs.contiguity[d], rhs.constancy[d])
        divisor = math.gcd(lhs.group_divisor(d, run), rhs.group_divisor(d, run))
        both = min(lhs.contiguity[d], rhs.contiguity[d])
        if run == 1 and both > 1:
            # base + t minus base' + t: every element is a difference of two bases.
            bases = math.gcd(lhs.group_divisor(d, both), rhs.group_divisor(d, both))
            divisor = max(divisor, bases)
        runs.append(run)
        divisors.append(divisor)
    return AxisInfo(tuple(runs), tuple(divisors), _constancy(visit))


# ---- products, quotients, remainders, shifts


def _like(info: AxisInfo, constancy: tuple[int, ...]) -> AxisInfo:
    """Returns the same state with another constancy."""
    return replace(info, constancy=tuple(map(max, info.constancy, constancy)), constant=None)


def _everywhere(divisor: int, constancy: tuple[int, ...]) -> AxisInfo:
    """Returns a state without contiguous groups whose divisor holds for every element."""
    ones = (1,) * len(constancy)
    return AxisInfo(ones, (divisor,) * len(constancy), constancy)


def _multiply(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    if rhs.constant == 1:
        return _like(lhs, _constancy(visit))
    if lhs.constant == 1:
        return _like(rhs, _constancy(visit))
    ones = (1,) * lhs.rank
    divisors = tuple(
        _scaled(lhs.group_divisor(d, 1), rhs.group_divisor(d, 1)) for d in range(lhs.rank)
    )
    return AxisInfo(ones, divisors, _constancy(visit))


def _blocks(lhs: AxisInfo, rhs: AxisInfo, d: int) -> int:
    """Returns the length of the groups that a division by ``rhs`` cannot cut.

    In such a group ``lhs`` is contiguous and starts at a multiple of the length, and ``rhs`` is a
    single multiple of it: the quotient is constant, and the remainder is contiguous.
    """
    return math.gcd(lhs.contiguity[d], lhs.divisibility[d], rhs.constancy[d], rhs.divisibility[d])


def _quotient(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    constancy = _constancy(visit)
    if rhs.constant == 1:
        return _like(lhs, constancy)
    constancy = tuple(max(x, _blocks(lhs, rhs, d)) for d, x in enumerate(constancy))
    divisor = 1
    if lhs.constant == 0:
        divisor = LIMIT
    elif rhs.constant and abs(rhs.constant) == largest_power(rhs.constant):
        # (2) Every element is a multiple of both, so nothing is rounded.
        divisor = max(1, lhs.divisor // abs(rhs.constant))
    return _everywhere(divisor, constancy)


def _remainder(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    runs = tuple(_blocks(lhs, rhs, d) for d in range(lhs.rank))
    divisors = tuple(
        math.gcd(lhs.group_divisor(d, run), rhs.group_divisor(d, run)) for d, run in enumerate(runs)
    )
    return AxisInfo(runs, divisors, _constancy(visit))


def _shift_left(visit: Visit) -> AxisInfo:
    lhs, amount = visit.operands
    constancy = _constancy(visit)
    if amount.constant == 0:
        return _like(lhs, constancy)
    if amount.constant is None:
        return _everywhere(lhs.divisor, constancy)
    if not 0 < amount.constant < (visit.width or 64):
        return _everywhere(1, constancy)
    return _everywhere(_scaled(lhs.divisor, 1 << amount.constant), constancy)


def _shift_right(visit: Visit) -> AxisInfo:
    lhs, amount = visit.operands
    constancy = _constancy(visit)
    if amount.constant == 0:
        return _like(lhs, constancy)
    if amount.constant is None or not 0 < amount.constant < (visit.width or 64):
        return _everywhere(1, constancy)
    # A division by a power of two that rounds towards minus infinity.
    by = AxisInfo.splat(1 << amount.constant, visit.shape)
    constancy = tuple(max(x, _blocks(lhs, by, d)) for d, x in enumerate(constancy))
    return _everywhere(max(1, lhs.divisor >> amount.constant), constancy)


def _bits(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    # Low bits that are zero in both operands stay zero; for ``andi``, in either.
    choose = max if visit.op.name == "arith.andi" else math.gcd
    return _everywhere(choose(lhs.divisor, rhs.divisor), _constancy(visit))


# ---- choices


def _extreme(visit: Visit) -> AxisInfo:
    # Each group comes from one side: base + t and base' + t compare alike for every t.
    lhs, rhs = visit.operands
    return join(lhs, rhs)


def _compare(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    constancy = _constancy(visit)
    predicate = predicate_of(visit)
    kind = predicate[-2:] if predicate is not None else ""
    # (3) If one side is a multiple of n and the other contiguous from a multiple of n on, n
    # elements compare alike: all are below, or the first is equal and none is below.
    if kind in ("gt", "le"):
        constancy = tuple(max(x, _blocks(rhs, lhs, d)) for d, x in enumerate(constancy))
    elif kind in ("lt", "ge"):
        constancy = tuple(max(x, _blocks(lhs, rhs, d)) for d, x in enumerate(constancy))
    found = _everywhere(1, constancy)
    return found if predicate is not None else found.with_gap(visit.op)


def _select(visit: Visit) -> AxisInfo:
    condition, lhs, rhs = visit.operands
    if condition.constant is not None:
        return lhs if condition.constant else rhs
    found = join(lhs, rhs, visit.stride)
    if visit.types.shape(visit.op.operands[0]) != visit.shape:
        return found  # One i1 for the whole tensor.
    runs = tuple(map(math.gcd, found.contiguity, condition.constancy))
    divisors = tuple(
        math.gcd(lhs.group_divisor(d, n, visit.stride), rhs.group_divisor(d, n, visit.stride))
        for d, n in enumerate(runs)
    )
    constancy = tuple(map(math.gcd, found.constancy, condition.constancy))
    if found.constant is not None:
        constancy = found.constancy
    return AxisInfo(runs, divisors, constancy, found.constant)


def _cast(visit: Visit) -> AxisInfo:
    return replace(visit.operands[0], constant=None)


ARITH: dict[str, Rule] = {
    "arith.constant": _constant,
    "arith.addi": add,
    "arith.subi": _subtract,
    "arith.muli": _multiply,
    **dict.fromkeys(("arith.divsi", "arith.divui"), _quotient),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _remainder),
    "arith.shli": _shift_left,
    **dict.fromkeys(("arith.shrsi", "arith.shrui"), _shift_right),
    **dict.fromkeys(("arith.andi", "arith.ori", "arith.xori"), _bits),
    **dict.fromkeys(("arith.minsi", "arith.minui", "arith.maxsi", "arith.maxui"), _extreme),
    "arith.cmpi": _compare,
    "arith.select": _select,
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci"), _cast),
    **dict.fromkeys(("arith.index_cast", "arith.index_castui"), _cast),
}
