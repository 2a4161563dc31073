"""Memory effects of ``amdg`` operations (:mod:`triton_ext.analysis.memory_effects`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triton_ext.analysis.memory_effects import Access, BufferUse, Kind, Row

__all__ = ["MEMORY_EFFECTS"]

_READ: Final = BufferUse(Access.READ)
_WRITE: Final = BufferUse(Access.WRITE)
_BOTH: Final = Access.READ | Access.WRITE
#: The mbarrier that a TDM operation arrives at.
_ARRIVES: Final = BufferUse(Access.WRITE, Kind.BARRIER)
_MBARRIER: Final = Row(buffers=(BufferUse(_BOTH, Kind.BARRIER),))
# Atomics contain no barrier, whatever their memory order.
_ATOMIC: Final = Row(pointer=_BOTH, pointer_at=-1)
_TRANSPOSED: Final = Row(buffers=(_READ,))

#: Operations that access no memory.
_NO_MEMORY: Final = (
    *("amdg.concat", "amdg.extract_slice", "amdg.in_thread_transpose"),
    *("amdg.scaled_downcast_fp4", "amdg.scaled_downcast_fp8", "amdg.scaled_upcast_fp4"),
    *("amdg.scaled_upcast_fp8", "amdg.upcast_mxfp", "amdg.update_tensor_descriptor"),
)
#: The same, but ordered among accesses to memory.
_NO_MEMORY_IN_ORDER: Final = (
    *("amdg.cluster_barrier_arrive", "amdg.cluster_barrier_wait", "amdg.cond_barrier"),
    *("amdg.instruction_sched_hint", "amdg.memory_counter_wait"),
)

MEMORY_EFFECTS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(_NO_MEMORY, Row()),
    **dict.fromkeys(_NO_MEMORY_IN_ORDER, Row(is_ordered=True)),
    "amdg.arrive_barrier": _MBARRIER,
    "amdg.async_copy_local_to_global": Row(buffers=(_READ,), pointer=Access.WRITE),
    "amdg.async_copy_mbarrier_arrive": _MBARRIER,
    "amdg.async_tdm_copy_global_to_local": Row(buffers=(_WRITE, _ARRIVES), pointer=Access.READ),
    "amdg.async_tdm_copy_local_to_global": Row(buffers=(_READ, _ARRIVES), pointer=Access.WRITE),
    "amdg.async_tdm_fused_copy_global_to_local": Row(
        others=_WRITE, pointer=Access.READ, pointer_at=None
    ),
    "amdg.async_tdm_gather": Row(buffers=(_WRITE, _ARRIVES), pointer=Access.READ),
    "amdg.async_tdm_intrinsic_wait": Row(waits=True),
    "amdg.async_tdm_scatter": Row(buffers=(_READ, _ARRIVES), pointer=Access.WRITE),
    "amdg.async_tdm_wait": Row(waits=True),
    "amdg.async_wait": Row(waits=True),
    "amdg.buffer_atomic_cas": _ATOMIC,
    "amdg.buffer_atomic_rmw": _ATOMIC,
    "amdg.buffer_load": Row(pointer=Access.READ),
    "amdg.buffer_load_to_local": Row(buffers=(_WRITE,), pointer=Access.READ),
    "amdg.buffer_store": Row(pointer=Access.WRITE, pointer_at=-1),
    "amdg.init_barrier": Row(buffers=(_WRITE,)),
    "amdg.local_load_packed_tranposed": _TRANSPOSED,  # misspelled up to Triton 3.8
    "amdg.local_load_packed_transposed": _TRANSPOSED,
    "amdg.masked_load": Row(pointer=Access.READ),
    "amdg.masked_store": Row(pointer=Access.WRITE),
    "amdg.tdm_prefetch": Row(pointer=Access.READ),
    "amdg.wait_barrier": _MBARRIER,
}
