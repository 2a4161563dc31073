"""Depthwise convolutions, of one channel in every group: fprop, and dgrad as the same over dy.

``kernels/depthwise.py`` has the kernel, ``depthwise_wgrad.py`` the family of wgrad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import triton.language as tl

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import (
    TO_LAST,
    ForwardPlan,
    InputGradientPlan,
    config_constants,
    dim_constants,
    filter_constants,
    output_constants,
    three,
)
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, power_refusals, range_refusals, refused
from triton_ext.ops.kernels.depthwise import conv_depthwise_kernel

__all__ = [
    "DEPTHWISE",
    "DEPTHWISE_DGRAD",
    "DepthwiseConfig",
    "PixelStrides",
    "Sampling",
    "block_refusals",
    "depthwise_refusals",
    "is_depthwise",
]

_MAX_INT32 = (1 << 31) - 1
# Gradients of larger strides are left to the kernel that looks for each tap's pixel.
_MAX_UP = 8
# Larger numbers are unrolled into kernels that compile for minutes.
MOST_PIXELS = 32
# More than any candidate has, of a thread: elements of a pixel, and of all pixels.
_MOST_ELEMENTS, _MOST_OUTPUTS = 16, 256
# A factor on the rate of copies, of x and y.
_COPY_RATE = 4.0 / 3.5


def is_depthwise(problem: ConvProblem) -> bool:
    """Tells whether every channel has a filter of its own and gives one channel."""
    return 1 < problem.groups == problem.in_channels == problem.out_channels


def depthwise_refusals(case: Case) -> tuple[Refusal, ...]:
    """Returns why a convolution is not depthwise; nothing where it is."""
    if is_depthwise(case.problem):
        return ()
    return refused("no depthwise convolution: expected groups of one channel each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which pixels of an input an output pixel reads: of x in fprop, of dy in dgrad.

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

    @classmethod
    def of(cls, case: Case) -> Sampling:
        """Returns that of fprop and wgrad over x, or that of dgrad over dy.

        Pixel i of dx reads through tap s the pixel (i + low - s * dilation) / stride of dy; taps
        counted from the end make that (i + s' * dilation - ((S - 1) * dilation - low)) / stride.
        """
        problem = case.problem
        ones, low = (1,) * problem.dims, tuple(low for low, _ in problem.padding)
        x, y = (
            (problem.in_channels, problem.input_size),
            (problem.out_channels, problem.output_size),
        )
        step, up = problem.stride, ones
        is_gradient = case.direction == "dgrad"
        if is_gradient:
            x, y, step, up = y, x, up, step
            low = tuple(
                (taps - 1) * dilation - pad
                for taps, dilation, pad in zip(
                    problem.filter_size, problem.dilation, low, strict=True
                )
            )
        return cls(
            batch=problem.batch,
            in_channels=x[0],
            out_channels=y[0],
            in_size=x[1],
            out_size=y[1],
            taps=problem.filter_size,
            step=step,
            up=up,
            dilation=problem.dilation,
            low=low,
            is_flipped=is_gradient,
        )

    @property
    def dims(self) -> int:
        """Spatial dimensions."""
        return len(self.taps)

    @property
    def class_rows(self) -> tuple[int, ...]:
        """Output rows, ([D, [H]]), of each class of those that read through the same taps."""
        return tuple(
            math.ceil(size / up) for size, up in zip(self.out_size[:-1], self.up, strict=False)
        )

    @property
    def classes(self) -> int:
        """Classes of rows of the output."""
        return math.prod(self.up[:-1])

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.batch * math.prod(self.out_size)

    def positions(self, qw: int) -> int:
        """Returns the positions, of ``qw`` pixels of a row, of one class of rows."""
        return self.batch * math.prod(self.class_rows) * math.ceil(self.out_size[-1] / qw)

    def is_wide(self, pixel_stride: int, qw: int) -> bool:
        """Tells whether offsets in elements may need 64 bits; what is masked counts as well."""
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


def block_refusals(config: Any, unrolled: int, most: int) -> tuple[Refusal, ...]:
    """Returns why a program is too large; its threads have ``unrolled`` of ``most`` elements."""
    found = (
        *power_refusals(config, 1, 4096, "block_p"),
        *power_refusals(config, 1, 1024, "block_c"),
        *power_refusals(config, 1, 32, "num_warps"),
    )
    if found:
        return found
    elements, at_most = config.thread_channels, min(_MOST_ELEMENTS, most // max(unrolled, 1))
    if elements <= at_most:
        return ()
    return refused(
        f"block_p * block_c is {config.block_p * config.block_c}, {elements} elements of each "
        f"thread of {config.num_warps} warps: expected at most {at_most}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseConfig:
    """One way to compile the kernel."""

    qw: int  # neighbouring output pixels of a position
    block_p: int  # positions of a program
    block_c: int  # channels of a program
    num_warps: int = 4  # warps of a program

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return (
            *range_refusals(self, 1, MOST_PIXELS, "qw"),
            *block_refusals(self, self.qw, _MOST_OUTPUTS),
        )

    @property
    def thread_channels(self) -> int:
        """Neighbouring channels of a thread, the elements of its loads and stores."""
        return self.block_p * self.block_c // (32 * self.num_warps)

    def grid(self, sampling: Sampling) -> tuple[int, int, int]:
        """Returns how many programs are launched."""
        blocks = math.ceil(sampling.out_channels / self.block_c)
        positions = math.ceil(sampling.positions(self.qw) / self.block_p)
        return positions * blocks, sampling.classes, 1


class Depthwise(Family[DepthwiseConfig]):
    """fprop.  Its model counts instructions, which no other does: nothing is compared with it."""

    kind = "depthwise"
    direction: ClassVar[Direction] = "fprop"
    config_type = DepthwiseConfig
    supersedes = ("gemm", "direct")

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        found = depthwise_refusals(case)
        if not found and Sampling.of(case).up[-1] > _MAX_UP:
            return refused(f"stride {case.problem.stride[-1]} in W: expected at most {_MAX_UP}")
        return found

    def fit_refusals(
        self, config: DepthwiseConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        up = Sampling.of(case).up[-1]
        if config.qw % up:
            return refused(f"qw is {config.qw}: expected a multiple of the stride, {up}")
        return ()

    def candidates(self, case: Case, device: Device) -> Mapping[DepthwiseConfig, Expected]:
        sampling = Sampling.of(case)
        times = {
            config: Expected.of(_expected_us(config, sampling, device.num_sms))
            for config in _candidates(sampling)
        }
        return ranked(times)

    def bind(
        self, config: DepthwiseConfig, case: Case, device: Device
    ) -> ForwardPlan | InputGradientPlan:
        if case.direction == "fprop":
            return _plan(config, case)
        return InputGradientPlan.of(case.problem, case, partial(_plan, config))


class DepthwiseDgrad(Depthwise):
    """dgrad."""

    direction = "dgrad"


def _candidates(sampling: Sampling) -> list[DepthwiseConfig]:
    up = sampling.up[-1]
    return [
        DepthwiseConfig(
            qw=qw,
            block_p=thread_channels * 32 * num_warps // block_c,
            block_c=block_c,
            num_warps=num_warps,
        )
        for qw in dict.fromkeys(-(-pixels // up) * up for pixels in (1, 2, 4, 7, 8))
        for block_c in (16, 32, 64, 128)
        if block_c == 16 or block_c < 2 * sampling.out_channels
        for thread_channels in (2, 4, 8)
        for num_warps in (4, 8)
    ]


def _expected_us(config: DepthwiseConfig, sampling: Sampling, num_sms: int) -> float:
    """Returns a time for comparisons: instructions, counted in compiled kernels, per scheduler."""
    qw, width, up = config.qw, config.thread_channels, sampling.up[-1]
    taps, lines = sampling.taps[-1], math.prod(sampling.taps[:-1]) / sampling.classes
    columns = ((qw - 1) * sampling.step[-1] + (taps - 1) * sampling.dilation[-1]) // up + 1
    products = qw * taps / up
    # Every element is converted; a load has a mask.  A row of the filter has its address and mask.
    line = products * width + columns * (width + 3.5) + taps * (width + 1) + 16
    # Divisions that find the position; per pixel a conversion, a mask and a store.
    thread = 110 + lines * line + qw * (width + 6)
    programs = math.prod(config.grid(sampling))
    registers = 40 + width * (qw + min(taps, qw) + 2)
    if registers > 255:
        return math.inf
    # Warps that a multiprocessor holds, and as many as hide the latency of loads.
    resident = min(64, 65536 // (32 * registers) // config.num_warps * config.num_warps)
    warps = min(resident, programs * config.num_warps / num_sms)
    waiting = 1 + 16 / max(warps, 1)
    waves = programs * config.num_warps / num_sms / 4
    # Loads of fewer than 128 bytes cost more.
    computing = max(waves, 1.0) * thread * waiting * (1 + 8 / config.block_c) / H200.cycles_per_us
    # The program of the rows below loads rows again, from L2.
    rows = max(1.0, config.block_p * qw / sampling.out_size[-1])
    again = 1.0
    if sampling.dims > 1:
        more = (sampling.taps[-2] - 1) * sampling.dilation[-2] + 1 - sampling.step[-2]
        again += max(0, more) / (rows * sampling.step[-2])
    pixels_in, pixels_out = math.prod(sampling.in_size), math.prod(sampling.out_size)
    moved = 2 * sampling.batch * sampling.out_channels * (again * pixels_in + pixels_out)
    reading = moved / (H200.copy_bytes_per_us * _COPY_RATE)
    # Large programs take longer to begin and to end.
    ends = 1 + config.num_warps / 100
    return (max(computing, reading) + 0.2 * min(computing, reading)) * ends


def _plan(config: DepthwiseConfig, case: Case) -> ForwardPlan:
    """Returns the plan of fprop over x, or of dgrad over dy."""
    sampling = Sampling.of(case)
    if case.direction == "dgrad":
        strides = PixelStrides.make(case.problem.y_shape, case.strides_of_dy)
    else:
        strides = PixelStrides.make(case.problem.x_shape, case.strides_of_x)
    up = sampling.up[-1]
    launcher = Launcher(
        kernel=conv_depthwise_kernel,
        grid=config.grid(sampling),
        scalars=(
            sampling.positions(config.qw),
            *three(sampling.in_size),
            *three(sampling.out_size),
            *three((*sampling.class_rows, 0))[:2],
            math.ceil(sampling.out_size[-1] / config.qw),
            *three((*sampling.low[:-1], sampling.low[-1] // up)),
            *strides.scalars,
        ),
        constants={
            "DIMS": sampling.dims,
            **filter_constants(sampling.taps),
            "C": sampling.out_channels,
            "X_STRIDE_W": strides.pixel,
            **dim_constants(STEP=sampling.step, UP=sampling.up, DILATION=sampling.dilation),
            "PHASE_W": sampling.low[-1] % up,
            "IS_FLIPPED": sampling.is_flipped,
            "IS_WIDE": sampling.is_wide(strides.pixel, config.qw),
            **config_constants(config, "qw", "block_p", "block_c"),
            **output_constants(
                case, ACC_DTYPE=tl.int32 if case.dtype == torch.int8 else tl.float32
            ),
        },
        options={"num_warps": config.num_warps},
    )
    return ForwardPlan.make(case, config, partial(_inputs, strides), launcher)


def _inputs(
    strides: PixelStrides, tensor: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input, and the filter [taps, C]."""
    return strides.rows(tensor), weight.flatten(1).mT.contiguous()


DEPTHWISE = Depthwise()
DEPTHWISE_DGRAD = DepthwiseDgrad()
