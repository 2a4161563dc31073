"""Matmuls in Gluon and in @triton.jit, with the product of 128 x 128 tiles."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import gfx1250

__all__ = ["gluon_source", "jit_source"]

_BLOCK = gl.constexpr(128)
_DEPTH = gl.constexpr(64)
_WMMA = gl.constexpr(gl.amd.AMDWMMALayout(3, True, [[0, 1], [1, 0]], [], [16, 16, 32]))
_SHARED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [128, 64], [1, 0]))
_LEFT = gl.constexpr(gl.DotOperandLayout(0, _WMMA.value, 8))
_RIGHT = gl.constexpr(gl.DotOperandLayout(1, _WMMA.value, 8))


@gluon.jit
def gluon_matmul(a_ptr, b_ptr, c_ptr, M, N, K):
    """A [M, K] times the transpose of B [N, K]; TDM loads one step ahead."""
    start_m = gl.program_id(0) * _BLOCK
    start_n = gl.program_id(1) * _BLOCK
    a_desc = gfx1250.tdm.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [_BLOCK, _DEPTH], _SHARED)
    b_desc = gfx1250.tdm.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [_BLOCK, _DEPTH], _SHARED)
    a_smem = gl.allocate_shared_memory(gl.float16, [2, _BLOCK, _DEPTH], _SHARED)
    b_smem = gl.allocate_shared_memory(gl.float16, [2, _BLOCK, _DEPTH], _SHARED)
    gfx1250.tdm.async_load(a_desc, [start_m, 0], a_smem.index(0))
    gfx1250.tdm.async_load(b_desc, [start_n, 0], b_smem.index(0))
    acc = gl.zeros([_BLOCK, _BLOCK], gl.float32, _WMMA)
    steps = gl.cdiv(K, _DEPTH)
    for k in range(0, steps - 1):
        following = (k + 1) % 2
        gfx1250.tdm.async_load(a_desc, [start_m, (k + 1) * _DEPTH], a_smem.index(following))
        gfx1250.tdm.async_load(b_desc, [start_n, (k + 1) * _DEPTH], b_smem.index(following))
        gfx1250.tdm.async_wait(2)
        a = a_smem.index(k % 2).load(_LEFT)
        b = b_smem.index(k % 2).permute([1, 0]).load(_RIGHT)
        acc = gfx1250.wmma(a, b, acc)
    gfx1250.tdm.async_wait(0)
    a = a_smem.index((steps - 1) % 2).load(_LEFT)
    b = b_smem.index((steps - 1) % 2).permute([1, 0]).load(_RIGHT)
    acc = gfx1250.wmma(a, b, acc)
    offs_m = start_m + gl.arange(0, _BLOCK, gl.SliceLayout(1, _WMMA))
    offs_n = start_n + gl.arange(0, _BLOCK, gl.SliceLayout(0, _WMMA))
    gl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(gl.float16))


@triton.jit
def jit_matmul(a_desc, b_desc, c_ptr, K, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """The same with descriptors of the host; C has 128 columns."""
    start_m = tl.program_id(0) * BLOCK
    start_n = tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, DEPTH):
        a = a_desc.load([start_m, k])
        b = b_desc.load([start_n, k])
        acc = tl.dot(a, b.T, acc)
    offs_m = start_m + tl.arange(0, BLOCK)
    offs_n = start_n + tl.arange(0, BLOCK)
    tl.store(c_ptr + offs_m[:, None] * BLOCK + offs_n[None, :], acc.to(tl.float16))


def gluon_source():
    """The Gluon kernel, to be compiled."""
    from triton.experimental.gluon._runtime import GluonASTSource

    pointers = {name: "*fp16" for name in ("a_ptr", "b_ptr", "c_ptr")}
    sizes = {name: "i32" for name in ("M", "N", "K")}
    return GluonASTSource(gluon_matmul, {**pointers, **sizes}, {})


def jit_source():
    """The kernel of @triton.jit, to be compiled."""
    from triton.compiler import ASTSource

    signature = {
        "a_desc": "tensordesc<fp16[128,64]>",
        "b_desc": "tensordesc<fp16[128,64]>",
        "c_ptr": "*fp16",
        "K": "i32",
    }
    return ASTSource(jit_matmul, signature, constexprs={"BLOCK": 128, "DEPTH": 64})
