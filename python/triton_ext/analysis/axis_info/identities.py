"""Rewrites that a host may apply to an operation before it analyses it.

Between our analysis and its own a host runs MLIR's canonicalizer, which knows integer identities.
A rule sees the printed operation: if an identity gives more than the rule claims, the host may know
more than we do (property 6).  Covered are identities of one operation and of a pair that cancels;
larger expressions are assumed canonical, as Triton's own passes leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import and_, mul, or_, xor

from ...ir import Operation, Value
from ...ir.dialects import arith
from .info import LIMIT, AxisInfo, exact
from .visit import Rules, Visit

__all__ = ["claims_less", "is_decided", "is_inlined", "simpler"]

_DIVISIONS = frozenset(f"arith.{name}" for name in ("ceildivsi", "ceildivui", "floordivsi"))
_QUOTIENTS = _DIVISIONS | {"arith.divsi", "arith.divui"}
_REMAINDERS = frozenset({"arith.remsi", "arith.remui"})
_SHIFTS = frozenset({"arith.shli", "arith.shrsi", "arith.shrui"})
_BITS = frozenset({"arith.andi", "arith.ori", "arith.xori"})
_EXTREMES = frozenset({"arith.maxsi", "arith.maxui", "arith.minsi", "arith.minui"})
_SUMS = frozenset({"arith.addi", "arith.subi"})
_COMMUTE = _BITS | _EXTREMES | {"arith.addi", "arith.muli"}
_LIKE_MULTIPLY = frozenset({"arith.mulsi_extended", "arith.mului_extended"})
#: For each operation those that it may undo, or whose result it may pass through.
_UNDOES = {
    "arith.addi": frozenset({"arith.subi"}),
    "arith.subi": _SUMS,
    **dict.fromkeys(_BITS, _BITS),
    **dict.fromkeys(_EXTREMES, _EXTREMES),
    **dict.fromkeys(_QUOTIENTS | _REMAINDERS, frozenset({"arith.muli"}) | _REMAINDERS),
    **dict.fromkeys(_SHIFTS, _SHIFTS),
}

#: Combines the constants of two nested operations of the same name.
_COMBINE: dict[str, Callable[[int, int], int]] = {
    "arith.andi": and_,
    "arith.maxsi": max,
    "arith.maxui": max,
    "arith.minsi": min,
    "arith.minui": min,
    "arith.muli": mul,
    "arith.ori": or_,
    "arith.xori": xor,
}
#: Returns the state of a value, if any.
State = Callable[[Value], "AxisInfo | None"]


def claims_less(found: AxisInfo | None, other: AxisInfo) -> bool:
    """Returns whether ``found`` (``None``: nothing) lacks a claim of ``other``."""
    found = (AxisInfo.nothing(other.rank) if found is None else found).normalized()
    other = other.normalized()
    if other.constant is not None and other.constant != found.constant:
        return True
    pairs = (
        (found.contiguity, other.contiguity),
        (found.divisibility, other.divisibility),
        (found.constancy, other.constancy),
    )
    return any(x < y for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True))


def simpler(visit: Visit, state: State, rules: Rules) -> Iterator[AxisInfo]:
    """Yields the state of each value that a host may replace an operation's result by.

    Args:
        visit: The operation.
        state: Returns the state of any value.
        rules: The rule of each operation, by name.
    """
    name, width = visit.op.name, visit.width
    if not name.startswith("arith.") or width is None:
        return
    if any(is_decided(visit.op, value) for value in visit.op.operands):
        yield _everything(visit)
    if name == "arith.select":
        yield from _selected(visit)
    elif name == "arith.cmpi":
        if _compares_with_extreme(visit):
            yield AxisInfo.splat(0, visit.shape)
            yield AxisInfo.splat(1, visit.shape)
    elif len(visit.operands) == 2:
        yield from _with_constant(visit, width)
        yield from _with_itself(visit)
        yield from _undone(visit, state)
        yield from _combined(visit, width, state, rules)


def is_decided(op: Operation, value: Value | None = None) -> bool:
    """Returns whether a branch around or to an operation decides a condition there.

    Args:
        op: The operation.
        value: The condition; by default the first operand.
    """
    condition = op.operands[0] if value is None else value
    if condition.known_type != "i1" or len(condition._users) < 2:
        return False
    if any(user.name == "cf.cond_br" and user is not op for user in condition._users):
        return True
    around = op.parent_op
    while around is not None:
        if around.name == "scf.if" and around.operands[0] is condition:
            return True
        around = around.parent_op
    return False


def is_inlined(function: Operation) -> bool:
    """Returns whether a host inlines a function into its callers."""
    return bool(function.regions) and function.attributes.get("noinline") != "true"


def _everything(visit: Visit) -> AxisInfo:
    most = (LIMIT,) * len(visit.shape)
    return AxisInfo(most, most, most)


def _with_constant(visit: Visit, width: int) -> Iterator[AxisInfo]:
    """``x op c`` that simplifies to ``x``, or to a constant."""
    name = visit.op.name
    for place in (0, 1):
        number, other = visit.operands[place].constant, visit.operands[1 - place]
        if number is None:
            continue
        if number in _neutral(name, width) and (place == 1 or name in _COMMUTE):
            yield other
        if number in _absorbing(name, place, width):
            yield AxisInfo.splat(0 if name in _REMAINDERS else number, visit.shape)


def _neutral(name: str, width: int) -> tuple[int, ...]:
    """Returns the neutral constants on the right."""
    if name in _SUMS or name in _SHIFTS or name in ("arith.ori", "arith.xori", "arith.maxui"):
        return (0,)
    if name in _QUOTIENTS or name in _LIKE_MULTIPLY or name == "arith.muli":
        return (1,)
    if name in ("arith.andi", "arith.minui"):
        return (exact(-1, width),)
    return {
        "arith.addui_extended": (0,),
        "arith.maxsi": (_least(width),),
        "arith.minsi": (_greatest(width),),
    }.get(name, ())


def _absorbing(name: str, place: int, width: int) -> tuple[int, ...]:
    """Returns the constants that determine the result (0 for remainders)."""
    if name in ("arith.andi", "arith.minui", "arith.muli") or name in _LIKE_MULTIPLY:
        return (0,)
    if name in ("arith.ori", "arith.maxui"):
        return (exact(-1, width),)
    if name in _REMAINDERS:
        return (0,) if place == 0 else (1, exact(-1, width))
    if place == 0 and (name in _QUOTIENTS or name in _SHIFTS):
        return (0, -1) if name == "arith.shrsi" else (0,)
    return {
        "arith.maxsi": (_greatest(width),),
        "arith.minsi": (_least(width),),
    }.get(name, ())


def _least(width: int) -> int:
    return exact(1 << (width - 1), width)


def _greatest(width: int) -> int:
    # For i1, whose signed true is -1, the greatest prints as 0.
    return (1 << (width - 1)) - 1


def _with_itself(visit: Visit) -> Iterator[AxisInfo]:
    """``x op x``; the rules cover results of 0."""
    lhs, rhs = visit.op.operands
    if lhs is rhs and visit.op.name in _BITS | _EXTREMES:
        yield visit.operands[0]
    elif lhs is rhs and visit.op.name in _QUOTIENTS:
        yield AxisInfo.splat(1, visit.shape)
    elif lhs is rhs and visit.op.name in _REMAINDERS:
        yield AxisInfo.splat(0, visit.shape)


def _undone(visit: Visit, state: State) -> Iterator[AxisInfo]:
    """``(x op n) op' n``: the host may use ``x``, ``n`` or 0."""
    undoes = _UNDOES.get(visit.op.name, frozenset())
    for place in (0, 1):
        inner, other = visit.op.operands[place].owner, visit.op.operands[1 - place]
        if not isinstance(inner, Operation) or inner.name not in undoes:
            continue
        if any(_is_same(operand, other, state) for operand in inner.operands):
            for operand in inner.operands:
                known = state(operand)
                if known is not None:
                    yield known
            yield AxisInfo.splat(0, visit.shape)


def _is_same(one: Value, other: Value, state: State) -> bool:
    if one is other:
        return True
    first, second = state(one), state(other)
    return (
        first is not None
        and second is not None
        and first.constant is not None
        and first.constant == second.constant
    )


def _combined(visit: Visit, width: int, state: State, rules: Rules) -> Iterator[AxisInfo]:
    """``(x op c) op' c'``: the host may use ``x op c''``."""
    name = visit.op.name
    if name not in _COMMUTE | _SUMS:
        return
    for place in (0, 1):
        inner, last = visit.op.operands[place].owner, visit.operands[1 - place].constant
        if last is None or not isinstance(inner, Operation) or len(inner.operands) != 2:
            continue
        if inner.name != name and not (name in _SUMS and inner.name in _SUMS):
            continue
        for at in (0, 1):
            kept, first = state(inner.operands[1 - at]), state(inner.operands[at])
            if kept is None or first is None or first.constant is None:
                continue
            if name in _SUMS:
                numbers = _sum(inner.name, at, first.constant, name, place, last)
                yield from _added(visit, width, kept, numbers, rules)
                continue
            made = replace(visit, operands=(kept, _splat(visit, width, name, first.constant, last)))
            found = rules[name](made)
            if found is not None:
                yield found
            yield from _with_constant(made, width)


def _splat(visit: Visit, width: int, name: str, first: int, last: int) -> AxisInfo:
    """Returns ``c''`` of ``x op c''``."""
    if name[-2:] == "ui":
        mask = (1 << width) - 1
        first, last = first & mask, last & mask
    number = _COMBINE[name](first, last)
    return AxisInfo.splat(exact(number, width), visit.shape)


def _sum(inner: str, at: int, first: int, outer: str, place: int, last: int) -> tuple[bool, int]:
    """Returns whether ``(x +- c) +- c'`` negates ``x``, and the constant that it adds."""
    negative, number = False, first
    if inner == "arith.subi":
        negative, number = at == 0, first if at == 0 else -first
    if outer == "arith.addi":
        return negative, number + last
    return (negative, number - last) if place == 0 else (not negative, last - number)


def _added(
    visit: Visit, width: int, kept: AxisInfo, numbers: tuple[bool, int], rules: Rules
) -> Iterator[AxisInfo]:
    """``x + c``, or ``c - x``."""
    negative, number = numbers
    whole = AxisInfo.splat(exact(number, width), visit.shape)
    operands = (whole, kept) if negative else (kept, whole)
    found = rules["arith.subi" if negative else "arith.addi"](replace(visit, operands=operands))
    if found is not None:
        yield found


def _compares_with_extreme(visit: Visit) -> bool:
    """Returns whether a comparison has the same outcome for every number."""
    view = arith.CmpIOp.match(visit.op)
    bits = visit.types.kind(visit.op.operands[0]).element.bit_width
    if view is None or bits is None:
        return True
    for place in (0, 1):
        number, other = visit.operands[place].constant, visit.op.operands[1 - place]
        if number is None:
            continue
        if _extends_truth(other, visit) and number not in (0, 1, -1):
            return True
        extremes = {"u": (0, exact(-1, bits)), "s": (_least(bits), _greatest(bits))}
        if number in extremes.get(view.predicate[0], ()):
            return True
    return False


def _extends_truth(value: Value, visit: Visit) -> bool:
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name not in ("arith.extsi", "arith.extui"):
        return False
    return visit.types.kind(owner.operands[0]).element.bit_width == 1


def _selected(visit: Visit) -> Iterator[AxisInfo]:
    """``select``: one of its arms, if the condition compares the arms or both are equal."""
    condition, *arms = visit.op.operands
    decides = condition.owner
    if isinstance(decides, Operation) and decides.name == "arith.cmpi":
        places = [i for i, arm in enumerate(arms) if any(arm is x for x in decides.operands)]
        if len(places) == 2:
            yield from visit.operands[1:]
    for arm in arms:
        inner = arm.owner
        if not isinstance(inner, Operation) or inner.name != "arith.select":
            continue
        if inner.operands[0] is condition:
            yield _everything(visit)
