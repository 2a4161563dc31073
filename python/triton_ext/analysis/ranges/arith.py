"""Range rules for ``arith``: bounds of the exact result, truncated to the result's width.

Operands that make an operation poison are excluded: divisors are not 0, shifts are shorter than the
width, and flags such as ``nsw`` hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from ...ir.attribute_values import BoolAttr, DenseElementsAttr, IntegerAttr
from ...ir.dialects import arith
from .bits import and_bounds, or_bounds, xor_bounds
from .interval import Bounds, IntegerRange
from .visit import Found, Rule, Visit, width_of

__all__ = ["ARITH", "decided"]

Exact = Callable[[int, int], int]


def _unsigned(one: IntegerRange) -> Bounds:
    return one.umin, one.umax


def _signed(one: IntegerRange) -> Bounds:
    return one.smin, one.smax


def _corners(exact: Exact, lhs: Bounds, rhs: Bounds) -> Bounds:
    """Returns the bounds of a function that is monotone in each argument."""
    found = [exact(a, b) for a, b in product(lhs, rhs)]
    return min(found), max(found)


def _hull(found: Iterable[Bounds]) -> Bounds | None:
    all_bounds = tuple(found)
    if not all_bounds:
        return None
    return min(lowest for lowest, _ in all_bounds), max(highest for _, highest in all_bounds)


# ---- constants


def _constant(visit: Visit) -> Found:
    view = arith.ConstantOp.match(visit.op)
    attribute = view.attribute if view is not None else None
    if isinstance(attribute, DenseElementsAttr):
        return IntegerRange.union(
            IntegerRange.constant(visit.width, number) for number in _numbers(attribute.value)
        )
    if isinstance(attribute, (BoolAttr, IntegerAttr)):
        return IntegerRange.constant(visit.width, int(attribute.value))
    return None


def _numbers(value: object) -> Iterable[int]:
    """Yields the numbers in nested tuples."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, tuple):
            stack.extend(one)
        elif isinstance(one, int):
            yield int(one)


# ---- sums and products


def _wrapping(exact: Exact) -> Rule:
    """Returns the rule of an operation that is the same in both readings, up to truncation.

    Args:
        exact: The operation on integers; monotone in each argument.
    """

    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        return _cut(
            visit,
            _corners(exact, _unsigned(lhs), _unsigned(rhs)),
            _corners(exact, _signed(lhs), _signed(rhs)),
        )

    return rule


def _cut(visit: Visit, unsigned: Bounds, signed: Bounds) -> IntegerRange:
    """Returns the range of a result with these bounds, by the readings of the operands."""
    found = IntegerRange.wrapped(visit.width, unsigned, signed)
    flags = arith.poison_flags(visit.op)
    if "nuw" in flags:
        found = found.narrowed(unsigned=unsigned)
    if "nsw" in flags:
        found = found.narrowed(signed=signed)
    return found


def _extended_sum(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    lowest, highest = lhs.umin + rhs.umin, lhs.umax + rhs.umax
    total = IntegerRange.wrapped(visit.width, (lowest, highest))
    return total, IntegerRange.unsigned(1, lowest >> visit.width, highest >> visit.width)


def _extended_product(read: Callable[[IntegerRange], Bounds]) -> Rule:
    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        lowest, highest = _corners(int.__mul__, read(lhs), read(rhs))
        high = (lowest >> visit.width, highest >> visit.width)
        return (
            IntegerRange.wrapped(visit.width, (lowest, highest)),
            IntegerRange.wrapped(visit.width, high),
        )

    return rule


# ---- quotients and remainders


def _toward_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _signed_quotient(exact: Exact) -> Rule:
    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        # A quotient is monotone while the divisor keeps its sign.
        divisors = ((rhs.smin, min(rhs.smax, -1)), (max(rhs.smin, 1), rhs.smax))
        bounds = _hull(
            _corners(exact, _signed(lhs), each) for each in divisors if each[0] <= each[1]
        )
        # The only quotient that does not fit is poison.
        return None if bounds is None else IntegerRange.full(visit.width).narrowed(signed=bounds)

    return rule


def _unsigned_quotient(exact: Exact) -> Rule:
    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        if not rhs.umax:
            return None
        divisors = [(max(1, lowest), highest) for lowest, highest in rhs.pieces() if highest]
        bounds = _hull(
            _corners(exact, piece, divisor) for piece in lhs.pieces() for divisor in divisors
        )
        return None if bounds is None else IntegerRange.unsigned(visit.width, *bounds)

    return rule


def _unsigned_remainder(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    if not rhs.umax:
        return None
    pieces = [_rest(piece, (max(1, rhs.umin), rhs.umax)) for piece in lhs.pieces()]
    bounds = _hull(pieces)
    return None if bounds is None else IntegerRange.unsigned(visit.width, *bounds)


def _rest(lhs: Bounds, rhs: Bounds) -> Bounds:
    """Returns the bounds of ``a % b`` for non-negative ``a`` and positive ``b``."""
    if lhs[1] < rhs[0]:
        return lhs  # No dividend reaches a divisor.
    if rhs[0] == rhs[1] and lhs[0] // rhs[0] == lhs[1] // rhs[0]:
        return lhs[0] % rhs[0], lhs[1] % rhs[0]
    return 0, min(lhs[1], rhs[1] - 1)


def _signed_remainder(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    largest = max(abs(rhs.smin), abs(rhs.smax))
    if not largest:
        return None
    smallest = max(1, rhs.smin, -rhs.smax)
    # The remainder has the sign of the dividend; its absolute value is the remainder of those.
    pieces = []
    if lhs.smax >= 0:
        pieces.append(_rest((max(lhs.smin, 0), lhs.smax), (smallest, largest)))
    if lhs.smin < 0:
        lowest, highest = _rest((max(-lhs.smax, 0), -lhs.smin), (smallest, largest))
        pieces.append((-highest, -lowest))
    bounds = _hull(pieces)
    return None if bounds is None else IntegerRange.full(visit.width).narrowed(signed=bounds)


# ---- bits and shifts


def _bitwise(bounds_of: Callable[[Bounds, Bounds, int], Bounds]) -> Rule:
    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        return IntegerRange.union(
            IntegerRange.unsigned(visit.width, *bounds_of(a, b, visit.width))
            for a in lhs.pieces()
            for b in rhs.pieces()
        )

    return rule


def _amounts(rhs: IntegerRange, width: int) -> Bounds | None:
    """Returns the shift amounts that are not poison, or ``None``."""
    return (rhs.umin, min(rhs.umax, width - 1)) if rhs.umin < width else None


def _shift_left(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    amount = _amounts(rhs, visit.width)
    if amount is None:
        return None
    return _cut(
        visit,
        _corners(int.__lshift__, _unsigned(lhs), amount),
        _corners(int.__lshift__, _signed(lhs), amount),
    )


def _shift_right_signed(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    amount = _amounts(rhs, visit.width)
    if amount is None:
        return None
    bounds = _corners(int.__rshift__, _signed(lhs), amount)
    return IntegerRange.full(visit.width).narrowed(signed=bounds)


def _shift_right_unsigned(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    amount = _amounts(rhs, visit.width)
    if amount is None:
        return None
    return IntegerRange.union(
        IntegerRange.unsigned(visit.width, *_corners(int.__rshift__, piece, amount))
        for piece in lhs.pieces()
    )


# ---- choices


def _extreme(choose: Callable[[int, int], int], read: Callable[[IntegerRange], Bounds]) -> Rule:
    is_signed = read is _signed

    def rule(visit: Visit) -> Found:
        lhs, rhs = visit.operands
        (a, b), (c, d) = read(lhs), read(rhs)
        bounds = choose(a, c), choose(b, d)
        # The result is one of the two operands.
        found = lhs.joined(rhs)
        return found.narrowed(signed=bounds) if is_signed else found.narrowed(unsigned=bounds)

    return rule


def _select(visit: Visit) -> Found:
    condition, lhs, rhs = visit.operands
    if condition.truth is not None:
        return lhs if condition.truth else rhs
    return lhs.joined(rhs)


def _compare(visit: Visit) -> Found:
    view = arith.CmpIOp.match(visit.op)
    found = decided(view.predicate, *visit.operands) if view is not None else None
    return None if found is None else IntegerRange.constant(1, int(found))


def decided(predicate: str, lhs: IntegerRange, rhs: IntegerRange) -> bool | None:
    """Returns the outcome of a comparison if it is the same for all numbers of two ranges.

    Args:
        predicate: The predicate of ``arith.cmpi``.
        lhs: Range of the left operand.
        rhs: Range of the right operand.

    Returns:
        ``None`` if the outcome depends on the numbers.
    """
    if predicate in ("eq", "ne"):
        apart = lhs.umax < rhs.umin or rhs.umax < lhs.umin
        apart = apart or lhs.smax < rhs.smin or rhs.smax < lhs.smin
        if apart:
            return predicate == "ne"
        same = lhs.number is not None and lhs.number == rhs.number
        return predicate == "eq" if same else None
    read = _signed if predicate[:1] == "s" else _unsigned
    (a, b), (c, d) = read(lhs), read(rhs)
    always, never = {
        "lt": (b < c, a >= d),
        "le": (b <= c, a > d),
        "gt": (a > d, b <= c),
        "ge": (a >= d, b < c),
    }.get(predicate[1:], (False, False))
    return True if always else False if never else None


# ---- casts


def _extend_signed(visit: Visit) -> Found:
    (source,) = visit.operands
    return IntegerRange.signed(visit.width, source.smin, source.smax)


def _extend_unsigned(visit: Visit) -> Found:
    (source,) = visit.operands
    if "nneg" in arith.poison_flags(visit.op):
        source = source.narrowed(signed=(0, max(0, source.smax)))
    return IntegerRange.unsigned(visit.width, source.umin, source.umax)


def _truncate(visit: Visit) -> Found:
    (source,) = visit.operands
    return _cut(visit, _unsigned(source), _signed(source))


def _index_cast(extend: Rule) -> Rule:
    def rule(visit: Visit) -> Found:
        before = width_of(visit.op.operands[0], visit.types) or 0
        return extend(visit) if visit.width >= before else _truncate(visit)

    return rule


ARITH: dict[str, Rule] = {
    "arith.constant": _constant,
    "arith.addi": _wrapping(int.__add__),
    "arith.subi": _wrapping(int.__sub__),
    "arith.muli": _wrapping(int.__mul__),
    "arith.addui_extended": _extended_sum,
    "arith.mulsi_extended": _extended_product(_signed),
    "arith.mului_extended": _extended_product(_unsigned),
    "arith.divsi": _signed_quotient(_toward_zero),
    "arith.floordivsi": _signed_quotient(int.__floordiv__),
    "arith.ceildivsi": _signed_quotient(lambda a, b: -(-a // b)),
    "arith.divui": _unsigned_quotient(int.__floordiv__),
    "arith.ceildivui": _unsigned_quotient(lambda a, b: -(-a // b)),
    "arith.remsi": _signed_remainder,
    "arith.remui": _unsigned_remainder,
    "arith.andi": _bitwise(and_bounds),
    "arith.ori": _bitwise(or_bounds),
    "arith.xori": _bitwise(xor_bounds),
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right_signed,
    "arith.shrui": _shift_right_unsigned,
    "arith.minsi": _extreme(min, _signed),
    "arith.maxsi": _extreme(max, _signed),
    "arith.minui": _extreme(min, _unsigned),
    "arith.maxui": _extreme(max, _unsigned),
    "arith.cmpi": _compare,
    "arith.select": _select,
    "arith.extsi": _extend_signed,
    "arith.extui": _extend_unsigned,
    "arith.trunci": _truncate,
    "arith.index_cast": _index_cast(_extend_signed),
    "arith.index_castui": _index_cast(_extend_unsigned),
}
