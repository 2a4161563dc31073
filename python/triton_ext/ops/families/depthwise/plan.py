"""Plans of depthwise convolutions and their gradients of the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise.config import (
    DepthwiseConfig,
    Walk,
    ranking,
)
from triton_ext.ops.input_gradient import InputGradientPlan
from triton_ext.ops.kernels.depthwise import (
    conv_depthwise_kernel,
    depthwise_constants,
    depthwise_scalars,
)

__all__ = [
    "DepthwisePlan",
    "PixelStrides",
    "forward_plan",
    "input_gradient_plan",
]

_MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStrides:
    """How a tensor [N, C, *spatial] lies in memory, as the kernels want it.

    Attributes:
        pixel: Elements from one column to the next.
        outer: Of images and of rows, ([D, [H]]), in pixels.
        is_copied: Whether the tensor is copied to a packed one first.
    """

    pixel: int
    outer: tuple[int, ...]
    is_copied: bool = False

    @classmethod
    def make(cls, shape: tuple[int, ...], strides: tuple[int, ...]) -> PixelStrides:
        """Looks at a tensor in torch's order; what is not channels-last, or too wide, is copied."""
        n, channels, *size = shape
        pixel = strides[-1] if size[-1] > 1 else channels
        sizes, steps = (n, *size[:-1]), (strides[0], *strides[2:-1])
        # Of one row, no distance is needed.
        steps = tuple(step if size > 1 else 0 for size, step in zip(sizes, steps, strict=True))
        one_after_another = strides[1] == 1 or channels == 1
        # Whether offsets need 64 bits is told by sizes alone: with gaps, a view has to fit 32.
        last = (size[-1] - 1) * pixel + channels
        last += sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        fits = last <= max(_MAX_INT32, n * math.prod(size) * pixel)
        if one_after_another and pixel > 0 and fits and not any(step % pixel for step in steps):
            return cls(pixel=pixel, outer=tuple(step // pixel for step in steps))
        packed = tuple(math.prod(size[dim:]) for dim in range(len(size)))
        return cls(pixel=channels, outer=packed, is_copied=True)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernels read it."""
        rows = tensor.permute(TO_LAST[tensor.dim() - 2])
        return rows.contiguous() if self.is_copied else rows


def _launcher(
    config: DepthwiseConfig,
    walk: Walk,
    strides: PixelStrides,
    dtype: tl.dtype,
    out_dtype: tl.dtype,
    epilogue: EpilogueSpec,
) -> Launcher:
    return Launcher(
        kernel=conv_depthwise_kernel,
        grid=walk.grid(config),
        scalars=depthwise_scalars(config, walk, strides.outer),
        constants=depthwise_constants(config, walk, strides.pixel, dtype, out_dtype, epilogue),
        options={"num_warps": config.num_warps},
    )


def _inputs(
    strides: PixelStrides, tensor: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input, and the filter [taps, C]."""
    return strides.rows(tensor), weight.flatten(1).mT.contiguous()


@dataclass(slots=True, kw_only=True)
class DepthwisePlan(ForwardPlan):
    """A plan of a forward convolution whose groups have one channel.

    Attributes:
        config: The configuration.
        strides: How x lies in memory.
    """

    config: DepthwiseConfig
    strides: PixelStrides

    def _inputs(
        self, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[tuple[Any, Any], tuple[bool, bool]]:
        rows, taps = _inputs(self.strides, x, weight)
        return (rows, taps), (rows.data_ptr() % ROW_BYTES == 0, taps.data_ptr() % ROW_BYTES == 0)


def forward_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: DepthwiseConfig | None = None,
) -> DepthwisePlan:
    """Returns the plan of a depthwise convolution; the arguments have been checked.

    Args:
        problem: What is computed.
        x_strides: Of x [N, C, *input_size], in elements.
        dtype: Of x and weight.
        out_dtype: Of y.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: The configuration; ``None`` lets a model choose.
    """
    strides = PixelStrides.make(problem.x_shape, x_strides)
    walk = Walk.forward(problem)
    return _plan(problem, walk, strides, dtype, out_dtype, device, epilogue, config)


def input_gradient_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    config: DepthwiseConfig | None = None,
) -> InputGradientPlan:
    """Returns the plan of a depthwise gradient of the input; the arguments have been checked.

    Args:
        problem: The convolution, whose last stride is at most ``MAX_UP``.
        dy_strides: Of dy [N, Co, *output_size], in elements.
        dtype: Of dy, weight and dx.
        device: The device.
        config: The configuration; ``None`` lets a model choose.
    """
    strides = PixelStrides.make(problem.y_shape, dy_strides)
    walk = Walk.backward(problem)
    plain, biased = (
        _plan(problem, walk, strides, dtype, dtype, device, epilogue, config)
        for epilogue in (PLAIN, EpilogueSpec(bias=True))
    )
    return InputGradientPlan(problem=problem, plain=plain, biased=biased)


def _plan(
    problem: ConvProblem,
    walk: Walk,
    strides: PixelStrides,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: DepthwiseConfig | None,
) -> DepthwisePlan:
    if config is None:
        config = ranking(walk, device.num_sms)[0]
    triton_dtype, triton_out = TRITON_DTYPES[dtype], TRITON_DTYPES[out_dtype]
    return DepthwisePlan(
        problem=problem,
        config=config,
        strides=strides,
        epilogue=epilogue,
        y_shape=(walk.batch, walk.channels, *walk.out_size),
        out_dtype=out_dtype,
        store_through_tma=False,
        launcher=_launcher(config, walk, strides, triton_dtype, triton_out, epilogue),
    )
