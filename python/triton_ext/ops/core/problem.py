"""A convolution, as one record that every direction and every kernel reads.

Symbols: x [N, Ci, *input_size], w [Co, Ci / groups, *filter_size], y [N, Co, *output_size], with
one to three spatial dimensions.  Forward (fprop) computes y from x and w, dgrad the gradient dx
from dy and w, wgrad dw from x and dy.  A transposed convolution is a dgrad: its input is dy, its
output dx, so one record describes both.

Pure arithmetic: no torch, no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from triton_ext import backends

__all__ = ["ConvProblem", "as_forward"]

ConvGeometry = backends.load("nvidia", "ConvGeometry")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvProblem:
    """A convolution and its gradients; sizes in elements and pixels.

    Attributes:
        batch: N, images; may be 0.
        in_channels: Ci, of x.
        out_channels: Co, of y.
        input_size: Pixels of x per spatial dimension, ([D, [H,]] W).
        filter_size: Taps per spatial dimension, ([T, [R,]] S).
        stride: Step of the filter per spatial dimension.
        padding: (low, high) per spatial dimension; the two may differ.
        dilation: Distance of neighbouring taps per spatial dimension.
        groups: Into how many parts both channels are divided; output part i sees input part i only.
    """

    batch: int
    in_channels: int
    out_channels: int
    input_size: tuple[int, ...]
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def dims(self) -> int:
        """Spatial dimensions: 1, 2 or 3."""
        return len(self.input_size)

    @property
    def is_pointwise(self) -> bool:
        """Whether each output pixel sees the one input pixel at its place: a matrix product."""
        steps = {*self.filter_size, *self.stride}
        return steps == {1} and all(sides == (0, 0) for sides in self.padding)

    @property
    def taps(self) -> int:
        """Filter taps of all dimensions."""
        return math.prod(self.filter_size)

    @property
    def geometry(self) -> ConvGeometry:
        """The walk over x [N, *input_size, Ci] in the terms of im2col tensor maps."""
        return ConvGeometry.make(
            (self.batch, *self.input_size, self.in_channels),
            self.filter_size,
            self.stride,
            self.padding,
            self.dilation,
        )

    @property
    def output_size(self) -> tuple[int, ...]:
        """Pixels of y per spatial dimension; 0 where the filter does not fit."""
        return tuple(self.geometry.output_size)

    @property
    def pixels_read(self) -> int:
        """Pixels of x that the filter sees, at most; with a larger stride there are gaps."""
        return self.geometry.pixels_read

    @property
    def x_shape(self) -> tuple[int, ...]:
        """[N, Ci, *input_size], torch's order."""
        return (self.batch, self.in_channels, *self.input_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """[Co, Ci / groups, *filter_size], torch's order."""
        return (self.out_channels, self.in_channels // self.groups, *self.filter_size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """[N, Co, *output_size], torch's order."""
        return (self.batch, self.out_channels, *self.output_size)

    @property
    def flops(self) -> int:
        """Multiplications and additions of one direction; those with padding count."""
        pixels = self.batch * math.prod(self.output_size)
        return 2 * pixels * self.out_channels * self.taps * (self.in_channels // self.groups)


def as_forward(problem: ConvProblem) -> ConvProblem | None:
    """Returns the convolution of dy that gives dx; ``None`` with a stride or groups.

    Its filter is that of the problem turned round, its two channels swapped.  Padding is negative
    where the problem has more of it than its filter reaches.
    """
    if problem.groups != 1 or set(problem.stride) != {1}:
        return None
    reach = [(r - 1) * d for r, d in zip(problem.filter_size, problem.dilation, strict=True)]
    return replace(
        problem,
        in_channels=problem.out_channels,
        out_channels=problem.in_channels,
        input_size=problem.output_size,
        padding=tuple(
            (far - low, far - high) for far, (low, high) in zip(reach, problem.padding, strict=True)
        ),
    )
