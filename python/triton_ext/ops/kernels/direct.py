"""Convolution without tensor cores for groups of very few channels, and its gradient of the input.

An output channel of a depthwise convolution sees one input channel.  A tile of an implicit GEMM
would use one column of BLOCK_K of what it loads and multiplies; with fewer than
``MIN_GROUP_BYTES`` bytes of channels per group, loading each pixel's channels once per tap and
multiplying them where they are costs less, and TMA could not begin a copy where a group begins.
Neighbouring threads read neighbouring channels.  Groups of one channel each way have a kernel of
their own, ``kernels/depthwise.py``.

The gradient is the same over dy: the filter is read from its end, its channels are exchanged, and
what would be a fraction of a pixel of dy, where the convolution has a stride, is none.

Pointers and masks: no tensor maps, so any stride, padding, dilation and alignment would do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.compiling_ahead import compile_ahead, without_tensors
from triton_ext.ops.core.config_checks import power_problems, range_problems
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan, three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise.config import Walk
from triton_ext.ops.kernels.epilogue import finish_tile, pixels_of_image, scale_and_shift

__all__ = [
    "MIN_GROUP_BYTES",
    "DirectConfig",
    "DirectPlan",
    "choose_direct_config",
    "compile_conv_direct",
    "conv_direct_kernel",
    "direct_constants",
    "direct_dgrad_plan",
    "direct_plan",
    "direct_scalars",
]

# What TMA addresses: smaller groups would have to be spread out by a copy first.
MIN_GROUP_BYTES = ROW_BYTES


@triton.jit
def conv_direct_kernel(
    x_ptr,  # x [N, ([D, ]H, )W, Ci], pixels of any stride, channels contiguous
    w_ptr,  # w [Co, T * R * S, Ci / groups], packed
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
    size_d,  # input pixels; these six per spatial dimension, None for dimensions that are not there
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
    dilation_w,
    x_stride_d,  # in elements
    x_stride_h,
    x_stride_w,
    x_stride_n,
    DIMS: tl.constexpr,
    T: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    GROUP_CI: tl.constexpr,  # Ci / groups
    GROUP_CO: tl.constexpr,  # Co / groups
    IS_GRADIENT: tl.constexpr,  # strides are distances of the input's pixels, not the output's
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DTYPE: tl.constexpr,  # of y
    ACTIVATION: tl.constexpr,
    FUNCTION: tl.constexpr,
    ACC_DTYPE: tl.constexpr,
    RESIDUAL_PER_IMAGE: tl.constexpr,
):
    image_pixels = pixels_of_image(out_d, out_h, out_w, DIMS) if RESIDUAL_PER_IMAGE else None
    num_n = (co - 1) // BLOCK_N + 1
    row = tl.program_id(0) // num_n * BLOCK_M
    column = tl.program_id(0) % num_n * BLOCK_N
    tile_rows = tl.arange(0, BLOCK_M)
    rows = row.to(tl.int64) + tile_rows
    columns = column + tl.arange(0, BLOCK_N)
    row_mask = tile_rows < m_gemm - row
    column_mask = columns < co
    # Where tap 0 reads.
    w = rows % out_w * (1 if IS_GRADIENT else stride_w) - pad_w
    rest = rows // out_w
    if DIMS > 1:
        h = rest % out_h * (1 if IS_GRADIENT else stride_h) - pad_h
        rest = rest // out_h
    if DIMS > 2:
        d = rest % out_d * (1 if IS_GRADIENT else stride_d) - pad_d
        rest = rest // out_d
    images = x_ptr + rest * x_stride_n
    channels = columns // GROUP_CO * GROUP_CI
    weights = w_ptr + columns * (T * R * S * GROUP_CI)
    ZERO: tl.constexpr = 0 if ACC_DTYPE.is_int() else 0.0
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
    for line in range(T * R):
        inside = row_mask
        lines = images
        if DIMS > 1:
            this_h = h + line % R * dilation_h
            if IS_GRADIENT:
                inside = inside & (this_h % stride_h == 0)
                this_h = this_h // stride_h
            inside = inside & (this_h >= 0) & (this_h < size_h)
            lines = lines + this_h * x_stride_h
        if DIMS > 2:
            this_d = d + line // R * dilation_d
            if IS_GRADIENT:
                inside = inside & (this_d % stride_d == 0)
                this_d = this_d // stride_d
            inside = inside & (this_d >= 0) & (this_d < size_d)
            lines = lines + this_d * x_stride_d
        for s in range(S):
            this_w = w + s * dilation_w
            is_pixel = inside
            if IS_GRADIENT:
                is_pixel = is_pixel & (this_w % stride_w == 0)
                this_w = this_w // stride_w
            is_pixel = is_pixel & (this_w >= 0) & (this_w < size_w)
            pixels = lines + this_w * x_stride_w
            for c in tl.static_range(GROUP_CI):
                mask = is_pixel[:, None] & column_mask[None, :]
                x = tl.load(pixels[:, None] + (channels + c)[None, :], mask=mask, other=ZERO)
                tap = line * S + s
                if IS_GRADIENT:
                    tap = T * R * S - 1 - tap
                weight = tl.load(weights + tap * GROUP_CI + c, mask=column_mask, other=ZERO)
                acc += x.to(ACC_DTYPE) * weight.to(ACC_DTYPE)[None, :]
    if bias_ptr is not None or scale_ptr is not None or tile_scale_ptr is not None:
        acc = scale_and_shift(acc, columns, co, bias_ptr, scale_ptr, tile_scale_ptr)
    finish_tile(
        acc, row, column, m_gemm, co, co, y_desc, y_ptr, residual_desc, residual_ptr,
        image_pixels, out_scale_ptr, amax_ptr, extra, ACTIVATION, FUNCTION, DTYPE,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConfig:
    """One way to compile the kernel.

    Attributes:
        block_m: Output pixels per tile.
        block_n: Output channels per tile.
        num_warps: Warps per CTA.
    """

    block_m: int
    block_n: int
    num_warps: int = 4

    def problems(self) -> list[str]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        found = [
            *power_problems(self, 1, 1024, "block_m", "block_n"),
            *power_problems(self, 1, 32, "num_warps"),
        ]
        return found or range_problems(self, 1, 1 << 16, "tile_elements")

    @property
    def tile_elements(self) -> int:
        """Elements of a tile."""
        return self.block_m * self.block_n


def choose_direct_config(m_gemm: int, co: int, num_sms: int) -> DirectConfig:
    """Returns a configuration; not measured: a thread has 8 channels, 16 bytes of a load.

    Args:
        m_gemm: Output pixels.
        co: Output channels.
        num_sms: Multiprocessors of the GPU.
    """
    block_n = min(64, max(8, triton.next_power_of_2(co)))
    columns = math.ceil(co / block_n)
    # 32 accumulators per thread, fewer where that gives too few CTAs.
    for block_m in (4096 // block_n, 2048 // block_n):
        if math.ceil(m_gemm / block_m) * columns >= 4 * num_sms:
            break
    return DirectConfig(block_m=block_m, block_n=block_n)


def direct_constants(
    config: DirectConfig,
    problem: ConvProblem,
    dtype: tl.dtype,
    out_dtype: tl.dtype,
    epilogue: EpilogueSpec,
    is_gradient: bool = False,
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters."""
    t, r, s = (1,) * (3 - problem.dims) + problem.filter_size
    channels = (problem.in_channels // problem.groups, problem.out_channels // problem.groups)
    group_ci, group_co = reversed(channels) if is_gradient else channels
    return {
        "DIMS": problem.dims,
        "T": t,
        "R": r,
        "S": s,
        "GROUP_CI": group_ci,
        "GROUP_CO": group_co,
        "IS_GRADIENT": is_gradient,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "DTYPE": out_dtype,
        "ACTIVATION": epilogue.activation,
        "FUNCTION": epilogue.function,
        "ACC_DTYPE": tl.int32 if dtype == tl.int8 else tl.float32,
        "RESIDUAL_PER_IMAGE": epilogue.residual_per_image,
    }


@dataclass(slots=True, kw_only=True)
class DirectPlan(ForwardPlan):
    """A plan of the kernel without tensor cores.

    Attributes:
        config: The tile configuration.
        is_gradient: Whether x is dy, and y is dx.
    """

    config: DirectConfig
    is_gradient: bool = False

    def _inputs(
        self, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[tuple[Any, Any], tuple[bool, bool]]:
        if self.is_gradient:
            # The kernel wants contiguous channels, a gradient lies as autograd makes it.
            if x.stride(1) != 1:
                x = x.permute(TO_LAST[self.problem.dims]).contiguous().movedim(-1, 1)
            # [groups, Co, Ci, taps] of a group to [groups * Ci, taps, Co].
            by_group = weight.unflatten(0, (self.problem.groups, -1)).flatten(3)
            w_rows = by_group.permute(0, 2, 3, 1).contiguous()
        else:
            w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        return (x, w_rows), (x.data_ptr() % ROW_BYTES == 0, w_rows.data_ptr() % ROW_BYTES == 0)


def direct_scalars(problem: ConvProblem, x_strides: tuple[int, ...]) -> tuple[int | None, ...]:
    """Returns the kernel's runtime arguments.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size].
    """
    conv = problem.geometry
    return (
        conv.m_gemm,
        problem.out_channels,
        *three(problem.input_size),
        *three(conv.output_size),
        *three(problem.stride),
        *three([low for low, _ in problem.padding]),
        *three(problem.dilation),
        *three(x_strides[2:]),
        x_strides[0],
    )


def direct_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: DirectConfig,
) -> DirectPlan:
    """Returns the plan of a forward convolution.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size], in elements.
        dtype: Of x and weight.
        out_dtype: Of y.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: The configuration.
    """
    m_gemm, co = problem.geometry.m_gemm, problem.out_channels
    triton_dtype, triton_out = TRITON_DTYPES[dtype], TRITON_DTYPES[out_dtype]
    return DirectPlan(
        problem=problem,
        config=config,
        epilogue=epilogue,
        y_shape=problem.y_shape,
        out_dtype=out_dtype,
        store_through_tma=False,
        launcher=Launcher(
            kernel=conv_direct_kernel,
            grid=(math.ceil(m_gemm / config.block_m) * math.ceil(co / config.block_n), 1, 1),
            scalars=direct_scalars(problem, x_strides),
            constants=direct_constants(config, problem, triton_dtype, triton_out, epilogue),
            options={"num_warps": config.num_warps},
        ),
    )


def direct_dgrad_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: DirectConfig,
) -> DirectPlan:
    """Returns the plan that computes the gradient of the input from dy; arguments were checked.

    Args:
        problem: The convolution.
        dy_strides: Of dy [N, Co, *output_size], in elements.
        dtype: Of dy, weight and dx.
        device: The device.
        epilogue: What is done to dx before it is stored.
        config: The tile configuration.
    """
    walk = Walk.backward(problem)
    m_gemm, ci = problem.batch * math.prod(problem.input_size), problem.in_channels
    if dy_strides[1] != 1:
        pixels = (problem.batch, *problem.output_size, problem.out_channels)
        packed = packed_strides(pixels)
        dy_strides = (packed[0], 1, *packed[1:-1])
    triton_dtype = TRITON_DTYPES[dtype]
    return DirectPlan(
        problem=problem,
        config=config,
        is_gradient=True,
        epilogue=epilogue,
        y_shape=problem.x_shape,
        out_dtype=dtype,
        store_through_tma=False,
        launcher=Launcher(
            kernel=conv_direct_kernel,
            grid=(math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n), 1, 1),
            scalars=(
                m_gemm,
                ci,
                *three(walk.in_size),
                *three(walk.out_size),
                *three(walk.up),
                *three(walk.low),
                *three(walk.dilation),
                *three(dy_strides[2:]),
                dy_strides[0],
            ),
            constants=direct_constants(
                config, problem, triton_dtype, triton_dtype, epilogue, is_gradient=True
            ),
            options={"num_warps": config.num_warps},
        ),
    )


def compile_conv_direct(
    config: DirectConfig,
    problem: ConvProblem,
    capability: int,
    *,
    dtype: tl.dtype = tl.float16,
    epilogue: EpilogueSpec = PLAIN,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU and without an epilogue's tensors.

    Args:
        config: The tile configuration.
        problem: What is computed; its filter, groups and channels are compiled in.
        capability: Compute capability of the target times ten: 90, 100.
        dtype: Of x, w and y.
        epilogue: An activation.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    constants = direct_constants(config, problem, dtype, dtype, epilogue)
    pointers = dict.fromkeys(("x_ptr", "w_ptr", "y_ptr"), f"*{dtype}")
    constants |= without_tensors(conv_direct_kernel, pointers)
    for letter in "dh"[: 3 - problem.dims]:
        kinds = ("size", "out", "stride", "pad", "dilation", "x_stride")
        constants |= dict.fromkeys(f"{kind}_{letter}" for kind in kinds)
    return compile_ahead(
        conv_direct_kernel,
        pointers,
        constants,
        capability,
        # Of channels-last tensors of 16 and more channels.
        multiples=["co", *(f"x_stride_{letter}" for letter in "ndhw")],
        num_warps=config.num_warps,
    )
