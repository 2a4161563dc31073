"""Gradient of the input where patches do not overlap: one plain GEMM, stored patch by patch.

With a filter as large as its stride and no padding, as in front of a vision transformer, in the
stem of a ConvNeXt, or transposed in a decoder, every pixel of dx belongs to one patch at most.
Symbols: dy [N, out_d, out_h, out_w, Co], w [Co, T, R, S, Ci], dx [N, D, H, W, Ci], channels-last;
dimensions that a problem lacks come first, of one pixel.

GEMM mapping: M_GEMM = patches, N_GEMM = T * R * S * Ci, K_GEMM = Co.  The filter is [Co, N_GEMM] as
it lies in memory.  S * Ci columns of a row are neighbours in dx, as are those of the next patch;
they are stored through pointers, because a tile's patches are no box of any tensor.  Patches are
counted to the end of dx, so that all of it is written: pixels of patches that dy does not have
become zeros, whatever the filter holds.

The kernel of stride phases computes a tile of at least 16 columns per pixel of a patch, of which Ci
are used; this one is for few channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

import triton_ext.language as tle
from triton_ext.ops.kernels.epilogue import multiply


@triton.jit
def patch_dgrad_kernel(
    dy_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of dy; tiled where DY_IS_MATRIX
    w_desc,  # tiled: [BLOCK_K, BLOCK_N] tiles of w [Co, T * R * ROW]; W_IS_NK: of its transpose
    dx_ptr,  # [N, D, H, W * Ci]
    bias_ptr,  # [Ci] or None
    m_gemm,
    covering,  # patches of dx, (d, h, w), those at its end that are not whole among them
    output_size,  # patches of dy
    size,  # (D, H)
    row_units,  # W * Ci in units of UNIT
    DIMS: tl.constexpr,
    TAPS: tl.constexpr,  # T, R and S
    ROW: tl.constexpr,  # S * Ci
    CI: tl.constexpr,
    UNIT: tl.constexpr,  # a divisor of ROW and of W * Ci: 1 to 8
    CO: tl.constexpr,
    DY_IS_MATRIX: tl.constexpr,
    W_IS_NK: tl.constexpr,
    CONFIG: tl.constexpr,  # ConvConfig
):
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_K: tl.constexpr = CONFIG.block_k
    T: tl.constexpr = TAPS[0]
    R: tl.constexpr = TAPS[1]
    patches_d, patches_h, patches_w = covering
    out_d, out_h, out_w = output_size
    size_d, size_h = size
    COLUMNS: tl.constexpr = T * R * ROW
    num_n: tl.constexpr = (COLUMNS - 1) // BLOCK_N + 1
    num_m = (m_gemm - 1) // BLOCK_M + 1
    # Columns of the same patches one after another: dy comes from L2.
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        row = tile // num_n * BLOCK_M
        column = tile % num_n * BLOCK_N
        start = tle.im2col_start(row, covering[3 - DIMS :], (1,) * DIMS, (0,) * DIMS)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range((CO - 1) // BLOCK_K + 1):
            channel = block * BLOCK_K
            if DY_IS_MATRIX:
                dy = dy_desc.load([row, channel])
            else:
                dy = tle.load_im2col(dy_desc, start + (channel,), (0,) * DIMS)  # noqa: RUF005
            if W_IS_NK:
                weight = w_desc.load([column, channel])
                acc = multiply(dy, weight.T, acc)
            else:
                weight = w_desc.load([channel, column])
                acc = multiply(dy, weight, acc)
        offs_m = row + tl.arange(0, BLOCK_M)
        offs_n = column + tl.arange(0, BLOCK_N)
        q = offs_m % patches_w
        rest = offs_m // patches_w
        p_h = rest % patches_h
        rest = rest // patches_h
        p_d = rest % patches_d
        n = rest // patches_d
        is_patch = (q < out_w) & (p_h < out_h) & (p_d < out_d)
        values = tl.where(is_patch[:, None], acc, 0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + offs_n % CI, mask=offs_n < COLUMNS, other=0.0)
            values += bias.to(tl.float32)[None, :]
        # Multiples of UNIT are in or out together: the compiler sees it where all comes from them.
        unit = offs_n // UNIT
        r = unit // (ROW // UNIT) % R
        t = unit // (ROW // UNIT * R)
        reached = (q * (ROW // UNIT))[:, None] + (unit % (ROW // UNIT))[None, :] < row_units
        reached = reached & ((p_h * R)[:, None] + r[None, :] < size_h)
        reached = reached & ((p_d * T)[:, None] + t[None, :] < size_d)
        mask = reached & (offs_m < m_gemm)[:, None] & (unit < COLUMNS // UNIT)[None, :]
        image_row = (n.to(tl.int64) * size_d + p_d * T) * size_h + p_h * R
        first = image_row * row_units * UNIT + q.to(tl.int64) * ROW
        down = (t.to(tl.int64) * size_h + r) * row_units * UNIT
        pointers = dx_ptr + first[:, None] + (down + offs_n % ROW)[None, :]
        tl.store(pointers, values.to(dx_ptr.dtype.element_ty), mask=mask)
