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
# ruff: noqa: RUF005, SIM108
# mypy: disable-error-code="assignment, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from triton_ext.ops.kernels.epilogue import finish_values, product, sum_dtype, tap_count

# Which columns of an input a position reaches, and through which taps.  In a row, pixel q of a
# position reads column j of the input, counted from the position's first, through tap s where
# ``j * up + phase = q * step + s * dilation``.


@constexpr_function
def columns_of(pixels: int, taps: int, step: int, up: int, dilation: int, phase: int) -> int:
    """How many columns of the input a position reaches over."""
    return ((pixels - 1) * step + (taps - 1) * dilation - phase) // up + 1


@constexpr_function
def tap_of(
    column: int, pixel: int, taps: int, step: int, up: int, dilation: int, phase: int
) -> int:
    """The tap through which a pixel of a position sees a column of the input; -1 for none."""
    distance = column * up + phase - pixel * step
    tap = distance // dilation
    return tap if distance % dilation == 0 and 0 <= tap < taps else -1


@constexpr_function
def taps_up_to(
    column: int, pixels: int, taps: int, step: int, up: int, dilation: int, phase: int
) -> int:
    """How many of the first taps the columns up to one need; -1 where this one needs none."""
    seen = [
        (column * up + phase - pixel * step) // dilation
        for pixel in range(pixels)
        if (column * up + phase - pixel * step) % dilation == 0
    ]
    last = max([tap for tap in seen if 0 <= tap < taps], default=-1)
    return last + 1 if last >= 0 else -1


@triton.jit
def conv_depthwise_kernel(
    x_ptr,  # the input [N, ([D, ]H, )W, C], pixels of any stride, channels contiguous
    w_ptr,  # w [T * R * S, C], packed
    y_ptr,  # the output, packed
    operands,  # Operands of the epilogue
    positions,  # of one class of rows
    size,  # input pixels; tuples are (d, h, w), None for dimensions that are not there
    output_size,  # 1 where there is no dimension
    class_rows,  # rows of the output of one class, (d, h)
    groups_w,  # positions in a row
    low,  # in front of the input; of W: full steps
    strides,  # of the input (d, h, n), in pixels
    DIMS: tl.constexpr,
    FILTER: tl.constexpr,  # taps per spatial dimension
    C: tl.constexpr,
    X_STRIDE_W: tl.constexpr,  # elements of a pixel
    STEP: tl.constexpr,  # stride of the output's pixels, (d, h, w), 1 where there is no dimension
    UP: tl.constexpr,  # distance of the input's pixels, likewise
    DILATION: tl.constexpr,
    PHASE_W: tl.constexpr,  # what padding has over full steps
    IS_FLIPPED: tl.constexpr,
    IS_WIDE: tl.constexpr,  # offsets need 64 bits
    CONFIG: tl.constexpr,  # DepthwiseConfig
    FINISH: tl.constexpr,  # Finish
):
    operands = operands  # for Triton 3.6, as in gemm.py
    QW: tl.constexpr = CONFIG.qw
    BLOCK_P: tl.constexpr = CONFIG.block_p
    BLOCK_C: tl.constexpr = CONFIG.block_c
    TAPS: tl.constexpr = tap_count(FILTER)
    S: tl.constexpr = tap_count(FILTER, 1)
    R: tl.constexpr = tap_count(FILTER, 2) // S
    ACC_DTYPE: tl.constexpr = sum_dtype(x_ptr.dtype.element_ty)
    UP_H: tl.constexpr = UP[1]
    UP_D: tl.constexpr = UP[0]
    size_d, size_h, size_w = size
    out_d, out_h, out_w = output_size
    rows_d, rows_h = class_rows
    low_d, low_h, low_w = low
    x_stride_d, x_stride_h, x_stride_n = strides
    NUM_C: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
    block = tl.program_id(0) // NUM_C
    channels = tl.program_id(0) % NUM_C * BLOCK_C + tl.arange(0, BLOCK_C)
    position = block * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = position < positions
    first = position % groups_w * QW  # pixel of the output in its row
    rest = position // groups_w
    image = rest
    pixel = first
    class_h = 0
    class_d = 0
    h = 0
    d = 0
    if DIMS > 1:
        h = rest % rows_h
        image = rest // rows_h
        class_h = tl.program_id(1) % UP_H
        this_h = h * UP_H + class_h
        valid = valid & (this_h < out_h)
        pixel = this_h * out_w + first
    if DIMS > 2:
        d = image % rows_d
        image = image // rows_d
        class_d = tl.program_id(1) // UP_H
        this_d = d * UP_D + class_d
        valid = valid & (this_d < out_d)
        pixel += this_d * out_h * out_w
    if IS_WIDE:
        image = image.to(tl.int64)
    column = first * STEP[2] // UP[2] - low_w
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
        if DIMS > 1:
            from_h = class_h + line % R * DILATION[1] - low_h
            row = h * STEP[1] + from_h // UP_H
            inside = inside & (row >= 0) & (row < size_h)
            pixels += row * x_stride_h
            if UP_H > 1:
                is_hit = from_h % UP_H == 0
        if DIMS > 2:
            from_d = class_d + line // R * DILATION[0] - low_d
            plane = d * STEP[0] + from_d // UP_D
            inside = inside & (plane >= 0) & (plane < size_d)
            pixels += plane * x_stride_d
            if UP_D > 1:
                is_hit = is_hit & (from_d % UP_D == 0)
        mask = inside[:, None] & is_channel
        columns_from = x_ptr + (pixels * X_STRIDE_W)[:, None] + channels[None, :]
        tap = TAPS - 1 - line * S if IS_FLIPPED else line * S
        line_from = weights_from + tap * C
        if is_hit:
            accs = _add_line(
                accs, columns_from, mask, column, size_w, line_from, is_channel, S, C, X_STRIDE_W,
                STEP[2], UP[2], DILATION[2], PHASE_W, IS_FLIPPED, QW, BLOCK_C, ACC_DTYPE, ZERO,
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
    S: tl.constexpr,
    C: tl.constexpr,
    X_STRIDE_W: tl.constexpr,
    STEP: tl.constexpr,
    UP: tl.constexpr,
    DILATION: tl.constexpr,
    PHASE: tl.constexpr,
    IS_FLIPPED: tl.constexpr,
    QW: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    ZERO: tl.constexpr,
):
    """Adds what a row of the filter sees to the accumulators of positions."""
    # As a tensor: a width of 1 comes as a constant.
    width = (tl.zeros_like(column) + size_w).to(tl.uint32, bitcast=True)
    weights = ()
    for j in tl.static_range(columns_of(QW, S, STEP, UP, DILATION, PHASE)):
        if taps_up_to(j, QW, S, STEP, UP, DILATION, PHASE) > 0:
            # Weights are loaded when the first column needs them: long filters do not fit.
            for s in tl.static_range(len(weights), taps_up_to(j, QW, S, STEP, UP, DILATION, PHASE)):
                from_tap = weights_from - s * C if IS_FLIPPED else weights_from + s * C
                if C % BLOCK_C == 0:
                    weight = tl.load(from_tap)
                else:
                    weight = tl.load(from_tap, mask=is_channel, other=ZERO)
                weights = weights + (weight.to(ACC_DTYPE),)
            # One comparison: a negative column is a large one.
            is_column = (column + j).to(tl.uint32, bitcast=True) < width
            x = tl.load(columns_from + j * X_STRIDE_W, mask=mask & is_column[:, None], other=ZERO)
            x = x.to(ACC_DTYPE)
            sums = ()
            for q in tl.static_range(QW):
                if tap_of(j, q, S, STEP, UP, DILATION, PHASE) >= 0:
                    weight = weights[tap_of(j, q, S, STEP, UP, DILATION, PHASE)]
                    # An option of Triton decides whether it fuses product and sum.
                    if ACC_DTYPE.is_int():
                        sums = sums + (accs[q] + x * weight,)
                    else:
                        sums = sums + (tl.fma(x, weight, accs[q]),)
                else:
                    sums = sums + (accs[q],)
            accs = sums
    return accs


@triton.jit
def depthwise_wgrad_kernel(
    x_ptr,
    dy_ptr,
    parts_ptr,  # fp32 [parts, T * R * S, C]
    positions,
    tiles_of_part,
    size,  # pixels of x; tuples are (d, h, w), None for dimensions that are not there
    output_size,
    groups_w,  # positions in a row
    low,
    x_strides,  # (d, h, n), in pixels
    dy_strides,
    DIMS: tl.constexpr,
    FILTER: tl.constexpr,  # taps per spatial dimension
    C: tl.constexpr,
    X_STRIDE_W: tl.constexpr,  # elements of a pixel
    DY_STRIDE_W: tl.constexpr,
    STRIDE: tl.constexpr,  # (d, h, w), 1 for dimensions that are not there
    DILATION: tl.constexpr,
    IS_WIDE: tl.constexpr,  # offsets need 64 bits
    HAS_TAIL: tl.constexpr,  # a row's last position may reach over its end
    CONFIG: tl.constexpr,  # DepthwiseWgradConfig
):
    QW: tl.constexpr = CONFIG.qw
    LINES: tl.constexpr = CONFIG.lines
    TAPS: tl.constexpr = CONFIG.taps
    BLOCK_P: tl.constexpr = CONFIG.block_p
    BLOCK_C: tl.constexpr = CONFIG.block_c
    FILTER_LINES: tl.constexpr = tap_count(FILTER) // tap_count(FILTER, 1)
    S: tl.constexpr = tap_count(FILTER, 1)
    R: tl.constexpr = tap_count(FILTER, 2) // S
    STRIDE_W: tl.constexpr = STRIDE[2]
    DILATION_W: tl.constexpr = DILATION[2]
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
        if DIMS > 1:
            h = image % out_h
            image = image // out_h
            dy_pixel += h * dy_stride_h
        if DIMS > 2:
            d = image % out_d
            image = image // out_d
            dy_pixel += d * dy_stride_d
        if IS_WIDE:
            image = image.to(tl.int64)
        column = first * STRIDE_W + (first_tap * DILATION_W - low_w)
        x_pixel = image * x_stride_n + column
        dy_pixel = dy_pixel + image * dy_stride_n
        width = (tl.zeros_like(column) + size_w).to(tl.uint32, bitcast=True)
        dy_from = dy_ptr + (dy_pixel * DY_STRIDE_W)[:, None] + channels[None, :]
        dys = ()
        for q in tl.static_range(QW):
            mask = valid & (first + q < out_w) if HAS_TAIL else valid
            dy = tl.load(dy_from + q * DY_STRIDE_W, mask=mask[:, None] & is_channel, other=0.0)
            dys = dys + (dy.to(tl.float32),)
        for line in tl.static_range(LINES):
            inside = valid
            pixels = x_pixel
            if DIMS > 1:
                row = h * STRIDE[1] + ((first_line + line) % R * DILATION[1] - low_h)
                inside = inside & (row >= 0) & (row < size_h)
                pixels = pixels + row * x_stride_h
            if DIMS > 2:
                plane = d * STRIDE[0] + ((first_line + line) // R * DILATION[0] - low_d)
                inside = inside & (plane >= 0) & (plane < size_d)
                pixels = pixels + plane * x_stride_d
            mask = inside[:, None] & is_channel
            x_from = x_ptr + (pixels * X_STRIDE_W)[:, None] + channels[None, :]
            sums = ()
            for tap in tl.static_range(TAPS):
                sums = sums + (accs[line * TAPS + tap],)
            for j in tl.static_range(columns_of(QW, TAPS, STRIDE_W, 1, DILATION_W, 0)):
                x_places = x_from + j * X_STRIDE_W
                is_column = (column + j).to(tl.uint32, bitcast=True) < width
                x = tl.load(x_places, mask=mask & is_column[:, None], other=0.0).to(tl.float32)
                pixels_left = out_w - first
                for q in tl.static_range(QW):
                    # Pixel q of a position reads column j through this tap, if at all.
                    if tap_of(j, q, TAPS, STRIDE_W, 1, DILATION_W, 0) >= 0:
                        more = ()
                        for tap in tl.static_range(TAPS):
                            if tap == tap_of(j, q, TAPS, STRIDE_W, 1, DILATION_W, 0):
                                added = tl.fma(x, dys[q], sums[tap])
                                if HAS_TAIL:
                                    # No zero for a missing pixel: infinity times zero is NaN.
                                    is_pixel = (q < pixels_left)[:, None]
                                    added = tl.where(is_pixel, added, sums[tap])
                                more = more + (added,)
                            else:
                                more = more + (sums[tap],)
                        sums = more
            others = ()
            for i in tl.static_range(LINES * TAPS):
                if i // TAPS == line:
                    others = others + (sums[i % TAPS],)
                else:
                    others = others + (accs[i],)
            accs = others
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
