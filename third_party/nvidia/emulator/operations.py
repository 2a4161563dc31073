"""``ttng`` operations of sm_90 and sm_100: mbarriers, copies, tensor memory, matrix products."""

from __future__ import annotations

import numpy as np
from triton_ext.emulator.elements import Element
from triton_ext.emulator.faults import fault
from triton_ext.emulator.workgroup import Context, Prepare, Step, Workgroup
from triton_ext.ir import Operation

from ..dialect.cluster import CTA_RANK_ASM
from .clc import CLC
from .copies import COPIES
from .cp_async import CP_ASYNC
from .mbarriers import MBARRIERS
from .packed import PACKED
from .tcgen05 import TCGEN05
from .tensor_memory import TENSOR_MEMORY, VIEWS
from .wgmma import WGMMA

__all__ = ["OPERATIONS"]


def _nothing(op: Operation, context: Context) -> Step:
    return lambda group: None


_BYTE = Element("i8", np.dtype(np.int8), 1)


def _prefetch(op: Operation, context: Context) -> Step:
    """Only checks the addresses: there are no caches to fill."""
    (addresses,), (result,) = op.operands, op.results
    shape = context.shape(result)

    def step(group: Workgroup) -> None:
        group.load(op, _BYTE, group.values[addresses], np.broadcast_to(True, shape))
        group.values[result] = np.zeros(shape, np.int32)

    return step


def _inline_asm(op: Operation, context: Context) -> Step:
    """The number of a CTA; grid dependencies, which hosts up to 3.8 write in PTX; prefetches.

    Kernels run one after the other, and there are no caches.
    """
    if CTA_RANK_ASM in op.text:
        (result,) = op.results

        def step(group: Workgroup) -> None:
            group.values[result] = np.asarray(group.rank, np.int32)

        return step
    if "prefetch.global." in op.text:
        return _prefetch(op, context)
    if "griddepcontrol." not in op.text:
        raise fault(op, "the emulator does not support this inline assembly")
    return _nothing(op, context)


def _for_cuda(prepare: Prepare) -> Prepare:
    """Refuses an operation in modules for which accesses to shared memory are not ordered."""

    def prepared(op: Operation, context: Context) -> Step:
        module = op.module
        text = module.op.attributes.get("ttg.target", "none") if module is not None else "none"
        if not text.strip('"').startswith("cuda:"):
            raise fault(
                op, f"'{op.name}' needs a module with ttg.target = \"cuda:90\", this one has {text}"
            )
        return prepare(op, context)

    return prepared


_FOR_CUDA = MBARRIERS | COPIES | CP_ASYNC | WGMMA | TENSOR_MEMORY | TCGEN05 | PACKED | CLC

OPERATIONS: dict[str, Prepare] = {
    **{name: _for_cuda(prepare) for name, prepare in _FOR_CUDA.items()},
    **VIEWS,
    "tt.elementwise_inline_asm": _inline_asm,
    "tt.grid_dependency_launch_dependents": _nothing,
    "tt.grid_dependency_wait": _nothing,
}
