"""Kernels of norms over the channels of single pixels: LayerNorm and RMSNorm of images and volumes.

A channels-last tensor is a matrix [rows, C] with a pixel per row, which a program reads once.  With
h the normalized row, r the factor of its distances, and g the gradient in front of the activation:

    dx = r * (weight * g - mean(weight * g) - h * mean(weight * g * h))

where the first mean is that of LayerNorm alone.  dweight is the sum of g * h over all rows, dbias
that of g.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import activate
from triton_ext.ops.norms.kernels import _gradient_before


@triton.jit
def _normalized(x, is_channel, channels, eps, KIND: tl.constexpr):
    """Returns rows [R, C] normalized, the factor of each, and whether it depends on the row."""
    if KIND == "layer":
        mean = tl.sum(x, axis=1) / channels
        x = tl.where(is_channel, x - mean[:, None], 0.0)
    squares = tl.sum(x * x, axis=1)
    if KIND == "l2":
        norm = tl.sqrt(squares)
        factor = tl.sqrt(tl.cast(channels, tl.float32)) / tl.maximum(norm, eps)
        is_free = norm > eps
    else:
        factor = tl.rsqrt(squares / channels + eps)
        is_free = factor == factor
    return x * factor[:, None], factor, is_free


@triton.jit
def _terms(ptr, columns, is_channel, DEFAULT: tl.constexpr):
    """Returns a number per channel, [1, C] in fp32; DEFAULT without a tensor."""
    if ptr is None:
        return tl.full((1, columns.shape[0]), DEFAULT, tl.float32)
    else:
        return tl.load(ptr + columns[None, :], mask=is_channel, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=("rows", "eps_bits"))
def channel_norm_kernel(
    x_ptr,  # x [rows, C], packed
    y_ptr,  # as x
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    rows, channels, eps_bits,  # of an fp32, as int32: launches are prepared for integers
    KIND: tl.constexpr,  # "layer", "rms", or "l2": the root of C times the row over its norm
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_C)
    is_channel = (columns < channels)[None, :]
    mask = (row < rows)[:, None] & is_channel
    offsets = row[:, None] * channels + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    eps = eps_bits.to(tl.float32, bitcast=True)
    y, _, _ = _normalized(x, is_channel, channels, eps, KIND)
    y = y * _terms(weight_ptr, columns, is_channel, 1.0)
    y = activate(y + _terms(bias_ptr, columns, is_channel, 0.0), ACTIVATION)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("rows", "eps_bits"))
def channel_norm_gradient_kernel(
    x_ptr,  # x [rows, C], packed
    dy_ptr,  # as x
    dx_ptr,  # as x, or None
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    parts_ptr,  # [2, programs, C] fp32: sums of g * h, of g; or None
    rows, channels, eps_bits,
    KIND: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK_C)
    is_channel = (columns < channels)[None, :]
    weight = _terms(weight_ptr, columns, is_channel, 1.0)
    bias = _terms(bias_ptr, columns, is_channel, 0.0)
    eps = eps_bits.to(tl.float32, bitcast=True)
    products = tl.zeros((1, BLOCK_C), tl.float32)
    sums = tl.zeros((1, BLOCK_C), tl.float32)
    for tile in range(program, tl.cdiv(rows, ROWS), programs):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & is_channel
        offsets = row[:, None] * channels + columns[None, :]
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        h, factor, is_free = _normalized(x, is_channel, channels, eps, KIND)
        g = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        g = _gradient_before(g, h * weight + bias, ACTIVATION)
        products += tl.sum(g * h, axis=0)[None, :]
        sums += tl.sum(g, axis=0)[None, :]
        if dx_ptr is not None:
            g = g * weight
            along = tl.where(is_free, tl.sum(g * h, axis=1) / channels, 0.0)
            dx = g - h * along[:, None]
            if KIND == "layer":
                dx -= (tl.sum(g, axis=1) / channels)[:, None]
            dx = dx * factor[:, None]
            tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if parts_ptr is not None:
        targets = parts_ptr + program.to(tl.int64) * channels + columns[None, :]
        tl.store(targets, products, mask=is_channel)
        plane = programs.to(tl.int64) * channels
        tl.store(targets + plane, sums, mask=is_channel)
