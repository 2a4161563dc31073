"""Stride phases of a strided convolution's input, each a convolution of dy with stride 1.

Pixel h of dx gets dy[q] * w[r] for every q, r with q * s - p + r * d = h, where s is the stride, d
the dilation and p the padding in front.  With h = a + s * y, 0 <= a < s:

    q = y + f(a, r),    f(a, r) = (a + p - r * d) / s    for taps r that make this an integer

So the pixels of residue a are a convolution of dy with stride 1 and some of the taps.  With
g = gcd(d, s) these taps are r0, r0 + s/g, ..., where r0 = (a + p)/g * (d/g)^-1 mod s/g, or none
where g does not divide a + p or r0 is no tap.  From tap to tap f falls by d/g.

Pure arithmetic, one spatial dimension at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext import backends
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refused

SPATIAL_LIMITS = backends.load("nvidia", "SPATIAL_LIMITS")

_MAX_INT32 = (1 << 31) - 1
# A program adds the size of the grid to the number of its tile before it sees that none is left.
_MAX_TILES = _MAX_INT32 - (1 << 16)
# The smallest tile that a configuration may have.
_LEAST_ROWS, _LEAST_COLUMNS = 16, 8
# More are not listed: a model takes 6 ms for all configurations over 1024 phases.
_MOST_PHASES = 1024
_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StridePhases:
    """The stride phases of one spatial dimension."""

    size: int  # pixels of dx
    taps: int  # filter taps
    stride: int  # stride of the convolution
    dilation: int  # distance of two taps
    low: int  # padding in front

    @property
    def divisor(self) -> int:
        """g, the greatest common divisor of dilation and stride."""
        return math.gcd(self.dilation, self.stride)

    @property
    def tap_step(self) -> int:
        """s / g, from one tap of a phase to its next."""
        return self.stride // self.divisor

    @property
    def inverse(self) -> int:
        """Inverse of d / g modulo s / g; from one tap of a phase to its next f falls by d / g."""
        return pow(self.dilation // self.divisor, -1, self.tap_step)

    @property
    def phase_size(self) -> int:
        """Pixels of the largest phase."""
        return math.ceil(self.size / self.stride)

    def taps_of(self, residue: int) -> range:
        """Returns the taps that reach the pixels of a residue."""
        position = residue + self.low
        if position % self.divisor:
            return range(0)
        first = position // self.divisor * self.inverse % self.tap_step
        return range(first, self.taps, self.tap_step)

    def shift(self, residue: int, tap: int) -> int:
        """Returns f: the position in dy of the residue's first pixel, seen through a tap."""
        return (residue + self.low - tap * self.dilation) // self.stride

    @property
    def shifts(self) -> list[int]:
        """The shifts of all taps of all phases."""
        return [self.shift(a, r) for a in range(self.stride) for r in self.taps_of(a)]

    @property
    def lower(self) -> int:
        """Smallest shift of all phases."""
        return min(self.shifts)


_MISSING = StridePhases(size=1, taps=1, stride=1, dilation=1, low=0)


def phases_of(problem: ConvProblem) -> list[StridePhases]:
    """Returns the stride phases of each spatial dimension."""
    return [
        StridePhases(size=size, taps=taps, stride=stride, dilation=dilation, low=low)
        for size, taps, stride, dilation, (low, _) in zip(
            problem.input_size, problem.filter_size, problem.stride, problem.dilation,
            problem.padding, strict=True,
        )
    ]  # fmt: skip


def three_dims(dims: Sequence[StridePhases]) -> list[StridePhases]:
    """Returns three spatial dimensions: what is missing comes first, of one pixel and one tap."""
    return [_MISSING] * (3 - len(dims)) + list(dims)


def phase_taps(dims: Sequence[StridePhases]) -> tuple[int, tuple[float, ...], int]:
    """Returns the pixels of a phase per image, the taps of each phase, and their repeats.

    Up to 1024 phases are listed by residue, the last dimension fastest, as the Gluon kernel
    computes them; no choice of the ``@triton.jit`` kernel depends on this order.  More phases are
    given as one, with the mean of their taps, which repeats.
    """
    pixels = math.prod(dim.phase_size for dim in dims)
    count = math.prod(dim.stride for dim in dims)
    if count > _MOST_PHASES:
        return pixels, (math.prod(len(dim.shifts) / dim.stride for dim in dims),), count
    counts = ([len(dim.taps_of(residue)) for residue in range(dim.stride)] for dim in dims)
    return pixels, tuple(map(math.prod, itertools.product(*counts))), 1


def geometry_refusals(problem: ConvProblem) -> tuple[Refusal, ...]:
    """Returns why TMA cannot express the gradient of a convolution's input."""
    values = {
        "filter size": problem.filter_size, "stride": problem.stride,
        "dilation": problem.dilation, "input size": problem.input_size,
    }  # fmt: skip
    found = [
        f"{name} {value}: must be at least 1" for name, value in values.items() if min(value) < 1
    ]
    found += [f"padding {pair}: must not be negative" for pair in problem.padding if min(pair) < 0]
    if found:
        return refused(*found)
    size, letters = problem.output_size, _LETTERS[problem.dims]
    found = [
        f"filter larger than the padded input in {name}: empty output"
        for name, out in zip(letters, size, strict=True)
        if out < 1
    ]
    channels, groups = problem.in_channels, problem.groups
    return refused(*found) or phase_refusals(
        phases_of(problem), size, problem.batch, channels, groups
    )


def phase_refusals(
    dims: Sequence[StridePhases],  # the 1 to 3 spatial dimensions, without negative padding
    output_size: Sequence[int],  # pixels of dy
    batch: int,  # images
    channels: int,  # channels of dx
    groups: int = 1,
) -> tuple[Refusal, ...]:
    """Returns why no kernel computes the phases of a convolution: TMA's limits, and int32."""
    letters = _LETTERS[len(dims)]
    # First: what follows lists all phases.
    found = [
        f"stride {dim.stride} in {name}: must be at most {_largest_stride(dim.low)} with a padding "
        f"of {dim.low}, int32 arithmetic of residues overflows"
        for name, dim in zip(letters, dims, strict=True)
        if dim.stride > _largest_stride(dim.low)
    ]
    if found:
        return refused(*found)
    limits = SPATIAL_LIMITS[len(dims)]
    for name, dim, out in zip(letters, dims, output_size, strict=True):
        shifts = dim.shifts
        lower, largest = min(shifts), max(shifts) - min(shifts)
        if largest > limits.offset_max:
            found.append(
                f"taps of a stride phase in {name} reach over {largest} pixels of dy: "
                f"im2col offsets go to {limits.offset_max}"
            )
        for corner, value in (("lower", lower), ("upper", lower + dim.phase_size - out)):
            if not limits.corner_min <= value <= limits.corner_max:
                found.append(
                    f"{corner} corner {value} of the pixel box in {name}: must be "
                    f"{limits.corner_min} to {limits.corner_max}; it follows from (R-1)*dilation, "
                    "padding and stride"
                )
    # Some of a phase may lie outside of dx, by less than a stride.
    pixels = batch * math.prod(dim.phase_size * dim.stride for dim in dims)
    if pixels > _MAX_INT32:
        found.append(f"dx has {pixels} pixels, int32 pixel index overflows")
    phases = math.prod(dim.stride for dim in dims)
    columns = groups * math.ceil(channels / groups / _LEAST_COLUMNS)
    tiles = phases * columns * math.ceil(pixels / phases / _LEAST_ROWS)
    if tiles > _MAX_TILES:
        found.append(
            f"{phases} stride phases of {channels} channels have up to {tiles} tiles: must be "
            f"at most {_MAX_TILES}"
        )
    return refused(*found)


def _largest_stride(low: int) -> int:
    """Returns the largest s with s * (s + low) below 2^31.

    Kernels multiply a position, residue + padding, with an inverse modulo s / g; both in int32.
    """
    return (math.isqrt(low * low + 4 * _MAX_INT32) - low) // 2
