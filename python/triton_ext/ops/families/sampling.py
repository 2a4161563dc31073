"""Which pixels kernels without tensor cores read, and how these lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.plan import TO_LAST, three

__all__ = ["PixelStrides", "Sampling"]

_MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which pixels of an input an output pixel reads: of x in fprop and wgrad, of dy in dgrad.

    Per spatial dimension, output pixel i reads through tap r the input pixel
    ``(i * step + r * dilation - low) / up``, where that is a whole number of the input.
    """

    batch: int  # images
    in_channels: int  # of the input
    out_channels: int  # of the output
    in_size: tuple[int, ...]  # input pixels
    out_size: tuple[int, ...]  # output pixels
    taps: tuple[int, ...]  # of the filter
    step: tuple[int, ...]  # distance of what two neighbouring output pixels read
    up: tuple[int, ...]  # distance of input pixels, in the same unit
    dilation: tuple[int, ...]  # distance of taps, in the same unit
    low: tuple[int, ...]  # padding in front, in the same unit; may be negative
    is_flipped: bool  # whether the filter is read from its end

    @classmethod
    def of(cls, case: Case) -> Sampling:
        """Returns that of fprop and wgrad over x, or that of dgrad over dy.

        Pixel i of dx reads through tap s the pixel (i + low - s * dilation) / stride of dy; taps
        counted from the end make that (i + s' * dilation - ((S - 1) * dilation - low)) / stride.
        """
        problem, is_gradient = case.problem, case.direction == "dgrad"
        channels = [problem.in_channels, problem.out_channels]
        sizes = [problem.input_size, problem.output_size]
        steps = [problem.stride, (1,) * problem.dims]
        low = tuple(low for low, _ in problem.padding)
        if is_gradient:
            for pair in (channels, sizes, steps):
                pair.reverse()
            sides = zip(problem.filter_size, problem.dilation, low, strict=True)
            low = tuple((taps - 1) * dilation - pad for taps, dilation, pad in sides)
        return cls(
            batch=problem.batch,
            in_channels=channels[0],
            out_channels=channels[1],
            in_size=sizes[0],
            out_size=sizes[1],
            taps=problem.filter_size,
            step=steps[0],
            up=steps[1],
            dilation=problem.dilation,
            low=low,
            is_flipped=is_gradient,
        )

    @property
    def class_rows(self) -> tuple[int, ...]:
        """Output rows, ([D, [H]]), of each class of those that read through the same taps."""
        return tuple(
            math.ceil(size / up) for size, up in zip(self.out_size[:-1], self.up, strict=False)
        )

    @property
    def classes(self) -> int:
        """Classes of rows of the output."""
        return math.prod(self.up[:-1])

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.batch * math.prod(self.out_size)

    def positions(self, qw: int) -> int:
        """Returns the positions, of ``qw`` pixels of a row, of one class of rows."""
        return self.batch * math.prod(self.class_rows) * math.ceil(self.out_size[-1] / qw)

    def is_wide(self, pixel_stride: int, qw: int) -> bool:
        """Tells whether offsets in elements may need 64 bits; what is masked counts as well."""
        rows = [
            size + abs(low) + taps * dilation + step
            for size, low, taps, dilation, step in zip(
                self.in_size, self.low, self.taps, self.dilation, self.step, strict=True
            )
        ]
        rows[-1] += qw * self.step[-1]
        reads = (self.batch + 1) * math.prod(rows) * pixel_stride
        row = math.ceil(self.out_size[-1] / qw) * qw
        writes = (self.batch + 1) * math.prod(self.out_size[:-1]) * row * self.out_channels
        return max(reads, writes) > _MAX_INT32


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelStrides:
    """The memory layout of a tensor [N, C, *spatial], as the kernels read it."""

    pixel: int  # elements from one column to the next
    outer: tuple[int, ...]  # of images and of rows, ([D, [H]]), in pixels
    is_copied: bool = False  # whether the tensor is copied to a packed one first

    @classmethod
    def make(cls, shape: tuple[int, ...], strides: tuple[int, ...]) -> PixelStrides:
        """Returns the layout of a tensor in torch's order.

        One that is not channels-last, or too wide, is copied.
        """
        n, channels, *size = shape
        pixel = strides[-1] if size[-1] > 1 else channels
        sizes, steps = (n, *size[:-1]), (strides[0], *strides[2:-1])
        # A dimension of one row needs no distance.
        steps = tuple(step if size > 1 else 0 for size, step in zip(sizes, steps, strict=True))
        is_dense = strides[1] == 1 or channels == 1
        # Sizes alone decide whether offsets need 64 bits: a view with gaps has to fit 32.
        last = (size[-1] - 1) * pixel + channels
        last += sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        fits = last <= max(_MAX_INT32, n * math.prod(size) * pixel)
        if is_dense and pixel > 0 and fits and not any(step % pixel for step in steps):
            return cls(pixel=pixel, outer=tuple(step // pixel for step in steps))
        packed = tuple(math.prod(size[dim:]) for dim in range(len(size)))
        return cls(pixel=channels, outer=packed, is_copied=True)

    @property
    def scalars(self) -> tuple[int | None, ...]:
        """The distances of planes, rows and images, in pixels, as the kernels take them."""
        planes, rows, _ = three((*self.outer[1:], 0))
        return planes, rows, self.outer[0]

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernels read it."""
        rows = tensor.permute(TO_LAST[tensor.dim() - 2])
        return rows.contiguous() if self.is_copied else rows
