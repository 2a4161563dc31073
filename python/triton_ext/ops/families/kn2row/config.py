"""How few output channels are computed by shifted products: which tiles fit, what they should take.

``kernels/kn2row.py`` multiplies every pixel of x by all taps of a row of the filter at once.  Pure
arithmetic: no tensors, no GPU.

The columns of a product are S rounded up to a power of two times Co rounded up to one, 16 at least.
A program walks down ``rows`` output rows of a segment of the width and reads R - 1 rows more; over
one dimension it walks over ``rows`` segments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from triton_ext.ops.core.config_checks import power_problems, range_problems
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.problem import ConvProblem

__all__ = [
    "Col2ImConfig",
    "Walk",
    "best_config",
    "block_k",
    "col2im_problems",
    "col2im_reasons",
    "column_shape",
    "expected_times",
    "has_full_loads",
    "ranking",
    "vector_of",
]

_DTYPES = (torch.float16, torch.bfloat16)
_ELEMENT_BYTES = 2
_MOST_ELEMENTS = 1 << 31
_MOST_COLUMNS = 64
# Of all rows of the filter: a program holds the sums of all.
_MOST_SUMS = 256

# A model that was not measured: what a step of a program waits for barriers, shuffles and stores,
# for each of its products, which are made one after another, and for each filter that it stores.
_STEP_US, _PRODUCT_US, _FILTER_US = 0.8, 0.06, 0.05
# The part of the shorter of both, steps and bytes, that the other does not hide.
_NOT_HIDDEN = 0.2
# Warps of a multiprocessor, of up to 128 registers a thread; and elements of a row that a thread
# holds in these beside all else.
_WARPS_AT_ONCE = 16
_PREFETCHED = 64
_RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Col2ImConfig:
    """One way to compile and launch the kernel.

    Attributes:
        block_m: Pixels of a row of x per step, those beside the segment included.
        rows: Output rows of a program, or segments over one dimension.
        num_warps: Warps per CTA.
        num_stages: Rows of x in shared memory.  With one, the next is on its way to registers
            beside a step, from three on to shared memory, where Triton 3.9 stores the filter anew
            for every step.
    """

    block_m: int
    rows: int
    num_warps: int = 4
    num_stages: int = 1

    def problems(self) -> list[str]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return [
            *power_problems(self, 64, 256, "block_m"),
            *range_problems(self, 1, 1 << 16, "rows"),
            *power_problems(self, 4, 8, "num_warps"),
            *range_problems(self, 1, 8, "num_stages"),
        ]

    def smem_bytes(self, problem: ConvProblem) -> int:
        """Returns the shared memory of a CTA at most.

        Args:
            problem: What is computed.
        """
        channels = _padded_channels(problem)
        columns = math.prod(column_shape(problem))
        of_x = self.num_stages * self.block_m * channels * _ELEMENT_BYTES
        of_w = _filter_rows(problem) * columns * channels * _ELEMENT_BYTES
        # Products change their order in fp32, as does the tile of y.
        return of_x + of_w + 4 * self.block_m * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Who computes what.

    Attributes:
        segment: Output pixels of a row that a program computes at once.
        segments: Of a row.
        strips: Parts that the rows of one image are divided into, of every residue of the dilation;
            over one dimension, of the segments.
        programs: CTAs of a launch.
        steps: Of a program at most.
    """

    segment: int
    segments: int
    strips: int
    programs: int
    steps: int

    @classmethod
    def make(cls, config: Col2ImConfig, problem: ConvProblem) -> Walk:
        """Returns the walk of a configuration whose block holds the taps of a row.

        Args:
            config: The configuration.
            problem: One without :func:`col2im_reasons`.
        """
        out_w = problem.output_size[-1]
        # As even as can be, so that little is read twice.
        segments = math.ceil(out_w / (config.block_m - _beside(problem)))
        segment = math.ceil(out_w / segments)
        segments = math.ceil(out_w / segment)
        if problem.dims == 1:
            strips = math.ceil(segments / config.rows)
            programs, steps = problem.batch * strips, min(config.rows, segments)
        else:
            dilation = problem.dilation[0]
            of_residue = math.ceil(problem.output_size[0] / dilation)
            strips = math.ceil(of_residue / config.rows)
            programs = problem.batch * dilation * strips * segments
            steps = min(config.rows, of_residue) + problem.filter_size[0] - 1
        return cls(
            segment=segment, segments=segments, strips=strips, programs=programs, steps=steps
        )


def col2im_reasons(problem: ConvProblem, dtype: torch.dtype) -> tuple[str, ...]:
    """Returns why shifted products cannot be added; nothing if they can.

    Args:
        problem: What is computed.
        dtype: Of x and weight.
    """
    found = []
    if dtype not in _DTYPES:
        found.append(f"dtype is {dtype}: expected float16 or bfloat16")
    if problem.dims > 2:
        found.append(f"{problem.dims} dimensions: expected 1 or 2")
    if problem.groups != 1:
        found.append(f"groups={problem.groups}: a product would hold channels of other groups")
    if set(problem.stride) != {1}:
        found.append(f"stride {problem.stride}: expected 1, as every pixel meets every tap")
    taps_and_channels = column_shape(problem)
    if math.prod(taps_and_channels) > _MOST_COLUMNS:
        taps, channels = taps_and_channels
        found.append(
            f"{taps} x {channels} columns, taps of a row and output channels rounded up: expected "
            f"at most {_MOST_COLUMNS}"
        )
    elif _filter_rows(problem) * math.prod(taps_and_channels) > _MOST_SUMS:
        found.append(
            f"{_filter_rows(problem)} rows of the filter of {math.prod(taps_and_channels)} columns "
            f"each: expected at most {_MOST_SUMS} columns in all"
        )
    row = problem.input_size[-1] + sum(problem.padding[-1])
    if row * problem.in_channels >= _MOST_ELEMENTS:
        found.append(f"{row} pixels of a row, padding included: expected fewer than 2^31 elements")
    return tuple(found)


def col2im_problems(config: Col2ImConfig, problem: ConvProblem, smem_bytes: int) -> list[str]:
    """Returns why a configuration cannot be launched for a problem; nothing where it can.

    Args:
        config: The configuration.
        problem: What is computed.
        smem_bytes: Shared memory that a CTA can use.
    """
    found = config.problems()
    if found:
        return found
    if config.block_m <= _beside(problem):
        found.append(
            f"block_m is {config.block_m}: expected more pixels than the {_beside(problem)} that "
            "taps of a row reach over"
        )
    needed = config.smem_bytes(problem)
    if needed > smem_bytes:
        found.append(
            f"its rows and filter take up to {needed} bytes of shared memory, a CTA has "
            f"{smem_bytes}: expected a smaller block_m or fewer stages"
        )
    return found


def block_k(problem: ConvProblem) -> int:
    """Returns the channels of a product, a power of two."""
    return min(64, _power(problem.in_channels, 16))


def vector_of(problem: ConvProblem, x_strides: tuple[int, ...]) -> int:
    """Returns how many channels are loaded at once, those that are aligned together.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size], in elements.
    """
    outer = [
        stride
        for extent, stride in zip(
            (problem.batch, *problem.input_size), (x_strides[0], *x_strides[2:]), strict=True
        )
        if extent > 1
    ]
    # What is expanded cannot be copied to an aligned address.
    if 0 in outer or (problem.in_channels > 1 and x_strides[1] != 1):
        return 1
    return math.gcd(ROW_BYTES // _ELEMENT_BYTES, problem.in_channels, *outer)


def ranking(problem: ConvProblem, dtype: torch.dtype, device: Device) -> list[Col2ImConfig]:
    """Returns configurations for a dense x, by the times that the model expects.

    None where shifted products are not added, or loads are not of 16 bytes.

    Args:
        problem: What is computed.
        dtype: Of x and weight.
        device: The device.
    """
    strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
    x_strides = (strides[0], 1, *strides[1:-1])
    if col2im_reasons(problem, dtype) or not has_full_loads(problem, x_strides):
        return []
    times = expected_times(problem, device)
    return sorted(times, key=lambda config: times[config])


def best_config(
    problem: ConvProblem, x_strides: tuple[int, ...], device: Device
) -> tuple[Col2ImConfig | None, float]:
    """Returns the configuration that the model expects to be fastest, and its microseconds.

    Nothing and infinity where none fits, or loads are not of 16 bytes.

    Args:
        problem: One without :func:`col2im_reasons`.
        x_strides: Of x, in elements.
        device: The device.
    """
    if not has_full_loads(problem, x_strides):
        return None, math.inf
    times = expected_times(problem, device)
    return min(times.items(), key=lambda item: item[1], default=(None, math.inf))


def expected_times(problem: ConvProblem, device: Device) -> dict[Col2ImConfig, float]:
    """Returns the configurations that fit, with the microseconds that the model expects.

    The model was not measured: the bytes, what is read twice included, at the rate of copies, and
    the steps that programs make one after another, most of the shorter hidden by the longer.

    Args:
        problem: One without :func:`col2im_reasons`.
        device: The device.
    """
    times = {}
    products = _filter_rows(problem) * _padded_channels(problem) // block_k(problem)
    for config in _candidates(problem, device):
        walk = Walk.make(config, problem)
        pixels = walk.programs * walk.steps * (walk.segment + _beside(problem))
        elements = pixels * problem.in_channels + math.prod(problem.y_shape)
        bytes_us = elements * _ELEMENT_BYTES / H200.copy_bytes_per_us
        rounds = math.ceil(walk.programs / _at_once(config, problem, device))
        step_us = _STEP_US + products * config.block_m / 128 * _PRODUCT_US
        if config.num_stages > 1:
            step_us += products * _FILTER_US
        waiting_us = rounds * (walk.steps + 1) * step_us
        hidden, shown = sorted((bytes_us, waiting_us))
        times[config] = H200.launch_us + shown + _NOT_HIDDEN * hidden
    return times


def _candidates(problem: ConvProblem, device: Device) -> list[Col2ImConfig]:
    """Returns configurations whose programs fill the multiprocessors once or a few times."""
    found: dict[Col2ImConfig, None] = {}
    for block_m, num_stages in ((64, 1), (64, 3), (128, 3)):
        one = Col2ImConfig(block_m=block_m, rows=1, num_stages=num_stages)
        of_thread = block_m * _padded_channels(problem) // (32 * one.num_warps)
        is_large = num_stages == 1 and of_thread > _PREFETCHED
        if is_large or col2im_problems(one, problem, device.smem_bytes):
            continue
        walk = Walk.make(one, problem)
        at_once = _at_once(one, problem, device)
        for rounds in (1, 2, 3):
            # Strips are rows here.
            strips = max(1, rounds * at_once * walk.strips // walk.programs)
            config = replace(one, rows=math.ceil(walk.strips / strips))
            if not config.problems():
                found[config] = None
    return list(found)


def _at_once(config: Col2ImConfig, problem: ConvProblem, device: Device) -> int:
    """Returns how many programs run at once."""
    fitting = device.smem_bytes // (config.smem_bytes(problem) + _RESERVED_BYTES)
    # Larger tiles take twice the registers.
    warps = _WARPS_AT_ONCE if config.block_m <= 16 * config.num_warps else _WARPS_AT_ONCE // 2
    per_sm = min(fitting, warps // config.num_warps)
    return device.num_sms * max(1, per_sm)


def has_full_loads(problem: ConvProblem, x_strides: tuple[int, ...]) -> bool:
    """Tells whether loads are of 16 bytes, for which alone there is a model.

    Args:
        problem: What is computed.
        x_strides: Of x [N, Ci, *input_size], in elements.
    """
    return vector_of(problem, x_strides) * _ELEMENT_BYTES == ROW_BYTES


def _beside(problem: ConvProblem) -> int:
    """Returns the pixels of a row that are read beside those of a segment."""
    return (problem.filter_size[-1] - 1) * problem.dilation[-1]


def _filter_rows(problem: ConvProblem) -> int:
    return math.prod(problem.filter_size[:-1])


def _padded_channels(problem: ConvProblem) -> int:
    return math.ceil(problem.in_channels / block_k(problem)) * block_k(problem)


def column_shape(problem: ConvProblem) -> tuple[int, int]:
    """Returns taps of a row and output channels, rounded up for 16 columns at least."""
    taps = _power(problem.filter_size[-1], 1)
    return taps, max(_power(problem.out_channels, 1), 16 // min(taps, 16))


def _power(count: int, least: int) -> int:
    """Returns the power of two from ``least`` on that holds a count."""
    return max(least, 1 << (count - 1).bit_length())
