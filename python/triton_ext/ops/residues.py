"""Residue classes of a strided convolution's input, each a convolution of dy with stride 1.

Pixel h of dx gets dy[q] * w[r] for every q, r with q * s - p + r * d = h, where s is the stride, d
the dilation and p the padding in front.  With h = a + s * y, 0 <= a < s:

    q = y + f(a, r),    f(a, r) = (a + p - r * d) / s    for taps r that make this an integer

So the pixels of residue a are a convolution of dy with stride 1 and some of the taps.  With
g = gcd(d, s) these taps are r0, r0 + s/g, ..., where r0 = (a + p)/g * (d/g)^-1 mod s/g, or none
where g does not divide a + p or r0 is no tap.  From tap to tap f falls by d/g.

Pure arithmetic, one spatial dimension at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Residues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residues:
    """The residue classes of one spatial dimension.

    Attributes:
        size: Pixels of dx.
        taps: Filter taps.
        stride: Stride of the convolution.
        dilation: Distance of two taps.
        low: Padding in front.
    """

    size: int
    taps: int
    stride: int
    dilation: int
    low: int

    @property
    def divisor(self) -> int:
        """g, the greatest common divisor of dilation and stride."""
        return math.gcd(self.dilation, self.stride)

    @property
    def tap_step(self) -> int:
        """s / g, from one tap of a class to its next."""
        return self.stride // self.divisor

    @property
    def offset_step(self) -> int:
        """d / g, by which the position in dy falls from one tap of a class to its next."""
        return self.dilation // self.divisor

    @property
    def inverse(self) -> int:
        """Inverse of d / g modulo s / g."""
        return pow(self.offset_step, -1, self.tap_step)

    @property
    def walk_size(self) -> int:
        """Pixels of the largest class."""
        return math.ceil(self.size / self.stride)

    def class_taps(self, residue: int) -> range:
        """Returns the taps that reach the pixels of a residue."""
        position = residue + self.low
        if position % self.divisor:
            return range(0)
        first = position // self.divisor * self.inverse % self.tap_step
        return range(first, self.taps, self.tap_step)

    def shift(self, residue: int, tap: int) -> int:
        """f: position in dy of the residue's first pixel, seen through a tap."""
        return (residue + self.low - tap * self.dilation) // self.stride

    @property
    def lower(self) -> int:
        """Smallest shift of all classes."""
        return min(self.shift(a, r) for a in range(self.stride) for r in self.class_taps(a))

    @property
    def largest_offset(self) -> int:
        """Largest im2col offset of all classes."""
        lower = self.lower
        return max(self.shift(a, r) - lower for a in range(self.stride) for r in self.class_taps(a))

    @property
    def mean_taps(self) -> float:
        """Taps of a class, on average."""
        return sum(len(self.class_taps(a)) for a in range(self.stride)) / self.stride
