"""Geometry and cost of partial im2col: rows of the filter, or all of it, become channels of x.

With few input channels most of a k iteration is zeros: it has BLOCK_K channels of one tap, and 3
channels are rounded up to 16.  The S taps of a filter row read S pixels that are neighbours in
memory.  So x is described as a tensor of overlapping pixels,

    [N, ([D, ]H, )out_w, S * C'], strides [..., stride_w * C', 1],

and the filter has a single column.  C' is the smallest count of at least Ci with which every window
begins on 16 bytes, as TMA needs.  D and H keep im2col's padding, stride and dilation; padding in W
has to be in memory: x is copied into rows of ``row_pixels`` pixels of C' elements, zeros around
those of x, unless it has no padding in W and such channels already.

Columns: a pixel of the copy holds the R pixels that a column of the filter reads, C' is at least
R * Ci, and there are rows for every output row.  A window is S * C' channels of the whole filter.
The copy is larger by R / stride_h, which fewer and fuller k iterations may pay for: half of one
costs the same however few channels it has.

Planes: for strides beyond im2col's 1 to 8, as of the patches in front of a vision transformer.
Without padding in H, the R rows that an output row reads become a dimension of the view,

    [N, out_h, R, out_w, S * C'], strides [..., stride_h * row, dilation_h * row, stride_w * C', 1],

over which a filter of R x 1 is a convolution of three dimensions without strides.

A window covers pixels of its own row only, and its channels end behind its last tap, where TMA
reads zeros: values beside a window, NaN or not, are never multiplied.

Not handled: groups, and dilation in W, whose taps are not neighbours.  No tensors, no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from triton_ext import backends
from triton_ext.host.dots import INSTRUCTION_BITS, least_dot_depth
from triton_ext.ops.core.descriptors import ROW_BYTES, channels_last_strides, packed_strides
from triton_ext.ops.core.device import H200
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refused

conv_violations = backends.load("nvidia", "conv_violations")

# A model of an H200 (Triton 3.9.0, fp16, 2026-11-20; docs/performance.md): a step of a tile of 128
# pixels and 64 output channels, half of which does not depend on the channels of the step.
_STEP_US, _FIXED_PART = 0.2, 0.5
_STEP_PIXELS, _STEP_CHANNELS = 128, 64
_FULL_STEP_BYTES = 128
# Copies of columns, whose addresses take longer than those of rows: a share of the DRAM rate.
_COLUMN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class RowPacking:
    """How a convolution reads rows of its filter as channels; sizes in pixels and elements."""

    problem: ConvProblem  # what is computed
    element_bytes: int  # size of an element of x and the weight
    channels: int  # C', elements of a pixel in memory
    row_pixels: int  # pixels of a row in memory; those of x where it is not copied
    is_copied: bool  # whether x is copied; otherwise its own memory is read
    strides: tuple[int, ...]  # of the overlapping view of x, [N, ([D, ]H, )out_w, S * C']
    columns: bool = False  # whether a pixel in memory holds what a column of the filter reads
    planes: bool = False  # whether the rows that an output row reads are a dimension of the view
    # Whether the packed weight is the filter turned round with its channels swapped, as a gradient
    # of the input needs it; callers pass it as it is.
    is_turned: bool = False

    @classmethod
    def candidates(
        cls, problem: ConvProblem, x_strides: tuple[int, ...], element_bytes: int
    ) -> list[RowPacking]:
        """Returns the packings that im2col can read: rows, planes where there may be some, columns.

        ``x_strides`` are those of x [N, Ci, *input_size], in elements.
        """
        if packing_refusals(problem):
            return []
        rows = cls._in_place(problem, x_strides, element_bytes) or cls._copied(
            problem, problem.in_channels, problem.input_size[:-1], element_bytes
        )
        found = [rows]
        if _has_planes(problem):
            image, row, pixel, one = rows.strides
            step, dilation = problem.stride[0] * row, problem.dilation[0] * row
            found.append(replace(rows, planes=True, strides=(image, step, dilation, pixel, one)))
        if problem.dims > 1 and problem.filter_size[-2] > 1:
            column = problem.filter_size[-2] * problem.in_channels
            outer = (*problem.input_size[:-2], problem.output_size[-2])
            copied = cls._copied(problem, column, outer, element_bytes)
            found.append(replace(copied, columns=True))
        return [each for each in found if not conv_violations(each.packed.geometry)]

    @classmethod
    def _in_place(
        cls, problem: ConvProblem, x_strides: tuple[int, ...], element_bytes: int
    ) -> RowPacking | None:
        """Returns the packing of rows without a copy, where x's own memory can be read."""
        channels, sizes = problem.in_channels, (problem.batch, *problem.input_size[:-1])
        outer = (x_strides[0], *x_strides[2:-1])
        if (
            channels != _aligned_channels(problem, channels, element_bytes)
            or problem.padding[-1][0]
            or _covered(problem) > problem.input_size[-1]
            # Pixels of a row have to be neighbours, and rows to begin on 16 bytes.
            or x_strides[-1] != channels
            or (x_strides[1] != 1 and channels != 1)
            or any(
                size > 1 and stride * element_bytes % ROW_BYTES
                for size, stride in zip(sizes, outer, strict=True)
            )
        ):
            return None
        strides = (*outer, problem.stride[-1] * channels, 1)
        return cls(problem, element_bytes, channels, problem.input_size[-1], False, strides)

    @classmethod
    def _copied(
        cls, problem: ConvProblem, least_channels: int, outer: tuple[int, ...], element_bytes: int
    ) -> RowPacking:
        """Returns a packing with a copy, of ``outer`` rows."""
        channels = _aligned_channels(problem, least_channels, element_bytes)
        unit = ROW_BYTES // math.gcd(ROW_BYTES, channels * element_bytes)
        row_pixels = _up(_covered(problem), unit)
        strides = packed_strides((problem.batch, *outer, row_pixels, channels))[:-2]
        strides = (*strides, problem.stride[-1] * channels, 1)
        return cls(problem, element_bytes, channels, row_pixels, True, strides)

    @property
    def window_channels(self) -> int:
        """S * C', channels of a packed pixel."""
        return self.problem.filter_size[-1] * self.channels

    @property
    def im2col_dims(self) -> int:
        """Spatial dimensions that im2col still has, from the outermost on."""
        return self.problem.dims - (2 if self.columns else 1)

    @property
    def packed(self) -> ConvProblem:
        """The convolution that the kernel computes: one column, S * C' channels."""
        p, kept, ones = (
            self.problem,
            self.im2col_dims,
            (1,) * (self.problem.dims - self.im2col_dims),
        )
        size = (*p.input_size[:kept], *p.output_size[kept:])
        taps = (*p.filter_size[:kept], *ones)
        if self.planes:
            rows, (out_h, out_w) = p.filter_size[0], p.output_size
            kept, ones, size, taps = 0, (1, 1, 1), (out_h, rows, out_w), (1, rows, 1)
        return replace(
            p,
            in_channels=self.window_channels,
            input_size=size,
            filter_size=taps,
            stride=(*p.stride[:kept], *ones),
            padding=(*p.padding[:kept], *(((0, 0),) * len(ones))),
            dilation=(*p.dilation[:kept], *ones),
        )

    @property
    def padded(self) -> ConvProblem:
        """``packed`` with the channels of the packed weight, which are multiples of 16 bytes."""
        return replace(self.packed, in_channels=self.weight_shape[-1])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the overlapping view, channels last."""
        packed = self.packed
        return (packed.batch, *packed.input_size, packed.in_channels)

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Shape of the copy of x, [N, ([D, ]H, )row_pixels, C']."""
        problem = self.problem
        outer = (problem.batch, problem.input_size[0]) if self.planes else self.x_shape[:-2]
        return (*outer, self.row_pixels, self.channels)

    @property
    def kind(self) -> str:
        """Columns, planes or rows, for benchmarks and texts."""
        return "columns" if self.columns else "planes" if self.planes else "rows"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the packed weight, [Co, ([T, ]R, )S * C' rounded up to 16 bytes]."""
        channels = _up(self.window_channels, ROW_BYTES // self.element_bytes)
        return (self.problem.out_channels, *self.packed.filter_size[:-1], channels)

    @property
    def block_k(self) -> int:
        """Channels per step, a power of two, with which a packed filter takes the least time."""
        channels, size = self.window_channels, self.element_bytes
        largest, smallest = channel_block(channels, size, 1), least_block(size)
        blocks = [largest >> shift for shift in range(4) if largest >> shift >= smallest]
        return min(blocks, key=lambda block: math.ceil(channels / block) * _step_us(block * size))

    @property
    def copy_us(self) -> float:
        """Time of the launch that packs x and the weight; 0 where only the weight is packed."""
        problem = self.problem
        if not self.is_copied:
            return 0.0
        shapes = (problem.x_shape, self.memory_shape, problem.w_shape, self.weight_shape)
        copied_bytes = sum(map(math.prod, shapes)) * self.element_bytes
        share = (_COLUMN_SHARE,) if self.columns else ()
        return H200.launch_us + H200.dram_us(copied_bytes, *share)

    def cost(self, num_sms: int) -> tuple[float, float]:
        """Returns the expected times in us, packed and tap by tap: copies and k iterations.

        The second is infinite where im2col has no such stride.
        """
        problem, size = self.problem, self.element_bytes
        tiles = math.ceil(problem.geometry.m_gemm / _STEP_PIXELS)
        waves = math.ceil(tiles * math.ceil(problem.out_channels / _STEP_CHANNELS) / num_sms)

        def gemm_us(taps: int, channels: int, block_k: int) -> float:
            return waves * taps * math.ceil(channels / block_k) * _step_us(block_k * size)

        packed_us = self.copy_us + gemm_us(
            math.prod(problem.filter_size[: self.im2col_dims]), self.window_channels, self.block_k
        )
        if conv_violations(problem.geometry):
            return packed_us, math.inf
        aligned = _up(problem.in_channels, ROW_BYTES // size)
        pixels = problem.batch * math.prod(problem.input_size)
        filled_us = filling_us(pixels, problem.in_channels, size)
        return packed_us, filled_us + gemm_us(
            problem.taps, aligned, channel_block(aligned, size, 1)
        )


def filling_us(pixels: int, channels: int, element_bytes: int) -> float:
    """Returns the time of the copy that pads channels of x or dy to whole 16 bytes, or 0."""
    aligned = _up(channels, ROW_BYTES // element_bytes)
    copied_bytes = pixels * (channels + aligned) * element_bytes
    return 0.0 if aligned == channels else H200.launch_us + H200.dram_us(copied_bytes)


def channel_block(ci: int, element_bytes: int, groups: int) -> int:
    """Returns the channels of a step: one 128-byte swizzle row, or less where there are fewer.

    A block of a group should not reach into the next group: there it divides the ``ci`` channels of
    a group if it can be at least :func:`least_block`.
    """
    largest, smallest = 128 // element_bytes, least_block(element_bytes)
    if groups > 1:
        divisor = math.gcd(ci, largest)
        if divisor >= smallest:
            return divisor
    return min(largest, max(smallest, 1 << (ci - 1).bit_length()))


def least_block(element_bytes: int) -> int:
    """Returns the fewest channels of a step that matrix instructions and Triton take."""
    bits = 8 * element_bytes
    return max(INSTRUCTION_BITS // bits, least_dot_depth(bits))


def packing_refusals(problem: ConvProblem) -> tuple[Refusal, ...]:
    """Returns why rows of a problem's filter cannot be packed; nothing if they can."""
    found = []
    if problem.groups != 1:
        found.append(f"groups={problem.groups}: a window would hold channels of other groups")
    if problem.filter_size[-1] == 1:
        found.append("one tap in W: there is nothing to pack")
    elif problem.dilation[-1] != 1:
        found.append(f"dilation {problem.dilation[-1]} in W: taps are not neighbours")
    return refused(*found)


def geometry_refusals(problem: ConvProblem) -> tuple[Refusal, ...]:
    """Returns why neither im2col nor partial im2col can express a forward convolution.

    An empty batch counts as one image.
    """
    problem = replace(problem, batch=max(problem.batch, 1))
    found: list[str] = conv_violations(problem.geometry)
    unstrided = replace(problem, stride=(1,) * problem.dims)
    if not found or min(problem.stride) < 1 or conv_violations(unstrided.geometry):
        return refused(*found)
    # Steps that im2col cannot make become steps between rows and windows in memory.  The size of an
    # element changes how many channels are in memory, not whether a packing exists.
    if RowPacking.candidates(problem, channels_last_strides(problem.x_shape), 2):
        return ()
    why = "; ".join(map(str, packing_refusals(problem)))
    # Nothing helps the outermost of three dimensions.
    outermost = problem.stride[0] if problem.dims == 3 else 1
    inner = replace(problem, stride=(outermost, 1, 1)[-problem.dims :])
    if why and not conv_violations(inner.geometry):
        found.append(f"larger strides need taps of a row that are read as channels; {why}")
    return refused(*found)


def _step_us(block_bytes: int) -> float:
    """Returns the time of a step of the K loop of a 128x64 tile, of BLOCK_K in bytes."""
    return _STEP_US * (_FIXED_PART + (1 - _FIXED_PART) * block_bytes / _FULL_STEP_BYTES)


def _has_planes(problem: ConvProblem) -> bool:
    """Tells whether rows of an image exist for every row of the filter, in descriptors' order."""
    if problem.dims != 2 or problem.padding[0][0]:
        return False
    taps, outputs = problem.filter_size[0], problem.output_size[0]
    stride, dilation = problem.stride[0], problem.dilation[0]
    # Descriptors have the dimensions in the order of memory.
    is_ordered = dilation <= stride or taps == 1 or outputs == 1
    return is_ordered and (outputs - 1) * stride + (taps - 1) * dilation < problem.input_size[0]


def _covered(problem: ConvProblem) -> int:
    """Returns the pixels of a row from the first window's first to the last one's last."""
    return (problem.output_size[-1] - 1) * problem.stride[-1] + problem.filter_size[-1]


def _aligned_channels(problem: ConvProblem, least: int, element_bytes: int) -> int:
    """Returns the smallest count from ``least`` on with which windows begin on 16 bytes."""
    return _up(least, ROW_BYTES // math.gcd(ROW_BYTES, problem.stride[-1] * element_bytes))


def _up(count: int, unit: int) -> int:
    """Returns a count rounded up to whole units."""
    return -(-count // unit) * unit
