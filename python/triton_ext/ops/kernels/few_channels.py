"""Few channels: of x, whose pixels are loaded through pointers, and of y, by kn2row.

``conv_gather_kernel``: pixels of x have fewer than the 16 bytes that TMA needs, so that other
kernels would read a copy of x (``core/packing.py``).  Here threads load what a tile reads.
GEMM mapping: M_GEMM = output pixels, N_GEMM = Co, K_GEMM = the filter's rows one after another.
The S * Ci elements that an output pixel reads of a row of x are neighbours: column j of filter row
r is element

    (w * stride_w - pad_w) * Ci + j    of row    h * stride_h - pad_h + r * dilation_h,

zero where that is outside of x.  ``families/few_channels.py`` says how many elements a load has,
and how K is laid out for it.  A CTA keeps its output channels, so that it loads a filter of few
k iterations once.  Not handled: groups, and dilation in W, whose taps are not neighbours.

``conv_col2im_kernel``: an implicit GEMM reads each pixel once per tap, and with few output channels
does little else.  kn2row reads a pixel once and multiplies it by all taps that it meets.
Symbols: x [N, ([H, ]W, )Ci], w [Co, R, S, Ci], y [N, (out_h, )out_w, Co].
GEMM mapping: M_GEMM = pixels of a row of x, N_GEMM = S * Co, K_GEMM = Ci, once per row of the
filter.  A program goes down the rows of a segment of x.  A row of x contributes to R rows of y,
the one that it completes and R - 1 later ones, so that R accumulators

    z[q, (s, co)] = sum over r, ci of x[h + r * dilation_h, q, ci] * w[co, r, s, ci]

move on by one row with every step, and only the tensor core adds to them.  In the completed row,
the products of a tap are those of the pixel s * dilation_w to the right:

    y[p, co] = sum over s of z[p + s * dilation_w, (s, co)],

a ``tl.gather`` over S * Co columns of fp32, between threads of the CTA.  Under dilation, a program
takes the rows of one residue.  Over one dimension, R is 1 and steps are segments.  Not handled:
strides, groups, three dimensions, and fp32, whose loads would have to round to tf32; the filter
stays in shared memory, which bounds Ci (``families/few_channels.py``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, pixels_of_image, scale_and_shift


@triton.jit
def _columns_of(
    step,
    BLOCK_K: tl.constexpr,
    LINES: tl.constexpr,  # rows of the filter
    ROW: tl.constexpr,  # columns of a row
    SHIFT: tl.constexpr,  # of these, in front of the first tap
    WINDOW: tl.constexpr,  # and in taps
):
    """The rows of the filter that a step's columns belong to, their elements there, and which do.

    Columns in front of and behind a row's taps belong to none.
    """
    offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)
    line = offs_k // ROW
    element = offs_k % ROW - SHIFT
    return line, element, (line < LINES) & (element >= 0) & (element < WINDOW)


@triton.jit
def _load_filter(
    w_ptr,
    columns,
    co,
    step,
    BLOCK_K: tl.constexpr,
    LINES: tl.constexpr,
    ROW: tl.constexpr,
    SHIFT: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """A step's columns of the filter, zeros in those that belong to no tap."""
    line, element, is_tap = _columns_of(step, BLOCK_K, LINES, ROW, SHIFT, WINDOW)
    offsets = (columns * (LINES * WINDOW))[:, None] + (line * WINDOW + element)[None, :]
    mask = (columns < co)[:, None] & is_tap[None, :]
    return tl.load(w_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _load_pixels(
    pixels,  # [BLOCK_M], where tap 0 of every output pixel reads
    row_mask,
    d,  # [BLOCK_M], the pixel that tap 0 reads; None for dimensions that are not there
    h,
    w,
    size_d,
    size_h,
    size_w,
    dilation_d,
    dilation_h,
    x_stride_d,
    x_stride_h,
    step,
    DIMS: tl.constexpr,
    R: tl.constexpr,
    LINES: tl.constexpr,
    ROW: tl.constexpr,
    SHIFT: tl.constexpr,
    WINDOW: tl.constexpr,
    CI: tl.constexpr,
    PIXEL: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A step's columns of the left operand, zeros where there is no pixel or no tap."""
    line, element, is_tap = _columns_of(step, BLOCK_K, LINES, ROW, SHIFT, WINDOW)
    mask = row_mask[:, None] & (line < LINES)[None, :]
    # A vector is inside or outside of a row of x as a whole.  Negative places are large ones.
    place = ((w * CI)[:, None] + element[None, :]).to(tl.uint32, bitcast=True)
    mask = mask & (place < size_w * CI)
    offsets = element.to(tl.int64)
    if PIXEL != CI:
        offsets = offsets // CI * PIXEL + offsets % CI
    if DIMS > 1:
        down = line % R * dilation_h
        place = (h[:, None] + down[None, :]).to(tl.uint32, bitcast=True)
        mask = mask & (place < size_h)
        offsets += down.to(tl.int64) * x_stride_h
    if DIMS > 2:
        back = line // R * dilation_d
        place = (d[:, None] + back[None, :]).to(tl.uint32, bitcast=True)
        mask = mask & (place < size_d)
        offsets += back.to(tl.int64) * x_stride_d
    places = pixels[:, None] + offsets[None, :]
    if VECTOR > 1:
        # Two bytes an element.
        places = tl.max_contiguous(tl.multiple_of(places, (1, 2 * VECTOR)), (1, VECTOR))
        mask = tl.max_constancy(mask, (1, VECTOR))
    x = tl.load(places, mask=mask, other=0.0)
    if ROW != WINDOW:
        # Memory beside a window may hold NaN.
        x = tl.where(is_tap[None, :], x, tl.zeros_like(x))
    return x


@triton.jit
def conv_gather_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], rows of pixels PIXEL elements apart
    w_ptr,  # w [Co, T * R * S * Ci], packed
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
    size_d,  # input pixels; these four per spatial dimension, None for those that are not there
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
    x_stride_d,  # in elements
    x_stride_h,
    x_stride_n,
    DIMS: tl.constexpr,
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    CI: tl.constexpr,
    PIXEL: tl.constexpr,  # distance of two pixels of a row, in elements
    VECTOR: tl.constexpr,  # elements of a load; more than 1 only where PIXEL is CI
    SHIFT: tl.constexpr,  # elements of a load in front of a window
    ROW: tl.constexpr,  # columns of K of a row of the filter, a multiple of VECTOR
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DTYPE: tl.constexpr,  # of y
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; that of x on every GPU
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
    HOLDS_FILTER: tl.constexpr,  # whether a CTA loads its part of the filter once
):
    image_pixels = pixels_of_image(out_d, out_h, out_w, DIMS) if RESIDUAL_PER_IMAGE else None
    num_m = (m_gemm - 1) // BLOCK_M + 1
    num_n = (co - 1) // BLOCK_N + 1
    column = tl.program_id(0) % num_n * BLOCK_N
    columns = column + tl.arange(0, BLOCK_N)
    LINES: tl.constexpr = T * R
    WINDOW: tl.constexpr = S * CI
    STEPS: tl.constexpr = (LINES * ROW - 1) // BLOCK_K + 1
    if HOLDS_FILTER:
        filters = ()
        for part in tl.static_range(STEPS):
            weight = _load_filter(w_ptr, columns, co, part, BLOCK_K, LINES, ROW, SHIFT, WINDOW)
            filters += (weight.to(DOT_DTYPE),)  # type: ignore[assignment]
    tile_rows = tl.arange(0, BLOCK_M)
    # The grid is a multiple of num_n: a CTA's tiles have the same output channels.
    for tile_m in range(tl.program_id(0) // num_n, num_m, tl.num_programs(0) // num_n):
        row = tile_m * BLOCK_M
        row_mask = tile_rows < m_gemm - row
        # Those that overflow lie behind the output.
        rows = row + tile_rows
        d = None
        h = None
        w = rows % out_w * stride_w - pad_w
        rest = rows // out_w
        offsets = w.to(tl.int64) * PIXEL
        if DIMS > 1:
            h = rest % out_h * stride_h - pad_h
            rest = rest // out_h
            offsets += h.to(tl.int64) * x_stride_h
        if DIMS > 2:
            d = rest % out_d * stride_d - pad_d
            rest = rest // out_d
            offsets += d.to(tl.int64) * x_stride_d
        pixels = x_ptr + (offsets + rest.to(tl.int64) * x_stride_n)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if HOLDS_FILTER:
            for part in tl.static_range(STEPS):
                x = _load_pixels(
                    pixels, row_mask, d, h, w, size_d, size_h, size_w, dilation_d, dilation_h,
                    x_stride_d, x_stride_h, part,
                    DIMS, R, LINES, ROW, SHIFT, WINDOW, CI, PIXEL, VECTOR, BLOCK_K,
                )  # fmt: skip
                acc = tl.dot(x.to(DOT_DTYPE), filters[part].T, acc)
        else:
            for step in range(STEPS):
                x = _load_pixels(
                    pixels, row_mask, d, h, w, size_d, size_h, size_w, dilation_d, dilation_h,
                    x_stride_d, x_stride_h, step,
                    DIMS, R, LINES, ROW, SHIFT, WINDOW, CI, PIXEL, VECTOR, BLOCK_K,
                )  # fmt: skip
                weight = _load_filter(w_ptr, columns, co, step, BLOCK_K, LINES, ROW, SHIFT, WINDOW)
                acc = tl.dot(x.to(DOT_DTYPE), weight.to(DOT_DTYPE).T, acc)
        acc = scale_and_shift(acc, columns, co, bias_ptr, scale_ptr, tile_scale_ptr)
        finish_tile(
            acc, row, column, m_gemm, co, co, y_desc, y_ptr, residual_desc, residual_ptr,
            image_pixels, out_scale_ptr, amax_ptr, extra, ACTIVATION, FUNCTION, DTYPE,
        )  # fmt: skip


@triton.jit
def _load_filter_row(
    w_ptr,
    co,
    row,  # of the filter
    part,
    R: tl.constexpr,
    S: tl.constexpr,
    CI: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """[columns, channels] of a row of the filter, zeros where there is no tap or channel."""
    offs_n = tl.arange(0, COLUMNS)
    tap, channel = offs_n // CHANNELS, offs_n % CHANNELS
    offs_k = part * BLOCK_K + tl.arange(0, BLOCK_K)
    offsets = (((channel * R + row) * S + tap) * CI)[:, None] + offs_k[None, :]
    mask = ((tap < S) & (channel < co))[:, None] & (offs_k < CI)[None, :]
    return tl.load(w_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _load_row(
    x_image,
    first,  # output row of step 0, or the segment
    column,  # of the segment
    step,
    size_h,
    size_w,
    pad_h,
    pad_w,
    x_stride_w,
    x_stride_h,
    segment,
    DIMS: tl.constexpr,
    S: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    CI: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
):
    """The pixels that a step reads, zeros outside of x: a tuple of [BLOCK_M, BLOCK_K]."""
    offs_m = tl.arange(0, BLOCK_M)
    if DIMS == 1:
        column = (first + step) * segment
    offs_w = column - pad_w + offs_m
    # Negative places are large ones.
    row_mask = offs_w.to(tl.uint32, bitcast=True) < size_w
    row_mask = row_mask & (offs_m < segment + (S - 1) * DILATION_W)
    pixels = x_image + offs_w.to(tl.int64) * x_stride_w
    if DIMS > 1:
        h = first - pad_h + step * DILATION_H
        offs_h = h + tl.zeros_like(offs_m)
        row_mask = row_mask & (offs_h.to(tl.uint32, bitcast=True) < size_h)
        pixels += h.to(tl.int64) * x_stride_h
    parts = ()
    for part in tl.static_range((CI - 1) // BLOCK_K + 1):
        offs_k = part * BLOCK_K + tl.arange(0, BLOCK_K)
        places = pixels[:, None] + offs_k[None, :]
        mask = row_mask[:, None] & (offs_k < CI)[None, :]
        if VECTOR > 1:
            # Two bytes an element.
            places = tl.max_contiguous(tl.multiple_of(places, (1, 2 * VECTOR)), (1, VECTOR))
            mask = tl.max_constancy(mask, (1, VECTOR))
        x = tl.load(places, mask=mask, other=0.0)
        parts += (x.to(DOT_DTYPE),)  # type: ignore[assignment]
    return parts


@triton.jit
def conv_col2im_kernel(
    x_ptr,  # x [N, ([H, ]W, )Ci], channels side by side
    w_ptr,  # w [Co, R * S * Ci], packed
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
    co,
    size_h,  # these three are None over one dimension
    out_h,
    pad_h,  # in front
    size_w,
    out_w,
    pad_w,
    x_stride_w,  # in elements
    x_stride_h,
    x_stride_n,
    segment,  # output pixels of a row, at most BLOCK_M - (S - 1) * DILATION_W
    segments,
    strips,
    rows,  # of a strip
    DIMS: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    CI: tl.constexpr,
    TAPS: tl.constexpr,  # S and Co, rounded up
    CHANNELS: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of a load
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DTYPE: tl.constexpr,  # of y
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; that of x on every GPU
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
    PREFETCHES: tl.constexpr,  # whether the next row is loaded to registers beside a step
):
    COLUMNS: tl.constexpr = TAPS * CHANNELS
    STEPS: tl.constexpr = (CI - 1) // BLOCK_K + 1
    filters = ()
    for r in tl.static_range(R):
        for part in tl.static_range(STEPS):
            weight = _load_filter_row(w_ptr, co, r, part, R, S, CI, COLUMNS, CHANNELS, BLOCK_K)
            filters += (weight.to(DOT_DTYPE),)  # type: ignore[assignment]
    program = tl.program_id(0)
    offs_m = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, CHANNELS)
    taps = tl.arange(0, COLUMNS) // CHANNELS
    # Pixels past the block are those of no output of this segment.
    shifted = tl.minimum(offs_m[:, None] + (taps * DILATION_W)[None, :], BLOCK_M - 1)
    if DIMS > 1:
        image_pixels = out_h * out_w
        column = program % segments * segment
        program = program // segments
        first = program % strips * rows * DILATION_H
        program = program // strips
        first += program % DILATION_H
        image = program // DILATION_H
        count = tl.minimum((out_h - first + DILATION_H - 1) // DILATION_H, rows)
        # A phase with fewer rows may have none in its last strip.
        count = tl.where(count > 0, count + R - 1, 0)
    else:
        image_pixels = out_w
        first = program % strips * rows
        image = program // strips
        count = tl.minimum(segments - first, rows)
        column = 0
    x_image = x_ptr + image.to(tl.int64) * x_stride_n
    carried = ()
    for _ in tl.static_range(R - 1):
        carried += (tl.zeros((BLOCK_M, COLUMNS), dtype=tl.float32),)  # type: ignore[assignment]
    if PREFETCHES:
        parts = _load_row(
            x_image, first, column, 0, size_h, size_w, pad_h, pad_w, x_stride_w, x_stride_h,
            segment, DIMS, S, DILATION_H, DILATION_W, CI, VECTOR, BLOCK_M, BLOCK_K, DOT_DTYPE,
        )  # fmt: skip
    for step in range(count):
        # Prefetched rows are those of the next step; behind the last row they are read in vain.
        loaded = _load_row(
            x_image, first, column, step + 1 if PREFETCHES else step, size_h, size_w, pad_h, pad_w,
            x_stride_w, x_stride_h, segment, DIMS, S, DILATION_H, DILATION_W, CI, VECTOR, BLOCK_M,
            BLOCK_K, DOT_DTYPE,
        )  # fmt: skip
        if PREFETCHES:
            current = parts
            parts = loaded
        else:
            current = loaded
        moved = ()
        for place_of in tl.static_range(R):
            if place_of < R - 1:
                z = carried[place_of]  # type: ignore[var-annotated]
            else:
                z = tl.zeros((BLOCK_M, COLUMNS), dtype=tl.float32)
            for part in tl.static_range(STEPS):
                z = tl.dot(current[part], filters[(R - 1 - place_of) * STEPS + part].T, z)
            moved += (z,)  # type: ignore[assignment]
        if R > 1:
            carried = moved[1:]
        if step >= R - 1:
            z = tl.gather(moved[0], shifted, 0)  # type: ignore[misc]
            # Columns of no tap may be NaN, where x is not a number.
            z = tl.where((taps < S)[None, :], z, 0.0)
            tile = tl.sum(tl.reshape(z, (BLOCK_M, TAPS, CHANNELS)), axis=1)
            tile = scale_and_shift(tile, columns, co, bias_ptr, scale_ptr, tile_scale_ptr)
            if DIMS > 1:
                line = image * image_pixels + (first + (step - (R - 1)) * DILATION_H) * out_w
                begin = column
            else:
                line = image * out_w
                begin = (first + step) * segment
            # The end of the segment stands for that of y.
            end = line + tl.minimum(begin + segment, out_w)
            finish_tile(
                tile, line + begin, 0, end, co, co, y_desc, y_ptr, residual_desc, residual_ptr,
                image_pixels if RESIDUAL_PER_IMAGE else None, out_scale_ptr, amax_ptr, extra,
                ACTIVATION, FUNCTION, DTYPE,
            )  # fmt: skip
