"""Gluon kernels of the selftest for AMD, each with what it takes to compile it."""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.amd.cdna4 import async_copy

import triton_ext.language  # noqa: F401 - installs the plugin
from triton_ext.selftest.kernels import target

__all__ = ["compile_copies"]


@gluon.jit
def copy_twice(x_ptr, y_ptr, LANES: gl.constexpr):
    """Two groups of copies, and a wait that leaves the newer one in flight."""
    layout: gl.constexpr = gl.BlockedLayout([1], [LANES], [4], [0])
    smem = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [2, 4096], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs = gl.arange(0, 4096, layout=layout)
    async_copy.global_load_to_shared(smem.index(0), x_ptr + offs)
    async_copy.commit_group()
    async_copy.global_load_to_shared(smem.index(1), x_ptr + 4096 + offs)
    async_copy.commit_group()
    async_copy.wait_group(1)
    gl.store(y_ptr + offs, smem.index(0).load(layout))
    async_copy.wait_group(0)
    gl.store(y_ptr + 4096 + offs, smem.index(1).load(layout))


def compile_copies(arch: str) -> dict[str, Any]:
    """Compiles the copies; returns what each stage left behind."""
    signature = dict.fromkeys(("x_ptr", "y_ptr"), "*fp16") | {"LANES": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
    lanes = target(arch).warp_size
    source = GluonASTSource(copy_twice, signature, {(2,): lanes}, aligned)
    return dict(triton.compile(source, target=target(arch)).asm)
