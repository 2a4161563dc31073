"""Few-channel implicit GEMM: a forward convolution whose left operand is loaded through pointers.

TMA needs pixels of multiples of 16 bytes.  Where they have fewer, other kernels read a copy of x
(``core/packing.py``), which is a launch of its own.  Here threads load what a tile reads.

GEMM mapping: M_GEMM = output pixels, N_GEMM = Co, K_GEMM = the filter's rows one after another.  In
channels-last memory the S * Ci elements that an output pixel reads of a row of x are neighbours:
column j of filter row r is element

    (w * stride_w - pad_w) * Ci + j    of row    h * stride_h - pad_h + r * dilation_h,

zero where that is outside of x.  ``families/few_channels.py`` says how many elements a load has,
and how K is laid out for it.

A CTA keeps its output channels and walks over tiles of pixels, so that it loads a filter of one k
iteration once.

Not handled: groups, and dilation in W, whose taps are not neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.epilogue import finish_tile, pixels_of_image, scale_and_shift

__all__ = ["conv_gather_kernel"]


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
        # What lies beside a window may be no number.
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
        if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
            acc = scale_and_shift(acc, columns, co, bias_ptr, scale_ptr, tile_scale_ptr)
        finish_tile(
            acc, row, column, m_gemm, co, co, y_desc, y_ptr, residual_desc, residual_ptr,
            image_pixels, out_scale_ptr, amax_ptr, extra, ACTIVATION, FUNCTION, DTYPE,
        )  # fmt: skip
