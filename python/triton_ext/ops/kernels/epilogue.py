"""Device functions for tiles of the output: their order, and the epilogue of ``EpilogueSpec``.

A kernel compiles to nothing for the parts that it does not use: every choice is a constexpr or a
pointer that is None.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_position(tile, num_m, num_n, GROUP_SIZE_M: tl.constexpr):
    """Row and column of a tile, GROUP_SIZE_M rows at a time so that weights stay in L2."""
    width = GROUP_SIZE_M * num_n
    first_m = (tile // width) * GROUP_SIZE_M
    group_m = min(num_m - first_m, GROUP_SIZE_M)
    return first_m + (tile % width) % group_m, (tile % width) // group_m


@triton.jit
def column_parts(tile, PARTS: tl.constexpr):
    """Returns a tile [R, C] as a tuple of PARTS tiles of neighbouring columns: 1 or 2."""
    if PARTS == 1:
        return (tile,)
    else:
        left, right = tl.split(tile.reshape(tile.shape[0], 2, tile.shape[1] // 2).permute(0, 2, 1))
        return left, right


@triton.jit
def _tanh(x):
    """tanh of fp32, as exact near 0 as far from it: 1 - 2 / (exp(2x) + 1) would cancel there."""
    square = x * x
    # Error of the series below 0.25: 62/2835 x^8, relative, 4e-7.
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))
    return tl.where(tl.abs(x) < 0.25, series, 1 - 2 / (tl.exp(2 * x) + 1))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """An activation of fp32; NaN and infinities as torch's functions have them."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # x / 2 * (1 + tanh(u)) = x * sigmoid(2u), which does not cancel.
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "tanh":
        x = _tanh(x)
    return x


@triton.jit
def scale_and_shift(acc, columns, co, bias_ptr, scale_ptr, tile_scale_ptr):
    """acc [R, C] * scale + bias, in fp32 where there is one of them; all pointers may be None.

    Bias and scale are [Co], of which columns [C] from co on are not read; tile_scale is one number.
    """
    if tile_scale_ptr is not None:
        acc = acc.to(tl.float32) * tl.load(tile_scale_ptr).to(tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + columns, mask=columns < co, other=0.0)
        acc = acc.to(tl.float32) * scale.to(tl.float32)[None, :]
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns, mask=columns < co, other=0.0)
        acc = acc.to(tl.float32) + bias.to(tl.float32)[None, :]
    return acc


@triton.jit
def pixels_of_image(out_d, out_h, out_w, DIMS: tl.constexpr):
    """Output pixels of one image."""
    pixels = out_w
    if DIMS > 1:
        pixels *= out_h
    if DIMS > 2:
        pixels *= out_d
    return pixels


@triton.jit
def report_amax(tile, valid, amax_ptr):
    """Raises the bits of an fp32, as int32, to the largest absolute value of a tile, fp32 [R, C].

    Only valid elements, bool [R, C], count.  Order does not matter, so the result is always the
    same: the bits of floats without a sign are ordered as the floats are, NaN above infinity.
    """
    bits = tl.abs(tile).to(tl.int32, bitcast=True)
    largest = tl.max(tl.max(tl.where(valid, bits, 0), axis=1), axis=0)
    tl.atomic_max(amax_ptr, largest, sem="relaxed")


@triton.jit
def finish_values(
    tile,  # [R, C], fp32; any accumulator where nothing but the cast is asked for
    offs_m,  # [R], output pixels
    offs_n,  # [C], output channels
    mask,  # [R, C], which are there
    residual,  # [R, C] or None
    out_scale_ptr,  # one number or None
    amax_ptr,  # one int32 or None
    extra,  # further arguments of FUNCTION, a tuple; None for none
    ACTIVATION: tl.constexpr,  # an activation of :func:`activate` or "none"
    FUNCTION: tl.constexpr,  # the user's function or None
):
    """Everything between scale and bias, and the cast."""
    if residual is not None:
        tile = tile.to(tl.float32) + residual.to(tl.float32)
    if ACTIVATION != "none":
        tile = activate(tile.to(tl.float32), ACTIVATION)
    if FUNCTION is not None:
        if extra is None:
            tile = FUNCTION(tile.to(tl.float32), offs_m, offs_n)
        else:
            tile = FUNCTION(tile.to(tl.float32), offs_m, offs_n, *extra)
    if amax_ptr is not None:
        report_amax(tile.to(tl.float32), mask, amax_ptr)
    if out_scale_ptr is not None:
        tile = tile.to(tl.float32) * tl.load(out_scale_ptr).to(tl.float32)
    return tile


@triton.jit
def finish_tile(
    tile,  # this one and those from out_scale_ptr on: as for finish_values
    row,  # first output pixel
    column,  # first output channel
    m_gemm,  # output pixels
    co,  # output channels, the distance of two pixels of y and of the residual
    column_end,  # end of the group's columns
    y_desc,  # tiles of y [M_GEMM, Co], or None
    y_ptr,  # y as a pointer where there is no descriptor
    residual_desc,  # as y_desc, or None
    residual_ptr,  # as y_ptr, or None; [N, Co] where image_pixels are given
    image_pixels,  # output pixels of an image, for a residual per image; None for one per pixel
    out_scale_ptr,
    amax_ptr,
    extra,
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,
    DTYPE: tl.constexpr,  # of y
):
    """Everything behind scale and bias, and the store."""
    tile_rows = tl.arange(0, tile.shape[0])
    offs_m = row.to(tl.int64) + tile_rows
    offs_n = column + tl.arange(0, tile.shape[1])
    offsets = offs_m[:, None] * co + offs_n[None, :]
    mask = (tile_rows < m_gemm - row)[:, None] & (offs_n < column_end)[None, :]
    residual = None
    if residual_desc is not None:
        residual = residual_desc.load([row, column])
    elif residual_ptr is not None:
        places = offsets
        if image_pixels is not None:
            # Rows whose number overflows lie behind the output.
            images = (row + tile_rows) // image_pixels
            places = images.to(tl.int64)[:, None] * co + offs_n[None, :]
        residual = tl.load(residual_ptr + places, mask=mask, other=0.0)
    tile = finish_values(
        tile, offs_m, offs_n, mask, residual, out_scale_ptr, amax_ptr, extra, ACTIVATION, FUNCTION
    )
    if y_desc is None:
        tl.store(y_ptr + offsets, tile.to(DTYPE), mask=mask)
    else:
        y_desc.store([row, column], tile.to(DTYPE))
