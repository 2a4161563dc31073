"""Forward convolution as an implicit GEMM: a persistent ``@triton.jit`` kernel.

Symbols: x [N, ([D, ]H, )W, Ci], w [Co, ([T, ]R, )S, Ci], y [N, ([out_d, ]out_h, )out_w, Co], all
channels-last, with one to three spatial dimensions.

GEMM mapping: M_GEMM = N * out_d * out_h * out_w (output pixels), N_GEMM = Co,
K_GEMM = T * R * S * Ci.  The left operand [M_GEMM, K_GEMM] is never written down: the TMA unit
reads its [BLOCK_M, BLOCK_K] tiles from x in im2col mode, one filter tap and one block of channels
at a time.

Loop order: with taps inside and blocks of channels outside, consecutive steps read almost the same
pixels, which then come from L2; the other way round, consecutive steps read whole rows of channels.
Which one wins depends on the number of channels, so it is part of the configuration.

Tails need no masks: pixels past the last image, channels past the last and padding read as zero;
the weight tensor map has the taps as a dimension of its own, so the channel tail of one tap does
not read the weights of the next.

Groups: a tile lies in one group; its rows of channels begin where the group's do.  Blocks of
channels should divide a group's channels.  Where they do not, the last block of x would hold
channels of the next group, whose NaN or infinity times the weights' zero is NaN, so they are
masked: the left operand then goes through registers.

A filter of one tap with stride 1 and no padding makes im2col the identity: x is then read as the
matrix [N * D * H * W, Ci] that it is.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

import triton_ext.language as tle
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.plan import TRITON_DTYPES
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.kernels.epilogue import (
    finish_tile,
    pixels_of_image,
    scale_and_shift,
    tile_position,
)

__all__ = ["conv_fprop_kernel", "kernel_constants"]


@triton.jit
def conv_fprop_kernel(
    x_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of x; tiled where X_IS_MATRIX
    w_desc,  # tiled: [BLOCK_N, 1, BLOCK_K] tiles of w [Co, T * R * S, Ci / GROUPS]
    y_desc,  # tiled: [BLOCK_M, BLOCK_N // STORE_PARTS] tiles of y [M_GEMM, Co]; None: use y_ptr
    y_ptr,  # y as a pointer, for a Co whose rows are not multiples of 16 bytes; None: use y_desc
    bias_ptr,  # [Co] or None
    scale_ptr,  # [Co] or None
    tile_scale_ptr,  # one number for all channels, or None
    residual_desc,  # as y_desc, or None
    residual_ptr,  # [M_GEMM, Co] as a pointer, [N, Co] if RESIDUAL_PER_IMAGE, or None
    out_scale_ptr,  # one number or None
    amax_ptr,  # the bits of one fp32 as int32, or None
    extra,  # further arguments of FUNCTION, a tuple; None for none
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
    CHANNEL_BLOCKS: tl.constexpr,  # cdiv(Ci / GROUPS, BLOCK_K)
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    TAPS_INNER: tl.constexpr,  # whether taps are the inner loop, channels the outer
    STORE_PARTS: tl.constexpr,  # 1 or 2: halves the shared memory of the epilogue
    DTYPE: tl.constexpr,  # of y
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; that of x on every GPU
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,  # the user's part of the epilogue, or None
    ACC_DTYPE: tl.constexpr,  # fp32, int32 for int8
    GROUPS: tl.constexpr,
    GROUP_CI: tl.constexpr,  # Ci / GROUPS
    MASK_CHANNELS: tl.constexpr,  # whether a block of channels may reach into the next group
    X_IS_MATRIX: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
):
    image_pixels = pixels_of_image(out_d, out_h, out_w, DIMS) if RESIDUAL_PER_IMAGE else None
    # tl.cdiv would overflow for the last few legal pixel counts below 2^31.
    num_m = (m_gemm - 1) // BLOCK_M + 1
    if GROUPS == 1:
        num_n = tl.cdiv(co, BLOCK_N)
    else:
        group_co = co // GROUPS
        group_n = tl.cdiv(group_co, BLOCK_N)
        num_n = GROUPS * group_n
    # One flattened loop over tiles and K: the loads of the next tile overlap this one's epilogue.
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_position(tile, num_m, num_n, GROUP_SIZE_M)
        row = tile_m * BLOCK_M
        if GROUPS == 1:
            column = tile_n * BLOCK_N
            column_end = co
            group_channel = 0
        else:
            group = tile_n // group_n
            column = group * group_co + (tile_n % group_n) * BLOCK_N
            column_end = (group + 1) * group_co
            group_channel = group * GROUP_CI
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
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
        for k in range(CHANNEL_BLOCKS * T * R * S):
            if TAPS_INNER:
                tap = k % (T * R * S)
                channel = (k // (T * R * S)) * BLOCK_K
            else:
                tap = k // CHANNEL_BLOCKS
                channel = (k % CHANNEL_BLOCKS) * BLOCK_K
            x_channel = channel if GROUPS == 1 else group_channel + channel
            if X_IS_MATRIX:
                x = x_desc.load([row, x_channel])
            elif DIMS == 1:
                x = tle.load_im2col(x_desc, [start[0], start[1], x_channel], [tap * dilation_w])
            elif DIMS == 2:
                offsets = [(tap // S) * dilation_h, (tap % S) * dilation_w]
                x = tle.load_im2col(x_desc, [start[0], start[1], start[2], x_channel], offsets)
            else:
                offsets = [
                    (tap // (R * S)) * dilation_d,
                    (tap // S) % R * dilation_h,
                    (tap % S) * dilation_w,
                ]
                x = tle.load_im2col(
                    x_desc, [start[0], start[1], start[2], start[3], x_channel], offsets
                )
            if MASK_CHANNELS:
                own = tl.arange(0, BLOCK_K) < GROUP_CI - channel
                x = tl.where(own[None, :], x, tl.zeros_like(x))
            weight = w_desc.load([column, tap, channel]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(x.to(DOT_DTYPE), weight.to(DOT_DTYPE).T, acc, out_dtype=ACC_DTYPE)
        if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
            offs_n = column + tl.arange(0, BLOCK_N)
            acc = scale_and_shift(acc, offs_n, column_end, bias_ptr, scale_ptr, tile_scale_ptr)
        if y_desc is None or STORE_PARTS == 1:
            finish_tile(
                acc, row, column, m_gemm, co, column_end, y_desc, y_ptr,
                residual_desc, residual_ptr, image_pixels, out_scale_ptr, amax_ptr, extra,
                ACTIVATION, FUNCTION, DTYPE,
            )  # fmt: skip
        else:
            halves = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1)
            left, right = tl.split(halves)
            finish_tile(
                left, row, column, m_gemm, co, column_end, y_desc, y_ptr,
                residual_desc, residual_ptr, image_pixels, out_scale_ptr, amax_ptr, extra,
                ACTIVATION, FUNCTION, DTYPE,
            )  # fmt: skip
            finish_tile(
                right, row, column + BLOCK_N // 2, m_gemm, co, column_end, y_desc, y_ptr,
                residual_desc, residual_ptr, image_pixels, out_scale_ptr, amax_ptr, extra,
                ACTIVATION, FUNCTION, DTYPE,
            )  # fmt: skip


def kernel_constants(
    config: ConvConfig,
    filter_size: tuple[int, ...],
    group_ci: int,
    dtype: tl.dtype,
    epilogue: EpilogueSpec,
    *,
    groups: int = 1,
    x_is_matrix: bool = False,
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters."""
    t, r, s = (1,) * (3 - len(filter_size)) + filter_size
    acc_dtype = tl.int32 if dtype == tl.int8 else tl.float32
    out_dtype = acc_dtype if dtype == tl.int8 else dtype
    if epilogue.out_dtype is not None:
        out_dtype = TRITON_DTYPES[epilogue.out_dtype]
    return {
        "DIMS": len(filter_size),
        "T": t,
        "R": r,
        "S": s,
        "CHANNEL_BLOCKS": math.ceil(group_ci / config.block_k),
        **config.constants,
        "DTYPE": out_dtype,
        # Triton's interpreter multiplies the bits of bf16 and fp8 as integers (3.6 to 3.9).
        "DOT_DTYPE": tl.float32 if IS_INTERPRETED and acc_dtype == tl.float32 else dtype,
        "ACTIVATION": epilogue.activation,
        "FUNCTION": epilogue.function,
        "ACC_DTYPE": acc_dtype,
        "GROUPS": groups,
        "GROUP_CI": group_ci,
        "MASK_CHANNELS": groups > 1 and group_ci % config.block_k != 0,
        "X_IS_MATRIX": x_is_matrix,
        "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
    }
