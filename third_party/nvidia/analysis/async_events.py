"""Reads ``ttng`` and ``ttg`` operations as events on mbarriers and shared memory.

The units and what is assumed of them: docs/async-waits.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from triton_ext.analysis.interleavings import (
    Access,
    Arrive,
    Commit,
    Copy,
    Event,
    Fence,
    Init,
    Inval,
    Join,
    Lifetime,
    NotDecided,
    Retire,
    Start,
    Wait,
    size_bytes,
)
from triton_ext.ir import Operation, Value
from triton_ext.ir.dialects import ttg

from ..dialect import mbarrier, mma, tma
from ..dialect.join import is_join

__all__ = ["read_event"]

_Reader: TypeAlias = Callable[[Operation], Sequence[Event]]

_WGMMA: Final = "product"
_STORE: Final = "store"
_CP_ASYNC: Final = "cp.async"


def read_event(op: Operation) -> Sequence[Event] | None:
    """Returns what an operation does; ``None`` if it does nothing to shared memory.

    Raises:
        NotDecided: It may do something that is not modelled.
    """
    reader = _READERS.get(op.name)
    if reader is not None:
        return reader(op)
    if op.name in _NOTHING or not op.name.startswith(_DIALECTS):
        return None
    raise NotDecided(op, f"'{op.name}' is not modelled")


def _is_tensor_in_memory(value: Value) -> bool:
    return value.type.startswith("!ttg.memdesc<")


def _init(op: Operation) -> Sequence[Event]:
    view = mbarrier.InitBarrierOp.match(op)
    assert view is not None
    return (Init(op, view.barrier, view.count),)


def _inval(op: Operation) -> Sequence[Event]:
    view = mbarrier.InvalBarrierOp.match(op)
    assert view is not None
    return (Inval(op, view.barrier),)


def _expect(op: Operation) -> Sequence[Event]:
    view = mbarrier.BarrierExpectOp.match(op)
    assert view is not None
    return (Arrive(op, view.barrier, 1, view.size, view.pred),)


def _arrive(op: Operation) -> Sequence[Event]:
    view = mbarrier.ArriveBarrierOp.match(op)
    assert view is not None
    return (Arrive(op, view.barrier, view.count, 0, view.pred),)


def _wait(op: Operation) -> Sequence[Event]:
    view = mbarrier.WaitBarrierOp.match(op)
    assert view is not None
    return (Wait(op, view.barrier, view.phase, view.pred),)


def _fence(op: Operation) -> Sequence[Event]:
    return (Fence(op),)


def _load(op: Operation) -> Sequence[Event]:
    view = tma.AsyncTmaCopyGlobalToLocalOp.match(op)
    assert view is not None
    if view.multicast:
        raise NotDecided(op, "multicast copies are not modelled")
    size = size_bytes(view.result)
    return (Copy(op, view.result, view.barrier, size, view.pred),)


def _gather(op: Operation) -> Sequence[Event]:
    view = tma.AsyncTmaGatherOp.match(op)
    assert view is not None
    return (Copy(op, view.result, view.barrier, size_bytes(view.result), view.pred),)


def _store(op: Operation) -> Sequence[Event]:
    source = next(value for value in op.operands if _is_tensor_in_memory(value))
    return (Start(op, _STORE, reads=(source,)),)


def _store_wait(op: Operation) -> Sequence[Event]:
    view = tma.TmaStoreWaitOp.match(op)
    assert view is not None
    return (Retire(op, _STORE, view.pendings),)


def _dot(op: Operation) -> Sequence[Event]:
    view = mma.WarpGroupDotOp.match(op)
    assert view is not None
    reads = tuple(value for value in (view.a, view.b) if _is_tensor_in_memory(value))
    is_over = not view.is_async
    result = None if is_over else view.result
    return (Start(op, _WGMMA, reads=reads, takes=(view.c,), result=result, is_over=is_over),)


def _dot_wait(op: Operation) -> Sequence[Event]:
    view = mma.WarpGroupDotWaitOp.match(op)
    assert view is not None
    return (Retire(op, _WGMMA, view.pendings, view.inputs, view.results),)


def _library(op: Operation) -> Sequence[Event]:
    if is_join(op):
        return (Join(op, _WGMMA, len(op.operands)),)
    return ()


def _alloc(op: Operation) -> Sequence[Event]:
    (buffer,) = op.results
    alive = Lifetime(op, buffer, is_over=False)
    return (alive, Access(op, writes=(buffer,))) if op.operands else (alive,)


def _dealloc(op: Operation) -> Sequence[Event]:
    return (Lifetime(op, op.operands[0], is_over=True),)


def _local_load(op: Operation) -> Sequence[Event]:
    return (Access(op, reads=(op.operands[0],)),)


def _local_store(op: Operation) -> Sequence[Event]:
    view = ttg.LocalStoreOp.match(op)
    assert view is not None
    return (Access(op, writes=(view.dst,)),)


def _cp_async(op: Operation) -> Sequence[Event]:
    view = ttg.AsyncCopyGlobalToLocalOp.match(op)
    assert view is not None
    target = next(value for value in op.operands if _is_tensor_in_memory(value))
    return (Start(op, _CP_ASYNC, writes=(target,), is_grouped=True),)


def _commit(op: Operation) -> Sequence[Event]:
    return (Commit(op, _CP_ASYNC),)


def _async_wait(op: Operation) -> Sequence[Event]:
    view = ttg.AsyncWaitOp.match(op)
    assert view is not None
    return (Retire(op, _CP_ASYNC, view.num),)


def _inline_asm(op: Operation) -> Sequence[Event]:
    text = op.text
    if any(word in text for word in ("mbarrier", "cp.async", "bar.", "shared", "wgmma")):
        raise NotDecided(op, "inline assembly that may touch shared memory is not modelled")
    return ()


_READERS: Final[Mapping[str, _Reader]] = {
    "tt.elementwise_inline_asm": _inline_asm,
    "tt.extern_elementwise": _library,
    "ttg.async_commit_group": _commit,
    "ttg.async_copy_global_to_local": _cp_async,
    "ttg.async_wait": _async_wait,
    "ttg.local_alloc": _alloc,
    "ttg.local_dealloc": _dealloc,
    "ttg.local_load": _local_load,
    "ttg.local_store": _local_store,
    "ttng.arrive_barrier": _arrive,
    "ttng.async_tma_copy_global_to_local": _load,
    "ttng.async_tma_copy_local_to_global": _store,
    "ttng.async_tma_gather": _gather,
    "ttng.async_tma_reduce": _store,
    "ttng.async_tma_scatter": _store,
    "ttng.async_tma_store_wait": _store_wait,
    "ttng.barrier_expect": _expect,
    "ttng.fence_async_shared": _fence,
    "ttng.init_barrier": _init,
    "ttng.inval_barrier": _inval,
    "ttng.wait_barrier": _wait,
    "ttng.warp_group_dot": _dot,
    "ttng.warp_group_dot_wait": _dot_wait,
}

_DIALECTS: Final = ("ttng.", "ttg.", "nvgpu.", "nvvm.", "nvws.", "gpu.", "llvm.")
#: Operations of these dialects that touch no shared memory, or only what Triton reserves for them.
_NOTHING: Final = frozenset(
    {
        *("gpu.barrier", "ttg.barrier", "ttg.convert_layout"),
        *("ttg.local_barrier", "ttg.memdesc_index", "ttg.memdesc_reinterpret"),
        *("ttg.memdesc_reshape", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttg.mask"),
        *("ttg.mask.return", "ttg.predicate_stage", "ttg.warp_return"),
        *("ttg.warp_specialize", "ttg.warp_specialize.partitions", "ttg.warp_yield"),
        *("ttng.reinterpret_tensor_descriptor", "ttng.tensormap_create"),
        *("ttg.global_scratch_alloc", "ttng.tensormap_fenceproxy_acquire"),
    }
)
