"""Kernels of ``copy_widths`` in @triton.jit: tiles through pointers, with a side input per row."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["KERNELS"]


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A @ B, row-major."""
    offs_m = (tl.program_id(0) * BM + tl.arange(0, BM)) % m
    offs_n = (tl.program_id(1) * BN + tl.arange(0, BN)) % n
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * n + offs_n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * n
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + offs_m[:, None] * n + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (offs_m[:, None] < m) & (offs_n[None, :] < n))


@triton.jit
def masked_matmul(
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The same with masks along k."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        left = k - start
        a_ptrs = a_ptr + offs_m[:, None] * k + (start + offs_k)[None, :]
        b_ptrs = b_ptr + (start + offs_k)[:, None] * n + offs_n[None, :]
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < m) & (offs_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < left) & (offs_n[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + offs_m[:, None] * n + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (offs_m[:, None] < m) & (offs_n[None, :] < n))


@triton.jit
def scaled_matmul(
    a_ptr, b_ptr, c_ptr, s_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """C = (A * s) @ B with a scale per row and step of k."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        a_ptrs = a_ptr + offs_m[:, None] * k + (start + offs_k)[None, :]
        b_ptrs = b_ptr + (start + offs_k)[:, None] * n + offs_n[None, :]
        scale = tl.load(s_ptr + (start // BK) * m + offs_m).to(tl.float32)
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs)) * scale[:, None]
    c_ptrs = c_ptr + offs_m[:, None] * n + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (offs_m[:, None] < m) & (offs_n[None, :] < n))


def _types(a: str, b: str, side: str = "") -> dict[str, str]:
    pointers = {"a_ptr": f"*{a}", "b_ptr": f"*{b}", "c_ptr": "*fp32"}
    return pointers | ({"s_ptr": f"*{side}"} if side else {})


#: Function, types of the pointers, blocks (BM, BN, BK).
KERNELS: tuple[tuple[Any, dict[str, str], tuple[int, int, int]], ...] = (
    (matmul, _types("fp16", "fp16"), (64, 64, 32)),
    (matmul, _types("fp16", "fp16"), (128, 128, 64)),
    (matmul, _types("fp32", "fp32"), (64, 64, 32)),
    (matmul, _types("fp8e5", "fp8e5"), (64, 64, 64)),
    (masked_matmul, _types("fp16", "fp16"), (64, 64, 32)),
    (masked_matmul, _types("fp32", "fp32"), (64, 64, 32)),
    (scaled_matmul, _types("fp16", "fp16", "fp32"), (64, 64, 32)),
    (scaled_matmul, _types("fp16", "fp16", "fp16"), (64, 64, 32)),
    (scaled_matmul, _types("fp16", "fp16", "i8"), (64, 64, 32)),
)
