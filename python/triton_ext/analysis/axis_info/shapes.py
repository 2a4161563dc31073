"""Rules for operations that create, move and reshape tensors (``tt``, ``ttg`` and casts)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

from ...ir import Operation, Value
from ...ir.dialects import tt
from ...ir.types import OpaqueType
from .arith import add
from .info import LIMIT, AxisInfo, join, largest_power
from .visit import Rule, Visit

__all__ = ["SHAPES"]

_CAST = "builtin.unrealized_conversion_cast"


def _make_range(visit: Visit) -> AxisInfo | None:
    view = tt.MakeRangeOp.match(visit.op)
    if view is None:
        return None
    # Hosts treat 0 here as a multiple of 2**30, the largest power of two in a signed i32.
    divisor = min(largest_power(view.start), 1 << 30)
    return AxisInfo((view.end - view.start,), (divisor,), (1,))


def _poison(visit: Visit) -> AxisInfo:
    # No execution may depend on poison, so every claim holds.
    most = (LIMIT,) * len(visit.shape)
    return AxisInfo(most, most, most)


def _splat(visit: Visit) -> AxisInfo:
    source, shape = visit.operands[0], visit.shape
    rank = len(shape)
    return AxisInfo((1,) * rank, (source.divisor,) * rank, shape, source.constant)


def _same(visit: Visit) -> AxisInfo:
    source = visit.operands[0]
    if source.constant is not None:
        return AxisInfo.splat(source.constant, visit.shape)
    return source


def _unrealized(visit: Visit) -> AxisInfo | None:
    """``builtin.unrealized_conversion_cast`` of a value to another type, and back.

    A type of another dialect, such as an LLVM structure, keeps the claims of the tensor in it.
    """
    if len(visit.operands) != 1 or len(visit.op.results) != 1:
        return None
    known, result = visit.operands[0], visit.op.results[0]
    origin = _cast_from(visit.op.operands[0])
    foreign = isinstance(visit.types.kind(result).element, OpaqueType)
    if not foreign and visit.types.shape(origin) != visit.shape:
        return None
    kept = origin.known_type == result.known_type
    return known if kept else replace(known, constant=None)


def _cast_from(value: Value) -> Value:
    """Returns the start of a chain of such casts."""
    owner = value.owner
    while isinstance(owner, Operation) and owner.name == _CAST and len(owner.operands) == 1:
        value = owner.operands[0]
        owner = value.owner
    return value


def _reinterpret(visit: Visit) -> AxisInfo:
    """``tt.bitcast``, ``tt.ptr_to_int``, ``tt.int_to_ptr``: same bits, other element steps."""
    source = visit.operands[0]
    before = visit.types.kind(visit.op.operands[0]).stride
    if before == visit.stride:
        return source if visit.width is not None else replace(source, constant=None)
    # (2) Each element of a contiguous group now starts its own group.
    divisor = max(source.divisor, *(math.gcd(x, before) for x in source.divisibility))
    rank = source.rank
    found = AxisInfo((1,) * rank, (divisor,) * rank, source.constancy, source.constant)
    if max(source.contiguity) > 1 and visit.op.name == "tt.bitcast":
        # Hosts up to 3.8 keep the contiguity.
        return found.with_gap(visit.op)
    return found


def _expand_dims(visit: Visit) -> AxisInfo | None:
    view, source = tt.ExpandDimsOp.match(visit.op), visit.operands[0]
    if view is None or source.constant is not None:
        return _same(visit)
    at = view.axis

    def insert(numbers: tuple[int, ...], new: int) -> tuple[int, ...]:
        return (*numbers[:at], new, *numbers[at:])

    return AxisInfo(
        insert(source.contiguity, 1),
        insert(source.divisibility, source.divisor),
        insert(source.constancy, 1),
    )


def _broadcast(visit: Visit) -> AxisInfo | None:
    source, shape = visit.operands[0], visit.shape
    before = visit.types.shape(visit.op.operands[0])
    if len(before) != len(shape):
        return None
    wide = [old == 1 for old in before]
    return AxisInfo(
        tuple(1 if w else x for w, x in zip(wide, source.contiguity, strict=True)),
        source.divisibility,
        tuple(new if w else x for w, x, new in zip(wide, source.constancy, shape, strict=True)),
        source.constant,
    )


def _trans(visit: Visit) -> AxisInfo | None:
    view, source = tt.TransOp.match(visit.op), visit.operands[0]
    if view is None or sorted(view.order) != list(range(source.rank)):
        return None
    return AxisInfo(
        tuple(source.contiguity[d] for d in view.order),
        tuple(source.divisibility[d] for d in view.order),
        tuple(source.constancy[d] for d in view.order),
        source.constant,
    )


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Returns the elements per step in each dimension, preceded by the total size."""
    return list(accumulate(reversed(shape), int.__mul__, initial=1))[::-1]


def _reshape(visit: Visit) -> AxisInfo:
    source, shape = visit.operands[0], visit.shape
    if source.constant is not None:
        return _same(visit)
    if "allow_reorder" in visit.op.attributes or " allow_reorder" in visit.op.text:
        # Elements may be permuted: only what holds for each of them remains.
        ones = (1,) * len(shape)
        return AxisInfo(ones, (source.divisor,) * len(shape), ones).with_gap(visit.op)
    before = visit.types.shape(visit.op.operands[0])
    old, new = _strides(before), _strides(shape)
    runs, divisors, repeats = [], [], []
    for d, size in enumerate(shape):
        step = new[d + 1]
        # The source dimension of one step in this dimension.
        at = next((i for i in range(len(before)) if old[i + 1] <= step < old[i]), None)
        run, divisor, repeat = 1, source.divisor, 1
        if at is None:
            repeat = size  # Only a dimension of size 1 steps outside of the source.
        elif old[at + 1] == step and source.contiguity[at] > 1:
            run = min(source.contiguity[at], size)
            divisor = source.group_divisor(at, run, visit.stride)
        elif step <= old[at + 1] * source.constancy[at]:
            repeat = _repeats(source, before, at, old[at + 1] * source.constancy[at] // step, size)
        runs.append(run)
        divisors.append(divisor)
        repeats.append(repeat)
    return AxisInfo(tuple(runs), tuple(divisors), tuple(repeats))


def _repeats(source: AxisInfo, before: tuple[int, ...], at: int, inside: int, size: int) -> int:
    """(3) of a dimension that starts ``inside`` equal elements of source dimension ``at``."""
    repeat = min(size, inside)
    # A dimension that is entirely constant extends the run into the next outer one.
    while source.constancy[at] == before[at] and at > 0 and repeat < size:
        at -= 1
        piece = min(before[at], size // repeat)
        repeat *= min(source.constancy[at], piece)
        if source.constancy[at] < piece:
            break
    return repeat


def _join(visit: Visit) -> AxisInfo:
    lhs, rhs = visit.operands
    found = join(lhs, rhs, visit.stride)
    divisor = math.gcd(lhs.divisor, rhs.divisor)
    return AxisInfo((*found.contiguity, 1), (*found.divisibility, divisor), (*found.constancy, 1))


def _split(visit: Visit) -> AxisInfo:
    source = visit.operands[0]
    if source.rank == 1:
        return AxisInfo((1,), (source.divisor,), (1,), source.constant)
    return AxisInfo(
        source.contiguity[:-1], source.divisibility[:-1], source.constancy[:-1], source.constant
    )


def _load(visit: Visit) -> AxisInfo:
    # (3) Equal addresses hold equal values, if mask and `other` are constant in the group too.
    pointer, *others = (x.constancy for x in visit.operands)
    constancy = claimed = pointer
    for position, other in enumerate(others):
        constancy = tuple(map(math.gcd, constancy, other))
        if position == 0:
            claimed = constancy
    ones = (1,) * len(constancy)
    found = AxisInfo(ones, ones, constancy)
    # Hosts ignore `other`.
    return found if claimed == constancy else found.with_gap(visit.op)


SHAPES: dict[str, Rule] = {
    _CAST: _unrealized,
    "gluon.set_auto_layout": _same,
    "tt.addptr": add,
    "tt.bitcast": _reinterpret,
    "tt.broadcast": _broadcast,
    "tt.expand_dims": _expand_dims,
    "tt.int_to_ptr": _reinterpret,
    "tt.join": _join,
    "tt.load": _load,
    "tt.make_range": _make_range,
    "tt.ptr_to_int": _reinterpret,
    "tt.reshape": _reshape,
    "tt.splat": _splat,
    "tt.split": _split,
    "tt.trans": _trans,
    "ttg.convert_layout": _same,
    "ub.poison": _poison,
}
