"""Cluster launch control of sm_100: a running CTA takes over one that has not started.

PTX ISA, "clusterlaunchcontrol.try_cancel": the answer is written to shared memory and counts as 16
bytes of an mbarrier.  CTAs are taken over in the order in which they would start.
"""

from __future__ import annotations

import re

import numpy as np
from triton_ext.emulator.elements import Array
from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation

from .copies import start_load
from .mbarriers import barrier_of, races_of

__all__ = ["CLC"]

#: Bits of a coordinate of the grid in an answer; the second number is 1 where there was a CTA.
_BITS = 21


def _try_cancel(op: Operation, context: Context) -> Step:
    result, barrier = op.operands

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        if group.cluster is not None and group.rank:
            # The first CTA asks, and all get the answer.
            return
        answer: Array = np.zeros(2, np.int64)
        if group.pending:
            x, y, z = group.pending.pop(0)
            answer[:] = x | y << _BITS | z << 2 * _BITS, 1
        ranks = range(1 if group.cluster is None else len(group.cluster.groups))
        for rank in ranks:
            owner, buffer = group, group.values[result]
            at = barrier_of(op, group, group.values[barrier], rank if len(ranks) > 1 else None)
            if group.cluster is not None:
                owner = group.cluster.groups[rank]
                buffer = group.cluster.twin(buffer, group.rank, rank)
            owner.check_refill(op, buffer)
            races_of(group).check_fence(op, buffer, writes=True)
            start_load(op, owner, buffer, answer, at)

    return step


def _load_result(op: Operation, context: Context) -> Step:
    (source,), (result,) = op.operands, op.results

    def step(group: Workgroup) -> None:
        group.fibers.pause()
        group.values[result] = group.read_lds(op, group.values[source])

    return step


def _is_canceled(op: Operation, context: Context) -> Step:
    (answer,), (result,) = op.operands, op.results

    def step(group: Workgroup) -> None:
        group.values[result] = np.asarray(group.values[answer][1] != 0)

    return step


def _program_id(op: Operation, context: Context) -> Step:
    (answer,), (result,) = op.operands, op.results
    found = re.search(r",\s*([xyz])\b", op.text[op.text.index(op.name) :])
    if found is None:
        raise fault(op, "expected a dimension of the grid, x, y or z")
    shift = "xyz".index(found[1]) * _BITS

    def step(group: Workgroup) -> None:
        number = int(group.values[answer][0]) >> shift & (1 << _BITS) - 1
        group.values[result] = np.asarray(number, np.int32)

    return step


CLC: dict[str, Prepare] = {
    "ttng.clc_try_cancel": _try_cancel,
    "ttng.clc_load_result": _load_result,
    "ttng.clc_is_canceled": _is_canceled,
    "ttng.clc_get_program_id": _program_id,
}
