"""Kernels whose IR has most of what Triton prints: for tests that need no stored modules."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["KERNELS"]


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, BLOCK)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK
        b_ptrs += BLOCK * N
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc, mask=mask)


@triton.jit
def matmul_desc(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK, BLOCK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK, BLOCK])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    offs_m, offs_n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        acc = tl.dot(a_desc.load([offs_m, k]), b_desc.load([offs_n, k]).T, acc)
    c_desc.store([offs_m, offs_n], acc.to(tl.float16))


@triton.jit
def _larger(value, index, other_value, other_index):
    is_larger = other_value > value
    return tl.where(is_larger, other_value, value), tl.where(is_larger, other_index, index)


@triton.jit
def _sum_of(a, b):
    return a + b


@triton.jit
def reductions(x_ptr, y_ptr, index_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=-float("inf"))
    value, index = tl.reduce((x, offs), 0, _larger)
    tl.store(y_ptr + offs, tl.associative_scan(tl.exp(x - value), 0, _sum_of), mask=offs < n)
    tl.store(index_ptr, index)
    tl.atomic_add(index_ptr + 1, tl.sum((x > 0).to(tl.int32), 0))


@triton.jit(noinline=True)
def _steps(x, most):
    steps = 0
    while (x != 1) & (steps < most):
        if x % 2 == 0:  # noqa: SIM108 - an scf.if is wanted
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    return steps


@triton.jit
def control(x_ptr, y_ptr, index_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    if i >= n:
        return
    total = 0
    for j in range(n):
        x = tl.load(x_ptr + i * n + j).to(tl.int32)
        if x > 0:
            total += _steps(x, BLOCK)
        else:
            total -= 1
    tl.device_assert(total >= 0, "negative")
    tl.store(index_ptr + i, total)
    tl.store(
        y_ptr + i, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [total], tl.int32, True, 1)
    )


@triton.jit
def shapes(x_ptr, y_ptr, index_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + offs)
    left, right = tl.split(tl.reshape(tl.trans(x), (BLOCK, BLOCK // 2, 2)))
    joined = tl.reshape(tl.join(left, right), (BLOCK, BLOCK))
    tl.store(y_ptr + offs, (joined + tl.broadcast_to(tl.sum(x, 1)[:, None], (BLOCK, BLOCK))))
    tl.store(index_ptr + tl.arange(0, BLOCK), tl.histogram(tl.arange(0, BLOCK) % 8, BLOCK))


_MATMUL = {
    **dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16"),
    "M": "i32",
    "N": "i32",
    "K": "i32",
}
_VECTOR = {"x_ptr": "*fp32", "y_ptr": "*fp32", "index_ptr": "*i32", "n": "i32"}

#: Kernel, signature, size of its block.
KERNELS = {
    "matmul": (matmul, {**_MATMUL, "c_ptr": "*fp32"}, 64),
    "matmul_desc": (matmul_desc, _MATMUL, 64),
    "reductions": (reductions, _VECTOR, 256),
    "control": (control, {**_VECTOR, "y_ptr": "*i32"}, 64),
    "shapes": (shapes, _VECTOR, 32),
}
