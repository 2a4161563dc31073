"""A causal attention kernel compiled for sm_90 with and without the pass; no GPU is needed.

    python causal_attention.py

The loop over the keys masks the scores from the diagonal on.  The pass makes two loops of it, of
which the first one has neither the mask nor the branch.  Both kernels run in the emulator, as TTIR
and as the TTGIR of the compile, and are compared with attention in numpy.
"""

from __future__ import annotations

import sys

import numpy as np
import triton
import triton.language as tl
from loop_split import LoopSplit
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext.emulator import Program
from triton_ext.plugin import extra_passes

BLOCK_M, BLOCK_N, HEAD = 128, 64, 64
SCALE = 0.18


@triton.jit
def causal_attention(
    q_ptr,  # [n_ctx, HEAD], as k, v and out
    k_ptr,
    v_ptr,
    out_ptr,
    scale,  # of the scores, which are exponents of 2
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD: tl.constexpr,
):
    diagonal = tl.program_id(0) * BLOCK_M
    offs_m = diagonal + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + offs_m[:, None] * HEAD + offs_d[None, :])
    acc = tl.zeros([BLOCK_M, HEAD], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start_n in range(0, diagonal + BLOCK_M, BLOCK_N):
        k = tl.load(k_ptr + (start_n + offs_n)[None, :] * HEAD + offs_d[:, None])
        scores = tl.dot(q, k) * scale
        if start_n >= diagonal:
            is_past = offs_m[:, None] >= (start_n + offs_n)[None, :]
            scores = tl.where(is_past, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + (start_n + offs_n)[:, None] * HEAD + offs_d[None, :])
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        row_max = new_max
    out = acc / row_sum[:, None]
    tl.store(out_ptr + offs_m[:, None] * HEAD + offs_d[None, :], out.to(tl.float16))


def compiled(*, split: bool):
    """Compiles the kernel."""
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16")
    constants = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "HEAD": HEAD}
    signature = {**pointers, "scale": "fp32", **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(causal_attention, signature, constexprs=constants)
    # One stage, as the emulator has no model of the copies of more.
    target, options = GPUTarget("cuda", 90, 32), {"num_stages": 1}
    if not split:
        return triton.compile(source, target=target, options=options)
    with extra_passes("ttir", [LoopSplit()]):
        return triton.compile(source, target=target, options=options)


def attention(q, k, v):
    """The same in numpy, in fp32."""
    scores = SCALE * q.astype(np.float32) @ k.astype(np.float32).T
    scores[~np.tri(*scores.shape, dtype=bool)] = -np.inf
    p = np.exp2(scores - scores.max(axis=1, keepdims=True))
    return p @ v.astype(np.float32) / p.sum(axis=1, keepdims=True)


def main() -> None:
    rng = np.random.default_rng(0)
    rows = 4 * BLOCK_M
    q, k, v = (rng.standard_normal((rows, HEAD)).astype(np.float16) for _ in range(3))
    expected = attention(q, k, v)
    for split in (False, True):
        kernel = compiled(split=split)
        for stage in ("ttir", "ttgir"):
            text = kernel.asm[stage]
            out = np.zeros_like(q)
            Program(text).run((rows // BLOCK_M, 1, 1), [q, k, v, out, SCALE], 0)
            error = np.abs(out - expected).max()
            loops, branches = text.count("scf.for"), text.count("scf.if")
            name = f"{'split' if split else 'as it was'}, {stage}"
            counts = f"loops: {loops}  branches: {branches}"
            sys.stdout.write(f"{name:18} {counts}  largest error: {error:.1e}\n")


if __name__ == "__main__":
    main()
