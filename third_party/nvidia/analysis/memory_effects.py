"""Memory effects of ``ttng`` operations (:mod:`triton_ext.analysis.memory_effects`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triton_ext.analysis.memory_effects import (
    BEFORE,
    NO_BARRIER,
    ORDERS_THREADS,
    Access,
    Barrier,
    BufferUse,
    Kind,
    Row,
)
from triton_ext.analysis.type_text import type_text
from triton_ext.analysis.warps import num_warps_of
from triton_ext.ir import Operation

__all__ = ["MEMORY_EFFECTS"]

_READ: Final = BufferUse(Access.READ)
_WRITE: Final = BufferUse(Access.WRITE)
_BOTH: Final = Access.READ | Access.WRITE
_ASYNC_READ: Final = BufferUse(Access.READ, Kind.ASYNC)
_ASYNC_WRITE: Final = BufferUse(Access.WRITE, Kind.ASYNC)
_ARRIVES: Final = BufferUse(Access.WRITE, Kind.BARRIER)
_HELD: Final = BufferUse(Access.HOLD)
#: Copies into shared memory are printed with the buffer in front of the mbarrier.
_TMA_LOAD: Final = Row(buffers=(_ASYNC_WRITE, _ARRIVES), pointer=Access.READ, is_reordered=True)
_TMA_STORE: Final = Row(buffers=(_ASYNC_READ,), pointer=_BOTH)


def _wgmma_wait(op: Operation) -> Barrier:
    """Warp groups meet at a wait for their own, unless each only waits for itself."""
    is_local = op.attributes.get("warpGroupLocal", "false").strip() != "false"
    return NO_BARRIER if is_local or num_warps_of(op, 4) <= 4 else BEFORE


def _mma(op: Operation) -> Barrier:
    """A product that arrives at an mbarrier is issued by one thread when all have arrived."""
    mbarriers = [v for v in op.operands if type_text(v).partition(",")[0].endswith("xi64")]
    return BEFORE if mbarriers else NO_BARRIER


#: Hosts that let all threads arrive before one of them arrives at an mbarrier.
_ARRIVALS: Final = "arrival-barriers"
#: Operations that touch no memory.
_NO_MEMORY: Final = (
    *("ttng.clc_get_program_id", "ttng.clc_is_canceled", "ttng.packed_arith"),
    "ttng.reinterpret_tensor_descriptor",
)
#: The same, but they stay where they are among accesses to memory.
_NO_MEMORY_IN_ORDER: Final = (
    *("ttng.clc_try_cancel_sync", "ttng.cluster_arrive", "ttng.cluster_wait", "ttng.fence"),
    *("ttng.fence_async_shared", "ttng.fence_mbarrier_init_release_cluster", "ttng.tmem_wait"),
)

MEMORY_EFFECTS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(_NO_MEMORY, Row()),
    **dict.fromkeys(_NO_MEMORY_IN_ORDER, Row(is_ordered=True)),
    # One thread of the CTA arrives, when all have.
    "ttng.arrive_barrier": Row(
        buffers=(BufferUse(_BOTH, Kind.BARRIER),), barrier=BEFORE, barrier_needs=_ARRIVALS
    ),
    "ttng.async_copy_mbarrier_arrive": Row(buffers=(_ARRIVES,)),
    "ttng.async_shared_store": Row(buffers=(_WRITE, _ARRIVES)),
    "ttng.async_tma_copy_global_to_local": _TMA_LOAD,
    "ttng.async_tma_copy_local_to_global": _TMA_STORE,
    "ttng.async_tma_gather": _TMA_LOAD,
    "ttng.async_tma_reduce": _TMA_STORE,
    "ttng.async_tma_scatter": _TMA_STORE,
    "ttng.async_tma_store_wait": Row(waits=True),
    "ttng.barrier_expect": Row(buffers=(_ARRIVES,), barrier=BEFORE, barrier_needs=_ARRIVALS),
    "ttng.clc_load_result": Row(buffers=(_READ,)),
    "ttng.clc_try_cancel": Row(buffers=(_ASYNC_WRITE, _ARRIVES)),
    "ttng.cluster_barrier": Row(barrier=BEFORE | Barrier.CLUSTER),
    "ttng.init_barrier": Row(buffers=(_WRITE,)),
    "ttng.inval_barrier": Row(buffers=(_WRITE,)),
    "ttng.tc_gen5_commit": Row(
        buffers=(_ARRIVES,), others=_HELD, barrier=BEFORE, barrier_needs=_ARRIVALS
    ),
    "ttng.tc_gen5_mma": Row(
        buffers=(_ASYNC_READ, _ASYNC_READ, BufferUse(_BOTH)),
        others=_ARRIVES,
        barrier=_mma,
        barrier_needs=_ARRIVALS,
    ),
    "ttng.tc_gen5_mma_scaled": Row(
        buffers=(_ASYNC_READ, _ASYNC_READ, BufferUse(_BOTH), _ASYNC_READ, _ASYNC_READ),
        others=_ARRIVES,
        barrier=_mma,
        barrier_needs=_ARRIVALS,
    ),
    "ttng.tensormap_create": Row(pointer=_BOTH),
    "ttng.tensormap_fenceproxy_acquire": Row(pointer=Access.WRITE),
    "ttng.tmem_alloc": Row(result=Access.ALLOCATE),
    "ttng.tmem_copy": Row(buffers=(_ASYNC_READ, _WRITE), others=_ARRIVES),
    "ttng.tmem_load": Row(buffers=(_READ,)),
    "ttng.tmem_store": Row(buffers=(_WRITE,)),
    "ttng.tmem_subslice": Row(is_view=True),
    "ttng.wait_barrier": Row(buffers=(BufferUse(_BOTH, Kind.BARRIER),), others=_HELD),
    "ttng.warp_group_dot": Row(others=_ASYNC_READ),
    "ttng.warp_group_dot_wait": Row(
        others=_HELD,
        barrier=_wgmma_wait,
        barrier_needs=ORDERS_THREADS,
        relaxed_by="warpGroupLocal",
    ),
}
