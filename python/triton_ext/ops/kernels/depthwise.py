"""Depthwise convolutions without tensor cores and atomics: fprop, and both gradients.

Symbols: an input [N, ([D, ]H, )W, C] gives an output of as many channels, each channel by a filter
of its own of T * R * S taps.  fprop reads x and computes y.  dgrad does the same over dy: the
filter is read from its end, and a stride puts zeros between the pixels of dy, which are left out.

A program computes BLOCK_P positions by BLOCK_C channels, neighbouring threads neighbouring
channels.  A position is QW neighbouring pixels of a row of the output, whose accumulators are a
tuple.  For every row of the filter, the columns of the input that it reaches from a position are
loaded once each and multiplied by all taps that they belong to: for stride 1, QW + S - 1 loads for
QW * S products.  Rows that several rows of the output read come from L1.

wgrad: dy [N, ([out_d, ]out_h, )out_w, C], dw [C, T * R * S]; positions are of dy.  A program goes
over a part of them, BLOCK_P at a time, for BLOCK_C channels and the taps of LINES rows of the
filter, TAPS of each, whose sums stay in registers.  What BLOCK_P threads found for a tap is added
at the end and written to a workspace [parts, T * R * S, C] in fp32; a second kernel adds the parts,
always in the same order.

Pointers and masks: no tensor maps, so any stride, padding, dilation and alignment would do.  What
lies outside of the input counts as zero and is not read.
"""

# Tuples of a kernel have no starred items.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, var-annotated"
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from triton_ext.ops.kernels.epilogue import finish_values, product, sum_dtype, tap_count


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseShape:
    """Constants that the problem gives; triples are (d, h, w), 1 where there is no dimension.

    Pixel q of a position reads column j of the input, counted from the position's first, through
    tap s where ``j * up + phase = q * step + s * dilation``, in W.
    """

    dims: int
    filter_size: tuple[int, ...]  # taps per spatial dimension
    row_taps: int  # taps of a row of the filter that a program has
    channels: int
    pixel: int  # elements from one pixel of the input to the next
    step: tuple[Any, ...]  # distance of what two output pixels read
    up: tuple[Any, ...]  # distance of the input's pixels, in the same unit
    dilation: tuple[Any, ...]  # distance of taps, in the same unit
    phase: int  # what padding in W has over full steps
    is_flipped: bool  # whether the filter is read from its end
    is_wide: bool  # whether offsets need 64 bits


@constexpr_function
def columns_of(pixels: int, shape: DepthwiseShape) -> int:
    """How many columns of the input a position of so many pixels reaches over."""
    distance = (pixels - 1) * shape.step[2] + (shape.row_taps - 1) * shape.dilation[2]
    return (distance - shape.phase) // shape.up[2] + 1


@constexpr_function
def tap_of(column: int, pixel: int, shape: DepthwiseShape) -> int:
    """The tap through which a pixel of a position sees a column of the input; -1 for none."""
    distance = column * shape.up[2] + shape.phase - pixel * shape.step[2]
    tap, rest = divmod(distance, shape.dilation[2])
    return tap if rest == 0 and 0 <= tap < shape.row_taps else -1


@constexpr_function
def taps_up_to(column: int, pixels: int, shape: DepthwiseShape) -> int:
    """How many of the first taps the columns up to one need; 0 where this one needs none."""
    return 1 + max(tap_of(column, pixel, shape) for pixel in range(pixels))


@triton.jit
def conv_depthwise_kernel(
    x_ptr,  # the input [N, ([D, ]H, )W, C], pixels of any stride, channels contiguous
    w_ptr,  # w [T * R * S, C], packed
    y_ptr,  # the output, packed
    operands,  # Operands of the epilogue
    positions,  # of one phase of rows
    size,  # input pixels; tuples are (d, h, w), None for missing dimensions
    output_size,  # 1 where there is no dimension
    phase_rows,  # rows of the output of one phase, (d, h)
    groups_w,  # positions in a row
    low,  # in front of the input; of W: full steps
    strides,  # of the input (d, h, n), in pixels
    SHAPE: tl.constexpr,  # DepthwiseShape
    CONFIG: tl.constexpr,  # DepthwiseConfig
    FINISH: tl.constexpr,  # Finish
):
    operands = operands  # for Triton 3.6, as in gemm.py
    QW: tl.constexpr = CONFIG.qw
    BLOCK_P: tl.constexpr = CONFIG.block_p
    BLOCK_C: tl.constexpr = CONFIG.block_c
    C: tl.constexpr = SHAPE.channels
    TAPS: tl.constexpr = tap_count(SHAPE.filter_size)
    S: tl.constexpr = tap_count(SHAPE.filter_size, 1)
    R: tl.constexpr = tap_count(SHAPE.filter_size, 2) // S
    ACC_DTYPE: tl.constexpr = sum_dtype(x_ptr.dtype.element_ty)
    UP_H: tl.constexpr = SHAPE.up[1]
    UP_D: tl.constexpr = SHAPE.up[0]
    size_d, size_h, size_w = size
    out_d, out_h, out_w = output_size
    rows_d, rows_h = phase_rows
    low_d, low_h, low_w = low
    x_stride_d, x_stride_h, x_stride_n = strides
    NUM_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    block = tl.program_id(0) // NUM_C
    channels = tl.program_id(0) % NUM_C * BLOCK_C + tl.arange(0, BLOCK_C)
    position = block * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = position < positions
    first = position % groups_w * QW  # pixel of the output in its row
    rest = position // groups_w
    image = rest
    pixel = first
    phase_h = 0
    phase_d = 0
    h = 0
    d = 0
    if SHAPE.dims > 1:
        h = rest % rows_h
        image = rest // rows_h
        phase_h = tl.program_id(1) % UP_H
        this_h = h * UP_H + phase_h
        valid = valid & (this_h < out_h)
        pixel = this_h * out_w + first
    if SHAPE.dims > 2:
        d = image % rows_d
        image = image // rows_d
        phase_d = tl.program_id(1) // UP_H
        this_d = d * UP_D + phase_d
        valid = valid & (this_d < out_d)
        pixel += this_d * out_h * out_w
    if SHAPE.is_wide:
        image = image.to(tl.int64)
    column = first * SHAPE.step[2] // SHAPE.up[2] - low_w
    pixels_in = image * x_stride_n + column
    # Pointers have the tile's shape, so that a thread loads what it multiplies.
    is_channel = (channels < C)[None, :]
    weights_from = w_ptr + tl.zeros((BLOCK_P, 1), dtype=tl.int32) + channels[None, :]

    accs = ()
    for _ in tl.static_range(QW):
        accs = accs + (tl.zeros((BLOCK_P, BLOCK_C), dtype=ACC_DTYPE),)
    for line in range(TAPS // S):
        inside = valid
        pixels = pixels_in
        is_hit = True
        if SHAPE.dims > 1:
            from_h = phase_h + line % R * SHAPE.dilation[1] - low_h
            row = h * SHAPE.step[1] + from_h // UP_H
            inside = inside & (row >= 0) & (row < size_h)
            pixels += row * x_stride_h
            if UP_H > 1:
                is_hit = from_h % UP_H == 0
        if SHAPE.dims > 2:
            from_d = phase_d + line // R * SHAPE.dilation[0] - low_d
            plane = d * SHAPE.step[0] + from_d // UP_D
            inside = inside & (plane >= 0) & (plane < size_d)
            pixels += plane * x_stride_d
            if UP_D > 1:
                is_hit = is_hit & (from_d % UP_D == 0)
        mask = inside[:, None] & is_channel
        columns_from = x_ptr + (pixels * SHAPE.pixel)[:, None] + channels[None, :]
        tap = TAPS - 1 - line * S if SHAPE.is_flipped else line * S
        line_from = weights_from + tap * C
        if is_hit:
            accs = _add_line(
                accs, columns_from, mask, column, size_w, line_from, is_channel, SHAPE, CONFIG,
                ACC_DTYPE,
            )  # fmt: skip
    pixel += image * product(output_size)
    # The epilogue: scale and bias as in ``scale_and_shift``.
    pixels_left = out_w - first
    rows = tl.zeros_like(valid.to(tl.int32))[:, None]
    if operands.scale is not None:
        scale = tl.load(operands.scale + (rows + channels[None, :]), mask=is_channel, other=0.0)
    if operands.bias is not None:
        bias = tl.load(operands.bias + (rows + channels[None, :]), mask=is_channel, other=0.0)
    offsets = pixel[:, None] * C + channels[None, :]
    for q in tl.static_range(QW):
        tile = accs[q]
        mask = (valid & (q < pixels_left))[:, None] & is_channel
        if operands.tile_scale is not None:
            tile = tile.to(tl.float32) * tl.load(operands.tile_scale).to(tl.float32)
        if operands.scale is not None:
            tile = tile.to(tl.float32) * scale.to(tl.float32)
        if operands.bias is not None:
            tile = tile.to(tl.float32) + bias.to(tl.float32)
        residual = None
        if operands.residual is not None:
            places = offsets + q * C
            if FINISH.residual_per_image:
                places = image[:, None] * C + channels[None, :]
            residual = tl.load(operands.residual + places, mask=mask, other=0.0)
        tile = finish_values(
            tile, pixel.to(tl.int64) + q, channels, mask, residual, operands, FINISH
        )
        tl.store(y_ptr + offsets + q * C, tile.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_line(
    accs,  # QW accumulators [P, C]
    columns_from,  # [P, C], where column 0 of a position lies, which may be outside of its row
    mask,  # [P, C], whether the row is one of the input
    column,  # [P], of column 0
    size_w,  # columns of the input
    weights_from,  # [P, C], the row's first tap, or its last where it is flipped
    is_channel,  # [1, C]
    SHAPE: tl.constexpr,
    CONFIG: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
):
    """Adds what a row of the filter sees to the accumulators of positions."""
    QW: tl.constexpr = CONFIG.qw
    C: tl.constexpr = SHAPE.channels
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
    # As a tensor: a width of 1 comes as a constant.
    width = (tl.zeros_like(column) + size_w).to(tl.uint32, bitcast=True)
    weights = ()
    for j in tl.static_range(columns_of(QW, SHAPE)):
        if taps_up_to(j, QW, SHAPE) > 0:
            # Weights are loaded when the first column needs them: long filters do not fit.
            for s in tl.static_range(len(weights), taps_up_to(j, QW, SHAPE)):
                from_tap = weights_from - s * C if SHAPE.is_flipped else weights_from + s * C
                if C % CONFIG.block_c == 0:
                    weight = tl.load(from_tap)
                else:
                    weight = tl.load(from_tap, mask=is_channel, other=ZERO)
                weights = weights + (weight.to(ACC_DTYPE),)
            # One comparison: a negative column is a large one.
            is_column = (column + j).to(tl.uint32, bitcast=True) < width
            x = tl.load(columns_from + j * SHAPE.pixel, mask=mask & is_column[:, None], other=ZERO)
            x = x.to(ACC_DTYPE)
            sums = ()
            for q in tl.static_range(QW):
                acc = accs[q]
                if tap_of(j, q, SHAPE) >= 0:
                    weight = weights[tap_of(j, q, SHAPE)]
                    # An option of Triton decides whether it fuses product and sum.
                    acc = acc + x * weight if ACC_DTYPE.is_int() else tl.fma(x, weight, acc)
                sums = sums + (acc,)
            accs = sums
    return accs


@triton.jit
def depthwise_wgrad_kernel(
    x_ptr,
    dy_ptr,
    parts_ptr,  # fp32 [parts, T * R * S, C]
    positions,
    tiles_of_part,
    size,  # pixels of x; tuples are (d, h, w), None for missing dimensions
    output_size,
    groups_w,  # positions in a row
    low,
    x_strides,  # (d, h, n), in pixels
    dy_strides,
    SHAPE: tl.constexpr,  # DepthwiseShape; of wgrad, distances are those of x
    DY_STRIDE_W: tl.constexpr,  # elements of a pixel
    HAS_TAIL: tl.constexpr,  # a row's last position may reach over its end
    CONFIG: tl.constexpr,  # DepthwiseWgradConfig
):
    QW: tl.constexpr = CONFIG.qw
    LINES: tl.constexpr = CONFIG.lines
    TAPS: tl.constexpr = CONFIG.taps
    BLOCK_P: tl.constexpr = CONFIG.block_p
    BLOCK_C: tl.constexpr = CONFIG.block_c
    C: tl.constexpr = SHAPE.channels
    S: tl.constexpr = tap_count(SHAPE.filter_size, 1)
    FILTER_LINES: tl.constexpr = tap_count(SHAPE.filter_size) // S
    R: tl.constexpr = tap_count(SHAPE.filter_size, 2) // S
    size_d, size_h, size_w = size
    out_d, out_h, out_w = output_size
    low_d, low_h, low_w = low
    x_stride_d, x_stride_h, x_stride_n = x_strides
    dy_stride_d, dy_stride_h, dy_stride_n = dy_strides
    NUM_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    TAP_CHUNKS: tl.constexpr = (S + TAPS - 1) // TAPS
    part = tl.program_id(0) // NUM_C
    channels = tl.program_id(0) % NUM_C * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = (channels < C)[None, :]
    first_line = tl.program_id(1) // TAP_CHUNKS * LINES
    first_tap = tl.program_id(1) % TAP_CHUNKS * TAPS

    accs = ()
    for _ in tl.static_range(LINES * TAPS):
        accs = accs + (tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32),)
    last = min((part + 1) * tiles_of_part, (positions + BLOCK_P - 1) // BLOCK_P)
    for tile in range(part * tiles_of_part, last):
        position = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        valid = position < positions
        first = position % groups_w * QW
        image = position // groups_w
        h = first
        d = first
        dy_pixel = first
        if SHAPE.dims > 1:
            h = image % out_h
            image = image // out_h
            dy_pixel += h * dy_stride_h
        if SHAPE.dims > 2:
            d = image % out_d
            image = image // out_d
            dy_pixel += d * dy_stride_d
        if SHAPE.is_wide:
            image = image.to(tl.int64)
        column = first * SHAPE.step[2] + (first_tap * SHAPE.dilation[2] - low_w)
        x_pixel = image * x_stride_n + column
        dy_pixel = dy_pixel + image * dy_stride_n
        width = (tl.zeros_like(column) + size_w).to(tl.uint32, bitcast=True)
        dy_from = dy_ptr + (dy_pixel * DY_STRIDE_W)[:, None] + channels[None, :]
        dys = ()
        for q in tl.static_range(QW):
            mask = valid & (first + q < out_w) if HAS_TAIL else valid
            dy = tl.load(dy_from + q * DY_STRIDE_W, mask=mask[:, None] & is_channel, other=0.0)
            dys = dys + (dy.to(tl.float32),)
        updated = ()
        for line in tl.static_range(LINES):
            inside = valid
            pixels = x_pixel
            if SHAPE.dims > 1:
                row = h * SHAPE.step[1] + ((first_line + line) % R * SHAPE.dilation[1] - low_h)
                inside = inside & (row >= 0) & (row < size_h)
                pixels = pixels + row * x_stride_h
            if SHAPE.dims > 2:
                plane = d * SHAPE.step[0] + ((first_line + line) // R * SHAPE.dilation[0] - low_d)
                inside = inside & (plane >= 0) & (plane < size_d)
                pixels = pixels + plane * x_stride_d
            mask = inside[:, None] & is_channel
            x_from = x_ptr + (pixels * SHAPE.pixel)[:, None] + channels[None, :]
            sums = ()
            for tap in tl.static_range(TAPS):
                sums = sums + (accs[line * TAPS + tap],)
            for j in tl.static_range(columns_of(QW, SHAPE)):
                x_places = x_from + j * SHAPE.pixel
                is_column = (column + j).to(tl.uint32, bitcast=True) < width
                x = tl.load(x_places, mask=mask & is_column[:, None], other=0.0).to(tl.float32)
                pixels_left = out_w - first
                for q in tl.static_range(QW):
                    # Pixel q of a position reads column j through one of the taps, if at all.
                    more = ()
                    for tap in tl.static_range(TAPS):
                        added = sums[tap]
                        if tap == tap_of(j, q, SHAPE):
                            added = tl.fma(x, dys[q], added)
                            if HAS_TAIL:
                                # No zero for a missing pixel: infinity times zero is NaN.
                                is_pixel = (q < pixels_left)[:, None]
                                added = tl.where(is_pixel, added, sums[tap])
                        more = more + (added,)
                    sums = more
            updated = updated + sums
        accs = updated
    to = parts_ptr + (part * (FILTER_LINES * S)).to(tl.int64) * C + channels
    for i in tl.static_range(LINES * TAPS):
        line = first_line + i // TAPS
        tap = first_tap + i % TAPS
        found = tl.sum(accs[i], axis=0)
        written = tl.where((line < FILTER_LINES) & (tap < S), C, 0)
        tl.store(to + (line * S + tap) * C, found, mask=channels < written)


@triton.jit
def depthwise_reduce_kernel(
    parts_ptr,  # fp32 [parts, TAPS, C]
    dw_ptr,  # [C, TAPS]
    parts,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    PARTS_AT_A_TIME: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Adds the parts of a tap's gradient, in a fixed order."""
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    tap = tl.program_id(1)
    numbers = tl.arange(0, PARTS_AT_A_TIME)
    offsets = (numbers.to(tl.int64) * TAPS + tap)[:, None] * C + channels[None, :]
    acc = tl.zeros((PARTS_AT_A_TIME, BLOCK_C), dtype=tl.float32)
    for first in range(0, parts, PARTS_AT_A_TIME):
        mask = (first + numbers < parts)[:, None] & (channels < C)[None, :]
        acc += tl.load(parts_ptr + offsets, mask=mask, other=0.0)
        offsets += PARTS_AT_A_TIME * TAPS * C
    dw = tl.sum(acc, axis=0).to(dw_ptr.dtype.element_ty)
    tl.store(dw_ptr + channels * TAPS + tap, dw, mask=channels < C)
