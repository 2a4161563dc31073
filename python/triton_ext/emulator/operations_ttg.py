"""``ttg``: LDS buffers, views of them, and conversions of layouts, which move no value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from triton_ext.ir import Operation
from triton_ext.ir.dialects import ttg
from triton_ext.ir.dialects.view import OpReader

from .faults import UnreadyError, fault
from .memory import LdsView
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["TTG", "buffer_name"]


def buffer_name(op: Operation) -> str:
    """Returns the name of a buffer: that of its location, or that of the value."""
    return (op.loc.name if op.loc is not None else None) or op.results[0].name.lstrip("%")


def _local_alloc(op: Operation, context: Context) -> Step:
    view = ttg.LocalAllocOp.match(op)
    assert view is not None
    element, shape, name = context.element(view.result), context.shape(view.result), buffer_name(op)
    # Offsets of partitioned values are a list: those get memory of their own.
    place = OpReader(op).attribute("allocation.offset")
    offset = place.value if place is not None and isinstance(place.value, int) else None

    def step(group: Workgroup) -> None:
        has_history = group.races is not None
        buffer = LdsView.allocate(element, shape, name, group.lds, offset, has_history=has_history)
        if view.src is not None:
            group.write_lds(op, buffer, group.values[view.src])
        group.values[view.result] = group.buffers[op] = buffer

    return step


def _local_load(op: Operation, context: Context) -> Step:
    view = ttg.LocalLoadOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.values[view.result] = group.read_lds(op, group.values[view.src])

    return step


def _local_store(op: Operation, context: Context) -> Step:
    view = ttg.LocalStoreOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.write_lds(op, group.values[view.dst], group.values[view.src])

    return step


class _Outside:
    """A buffer that is outside of an array of buffers; whoever uses it is refused."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        raise UnreadyError(self._message)


def _index(op: Operation, context: Context) -> Step:
    view = ttg.MemDescIndexOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        buffers: LdsView = group.values[view.src]
        index = group.scalar(view.index)
        if 0 <= index < buffers.shape[0]:
            group.values[view.result] = buffers.view(index)
        else:
            # An address alone does no harm: the access may be predicated off.
            what = f"index {index} of {buffers.shape[0]} buffers '{buffers.name}'"
            group.values[view.result] = _Outside(what)

    return step


def _subslice(op: Operation, context: Context) -> Step:
    view = ttg.MemDescSubsliceOp.match(op)
    assert view is not None
    shape = context.shape(view.result)
    key = tuple(slice(o, o + n) for o, n in zip(view.offsets, shape, strict=True))

    def step(group: Workgroup) -> None:
        group.values[view.result] = group.values[view.src].view(key)

    return step


def _trans(op: Operation, context: Context) -> Step:
    view = ttg.MemDescTransOp.match(op)
    assert view is not None

    def step(group: Workgroup) -> None:
        group.values[view.result] = group.values[view.src].transpose(view.order)

    return step


def _reshape(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results
    shape = context.shape(result)

    def step(group: Workgroup) -> None:
        group.values[result] = group.values[source].reshape(shape)

    return step


def _reinterpret(op: Operation, context: Context) -> Step:
    """Another layout, or another shape of all elements; the values are where they were."""
    (source,), (result,) = op.operands, op.results
    before, after = context.element(source), context.element(result)
    if before != after:
        raise fault(op, f"the emulator cannot view {before.name} in a buffer as {after.name}")
    if math.prod(context.shape(source)) != math.prod(context.shape(result)):
        raise fault(op, "the emulator cannot view a part of this buffer as a buffer")
    return _reshape(op, context)


def _warp_specialize(op: Operation, context: Context) -> Step:
    view = ttg.WarpSpecializeOp.match(op)
    assert view is not None
    default = context.block(view.default)
    terminator = view.default.terminator
    yielded = terminator.operands if terminator is not None else ()
    parts = [(context.block(p.block), p.block.args) for p in view.partitions]

    def step(group: Workgroup) -> None:
        captured = [group.values[value] for value in view.captures]

        def partition(number: int) -> Callable[[], None]:
            steps, args = parts[number]
            part = group.fork(f"partition {number}")
            part.values.update(zip(args, captured, strict=True))
            forks.append(part)
            return lambda: part.run(steps)

        forks: list[Workgroup] = []
        others = [partition(number) for number in range(len(parts))]
        first = group.fork("the default partition")
        # The same warps as in front: what they started is theirs to wait for.
        first.own = group.own
        forks.append(first)
        group.fibers.together([lambda: first.run(default), *others])
        for part in forks:
            if group.agent is not None and part.agent is not None:
                group.agent.learn(part.agent.hand_on())
        found = [first.values[value] for value in yielded]
        group.values.update(zip(view.results, found, strict=True))

    return step


def _convert_layout(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results
    moves = source.type != result.type

    def step(group: Workgroup) -> None:
        found = group.values[source]
        # To move registers is to read them: a value that is not there yet refuses.
        group.values[result] = np.asarray(found) if moves else found

    return step


TTG: dict[str, Prepare] = {
    "ttg.local_alloc": _local_alloc,
    "ttg.local_load": _local_load,
    "ttg.local_store": _local_store,
    "ttg.memdesc_index": _index,
    "ttg.memdesc_subslice": _subslice,
    "ttg.memdesc_trans": _trans,
    "ttg.memdesc_reinterpret": _reinterpret,
    "ttg.memdesc_reshape": _reshape,
    "ttg.convert_layout": _convert_layout,
    "ttg.warp_specialize": _warp_specialize,
}
