"""fprop over few channels of x, and to few channels of y: ``kernels/few_channels.py``.

Few-channel implicit GEMM: pixels of fewer than 16 bytes are loaded through pointers;
:class:`Window` says how.

kn2row: products with all taps at once, which are shifted and added.  The columns of the product are
S rounded up to a power of two times Co rounded up to one, 16 at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import triton

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ELEMENT_BYTES, ROW_BYTES
from triton_ext.ops.core.device import H200, RESERVED_BYTES, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import ForwardPlan, long_row_refusals, vector_inputs
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import (
    Refusals,
    beyond_keys,
    power_refusals,
    range_refusals,
    refused,
    smem_refusals,
)
from triton_ext.ops.families.direct import Sampling
from triton_ext.ops.kernels.few_channels import conv_col2im_kernel, conv_gather_kernel

_VECTOR = ROW_BYTES // ELEMENT_BYTES  # elements of the longest load

# A filter of more steps, or of more bytes per CTA, is loaded again for every tile.
_MOST_HELD_STEPS, _MOST_HELD_BYTES = 8, 1 << 16

# Columns of K up to which the model chooses the implicit GEMM: filters of 154 and more were slower
# than partial im2col (H200, 2026-11-22; docs/performance.md).  A table may choose it for all.
_MOST_K = 64
# kn2row: columns of a product, and sums, of all rows of the filter, that a program holds.
_MOST_COLUMNS, _MOST_SUMS = 64, 256

# A model fitted to 22 runs of 12 layers on an H200 (Triton 3.9.0, fp16, 2026-11-22;
# docs/performance.md), which it misses by 6.5 percent in the root mean square: bytes at a multiple
# of the DRAM rate, and per k iteration the latency that tiles wait one after another, a part of it
# for its columns.  Eight warps take longer per iteration.
_LAUNCH_US, _DRAM_SHARE = H200.launch_us + 2.6, 1.3
_GATHER_US, _COLUMN_US = 0.37, 0.0228
_EIGHT_WARPS = 1.4

# A model that was not fitted: per step of a program, the latency of barriers, shuffles and
# stores, and per product and per filter that it stores, which are sequential.
_STEP_US, _PRODUCT_US, _FILTER_US = 0.8, 0.06, 0.05
# The fraction of the shorter of both, steps and bytes, that the other does not hide.
_NOT_HIDDEN = 0.2
# Its times count twice: the model was measured on two layers only (H200, 2026-11-24), which take
# 0.91 and 1.14 of what it expects.
_CORRECTION = 2.0
# Warps of a multiprocessor, of up to 128 registers a thread; and elements of a row that a thread
# can hold in these beside all else.
_WARPS_AT_ONCE, _PREFETCHED = 16, 64


def _power(count: int, most: int) -> int:
    """Returns the power of two from 16 on that holds a count, at most ``most``."""
    return min(most, max(16, triton.next_power_of_2(count)))


def _case_refusals(case: Case, found: list[str]) -> Refusals:
    """Returns refusals: of the texts, of the dtype and of long rows."""
    if case.dtype not in (torch.float16, torch.bfloat16):
        found = [f"dtype is {case.dtype}: expected float16 or bfloat16", *found]
    return (*refused(*found), *long_row_refusals(case.problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherConfig:
    """Tile configuration of the few-channel implicit GEMM."""

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
        tile = {"block_m": (16, 256), "block_n": (16, 256), "block_k": (16, 128)}
        found = power_refusals(self, **tile, num_warps=(4, 8))
        return found + range_refusals(self, programs_per_sm=(1, 64), loads_ahead=(0, 4))

    def holds_filter(self, columns: int) -> bool:
        """Tells whether a CTA loads its part of a filter of ``columns`` once."""
        steps = math.ceil(columns / self.block_k)
        held = steps * self.block_k * self.block_n * ELEMENT_BYTES
        return steps <= _MOST_HELD_STEPS and held <= _MOST_HELD_BYTES

    def smem_bytes(self, columns: int) -> int:
        """Returns the most shared memory that a CTA takes for ``columns`` of K."""
        steps = math.ceil(columns / self.block_k) if self.holds_filter(columns) else 1
        # Every step of a filter that stays has its own buffers, where loads are ahead.
        x_stages = (2 + self.loads_ahead) * (steps if self.loads_ahead else 1)
        w_stages = steps + self.loads_ahead
        operands = self.block_k * (self.block_m * x_stages + self.block_n * w_stages)
        # Accumulators converted to the layout of a residual's loads are fp32.
        return operands * ELEMENT_BYTES + 4 * self.block_m * self.block_n

    def tiles(self, problem: ConvProblem, num_sms: int) -> tuple[int, int, int]:
        """Returns rows and columns of tiles, and CTAs, a multiple of the columns."""
        rows = math.ceil(problem.geometry.m_gemm / self.block_m)
        columns = math.ceil(problem.out_channels / self.block_n)
        return rows, columns, columns * min(rows, max(1, num_sms * self.programs_per_sm // columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The columns of K that an output pixel's filter window makes; in elements."""

    dims: int  # spatial dimensions
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
            common = math.gcd(problem.stride[-1] * ci, width * ci, _VECTOR, *outer)
        _, rows, s = (1, 1, *problem.filter_size)[-3:]
        lines, elements = math.prod(problem.filter_size[:-1]), s * ci
        windows = []
        for vector in (1, 2, 4, 8):
            if common % vector == 0:
                shift = -problem.padding[-1][0] * ci % vector
                row = math.ceil((shift + elements) / vector) * vector
                windows.append(cls(
                    dims=problem.dims, lines=lines, rows=rows, channels=ci, elements=elements,
                    pixel=pixel, vector=vector, shift=shift, row=row,
                ))  # fmt: skip
        return min(windows, key=lambda w: (math.ceil(w.columns / 32), w.columns // w.vector))

    @property
    def columns(self) -> int:
        """Columns of K."""
        return self.lines * self.row


class FewChannels(Family[GatherConfig]):
    """fprop over few input channels, as an implicit GEMM through pointers.

    Its model needs no correction, though models of other families expect less than those take
    (0.87 of it in the geometric mean of 13 layers; docs/performance.md).
    """

    kind = "gather"
    direction = "fprop"
    config_type = GatherConfig

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if problem.in_channels * case.dtype.itemsize >= ROW_BYTES:
            found.append(
                f"{problem.in_channels} channels: from {ROW_BYTES} bytes of channels on, TMA reads "
                "pixels in place"
            )
        if problem.groups != 1:
            found.append(f"groups={problem.groups}: a window would hold channels of other groups")
        if problem.filter_size[-1] > 1 and problem.dilation[-1] != 1:
            found.append(f"dilation {problem.dilation[-1]} in W: taps are not neighbours")
        return _case_refusals(case, found)

    def fit_refusals(self, config: GatherConfig, case: Case, device: Device) -> Refusals:
        # Columns depend on strides.
        smem_bytes = config.smem_bytes(Window.make(case).columns)
        return beyond_keys(smem_refusals(smem_bytes, device, reserved_bytes=0))

    def passed_over(self, case: Case, device: Device) -> str:
        columns = Window.make(case).columns
        text = f"{columns} columns of a filter: chosen up to {_MOST_K}"
        return "" if columns <= _MOST_K else text

    def candidates(self, case: Case, device: Device) -> Mapping[GatherConfig, Expected]:
        problem, window, num_sms = case.problem, Window.make(case), device.num_sms
        elements = sum(map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape)))
        bytes_us = H200.dram_us(elements * ELEMENT_BYTES, _DRAM_SHARE)
        times = {}
        for config in _tiles(problem, window):
            rows, columns, programs = config.tiles(problem, num_sms)
            at_once = min(programs, max(columns, num_sms * (_WARPS_AT_ONCE // config.num_warps)))
            step_us = _GATHER_US + _COLUMN_US * config.block_k
            step_us *= _EIGHT_WARPS if config.num_warps > 4 else 1.0
            step_us *= math.ceil(window.columns / config.block_k)  # of a tile
            rounds = rows * columns / at_once
            busiest_us, work = math.ceil(rounds) * step_us, {"k iterations": rounds * step_us}
            if not self.fit_refusals(config, case, device):
                times[config] = Expected.of_kernel(_LAUNCH_US, busiest_us, work, bytes_us, 1.0)
        return ranked(times)

    def bind(self, config: GatherConfig, case: Case, device: Device) -> ForwardPlan:
        problem, window, strides = case.problem, Window.make(case), case.strides_of_x
        # Taps and pixels of W are neighbours, which WINDOW says.
        reads = Sampling.of(case).reads(strides)
        reads = reads._replace(dilation=reads.dilation[:2], strides=reads.strides[:2])
        launcher = Launcher(
            kernel=conv_gather_kernel,
            grid=(config.tiles(problem, device.num_sms)[2], 1, 1),
            scalars=(problem.geometry.m_gemm, problem.out_channels, reads),
            constants={
                "WINDOW": window,
                "CONFIG": config,
                "FINISH": case.epilogue.finish,
            },
            options={"num_warps": config.num_warps, "num_stages": config.loads_ahead + 1},
        )
        return ForwardPlan.make(case, config, partial(vector_inputs, window.vector), launcher)


def _tiles(problem: ConvProblem, window: Window) -> list[GatherConfig]:
    """Returns tiles for the channels and the columns; wide ones get more warps, fewer registers."""
    is_uneven = window.columns > 64 and window.columns % 64
    block_k = 32 if is_uneven else _power(window.columns, 64)
    steps = math.ceil(window.columns / block_k)
    widest = _power(problem.out_channels, 128)
    found = []
    for block_n in dict.fromkeys((widest, max(16, widest // 2))):
        for block_m in (128, 64):
            is_large = block_m * max(block_n, 2 * block_k) > 128 * 64
            num_warps = 8 if block_m == 128 and (is_large or steps > 1) else 4
            config = GatherConfig(
                block_m=block_m, block_n=block_n, block_k=block_k,
                num_warps=num_warps, programs_per_sm=_WARPS_AT_ONCE // num_warps,
            )  # fmt: skip
            found.append(config)
    first = found[0]
    if window.vector > 1 and steps == 1:
        found.append(replace(first, loads_ahead=2))
    # Many short CTAs instead of few long ones.
    return [*found, replace(first, programs_per_sm=4 * first.programs_per_sm)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kn2RowShape:
    """Constants of the kernel that the problem gives."""

    dims: int
    r: int  # taps of the filter
    s: int
    dilation_h: int
    dilation_w: int
    ci: int
    taps: int  # S and Co, rounded up for 16 columns at least
    channels: int
    block_k: int  # channels of a product

    @classmethod
    def of(cls, case: Case) -> Kn2RowShape:
        """Returns the constants of a case."""
        problem, ci = case.problem, case.problem.in_channels
        r, s = (1, *problem.filter_size)[-2:]
        dilation_h, dilation_w = (1, *problem.dilation)[-2:]
        taps = triton.next_power_of_2(s)
        channels = max(triton.next_power_of_2(problem.out_channels), 16 // min(taps, 16))
        return cls(
            dims=problem.dims, r=r, s=s, dilation_h=dilation_h, dilation_w=dilation_w, ci=ci,
            taps=taps, channels=channels, block_k=_power(ci, 64),
        )  # fmt: skip

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return self.taps * self.channels

    @property
    def steps(self) -> int:
        """Products per row of the filter."""
        return math.ceil(self.ci / self.block_k)

    @property
    def padded_ci(self) -> int:
        """Channels of all products."""
        return self.steps * self.block_k

    @property
    def halo(self) -> int:
        """Pixels of a row that are read beside those of a segment."""
        return (self.s - 1) * self.dilation_w


@dataclass(frozen=True, slots=True, kw_only=True)
class Col2ImConfig:
    """Tile configuration of kn2row."""

    block_m: int  # pixels of a row of x per step, the halo of the segment included
    rows: int  # output rows of a program, or segments over one dimension
    num_warps: int = 4  # warps per CTA
    # Rows of x in shared memory.  With one, the next is loaded to registers during a step, from
    # three on to shared memory, where Triton 3.9 stores the filter anew for every step.
    num_stages: int = 1

    def refusals(self) -> Refusals:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        found = power_refusals(self, block_m=(64, 256), num_warps=(4, 8))
        return found + range_refusals(self, rows=(1, 1 << 16), num_stages=(1, 8))

    def smem_bytes(self, shape: Kn2RowShape) -> int:
        """Returns the most shared memory that a CTA takes."""
        rows = self.num_stages * self.block_m + shape.r * shape.columns
        # Products change their layout in fp32, as does the tile of y.
        return rows * shape.padded_ci * ELEMENT_BYTES + 4 * self.block_m * shape.columns


class Schedule(NamedTuple):
    """Which program computes which rows and segments.

    A program computes ``rows`` output rows of a segment of the width, top to bottom, and reads
    R - 1 rows more; over one dimension it computes ``rows`` segments.
    """

    segment: int  # output pixels of a row that a program computes at once
    segments: int  # of a row
    strips: int  # of an image's rows, per residue of the dilation; in 1-D, of its segments
    programs: int  # CTAs of a launch
    steps: int  # of a program at most

    @classmethod
    def make(cls, config: Col2ImConfig, problem: ConvProblem) -> Schedule:
        """Returns the schedule of a configuration whose block holds the taps of a row."""
        out_w = problem.output_size[-1]
        halo = (problem.filter_size[-1] - 1) * problem.dilation[-1]
        # Lengths are even, so that little is read twice.
        segment = math.ceil(out_w / math.ceil(out_w / (config.block_m - halo)))
        segments = math.ceil(out_w / segment)
        if problem.dims == 1:
            strips = math.ceil(segments / config.rows)
            programs, steps = problem.batch * strips, min(config.rows, segments)
        else:
            dilation = problem.dilation[0]
            residue_rows = math.ceil(problem.output_size[0] / dilation)
            strips = math.ceil(residue_rows / config.rows)
            programs = problem.batch * dilation * strips * segments
            steps = min(config.rows, residue_rows) + problem.filter_size[0] - 1
        return cls(segment, segments, strips, programs, steps)


class Kn2Row(Family[Col2ImConfig]):
    """fprop to few output channels by kn2row."""

    kind = "col2im"
    direction = "fprop"
    config_type = Col2ImConfig
    has_stages = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if problem.dims > 2:
            found.append(f"{problem.dims} dimensions: expected 1 or 2")
        if problem.groups != 1:
            found.append(f"groups={problem.groups}: a product would hold channels of other groups")
        if set(problem.stride) != {1}:
            found.append(f"stride {problem.stride}: expected 1, as every pixel meets every tap")
        shape, filter_rows = Kn2RowShape.of(case), math.prod(problem.filter_size[:-1])
        if shape.columns > _MOST_COLUMNS:
            found.append(
                f"{shape.taps} x {shape.channels} columns, taps of a row and output channels "
                f"rounded up: expected at most {_MOST_COLUMNS}"
            )
        elif filter_rows * shape.columns > _MOST_SUMS:
            found.append(
                f"{filter_rows} rows of the filter of {shape.columns} columns each: expected at "
                f"most {_MOST_SUMS} columns in all"
            )
        every = _case_refusals(case, found)
        return (
            every
            if every or _are_pixels_aligned(case)
            else refused(
                f"pixels of x are not on boundaries of {ROW_BYTES} bytes, the length of a load",
                in_key=False,
            )
        )

    def fit_refusals(self, config: Col2ImConfig, case: Case, device: Device) -> Refusals:
        shape = Kn2RowShape.of(case)
        found = smem_refusals(config.smem_bytes(shape), device, reserved_bytes=0)
        if config.block_m > shape.halo:
            return found
        reached = f"expected more pixels than the {shape.halo} that taps of a row reach over"
        return found + refused(f"block_m is {config.block_m}: {reached}")

    def passed_over(self, case: Case, device: Device) -> str:
        return "one tap: there is nothing to shift" if case.problem.taps == 1 else ""

    def candidates(self, case: Case, device: Device) -> Mapping[Col2ImConfig, Expected]:
        """Returns the longer of the times of bytes, halos included, and of steps."""
        problem, shape, times = case.problem, Kn2RowShape.of(case), {}
        products = shape.r * shape.steps
        for config in self._configs(case, device):
            schedule = Schedule.make(config, problem)
            steps = schedule.programs * schedule.steps
            elements = steps * (schedule.segment + shape.halo) * shape.ci
            elements += math.prod(problem.y_shape)
            bytes_us = H200.dram_us(elements * ELEMENT_BYTES)
            rounds = schedule.programs / _at_once(config, shape, device)
            step_us = _STEP_US + products * config.block_m / 128 * _PRODUCT_US
            if config.num_stages > 1:
                step_us += products * _FILTER_US
            step_us *= schedule.steps + 1  # of a program
            busiest_us, work = math.ceil(rounds) * step_us, {"k iterations": rounds * step_us}
            time = Expected.of_kernel(H200.launch_us, busiest_us, work, bytes_us, _NOT_HIDDEN)
            times[config] = time.corrected(_CORRECTION)
        return ranked(times)

    def _configs(self, case: Case, device: Device) -> list[Col2ImConfig]:
        """Returns configurations whose programs fill the multiprocessors once or a few times."""
        problem, shape, found = case.problem, Kn2RowShape.of(case), {}
        for block_m, num_stages in ((64, 1), (64, 3), (128, 3)):
            one = Col2ImConfig(block_m=block_m, rows=1, num_stages=num_stages)
            thread_elements = block_m * shape.padded_ci // (32 * one.num_warps)
            is_large = num_stages == 1 and thread_elements > _PREFETCHED
            if is_large or self.fit_refusals(one, case, device):
                continue
            schedule, at_once = Schedule.make(one, problem), _at_once(one, shape, device)
            for rounds in (1, 2, 3):
                # Strips are rows here.
                strips = max(1, rounds * at_once * schedule.strips // schedule.programs)
                config = replace(one, rows=math.ceil(schedule.strips / strips))
                if not config.refusals():
                    found[config] = config
        return list(found)

    def bind(self, config: Col2ImConfig, case: Case, device: Device) -> ForwardPlan:
        problem, shape = case.problem, Kn2RowShape.of(case)
        schedule = Schedule.make(config, problem)
        launcher = Launcher(
            kernel=conv_col2im_kernel,
            grid=(schedule.programs, 1, 1),
            scalars=(
                problem.out_channels,
                # Strides are 1, and the dilation is a constant.
                Sampling.of(case).reads(case.strides_of_x)._replace(stride=None, dilation=None),
                *schedule[:3],
                config.rows,
            ),
            constants={
                "SHAPE": shape,
                "BLOCK_M": config.block_m,
                "FINISH": case.epilogue.finish,
                "PREFETCHES": config.num_stages == 1,
            },
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        return ForwardPlan.make(case, config, partial(vector_inputs, _VECTOR), launcher)


def _are_pixels_aligned(case: Case) -> bool:
    """Tells whether the distances of x's pixels, dense in themselves, are multiples of a load."""
    problem, strides = case.problem, case.strides_of_x
    sizes = zip((problem.batch, *problem.input_size), (strides[0], *strides[2:]), strict=True)
    outer, ci = [stride for size, stride in sizes if size > 1], problem.in_channels
    # An expanded tensor cannot be copied to an aligned address.
    is_dense = 0 not in outer and (ci == 1 or strides[1] == 1)
    return is_dense and math.gcd(ci, *outer) % _VECTOR == 0


def _at_once(config: Col2ImConfig, shape: Kn2RowShape, device: Device) -> int:
    """Returns how many programs run at once."""
    fitting = device.smem_bytes // (config.smem_bytes(shape) + RESERVED_BYTES)
    # Larger tiles take twice the registers.
    warps = _WARPS_AT_ONCE if config.block_m <= 16 * config.num_warps else _WARPS_AT_ONCE // 2
    return device.num_sms * max(1, min(fitting, warps // config.num_warps))


FEW_CHANNELS = FewChannels()
KN2ROW = Kn2Row()
