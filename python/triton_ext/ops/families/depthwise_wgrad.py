"""Gradients of depthwise filters: wgrad of groups of one channel.

``kernels/depthwise_wgrad.py`` has the kernels, ``depthwise.py`` the families of fprop and dgrad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import (
    TRITON_DTYPES,
    config_constants,
    dim_constants,
    filter_constants,
    three,
)
from triton_ext.ops.core.refusals import Refusal, range_refusals
from triton_ext.ops.families.depthwise import (
    MOST_PIXELS,
    PixelStrides,
    Sampling,
    block_refusals,
    depthwise_refusals,
)
from triton_ext.ops.families.wgrad import FilterGradientPlan
from triton_ext.ops.kernels.depthwise_wgrad import depthwise_reduce_kernel, depthwise_wgrad_kernel

__all__ = ["DEPTHWISE_WGRAD", "DepthwiseWgradConfig", "DepthwiseWgradPlan"]

# A thread holds so many values at most, in 168 registers.
_LIVE_REGISTERS = 116
# Larger numbers are unrolled into kernels that compile for minutes; more products of a thread than
# any candidate has.
_MOST_SUMS, _MOST_PRODUCTS = 128, 1024
# Factors on the rate of copies: rereads of x and dy, from L2 for the most part; the parts.
_REREAD_RATE, _PARTS_RATE = 8.0 / 3.5, 3.0 / 3.5
# The kernel that adds the parts: parts of a step, channels of a program.
_PARTS_AT_A_TIME, _REDUCED_CHANNELS = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseWgradConfig:
    """One way to compile the kernel."""

    qw: int  # neighbouring pixels of dy of a position
    lines: int  # rows of the filter of a program
    taps: int  # taps of each
    block_p: int  # positions of a program at a time
    block_c: int  # channels of a program
    num_warps: int = 4  # warps of a program
    max_registers: int = 168  # of a thread: the assembler would load further ahead than that pays

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return (
            *range_refusals(self, 1, MOST_PIXELS, "qw"),
            *range_refusals(self, 1, _MOST_SUMS, "lines", "taps", "sums"),
            *range_refusals(self, 24, 255, "max_registers"),
            *block_refusals(self, self.qw * self.sums, _MOST_PRODUCTS),
        )

    @property
    def sums(self) -> int:
        """Taps of a program, all unrolled."""
        return self.lines * self.taps

    @property
    def thread_channels(self) -> int:
        """Neighbouring channels of a thread."""
        return self.block_p * self.block_c // (32 * self.num_warps)

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds at a time; a thread takes all its registers."""
        return max(1, 65536 // (32 * self.num_warps * self.max_registers))

    def chunks(self, sampling: Sampling) -> int:
        """Returns into how many chunks the filter is divided."""
        lines = math.ceil(math.prod(sampling.taps[:-1]) / self.lines)
        return lines * math.ceil(sampling.taps[-1] / self.taps)

    def parts(self, sampling: Sampling, num_sms: int) -> tuple[int, int]:
        """Returns into how many parts the positions are split, and tiles of BLOCK_P in each.

        As many programs as run at a time: each has about the same work.
        """
        tiles = max(1, math.ceil(sampling.positions(self.qw) / self.block_p))
        others = math.ceil(sampling.out_channels / self.block_c) * self.chunks(sampling)
        wanted = max(1, num_sms * self.resident // others)
        part_tiles = math.ceil(tiles / wanted)
        return math.ceil(tiles / part_tiles), part_tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseWgradPlan(FilterGradientPlan):
    """A gradient of depthwise filters."""

    config: DepthwiseWgradConfig
    parts: int  # into how many parts the positions are split
    x_strides: PixelStrides
    dy_strides: PixelStrides
    launcher: Launcher  # computes the parts
    reducer: Launcher  # adds them

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        dw = self._memory(x.device, out)
        if self.problem.batch == 0:
            return dw.zero_()
        shape = (self.parts, self.problem.taps, self.problem.in_channels)
        parts = torch.empty(shape, device=x.device, dtype=torch.float32)
        operands = (self.x_strides.rows(x), self.dy_strides.rows(dy), parts)
        reduced = (parts, dw.movedim(-1, 1))
        for launcher, tensors in ((self.launcher, operands), (self.reducer, reduced)):
            launcher.launch(tensors, tuple(t.data_ptr() % ROW_BYTES == 0 for t in tensors))
        return dw


class DepthwiseWgrad(Family[DepthwiseWgradConfig]):
    """wgrad."""

    kind = "depthwise_wgrad"
    direction = "wgrad"
    config_type = DepthwiseWgradConfig
    supersedes = ("wgrad", "gluon_wgrad")

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        return depthwise_refusals(case)

    def candidates(self, case: Case, device: Device) -> Mapping[DepthwiseWgradConfig, Expected]:
        sampling = Sampling.of(case)
        times = {
            config: Expected.of(_expected_us(config, sampling, device.num_sms))
            for config in _candidates(sampling)
        }
        return ranked(times)

    def bind(self, config: DepthwiseWgradConfig, case: Case, device: Device) -> DepthwiseWgradPlan:
        problem, sampling = case.problem, Sampling.of(case)
        x = PixelStrides.make(problem.x_shape, case.strides_of_x)
        dy = PixelStrides.make(problem.y_shape, case.strides_of_dy)
        channels = problem.in_channels
        parts, tiles = config.parts(sampling, device.num_sms)
        return DepthwiseWgradPlan(
            problem=problem,
            config=config,
            out_dtype=case.output_dtype,
            parts=parts,
            x_strides=x,
            dy_strides=dy,
            launcher=Launcher(
                kernel=depthwise_wgrad_kernel,
                grid=(parts * math.ceil(channels / config.block_c), config.chunks(sampling), 1),
                scalars=(
                    sampling.positions(config.qw),
                    tiles,
                    *three(sampling.in_size),
                    *three(sampling.out_size),
                    math.ceil(sampling.out_size[-1] / config.qw),
                    *three(sampling.low),
                    *x.scalars,
                    *dy.scalars,
                ),
                constants={
                    "DIMS": problem.dims,
                    **filter_constants(problem.filter_size),
                    "C": channels,
                    "X_STRIDE_W": x.pixel,
                    "DY_STRIDE_W": dy.pixel,
                    **dim_constants(STRIDE=problem.stride, DILATION=problem.dilation),
                    "IS_WIDE": sampling.is_wide(max(x.pixel, dy.pixel), config.qw),
                    "HAS_TAIL": sampling.out_size[-1] % config.qw != 0,
                    **config_constants(config, "qw", "lines", "taps", "block_p", "block_c"),
                },
                options={"num_warps": config.num_warps, "maxnreg": config.max_registers},
            ),
            reducer=Launcher(
                kernel=depthwise_reduce_kernel,
                grid=(math.ceil(channels / _REDUCED_CHANNELS), problem.taps, 1),
                scalars=(parts,),
                constants={
                    "C": channels,
                    "TAPS": problem.taps,
                    "PARTS_AT_A_TIME": _PARTS_AT_A_TIME,
                    "BLOCK_C": _REDUCED_CHANNELS,
                    "DTYPE": TRITON_DTYPES[case.output_dtype],
                },
                options={"num_warps": 4},
            ),
        )


def _candidates(sampling: Sampling) -> list[DepthwiseWgradConfig]:
    all_lines, all_taps = math.prod(sampling.taps[:-1]), sampling.taps[-1]
    found = []
    for qw in (1, 2, 4, 5, 6, 7, 8):
        if qw > sampling.out_size[-1]:
            continue
        for thread_channels in (1, 2, 4, 8):
            # Sums take at most 100 registers, and as much of the filter as goes in.
            most = 100 // thread_channels
            taps = math.ceil(all_taps / math.ceil(all_taps / most))
            lines = max(1, min(all_lines, most // taps))
            lines = math.ceil(all_lines / math.ceil(all_lines / lines))
            # Sums and dy are live throughout; more of them would be spilled.
            if thread_channels * (lines * taps + qw) > _LIVE_REGISTERS:
                continue
            found += [
                DepthwiseWgradConfig(
                    qw=qw,
                    lines=lines,
                    taps=taps,
                    block_p=thread_channels * 128 // block_c,
                    block_c=block_c,
                )
                for block_c in (16, 32, 64, 128)
                if block_c <= thread_channels * 128
                and (block_c == 16 or block_c < 2 * sampling.out_channels)
            ]
    return found


def _expected_us(config: DepthwiseWgradConfig, sampling: Sampling, num_sms: int) -> float:
    """Returns a time for comparisons: instructions, counted in compiled kernels, per scheduler."""
    qw, width, channels = config.qw, config.thread_channels, sampling.out_channels
    columns = (qw - 1) * sampling.step[-1] + (config.taps - 1) * sampling.dilation[-1] + 1
    products = qw * config.taps * width * (2 if sampling.out_size[-1] % qw else 1)
    tile = 70 + qw * (width + 3.5) + config.lines * (products + columns * (width + 3.5) + 14)
    parts, tiles = config.parts(sampling, num_sms)
    # Sums of BLOCK_P threads go through shared memory, those of parts through memory.
    end = config.lines * config.taps * (40 + 6 * width)
    programs = parts * math.ceil(channels / config.block_c) * config.chunks(sampling)
    waves = math.ceil(programs / (num_sms * config.resident))
    warps = min(config.resident, math.ceil(programs / num_sms)) * config.num_warps
    instructions = waves * warps / 4 * (tiles * tile + end) * (1 + 6 / warps)
    # The more registers are live, the less is loaded ahead.
    live = width * (config.lines * config.taps + qw)
    tight = 1 + max(0, live - 60) / 400
    computing = instructions * (1 + 8 / config.block_c) * tight / H200.cycles_per_us
    # Each chunk of the filter reads x and dy again, from L2 where the parts are synchronous.
    pixels_in, pixels_out = math.prod(sampling.in_size), math.prod(sampling.out_size)
    read = 2 * sampling.batch * channels * (pixels_in + pixels_out) * config.chunks(sampling)
    workspace = 2 * 4 * parts * math.prod(sampling.taps) * channels
    reading = read / (H200.copy_bytes_per_us * _REREAD_RATE)
    return (
        max(computing, reading)
        + 0.3 * min(computing, reading)
        + H200.launch_us
        + workspace / (H200.copy_bytes_per_us * _PARTS_RATE)
    )


DEPTHWISE_WGRAD = DepthwiseWgrad()
