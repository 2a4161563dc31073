"""``arith`` and ``math``: elementwise operations, each one numpy function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_ext.ir import Operation
from triton_ext.ir.dialects.arith import CmpIOp, ConstantOp, SelectOp
from triton_ext.ir.dialects.view import OpReader

from .elements import Array
from .faults import fault
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["ARITH"]

Function = Callable[..., Any]


def _unsigned(array: Any) -> Array:
    array = np.asarray(array)
    return array if array.dtype == np.bool_ else array.view(f"u{array.dtype.itemsize}")


def _trunc_div(a: Any, b: Any) -> Any:
    """Division that rounds to zero; division by zero is 0."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, 1, b)
    quotient = a // safe
    inexact = (a - quotient * safe != 0) & ((a < 0) != (safe < 0))
    return np.where(b == 0, 0, quotient + inexact).astype(a.dtype)


def _trunc_rem(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    return (a - _trunc_div(a, b) * b).astype(a.dtype)


def _floor_div(a: Any, b: Any) -> Any:
    return np.where(np.asarray(b) == 0, 0, a // np.where(np.asarray(b) == 0, 1, b))


def _ceil_div(a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    floor = _floor_div(a, b)
    return floor + ((b != 0) & (floor * b != a))


def _as_unsigned(function: Function) -> Function:
    def wrapped(a: Any, b: Any) -> Any:
        result = np.asarray(function(_unsigned(a), _unsigned(b)))
        return result.view(np.asarray(a).dtype) if result.dtype != np.bool_ else result

    return wrapped


def _udiv(a: Any, b: Any) -> Any:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b)).astype(a.dtype)


def _urem(a: Any, b: Any) -> Any:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b)).astype(a.dtype)


def _shift(function: Function) -> Function:
    """A shift by as many bits as the type has or more is poison in LLVM; here it gives 0."""

    def wrapped(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        bits = a.dtype.itemsize * 8
        return np.where(_unsigned(b) < bits, function(a, b & (bits - 1)), 0).astype(a.dtype)

    return wrapped


#: On i1 numpy has other operations than on wider integers.
_ON_BITS: dict[str, Function] = {
    "arith.addi": np.logical_xor,
    "arith.subi": np.logical_xor,
    "arith.muli": np.logical_and,
}

_SIMPLE: dict[str, Function] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _trunc_div,
    "arith.remsi": _trunc_rem,
    "arith.floordivsi": _floor_div,
    "arith.ceildivsi": _ceil_div,
    "arith.divui": _as_unsigned(_udiv),
    "arith.remui": _as_unsigned(_urem),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": _shift(np.left_shift),
    "arith.shrsi": _shift(np.right_shift),
    "arith.shrui": _shift(_as_unsigned(np.right_shift)),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": _as_unsigned(np.maximum),
    "arith.minui": _as_unsigned(np.minimum),
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.ceil": np.ceil,
    "math.cos": np.cos,
    "math.erf": np.vectorize(math.erf, otypes=[np.float64]),
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.floor": np.floor,
    "math.fma": lambda a, b, c: a * b + c,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.rsqrt": lambda a: 1 / np.sqrt(a),
    "math.sin": np.sin,
    "math.sqrt": np.sqrt,
    "math.tanh": np.tanh,
    "tt.clampf": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "tt.precise_divf": np.divide,
    "tt.precise_sqrt": np.sqrt,
}


def _simple(op: Operation, context: Context) -> Step:
    element = context.element(op.results[0])
    function = _SIMPLE[op.name]
    if element.dtype == np.bool_:
        function = _ON_BITS.get(op.name, function)
    operands, (result,) = op.operands, op.results
    if element.is_float:

        def step(group: Workgroup) -> None:
            values = group.values
            values[result] = element.rounded(function(*[values[x] for x in operands]))

    else:

        def step(group: Workgroup) -> None:
            values = group.values
            found = function(*[values[x] for x in operands])
            values[result] = np.asarray(found).astype(element.dtype, copy=False)

    return step


# ---- conversions


def _to_integer(values: Any, dtype: Any) -> Array:
    """Truncates towards zero; what does not fit saturates, as on AMD GPUs."""
    info = np.iinfo(dtype)
    whole = np.nan_to_num(np.trunc(np.asarray(values, np.float64)), nan=0.0)
    clipped = np.clip(whole, float(info.min), float(info.max))
    # The largest int64 is no float64: what is at the limit is put there by hand.
    return np.where(clipped >= float(info.max), info.max, clipped.astype(dtype)).astype(dtype)


def _convert(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands[:1], op.results
    before, after = context.element(source), context.element(result)
    name = op.name.partition(".")[2]

    def convert(values: Any) -> Any:
        if name in ("extui", "index_castui", "uitofp"):
            values = _unsigned(values)
        if name == "extsi" and before.dtype == np.bool_:
            return -np.asarray(values).astype(after.dtype)
        if name == "trunci" and after.dtype == np.bool_:
            return (np.asarray(values) & 1) != 0
        if name == "fptosi":
            return _to_integer(values, after.dtype)
        if name == "fptoui":
            unsigned = np.dtype(f"u{after.size_bytes}")
            return _to_integer(np.maximum(values, 0), unsigned).view(after.dtype)
        if name == "bitcast":
            return after.from_memory(before.to_memory(values)).reshape(np.shape(values))
        return after.rounded(np.asarray(values).astype(after.dtype))

    def step(group: Workgroup) -> None:
        group.values[result] = convert(group.values[source])

    return step


_CONVERSIONS = ("bitcast", "extf", "extsi", "extui", "fptosi", "fptoui", "index_cast")
_MORE_CONVERSIONS = ("index_castui", "sitofp", "truncf", "trunci", "uitofp")


# ---- constants, comparisons


def _constant(op: Operation, context: Context) -> Step:
    view = ConstantOp.match(op)
    assert view is not None
    element, shape = context.element(view.result), context.shape(view.result)
    found = view.value
    if isinstance(found, str):
        raise fault(op, f"the emulator cannot read the constant {found}")
    if element.is_float:
        constant = element.rounded(np.asarray(found, np.float64).astype(element.dtype))
    elif element.dtype == np.bool_:
        constant = np.asarray(found) != 0
    else:
        bits = 8 * element.size_bytes
        wrapped = (np.asarray(found, object) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        constant = np.asarray(wrapped).astype(element.dtype)
    constant = np.broadcast_to(constant.reshape(shape if constant.size > 1 else ()), shape)

    def step(group: Workgroup) -> None:
        group.values[view.result] = constant

    return step


_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _cmpi(op: Operation, context: Context) -> Step:
    view = CmpIOp.match(op)
    assert view is not None
    function = _COMPARE[view.predicate[-2:]]
    unsigned = view.predicate[0] == "u"

    def step(group: Workgroup) -> None:
        a, b = group.values[view.lhs], group.values[view.rhs]
        if unsigned:
            a, b = _unsigned(a), _unsigned(b)
        group.values[view.result] = function(a, b)

    return step


def _cmpf(op: Operation, context: Context) -> Step:
    lhs, rhs = op.operands
    predicate = re.sub(r",.*", "", OpReader(op).head).strip()
    if predicate not in ("true", "false", "ord", "uno") and predicate[1:] not in _COMPARE:
        raise fault(op, f"the emulator does not support the comparison '{predicate}'")
    (result,) = op.results

    def compare(a: Any, b: Any) -> Any:
        unordered = np.isnan(a) | np.isnan(b)
        if predicate in ("true", "false"):
            return np.full(np.shape(a), predicate == "true")
        if predicate in ("ord", "uno"):
            return unordered == (predicate == "uno")
        found = _COMPARE[predicate[1:]](a, b)
        return found & ~unordered if predicate[0] == "o" else found | unordered

    def step(group: Workgroup) -> None:
        group.values[result] = compare(group.values[lhs], group.values[rhs])

    return step


def _select(op: Operation, context: Context) -> Step:
    view = SelectOp.match(op)
    assert view is not None
    is_scalar = context.shape(view.condition) == ()

    def step(group: Workgroup) -> None:
        values = group.values
        condition = values[view.condition]
        # A region of scalars may run for many elements at once.
        if is_scalar and np.ndim(condition) == 0:
            # The values may have any type, also that of a descriptor or a pointer.
            values[view.result] = values[view.true_value if condition else view.false_value]
        else:
            values[view.result] = np.where(
                condition, values[view.true_value], values[view.false_value]
            )

    return step


ARITH: dict[str, Prepare] = {
    **{name: _simple for name in _SIMPLE},
    **{f"arith.{name}": _convert for name in (*_CONVERSIONS, *_MORE_CONVERSIONS)},
    "tt.bitcast": _convert,
    "tt.fp_to_fp": _convert,
    "arith.constant": _constant,
    "arith.cmpi": _cmpi,
    "arith.cmpf": _cmpf,
    "arith.select": _select,
}
