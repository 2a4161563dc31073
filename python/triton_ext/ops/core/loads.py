"""The time of TMA loads and of DRAM, which the models of all matrix kernels share.

A step of the K loop takes as long as its multiplications or its loads, the longer of both; a kernel
as long as its steps or DRAM, and a part of the shorter one.  TMA copies boxes row by row, and takes
its time by row: most for rows of zeros, which lie in the padding or beyond the last channel.  A row
that does not begin at a multiple of 128 bytes touches a line more.

The numbers were fitted to 1 700 configurations of 327 layers of the zoo (H100, Triton 3.9.0, bf16,
2026-11-27, ``python -m benchmarks zoo fit``), with a step's multiplications as measured on an H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.problem import ConvProblem

if TYPE_CHECKING:
    from triton_ext.ops.core.case import Case

# Bytes of a line of L2, and of the longest row of a box: a row of the largest swizzle.
LINE_BYTES = 8 * ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Numbers of the model; ``zoo fit`` tries others in their place.

    Attributes:
        row_ns: A row of a box, on one multiprocessor.
        line_ns: A line that a row touches beside its first, while all multiprocessors load.
        outside_ns: A row of zeros, likewise.
        partial_ns: What a row takes longer that ends in zeros, likewise.
        multiply: Factor on the multiplications of a step.
        tile: Factor on what tiles take besides their steps, of which DRAM's time has the stores.
        hidden: Share of the shorter one of steps and DRAM that is not hidden by the other.
    """

    row_ns: float = 0.878
    line_ns: float = 1.378
    outside_ns: float = 4.5
    partial_ns: float = 1.375
    multiply: float = 0.932
    tile: float = 0.30
    hidden: float = 0.42


FITTED = Fitted()

# The larger it is, the less the shorter one of multiplications and loads adds to a step.
_POWER = 6


class Rows(NamedTuple):
    """Rows of boxes that a step loads, in the mean."""

    inside: float = 0.0  # rows with elements
    lines: float = 0.0  # lines that they touch beside their first
    outside: float = 0.0  # rows of zeros
    partial: float = 0.0  # rows that end in zeros

    def times(self, count: float) -> Rows:
        """Returns ``count`` times as many."""
        return Rows(*(count * each for each in self))

    def plus(self, other: Rows) -> Rows:
        """Returns the sum."""
        return Rows(*(a + b for a, b in zip(self, other, strict=True)))


@lru_cache(maxsize=1024)
def row_shares(channels: int, width: int, boxes: int, pitch_bytes: int, element_bytes: int) -> Rows:
    """Returns the rows of each kind, for one row of each box, in the mean over all boxes.

    Args:
        channels: Channels of a pixel, side by side in memory.
        width: Channels of a box.
        boxes: Boxes side by side, the first one at the first channel.
        pitch_bytes: From a pixel to the next one.
        element_bytes: Size of an element.
    """
    inside = lines = partial = 0.0
    # Beginnings of rows repeat after so many.
    beginnings = range(LINE_BYTES // math.gcd(pitch_bytes, LINE_BYTES))
    for first in range(0, min(channels, boxes * width), width):
        used = min(width, channels - first)
        inside += 1
        partial += used < width
        starts = ((row * pitch_bytes + first * element_bytes) % LINE_BYTES for row in beginnings)
        ends = sum((start + used * element_bytes - 1) // LINE_BYTES for start in starts)
        lines += ends / len(beginnings)
    return Rows(inside, lines, boxes - inside, partial).times(1 / boxes)


class Step(NamedTuple):
    """The time of a step of the K loop."""

    us: float
    l2_us: float = 0.0  # what its loads add: all of them where they take longer

    def parts(self, count: float) -> dict[str, float]:
        """Returns the time of so many steps by what it is spent on."""
        return {"tensor cores": count * (self.us - self.l2_us), "L2": count * self.l2_us}


def step_of(multiply_us: float, rows: Rows, busy: float) -> Step:
    """Returns the time of a step.

    Args:
        multiply_us: Of its multiplications.
        rows: What it loads.
        busy: Share of the multiprocessors that load at the same time, at most 1.
    """
    by_l2 = FITTED.line_ns * rows.lines + FITTED.outside_ns * rows.outside
    by_l2 += FITTED.partial_ns * rows.partial
    load_us = (FITTED.row_ns * rows.inside + busy * by_l2) / 1e3
    least_us = multiply_us * FITTED.multiply
    longer, shorter = max(least_us, load_us), min(multiply_us, load_us)
    us = float(longer * (1 + (shorter / longer) ** _POWER) ** (1 / _POWER))
    return Step(us, load_us if load_us > least_us else us - least_us)


def dram_us(case: Case, device: Device) -> float:
    """Returns the time in which operands and an output of pixels come from and go to DRAM."""
    problem, size = case.problem, case.dtype.itemsize
    x, w, y = map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape))
    if case.packing is not None:
        x = math.prod(case.packing.memory_shape)
    elif case.direction != "dgrad":
        x = problem.pixels_read * problem.in_channels
    return (x + w * (case.direction != "wgrad") + y) * size / device.dram_bytes_per_us


@lru_cache(maxsize=256)
def outside_share(problem: ConvProblem, *, is_dgrad: bool = False) -> float:
    """Returns the share of pixels that taps see in the padding; of dgrad, beyond dy."""
    inside = 1.0
    sizes = zip(problem.input_size, problem.output_size, problem.filter_size, strict=True)
    steps = zip(problem.stride, problem.dilation, problem.padding, strict=True)
    for (size, out, taps), (stride, dilation, (low, _)) in zip(sizes, steps, strict=True):
        seen = 0
        for tap in range(taps):
            first = tap * dilation - low  # of the first output pixel
            last = min(out - 1, (size - 1 - first) // stride)
            seen += max(0, last - max(0, math.ceil(-first / stride)) + 1)
        inside *= seen / (size * taps / stride if is_dgrad else out * taps)
    return max(0.0, 1 - inside)
