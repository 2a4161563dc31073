"""Range rules for ``tt`` and ``ttg`` operations that create, move and combine integers."""

from __future__ import annotations

import re

from ...ir.dialects import OpReader, tt
from .interval import IntegerRange
from .visit import Found, Rule, Visit

__all__ = ["TENSORS", "either", "first"]

_AXES = {"x": 0, "y": 1, "z": 2}
#: No device has more programs on an axis.
_MOST_PROGRAMS = (1 << 31) - 1
_AXIS = re.compile(r"[xyz]\b")


def first(visit: Visit) -> Found:
    """Returns the range of the first operand, for operations that move or drop elements."""
    return visit.operands[0]


def either(visit: Visit) -> Found:
    """Returns the union of the ranges of the operands."""
    return IntegerRange.union(visit.operands)


def _make_range(visit: Visit) -> Found:
    view = tt.MakeRangeOp.match(visit.op)
    if view is None or view.end <= view.start:
        return None
    return IntegerRange.wrapped(visit.width, (view.start, view.end - 1))


def _program_id(visit: Visit) -> Found:
    reader = OpReader(visit.op)
    axis = reader.optional_integer("axis")
    if axis is None:
        printed = _AXIS.match(reader.head)
        axis = _AXES[printed[0]] if printed is not None else None
    greatest = _MOST_PROGRAMS if axis is None else visit.programs.get(axis, _MOST_PROGRAMS)
    return IntegerRange.wrapped(visit.width, (0, greatest))


def _num_programs(visit: Visit) -> Found:
    return IntegerRange.wrapped(visit.width, (0, _MOST_PROGRAMS))


def _histogram(visit: Visit) -> Found:
    elements = 1
    for size in visit.types.shape(visit.op.operands[0]):
        elements *= size
    return IntegerRange.wrapped(visit.width, (0, elements))


def _high_product(visit: Visit) -> Found:
    lhs, rhs = visit.operands
    bounds = lhs.umin * rhs.umin >> visit.width, lhs.umax * rhs.umax >> visit.width
    return IntegerRange.unsigned(visit.width, *bounds)


TENSORS: dict[str, Rule] = {
    "gluon.set_auto_layout": first,
    "tt.broadcast": first,
    "tt.cat": either,
    "tt.expand_dims": first,
    "tt.gather": first,
    "tt.get_num_programs": _num_programs,
    "tt.get_program_id": _program_id,
    "tt.histogram": _histogram,
    "tt.join": either,
    "tt.make_range": _make_range,
    "tt.mulhiui": _high_product,
    "tt.reshape": first,
    "tt.splat": first,
    "tt.split": first,
    "tt.trans": first,
    "tt.unsplat": first,
    "ttg.convert_layout": first,
}
