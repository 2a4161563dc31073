"""Convolutions without tensor cores: which pixels they read, and groups of very few channels.

``kernels/groups.py`` has the kernel of :class:`Direct`, ``depthwise.py`` the families of groups of
one channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES, channels_last, channels_last_strides
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import Family
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan, three
from triton_ext.ops.core.refusals import Refusals, power_refusals, range_refusals
from triton_ext.ops.kernels.groups import conv_direct_kernel

_MAX_INT32 = (1 << 31) - 1


class PixelReads(NamedTuple):
    """Runtime arguments of kernels that read pixels through pointers.

    Tuples are (d, h, w), None, or 1 output pixel, for missing dimensions.
    """

    size: Any  # input pixels
    output_size: Any
    stride: Any  # distance of what output pixels read; in a gradient, of the input's pixels
    low: Any  # in front of the input
    dilation: Any
    strides: Any  # of the input's pixels, in elements
    image_stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which pixels of an input an output pixel reads: of x in fprop and wgrad, of dy in dgrad.

    Per spatial dimension, output pixel i reads through tap r the input pixel
    ``(i * step + r * dilation - low) / up``, where that is a whole number of the input.
    """

    batch: int  # images
    in_channels: int  # of the input
    out_channels: int  # of the output
    in_size: tuple[int, ...]  # input pixels
    out_size: tuple[int, ...]  # output pixels
    taps: tuple[int, ...]  # of the filter
    step: tuple[int, ...]  # distance of what two neighbouring output pixels read
    up: tuple[int, ...]  # distance of input pixels, in the same unit
    dilation: tuple[int, ...]  # distance of taps, in the same unit
    low: tuple[int, ...]  # padding in front, in the same unit; may be negative
    is_flipped: bool  # whether the filter is read from its end
    strides: tuple[int, ...]  # of the input [N, C, *in_size], in elements

    @classmethod
    def of(cls, case: Case) -> Sampling:
        """Returns the sampling of x in fprop and wgrad, of dy in dgrad.

        Pixel i of dx reads through tap s the pixel (i + low - s * dilation) / stride of dy; taps
        counted from the end make that (i + s' * dilation - ((S - 1) * dilation - low)) / stride.
        """
        problem, is_gradient = case.problem, case.direction == "dgrad"
        channels = (problem.in_channels, problem.out_channels)
        sizes = (problem.input_size, problem.output_size)
        steps, low = (problem.stride, (1,) * problem.dims), tuple(low for low, _ in problem.padding)
        if is_gradient:
            channels, sizes, steps = channels[::-1], sizes[::-1], steps[::-1]
            sides = zip(problem.filter_size, problem.dilation, low, strict=True)
            low = tuple((taps - 1) * dilation - pad for taps, dilation, pad in sides)
        return cls(
            batch=problem.batch, in_channels=channels[0], out_channels=channels[1],
            in_size=sizes[0], out_size=sizes[1], taps=problem.filter_size,
            step=steps[0], up=steps[1], dilation=problem.dilation, low=low, is_flipped=is_gradient,
            strides=case.strides_of_dy if is_gradient else case.strides_of_x,
        )  # fmt: skip

    def reads(self, strides: tuple[int, ...]) -> PixelReads:
        """Returns arguments of kernels, for an input [N, C, *in_size] of these strides."""
        stride = self.up if self.is_flipped else self.step
        return PixelReads(
            three(self.in_size), three(self.out_size, 1), three(stride), three(self.low),
            three(self.dilation), three(strides[2:]), strides[0],
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input, [N, C, *in_size]."""
        return (self.batch, self.in_channels, *self.in_size)

    @property
    def phase_rows(self) -> tuple[int, ...]:
        """Output rows ([D, [H]]) of a phase: rows that read through the same taps."""
        return tuple(
            math.ceil(size / up) for size, up in zip(self.out_size[:-1], self.up, strict=False)
        )

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.batch * math.prod(self.out_size)

    def positions(self, qw: int) -> int:
        """Returns the positions, of ``qw`` pixels of a row, of one phase of rows."""
        return self.batch * math.prod(self.phase_rows) * math.ceil(self.out_size[-1] / qw)

    def is_wide(self, pixel_stride: int, qw: int) -> bool:
        """Tells whether offsets in elements, masked ones included, may need 64 bits."""
        rows = [
            size + abs(low) + taps * dilation + step
            for size, low, taps, dilation, step in zip(
                self.in_size, self.low, self.taps, self.dilation, self.step, strict=True
            )
        ]
        rows[-1] += qw * self.step[-1]
        reads = (self.batch + 1) * math.prod(rows) * pixel_stride
        row = math.ceil(self.out_size[-1] / qw) * qw
        writes = (self.batch + 1) * math.prod(self.out_size[:-1]) * row * self.out_channels
        return max(reads, writes) > _MAX_INT32


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStrides:
    """The memory layout of a tensor [N, C, *spatial], as the kernels read it."""

    pixel: int  # elements from one column to the next
    outer: tuple[int, ...]  # of images and of rows, ([D, [H]]), in pixels
    is_copied: bool = False  # whether the tensor is copied to a packed one first

    @classmethod
    def make(cls, shape: tuple[int, ...], strides: tuple[int, ...]) -> PixelStrides:
        """Returns the layout of a tensor in torch's order.

        One that is not channels-last, or too wide, is copied.
        """
        n, channels, *size = shape
        pixel = strides[-1] if size[-1] > 1 else channels
        sizes, steps = (n, *size[:-1]), (strides[0], *strides[2:-1])
        # A dimension of one row needs no distance.
        steps = tuple(step if size > 1 else 0 for size, step in zip(sizes, steps, strict=True))
        is_dense = strides[1] == 1 or channels == 1
        # Sizes alone decide whether offsets need 64 bits: a view with gaps has to fit 32.
        last = (size[-1] - 1) * pixel + channels
        last += sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        fits = last <= max(_MAX_INT32, n * math.prod(size) * pixel)
        if is_dense and pixel > 0 and fits and not any(step % pixel for step in steps):
            return cls(pixel=pixel, outer=tuple(step // pixel for step in steps))
        packed = tuple(math.prod(size[dim:]) for dim in range(len(size)))
        return cls(pixel=channels, outer=packed, is_copied=True)

    @property
    def scalars(self) -> tuple[int | None, ...]:
        """The distances of planes, rows and images, in pixels, as the kernels take them."""
        planes, rows, _ = three((*self.outer[1:], 0))
        return planes, rows, self.outer[0]

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernels read it."""
        rows = tensor.permute(TO_LAST[tensor.dim() - 2])
        return rows.contiguous() if self.is_copied else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConfig:
    """Tile configuration of the kernel without tensor cores."""

    block_m: int  # output pixels per tile
    block_n: int  # output channels per tile
    num_warps: int = 4  # warps per CTA

    @property
    def tile_elements(self) -> int:
        """Elements of a tile."""
        return self.block_m * self.block_n


# Multiplications and additions per microsecond: 6 TFLOP/s over 32 groups of 8 channels (H200,
# Triton 3.9.0, bf16, 2026-11-23).
_FLOPS_PER_US = 6e6


class Direct(Family[DirectConfig]):
    """fprop and dgrad without tensor cores, by one configuration.

    The planner compares it for groups of fewer than 16 bytes of channels: TMA cannot address them
    without a copy.
    """

    kind = "direct"
    direction = "fprop"
    config_type = DirectConfig
    supersedes = ("gemm",)

    def number_refusals(self, config: DirectConfig, case: Case, device: Device) -> Refusals:
        found = power_refusals(config, block_m=(1, 1024), block_n=(1, 1024), num_warps=(1, 32))
        return found or range_refusals(config, tile_elements=(1, 1 << 16))

    def passed_over(self, case: Case, device: Device) -> str:
        groups, channels = case.problem.groups, Sampling.of(case).in_channels
        if groups > 1 and channels // groups * case.dtype.itemsize < ROW_BYTES:
            return ""
        return f"chosen for several groups of less than {ROW_BYTES} bytes of channels"

    def is_hopeless(self, case: Case, device: Device) -> bool:
        return bool(self.passed_over(case, device))

    def candidates(self, case: Case, device: Device) -> Mapping[DirectConfig, Expected]:
        """Returns one configuration, not measured: a thread loads 8 channels, 16 bytes."""
        sampling = Sampling.of(case)
        block_n = min(64, max(8, triton.next_power_of_2(sampling.out_channels)))
        columns = math.ceil(sampling.out_channels / block_n)
        # 32 accumulators per thread, fewer where that gives too few CTAs.
        for block_m in (4096 // block_n, 2048 // block_n):
            if math.ceil(sampling.pixels / block_m) * columns >= 4 * device.num_sms:
                break
        parts = {"launch": H200.launch_us, "instructions": case.problem.flops / _FLOPS_PER_US}
        return {DirectConfig(block_m=block_m, block_n=block_n): Expected.of(parts)}

    def bind(self, config: DirectConfig, case: Case, device: Device) -> ForwardPlan:
        is_gradient, to_last = case.direction == "dgrad", TO_LAST[case.problem.dims]

        def inputs(pixels: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            if is_gradient and pixels.stride(1) != 1:
                pixels = channels_last(pixels)
            return pixels, weight.permute(to_last).contiguous(), None

        return ForwardPlan.make(case, config, inputs, direct_launcher(config, case))


def direct_launcher(
    config: DirectConfig, case: Case, *, most_programs: int | None = None, flags: int = 0
) -> Launcher:
    """Returns the launch of fprop over x, or of dgrad over dy, whose channels lie side by side.

    With ``flags``, the kernel computes only where one of so many flags is NaN, and has at most
    ``most_programs`` programs.
    """
    problem, sampling = case.problem, Sampling.of(case)
    pixels, channels, strides = sampling.pixels, sampling.out_channels, sampling.strides
    if sampling.is_flipped and strides[1] != 1:  # dy is copied
        strides = channels_last_strides(sampling.shape)
    tiles = math.ceil(pixels / config.block_m) * math.ceil(channels / config.block_n)
    return Launcher(
        kernel=conv_direct_kernel,
        grid=(min(tiles, most_programs or tiles), 1, 1),
        scalars=(pixels, channels, flags, sampling.reads(strides)),
        constants={
            "DIMS": problem.dims, "FILTER": problem.filter_size,
            "GROUP_CI": sampling.in_channels // problem.groups,
            "GROUP_CO": channels // problem.groups, "IS_GRADIENT": sampling.is_flipped,
            "FLAGS": triton.next_power_of_2(flags), "CONFIG": config,
            "FINISH": case.epilogue.finish,
        },
        options={"num_warps": config.num_warps},
    )  # fmt: skip


DIRECT = Direct()
DIRECT_DGRAD = Direct("dgrad")
