"""Row packing: rows of the filter, or all of it, become the channels of a larger pixel.

With few input channels most of a step of the implicit GEMM is zeros: a step has BLOCK_K channels of
one tap, and 3 channels are rounded up to 16.  Along W, the S taps of a filter row read S
neighbouring pixels, which lie side by side in memory.  So x is described as a tensor whose pixels
overlap,

    [N, ([D, ]H, )out_w, S * C'], strides [..., stride_w * C', 1],

and the convolution becomes one whose filter has a single column.  D and H keep im2col's padding,
stride and dilation; W has none of them left, so its padding has to lie in memory: x is copied into
rows of ``row_pixels`` pixels of C' elements, zeros around what x has.  C' is the smallest count of
at least Ci with which every window begins on 16 bytes, as TMA wants.  Where x has no padding in W
and such channels already, its own memory is read.

Columns go further: a pixel of the copy holds the R pixels that a column of the filter reads, C' is
at least R * Ci, and there are rows for every output row.  Then H is walked by the copy, the filter
has no rows left, and a window is S * C' channels of the whole R x S filter.  The copy is larger by
R / stride_h; half of a step of the GEMM costs the same however few channels it has, so that fewer
and fuller steps may pay for it.

Planes are for strides that im2col has not (it walks 1 to 8), as of the patches in front of a vision
transformer: without padding in H, the R rows that an output row reads are a dimension of the view
as well,

    [N, out_h, R, out_w, S * C'], strides [..., stride_h * row, dilation_h * row, stride_w * C', 1],

over which a filter of R x 1 is a convolution of three dimensions without strides.  Nothing but what
rows need is copied.

A window covers pixels of its own row only, and its channels end behind its last tap, where TMA
reads zeros: what lies beside a window, NaN or not, is never multiplied.

Not handled: groups, and dilation in W, whose taps are not neighbours.  Pure arithmetic: no
tensors, no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from triton_ext import backends
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import H200
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm_config import channel_block, least_block

__all__ = [
    "MARGIN",
    "PackedConfig",
    "PackingCost",
    "RowPacking",
    "filling_us",
    "packing_reasons",
    "step_us",
    "violations",
]

_H200_MULTIPROCESSORS = 132

conv_violations = backends.load("nvidia", "conv_violations")

# A model of an H200 (Triton 3.9.0, fp16, 2026-11-20; docs/performance.md): a step of a tile of 128
# pixels and 64 output channels, half of which does not depend on the channels of the step.
_STEP_US, _FIXED_PART = 0.2, 0.5
_STEP_PIXELS, _STEP_CHANNELS = 128, 64
_FULL_STEP_BYTES = 128
# Copies of columns, whose addresses take longer than those of rows: a part of the rate of copies.
_COLUMN_COPY_RATE = 2.0 / 3.5
#: What the models are believed to miss by: what is packed should be faster by more.
MARGIN = 0.85
# Packed rows that are expected to take so many times what taps take are not measured either.
_HOPELESS = 1.5


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """The choice to pack rows.

    Attributes:
        config: How the packed convolution is computed: what a direction takes otherwise.
    """

    config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPacking:
    """How a convolution reads rows of its filter as channels; sizes in pixels and elements.

    Attributes:
        problem: What is computed.
        element_bytes: Size of an element of x and the weight.
        columns: Whether a pixel in memory holds what a column of the filter reads.
        planes: Whether the rows that an output row reads are a dimension of the view.
        channels: C', elements of a pixel in memory.
        row_pixels: Pixels of a row in memory; those of x where it is not copied.
        is_copied: Whether x is copied; otherwise its own memory is read.
        strides: Of the overlapping view of x, [N, ([D, ]H, )out_w, S * C'].
        is_turned: Whether the weight that is packed is the filter turned round, as a gradient of
            the input wants it; it is given as it is.
    """

    problem: ConvProblem
    element_bytes: int
    columns: bool
    channels: int
    row_pixels: int
    is_copied: bool
    strides: tuple[int, ...]
    is_turned: bool = False
    planes: bool = False

    @classmethod
    def make(
        cls,
        problem: ConvProblem,
        x_strides: tuple[int, ...],
        element_bytes: int,
        num_sms: int = _H200_MULTIPROCESSORS,
    ) -> RowPacking | None:
        """Returns how rows are packed in the least time; ``None`` where they cannot be.

        Args:
            problem: What is computed.
            x_strides: Of x [N, Ci, *input_size], in elements.
            element_bytes: Size of an element.
            num_sms: Multiprocessors of the GPU.
        """
        ways = cls.ways(problem, x_strides, element_bytes, with_planes=True)
        return min(ways, key=lambda way: way.cost(num_sms).packed_us, default=None)

    @classmethod
    def ways(
        cls,
        problem: ConvProblem,
        x_strides: tuple[int, ...],
        element_bytes: int,
        *,
        with_planes: bool = False,
    ) -> list[RowPacking]:
        """Returns how rows can be packed: rows, planes where they may be, then columns.

        Other arguments as for :meth:`make`.

        Args:
            with_planes: Whether the caller computes in three dimensions what had two.
        """
        if packing_reasons(problem):
            return []
        rows = cls._rows(problem, x_strides, element_bytes)
        found = [rows]
        if with_planes and _has_planes(problem):
            found.append(rows._with_planes())
        if problem.dims > 1 and problem.filter_size[-2] > 1:
            found.append(cls._columns(problem, element_bytes))
        return [way for way in found if not conv_violations(way.packed.geometry)]

    @classmethod
    def _rows(
        cls, problem: ConvProblem, x_strides: tuple[int, ...], element_bytes: int
    ) -> RowPacking:
        channels = _aligned_channels(problem, problem.in_channels, element_bytes)
        in_place = (
            channels == problem.in_channels
            and problem.padding[-1][0] == 0
            and _covered(problem) <= problem.input_size[-1]
            and _is_aligned(problem, x_strides, element_bytes)
        )
        if not in_place:
            return cls._copied(problem, channels, problem.input_size[:-1], element_bytes)
        return cls(
            problem=problem,
            element_bytes=element_bytes,
            columns=False,
            channels=channels,
            row_pixels=problem.input_size[-1],
            is_copied=False,
            strides=(x_strides[0], *x_strides[2:-1], problem.stride[-1] * channels, 1),
        )

    def _with_planes(self) -> RowPacking:
        """Returns rows whose outer walk is part of the view."""
        image, row, pixel, one = self.strides
        (step, _), (dilation, _) = self.problem.stride, self.problem.dilation
        return replace(self, planes=True, strides=(image, step * row, dilation * row, pixel, one))

    @classmethod
    def _columns(cls, problem: ConvProblem, element_bytes: int) -> RowPacking:
        column = problem.filter_size[-2] * problem.in_channels
        channels = _aligned_channels(problem, column, element_bytes)
        outer = (*problem.input_size[:-2], problem.output_size[-2])
        return cls._copied(problem, channels, outer, element_bytes, columns=True)

    @classmethod
    def _copied(
        cls,
        problem: ConvProblem,
        channels: int,
        outer: tuple[int, ...],
        element_bytes: int,
        columns: bool = False,
    ) -> RowPacking:
        """Returns a packing with a copy, of ``outer`` rows."""
        unit = ROW_BYTES // math.gcd(ROW_BYTES, channels * element_bytes)
        row_pixels = math.ceil(_covered(problem) / unit) * unit
        strides = packed_strides((problem.batch, *outer, row_pixels, channels))[:-2]
        return cls(
            problem=problem,
            element_bytes=element_bytes,
            columns=columns,
            channels=channels,
            row_pixels=row_pixels,
            is_copied=True,
            strides=(*strides, problem.stride[-1] * channels, 1),
        )

    @property
    def window_channels(self) -> int:
        """S * C', channels of a packed pixel."""
        return self.problem.filter_size[-1] * self.channels

    @property
    def walked(self) -> int:
        """Spatial dimensions that im2col still walks, from the outermost on."""
        return self.problem.dims - (2 if self.columns else 1)

    @property
    def packed(self) -> ConvProblem:
        """The convolution that the kernel computes: one column, S * C' channels."""
        problem, walked = self.problem, self.walked
        if self.planes:
            rows, (out_h, out_w) = problem.filter_size[0], problem.output_size
            return replace(
                problem,
                in_channels=self.window_channels,
                input_size=(out_h, rows, out_w),
                filter_size=(1, rows, 1),
                stride=(1, 1, 1),
                padding=((0, 0),) * 3,
                dilation=(1, 1, 1),
            )
        rest = problem.dims - walked
        return replace(
            problem,
            in_channels=self.window_channels,
            input_size=(*problem.input_size[:walked], *problem.output_size[walked:]),
            filter_size=(*problem.filter_size[:walked], *(1,) * rest),
            stride=(*problem.stride[:walked], *(1,) * rest),
            padding=(*problem.padding[:walked], *((0, 0),) * rest),
            dilation=(*problem.dilation[:walked], *(1,) * rest),
        )

    @property
    def padded(self) -> ConvProblem:
        """``packed`` with the channels of the packed weight, which are multiples of 16 bytes."""
        return replace(self.packed, in_channels=self.weight_shape[-1])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Of the overlapping view, channels last."""
        packed = self.packed
        return (packed.batch, *packed.input_size, packed.in_channels)

    @property
    def x_strides(self) -> tuple[int, ...]:
        """``strides`` in the order [N, S * C', ([D, ]H, )out_w], as a problem's x has them."""
        return (self.strides[0], self.strides[-1], *self.strides[1:-1])

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Of the copy of x, [N, ([D, ]H, )row_pixels, C']."""
        problem = self.problem
        outer = (problem.batch, problem.input_size[0]) if self.planes else self.x_shape[:-2]
        return (*outer, self.row_pixels, self.channels)

    @property
    def kind(self) -> str:
        """The way in a word, for benchmarks and texts."""
        return "columns" if self.columns else "planes" if self.planes else "rows"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the packed weight, [Co, ([T, ]R, )S * C' rounded up to 16 bytes]."""
        unit = ROW_BYTES // self.element_bytes
        channels = math.ceil(self.window_channels / unit) * unit
        return (self.problem.out_channels, *self.packed.filter_size[:-1], channels)

    @property
    def block_k(self) -> int:
        """Channels per step with which a packed filter takes the least time."""
        return _best_block(self.window_channels, self.element_bytes)

    @property
    def k_gemm(self) -> int:
        """Multiplications per output element, with what rounding to BLOCK_K adds."""
        rows = math.prod(self.problem.filter_size[: self.walked])
        return rows * math.ceil(self.window_channels / self.block_k) * self.block_k

    @property
    def copied_bytes(self) -> int:
        """Bytes that packing reads and writes, x and weight; 0 where x is read in place."""
        if not self.is_copied:
            return 0
        problem = self.problem
        elements = math.prod(problem.x_shape) + math.prod(self.memory_shape)
        elements += math.prod(problem.w_shape) + math.prod(self.weight_shape)
        return elements * self.element_bytes

    def cost(self, num_sms: int) -> PackingCost:
        """Compares with the convolution tap by tap.

        Args:
            num_sms: Multiprocessors of the GPU.
        """
        problem = self.problem
        tiles = math.ceil(problem.geometry.m_gemm / _STEP_PIXELS)
        tiles *= math.ceil(problem.out_channels / _STEP_CHANNELS)
        waves = math.ceil(tiles / num_sms)

        def gemm_us(k_gemm: int, block_k: int) -> float:
            return waves * k_gemm / block_k * step_us(block_k * self.element_bytes)

        unit = ROW_BYTES // self.element_bytes
        aligned = math.ceil(problem.in_channels / unit) * unit
        block_k = channel_block(aligned, self.element_bytes, 1)
        unpacked_k = problem.taps * math.ceil(aligned / block_k) * block_k
        unpacked_us = gemm_us(unpacked_k, block_k) + self._filling_us
        if conv_violations(problem.geometry):
            # im2col cannot walk it tap by tap.
            unpacked_us = math.inf
        return PackingCost(
            k_gemm=self.k_gemm,
            unpacked_k_gemm=unpacked_k,
            packed_us=gemm_us(self.k_gemm, self.block_k) + self.copy_us,
            unpacked_us=unpacked_us,
        )

    @property
    def _filling_us(self) -> float:
        """Time of the copies tap by tap: missing channels of x are filled up."""
        problem = self.problem
        pixels = problem.batch * math.prod(problem.input_size)
        return filling_us(pixels, problem.in_channels, self.element_bytes)

    @property
    def copy_us(self) -> float:
        """Time in which one launch packs x and the weight; of a weight alone, within the error."""
        rate = H200.copy_bytes_per_us * (_COLUMN_COPY_RATE if self.columns else 1.0)
        return H200.launch_us + self.copied_bytes / rate if self.is_copied else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCost:
    """What packing changes; times are a model's, of copies and of steps of the K loop.

    Attributes:
        k_gemm: Multiplications per output element, packed; those with zeros count.
        unpacked_k_gemm: The same tap by tap.
        packed_us: Time of copies and steps, packed.
        unpacked_us: The same tap by tap; infinite where im2col has no such stride.
    """

    k_gemm: int
    unpacked_k_gemm: int
    packed_us: float
    unpacked_us: float

    @property
    def pays(self) -> bool:
        """Whether packing is expected to be clearly faster."""
        return self.packed_us < MARGIN * self.unpacked_us

    @property
    def is_hopeless(self) -> bool:
        """Whether it need not be measured to know that it does not pay."""
        return self.packed_us > _HOPELESS * self.unpacked_us

    @property
    def too_slow(self) -> str:
        """Why it is not taken to pay, with both times; empty where it is."""
        if self.pays:
            return ""
        return (
            f"copies and steps of packed rows take {self.packed_us:.1f} us, tap by tap "
            f"{self.unpacked_us:.1f}: expected less than {MARGIN} of that"
        )


def filling_us(pixels: int, channels: int, element_bytes: int) -> float:
    """Returns the time in which channels are filled up to whole 16 bytes; 0 where they are.

    Args:
        pixels: Of x or dy.
        channels: Of a pixel.
        element_bytes: Size of an element.
    """
    unit = ROW_BYTES // element_bytes
    aligned = math.ceil(channels / unit) * unit
    if aligned == channels:
        return 0.0
    elements = pixels * (channels + aligned)
    return H200.launch_us + elements * element_bytes / H200.copy_bytes_per_us


def packing_reasons(problem: ConvProblem) -> tuple[str, ...]:
    """Returns why rows of a problem's filter cannot be packed; nothing if they can.

    Args:
        problem: What is computed.
    """
    found = []
    if problem.groups != 1:
        found.append(f"groups={problem.groups}: a window would hold channels of other groups")
    if problem.filter_size[-1] == 1:
        found.append("one tap in W: there is nothing to pack")
    elif problem.dilation[-1] != 1:
        found.append(f"dilation {problem.dilation[-1]} in W: taps are not neighbours")
    return tuple(found)


def violations(problem: ConvProblem) -> list[str]:
    """Returns what neither im2col nor packed rows can express of a forward convolution.

    Args:
        problem: What is computed; an empty batch counts as one image.
    """
    problem = replace(problem, batch=max(problem.batch, 1))
    found: list[str] = conv_violations(problem.geometry)
    unstrided = replace(problem, stride=(1,) * problem.dims)
    if not found or min(problem.stride) < 1 or conv_violations(unstrided.geometry):
        return found
    # Steps that im2col cannot make are steps between rows and windows in memory.
    strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
    x_strides = (strides[0], 1, *strides[1:-1])
    # The size of an element changes how many channels are in memory, not whether it can be.
    if RowPacking.ways(problem, x_strides, 2, with_planes=True):
        return []
    why = "; ".join(packing_reasons(problem))
    # Nothing helps the outermost of three dimensions.
    outermost = problem.stride[0] if problem.dims == 3 else 1
    inner = replace(problem, stride=(outermost, 1, 1)[-problem.dims :])
    if why and not conv_violations(inner.geometry):
        found.append(f"larger strides need taps of a row that are read as channels; {why}")
    return found


def step_us(block_bytes: int) -> float:
    """Returns the time of a step of the K loop of a 128x64 tile.

    Args:
        block_bytes: BLOCK_K in bytes.
    """
    return _STEP_US * (_FIXED_PART + (1 - _FIXED_PART) * block_bytes / _FULL_STEP_BYTES)


def _has_planes(problem: ConvProblem) -> bool:
    """Whether rows of an image are there for every row of the filter."""
    if problem.dims != 2 or problem.padding[0][0]:
        return False
    # Descriptors have the dimensions in the order of memory.
    is_ordered = problem.dilation[0] <= problem.stride[0]
    if not is_ordered and problem.filter_size[0] > 1 and problem.output_size[0] > 1:
        return False
    reach = (problem.filter_size[0] - 1) * problem.dilation[0]
    last = (problem.output_size[0] - 1) * problem.stride[0] + reach
    return last < problem.input_size[0]


def _covered(problem: ConvProblem) -> int:
    """Returns the pixels of a row from the first window's first to the last one's last."""
    return (problem.output_size[-1] - 1) * problem.stride[-1] + problem.filter_size[-1]


def _aligned_channels(problem: ConvProblem, least: int, element_bytes: int) -> int:
    """Returns the smallest count from ``least`` on with which windows begin on 16 bytes."""
    unit = ROW_BYTES // math.gcd(ROW_BYTES, problem.stride[-1] * element_bytes)
    return math.ceil(least / unit) * unit


def _is_aligned(problem: ConvProblem, x_strides: tuple[int, ...], element_bytes: int) -> bool:
    """Whether pixels of a row lie side by side, and rows begin on 16 bytes."""
    size, strides = problem.input_size, x_strides
    if strides[-1] != problem.in_channels or (strides[1] != 1 and problem.in_channels > 1):
        return False
    outer = zip((problem.batch, *size[:-1]), (strides[0], *strides[2:-1]), strict=True)
    return all(extent == 1 or stride * element_bytes % ROW_BYTES == 0 for extent, stride in outer)


def _best_block(channels: int, element_bytes: int) -> int:
    """Returns the channels per step, a power of two, with which channels take the least time."""
    largest = channel_block(channels, element_bytes, 1)
    smallest = least_block(element_bytes)
    blocks = [largest >> shift for shift in range(4) if largest >> shift >= smallest]
    return min(
        blocks, key=lambda block: math.ceil(channels / block) * step_us(block * element_bytes)
    )
