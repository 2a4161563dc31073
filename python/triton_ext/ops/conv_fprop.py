"""Forward convolution as an implicit GEMM: a persistent ``@triton.jit`` kernel.

Symbols: x [N, ([D, ]H, )W, Ci], w [Co, ([T, ]R, )S, Ci], y [N, ([out_d, ]out_h, )out_w, Co], all
channels-last, with one to three spatial dimensions.

GEMM mapping: M_GEMM = N * out_d * out_h * out_w (output pixels), N_GEMM = Co,
K_GEMM = T * R * S * Ci.  The left operand [M_GEMM, K_GEMM] is never written down: the TMA unit reads
its [BLOCK_M, BLOCK_K] tiles from x in im2col mode, one filter tap and one block of channels at a
time.

Loop order: with taps inside and blocks of channels outside, consecutive steps read almost the same
pixels, which then come from L2; the other way round, consecutive steps read whole rows of channels.
Which one wins depends on the number of channels, so it is part of the configuration.

Tails need no masks: pixels past the last image, channels past the last and padding read as zero;
the weight tensor map has the taps as a dimension of its own, so the channel tail of one tap does
not read the weights of the next.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_ext.language as tle
from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.machine import IS_INTERPRETED

__all__ = ["compile_conv_fprop", "conv_fprop_kernel", "kernel_constants"]


@triton.jit
def _tile_position(tile, num_m, num_n, GROUP_SIZE_M: tl.constexpr):
    """Row and column of a tile, GROUP_SIZE_M rows at a time so that weights stay in L2."""
    width = GROUP_SIZE_M * num_n
    first_m = (tile // width) * GROUP_SIZE_M
    group_m = min(num_m - first_m, GROUP_SIZE_M)
    return first_m + (tile % width) % group_m, (tile % width) // group_m


@triton.jit
def conv_fprop_kernel(
    x_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of x
    w_desc,  # tiled: [BLOCK_N, 1, BLOCK_K] tiles of w [Co, T * R * S, Ci]
    y_desc,  # tiled: [BLOCK_M, BLOCK_N // STORE_PARTS] tiles of y [M_GEMM, Co]; None: use y_ptr
    y_ptr,  # y as a pointer, for a Co whose rows are not multiples of 16 bytes; None: use y_desc
    bias_ptr,  # [Co] or None
    m_gemm,
    co,
    out_d,  # these four per spatial dimension, None for dimensions that are not there
    out_h,
    out_w,
    stride_d,
    stride_h,
    stride_w,
    pad_d,  # in front
    pad_h,
    pad_w,
    dilation_d,
    dilation_h,
    dilation_w,
    DIMS: tl.constexpr,  # spatial dimensions
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    CHANNEL_BLOCKS: tl.constexpr,  # cdiv(Ci, BLOCK_K)
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    TAPS_INNER: tl.constexpr,  # whether taps are the inner loop, channels the outer
    STORE_PARTS: tl.constexpr,  # 1 or 2: halves the shared memory of the epilogue
    DTYPE: tl.constexpr,  # of y
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; DTYPE on every GPU
):
    # tl.cdiv would overflow for the last few legal pixel counts below 2^31.
    num_m = (m_gemm - 1) // BLOCK_M + 1
    num_n = tl.cdiv(co, BLOCK_N)
    # One flattened loop over tiles and K: the loads of the next tile overlap this one's epilogue.
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = _tile_position(tile, num_m, num_n, GROUP_SIZE_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        if DIMS == 1:
            start = tle.im2col_start(row, (out_w,), (stride_w,), (pad_w,))
        elif DIMS == 2:
            start = tle.im2col_start(row, (out_h, out_w), (stride_h, stride_w), (pad_h, pad_w))
        else:
            start = tle.im2col_start(
                row,
                (out_d, out_h, out_w),
                (stride_d, stride_h, stride_w),
                (pad_d, pad_h, pad_w),
            )
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(CHANNEL_BLOCKS * T * R * S):
            if TAPS_INNER:
                tap = k % (T * R * S)
                channel = (k // (T * R * S)) * BLOCK_K
            else:
                tap = k // CHANNEL_BLOCKS
                channel = (k % CHANNEL_BLOCKS) * BLOCK_K
            if DIMS == 1:
                x = tle.load_im2col(x_desc, [start[0], start[1], channel], [tap * dilation_w])
            elif DIMS == 2:
                offsets = [(tap // S) * dilation_h, (tap % S) * dilation_w]
                x = tle.load_im2col(x_desc, [start[0], start[1], start[2], channel], offsets)
            else:
                offsets = [
                    (tap // (R * S)) * dilation_d,
                    (tap // S) % R * dilation_h,
                    (tap % S) * dilation_w,
                ]
                x = tle.load_im2col(
                    x_desc, [start[0], start[1], start[2], start[3], channel], offsets
                )
            weight = w_desc.load([column, tap, channel]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(x.to(DOT_DTYPE), weight.to(DOT_DTYPE).T, acc)
        if bias_ptr is not None:
            offs_n = column + tl.arange(0, BLOCK_N)
            bias = tl.load(bias_ptr + offs_n, mask=offs_n < co, other=0.0)
            acc += bias.to(tl.float32)[None, :]
        if y_desc is None:
            tile_rows = tl.arange(0, BLOCK_M)
            offs_m = row.to(tl.int64) + tile_rows
            offs_n = column + tl.arange(0, BLOCK_N)
            offsets_y = offs_m[:, None] * co + offs_n[None, :]
            mask = (tile_rows < m_gemm - row)[:, None] & (offs_n < co)[None, :]
            tl.store(y_ptr + offsets_y, acc.to(DTYPE), mask=mask)
        elif STORE_PARTS == 1:
            y_desc.store([row, column], acc.to(DTYPE))
        else:
            halves = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1)
            left, right = tl.split(halves)
            y_desc.store([row, column], left.to(DTYPE))
            y_desc.store([row, column + BLOCK_N // 2], right.to(DTYPE))


def kernel_constants(
    config: ConvConfig, filter_size: tuple[int, ...], ci: int, dtype: tl.dtype
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters.

    Args:
        config: The tile configuration.
        filter_size: ([T, [R, ]]S).
        ci: Input channels, padded.
        dtype: Of x, w and y.
    """
    t, r, s = (1,) * (3 - len(filter_size)) + filter_size
    return {
        "DIMS": len(filter_size),
        "T": t,
        "R": r,
        "S": s,
        "CHANNEL_BLOCKS": math.ceil(ci / config.block_k),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_SIZE_M": config.group_size_m,
        "TAPS_INNER": config.taps_inner,
        "STORE_PARTS": config.store_parts,
        "DTYPE": dtype,
        # Triton's interpreter multiplies the bits of bf16 operands as integers (3.6 to 3.9).
        "DOT_DTYPE": tl.float32 if IS_INTERPRETED else dtype,
    }


def compile_conv_fprop(
    config: ConvConfig,
    capability: int,
    *,
    filter_size: tuple[int, ...] = (3, 3),
    ci: int = 128,
    dtype: tl.dtype = tl.float16,
    has_bias: bool = False,
    store_through_tma: bool = True,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: The tile configuration.
        capability: Compute capability of the target times ten: 90, 100.
        filter_size: ([T, [R, ]]S).
        ci: Input channels.
        dtype: Of x, w and y.
        has_bias: Whether a bias is added.
        store_through_tma: Whether y is stored by TMA; otherwise through a pointer.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    m, n, k = config.block_m, config.block_n, config.block_k
    tensors = {
        "x_desc": f"tensordesc<{dtype}[{m}, {k}]>",
        "w_desc": f"tensordesc<{dtype}[{n}, 1, {k}]>",
    }
    constants = kernel_constants(config, filter_size, ci, dtype)
    if store_through_tma:
        tensors["y_desc"] = f"tensordesc<{dtype}[{m}, {n // config.store_parts}]>"
        constants["y_ptr"] = None
    else:
        tensors["y_ptr"] = f"*{dtype}"
        constants["y_desc"] = None
    if has_bias:
        tensors["bias_ptr"] = f"*{dtype}"
    else:
        constants["bias_ptr"] = None
    missing = "dh"[: 3 - len(filter_size)]
    for name in ("out", "stride", "pad", "dilation"):
        constants |= {f"{name}_{letter}": None for letter in missing}
    signature = {
        name: tensors.get(name, "constexpr" if name in constants else "i32")
        for name in conv_fprop_kernel.arg_names
    }
    return triton.compile(
        ASTSource(conv_fprop_kernel, signature, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
