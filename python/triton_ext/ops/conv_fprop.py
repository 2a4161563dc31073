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

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_ext.language as tle
from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.kernels.epilogue import (
    finish_tile,
    pixels_of_image,
    scale_and_shift,
    tile_position,
)

__all__ = ["TRITON_DTYPES", "compile_conv_fprop", "conv_fprop_kernel", "kernel_constants"]

TRITON_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
    torch.int8: tl.int8,
    torch.int32: tl.int32,
}


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
    ci: int,
    dtype: tl.dtype,
    epilogue: EpilogueSpec = PLAIN,
    *,
    groups: int = 1,
    x_is_matrix: bool = False,
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters.

    Args:
        config: The tile configuration.
        filter_size: ([T, [R, ]]S).
        ci: Input channels of a group.
        dtype: Of x and w.
        epilogue: What is done to the output.
        groups: Groups of channels.
        x_is_matrix: Whether im2col is the identity.
    """
    t, r, s = (1,) * (3 - len(filter_size)) + filter_size
    acc_dtype = tl.int32 if dtype == tl.int8 else tl.float32
    out_dtype = acc_dtype if dtype == tl.int8 else dtype
    if epilogue.out_dtype is not None:
        out_dtype = TRITON_DTYPES[epilogue.out_dtype]
    # Triton's interpreter multiplies the bits of bf16 and fp8 operands as integers (3.6 to 3.9).
    dot_dtype = tl.float32 if IS_INTERPRETED and acc_dtype == tl.float32 else dtype
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
        "DTYPE": out_dtype,
        "DOT_DTYPE": dot_dtype,
        "ACTIVATION": epilogue.activation,
        "FUNCTION": epilogue.function,
        "ACC_DTYPE": acc_dtype,
        "GROUPS": groups,
        "GROUP_CI": ci,
        "MASK_CHANNELS": groups > 1 and ci % config.block_k != 0,
        "X_IS_MATRIX": x_is_matrix,
        "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
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
    epilogue: EpilogueSpec = PLAIN,
    scale_is_one_number: bool = True,
    extra: tuple[str, ...] = (),
    groups: int = 1,
    x_is_matrix: bool = False,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: The tile configuration.
        capability: Compute capability of the target times ten: 90, 100.
        filter_size: ([T, [R, ]]S).
        ci: Input channels of a group.
        dtype: Of x and w.
        has_bias: Whether a bias is added.
        store_through_tma: Whether y is stored by TMA; otherwise through a pointer.
        epilogue: What is done to the output; its bias is ``has_bias``.
        scale_is_one_number: Whether a scale is one number, rather than one per channel.
        extra: Types of further arguments of the epilogue's function, such as ``"*fp32"``.
        groups: Groups of channels.
        x_is_matrix: Whether im2col is the identity.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    m, n, k = config.block_m, config.block_n, config.block_k
    constants = kernel_constants(
        config, filter_size, ci, dtype, epilogue, groups=groups, x_is_matrix=x_is_matrix
    )
    element, out_element = _name(dtype), _name(constants["DTYPE"])
    tile = f"[{m}, {n // config.store_parts}]"
    pointer = not store_through_tma
    # Through TMA comes what has the tiles of y.
    residual_tiles = epilogue.residual and store_through_tma and not epilogue.residual_per_image
    possible: dict[str, Any] = {
        "x_desc": (f"tensordesc<{element}[{m}, {k}]>", True),
        "w_desc": (f"tensordesc<{element}[{n}, 1, {k}]>", True),
        "y_desc": (f"tensordesc<{out_element}{tile}>", store_through_tma),
        "y_ptr": (f"*{out_element}", pointer),
        "bias_ptr": (f"*{element}", has_bias or epilogue.bias),
        "scale_ptr": ("*fp32", epilogue.scale and not scale_is_one_number),
        "tile_scale_ptr": ("*fp32", epilogue.scale and scale_is_one_number),
        "residual_desc": (f"tensordesc<{element}{tile}>", residual_tiles),
        "residual_ptr": (f"*{element}", epilogue.residual and not residual_tiles),
        "out_scale_ptr": ("*fp32", epilogue.out_scale),
        "amax_ptr": ("*i32", epilogue.amax),
        "extra": (extra, bool(extra)),
    }
    tensors = {name: kind for name, (kind, is_there) in possible.items() if is_there}
    constants |= {name: None for name in possible if name not in tensors}
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


def _name(dtype: tl.dtype) -> str:
    """What Triton calls a type in signatures."""
    return {"int8": "i8", "int32": "i32"}.get(str(dtype), str(dtype))
