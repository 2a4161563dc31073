"""``tt``: tensors, pointers, reductions and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import tt
from triton_ext.ir.dialects.view import OpReader

from .clusters import cga_bases
from .elements import Array, Element, element_of
from .faults import fault
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["TENSOR"]

_AXES = {"x": 0, "y": 1, "z": 2}


def _program_id(op: Operation, context: Context) -> Step:
    axis = _axis(op)
    (result,) = op.results

    def step(group: Workgroup) -> None:
        group.values[result] = np.int32(group.program_id[axis])

    return step


def _num_programs(op: Operation, context: Context) -> Step:
    axis = _axis(op)
    (result,) = op.results

    def step(group: Workgroup) -> None:
        group.values[result] = np.int32(group.grid[axis])

    return step


def _axis(op: Operation) -> int:
    words = OpReader(op).words[-1].removeprefix(op.name).split()
    if not words or words[0] not in _AXES:
        raise fault(op, "expected an axis, x, y or z")
    return _AXES[words[0]]


def _make_range(op: Operation, context: Context) -> Step:
    view = tt.MakeRangeOp.match(op)
    assert view is not None
    (size,) = context.shape(view.result)
    # A CTA of a cluster has its share of the numbers.
    bases = cga_bases(context.type_of(view.result))

    def step(group: Workgroup) -> None:
        share = sum(basis[0] for bit, basis in enumerate(bases) if group.rank >> bit & 1)
        start = view.start + share * size
        group.values[view.result] = np.arange(start, start + size, dtype=np.int32)

    return step


def _reshaped(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results
    shape = context.shape(result)

    def step(group: Workgroup) -> None:
        group.values[result] = np.reshape(group.values[source], shape)

    return step


def _broadcast(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results
    shape = context.shape(result)

    def step(group: Workgroup) -> None:
        group.values[result] = np.broadcast_to(group.values[source], shape)

    return step


def _trans(op: Operation, context: Context) -> Step:
    view = tt.TransOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.values[view.result] = np.transpose(group.values[view.src], view.order)

    return step


def _split(op: Operation, context: Context) -> Step:
    (source,), results = op.operands, op.results

    def step(group: Workgroup) -> None:
        found: Array = np.asarray(group.values[source])
        for number, result in enumerate(results):
            group.values[result] = found[..., number]

    return step


def _join(op: Operation, context: Context) -> Step:
    (result,) = op.results

    def step(group: Workgroup) -> None:
        parts = [group.values[operand] for operand in op.operands]
        group.values[result] = np.stack(parts, axis=-1)

    return step


# ---- pointers


def _addptr(op: Operation, context: Context) -> Step:
    view = tt.AddPtrOp.match(op)
    assert view is not None
    size = _pointee(op.operands[0], context).size_bytes

    def step(group: Workgroup) -> None:
        values = group.values
        offset = np.asarray(values[view.offset]).astype(np.int64)
        values[view.result] = values[view.ptr] + offset * size

    return step


def _pointee(pointer: Value, context: Context) -> Element:
    type_: Any = context.type_of(pointer)
    return element_of(getattr(type_, "element", type_).pointee)


def _load(op: Operation, context: Context) -> Step:
    view = tt.LoadOp.match(op)
    assert view is not None
    element, shape = context.element(view.result), context.shape(view.result)

    def step(group: Workgroup) -> None:
        values = group.values
        mask = np.broadcast_to(True if view.mask is None else values[view.mask], shape)
        addresses = np.broadcast_to(values[view.ptr], shape)
        found = group.load(op, element, addresses, mask)
        if view.other is not None:
            found = np.where(mask, found, values[view.other])
        elif view.mask is not None:
            # Masked elements of a load without `other` are undefined.
            found = np.where(mask, found, element.poison())
        values[view.result] = found

    return step


def _store(op: Operation, context: Context) -> Step:
    view = tt.StoreOp.match(op)
    assert view is not None
    element, shape = context.element(view.value), context.shape(view.value)

    def step(group: Workgroup) -> None:
        values = group.values
        mask = np.broadcast_to(True if view.mask is None else values[view.mask], shape)
        addresses = np.broadcast_to(values[view.ptr], shape)
        group.store(op, element, addresses, mask, values[view.value])

    return step


# ---- reductions and products


def _reduce(op: Operation, context: Context) -> Step:
    axis = OpReader(op).integer("axis")
    block = op.regions[0].blocks[0]
    steps = context.block(block)
    terminator = block.terminator
    assert terminator is not None
    returned, arguments = terminator.operands, block.args
    elements = [context.element(value) for value in op.results]
    # A region of scalars runs once for all elements; tensors in it belong to one element each.
    has_tensors = any(context.shape(result) for inner in block.ops for result in inner.results)

    def combine(group: Workgroup, left: list[Any], right: list[Any]) -> list[Any]:
        if has_tensors:
            return one_by_one(group, left, right)
        group.values.update(zip(arguments, (*left, *right), strict=True))
        group.run(steps)
        return [group.values[value] for value in returned]

    def one_by_one(group: Workgroup, left: list[Any], right: list[Any]) -> list[Any]:
        found = [np.empty_like(each) for each in left]
        for place in np.ndindex(left[0].shape):
            values = [np.asarray(each[place]) for each in (*left, *right)]
            group.values.update(zip(arguments, values, strict=True))
            group.run(steps)
            for each, value in zip(found, returned, strict=True):
                each[place] = group.values[value]
        return found

    def step(group: Workgroup) -> None:
        parts = [np.moveaxis(group.values[value], axis, 0) for value in op.operands]
        while (size := parts[0].shape[0]) > 1:
            half = size // 2
            found = combine(group, [p[:half] for p in parts], [p[half : 2 * half] for p in parts])
            rest = [p[2 * half :] for p in parts]
            parts = [np.concatenate(pair) for pair in zip(found, rest, strict=True)]
        for result, part, element in zip(op.results, parts, elements, strict=True):
            group.values[result] = element.rounded(part[0])

    return step


def _map_elementwise(op: Operation, context: Context) -> Step:
    """A function of scalars for each element; it runs once for all of them."""
    block = op.regions[0].blocks[0]
    steps, terminator = context.block(block), block.terminator
    assert terminator is not None
    returned, shape = terminator.operands, context.shape(op.results[0])
    branches = any(inner.regions or inner.successors for inner in block.ops)
    if OpReader(op).integer("pack", 1) != 1 or branches or len(op.regions[0].blocks) > 1:
        raise fault(op, "the emulator does not support functions of several elements or paths here")

    def step(group: Workgroup) -> None:
        values = [group.values[value] for value in op.operands]
        group.values.update(zip(block.args, values, strict=True))
        group.run(steps)
        for result, value in zip(op.results, returned, strict=True):
            group.values[result] = np.broadcast_to(group.values[value], shape)

    return step


def _gather(op: Operation, context: Context) -> Step:
    axis = OpReader(op).integer("axis")
    source, indices = op.operands
    (result,) = op.results

    def step(group: Workgroup) -> None:
        values, places = np.asarray(group.values[source]), np.asarray(group.values[indices])
        size = values.shape[axis]
        if ((places < 0) | (places >= size)).any():
            raise fault(op, f"an index along axis {axis} is outside of 0 to {size - 1}")
        group.values[result] = np.take_along_axis(values, places, axis)

    return step


def _dot(op: Operation, context: Context) -> Step:
    view = tt.DotOp.match(op)
    assert view is not None
    element = context.element(view.result)
    # Products of 16-bit numbers are exact in float32, and are added in it.
    wide = np.dtype(np.float64) if element.dtype == np.float64 else np.dtype(np.float32)
    if not element.is_float:
        wide = np.dtype(np.int64)

    def step(group: Workgroup) -> None:
        values = group.values
        a = np.asarray(values[view.a]).astype(wide)
        b = np.asarray(values[view.b]).astype(wide)
        values[view.result] = element.rounded(np.matmul(a, b) + values[view.c])

    return step


TENSOR: dict[str, Prepare] = {
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.make_range": _make_range,
    "tt.splat": _broadcast,
    "tt.broadcast": _broadcast,
    "tt.unsplat": _reshaped,
    "tt.map_elementwise": _map_elementwise,
    "tt.expand_dims": _reshaped,
    "tt.reshape": _reshaped,
    "tt.trans": _trans,
    "tt.split": _split,
    "tt.join": _join,
    "tt.addptr": _addptr,
    "tt.load": _load,
    "tt.store": _store,
    "tt.reduce": _reduce,
    "tt.gather": _gather,
    "tt.dot": _dot,
}
