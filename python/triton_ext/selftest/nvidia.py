"""Gluon kernels of the selftest for NVIDIA, each with what it takes to compile it."""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_ext.gluon import nvidia as xnv
from triton_ext.host.gluon_names import async_copy_load
from triton_ext.selftest.kernels import target

__all__ = ["compile_copies", "compile_im2col"]


@gluon.jit
def load_tile(x_desc, y_ptr, channel):
    """Loads a tile of pixels."""
    smem = gl.allocate_shared_memory(x_desc.dtype, [64, 64], x_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, x_desc.nbytes_per_cta)
    n, h, w = xnv.im2col_start(gl.program_id(0) * 64, (8, 8), (1, 1), (1, 1))
    xnv.async_load_im2col(x_desc, [n, h, w, channel], [0, 2], bar, smem)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)


@gluon.jit
def copy_bytes(x_ptr, y_ptr):
    """Copies bytes in a layout that gives a thread one at a time, which no instruction copies."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    smem = gl.allocate_shared_memory(gl.int8, [2048], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    offs = gl.arange(0, 2048, layout=layout)
    async_copy_load(smem, x_ptr + offs)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(y_ptr + offs, smem.load(layout))


def compile_im2col(arch: str) -> dict[str, Any]:
    """Compiles the load of a tile; returns what each stage left behind."""
    layout = xnv.im2col_layout([64, 64], "torch.float16")
    desc = f"tensordesc_im2col<fp16[64, 64],input_rank=4,{layout!r}>"
    source = GluonASTSource(load_tile, {"x_desc": desc, "y_ptr": "*fp16", "channel": "i32"}, {}, {})
    return dict(triton.compile(source, target=target(arch)).asm)


def compile_copies(arch: str) -> dict[str, Any]:
    """Compiles the copy of bytes; returns what each stage left behind."""
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
    source = GluonASTSource(copy_bytes, dict.fromkeys(("x_ptr", "y_ptr"), "*i8"), {}, aligned)
    return dict(triton.compile(source, target=target(arch)).asm)
