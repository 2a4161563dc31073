"""kn2row: fprop to few output channels, as products with all taps that are shifted and added.

``kernels/few_channels.py`` has the kernel.  The columns of its product are S rounded up to a power
of two times Co rounded up to one, 16 at least.
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
    power_refusals,
    range_refusals,
    refuse,
    refused,
    smem_refusals,
)
from triton_ext.ops.families.direct import Sampling
from triton_ext.ops.kernels.few_channels import conv_col2im_kernel

_ELEMENT_BYTES = 2
_MOST_COLUMNS = 64
# A program holds the sums of all rows of the filter.
_MOST_SUMS = 256

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
_WARPS_AT_ONCE = 16
_PREFETCHED = 64
_RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Col2ImConfig:
    """One way to compile and launch the kernel."""

    block_m: int  # pixels of a row of x per step, the halo of the segment included
    rows: int  # output rows of a program, or segments over one dimension
    num_warps: int = 4  # warps per CTA
    # Rows of x in shared memory.  With one, the next is loaded to registers during a step, from
    # three on to shared memory, where Triton 3.9 stores the filter anew for every step.
    num_stages: int = 1

    def refusals(self) -> Refusals:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return (
            *power_refusals(self, 64, 256, "block_m"),
            *range_refusals(self, 1, 1 << 16, "rows"),
            *power_refusals(self, 4, 8, "num_warps"),
            *range_refusals(self, 1, 8, "num_stages"),
        )

    def smem_bytes(self, problem: ConvProblem) -> int:
        """Returns the most shared memory that a CTA takes."""
        channels, columns = _padded_channels(problem), math.prod(_column_shape(problem))
        operands = (
            self.num_stages * self.block_m + math.prod(problem.filter_size[:-1]) * columns
        ) * channels
        # Products change their layout in fp32, as does the tile of y.
        return operands * _ELEMENT_BYTES + 4 * self.block_m * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
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
        # Lengths are even, so that little is read twice.
        segments = math.ceil(out_w / (config.block_m - _halo(problem)))
        segment = math.ceil(out_w / segments)
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
        return cls(
            segment=segment, segments=segments, strips=strips, programs=programs, steps=steps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kn2RowShape:
    """Constants of the kernel that the problem gives."""

    dims: int
    r: int  # taps of the filter
    s: int
    dilation_h: int
    dilation_w: int
    ci: int
    taps: int  # S and Co, rounded up
    channels: int
    vector: int  # elements of a load
    block_k: int  # channels of a product

    @classmethod
    def of(cls, problem: ConvProblem, vector: int) -> Kn2RowShape:
        """Returns the constants, for loads of so many elements."""
        r, s = (1, *problem.filter_size)[-2:]
        dilation_h, dilation_w = (1, *problem.dilation)[-2:]
        taps, channels = _column_shape(problem)
        return cls(
            dims=problem.dims, r=r, s=s, dilation_h=dilation_h, dilation_w=dilation_w,
            ci=problem.in_channels, taps=taps, channels=channels, vector=vector,
            block_k=_block_k(problem),
        )  # fmt: skip

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return self.taps * self.channels


class Kn2Row(Family[Col2ImConfig]):
    """fprop."""

    kind = "col2im"
    direction = "fprop"
    config_type = Col2ImConfig

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if case.dtype not in (torch.float16, torch.bfloat16):
            found.append(f"dtype is {case.dtype}: expected float16 or bfloat16")
        if problem.dims > 2:
            found.append(f"{problem.dims} dimensions: expected 1 or 2")
        if problem.groups != 1:
            found.append(f"groups={problem.groups}: a product would hold channels of other groups")
        if set(problem.stride) != {1}:
            found.append(f"stride {problem.stride}: expected 1, as every pixel meets every tap")
        taps, channels = _column_shape(problem)
        columns, filter_rows = taps * channels, math.prod(problem.filter_size[:-1])
        if columns > _MOST_COLUMNS:
            found.append(
                f"{taps} x {channels} columns, taps of a row and output channels rounded up: "
                f"expected at most {_MOST_COLUMNS}"
            )
        elif filter_rows * columns > _MOST_SUMS:
            found.append(
                f"{filter_rows} rows of the filter of {columns} columns each: expected at most "
                f"{_MOST_SUMS} columns in all"
            )
        every = (*refused(*found), *long_row_refusals(problem))
        if every or vector_of(case) * _ELEMENT_BYTES == ROW_BYTES:
            return every
        text = f"loads of x are not of {ROW_BYTES} bytes, for which alone there is a model"
        return refused(text, in_key=False)

    def fit_refusals(self, config: Col2ImConfig, case: Case, device: Device) -> Refusals:
        halo = _halo(case.problem)
        found = smem_refusals(config.smem_bytes(case.problem), device, reserved_bytes=0)
        if config.block_m <= halo:
            found += refused(
                f"block_m is {config.block_m}: expected more pixels than the {halo} that taps of a "
                "row reach over"
            )
        return found

    def passed_over(self, case: Case, device: Device) -> str:
        return "one tap: there is nothing to shift" if case.problem.taps == 1 else ""

    def candidates(self, case: Case, device: Device) -> Mapping[Col2ImConfig, Expected]:
        """Returns times of bytes, those read twice included, and of steps, the longer of both."""
        problem, times = case.problem, {}
        products = (
            math.prod(problem.filter_size[:-1]) * _padded_channels(problem) // _block_k(problem)
        )
        for config in self._configs(case, device):
            schedule = Schedule.make(config, problem)
            pixels = schedule.programs * schedule.steps * (schedule.segment + _halo(problem))
            elements = pixels * problem.in_channels + math.prod(problem.y_shape)
            bytes_us = elements * _ELEMENT_BYTES / H200.copy_bytes_per_us
            rounds = math.ceil(schedule.programs / _at_once(config, problem, device))
            step_us = _STEP_US + products * config.block_m / 128 * _PRODUCT_US
            if config.num_stages > 1:
                step_us += products * _FILTER_US
            hidden, shown = sorted((bytes_us, rounds * (schedule.steps + 1) * step_us))
            us = H200.launch_us + shown + _NOT_HIDDEN * hidden
            times[config] = Expected.of(us, correction=_CORRECTION)
        return ranked(times)

    def _configs(self, case: Case, device: Device) -> list[Col2ImConfig]:
        """Returns configurations whose programs fill the multiprocessors once or a few times."""
        problem, found = case.problem, {}
        for block_m, num_stages in ((64, 1), (64, 3), (128, 3)):
            one = Col2ImConfig(block_m=block_m, rows=1, num_stages=num_stages)
            thread_elements = block_m * _padded_channels(problem) // (32 * one.num_warps)
            is_large = num_stages == 1 and thread_elements > _PREFETCHED
            if is_large or self.fit_refusals(one, case, device):
                continue
            # Strips are rows here.
            schedule = Schedule.make(one, problem)
            at_once = _at_once(one, problem, device)
            for rounds in (1, 2, 3):
                strips = max(1, rounds * at_once * schedule.strips // schedule.programs)
                config = replace(one, rows=math.ceil(schedule.strips / strips))
                if not config.refusals():
                    found[config] = config
        return list(found)

    def bind(self, config: Col2ImConfig, case: Case, device: Device) -> ForwardPlan:
        wrong = (each for each in self.refusals(case, device, config) if each.in_key)
        refuse(f"{case.operator}: configuration {config}", wrong)
        problem, strides, vector = case.problem, case.strides_of_x, vector_of(case)
        schedule = Schedule.make(config, problem)
        launcher = Launcher(
            kernel=conv_col2im_kernel,
            grid=(schedule.programs, 1, 1),
            scalars=(
                problem.out_channels,
                # Strides are 1, and the dilation is a constant.
                Sampling.of(case).reads(strides)._replace(stride=None, dilation=None),
                schedule.segment,
                schedule.segments,
                schedule.strips,
                config.rows,
            ),
            constants={
                "SHAPE": Kn2RowShape.of(problem, vector),
                "BLOCK_M": config.block_m,
                "FINISH": case.epilogue.finish,
                "PREFETCHES": config.num_stages == 1,
            },
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        return ForwardPlan.make(case, config, partial(vector_inputs, vector), launcher)


def vector_of(case: Case) -> int:
    """Returns how many channels of x are loaded at once: those that are aligned together."""
    problem, strides = case.problem, case.strides_of_x
    sizes = zip((problem.batch, *problem.input_size), (strides[0], *strides[2:]), strict=True)
    outer = [stride for size, stride in sizes if size > 1]
    # An expanded tensor cannot be copied to an aligned address.
    if 0 in outer or (problem.in_channels > 1 and strides[1] != 1):
        return 1
    return math.gcd(ROW_BYTES // _ELEMENT_BYTES, problem.in_channels, *outer)


def _column_shape(problem: ConvProblem) -> tuple[int, int]:
    """Returns taps of a row and output channels, rounded up for 16 columns at least."""
    taps = triton.next_power_of_2(problem.filter_size[-1])
    return taps, max(triton.next_power_of_2(problem.out_channels), 16 // min(taps, 16))


def _at_once(config: Col2ImConfig, problem: ConvProblem, device: Device) -> int:
    """Returns how many programs run at once."""
    fitting = device.smem_bytes // (config.smem_bytes(problem) + _RESERVED_BYTES)
    # Larger tiles take twice the registers.
    warps = _WARPS_AT_ONCE if config.block_m <= 16 * config.num_warps else _WARPS_AT_ONCE // 2
    return device.num_sms * max(1, min(fitting, warps // config.num_warps))


def _halo(problem: ConvProblem) -> int:
    """Returns the pixels of a row that are read beside those of a segment."""
    return (problem.filter_size[-1] - 1) * problem.dilation[-1]


def _block_k(problem: ConvProblem) -> int:
    """Returns the channels of a product, a power of two."""
    return min(64, max(16, triton.next_power_of_2(problem.in_channels)))


def _padded_channels(problem: ConvProblem) -> int:
    return math.ceil(problem.in_channels / _block_k(problem)) * _block_k(problem)


KN2ROW = Kn2Row()
