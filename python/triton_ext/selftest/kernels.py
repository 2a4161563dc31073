"""``@triton.jit`` kernels of the selftest, each with what it takes to compile it for a target.

Importing this module installs the plugin.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_ext.language as tle

__all__ = ["compile_conv", "compile_matmul", "conv3x3", "target"]


@triton.jit
def conv3x3(x_desc, w_desc, y_desc, out_h, out_w, CI: tl.constexpr, BLOCK: tl.constexpr):
    """A 3x3 convolution, stride 1, padding 1."""
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    n, h, w = tle.im2col_start(row, (out_h, out_w), stride=(1, 1), padding=(1, 1))
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(9 * CI // 64):
        tap, channel = k % 9, k // 9 * 64
        x = tle.load_im2col(x_desc, [n, h, w, channel], [tap // 3, tap % 3])
        acc = tl.dot(x, w_desc.load([column, tap * CI + channel]).T, acc)
    y_desc.store([row, column], acc.to(tl.float16))


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n, k, BLOCK: tl.constexpr):
    """c = a @ b.T, of n x k matrices."""
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, BLOCK)
    a_ptrs = a_ptr + offs_m[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * k + offs_k[:, None]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, k, BLOCK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BLOCK
        b_ptrs += BLOCK
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], acc.to(tl.float16))


def target(name: str) -> GPUTarget:
    """Returns Triton's target for ``"sm_90"`` or ``"gfx950"``."""
    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name[3:]), 32)
    return GPUTarget("hip", name, 64 if name.startswith("gfx9") else 32)


def compile_conv(arch: str) -> dict[str, Any]:
    """Compiles the convolution; returns what each stage left behind, by the stage's name."""
    block = "tensordesc<fp16[128, 64]>"
    signature = {
        "x_desc": block,
        "w_desc": block,
        "y_desc": "tensordesc<fp16[128, 128]>",
        "out_h": "i32",
        "out_w": "i32",
        "CI": "constexpr",
        "BLOCK": "constexpr",
    }
    source = ASTSource(conv3x3, signature, constexprs={"CI": 128, "BLOCK": 128})
    return dict(triton.compile(source, target=target(arch)).asm)


def compile_matmul(arch: str) -> tuple[dict[str, Any], int]:
    """Compiles the matrix product; returns its stages and the bytes of LDS that Triton gives it."""
    signature = {name: "*fp16" for name in ("a_ptr", "b_ptr", "c_ptr")} | {"n": "i32", "k": "i32"}
    aligned: Any = {(i,): [["tt.divisibility", 16]] for i in range(5)}
    signature["BLOCK"] = "constexpr"
    source = ASTSource(matmul, signature, constexprs={"BLOCK": 64}, attrs=aligned)
    compiled = triton.compile(source, target=target(arch), options={"num_stages": 3})
    return dict(compiled.asm), int(compiled.metadata.shared)
