"""Pairs of LDS accesses that need no workgroup barrier on AMD.

Sources: ``third_party/amd/lib/TritonAMDGPUToLLVM/MembarUtility.cpp`` of Triton; for the third rule
the barriers of Triton 3.9.0, over all pairs of operations.
"""

from __future__ import annotations

from typing import Final

from triton_ext.analysis.membar import Pair
from triton_ext.analysis.value_flow import ValueFlow
from triton_ext.ir import Module, Operation, OpResult, Value
from triton_ext.ir.dialects import ttg
from triton_ext.ir.dialects.view import OpReader

__all__ = ["SYNCED", "needs_no_barrier", "synced_loads"]

#: Attribute of a read of LDS: whether it reads only data guarded by asynchronous waits.
SYNCED: Final = "ttg.amdg.syncedViaAsyncWait"
_LOADS: Final = frozenset(
    {ttg.LocalLoadOp.NAME, "amdg.local_load_packed_transposed"}
    | {"amdg.local_load_packed_tranposed"}  # so it is called up to Triton 3.8
)
_COPIES: Final = frozenset({ttg.AsyncCopyGlobalToLocalOp.NAME, "amdg.buffer_load_to_local"})
#: Asynchronous operations that write LDS.
_ASYNC_WRITES: Final = _COPIES | {
    "amdg.async_tdm_copy_global_to_local",
    "amdg.async_tdm_fused_copy_global_to_local",
    "amdg.async_tdm_gather",
}
_WAITS: Final = frozenset({"ttg.async_wait", "amdg.async_wait", "amdg.async_tdm_wait"})
_MBARRIERS: Final = frozenset(
    {"amdg.init_barrier", "amdg.arrive_barrier", "amdg.async_copy_mbarrier_arrive"}
    | {"amdg.wait_barrier"}
)


def needs_no_barrier(pair: Pair) -> bool:
    """Returns whether two overlapping accesses are ordered without a barrier.

    1. A guarded read and a copy into the same allocation: the barrier after the wait orders them.
    2. Operations on an mbarrier: the hardware orders their instructions.
    3. Two asynchronous copies into LDS: a barrier does not wait for the first one.
    """
    before, after = pair.before, pair.after
    for names in (_MBARRIERS, _ASYNC_WRITES):
        if before.name in names and after.name in names:
            return True
    read, copy = (before, after) if pair.before_reads else (after, before)
    if read.name != ttg.LocalLoadOp.NAME or copy.name not in _COPIES:
        return False
    if pair.before_slice.buffer is None or pair.before_slice.buffer != pair.after_slice.buffer:
        return False
    return read.attributes.get(SYNCED, "").strip() == "true"


def synced_loads(module: Module) -> dict[Operation, bool]:
    """Returns for each read of LDS whether an asynchronous wait, and nothing else, guards it.

    Omits reads that have the attribute already.
    """
    flow = ValueFlow.of_module(module.op)
    found = {}
    for op in module.op.walk():
        if op.name in _LOADS and SYNCED not in op.attributes:
            reader = OpReader(op)
            reader.take()
            token = reader.take_optional("token")
            found[op] = token is not None and _is_of_wait(token, flow)
    return found


def _is_of_wait(token: Value, flow: ValueFlow) -> bool:
    """Returns whether a token can only come from asynchronous waits."""
    origins = flow.origins(token)
    return origins.is_complete and all(
        isinstance(each, OpResult) and each.owner.name in _WAITS for each in origins.values
    )
