"""Convolution without tensor cores for groups of very few channels, and its gradient of the input.

An output channel of a depthwise convolution reads one input channel.  A tile of an implicit GEMM
would use one column of BLOCK_K of what it loads and multiplies; with fewer than 16 bytes of
channels per group, loading each pixel's channels once per tap costs less, and TMA could not begin a
copy where a group begins.  Neighbouring threads read neighbouring channels.  Groups of one channel
each way have a kernel of their own, ``depthwise.py``.

The gradient is the same over dy: the filter is read from its end, its channels are exchanged, and
pixels between those of dy, where the convolution has a stride, do not exist.

Pointers and masks: no tensor maps, so any stride, padding, dilation and alignment would do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, pixels_of_image, scale_and_shift

__all__ = ["conv_direct_kernel"]


@triton.jit
def conv_direct_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], pixels of any stride, channels contiguous
    w_ptr,  # w [Co, T * R * S, Ci / groups], packed
    y_desc,  # None
    y_ptr,  # y [M_GEMM, Co], packed
    bias_ptr,  # from here to extra: as for conv_fprop_kernel
    scale_ptr,
    tile_scale_ptr,
    residual_desc,  # None
    residual_ptr,
    out_scale_ptr,
    amax_ptr,
    extra,
    m_gemm,
    co,
    size_d,  # input pixels; these six per spatial dimension, None for dimensions that are not there
    size_h,
    size_w,
    out_d,
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
    x_stride_d,  # in elements
    x_stride_h,
    x_stride_w,
    x_stride_n,
    DIMS: tl.constexpr,
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    GROUP_CI: tl.constexpr,  # Ci / groups
    GROUP_CO: tl.constexpr,  # Co / groups
    IS_GRADIENT: tl.constexpr,  # strides are distances of the input's pixels, not the output's
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DTYPE: tl.constexpr,  # of y
    ACC_DTYPE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
):
    image_pixels = pixels_of_image(out_d, out_h, out_w, DIMS) if RESIDUAL_PER_IMAGE else None
    num_n = (co - 1) // BLOCK_N + 1
    row = tl.program_id(0) // num_n * BLOCK_M
    column = tl.program_id(0) % num_n * BLOCK_N
    tile_rows = tl.arange(0, BLOCK_M)
    rows = row.to(tl.int64) + tile_rows
    columns = column + tl.arange(0, BLOCK_N)
    row_mask = tile_rows < m_gemm - row
    column_mask = columns < co
    # Where tap 0 reads.
    w = rows % out_w * (1 if IS_GRADIENT else stride_w) - pad_w
    rest = rows // out_w
    if DIMS > 1:
        h = rest % out_h * (1 if IS_GRADIENT else stride_h) - pad_h
        rest = rest // out_h
    if DIMS > 2:
        d = rest % out_d * (1 if IS_GRADIENT else stride_d) - pad_d
        rest = rest // out_d
    images = x_ptr + rest * x_stride_n
    channels = columns // GROUP_CO * GROUP_CI
    weights = w_ptr + columns * (T * R * S * GROUP_CI)
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for line in range(T * R):
        inside = row_mask
        lines = images
        if DIMS > 1:
            this_h = h + line % R * dilation_h
            if IS_GRADIENT:
                inside = inside & (this_h % stride_h == 0)
                this_h = this_h // stride_h
            inside = inside & (this_h >= 0) & (this_h < size_h)
            lines = lines + this_h * x_stride_h
        if DIMS > 2:
            this_d = d + line // R * dilation_d
            if IS_GRADIENT:
                inside = inside & (this_d % stride_d == 0)
                this_d = this_d // stride_d
            inside = inside & (this_d >= 0) & (this_d < size_d)
            lines = lines + this_d * x_stride_d
        for s in range(S):
            this_w = w + s * dilation_w
            is_pixel = inside
            if IS_GRADIENT:
                is_pixel = is_pixel & (this_w % stride_w == 0)
                this_w = this_w // stride_w
            is_pixel = is_pixel & (this_w >= 0) & (this_w < size_w)
            pixels = lines + this_w * x_stride_w
            for c in tl.static_range(GROUP_CI):
                mask = is_pixel[:, None] & column_mask[None, :]
                x = tl.load(pixels[:, None] + (channels + c)[None, :], mask=mask, other=ZERO)
                tap = line * S + s
                if IS_GRADIENT:
                    tap = T * R * S - 1 - tap
                weight = tl.load(weights + tap * GROUP_CI + c, mask=column_mask, other=ZERO)
                acc += x.to(ACC_DTYPE) * weight.to(ACC_DTYPE)[None, :]
    if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
        acc = scale_and_shift(acc, columns, co, bias_ptr, scale_ptr, tile_scale_ptr)
    finish_tile(
        acc, row, column, m_gemm, co, co, y_desc, y_ptr, residual_desc, residual_ptr,
        image_pixels, out_scale_ptr, amax_ptr, extra, ACTIVATION, FUNCTION, DTYPE,
    )  # fmt: skip
