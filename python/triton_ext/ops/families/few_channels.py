"""Few-channel implicit GEMM: fprop over pixels of fewer than 16 bytes, loaded through pointers.

``kernels/few_channels.py`` has the kernel; :class:`Window` says how it reads x.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import ForwardPlan, long_row_refusals, vector_inputs
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import (
    Refusals,
    beyond_keys,
    power_refusals,
    range_refusals,
    refuse,
    refused,
    smem_refusals,
)
from triton_ext.ops.families.direct import Sampling
from triton_ext.ops.kernels.few_channels import conv_gather_kernel

_ELEMENT_BYTES = 2

# A filter of more steps, or of more bytes per CTA, is loaded again for every tile.
_MOST_HELD_STEPS = 8
_MOST_HELD_BYTES = 1 << 16

# Columns of K up to which the model chooses the kernel: filters of 154 and more were slower than
# partial im2col (H200, 2026-11-22; docs/performance.md).  A table may choose it for all.
_MOST_COLUMNS = 64

# A model fitted to 22 runs of 12 layers on an H200 (Triton 3.9.0, fp16, 2026-11-22;
# docs/performance.md), which it misses by 6.5 percent in the root mean square: bytes at a multiple
# of the rate of copies, and per k iteration the latency that tiles wait one after another, a part
# of it for its columns.  A launch took longer than others; eight warps take longer per iteration.
_MORE_LAUNCH_US, _COPY_RATE = 2.6, 5.2 / 3.5
_STEP_US, _COLUMN_US = 0.37, 0.0228
_EIGHT_WARPS = 1.4
# Warps of a multiprocessor, of up to 128 registers a thread.
_WARPS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherConfig:
    """One way to compile and launch the kernel."""

    block_m: int  # output pixels per tile
    block_n: int  # output channels per tile
    block_k: int  # columns of K per step
    num_warps: int = 4  # warps per CTA
    programs_per_sm: int = 4  # CTAs launched per multiprocessor, where there are as many tiles
    # Steps, or tiles of one step, whose loads are in flight during a step; only loads of 4 bytes
    # and more can be.
    loads_ahead: int = 0

    def refusals(self) -> Refusals:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return (
            *power_refusals(self, 16, 256, "block_m", "block_n"),
            *power_refusals(self, 16, 128, "block_k"),
            *power_refusals(self, 4, 8, "num_warps"),
            *range_refusals(self, 1, 64, "programs_per_sm"),
            *range_refusals(self, 0, 4, "loads_ahead"),
        )

    def holds_filter(self, columns: int) -> bool:
        """Tells whether a CTA loads its part of a filter of ``columns`` once."""
        steps = math.ceil(columns / self.block_k)
        held = steps * self.block_k * self.block_n * _ELEMENT_BYTES
        return steps <= _MOST_HELD_STEPS and held <= _MOST_HELD_BYTES

    def smem_bytes(self, columns: int) -> int:
        """Returns the most shared memory that a CTA takes for ``columns`` of K."""
        steps = math.ceil(columns / self.block_k) if self.holds_filter(columns) else 1
        # Every step of a filter that stays has its own buffers, where loads are ahead.
        x_stages = (2 + self.loads_ahead) * (steps if self.loads_ahead else 1)
        w_stages = steps + self.loads_ahead
        operands = self.block_k * (self.block_m * x_stages + self.block_n * w_stages)
        # Accumulators converted to the layout of a residual's loads are fp32.
        return operands * _ELEMENT_BYTES + 4 * self.block_m * self.block_n

    def tiles(self, problem: ConvProblem, num_sms: int) -> tuple[int, int, int]:
        """Returns rows and columns of tiles, and CTAs, a multiple of the columns."""
        rows = math.ceil(problem.geometry.m_gemm / self.block_m)
        columns = math.ceil(problem.out_channels / self.block_n)
        per_column = max(1, num_sms * self.programs_per_sm // columns)
        return rows, columns, columns * min(rows, per_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How the kernel reads the pixels of an output pixel's filter window; in elements."""

    lines: int  # rows of the filter, T * R
    rows: int  # of these in a plane, R
    channels: int  # Ci
    elements: int  # of a row's taps, S * Ci
    pixel: int  # distance of two pixels of a row of x
    vector: int  # elements of a load
    shift: int  # columns in front of a row's first tap
    row: int  # columns of a row, whole vectors

    @classmethod
    def make(cls, case: Case) -> Window:
        """Returns the window of the fewest k iterations, then of the fewest loads."""
        problem, x_strides = case.problem, case.strides_of_x
        ci, width = problem.in_channels, problem.input_size[-1]
        pixel = x_strides[-1] if width > 1 else ci
        sizes = (problem.batch, *problem.input_size[:-1])
        strides = (x_strides[0], *x_strides[2:-1])
        outer = [stride for size, stride in zip(sizes, strides, strict=True) if size > 1]
        common = 1
        # An expanded tensor cannot be copied to an aligned address.
        if pixel == ci and (ci == 1 or x_strides[1] == 1) and 0 not in outer:
            unit = ROW_BYTES // _ELEMENT_BYTES
            common = math.gcd(problem.stride[-1] * ci, width * ci, unit, *outer)
        _, rows, s = (1, 1, *problem.filter_size)[-3:]
        lines, elements = math.prod(problem.filter_size[:-1]), s * ci
        windows = []
        for vector in (1, 2, 4, 8):
            if common % vector == 0:
                shift = -problem.padding[-1][0] * ci % vector
                row = math.ceil((shift + elements) / vector) * vector
                windows.append(cls(
                    lines=lines, rows=rows, channels=ci, elements=elements, pixel=pixel,
                    vector=vector, shift=shift, row=row,
                ))  # fmt: skip
        return min(windows, key=lambda w: (math.ceil(w.columns / 32), w.columns // w.vector))

    @property
    def columns(self) -> int:
        """Columns of K."""
        return self.lines * self.row


class FewChannels(Family[GatherConfig]):
    """fprop.

    Its model was measured, and that of the others expects less than they take (0.87 of it in the
    geometric mean of 13 layers; docs/performance.md), so that no correction is needed.
    """

    kind = "gather"
    direction = "fprop"
    config_type = GatherConfig

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if case.dtype not in (torch.float16, torch.bfloat16):
            found.append(f"dtype is {case.dtype}: expected float16 or bfloat16")
        elif problem.in_channels * _ELEMENT_BYTES >= ROW_BYTES:
            found.append(
                f"{problem.in_channels} channels: from {ROW_BYTES} bytes of channels on, TMA reads "
                "pixels in place"
            )
        if problem.groups != 1:
            found.append(f"groups={problem.groups}: a window would hold channels of other groups")
        if problem.filter_size[-1] > 1 and problem.dilation[-1] != 1:
            found.append(f"dilation {problem.dilation[-1]} in W: taps are not neighbours")
        return (*refused(*found), *long_row_refusals(problem))

    def fit_refusals(self, config: GatherConfig, case: Case, device: Device) -> Refusals:
        # Columns depend on strides.
        smem_bytes = config.smem_bytes(Window.make(case).columns)
        return beyond_keys(smem_refusals(smem_bytes, device, reserved_bytes=0))

    def passed_over(self, case: Case, device: Device) -> str:
        columns = Window.make(case).columns
        if columns <= _MOST_COLUMNS:
            return ""
        return f"{columns} columns of a filter: chosen up to {_MOST_COLUMNS}"

    def candidates(self, case: Case, device: Device) -> Mapping[GatherConfig, Expected]:
        problem, window, num_sms = case.problem, Window.make(case), device.num_sms
        elements = sum(map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape)))
        bytes_us = elements * _ELEMENT_BYTES / (H200.copy_bytes_per_us * _COPY_RATE)
        times = {}
        for config in _candidates(problem, window):
            if self.fit_refusals(config, case, device):
                continue
            rows, columns, programs = config.tiles(problem, num_sms)
            steps = math.ceil(window.columns / config.block_k)
            at_once = min(programs, max(columns, num_sms * (_WARPS_AT_ONCE // config.num_warps)))
            step_us = _STEP_US + _COLUMN_US * config.block_k
            if config.num_warps > 4:
                step_us *= _EIGHT_WARPS
            rounds = math.ceil(rows * columns / at_once)
            us = H200.launch_us + _MORE_LAUNCH_US + bytes_us + rounds * steps * step_us
            times[config] = Expected.of(us)
        return ranked(times)

    def bind(self, config: GatherConfig, case: Case, device: Device) -> ForwardPlan:
        refuse(f"{case.operator}: configuration {config}", self.refusals(case, device, config))
        problem, window, strides = case.problem, Window.make(case), case.strides_of_x
        # Taps and pixels of W are neighbours, which WINDOW says.
        reads = Sampling.of(case).reads(strides)
        reads = reads._replace(dilation=reads.dilation[:2], strides=reads.strides[:2])
        launcher = Launcher(
            kernel=conv_gather_kernel,
            grid=(config.tiles(problem, device.num_sms)[2], 1, 1),
            scalars=(problem.geometry.m_gemm, problem.out_channels, reads),
            constants={
                "DIMS": problem.dims,
                "WINDOW": window,
                "CONFIG": config,
                "FINISH": case.epilogue.finish,
            },
            options={"num_warps": config.num_warps, "num_stages": config.loads_ahead + 1},
        )
        return ForwardPlan.make(case, config, partial(vector_inputs, window.vector), launcher)


def _candidates(problem: ConvProblem, window: Window) -> list[GatherConfig]:
    """Returns tiles for the channels and the columns; wide ones get more warps, fewer registers."""
    block_k = _power(window.columns, 64)
    if window.columns > 64 and window.columns % 64:
        block_k = 32
    steps = math.ceil(window.columns / block_k)
    widest = _power(problem.out_channels, 128)
    first = GatherConfig(block_m=128, block_n=widest, block_k=block_k)
    found = []
    for block_n in dict.fromkeys((widest, max(16, widest // 2))):
        for block_m in (128, 64):
            is_large = block_m * max(block_n, 2 * block_k) > 128 * 64
            num_warps = 8 if block_m == 128 and (is_large or steps > 1) else 4
            fields = {"block_m": block_m, "block_n": block_n, "num_warps": num_warps}
            found.append(replace(first, **fields, programs_per_sm=_WARPS_AT_ONCE // num_warps))
    first = found[0]
    if window.vector > 1 and steps == 1:
        found.append(replace(first, loads_ahead=2))
    # Many short CTAs instead of few long ones.
    found.append(replace(first, programs_per_sm=4 * first.programs_per_sm))
    return found


def _power(count: int, most: int) -> int:
    """Returns the power of two from 16 on that holds a count, at most ``most``."""
    return min(most, max(16, triton.next_power_of_2(count)))


FEW_CHANNELS = FewChannels()
