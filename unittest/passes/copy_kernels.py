"""Gluon kernels of one asynchronous copy each, for AMD."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd.cdna4 import async_copy

__all__ = ["by_offsets", "by_pointers"]


@gluon.jit
def by_pointers(x_ptr, out_ptr, SIZE: gl.constexpr, HELD: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([HELD], [64], [4], [0])
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, SIZE, layout=layout)
    async_copy.global_load_to_shared(smem, x_ptr + offs)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out_ptr + offs, smem.load(layout))


@gluon.jit
def by_offsets(x_ptr, out_ptr, SIZE: gl.constexpr, HELD: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([HELD], [64], [4], [0])
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, SIZE, layout=layout)
    async_copy.buffer_load_to_shared(smem, x_ptr, offs)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(out_ptr + offs, smem.load(layout))
