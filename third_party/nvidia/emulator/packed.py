"""Arithmetic in pairs of sm_100 (``add.f32x2`` and its like): element by element, rounded once."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation

__all__ = ["PACKED"]

_KINDS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": lambda a, b, c: a * b + c,
    "min": np.fmin,
    "max": np.fmax,
}


def _packed(op: Operation, context: Context) -> Step:
    (result,), operands = op.results, op.operands
    found = re.match(r"ttng\.packed_arith\s+(\w+)", op.text[op.text.index(op.name) :])
    function = _KINDS.get(found[1]) if found is not None else None
    element = context.element(result)
    if function is None or not all(context.element(each).is_float for each in operands):
        raise fault(op, "the emulator does not support this packed arithmetic")

    def step(group: Workgroup) -> None:
        # Wide enough that products are exact and sums are rounded once.
        values = [np.asarray(group.values[each]).astype(np.float64) for each in operands]
        group.values[result] = element.rounded(function(*values))

    return step


PACKED: dict[str, Prepare] = {"ttng.packed_arith": _packed}
