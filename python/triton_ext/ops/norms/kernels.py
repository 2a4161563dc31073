"""Kernels of normalizations: statistics by chunks, their merging, normalization, and gradients.

A channels-last tensor is a matrix [images, rows, C]; a program walks one chunk of rows of some
channels of one image.  Sums of x are of distances from the mean of a chunk's first tile, so that a
mean far from 0 costs no digits; parts are merged by their counts, means and sums of squares (Chan,
Golub, LeVeque 1979), in an order that is always the same.

With g the gradient in front of the activation and h = (x - mean) * rstd, over the elements that
share statistics:

    dx = rstd * (weight * g - mean(weight * g) - h * mean(weight * g * h))

dweight is the sum of g * h over all images, dbias that of g.  Where mean and rstd do not depend on
x, the two means are not there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import activate

# Kernels are not specialized on these: rows are aligned by UNIT, and nothing else is gained by a
# kernel for each kind of their values.
_SIZES = (
    *("rows", "chunk_rows", "chunks", "units", "channels", "groups", "group_programs"),
    *("eps_bits", "momentum_bits"),  # of an fp32, as int32: launches are prepared for integers
)


@triton.jit
def _chunk(rows, chunk_rows, chunks, channels, BLOCK_C: tl.constexpr):
    """Returns a program's channels [BLOCK_C], image, chunk, number of rows, and first element.

    Neighbouring programs have neighbouring channels.
    """
    blocks = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0)
    columns = program % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    rest = program // blocks
    image, chunk = rest // chunks, rest % chunks
    begin = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - begin)
    return columns, image, chunk, count, (image.to(tl.int64) * rows + begin) * channels


@triton.jit
def _rows_to_add(ROWS: tl.constexpr, UNROLL: tl.constexpr):
    """Returns a tile's rows [UNROLL, ROWS, 1].

    Sums run along the first dimension in a thread's registers, along the second at the end.
    """
    return tl.arange(0, UNROLL)[:, None, None] * ROWS + tl.arange(0, ROWS)[None, :, None]


@triton.jit
def _load(ptr, offsets, mask):
    return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_parts(parts_ptr, first, second, columns, image, chunk, chunks, images, channels):
    """Writes two numbers per channel of a chunk, [2, images, chunks, C]."""
    targets = parts_ptr + (image * chunks + chunk).to(tl.int64) * channels + columns
    tl.store(targets, first, mask=columns < channels)
    plane = tl.cast(images, tl.int64) * chunks * channels
    tl.store(targets + plane, second, mask=columns < channels)


@triton.jit
def _load_terms(ptr, columns, channels, DEFAULT: tl.constexpr):
    """Returns a number per channel in fp32; DEFAULT without a tensor."""
    if ptr is None:
        return tl.full(columns.shape, DEFAULT, tl.float32)
    else:
        return _load(ptr, columns, columns < channels)


@triton.jit
def _chunk_and_terms(
    mean_ptr,  # [images, groups]
    rstd_ptr,  # [images, groups]: 1 / standard deviation, or with IS_VARIANCE the variance
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    rows, chunk_rows, chunks, channels, groups, group_channels, eps_bits,
    BLOCK_C: tl.constexpr, IS_VARIANCE: tl.constexpr,
):  # fmt: skip
    """Returns what _chunk does, and of each channel mean, rstd, rstd * weight and bias."""
    columns, image, chunk, count, start = _chunk(rows, chunk_rows, chunks, channels, BLOCK_C)
    indices = image * groups + columns // group_channels
    mask = columns < channels
    mean = _load(mean_ptr, indices, mask)
    rstd = tl.load(rstd_ptr + indices, mask=mask, other=1.0).to(tl.float32)
    if IS_VARIANCE:
        rstd = tl.rsqrt(rstd + eps_bits.to(tl.float32, bitcast=True))
    weight = _load_terms(weight_ptr, columns, channels, 1.0)
    bias = _load_terms(bias_ptr, columns, channels, 0.0)
    return columns, image, chunk, count, start, mean, rstd, rstd * weight, bias


@triton.jit
def _group(
    program, channels, groups, group_channels, IS_CHANNEL: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Returns image, columns [BLOCK_C] and which are there, and where their statistics stand.

    A program has a whole group, or with IS_CHANNEL some groups of one channel.
    """
    programs = tl.cdiv(channels, BLOCK_C) if IS_CHANNEL else groups
    image, group = program // programs, program % programs
    if IS_CHANNEL:
        columns = group * BLOCK_C + tl.arange(0, BLOCK_C)
        return image, columns, columns < channels, image * groups + columns
    else:
        columns = group * group_channels + tl.arange(0, BLOCK_C)
        is_column = tl.arange(0, BLOCK_C) < group_channels
        return image, columns, is_column, image * groups + group


@triton.jit
def _parts(first, number, columns, is_column, channels, BLOCK_P: tl.constexpr):
    """Returns parts [BLOCK_P] from the first on, and their offsets and mask in [number, C]."""
    part = first + tl.arange(0, BLOCK_P)
    offsets = part[:, None] * channels + columns[None, :]
    return part, offsets, (part < number)[:, None] & is_column[None, :]


@triton.jit(do_not_specialize=_SIZES)
def moments_kernel(
    x_ptr,  # x [images, rows, C], packed
    parts_ptr,  # [2, images, chunks, C] fp32: means, sums of squared distances from them
    rows, chunk_rows, chunks, images, units,
    UNIT: tl.constexpr,  # C / units: tells the compiler how rows are aligned
    BLOCK_C: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = ROWS * UNROLL
    channels = units * UNIT
    columns, image, chunk, count, start = _chunk(rows, chunk_rows, chunks, channels, BLOCK_C)
    tile_rows = _rows_to_add(ROWS, UNROLL)
    offsets = tile_rows * channels + columns[None, None, :]
    is_channel = (columns < channels)[None, None, :]
    tiles = x_ptr + start
    mask = tile_rows < count
    x = _load(tiles, offsets, mask & is_channel)
    first = tl.minimum(count, TILE).to(tl.float32)
    shift = tl.sum(tl.sum(x, axis=0), axis=0) / first
    distance = tl.where(mask, x - shift[None, None, :], 0.0)
    sums = tl.sum(distance, axis=0)
    squares = tl.sum(distance * distance, axis=0)
    for row in range(TILE, count, TILE):
        tiles += TILE * channels
        mask = tile_rows < count - row
        x = _load(tiles, offsets, mask & is_channel)
        distance = tl.where(mask, x - shift[None, None, :], 0.0)
        sums += tl.sum(distance, axis=0)
        squares += tl.sum(distance * distance, axis=0)
    total = tl.sum(sums, axis=0)
    mean = total / count.to(tl.float32)
    # Not below 0 by rounding; a NaN is in the mean as well.
    m2 = tl.maximum(tl.sum(squares, axis=0) - total * mean, 0.0)
    _store_parts(parts_ptr, shift + mean, m2, columns, image, chunk, chunks, images, channels)


@triton.jit
def _mean_of_group(sums, total, IS_CHANNEL: tl.constexpr):
    """Returns the mean of sums [parts, C]; of a group the same in all columns."""
    sums = tl.sum(sums, axis=0)
    if not IS_CHANNEL:
        sums = tl.sum(sums, axis=0) + tl.zeros(sums.shape, tl.float32)
    return sums / total


@triton.jit
def _move(ptr, value, momentum, columns, mask):
    """Moves running statistics towards those of a batch."""
    if ptr is not None:
        running = tl.load(ptr + columns, mask=mask).to(tl.float32)
        tl.store(ptr + columns, running * (1 - momentum) + value * momentum, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def merge_moments_kernel(
    parts_ptr,  # of moments_kernel
    mean_ptr,  # [images, groups] fp32
    rstd_ptr,  # [images, groups] fp32, 1 / standard deviation
    running_mean_ptr,  # [C] or None; of one image whose groups are channels
    running_var_ptr,
    batches_ptr,  # int64 or None; gets 1 more
    rows, chunk_rows, chunks, images, channels, groups, group_channels, eps_bits, momentum_bits,
    IS_CHANNEL: tl.constexpr,  # whether groups are single channels, several of a program
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    if batches_ptr is not None:  # noqa: SIM102 - decided while it is traced
        if tl.program_id(0) == 0:
            tl.store(batches_ptr, tl.load(batches_ptr) + 1)
    image, columns, is_column, targets = _group(
        tl.program_id(0), channels, groups, group_channels, IS_CHANNEL, BLOCK_C
    )
    means = parts_ptr + image.to(tl.int64) * chunks * channels
    squares = means + tl.cast(images, tl.int64) * chunks * channels
    total = tl.cast(rows, tl.float32) * group_channels
    sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in range(0, chunks, BLOCK_P):
        part, offsets, mask = _parts(first, chunks, columns, is_column, channels, BLOCK_P)
        counts = tl.minimum(chunk_rows, rows - part * chunk_rows).to(tl.float32)
        sums += _load(means, offsets, mask) * counts[:, None]
    mean = _mean_of_group(sums, total, IS_CHANNEL)
    sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in range(0, chunks, BLOCK_P):
        part, offsets, mask = _parts(first, chunks, columns, is_column, channels, BLOCK_P)
        counts = tl.minimum(chunk_rows, rows - part * chunk_rows).to(tl.float32)
        distance = _load(means, offsets, mask) - mean[None, :]
        m2 = _load(squares, offsets, mask)
        sums += tl.where(mask, m2 + distance * distance * counts[:, None], 0.0)
    variance = _mean_of_group(sums, total, IS_CHANNEL)
    rstd = tl.rsqrt(variance + eps_bits.to(tl.float32, bitcast=True))
    if IS_CHANNEL:
        is_stored = is_column
    else:
        # All columns hold the same.
        targets += tl.zeros((BLOCK_C,), tl.int32)
        is_stored = tl.arange(0, BLOCK_C) == 0
    tl.store(mean_ptr + targets, mean, mask=is_stored)
    tl.store(rstd_ptr + targets, rstd, mask=is_stored)
    momentum = momentum_bits.to(tl.float32, bitcast=True)
    _move(running_mean_ptr, mean, momentum, columns, is_column)
    _move(running_var_ptr, variance * (total / (total - 1)), momentum, columns, is_column)


@triton.jit(do_not_specialize=_SIZES)
def normalize_kernel(
    x_ptr,  # x [images, rows, C], packed
    residual_ptr,  # as x, or None
    y_ptr,  # as x
    mean_ptr,  # from here to bias_ptr: as for _chunk_and_terms
    rstd_ptr, weight_ptr, bias_ptr,
    rows, chunk_rows, chunks, units, groups, group_channels, eps_bits,
    UNIT: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
    IS_VARIANCE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = ROWS * UNROLL
    channels = units * UNIT
    columns, _, _, count, start, mean, _, scale, bias = _chunk_and_terms(
        mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, chunk_rows, chunks, channels, groups,
        group_channels, eps_bits, BLOCK_C, IS_VARIANCE,
    )  # fmt: skip
    tile_rows = tl.arange(0, TILE)[:, None]
    offsets = tile_rows * channels + columns[None, :]
    is_channel = (columns < channels)[None, :]
    # From the end: what the statistics read last may still be in L2.
    last = (count - 1) // TILE
    for step in range(last + 1):
        row = (last - step) * TILE
        tile = start + row.to(tl.int64) * channels
        mask = (tile_rows < count - row) & is_channel
        x = _load(x_ptr + tile, offsets, mask)
        y = (x - mean[None, :]) * scale[None, :] + bias[None, :]
        if residual_ptr is not None:
            y += _load(residual_ptr + tile, offsets, mask)
        y = activate(y, ACTIVATION)
        tl.store(y_ptr + tile + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_before(dy, x, ACTIVATION: tl.constexpr):
    """Returns the gradient in front of an activation of x, from the one behind it; fp32."""
    if ACTIVATION == "relu":
        # A NaN passes, as in torch.
        dy = tl.where(x <= 0, 0.0, dy)
    elif ACTIVATION == "silu":
        sigmoid = tl.sigmoid(x)
        dy = dy * (sigmoid * (1 + x * (1 - sigmoid)))
    elif ACTIVATION == "gelu":
        slope = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        slope += x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        dy = dy * slope
    elif ACTIVATION == "gelu_tanh":
        # The slope of x * sigmoid(2u).
        sigmoid = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        inner = 1.5957691216057308 * (1 + 0.134145 * x * x)
        dy = dy * (sigmoid + x * sigmoid * (1 - sigmoid) * inner)
    elif ACTIVATION == "tanh":
        y = activate(x, "tanh")
        dy = dy * (1 - y * y)
    return dy


@triton.jit(do_not_specialize=_SIZES)
def gradient_sums_kernel(
    x_ptr,  # x [images, rows, C], packed
    dy_ptr,  # as x
    y_ptr,  # as x, or None: tells where a ReLU passed
    g_ptr,  # as x, or None: receives the gradient in front of the activation
    mean_ptr,  # from here to bias_ptr: as for _chunk_and_terms
    rstd_ptr, weight_ptr, bias_ptr,
    parts_ptr,  # [2, images, chunks, C] fp32: sums of g, of g * h
    rows, chunk_rows, chunks, images, units, groups, group_channels, eps_bits,
    UNIT: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
    IS_VARIANCE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = ROWS * UNROLL
    channels = units * UNIT
    columns, image, chunk, count, tile, mean, rstd, scale, bias = _chunk_and_terms(
        mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, chunk_rows, chunks, channels, groups,
        group_channels, eps_bits, BLOCK_C, IS_VARIANCE,
    )  # fmt: skip
    mean = mean[None, None, :]
    scale, bias = scale[None, None, :], bias[None, None, :]
    tile_rows = _rows_to_add(ROWS, UNROLL)
    offsets = tile_rows * channels + columns[None, None, :]
    is_channel = (columns < channels)[None, None, :]
    sums = tl.zeros((ROWS, BLOCK_C), tl.float32)
    products = tl.zeros((ROWS, BLOCK_C), tl.float32)
    for row in range(0, count, TILE):
        mask = (tile_rows < count - row) & is_channel
        x = _load(x_ptr + tile, offsets, mask) - mean
        g = _load(dy_ptr + tile, offsets, mask)
        if y_ptr is None:
            g = _gradient_before(g, x * scale + bias, ACTIVATION)
        else:
            g = _gradient_before(g, _load(y_ptr + tile, offsets, mask), ACTIVATION)
        if g_ptr is not None:
            tl.store(g_ptr + tile + offsets, g.to(g_ptr.dtype.element_ty), mask=mask)
        sums += tl.sum(g, axis=0)
        products += tl.sum(g * x, axis=0)
        tile += TILE * channels
    sums, products = tl.sum(sums, axis=0), tl.sum(products, axis=0) * rstd
    _store_parts(parts_ptr, sums, products, columns, image, chunk, chunks, images, channels)


@triton.jit
def _add_parts(parts, number, columns, is_column, channels, BLOCK_P: tl.constexpr):
    """Returns the sums of [number, C] along the parts, for some columns."""
    channels = tl.cast(channels, tl.int64)
    sums = tl.zeros((BLOCK_P, columns.shape[0]), tl.float32)
    for first in range(0, number, BLOCK_P):
        _, offsets, mask = _parts(first, number, columns, is_column, channels, BLOCK_P)
        sums += _load(parts, offsets, mask)
    return tl.sum(sums, axis=0)


@triton.jit(do_not_specialize=_SIZES)
def merge_gradients_kernel(
    parts_ptr,  # of gradient_sums_kernel
    weight_ptr,  # [C] or None
    means_ptr,  # [2, images, groups] fp32 or None: means of weight * g and weight * g * h
    dweight_ptr,  # [C] or None
    dbias_ptr,  # [C] or None
    rows, chunks, images, channels, groups, group_channels,
    group_programs,  # those that write means; behind them come those of dweight and dbias
    IS_CHANNEL: tl.constexpr,  # whether groups are single channels, several of a program
    GROUP_P: tl.constexpr, GROUP_C: tl.constexpr,
    CHANNEL_P: tl.constexpr, CHANNEL_C: tl.constexpr,
):  # fmt: skip
    products_ptr = parts_ptr + tl.cast(images, tl.int64) * chunks * channels
    program = tl.program_id(0)
    if program < group_programs:
        if means_ptr is not None:
            image, columns, is_column, targets = _group(
                program, channels, groups, group_channels, IS_CHANNEL, GROUP_C
            )
            of_image = image.to(tl.int64) * chunks * channels
            g = _add_parts(parts_ptr + of_image, chunks, columns, is_column, channels, GROUP_P)
            gh = _add_parts(products_ptr + of_image, chunks, columns, is_column, channels, GROUP_P)
            # Behind the group there are weights, but no sums.
            weight = _load_terms(weight_ptr, columns, channels, 1.0)
            total = tl.cast(rows, tl.float32) * group_channels
            of_gh = means_ptr + images * groups
            if IS_CHANNEL:
                tl.store(means_ptr + targets, g * weight / total, mask=is_column)
                tl.store(of_gh + targets, gh * weight / total, mask=is_column)
            else:
                tl.store(means_ptr + targets, tl.sum(g * weight, axis=0) / total)
                tl.store(of_gh + targets, tl.sum(gh * weight, axis=0) / total)
    else:
        channel = (program - group_programs) * CHANNEL_C + tl.arange(0, CHANNEL_C)
        is_channel, number = channel < channels, images * chunks
        if dbias_ptr is not None:
            sums = _add_parts(parts_ptr, number, channel, is_channel, channels, CHANNEL_P)
            tl.store(dbias_ptr + channel, sums.to(dbias_ptr.dtype.element_ty), mask=is_channel)
        if dweight_ptr is not None:
            sums = _add_parts(products_ptr, number, channel, is_channel, channels, CHANNEL_P)
            tl.store(dweight_ptr + channel, sums.to(dweight_ptr.dtype.element_ty), mask=is_channel)


@triton.jit(do_not_specialize=_SIZES)
def input_gradient_kernel(
    x_ptr,  # x [images, rows, C], packed
    dy_ptr,  # as x
    y_ptr,  # as x, or None
    dx_ptr,  # as x
    mean_ptr,  # from here to bias_ptr: as for _chunk_and_terms
    rstd_ptr, weight_ptr, bias_ptr,
    means_ptr,  # of merge_gradients_kernel; None where statistics do not depend on x
    rows, chunk_rows, chunks, images, units, groups, group_channels, eps_bits,
    UNIT: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
    IS_VARIANCE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = ROWS * UNROLL
    NEEDS_X: tl.constexpr = means_ptr is not None or (y_ptr is None and ACTIVATION != "identity")
    channels = units * UNIT
    columns, image, _, count, start, mean, rstd, scale, bias = _chunk_and_terms(
        mean_ptr, rstd_ptr, weight_ptr, bias_ptr, rows, chunk_rows, chunks, channels, groups,
        group_channels, eps_bits, BLOCK_C, IS_VARIANCE,
    )  # fmt: skip
    if means_ptr is not None:
        indices = image * groups + columns // group_channels
        mean_g = _load(means_ptr, indices, columns < channels) * rstd
        products = means_ptr + images * groups
        mean_gh = _load(products, indices, columns < channels) * rstd * rstd
    tile_rows = tl.arange(0, TILE)[:, None]
    offsets = tile_rows * channels + columns[None, :]
    is_channel = (columns < channels)[None, :]
    # From the end: what the sums read last may still be in L2.
    last = (count - 1) // TILE
    for step in range(last + 1):
        row = (last - step) * TILE
        tile = start + row.to(tl.int64) * channels
        mask = (tile_rows < count - row) & is_channel
        g = _load(dy_ptr + tile, offsets, mask)
        if NEEDS_X:
            x = _load(x_ptr + tile, offsets, mask) - mean[None, :]
        if y_ptr is not None:
            g = _gradient_before(g, _load(y_ptr + tile, offsets, mask), ACTIVATION)
        elif ACTIVATION != "identity":
            g = _gradient_before(g, x * scale[None, :] + bias[None, :], ACTIVATION)
        dx = g * scale[None, :]
        if means_ptr is not None:
            dx -= mean_g[None, :] + x * mean_gh[None, :]
        tl.store(dx_ptr + tile + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
