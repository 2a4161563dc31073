"""Gluon kernels of one asynchronous copy each, for NVIDIA, in the layout of a tile's rows."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

__all__ = ["calling", "carried", "masked_rows", "specialized"]

# The name since 3.8, and the one before.
_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def masked_rows(x_ptr, out_ptr, valid, ROWS: gl.constexpr, MASKED: gl.constexpr):
    """Copies x[:ROWS], of which the first ``valid`` elements if MASKED."""
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows: gl.constexpr = gl.SliceLayout(1, tile)
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, ROWS, layout=rows)
    if MASKED:
        # Whole vectors: what the mask selects has to be known to be aligned.
        _async_load(smem, x_ptr + offs, mask=offs < valid * 16)
    else:
        _async_load(smem, x_ptr + offs)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out_ptr + offs, smem.load(rows), mask=offs < valid * 16)


@gluon.jit
def carried(x_ptr, out_ptr, steps, ROWS: gl.constexpr):
    """Adds up rows of x that a pointer walks through, which a loop carries."""
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows: gl.constexpr = gl.SliceLayout(1, tile)
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, ROWS, layout=rows)
    ptrs = x_ptr + offs
    total = gl.zeros([ROWS], gl.float32, layout=rows)
    _async_load(smem.index(0), ptrs)
    async_copy.commit_group()
    for step in range(steps):
        ptrs += ROWS
        _async_load(smem.index((step + 1) % 2), ptrs)
        async_copy.commit_group()
        async_copy.wait_group(1)
        total += smem.index(step % 2).load(rows).to(gl.float32)
    async_copy.wait_group(0)
    gl.store(out_ptr + offs, total)


@gluon.jit
def _produce(x_ptr, smem, ready):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    _async_load(smem, x_ptr + gl.arange(0, 64, layout=layout))
    async_copy.commit_group()
    async_copy.wait_group(0)
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _consume(out_ptr, smem, ready):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(ready, 0)
    gl.store(out_ptr + gl.arange(0, 64, layout=layout), smem.load(layout))


@gluon.jit
def specialized(x_ptr, out_ptr):
    """One warp copies 64 elements, four others store them."""
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [64], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    gl.warp_specialize(
        [(_consume, (out_ptr, smem, ready)), (_produce, (x_ptr, smem, ready))], [1], [24]
    )


@gluon.jit(noinline=True)
def _copy_rows(x_ptr, out_ptr):
    layout: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 4], [8, 4], [2, 1], [1, 0]))
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [32], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, 32, layout=layout)
    _async_load(smem, x_ptr + offs)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out_ptr + offs, smem.load(layout))


@gluon.jit
def _idle(x_ptr, out_ptr):
    pass


@gluon.jit
def _call(x_ptr, out_ptr):
    _copy_rows(x_ptr, out_ptr)


@gluon.jit
def calling(x_ptr, out_ptr):
    """Copies x[:32] in a function that a partition of two warps calls."""
    gl.warp_specialize([(_idle, (x_ptr, out_ptr)), (_call, (x_ptr, out_ptr))], [2], [48])
