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

from triton_ext.ops.kernels.epilogue import finish_tile, multiply, scale_and_shift


@triton.jit
def _columns_of(step, WINDOW: tl.constexpr, BLOCK_K: tl.constexpr):
    """The rows of the filter that a step's columns belong to, their elements there, and which do.

    Columns in front of and behind a row's taps belong to none.
    """
    offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)
    line = offs_k // WINDOW.row
    element = offs_k % WINDOW.row - WINDOW.shift
    return line, element, (line < WINDOW.lines) & (element >= 0) & (element < WINDOW.elements)


@triton.jit
def _load_filter(w_ptr, columns, co, step, WINDOW: tl.constexpr, BLOCK_K: tl.constexpr):
    """A step's columns of the filter, zeros in those that belong to no tap."""
    line, element, is_tap = _columns_of(step, WINDOW, BLOCK_K)
    offsets = (columns * (WINDOW.lines * WINDOW.elements))[:, None]
    offsets = offsets + (line * WINDOW.elements + element)[None, :]
    mask = (columns < co)[:, None] & is_tap[None, :]
    return tl.load(w_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _load_pixels(
    pixels,  # [BLOCK_M], where tap 0 of every output pixel reads
    row_mask,
    d,  # [BLOCK_M], the pixel that tap 0 reads; None for missing dimensions
    h,
    w,
    reads,
    step,
    WINDOW: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A step's columns of the left operand, zeros where there is no pixel or no tap."""
    CI: tl.constexpr = WINDOW.channels
    line, element, is_tap = _columns_of(step, WINDOW, BLOCK_K)
    mask = row_mask[:, None] & (line < WINDOW.lines)[None, :]
    # A vector is inside or outside of a row of x as a whole.  Negative places are large ones.
    place = ((w * CI)[:, None] + element[None, :]).to(tl.uint32, bitcast=True)
    mask = mask & (place < reads.size[2] * CI)
    offsets = element.to(tl.int64)
    if WINDOW.pixel != CI:
        offsets = offsets // CI * WINDOW.pixel + offsets % CI
    if WINDOW.dims > 1:
        down = line % WINDOW.rows * reads.dilation[1]
        place = (h[:, None] + down[None, :]).to(tl.uint32, bitcast=True)
        mask = mask & (place < reads.size[1])
        offsets += down.to(tl.int64) * reads.strides[1]
    if WINDOW.dims > 2:
        back = line // WINDOW.rows * reads.dilation[0]
        place = (d[:, None] + back[None, :]).to(tl.uint32, bitcast=True)
        mask = mask & (place < reads.size[0])
        offsets += back.to(tl.int64) * reads.strides[0]
    places = pixels[:, None] + offsets[None, :]
    VECTOR: tl.constexpr = WINDOW.vector
    if VECTOR > 1:
        # Two bytes an element.
        places = tl.max_contiguous(tl.multiple_of(places, (1, 2 * VECTOR)), (1, VECTOR))
        mask = tl.max_constancy(mask, (1, VECTOR))
    x = tl.load(places, mask=mask, other=0.0)
    if WINDOW.row != WINDOW.elements:
        # Memory beside a window may hold NaN.
        x = tl.where(is_tap[None, :], x, tl.zeros_like(x))
    return x


@triton.jit
def conv_gather_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], rows of pixels PIXEL elements apart
    w_ptr,  # w [Co, T * R * S * Ci], packed
    y,  # y [M_GEMM, Co], packed
    operands,  # Operands of the epilogue
    m_gemm,
    co,
    reads,  # PixelReads
    WINDOW: tl.constexpr,  # Window
    CONFIG: tl.constexpr,  # GatherConfig
    FINISH: tl.constexpr,  # Finish
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    operands = operands
    reads = reads
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_K: tl.constexpr = CONFIG.block_k
    HOLDS_FILTER: tl.constexpr = CONFIG.holds_filter(WINDOW.columns)
    num_m = (m_gemm - 1) // BLOCK_M + 1
    num_n = (co - 1) // BLOCK_N + 1
    column = tl.program_id(0) % num_n * BLOCK_N
    columns = column + tl.arange(0, BLOCK_N)
    STEPS: tl.constexpr = (WINDOW.columns - 1) // BLOCK_K + 1
    if HOLDS_FILTER:
        filters = ()
        for part in tl.static_range(STEPS):
            weight = _load_filter(w_ptr, columns, co, part, WINDOW, BLOCK_K)
            filters += (weight,)  # type: ignore[assignment]
    tile_rows = tl.arange(0, BLOCK_M)
    # The grid is a multiple of num_n: a CTA's tiles have the same output channels.
    for tile_m in range(tl.program_id(0) // num_n, num_m, tl.num_programs(0) // num_n):
        row = tile_m * BLOCK_M
        row_mask = tile_rows < m_gemm - row
        # Those that overflow lie behind the output.
        rows = row + tile_rows
        d = None
        h = None
        w = rows % reads.output_size[2] * reads.stride[2] - reads.low[2]
        rest = rows // reads.output_size[2]
        offsets = w.to(tl.int64) * WINDOW.pixel
        if WINDOW.dims > 1:
            h = rest % reads.output_size[1] * reads.stride[1] - reads.low[1]
            rest = rest // reads.output_size[1]
            offsets += h.to(tl.int64) * reads.strides[1]
        if WINDOW.dims > 2:
            d = rest % reads.output_size[0] * reads.stride[0] - reads.low[0]
            rest = rest // reads.output_size[0]
            offsets += d.to(tl.int64) * reads.strides[0]
        pixels = x_ptr + (offsets + rest.to(tl.int64) * reads.image_stride)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if HOLDS_FILTER:
            for part in tl.static_range(STEPS):
                x = _load_pixels(pixels, row_mask, d, h, w, reads, part, WINDOW, BLOCK_K)
                acc = multiply(x, filters[part].T, acc)
        else:
            for step in range(STEPS):
                x = _load_pixels(pixels, row_mask, d, h, w, reads, step, WINDOW, BLOCK_K)
                weight = _load_filter(w_ptr, columns, co, step, WINDOW, BLOCK_K)
                acc = multiply(x, weight.T, acc)
        acc = scale_and_shift(acc, columns, co, operands)
        finish_tile(acc, row, column, m_gemm, co, co, y, None, operands, reads.output_size, FINISH)


@triton.jit
def _load_filter_row(w_ptr, co, row, part, SHAPE: tl.constexpr):
    """[columns, channels] of a row of the filter, zeros where there is no tap or channel."""
    offs_n = tl.arange(0, SHAPE.columns)
    tap, channel = offs_n // SHAPE.channels, offs_n % SHAPE.channels
    offs_k = part * SHAPE.block_k + tl.arange(0, SHAPE.block_k)
    offsets = (((channel * SHAPE.r + row) * SHAPE.s + tap) * SHAPE.ci)[:, None] + offs_k[None, :]
    mask = ((tap < SHAPE.s) & (channel < co))[:, None] & (offs_k < SHAPE.ci)[None, :]
    return tl.load(w_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _load_row(
    x_image,
    first,  # output row of step 0, or the segment
    column,  # of the segment
    step,
    reads,
    segment,
    SHAPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The pixels that a step reads, zeros outside of x: a tuple of [BLOCK_M, BLOCK_K]."""
    offs_m = tl.arange(0, BLOCK_M)
    if SHAPE.dims == 1:
        column = (first + step) * segment
    offs_w = column - reads.low[2] + offs_m
    # Negative places are large ones.
    row_mask = offs_w.to(tl.uint32, bitcast=True) < reads.size[2]
    row_mask = row_mask & (offs_m < segment + SHAPE.halo)
    pixels = x_image + offs_w.to(tl.int64) * reads.strides[2]
    if SHAPE.dims > 1:
        h = first - reads.low[1] + step * SHAPE.dilation_h
        offs_h = h + tl.zeros_like(offs_m)
        row_mask = row_mask & (offs_h.to(tl.uint32, bitcast=True) < reads.size[1])
        pixels += h.to(tl.int64) * reads.strides[1]
    STEPS: tl.constexpr = SHAPE.steps
    parts = ()
    for part in tl.static_range(STEPS):
        offs_k = part * SHAPE.block_k + tl.arange(0, SHAPE.block_k)
        places = pixels[:, None] + offs_k[None, :]
        mask = row_mask[:, None] & (offs_k < SHAPE.ci)[None, :]
        # Loads of 8 elements, 16 bytes.
        places = tl.max_contiguous(tl.multiple_of(places, (1, 16)), (1, 8))
        mask = tl.max_constancy(mask, (1, 8))
        x = tl.load(places, mask=mask, other=0.0)
        parts += (x,)  # type: ignore[assignment]
    return parts


@triton.jit
def conv_col2im_kernel(
    x_ptr,  # x [N, ([H, ]W, )Ci], channels side by side
    w_ptr,  # w [Co, R * S * Ci], packed
    y,  # y [M_GEMM, Co], packed
    operands,  # Operands of the epilogue
    co,
    reads,  # PixelReads
    segment,  # output pixels of a row, at most BLOCK_M - (S - 1) * DILATION_W
    segments,
    strips,
    rows,  # of a strip
    SHAPE: tl.constexpr,  # Kn2RowShape
    BLOCK_M: tl.constexpr,
    FINISH: tl.constexpr,  # Finish
    PREFETCHES: tl.constexpr,  # whether the next row is loaded to registers beside a step
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    operands = operands
    reads = reads
    R: tl.constexpr = SHAPE.r
    CHANNELS: tl.constexpr = SHAPE.channels
    COLUMNS: tl.constexpr = SHAPE.columns
    STEPS: tl.constexpr = SHAPE.steps
    filters = ()
    for r in tl.static_range(R):
        for part in tl.static_range(STEPS):
            weight = _load_filter_row(w_ptr, co, r, part, SHAPE)
            filters += (weight,)  # type: ignore[assignment]
    out_h = reads.output_size[1]
    out_w = reads.output_size[2]
    program = tl.program_id(0)
    offs_m = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, CHANNELS)
    taps = tl.arange(0, COLUMNS) // CHANNELS
    # Pixels past the block are those of no output of this segment.
    shifted = tl.minimum(offs_m[:, None] + (taps * SHAPE.dilation_w)[None, :], BLOCK_M - 1)
    if SHAPE.dims > 1:
        image_pixels = out_h * out_w
        column = program % segments * segment
        program = program // segments
        first = program % strips * rows * SHAPE.dilation_h
        program = program // strips
        first += program % SHAPE.dilation_h
        image = program // SHAPE.dilation_h
        count = tl.minimum((out_h - first + SHAPE.dilation_h - 1) // SHAPE.dilation_h, rows)
        # A phase with fewer rows may have none in its last strip.
        count = tl.where(count > 0, count + R - 1, 0)
    else:
        image_pixels = out_w
        first = program % strips * rows
        image = program // strips
        count = tl.minimum(segments - first, rows)
        column = 0
    x_image = x_ptr + image.to(tl.int64) * reads.image_stride
    carried = ()
    for _ in tl.static_range(R - 1):
        carried += (tl.zeros((BLOCK_M, COLUMNS), dtype=tl.float32),)  # type: ignore[assignment]
    if PREFETCHES:
        parts = _load_row(x_image, first, column, 0, reads, segment, SHAPE, BLOCK_M)
    for step in range(count):
        # Prefetched rows are those of the next step; behind the last row they are read in vain.
        loaded = _load_row(
            x_image, first, column, step + 1 if PREFETCHES else step, reads, segment, SHAPE, BLOCK_M
        )
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
                z = multiply(current[part], filters[(R - 1 - place_of) * STEPS + part].T, z)
            moved += (z,)  # type: ignore[assignment]
        if R > 1:
            carried = moved[1:]
        if step >= R - 1:
            z = tl.gather(moved[0], shifted, 0)  # type: ignore[misc]
            # Columns of no tap may be NaN, where x is not a number.
            z = tl.where((taps < SHAPE.s)[None, :], z, 0.0)
            tile = tl.sum(tl.reshape(z, (BLOCK_M, SHAPE.taps, CHANNELS)), axis=1)
            tile = scale_and_shift(tile, columns, co, operands)
            if SHAPE.dims > 1:
                line = image * image_pixels + (first + (step - (R - 1)) * SHAPE.dilation_h) * out_w
                begin = column
            else:
                line = image * out_w
                begin = (first + step) * segment
            # The end of the segment stands for that of y.
            end = line + tl.minimum(begin + segment, out_w)
            finish_tile(
                tile, line + begin, 0, end, co, co, y, None, operands, reads.output_size, FINISH
            )
