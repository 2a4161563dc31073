"""How few channels are gathered: which columns K has, how wide loads are, which tiles are tried.

A convolution over fewer than 16 bytes of channels without groups, and without dilation in W, can be
computed by ``kernels/few_channels.py``, which reads x through pointers.  Pure arithmetic: no
tensors, no GPU.

K is made of the rows of the filter.  A row's columns are the S * Ci elements that an output pixel
reads of a row of x, which lie side by side where pixels do.  They are loaded in vectors.  A vector
is aligned, and lies inside or outside of x as a whole, if its length divides the elements

    of stride_w pixels, of a row of x, and from row to row and image to image.

A window that begins between two vectors has columns in front of its first tap, and all have columns
behind the last one up to a whole vector; both are made zero.
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
    "GatherConfig",
    "Window",
    "best_config",
    "expected_times",
    "gather_problems",
    "gather_reasons",
    "num_programs",
    "ranking",
]

_DTYPES = (torch.float16, torch.bfloat16)
_ELEMENT_BYTES = 2
_MOST_ELEMENTS = 1 << 31

# A filter of more steps, or of more bytes per CTA, is loaded again for every tile.
_MOST_HELD_STEPS = 8
_MOST_HELD_BYTES = 1 << 16

# A model fitted to 22 runs of 12 layers on an H200 (Triton 3.9.0, fp16, 2026-11-22;
# docs/performance.md), which it misses by 6.5 percent in the root mean square: bytes at so many
# times the rate of copies, and what tiles wait one after another for a step, a part of it for its
# columns.  A launch took so much longer than others.  With eight warps a step takes longer.
_MORE_LAUNCH_US, _COPY_RATE = 2.6, 5.2 / 3.5
_STEP_US, _COLUMN_US = 0.37, 0.0228
_EIGHT_WARPS = 1.4
# Warps of a multiprocessor, of up to 128 registers a thread.
_WARPS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherConfig:
    """One way to compile and launch the kernel.

    Attributes:
        block_m: Output pixels per tile.
        block_n: Output channels per tile.
        block_k: Columns of K per step.
        num_warps: Warps per CTA.
        programs_per_sm: CTAs that are launched per multiprocessor, where there are as many tiles.
        loads_ahead: Steps, or tiles of one step, whose loads are under way beside a step; only
            loads of 4 bytes and more can be.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    programs_per_sm: int = 4
    loads_ahead: int = 0

    def problems(self) -> list[str]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return [
            *power_problems(self, 16, 256, "block_m", "block_n"),
            *power_problems(self, 16, 128, "block_k"),
            *power_problems(self, 4, 8, "num_warps"),
            *range_problems(self, 1, 64, "programs_per_sm"),
            *range_problems(self, 0, 4, "loads_ahead"),
        ]

    def holds_filter(self, columns: int) -> bool:
        """Tells whether a CTA loads its part of the filter once.

        Args:
            columns: Of K.
        """
        steps = math.ceil(columns / self.block_k)
        held = steps * self.block_k * self.block_n * _ELEMENT_BYTES
        return steps <= _MOST_HELD_STEPS and held <= _MOST_HELD_BYTES

    def smem_bytes(self, columns: int) -> int:
        """Returns the shared memory of a CTA at most.

        Args:
            columns: Of K.
        """
        steps = math.ceil(columns / self.block_k) if self.holds_filter(columns) else 1
        # Steps of a filter that stays have memory of their own, where their loads are ahead.
        of_x = (
            self.block_m
            * self.block_k
            * (2 + self.loads_ahead)
            * (steps if self.loads_ahead else 1)
        )
        of_w = self.block_n * self.block_k * (steps + self.loads_ahead)
        # Accumulators that take the order of a residual's loads are fp32.
        return (of_x + of_w) * _ELEMENT_BYTES + 4 * self.block_m * self.block_n


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How the kernel reads what an output pixel sees; in elements.

    Attributes:
        lines: Rows of the filter, T * R.
        elements: Of a row of the filter, S * Ci.
        pixel: Distance of two pixels of a row of x.
        vector: Elements of a load.
        shift: Columns in front of a row's first tap.
        row: Columns of a row, whole vectors.
    """

    lines: int
    elements: int
    pixel: int
    vector: int
    shift: int
    row: int

    @classmethod
    def make(cls, problem: ConvProblem, x_strides: tuple[int, ...]) -> Window:
        """Returns the window of the fewest steps, then of the fewest loads.

        Args:
            problem: One without :func:`gather_reasons`.
            x_strides: Of x [N, Ci, *input_size], in elements.
        """
        ci, width = problem.in_channels, problem.input_size[-1]
        pixel = x_strides[-1] if width > 1 else ci
        sizes = (problem.batch, *problem.input_size[:-1])
        outer = [
            stride
            for extent, stride in zip(sizes, (x_strides[0], *x_strides[2:-1]), strict=True)
            if extent > 1
        ]
        common = 1
        # What is expanded cannot be copied to an aligned address.
        if pixel == ci and (ci == 1 or x_strides[1] == 1) and 0 not in outer:
            unit = ROW_BYTES // _ELEMENT_BYTES
            common = math.gcd(problem.stride[-1] * ci, width * ci, unit, *outer)
        windows = []
        for vector in (1, 2, 4, 8):
            if common % vector == 0:
                elements = problem.filter_size[-1] * ci
                shift = -problem.padding[-1][0] * ci % vector
                windows.append(
                    cls(
                        lines=math.prod(problem.filter_size[:-1]),
                        elements=elements,
                        pixel=pixel,
                        vector=vector,
                        shift=shift,
                        row=math.ceil((shift + elements) / vector) * vector,
                    )
                )
        return min(windows, key=lambda each: (math.ceil(each.columns / 32), each.loads))

    @classmethod
    def dense(cls, problem: ConvProblem) -> Window:
        """Returns the window over a channels-last x without gaps; otherwise as :meth:`make`."""
        strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
        return cls.make(problem, (strides[0], 1, *strides[1:-1]))

    @property
    def columns(self) -> int:
        """Of K."""
        return self.lines * self.row

    @property
    def loads(self) -> int:
        """Of an output pixel."""
        return self.columns // self.vector


def gather_reasons(problem: ConvProblem, dtype: torch.dtype) -> tuple[str, ...]:
    """Returns why x is not gathered; nothing if it can be.

    Args:
        problem: What is computed.
        dtype: Of x and weight.
    """
    found = []
    if dtype not in _DTYPES:
        found.append(f"dtype is {dtype}: expected float16 or bfloat16")
    elif problem.in_channels * dtype.itemsize >= ROW_BYTES:
        found.append(
            f"{problem.in_channels} channels: from {ROW_BYTES} bytes of channels on, TMA reads "
            "pixels as they lie"
        )
    if problem.groups != 1:
        found.append(f"groups={problem.groups}: a window would hold channels of other groups")
    if problem.filter_size[-1] > 1 and problem.dilation[-1] != 1:
        found.append(f"dilation {problem.dilation[-1]} in W: taps are not neighbours")
    row = problem.input_size[-1] + sum(problem.padding[-1])
    if row * problem.in_channels >= _MOST_ELEMENTS:
        found.append(f"{row} pixels of a row, padding included: expected fewer than 2^31 elements")
    return tuple(found)


def gather_problems(config: GatherConfig, window: Window, smem_bytes: int) -> list[str]:
    """Returns why a configuration cannot be launched for a problem; nothing where it can.

    Args:
        config: The configuration.
        window: How x is read.
        smem_bytes: Shared memory that a CTA can use.
    """
    found = config.problems()
    needed = 0 if found else config.smem_bytes(window.columns)
    if needed > smem_bytes:
        found.append(
            f"its tiles take up to {needed} bytes of shared memory, a CTA has {smem_bytes}: "
            "expected smaller tiles or fewer loads ahead"
        )
    return found


def ranking(problem: ConvProblem, dtype: torch.dtype, device: Device) -> list[GatherConfig]:
    """Returns configurations for a dense x, by the times that the model expects.

    None where x is not gathered.

    Args:
        problem: What is computed.
        dtype: Of x and weight.
        device: The device.
    """
    if gather_reasons(problem, dtype):
        return []
    times = expected_times(problem, Window.dense(problem), device)
    return sorted(times, key=lambda config: times[config])


def best_config(
    problem: ConvProblem, window: Window, device: Device
) -> tuple[GatherConfig | None, float]:
    """Returns the configuration that the model expects to be fastest, and its microseconds.

    Nothing and infinity where none fits; arguments as for :func:`expected_times`.
    """
    times = expected_times(problem, window, device)
    return min(times.items(), key=lambda item: item[1], default=(None, math.inf))


def expected_times(
    problem: ConvProblem, window: Window, device: Device
) -> dict[GatherConfig, float]:
    """Returns the configurations that fit, with the microseconds that the model expects.

    Args:
        problem: What is computed.
        window: How x is read.
        device: The device.
    """
    num_sms = device.num_sms
    elements = sum(map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape)))
    bytes_us = elements * _ELEMENT_BYTES / (H200.copy_bytes_per_us * _COPY_RATE)
    times = {}
    for config in _candidates(problem, window):
        rows, columns, programs = _launched(config, problem, num_sms)
        steps = math.ceil(window.columns / config.block_k)
        at_once = min(programs, max(columns, num_sms * (_WARPS_AT_ONCE // config.num_warps)))
        step_us = _STEP_US + _COLUMN_US * config.block_k
        if config.num_warps > 4:
            step_us *= _EIGHT_WARPS
        if not gather_problems(config, window, device.smem_bytes):
            rounds = math.ceil(rows * columns / at_once)
            times[config] = H200.launch_us + _MORE_LAUNCH_US + bytes_us + rounds * steps * step_us
    return times


def num_programs(config: GatherConfig, problem: ConvProblem, num_sms: int) -> int:
    """Returns the CTAs of a launch, a multiple of the columns of tiles.

    Args:
        config: The configuration.
        problem: What is computed.
        num_sms: Multiprocessors of the GPU.
    """
    return _launched(config, problem, num_sms)[2]


def _launched(config: GatherConfig, problem: ConvProblem, num_sms: int) -> tuple[int, int, int]:
    """Returns rows and columns of tiles, and CTAs."""
    rows = math.ceil(problem.geometry.m_gemm / config.block_m)
    columns = math.ceil(problem.out_channels / config.block_n)
    per_column = max(1, num_sms * config.programs_per_sm // columns)
    return rows, columns, columns * min(rows, per_column)


def _candidates(problem: ConvProblem, window: Window) -> list[GatherConfig]:
    """Returns tiles for the channels and the columns; wide ones get more warps, fewer registers."""
    block_k = _power(window.columns, 16, 64)
    if window.columns > 64 and window.columns % 64:
        block_k = 32
    steps = math.ceil(window.columns / block_k)
    widest = _power(problem.out_channels, 16, 128)
    found = []
    for block_n in sorted({widest, max(16, widest // 2)}, reverse=True):
        for block_m in (128, 64):
            is_large = block_m * max(block_n, 2 * block_k) > 128 * 64
            num_warps = 8 if block_m == 128 and (is_large or steps > 1) else 4
            found.append(
                GatherConfig(
                    block_m=block_m,
                    block_n=block_n,
                    block_k=block_k,
                    num_warps=num_warps,
                    programs_per_sm=_WARPS_AT_ONCE // num_warps,
                )
            )
    first = found[0]
    if window.vector > 1 and steps == 1:
        found.append(replace(first, loads_ahead=2))
    # Many short CTAs instead of few long ones.
    found.append(replace(first, programs_per_sm=4 * first.programs_per_sm))
    return found


def _power(count: int, least: int, most: int) -> int:
    """Returns the power of two from ``least`` to ``most`` that holds a count, or ``most``."""
    return min(most, max(least, 1 << (count - 1).bit_length()))
