"""Atomic operations on global memory: one element after the other, in the order of the tensor.

Workgroups run one after the other, so a kernel may wait for what an earlier one wrote.  Who polls
for what nobody writes is refused after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from triton_ext.ir import Operation
from triton_ext.ir.dialects.view import OpReader

from .elements import Array, Element, element_of
from .faults import fault
from .workgroup import Context, Prepare, Step, Workgroup

__all__ = ["ATOMIC"]

#: Comparisons in a row that fail, of one part of a kernel, until nobody is expected to help.
_MOST_POLLS = 2000

_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "exch": lambda old, new: new,
}
_UNSIGNED = {"umax": np.maximum, "umin": np.minimum}


def _combine(op: Operation, kind: str) -> Callable[[Any, Any], Any]:
    if kind in _UNSIGNED:

        def unsigned(old: Any, new: Any) -> Any:
            dtype = old.dtype
            raw = np.dtype(f"u{dtype.itemsize}")
            return _UNSIGNED[kind](old.view(raw), new.view(raw)).view(dtype)

        return unsigned
    if kind not in _KINDS:
        raise fault(op, f"the emulator does not support the atomic operation '{kind}'")
    return _KINDS[kind]


def _element_of(op: Operation, context: Context) -> tuple[Element, tuple[int, ...]]:
    type_: Any = context.type_of(op.operands[0])
    pointer = getattr(type_, "element", type_)
    return element_of(pointer.pointee), context.shape(op.operands[0])


def _one_by_one(
    op: Operation,
    group: Workgroup,
    element: Element,
    addresses: Array,
    mask: Array,
    new: Callable[[int, Any], Any],
) -> Array:
    """Replaces element after element by ``new(number, old)``; the old ones."""
    found: Array = np.zeros(addresses.size, element.dtype)
    one: Array = np.ones(1, np.bool_)
    for number in range(addresses.size):
        if not mask[number]:
            continue
        address = addresses[number : number + 1]
        found[number] = group.load(op, element, address, one)[0]
        group.store(op, element, address, one, element.rounded(new(number, found[number])))
    return found


def _rmw(op: Operation, context: Context) -> Step:
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    kind = OpReader(op).words[0].removeprefix(op.name).split(",")[0].strip()
    combine = _combine(op, kind)
    element, shape = _element_of(op, context)

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        addresses = np.broadcast_to(values[pointer], shape).reshape(-1)
        given = np.broadcast_to(values[value], shape).reshape(-1)
        chosen = np.broadcast_to(True if mask is None else values[mask], shape).reshape(-1)
        found = _one_by_one(
            op, group, element, addresses, chosen, lambda i, old: combine(old, given[i])
        )
        for result in op.results:
            values[result] = found.reshape(shape) if shape else found[0]

    return step


class _Polls:
    """Comparisons in a row that failed, of one part of a kernel."""

    def __init__(self) -> None:
        self.count = 0


def _cas(op: Operation, context: Context) -> Step:
    pointer, compare, value = op.operands[:3]
    element, shape = _element_of(op, context)

    def step(group: Workgroup) -> None:
        values = group.values
        group.fibers.pause()
        addresses = np.broadcast_to(values[pointer], shape).reshape(-1)
        expected = np.broadcast_to(values[compare], shape).reshape(-1)
        given = np.broadcast_to(values[value], shape).reshape(-1)
        found = _one_by_one(
            op,
            group,
            element,
            addresses,
            np.ones(addresses.size, np.bool_),
            lambda i, old: given[i] if old == expected[i] else old,
        )
        polls = group.own.setdefault(_Polls, _Polls())
        polls.count = 0 if (found == expected).any() else polls.count + 1
        if polls.count > _MOST_POLLS:
            raise fault(
                op,
                f"deadlock: waits for a value of {expected[0]} that nobody writes, found "
                f"{found[0]} {polls.count} times",
                f"this is program {group.program_id}; programs run one after the other, so only "
                "earlier ones can help",
            )
        for result in op.results:
            values[result] = found.reshape(shape) if shape else found[0]

    return step


ATOMIC: dict[str, Prepare] = {"tt.atomic_rmw": _rmw, "tt.atomic_cas": _cas}
