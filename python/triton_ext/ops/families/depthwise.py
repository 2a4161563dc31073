"""Depthwise convolutions, of one channel in every group: fprop, dgrad as the same over dy, wgrad.

``kernels/depthwise.py`` has the kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import ForwardPlan, three
from triton_ext.ops.core.refusals import Refusals, power_refusals, range_refusals, refused
from triton_ext.ops.families.direct import PixelStrides, Sampling
from triton_ext.ops.families.wgrad import FilterGradientPlan
from triton_ext.ops.kernels.depthwise import (
    DepthwiseShape,
    conv_depthwise_kernel,
    depthwise_reduce_kernel,
    depthwise_wgrad_kernel,
)

# Gradients of larger strides are left to the kernel that looks for each tap's pixel.
_MAX_UP = 8
# Larger numbers of pixels and of wgrad's sums are unrolled into kernels that compile for minutes.
_MOST_PIXELS, _MOST_SUMS = 32, 128
# More than any candidate has, of a thread: elements of a pixel, of all pixels, products of wgrad.
_MOST_ELEMENTS, _MOST_OUTPUTS, _MOST_PRODUCTS = 16, 256, 1024
# Values that a thread of wgrad holds at most, in 168 registers.
_LIVE_REGISTERS = 116
# Shares of the DRAM rate: of x and y; of wgrad's rereads of x and dy, from L2 for the most part; of
# its parts.
_READ_SHARE, _REREAD_SHARE, _PARTS_SHARE = 1.0, 2.0, 0.75
# The kernel that adds the parts: parts of a step, channels of a program.
_PARTS_AT_A_TIME, _REDUCED_CHANNELS = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseConfig:
    """Tile configuration of fprop and dgrad."""

    qw: int  # neighbouring output pixels of a position
    block_p: int  # positions of a program, in wgrad at a time
    block_c: int  # channels of a program
    num_warps: int = 4  # warps of a program

    @property
    def thread_channels(self) -> int:
        """Neighbouring channels of a thread, the elements of its loads and stores."""
        return self.block_p * self.block_c // (32 * self.num_warps)

    def refusals(self, unrolled: int, most: int) -> Refusals:
        """Returns why a program is too large; a thread has ``unrolled`` of ``most`` elements."""
        found = power_refusals(self, block_p=(1, 4096), block_c=(1, 1024), num_warps=(1, 32))
        at_most = min(_MOST_ELEMENTS, most // max(unrolled, 1))
        if not found and self.thread_channels > at_most:
            found = refused(
                f"block_p * block_c is {self.block_p * self.block_c}, {self.thread_channels} "
                f"elements of each thread of {self.num_warps} warps: expected at most {at_most}"
            )
        return range_refusals(self, qw=(1, _MOST_PIXELS)) + found

    def grid(self, sampling: Sampling) -> tuple[int, int, int]:
        """Returns the grid of fprop and dgrad."""
        blocks = math.ceil(sampling.out_channels / self.block_c)
        positions = math.ceil(sampling.positions(self.qw) / self.block_p)
        return positions * blocks, math.prod(sampling.up[:-1]), 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseWgradConfig(DepthwiseConfig):
    """Tile configuration of wgrad, whose positions are of dy."""

    lines: int  # rows of the filter of a program
    taps: int  # taps of each
    max_registers: int = 168  # of a thread: the assembler would load further ahead than that pays

    @property
    def sums(self) -> int:
        """Taps of a program, all unrolled."""
        return self.lines * self.taps

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds at a time; a thread takes all its registers."""
        return max(1, 65536 // (32 * self.num_warps * self.max_registers))

    def chunks(self, sampling: Sampling) -> int:
        """Returns the number of chunks of the filter."""
        lines = math.ceil(math.prod(sampling.taps[:-1]) / self.lines)
        return lines * math.ceil(sampling.taps[-1] / self.taps)

    def parts(self, sampling: Sampling, num_sms: int) -> tuple[int, int]:
        """Returns the number of parts of the positions, and the tiles of BLOCK_P of each.

        All programs run at a time and have about the same work.
        """
        tiles = max(1, math.ceil(sampling.positions(self.qw) / self.block_p))
        others = math.ceil(sampling.out_channels / self.block_c) * self.chunks(sampling)
        wanted = max(1, num_sms * self.resident // others)
        part_tiles = math.ceil(tiles / wanted)
        return math.ceil(tiles / part_tiles), part_tiles


def _channel_blocks(sampling: Sampling) -> list[int]:
    """Returns the channels that programs may have, of which less than half are missing."""
    return [each for each in (16, 32, 64, 128) if each == 16 or each < 2 * sampling.out_channels]


class Depthwise(Family[Any]):
    """Depthwise fprop and dgrad; its model counts instructions, which no other model does."""

    kind = "depthwise"
    direction: Direction = "fprop"
    config_type: ClassVar[type[Any]] = DepthwiseConfig
    supersedes = ("gemm", "direct")

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem = case.problem
        if not 1 < problem.groups == problem.in_channels == problem.out_channels:
            return refused("no depthwise convolution: expected groups of one channel each")
        if Sampling.of(case).up[-1] > _MAX_UP:
            return refused(f"stride {problem.stride[-1]} in W: expected at most {_MAX_UP}")
        return ()

    def number_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        found: Refusals = config.refusals(config.qw, _MOST_OUTPUTS)
        return found

    def fit_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        up = Sampling.of(case).up[-1]
        if config.qw % up == 0:
            return ()
        return refused(f"qw is {config.qw}: expected a multiple of the stride, {up}")

    def candidates(self, case: Case, device: Device) -> Mapping[Any, Expected]:
        sampling, found = Sampling.of(case), {}
        up = sampling.up[-1]
        pixels = dict.fromkeys(-(-count // up) * up for count in (1, 2, 4, 7, 8))
        every = itertools.product(pixels, _channel_blocks(sampling), (2, 4, 8), (4, 8))
        for qw, block_c, width, num_warps in every:
            block_p = width * 32 * num_warps // block_c
            config = DepthwiseConfig(qw=qw, block_p=block_p, block_c=block_c, num_warps=num_warps)
            found[config] = _expected(config, sampling, device.num_sms)
        return ranked(found)

    def bind(self, config: Any, case: Case, device: Device) -> Any:
        sampling = Sampling.of(case)
        up, strides = sampling.up[-1], PixelStrides.make(sampling.shape, sampling.strides)

        def inputs(tensor: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Returns the input, and the filter [taps, C]."""
            return strides.rows(tensor), weight.flatten(1).mT.contiguous()

        launcher = Launcher(
            kernel=conv_depthwise_kernel,
            grid=config.grid(sampling),
            scalars=(
                sampling.positions(config.qw),
                three(sampling.in_size),
                three(sampling.out_size, 1),
                three((*sampling.phase_rows, 0))[:2],
                math.ceil(sampling.out_size[-1] / config.qw),
                three((*sampling.low[:-1], sampling.low[-1] // up)),
                strides.scalars,
            ),
            constants={
                "SHAPE": _shape(sampling, config, sampling.taps[-1], strides.pixel),
                "CONFIG": config,
                "FINISH": case.epilogue.finish,
            },
            options={"num_warps": config.num_warps},
        )
        return ForwardPlan.make(case, config, inputs, launcher)


# Microseconds over a launch without work, of copies of the filter as well, and of wgrad; the rest
# over the count below.  Fitted to 174 configurations (H100, Triton 3.9.0, bf16, 2026-11-27), 10 to
# 15 % of error.
_LAUNCH_US, _WGRAD_LAUNCH_US, _COUNTED = H200.launch_us + 7.0, H200.launch_us + 5.0, 0.7


def _expected(config: DepthwiseConfig, sampling: Sampling, num_sms: int) -> Expected:
    """Returns a time for comparisons: instructions of compiled kernels per scheduler."""
    qw, width, up = config.qw, config.thread_channels, sampling.up[-1]
    taps, lines = sampling.taps[-1], math.prod(sampling.taps[:-1]) / math.prod(sampling.up[:-1])
    columns = ((qw - 1) * sampling.step[-1] + (taps - 1) * sampling.dilation[-1]) // up + 1
    products = qw * taps / up
    # Every element is converted; a load has a mask.  A row of the filter has its address and mask.
    line = products * width + columns * (width + 3.5) + taps * (width + 1) + 16
    # Divisions that find the position; per pixel a conversion, a mask and a store.
    thread = 110 + lines * line + qw * (width + 6)
    programs = math.prod(config.grid(sampling))
    registers = 40 + width * (qw + min(taps, qw) + 2)
    if registers > 255:
        return Expected.of(math.inf)
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
    if len(sampling.taps) > 1:
        more = (sampling.taps[-2] - 1) * sampling.dilation[-2] + 1 - sampling.step[-2]
        again += max(0, more) / (rows * sampling.step[-2])
    pixels_in, pixels_out = math.prod(sampling.in_size), math.prod(sampling.out_size)
    moved = 2 * sampling.batch * sampling.out_channels * (again * pixels_in + pixels_out)
    # Large programs take longer to begin and to end.
    counted = _COUNTED * (1 + config.num_warps / 100)
    busiest_us, dram_us = counted * computing, counted * H200.dram_us(moved, _READ_SHARE)
    work = {"instructions": busiest_us * min(waves, 1.0)}
    return Expected.of_kernel(_LAUNCH_US, busiest_us, work, dram_us, 0.2)


def _shape(
    sampling: Sampling, config: DepthwiseConfig, row_taps: int, *pixel: int
) -> DepthwiseShape:
    """Returns the kernels' constants, for so many elements of a pixel of the input, and of dy."""
    return DepthwiseShape(
        dims=len(sampling.taps),
        filter_size=sampling.taps, row_taps=row_taps, channels=sampling.out_channels,
        pixel=pixel[0], step=three(sampling.step, 1), up=three(sampling.up, 1),
        dilation=three(sampling.dilation, 1), phase=sampling.low[-1] % sampling.up[-1],
        is_flipped=sampling.is_flipped, is_wide=sampling.is_wide(max(pixel), config.qw),
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
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
            launcher.launch(tensors)
        return dw


class DepthwiseWgrad(Depthwise):
    """Depthwise wgrad: parts over pixels, and a kernel that adds them."""

    kind = "depthwise_wgrad"
    direction = "wgrad"
    config_type = DepthwiseWgradConfig
    supersedes = ("wgrad", "gluon_wgrad")

    def number_refusals(self, config: Any, case: Case, device: Device) -> Refusals:
        sums = (1, _MOST_SUMS)
        found = range_refusals(config, lines=sums, taps=sums, sums=sums, max_registers=(24, 255))
        return (*found, *config.refusals(config.qw * config.sums, _MOST_PRODUCTS))

    def candidates(self, case: Case, device: Device) -> Mapping[Any, Expected]:
        sampling = Sampling.of(case)
        all_lines, all_taps = math.prod(sampling.taps[:-1]), sampling.taps[-1]
        found = {}
        for qw, width in itertools.product((1, 2, 4, 5, 6, 7, 8), (1, 2, 4, 8)):
            # Sums take at most 100 registers, and as much of the filter as goes in.
            most = 100 // width
            taps = math.ceil(all_taps / math.ceil(all_taps / most))
            lines = max(1, min(all_lines, most // taps))
            lines = math.ceil(all_lines / math.ceil(all_lines / lines))
            # Sums and dy are live throughout; more of them would be spilled.
            is_spilled = width * (lines * taps + qw) > _LIVE_REGISTERS
            if qw > sampling.out_size[-1] or is_spilled:
                continue
            for block_c in _channel_blocks(sampling):
                if block_c <= width * 128:
                    block_p = width * 128 // block_c
                    config = DepthwiseWgradConfig(
                        qw=qw, lines=lines, taps=taps, block_p=block_p, block_c=block_c
                    )
                    found[config] = _expected_wgrad(config, sampling, device.num_sms)
        return ranked(found)

    def bind(self, config: Any, case: Case, device: Device) -> Any:
        problem, sampling = case.problem, Sampling.of(case)
        x = PixelStrides.make(sampling.shape, sampling.strides)
        dy = PixelStrides.make(problem.y_shape, case.strides_of_dy)
        channels = problem.in_channels
        parts, tiles = config.parts(sampling, device.num_sms)
        launcher = Launcher(
            kernel=depthwise_wgrad_kernel,
            grid=(parts * math.ceil(channels / config.block_c), config.chunks(sampling), 1),
            scalars=(
                sampling.positions(config.qw),
                tiles,
                three(sampling.in_size),
                three(sampling.out_size),
                math.ceil(sampling.out_size[-1] / config.qw),
                three(sampling.low),
                x.scalars,
                dy.scalars,
            ),
            constants={
                "SHAPE": _shape(sampling, config, config.taps, x.pixel, dy.pixel),
                "DY_STRIDE_W": dy.pixel,
                "HAS_TAIL": sampling.out_size[-1] % config.qw != 0,
                "CONFIG": config,
            },
            options={"num_warps": config.num_warps, "maxnreg": config.max_registers},
        )
        reducer = Launcher(
            kernel=depthwise_reduce_kernel,
            grid=(math.ceil(channels / _REDUCED_CHANNELS), problem.taps, 1),
            scalars=(parts,),
            constants={
                "C": channels,
                "TAPS": problem.taps,
                "PARTS_AT_A_TIME": _PARTS_AT_A_TIME,
                "BLOCK_C": _REDUCED_CHANNELS,
            },
            options={"num_warps": 4},
        )
        return DepthwiseWgradPlan(
            problem=problem, config=config, out_dtype=case.output_dtype, parts=parts,
            x_strides=x, dy_strides=dy, launcher=launcher, reducer=reducer,
        )  # fmt: skip


def _expected_wgrad(config: DepthwiseWgradConfig, sampling: Sampling, num_sms: int) -> Expected:
    """Returns a time for comparisons, as :func:`_expected`."""
    qw, width, channels = config.qw, config.thread_channels, sampling.out_channels
    columns = (qw - 1) * sampling.step[-1] + (config.taps - 1) * sampling.dilation[-1] + 1
    products = qw * config.taps * width * (2 if sampling.out_size[-1] % qw else 1)
    tile = 70 + qw * (width + 3.5) + config.lines * (products + columns * (width + 3.5) + 14)
    parts, tiles = config.parts(sampling, num_sms)
    # Sums of BLOCK_P threads go through shared memory, those of parts through memory.
    end = config.sums * (40 + 6 * width)
    programs = parts * math.ceil(channels / config.block_c) * config.chunks(sampling)
    waves = math.ceil(programs / (num_sms * config.resident))
    warps = min(config.resident, math.ceil(programs / num_sms)) * config.num_warps
    instructions = waves * warps / 4 * (tiles * tile + end) * (1 + 6 / warps)
    # The more registers are live, the less is loaded ahead.
    tight = 1 + max(0, width * (config.sums + qw) - 60) / 400
    computing = instructions * (1 + 8 / config.block_c) * tight / H200.cycles_per_us
    # Each chunk of the filter reads x and dy again, from L2 where the parts are synchronous.
    pixels_in, pixels_out = math.prod(sampling.in_size), math.prod(sampling.out_size)
    read = 2 * sampling.batch * channels * (pixels_in + pixels_out) * config.chunks(sampling)
    workspace = 2 * 4 * parts * math.prod(sampling.taps) * channels
    used = programs / (num_sms * waves * min(config.resident, math.ceil(programs / num_sms)))
    busiest_us, l2_us = _COUNTED * computing, _COUNTED * H200.dram_us(read, _REREAD_SHARE)
    work = {"instructions": busiest_us * used}
    time = Expected.of_kernel(_WGRAD_LAUNCH_US, busiest_us, work, l2_us, 0.3, "L2")
    adding_us = H200.launch_us + H200.dram_us(workspace, _PARTS_SHARE)
    return time.plus("split-K", _COUNTED * adding_us)


DEPTHWISE = Depthwise()
DEPTHWISE_DGRAD = Depthwise("dgrad")
DEPTHWISE_WGRAD = DepthwiseWgrad()
