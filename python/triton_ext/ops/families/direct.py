"""Groups of very few channels without tensor cores: fprop, and dgrad as the same over dy.

``kernels/direct.py`` has the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import triton
import triton.language as tl

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.core.plan import (
    TO_LAST,
    ForwardPlan,
    InputGradientPlan,
    config_constants,
    filter_constants,
    output_constants,
    three,
    vector_inputs,
)
from triton_ext.ops.core.refusals import Refusal, power_refusals, range_refusals
from triton_ext.ops.families.depthwise import Sampling
from triton_ext.ops.kernels.direct import conv_direct_kernel

__all__ = ["DIRECT", "DIRECT_DGRAD", "DirectConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConfig:
    """One way to compile the kernel."""

    block_m: int  # output pixels per tile
    block_n: int  # output channels per tile
    num_warps: int = 4  # warps per CTA

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        found = (
            *power_refusals(self, 1, 1024, "block_m", "block_n"),
            *power_refusals(self, 1, 32, "num_warps"),
        )
        return found or range_refusals(self, 1, 1 << 16, "tile_elements")

    @property
    def tile_elements(self) -> int:
        """Elements of a tile."""
        return self.block_m * self.block_n


class Direct(Family[DirectConfig]):
    """fprop: one configuration, whose time no model expects: nothing is compared with it.

    The planner chooses it for groups of fewer than 16 bytes of channels, which TMA cannot address
    and would have to be copied apart.
    """

    kind = "direct"
    direction: ClassVar[Direction] = "fprop"
    config_type = DirectConfig
    supersedes = ("gemm",)

    def passed_over(self, case: Case, device: Device) -> str:
        groups = case.problem.groups
        group_bytes = Sampling.of(case).in_channels // groups * case.dtype.itemsize
        if groups > 1 and group_bytes < ROW_BYTES:
            return ""
        return f"chosen for several groups of less than {ROW_BYTES} bytes of channels"

    def candidates(self, case: Case, device: Device) -> Mapping[DirectConfig, Expected]:
        """Returns a configuration; not measured: a thread has 8 channels, 16 bytes of a load."""
        sampling = Sampling.of(case)
        block_n = min(64, max(8, triton.next_power_of_2(sampling.out_channels)))
        columns = math.ceil(sampling.out_channels / block_n)
        # 32 accumulators per thread, fewer where that gives too few CTAs.
        for block_m in (4096 // block_n, 2048 // block_n):
            if math.ceil(sampling.pixels / block_m) * columns >= 4 * device.num_sms:
                break
        return {DirectConfig(block_m=block_m, block_n=block_n): Expected.of(math.nan)}

    def bind(
        self, config: DirectConfig, case: Case, device: Device
    ) -> ForwardPlan | InputGradientPlan:
        if case.direction == "fprop":
            return _plan(config, case.strides_of_x, case)
        strides = case.strides_of_dy
        if strides[1] != 1:
            strides = channels_last_strides(case.problem.y_shape)  # _gradient_inputs copies dy
        return InputGradientPlan.of(case.problem, case, partial(_plan, config, strides))


class DirectDgrad(Direct):
    """dgrad."""

    direction = "dgrad"


def _plan(config: DirectConfig, strides: tuple[int, ...], case: Case) -> ForwardPlan:
    """Returns the plan of fprop over x, or of dgrad over dy, of these strides."""
    problem, sampling = case.problem, Sampling.of(case)
    is_gradient, pixels, channels = sampling.is_flipped, sampling.pixels, sampling.out_channels
    launcher = Launcher(
        kernel=conv_direct_kernel,
        grid=(math.ceil(pixels / config.block_m) * math.ceil(channels / config.block_n), 1, 1),
        scalars=(
            pixels,
            channels,
            *three(sampling.in_size),
            *three(sampling.out_size),
            *three(problem.stride),
            *three(sampling.low),
            *three(sampling.dilation),
            *three(strides[2:]),
            strides[0],
        ),
        constants={
            "DIMS": problem.dims,
            **filter_constants(problem.filter_size),
            "GROUP_CI": sampling.in_channels // problem.groups,
            "GROUP_CO": channels // problem.groups,
            "IS_GRADIENT": is_gradient,
            **config_constants(config, "block_m", "block_n"),
            **output_constants(
                case, ACC_DTYPE=tl.int32 if case.dtype == torch.int8 else tl.float32
            ),
        },
        options={"num_warps": config.num_warps},
    )
    inputs = partial(_gradient_inputs, problem.groups) if is_gradient else partial(vector_inputs, 1)
    return ForwardPlan.make(case, config, inputs, launcher)


def _gradient_inputs(
    groups: int, dy: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns dy with contiguous channels, and the filter [groups * Ci, taps, Co] of a group."""
    if dy.stride(1) != 1:
        dy = dy.permute(TO_LAST[dy.dim() - 2]).contiguous().movedim(-1, 1)
    by_group = weight.unflatten(0, (groups, -1)).flatten(3)
    return dy, by_group.permute(0, 2, 3, 1).contiguous()


DIRECT = Direct()
DIRECT_DGRAD = DirectDgrad()
