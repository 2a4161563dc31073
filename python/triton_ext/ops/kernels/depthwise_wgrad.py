"""Gradients of the filters of depthwise convolutions, without tensor cores and without atomics.

Symbols: x [N, ([D, ]H, )W, C], dy [N, ([out_d, ]out_h, )out_w, C], dw [C, T * R * S].  A position
is QW neighbouring pixels of a row of dy, as in ``kernels/depthwise.py``.

A program goes over a part of the positions, BLOCK_P at a time, for BLOCK_C channels and the taps of
LINES rows of the filter, TAPS of each: their sums stay in registers.  Each column of x that a
position reaches is loaded once per row of the filter.  What BLOCK_P threads found for a tap is
added at the end and written to a workspace [parts, T * R * S, C] in fp32; a second kernel adds the
parts, always in the same order.
"""

# Tuples of a kernel have no starred items.
# ruff: noqa: RUF005, SIM108
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from triton_ext.ops.kernels.depthwise import columns_of, tap_of

__all__ = ["depthwise_reduce_kernel", "depthwise_wgrad_kernel"]


@triton.jit
def depthwise_wgrad_kernel(
    x_ptr,
    dy_ptr,
    parts_ptr,  # fp32 [parts, T * R * S, C]
    positions,
    tiles_of_part,
    size_d,  # pixels of x; these per spatial dimension, None for dimensions that are not there
    size_h,
    size_w,
    out_d,
    out_h,
    out_w,
    groups_w,  # positions in a row
    low_d,
    low_h,
    low_w,
    x_stride_d,  # in pixels
    x_stride_h,
    x_stride_n,
    dy_stride_d,
    dy_stride_h,
    dy_stride_n,
    DIMS: tl.constexpr,
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    C: tl.constexpr,
    X_STRIDE_W: tl.constexpr,  # elements of a pixel
    DY_STRIDE_W: tl.constexpr,
    STRIDE_D: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    DILATION_D: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    IS_WIDE: tl.constexpr,  # offsets need 64 bits
    HAS_TAIL: tl.constexpr,  # a row's last position may reach over its end
    QW: tl.constexpr,
    LINES: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
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
                row = h * STRIDE_H + ((first_line + line) % R * DILATION_H - low_h)
                inside = inside & (row >= 0) & (row < size_h)
                pixels = pixels + row * x_stride_h
            if DIMS > 2:
                plane = d * STRIDE_D + ((first_line + line) // R * DILATION_D - low_d)
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
    to = parts_ptr + (part * (T * R * S)).to(tl.int64) * C + channels
    for i in tl.static_range(LINES * TAPS):
        line = first_line + i // TAPS
        tap = first_tap + i % TAPS
        found = tl.sum(accs[i], axis=0)
        written = tl.where((line < T * R) & (tap < S), C, 0)
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
    DTYPE: tl.constexpr,
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
    dw = tl.sum(acc, axis=0).to(DTYPE)
    tl.store(dw_ptr + channels * TAPS + tap, dw, mask=channels < C)
