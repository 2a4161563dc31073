"""What is done to accumulators in registers before they are stored: the device part, in Gluon.

The arithmetic is that of the ``@triton.jit`` kernels (``ops.kernels.epilogue``), traced for tensors
that have a layout.  Order: ``activation(acc * scale + bias + residual) * out_scale``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.ops.kernels.epilogue import activate, scale_and_shift

__all__ = ["finish_columns", "prefetch_residual"]

# What one prefetch brings (PTX ISA, prefetch): a line of the cache.
LINE_BYTES = gl.constexpr(128)


@gluon.jit
def prefetch_residual(row, column, epilogue, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Asks for a tile's residual in L2 before its sums begin: behind them it is read at once.

    A hint: rows that do not begin with a line miss their last one, a residual per image is small
    and shared.  Nothing behind the residual's end is asked for.

    Args:
        row: First output pixel.
        column: First output channel.
        epilogue: That of :func:`finish_columns`.
        ROWS: Output pixels.
        COLUMNS: Output channels.
    """
    _, _, _, residual_ptr, _, m_gemm, co, image_size = epilogue
    if residual_ptr is not None and image_size is None:
        LINE: gl.constexpr = LINE_BYTES * 8 // residual_ptr.dtype.element_ty.primitive_bitwidth
        LINES: gl.constexpr = max(COLUMNS // LINE, 1)
        layout: gl.constexpr = gl.BlockedLayout([1, 1], [32 // LINES, LINES], [4, 1], [1, 0])
        rows = row.to(gl.int64) + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, LINES, layout=gl.SliceLayout(0, layout)) * LINE
        offsets = gl.minimum(rows, m_gemm - 1)[:, None] * co + gl.minimum(columns, co - 1)[None, :]
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l",
            [residual_ptr + offsets], gl.int32, False, 1,
        )  # fmt: skip


@gluon.jit
def finish_columns(values, row, column, epilogue, ACTIVATION: gl.constexpr):
    """Returns some columns of a consumer's rows as they are stored, but for the cast.

    A thread has pairs of neighbouring columns, so a residual is read 4 bytes at a time; the other
    half of each sector comes from L1.

    Args:
        values: fp32 [ROWS, STORE_N], accumulators.
        row: First output pixel.
        column: First output channel.
        epilogue: (bias_ptr, scale_ptr, tile_scale_ptr, residual_ptr, out_scale_ptr, m_gemm, co,
            image_size); pointers are None for what there is not.  co is a multiple of 8.  Where
            image_size, output pixels per dimension, is not None, the residual is [N, Co].
        ACTIVATION: One of ``kernels.epilogue.activate``, or ``"none"``.
    """
    bias_ptr, scale_ptr, tile_scale_ptr, residual_ptr, out_scale_ptr, m_gemm, co, image_size = (
        epilogue
    )
    layout: gl.constexpr = values.type.layout
    # Says to the compiler what the host has checked: TMA stores rows of multiples of 16 bytes.
    co = co // 8 * 8
    offs_n = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout))
    values = scale_and_shift(values, offs_n, co, bias_ptr, scale_ptr, tile_scale_ptr)
    if residual_ptr is not None:
        rows = gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, layout))
        offs_m = row.to(gl.int64) + rows
        if image_size is not None:
            image_pixels = image_size[0]
            for dim in gl.static_range(1, len(image_size)):
                image_pixels *= image_size[dim]
            # Rows whose number overflows lie behind the output.
            offs_m = ((row + rows) // image_pixels).to(gl.int64)
        offsets = offs_m[:, None] * co + offs_n[None, :]
        mask = (rows < m_gemm - row)[:, None] & (offs_n < co)[None, :]
        values = values + gl.load(residual_ptr + offsets, mask=mask, other=0.0).to(gl.float32)
    if ACTIVATION != "none":
        values = activate(values, ACTIVATION)
    if out_scale_ptr is not None:
        values = values * gl.load(out_scale_ptr).to(gl.float32)
    return values
