"""Kernels of the forward pass: statistics by chunks, their merging, and normalization.

Sums are of distances from the mean of a chunk's first tile, so that a mean far from 0 costs no
digits; parts are merged by their counts, means and sums of squares (Chan, Golub, LeVeque 1979), in
an order that is always the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import activate
from triton_ext.ops.norms.norm_device import SIZES, channel_terms, place

__all__ = ["merge_moments_kernel", "moments_kernel", "normalize_kernel"]


@triton.jit(do_not_specialize=SIZES)
def moments_kernel(
    x_ptr,  # x [images, rows, C], packed
    parts_ptr,  # [2, images, chunks, C] fp32: means, sums of squared distances from them
    rows,
    chunk_rows,
    chunks,
    images,
    units,
    UNIT: tl.constexpr,  # C / units: tells the compiler how rows are aligned
    BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    TILE: tl.constexpr = ROWS * UNROLL
    channels = units * UNIT
    column, chunk, image = place(chunks, channels, BLOCK_C)
    columns = column + tl.arange(0, BLOCK_C)
    begin = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - begin)
    # Added along the first dimension in a thread's registers, along the second at the end.
    tile_rows = tl.arange(0, UNROLL)[:, None, None] * ROWS + tl.arange(0, ROWS)[None, :, None]
    offsets = tile_rows * channels + columns[None, None, :]
    is_channel = (columns < channels)[None, None, :]
    tiles = x_ptr + (image.to(tl.int64) * rows + begin) * channels
    mask = tile_rows < count
    x = tl.load(tiles + offsets, mask=mask & is_channel, other=0.0).to(tl.float32)
    first = tl.minimum(count, TILE).to(tl.float32)
    shift = tl.sum(tl.sum(x, axis=0), axis=0) / first
    distance = tl.where(mask, x - shift[None, None, :], 0.0)
    sums = tl.sum(distance, axis=0)
    squares = tl.sum(distance * distance, axis=0)
    for row in range(TILE, count, TILE):
        tiles += TILE * channels
        mask = tile_rows < count - row
        x = tl.load(tiles + offsets, mask=mask & is_channel, other=0.0).to(tl.float32)
        distance = tl.where(mask, x - shift[None, None, :], 0.0)
        sums += tl.sum(distance, axis=0)
        squares += tl.sum(distance * distance, axis=0)
    total = tl.sum(sums, axis=0)
    mean = total / count.to(tl.float32)
    # Not below 0 by rounding; a NaN is in the mean as well.
    m2 = tl.maximum(tl.sum(squares, axis=0) - total * mean, 0.0)
    targets = parts_ptr + (image * chunks + chunk).to(tl.int64) * channels + columns
    tl.store(targets, shift + mean, mask=columns < channels)
    plane = tl.cast(images, tl.int64) * chunks * channels
    tl.store(targets + plane, m2, mask=columns < channels)


@triton.jit(do_not_specialize=SIZES)
def merge_moments_kernel(
    parts_ptr,  # of moments_kernel
    mean_ptr,  # [images, groups] fp32
    rstd_ptr,  # [images, groups] fp32, 1 / standard deviation
    running_mean_ptr,  # [C] or None; of one image whose groups are channels
    running_var_ptr,
    batches_ptr,  # int64 or None; gets 1 more
    rows,
    chunk_rows,
    chunks,
    images,
    channels,
    groups,
    group_channels,
    eps_bits,  # of fp32
    momentum_bits,
    IS_CHANNEL: tl.constexpr,  # whether groups are single channels, several of a program
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    if batches_ptr is not None:  # noqa: SIM102 - decided while it is traced
        if tl.program_id(0) == 0:
            tl.store(batches_ptr, tl.load(batches_ptr) + 1)
    programs = tl.cdiv(channels, BLOCK_C) if IS_CHANNEL else groups
    image = tl.program_id(0) // programs
    group = tl.program_id(0) % programs
    if IS_CHANNEL:
        columns = group * BLOCK_C + tl.arange(0, BLOCK_C)
        is_column = columns < channels
    else:
        columns = group * group_channels + tl.arange(0, BLOCK_C)
        is_column = tl.arange(0, BLOCK_C) < group_channels
    means = parts_ptr + image.to(tl.int64) * chunks * channels
    squares = means + tl.cast(images, tl.int64) * chunks * channels
    tile_parts = tl.arange(0, BLOCK_P)
    total = tl.cast(rows, tl.float32) * group_channels
    sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in range(0, chunks, BLOCK_P):
        part = first + tile_parts
        counts = tl.minimum(chunk_rows, rows - part * chunk_rows).to(tl.float32)
        offsets = part[:, None] * channels + columns[None, :]
        mask = (part < chunks)[:, None] & is_column[None, :]
        sums += tl.load(means + offsets, mask=mask, other=0.0) * counts[:, None]
    mean = tl.sum(sums, axis=0)
    if not IS_CHANNEL:
        mean = tl.sum(mean, axis=0) + tl.zeros((BLOCK_C,), tl.float32)
    mean = mean / total
    sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in range(0, chunks, BLOCK_P):
        part = first + tile_parts
        counts = tl.minimum(chunk_rows, rows - part * chunk_rows).to(tl.float32)
        offsets = part[:, None] * channels + columns[None, :]
        mask = (part < chunks)[:, None] & is_column[None, :]
        distance = tl.load(means + offsets, mask=mask, other=0.0) - mean[None, :]
        m2 = tl.load(squares + offsets, mask=mask, other=0.0)
        sums += tl.where(mask, m2 + distance * distance * counts[:, None], 0.0)
    variance = tl.sum(sums, axis=0)
    if not IS_CHANNEL:
        variance = tl.sum(variance, axis=0) + tl.zeros((BLOCK_C,), tl.float32)
    variance = variance / total
    rstd = tl.rsqrt(variance + eps_bits.to(tl.float32, bitcast=True))
    if IS_CHANNEL:
        targets = image * groups + columns
        tl.store(mean_ptr + targets, mean, mask=is_column)
        tl.store(rstd_ptr + targets, rstd, mask=is_column)
    else:
        # All columns hold the same.
        targets = image * groups + group + tl.zeros((BLOCK_C,), tl.int32)
        is_first = tl.arange(0, BLOCK_C) == 0
        tl.store(mean_ptr + targets, mean, mask=is_first)
        tl.store(rstd_ptr + targets, rstd, mask=is_first)
    momentum = momentum_bits.to(tl.float32, bitcast=True)
    if running_mean_ptr is not None:
        running = tl.load(running_mean_ptr + columns, mask=is_column).to(tl.float32)
        running = running * (1 - momentum) + mean * momentum
        tl.store(running_mean_ptr + columns, running, mask=is_column)
    if running_var_ptr is not None:
        running = tl.load(running_var_ptr + columns, mask=is_column).to(tl.float32)
        running = running * (1 - momentum) + variance * (total / (total - 1)) * momentum
        tl.store(running_var_ptr + columns, running, mask=is_column)


@triton.jit(do_not_specialize=SIZES)
def normalize_kernel(
    x_ptr,  # x [images, rows, C], packed
    residual_ptr,  # as x, or None
    y_ptr,  # as x
    mean_ptr,  # from here to bias_ptr: of channel_terms
    rstd_ptr,
    weight_ptr,
    bias_ptr,
    rows,
    chunk_rows,
    chunks,
    units,
    groups,
    group_channels,
    eps_bits,
    UNIT: tl.constexpr,  # from here to UNROLL: as for moments_kernel
    BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    IS_VARIANCE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    TILE: tl.constexpr = ROWS * UNROLL
    channels = units * UNIT
    column, chunk, image = place(chunks, channels, BLOCK_C)
    columns = column + tl.arange(0, BLOCK_C)
    mean, rstd, weight, bias = channel_terms(
        mean_ptr, rstd_ptr, weight_ptr, bias_ptr, image, columns, channels, groups,
        group_channels, eps_bits, IS_VARIANCE,
    )  # fmt: skip
    scale = rstd * weight
    begin = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - begin)
    tile_rows = tl.arange(0, TILE)[:, None]
    offsets = tile_rows * channels + columns[None, :]
    is_channel = (columns < channels)[None, :]
    start = (image.to(tl.int64) * rows + begin) * channels
    # From the end: what the statistics read last may still be in L2.
    last = (count - 1) // TILE
    for step in range(last + 1):
        row = (last - step) * TILE
        tile = start + row.to(tl.int64) * channels
        mask = (tile_rows < count - row) & is_channel
        x = tl.load(x_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean[None, :]) * scale[None, :] + bias[None, :]
        if residual_ptr is not None:
            y += tl.load(residual_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
        y = activate(y, ACTIVATION)
        tl.store(y_ptr + tile + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)
