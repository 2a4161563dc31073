"""Device functions for tiles of the output: their order, and the epilogue of ``EpilogueSpec``.

A kernel compiles to nothing for the parts that it does not use: every choice is a constexpr or a
pointer that is None.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language import core
from triton.runtime.jit import constexpr_function

from triton_ext.ops.core.device import IS_INTERPRETED


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


@constexpr_function
def tap_count(filter_size, last: int = 3) -> int:
    """Returns the taps of a filter, or those of its last dimensions."""
    return math.prod(filter_size[-last:])


@constexpr_function
def sum_dtype(dtype: tl.dtype) -> tl.dtype:
    """Returns the type of accumulators for that of operands."""
    return tl.int32 if dtype == tl.int8 else tl.float32


@constexpr_function
def _dot_dtype(dtype: tl.dtype) -> tl.dtype:
    # Interpreters of Triton 3.6 to 3.9 multiply the bits of bf16 operands as integers.
    return tl.float32 if IS_INTERPRETED and dtype != tl.int8 else dtype


@triton.jit
def multiply(a, b, acc):
    """``tl.dot`` of operands of one type."""
    DTYPE: tl.constexpr = _dot_dtype(a.dtype)
    return tl.dot(a.to(DTYPE), b.to(DTYPE), acc, out_dtype=acc.dtype)


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
def scale_and_shift(acc, columns, co, operands):
    """acc [R, C] * scale + bias, in fp32 where there is one of them.

    ``operands`` are ``Operands``, here and below; columns [C] from co on are not read.
    """
    if operands.tile_scale is not None:
        acc = acc.to(tl.float32) * tl.load(operands.tile_scale).to(tl.float32)
    if operands.scale is not None:
        scale = tl.load(operands.scale + columns, mask=columns < co, other=0.0)
        acc = acc.to(tl.float32) * scale.to(tl.float32)[None, :]
    if operands.bias is not None:
        bias = tl.load(operands.bias + columns, mask=columns < co, other=0.0)
        acc = acc.to(tl.float32) + bias.to(tl.float32)[None, :]
    return acc


@triton.jit
def product(sizes):
    """The product of a tuple, from its last number on."""
    found = sizes[len(sizes) - 1]
    for i in tl.static_range(1, len(sizes)):
        found *= sizes[len(sizes) - 1 - i]
    return found


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
    operands,
    FINISH: tl.constexpr,  # Finish
):
    """Applies the residual, activation, function, amax and out_scale."""
    if residual is not None:
        tile = tile.to(tl.float32) + residual.to(tl.float32)
    ACTIVATION: tl.constexpr = FINISH.activation
    if ACTIVATION != "none":
        tile = activate(tile.to(tl.float32), ACTIVATION)
    if FINISH.function is not None:
        if operands.extra is None:
            tile = FINISH.function(tile.to(tl.float32), offs_m, offs_n)
        else:
            tile = FINISH.function(tile.to(tl.float32), offs_m, offs_n, *operands.extra)
    if operands.amax is not None:
        report_amax(tile.to(tl.float32), mask, operands.amax)
    if operands.out_scale is not None:
        tile = tile.to(tl.float32) * tl.load(operands.out_scale).to(tl.float32)
    return tile


@constexpr_function
def is_descriptor(y) -> bool:
    """Tells whether a tensor of a kernel is a descriptor, not a pointer."""
    return isinstance(y, core.tensor_descriptor_base)


@constexpr_function
def element_type(y) -> tl.dtype:
    """Returns the type of the elements behind a descriptor or a pointer."""
    return y.dtype if isinstance(y, core.tensor_descriptor_base) else y.dtype.element_ty


@triton.jit
def finish_tile(
    tile,  # as for finish_values
    row,  # first output pixel
    column,  # first output channel
    m_gemm,  # output pixels
    co,  # output channels, the distance of two pixels of y and of the residual
    column_end,  # end of the group's columns
    y,  # descriptor of tiles of y [M_GEMM, Co], or its pointer
    residual_desc,  # as y, or None
    operands,
    output_size,  # output pixels per dimension
    FINISH: tl.constexpr,  # Finish
):
    """Applies :func:`finish_values` to a tile and stores it."""
    tile_rows = tl.arange(0, tile.shape[0])
    offs_m = row.to(tl.int64) + tile_rows
    offs_n = column + tl.arange(0, tile.shape[1])
    offsets = offs_m[:, None] * co + offs_n[None, :]
    mask = (tile_rows < m_gemm - row)[:, None] & (offs_n < column_end)[None, :]
    residual = None
    if residual_desc is not None:
        residual = residual_desc.load([row, column])
    elif operands.residual is not None:
        places = offsets
        if FINISH.residual_per_image:
            # Rows whose number overflows lie behind the output.
            images = (row + tile_rows) // product(output_size)
            places = images.to(tl.int64)[:, None] * co + offs_n[None, :]
        residual = tl.load(operands.residual + places, mask=mask, other=0.0)
    tile = finish_values(tile, offs_m, offs_n, mask, residual, operands, FINISH)
    values = tile.to(element_type(y))
    if is_descriptor(y):
        y.store([row, column], values)
    else:
        tl.store(y + offsets, values, mask=mask)
