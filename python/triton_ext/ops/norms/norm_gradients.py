"""Kernels of the backward pass: sums of gradients by chunks, their merging, gradient of the input.

With g the gradient in front of the activation and h = (x - mean) * rstd, over the elements that
share statistics:

    dx = rstd * (weight * g - mean(weight * g) - h * mean(weight * g * h))

dweight is the sum of g * h over all images, dbias that of g.  Where mean and rstd do not depend on
x, the two means are not there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.norms.norm_device import (
    SIZES,
    channel_terms,
    gradient_before,
    load_terms,
    place,
)

__all__ = ["gradient_sums_kernel", "input_gradient_kernel", "merge_gradients_kernel"]


@triton.jit(do_not_specialize=SIZES)
def gradient_sums_kernel(
    x_ptr,  # x [images, rows, C], packed
    dy_ptr,  # as x
    y_ptr,  # as x, or None: what tells where a ReLU passed
    g_ptr,  # as x, or None: where to put the gradient in front of the activation
    mean_ptr,  # from here to bias_ptr: of channel_terms
    rstd_ptr,
    weight_ptr,
    bias_ptr,
    parts_ptr,  # [2, images, chunks, C] fp32: sums of g, of g * h
    rows,
    chunk_rows,
    chunks,
    images,
    units,
    groups,
    group_channels,
    eps_bits,
    UNIT: tl.constexpr,  # C / units: tells the compiler how rows are aligned
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
    mean = mean[None, None, :]
    scale, bias = (rstd * weight)[None, None, :], bias[None, None, :]
    begin = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - begin)
    # Added along the first dimension in a thread's registers, along the second at the end.
    tile_rows = tl.arange(0, UNROLL)[:, None, None] * ROWS + tl.arange(0, ROWS)[None, :, None]
    offsets = tile_rows * channels + columns[None, None, :]
    is_channel = (columns < channels)[None, None, :]
    tile = (image.to(tl.int64) * rows + begin) * channels
    sums = tl.zeros((ROWS, BLOCK_C), tl.float32)
    products = tl.zeros((ROWS, BLOCK_C), tl.float32)
    for row in range(0, count, TILE):
        mask = (tile_rows < count - row) & is_channel
        x = tl.load(x_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32) - mean
        g = tl.load(dy_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
        if y_ptr is None:
            g = gradient_before(g, x * scale + bias, ACTIVATION)
        else:
            y = tl.load(y_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
            g = gradient_before(g, y, ACTIVATION)
        if g_ptr is not None:
            tl.store(g_ptr + tile + offsets, g.to(g_ptr.dtype.element_ty), mask=mask)
        sums += tl.sum(g, axis=0)
        products += tl.sum(g * x, axis=0)
        tile += TILE * channels
    targets = parts_ptr + (image * chunks + chunk).to(tl.int64) * channels + columns
    tl.store(targets, tl.sum(sums, axis=0), mask=columns < channels)
    plane = tl.cast(images, tl.int64) * chunks * channels
    tl.store(targets + plane, tl.sum(products, axis=0) * rstd, mask=columns < channels)


@triton.jit
def _add_parts(parts, number, columns, is_column, channels, BLOCK_P: tl.constexpr):
    """Adds [number, C] along the parts, for some columns."""
    sums = tl.zeros((BLOCK_P, columns.shape[0]), tl.float32)
    for first in range(0, number, BLOCK_P):
        part = first + tl.arange(0, BLOCK_P)
        offsets = part.to(tl.int64)[:, None] * channels + columns[None, :]
        mask = (part < number)[:, None] & is_column[None, :]
        sums += tl.load(parts + offsets, mask=mask, other=0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def _merge_group(
    program, parts_ptr, weight_ptr, means_ptr, plane, rows, chunks, images, channels, groups,
    group_channels, IS_CHANNEL: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes the means of a group, or of some groups of one channel."""
    programs = tl.cdiv(channels, BLOCK_C) if IS_CHANNEL else groups
    image = program // programs
    group = program % programs
    if IS_CHANNEL:
        columns = group * BLOCK_C + tl.arange(0, BLOCK_C)
        is_column = columns < channels
    else:
        columns = group * group_channels + tl.arange(0, BLOCK_C)
        is_column = tl.arange(0, BLOCK_C) < group_channels
    parts = parts_ptr + image.to(tl.int64) * chunks * channels
    sums = _add_parts(parts, chunks, columns, is_column, channels, BLOCK_P)
    products = _add_parts(parts + plane, chunks, columns, is_column, channels, BLOCK_P)
    # Behind the group there are weights, but no sums.
    weight = load_terms(weight_ptr, columns, channels, 1.0)
    total = tl.cast(rows, tl.float32) * group_channels
    statistics = images * groups
    if IS_CHANNEL:
        targets = means_ptr + image * groups + columns
        tl.store(targets, sums * weight / total, mask=is_column)
        tl.store(targets + statistics, products * weight / total, mask=is_column)
    else:
        targets = means_ptr + image * groups + group
        tl.store(targets, tl.sum(sums * weight, axis=0) / total)
        tl.store(targets + statistics, tl.sum(products * weight, axis=0) / total)


@triton.jit
def _merge_channels(
    program, parts_ptr, dweight_ptr, dbias_ptr, plane, number, channels,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Writes dweight and dbias of some channels."""
    columns = program * BLOCK_C + tl.arange(0, BLOCK_C)
    is_column = columns < channels
    if dbias_ptr is not None:
        sums = _add_parts(parts_ptr, number, columns, is_column, channels, BLOCK_P)
        tl.store(dbias_ptr + columns, sums.to(dbias_ptr.dtype.element_ty), mask=is_column)
    if dweight_ptr is not None:
        products = _add_parts(parts_ptr + plane, number, columns, is_column, channels, BLOCK_P)
        tl.store(dweight_ptr + columns, products.to(dweight_ptr.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=SIZES)
def merge_gradients_kernel(
    parts_ptr,  # of gradient_sums_kernel
    weight_ptr,  # [C] or None
    means_ptr,  # [2, images, groups] fp32 or None: means of weight * g and weight * g * h
    dweight_ptr,  # [C] or None
    dbias_ptr,  # [C] or None
    rows,
    chunks,
    images,
    channels,
    groups,
    group_channels,
    group_programs,  # those that write means; behind them come those of dweight and dbias
    IS_CHANNEL: tl.constexpr,  # whether groups are single channels, several of a program
    GROUP_P: tl.constexpr,
    GROUP_C: tl.constexpr,
    CHANNEL_P: tl.constexpr,
    CHANNEL_C: tl.constexpr,
):
    plane = tl.cast(images, tl.int64) * chunks * channels
    program = tl.program_id(0)
    if program < group_programs:
        if means_ptr is not None:
            _merge_group(
                program, parts_ptr, weight_ptr, means_ptr, plane, rows, chunks, images, channels,
                groups, group_channels, IS_CHANNEL, GROUP_P, GROUP_C,
            )  # fmt: skip
    else:
        _merge_channels(
            program - group_programs, parts_ptr, dweight_ptr, dbias_ptr, plane, images * chunks,
            channels, CHANNEL_P, CHANNEL_C,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def input_gradient_kernel(
    x_ptr,  # x [images, rows, C], packed
    dy_ptr,  # as x
    y_ptr,  # as x, or None
    dx_ptr,  # as x
    mean_ptr,  # from here to bias_ptr: of channel_terms
    rstd_ptr,
    weight_ptr,
    bias_ptr,
    means_ptr,  # of merge_gradients_kernel; None where statistics do not depend on x
    rows,
    chunk_rows,
    chunks,
    images,
    units,
    groups,
    group_channels,
    eps_bits,
    UNIT: tl.constexpr,  # from here to UNROLL: as for gradient_sums_kernel
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
    if means_ptr is not None:
        indices = image * groups + columns // group_channels
        mean_g = tl.load(means_ptr + indices, mask=columns < channels, other=0.0) * rstd
        products = means_ptr + images * groups
        mean_gh = tl.load(products + indices, mask=columns < channels, other=0.0) * rstd * rstd
    begin = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - begin)
    tile_rows = tl.arange(0, TILE)[:, None]
    offsets = tile_rows * channels + columns[None, :]
    is_channel = (columns < channels)[None, :]
    start = (image.to(tl.int64) * rows + begin) * channels
    # From the end: what the sums read last may still be in L2.
    last = (count - 1) // TILE
    for step in range(last + 1):
        row = (last - step) * TILE
        tile = start + row.to(tl.int64) * channels
        mask = (tile_rows < count - row) & is_channel
        g = tl.load(dy_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
        NEEDS_X: tl.constexpr = means_ptr is not None or (
            y_ptr is None and ACTIVATION != "identity"
        )
        if NEEDS_X:
            x = tl.load(x_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
            x -= mean[None, :]
        if y_ptr is not None:
            y = tl.load(y_ptr + tile + offsets, mask=mask, other=0.0).to(tl.float32)
            g = gradient_before(g, y, ACTIVATION)
        elif ACTIVATION != "identity":
            g = gradient_before(g, x * scale[None, :] + bias[None, :], ACTIVATION)
        dx = g * scale[None, :]
        if means_ptr is not None:
            dx -= mean_g[None, :] + x * mean_gh[None, :]
        tl.store(dx_ptr + tile + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
