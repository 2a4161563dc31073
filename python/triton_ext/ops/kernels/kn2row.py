"""Forward convolution to few output channels: products of pixels with taps, shifted and added.

An implicit GEMM reads each pixel once per tap, and with few output channels does little else.  Here
a pixel is read once, and multiplied by all taps that it meets; adding shifted products is what
col2im does.  Symbols: x [N, ([H, ]W, )Ci], w [Co, R, S, Ci], y [N, (out_h, )out_w, Co].

GEMM mapping: M_GEMM = pixels of a row of x, N_GEMM = S * Co, K_GEMM = Ci, once per row of the
filter.  A program walks down rows of a segment of x.  A row of x belongs to R rows of y, the one
that it completes and R - 1 that go on, so that R accumulators

    z[q, (s, co)] = sum over r, ci of x[h + r * dilation_h, q, ci] * w[co, r, s, ci]

move on by one row with every step, and are never added up by anything but the tensor core.  Of the
row that is complete, the products of a tap are those of the pixel s * dilation_w to the right:

    y[p, co] = sum over s of z[p + s * dilation_w, (s, co)],

a ``tl.gather`` over S * Co columns of fp32, between threads of the CTA.  Of rows under dilation, a
program walks over those of one residue.  Over one dimension, R is 1 and steps are segments.

Counted for 3x3 and 128 channels of 2 bytes, per pixel: 256 bytes loaded once, and 2 pixels of 116
and 2 rows of some 40 again, instead of 9 * 256; 6 products of 64 channels and 16 columns.

Not handled: strides, groups, three dimensions, and fp32, whose loads would have to round to tf32;
the filter stays in shared memory, which bounds Ci (``config.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from triton_ext.errors import UnsupportedError
from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.compiling_ahead import compile_ahead, without_tensors
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import PointerPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.kn2row.config import (
    Col2ImConfig,
    Walk,
    best_config,
    block_k,
    col2im_problems,
    col2im_reasons,
    column_shape,
    vector_of,
)
from triton_ext.ops.kernels.epilogue import finish_tile, scale_and_shift

__all__ = [
    "Col2ImPlan",
    "col2im_constants",
    "col2im_plan",
    "compile_conv_col2im",
    "conv_col2im_kernel",
]


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
        if PREFETCHES:
            current = parts
            # Behind the last row this is read in vain.
            parts = _load_row(
                x_image, first, column, step + 1, size_h, size_w, pad_h, pad_w, x_stride_w,
                x_stride_h, segment, DIMS, S, DILATION_H, DILATION_W, CI, VECTOR, BLOCK_M,
                BLOCK_K, DOT_DTYPE,
            )  # fmt: skip
        else:
            current = _load_row(
                x_image, first, column, step, size_h, size_w, pad_h, pad_w, x_stride_w,
                x_stride_h, segment, DIMS, S, DILATION_H, DILATION_W, CI, VECTOR, BLOCK_M,
                BLOCK_K, DOT_DTYPE,
            )  # fmt: skip
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


def col2im_constants(
    config: Col2ImConfig,
    problem: ConvProblem,
    vector: int,
    dtype: tl.dtype,
    out_dtype: tl.dtype,
    epilogue: EpilogueSpec,
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters."""
    rows, taps = (1, *problem.filter_size)[-2:]
    dilation_h, dilation_w = (1, *problem.dilation)[-2:]
    padded_taps, channels = column_shape(problem)
    return {
        "DIMS": problem.dims,
        "R": rows,
        "S": taps,
        "DILATION_H": dilation_h,
        "DILATION_W": dilation_w,
        "CI": problem.in_channels,
        "TAPS": padded_taps,
        "CHANNELS": channels,
        "VECTOR": vector,
        "BLOCK_M": config.block_m,
        "BLOCK_K": block_k(problem),
        "DTYPE": out_dtype,
        # Triton's interpreter multiplies the bits of bf16 operands as integers (3.6 to 3.9).
        "DOT_DTYPE": tl.float32 if IS_INTERPRETED else dtype,
        "ACTIVATION": epilogue.activation,
        "FUNCTION": epilogue.function,
        "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
        "PREFETCHES": config.num_stages == 1,
    }


@dataclass(slots=True, kw_only=True)
class Col2ImPlan(PointerPlan):
    """A plan of the kernel that adds shifted products.

    Attributes:
        config: The configuration.
    """

    config: Col2ImConfig


def col2im_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: Col2ImConfig | None = None,
) -> Col2ImPlan:
    """Returns the plan of a forward convolution to few output channels.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size], in elements.
        dtype: Of x and weight.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: The configuration; ``None`` lets a model choose.

    Raises:
        UnsupportedError: The kernel does not take the problem, or the configuration cannot be
            compiled.
    """
    name = f"conv{problem.dims}d"
    wrong = list(col2im_reasons(problem, dtype))
    if wrong:
        raise UnsupportedError(f"{name}: shifted products are not added: " + "; ".join(wrong))
    if config is None:
        config, _ = best_config(problem, x_strides, device)
    if config is None:
        raise UnsupportedError(
            f"{name}: no configuration fits {problem.in_channels} channels in the "
            f"{device.smem_bytes} bytes of shared memory of a CTA, with loads of {ROW_BYTES} bytes"
        )
    wrong = col2im_problems(config, problem, device.smem_bytes)
    if wrong:
        raise UnsupportedError(f"{name}: configuration {config}: " + "; ".join(wrong))
    out_dtype = epilogue.out_dtype or dtype
    vector = vector_of(problem, x_strides)
    walk = Walk.make(config, problem)
    of_height: tuple[int | None, ...] = (None,) * 3
    if problem.dims > 1:
        of_height = (problem.input_size[0], problem.output_size[0], problem.padding[0][0])
    return Col2ImPlan(
        problem=problem,
        config=config,
        vector=vector,
        epilogue=epilogue,
        y_shape=problem.y_shape,
        out_dtype=out_dtype,
        store_through_tma=False,
        launcher=Launcher(
            kernel=conv_col2im_kernel,
            grid=(walk.programs, 1, 1),
            scalars=(
                problem.out_channels,
                *of_height,
                problem.input_size[-1],
                problem.output_size[-1],
                problem.padding[-1][0],
                x_strides[-1],
                x_strides[2] if problem.dims > 1 else None,
                x_strides[0],
                walk.segment,
                walk.segments,
                walk.strips,
                config.rows,
            ),
            constants=col2im_constants(
                config, problem, vector, TRITON_DTYPES[dtype], TRITON_DTYPES[out_dtype], epilogue
            ),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        ),
    )


def compile_conv_col2im(
    config: Col2ImConfig,
    problem: ConvProblem,
    capability: int,
    *,
    dtype: tl.dtype = tl.float16,
    epilogue: EpilogueSpec = PLAIN,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU and without an epilogue's tensors.

    Args:
        config: The configuration.
        problem: What is computed over a dense x; its filter and channels are compiled in.
        capability: Compute capability of the target times ten: 90, 100.
        dtype: Of x, w and y.
        epilogue: An activation.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
    vector = vector_of(problem, (strides[0], 1, *strides[1:-1]))
    constants = col2im_constants(config, problem, vector, dtype, dtype, epilogue)
    pointers = dict.fromkeys(("x_ptr", "w_ptr", "y_ptr"), f"*{dtype}")
    constants |= without_tensors(conv_col2im_kernel, pointers)
    if problem.dims == 1:
        constants |= dict.fromkeys(("size_h", "out_h", "pad_h", "x_stride_h"))
    return compile_ahead(
        conv_col2im_kernel,
        pointers,
        constants,
        capability,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
