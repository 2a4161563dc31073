"""kn2row: a forward convolution to few output channels, as shifted products that are added.

An implicit GEMM reads each pixel once per tap, and with few output channels does little else.  Here
a pixel is read once and multiplied by all taps that it meets.
Symbols: x [N, ([H, ]W, )Ci], w [Co, R, S, Ci], y [N, (out_h, )out_w, Co].

GEMM mapping: M_GEMM = pixels of a row of x, N_GEMM = S * Co, K_GEMM = Ci, once per row of the
filter.  A program walks down the rows of a segment of x.  A row of x contributes to R rows of y,
the one that it completes and R - 1 later ones, so that R accumulators

    z[q, (s, co)] = sum over r, ci of x[h + r * dilation_h, q, ci] * w[co, r, s, ci]

move on by one row with every step, and only the tensor core adds to them.  In the completed row,
the products of a tap are those of the pixel s * dilation_w to the right:

    y[p, co] = sum over s of z[p + s * dilation_w, (s, co)],

a ``tl.gather`` over S * Co columns of fp32, between threads of the CTA.  Under dilation, a program
takes the rows of one residue.  Over one dimension, R is 1 and steps are segments.

Counted for 3x3 and 128 channels of 2 bytes, per pixel: 256 bytes loaded once, and 2 pixels of 116
and 2 rows of some 40 again, instead of 9 * 256; 6 products of 64 channels and 16 columns.

Not handled: strides, groups, three dimensions, and fp32, whose loads would have to round to tf32;
the filter stays in shared memory, which bounds Ci (``families/kn2row.py``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, scale_and_shift

__all__ = ["conv_col2im_kernel"]


@triton.jit
def _load_filter(
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
            weight = _load_filter(w_ptr, co, r, part, R, S, CI, COLUMNS, CHANNELS, BLOCK_K)
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
        # Of a residue that has fewer rows, the last strip may have none.
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
            # Columns of no tap may be NaN, where x is no number.
            z = tl.where((taps < S)[None, :], z, 0.0)
            tile = tl.sum(tl.reshape(z, (BLOCK_M, TAPS, CHANNELS)), axis=1)
            if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
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
