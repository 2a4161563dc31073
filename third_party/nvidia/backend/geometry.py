"""Geometry of convolutions and of im2col tensor maps, as plain records.

:class:`ConvGeometry` speaks of a convolution (filter, stride, padding, dilation) and derives what
the TMA unit needs.  :class:`Im2ColGeometry` is what the driver sees, in the driver's own terms.
Both are pure arithmetic: no GPU, torch, numpy or triton.  Every array is in user order, outermost
dimension first (N, [D, [H,]] W, C); the driver's order, innermost first, exists only in
``tensor_map.c``.

Neither record refuses a value that is merely illegal: the validator (``validation.py``) lists all
that is wrong in one error.  Only arguments without a meaning (a padding of three entries for two
spatial dimensions) are refused here.

Sources: CUDA driver API, ``cuTensorMapEncodeIm2col``; PTX ISA, section "Tensors", im2col mode.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from triton_ext.errors import DescriptorError

__all__ = [
    "DTYPE_BYTES",
    "ConvGeometry",
    "Im2ColGeometry",
    "PackedWalk",
    "dim_letter",
    "dim_name",
    "is_sequence",
    "normalize_conv",
    "normalize_dtype",
    "packed_size_one_strides",
]

# Triton's dtype names that TMA moves, with their size in bytes.
DTYPE_BYTES: dict[str, int] = {
    "i8": 1,
    "u8": 1,
    "fp8e4nv": 1,
    "fp8e4b8": 1,
    "fp8e4b15": 1,
    "fp8e5": 1,
    "fp8e5b16": 1,
    "i16": 2,
    "u16": 2,
    "fp16": 2,
    "bf16": 2,
    "i32": 4,
    "u32": 4,
    "fp32": 4,
}

# Names of torch, numpy and triton.language.
_DTYPE_NAMES: dict[str, str] = {
    "bfloat16": "bf16",
    "bool": "u1",
    "double": "fp64",
    "float": "fp32",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8_e5m2fnuz": "fp8e5b16",
    "half": "fp16",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "int8": "i8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "uint8": "u8",
}

_DIM_NAMES: dict[int, str] = {3: "NWC", 4: "NHWC", 5: "NDHWC"}

_GLOBAL_STRIDE_ALIGNMENT_BYTES = 16


def normalize_dtype(dtype: object) -> str:
    """Returns Triton's short name of a torch, numpy or Triton dtype (``"fp16"``).

    A dtype we have no name for keeps its own (``"complex64"``); the validator refuses it by that.
    """
    name = str(dtype).rsplit(".", 1)[-1]
    return _DTYPE_NAMES.get(name, name)


def dim_name(rank: int, dim: int) -> str:
    """Returns how messages call a dimension: ``"dim 1 (H)"``, or ``"dim 1"`` for an odd rank."""
    letters = _DIM_NAMES.get(rank)
    return f"dim {dim}" if letters is None else f"dim {dim} ({letters[dim]})"


def dim_letter(rank: int, dim: int) -> str:
    """Returns the letter of a dimension of an N(D)(H)WC tensor: ``"H"``."""
    return _DIM_NAMES[rank][dim]


def packed_size_one_strides(
    shape: Sequence[int], strides: Sequence[int], element_bytes: int
) -> tuple[int, ...]:
    """Replaces the strides of dimensions of size 1 by what a packed tensor would have there.

    PyTorch leaves such strides arbitrary, and no address depends on them.  The driver checks them
    all the same, so the packed stride is rounded up to 16 bytes.

    Args:
        shape: Sizes in elements, outermost first.
        strides: Strides in elements, outermost first.
        element_bytes: Size of one element, 1, 2 or 4.

    Returns:
        Strides in elements, outermost first.
    """
    result = list(strides)
    unit = max(1, _GLOBAL_STRIDE_ALIGNMENT_BYTES // element_bytes)
    for dim in range(len(shape) - 1, -1, -1):
        if shape[dim] != 1:
            continue
        if dim == len(shape) - 1:
            result[dim] = 1
        else:
            result[dim] = -(-abs(result[dim + 1] * shape[dim + 1]) // unit) * unit
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvGeometry:
    """A convolution over an N(D)(H)WC tensor; build it with :meth:`make`.

    Attributes:
        input_shape: (N, [D, [H,]] W, C) in elements.
        filter_size: Taps per spatial dimension, ([T, [R,]] S).
        stride: Step of the filter per spatial dimension.
        padding: (low, high) per spatial dimension, in pixels; the two may differ.
        dilation: Distance of neighbouring taps per spatial dimension, in pixels.
    """

    input_shape: tuple[int, ...]
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @classmethod
    def make(
        cls,
        input_shape: Sequence[int],
        filter_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
    ) -> ConvGeometry:
        """Builds a geometry from arguments as torch takes them.

        Args:
            input_shape: (N, [D, [H,]] W, C).
            filter_size: One int for all spatial dimensions, or one per dimension.
            stride: As filter_size.
            padding: One int, one int per dimension, or one (low, high) pair per dimension.
            dilation: As filter_size.

        Raises:
            DescriptorError: The rank is not 3, 4 or 5, or an argument has the wrong length.
            TypeError: An argument holds something else than integers.
        """
        geometry, problems = normalize_conv(input_shape, filter_size, stride, padding, dilation)
        if geometry is None or problems:
            raise DescriptorError("; ".join(problems.values()))
        return geometry

    @property
    def rank(self) -> int:
        """Rank of the input tensor: 3, 4 or 5."""
        return len(self.input_shape)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """([D, [H,]] W) of the input."""
        return self.input_shape[1:-1]

    @property
    def filter_reach(self) -> tuple[int, ...]:
        """Distance of the last tap from the first, (R - 1) * dilation, per spatial dimension."""
        return tuple((r - 1) * d for r, d in zip(self.filter_size, self.dilation, strict=True))

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output pixels per spatial dimension; 0 where the filter does not fit.

        ``floor((S + low + high - (R - 1) * dilation - 1) / stride) + 1``, as torch computes it.
        """
        return tuple(
            0 if step < 1 else max(0, (size + low + high - reach - 1) // step + 1)
            for size, (low, high), reach, step in zip(
                self.spatial_shape, self.padding, self.filter_reach, self.stride, strict=True
            )
        )

    @property
    def pixels_read(self) -> int:
        """Input pixels that the filter sees, at most; with a larger stride there are gaps."""
        sizes = zip(self.spatial_shape, self.output_size, self.filter_size, strict=True)
        return self.input_shape[0] * math.prod(min(size, out * taps) for size, out, taps in sizes)

    @property
    def m_gemm(self) -> int:
        """Rows of the implicit GEMM: output pixels of all images, N * prod(output_size)."""
        return self.input_shape[0] * math.prod(self.output_size)

    @property
    def k_gemm(self) -> int:
        """Reduction length of the implicit GEMM: prod(filter_size) * C."""
        return math.prod(self.filter_size) * self.input_shape[-1]

    @property
    def pixel_box_lower_corner(self) -> tuple[int, ...]:
        """First legal position of filter tap 0 per spatial dimension, ``-low``."""
        return tuple(-low for low, _ in self.padding)

    @property
    def pixel_box_upper_corner(self) -> tuple[int, ...]:
        """Last legal position of filter tap 0, relative to the last pixel of the dimension.

        Tap 0 may go as far as its last tap stays within the high padding:
        ``high - (R - 1) * dilation``.  The stride is not in it, so the corner does not depend on
        the image size (as CUTLASS computes it, ``include/cutlass/conv``).
        """
        return tuple(
            high - reach for (_, high), reach in zip(self.padding, self.filter_reach, strict=True)
        )

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Step of the TMA walk per dimension of the tensor: the conv stride; 1 for N and C."""
        return (1, *self.stride, 1)

    def start(self, pixel: int) -> tuple[int, ...]:
        """Returns the coordinates (n, [d, [h,]] w) at which the walk of an output pixel starts.

        Args:
            pixel: Row of the implicit GEMM; rows from m_gemm on start at n >= N and load zeros.
        """
        index = operator.index(pixel)
        position: list[int] = []
        for extent, (low, _), step in zip(
            reversed(self.output_size), reversed(self.padding), reversed(self.stride), strict=True
        ):
            index, out = divmod(index, extent)
            position.append(out * step - low)
        return (index, *reversed(position))

    def filter_offset(self, tap: Sequence[int]) -> tuple[int, ...]:
        """Returns the im2col offsets of a filter tap, tap * dilation per spatial dimension."""
        return tuple(t * d for t, d in zip(tap, self.dilation, strict=True))


class PackedWalk:
    """Where a walk stands in the two 64-bit numbers that a kernel gets as strides.

    A kernel of an im2col load reads no strides, so the launcher passes the walk in their place, and
    ``im2col_start(row, desc)`` needs no further arguments.  The last number has the sizes of W and
    H; the one before the size of D, the steps less 1 of D, H and W, and the starts, 16 bits shared
    by the dimensions that the tensor has.
    """

    SIZE_BITS = 31
    STEP, STEP_BITS = 31, 3
    START, START_BITS = 40, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Im2ColGeometry:
    """An im2col tensor map as the driver sees it, arrays outermost first.

    Attributes:
        shape: (N, [D, [H,]] W, C) in elements.
        strides: In elements, one per dimension; the last is 1.
        element_bytes: Size of one element.
        dtype: Triton's name of the element type, such as ``"fp16"``.
        pixel_box_lower_corner: First position of the box per spatial dimension.
        pixel_box_upper_corner: Last position per spatial dimension, relative to the last pixel.
        element_strides: Step of the walk per dimension, 1 for N and C.
        pixels_per_column: Pixels of a block, counted over N, D, H and W together.
        channels_per_pixel: Channels of a block.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int
    dtype: str
    pixel_box_lower_corner: tuple[int, ...]
    pixel_box_upper_corner: tuple[int, ...]
    element_strides: tuple[int, ...]
    pixels_per_column: int
    channels_per_pixel: int

    @property
    def rank(self) -> int:
        """Rank of the tensor: 3, 4 or 5."""
        return len(self.shape)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """([D, [H,]] W) of the tensor."""
        return self.shape[1:-1]

    @property
    def box_first(self) -> tuple[int, ...]:
        """First coordinate inside the pixel box, per spatial dimension."""
        return self.pixel_box_lower_corner

    @property
    def box_last(self) -> tuple[int, ...]:
        """Last coordinate inside the pixel box (inclusive), per spatial dimension."""
        return tuple(
            size - 1 + upper
            for size, upper in zip(self.spatial_shape, self.pixel_box_upper_corner, strict=True)
        )

    @property
    def walk_size(self) -> tuple[int, ...]:
        """Positions that the walk visits per spatial dimension; 0 for an empty box.

        For a convolution this is its output size.
        """
        return tuple(
            0 if step < 1 else max(0, (last - first) // step + 1)
            for first, last, step in zip(
                self.box_first, self.box_last, self.element_strides[1:-1], strict=True
            )
        )

    @property
    def packed_walk(self) -> tuple[int, int]:
        """Size, step and start of the walk as two numbers of 62 bits; see ``PackedWalk``."""
        sizes, steps, starts = [0] * 3, [0] * 3, 0
        rank = len(self.box_first)
        bits = PackedWalk.START_BITS // rank
        for index in range(rank):
            sizes[3 - rank + index] = self.walk_size[index]
            steps[3 - rank + index] = self.element_strides[index + 1] - 1
            # Corners are signed: the sign bit is flipped.
            starts |= (self.box_first[index] + (1 << bits - 1)) << bits * (rank - 1 - index)
        low = sizes[2] | sizes[1] << PackedWalk.SIZE_BITS
        high = sizes[0]
        for index, step in enumerate(steps):
            high |= step << PackedWalk.STEP + PackedWalk.STEP_BITS * index
        return high | starts << PackedWalk.START, low

    @property
    def walk_pixels(self) -> int:
        """Pixels that the walk visits in the whole tensor, N * prod(walk_size)."""
        return self.shape[0] * math.prod(self.walk_size)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Tells whether a value is a list, a tuple or like them: in order, and neither text nor bytes.

    Sets and dictionaries have no order, an iterator can be read once, and the items of bytes are
    ints only by accident.
    """
    return isinstance(value, Sequence) and not isinstance(
        value, (str, bytes, bytearray, memoryview)
    )


def _integer(name: str, value: object) -> int:
    """Returns ``value`` as an int, or raises a TypeError that names the argument."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int or a sequence of ints, got {value!r}") from None


def _per_dim(
    name: str, value: object, count: int, neutral: int, problems: dict[str, str]
) -> tuple[int, ...]:
    """Spreads one int over ``count`` dimensions; a sequence of another length becomes neutral."""
    if not is_sequence(value):
        return (_integer(name, value),) * count
    items = tuple(_integer(name, item) for item in value)
    if len(items) != count:
        problems[name] = f"{name} {items} has {len(items)} entries, expected {count} (spatial dims)"
        return (neutral,) * count
    return items


def _padding_pairs(
    value: object, count: int, problems: dict[str, str]
) -> tuple[tuple[int, int], ...]:
    """Turns the accepted spellings of padding into one (low, high) pair per dimension."""
    if not is_sequence(value):
        amount = _integer("padding", value)
        return ((amount, amount),) * count
    pairs: list[tuple[int, int]] = []
    wrong: list[str] = []
    for item in value:
        if is_sequence(item):
            entries = tuple(_integer("padding", entry) for entry in item)
            if len(entries) != 2:
                wrong.append(f"padding {entries} is not a (low, high) pair")
                entries = (0, 0)
            pairs.append((entries[0], entries[1]))
        else:
            amount = _integer("padding", item)
            pairs.append((amount, amount))
    if len(pairs) != count:
        wrong.append(f"padding {value!r} has {len(pairs)} entries, expected {count} (spatial dims)")
    if wrong:
        problems["padding"] = "; ".join(wrong)
        return ((0, 0),) * count
    return tuple(pairs)


def normalize_conv(
    input_shape: Sequence[int],
    filter_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int] | Sequence[Sequence[int]],
    dilation: int | Sequence[int],
) -> tuple[ConvGeometry | None, dict[str, str]]:
    """Brings the arguments of :meth:`ConvGeometry.make` into one form.

    Returns:
        The geometry, ``None`` where the rank of the input has no meaning, and what is wrong with
        arguments of the wrong length, by name: the geometry has neutral values in their place.

    Raises:
        TypeError: An argument holds something else than integers.
    """
    shape = tuple(_integer("input_shape", size) for size in input_shape)
    if len(shape) not in _DIM_NAMES:
        return None, {
            "input_shape": "im2col needs a 3-, 4- or 5-D tensor (N, spatial..., C), got rank "
            f"{len(shape)}"
        }
    count = len(shape) - 2
    problems: dict[str, str] = {}
    geometry = ConvGeometry(
        input_shape=shape,
        filter_size=_per_dim("filter_size", filter_size, count, 1, problems),
        stride=_per_dim("stride", stride, count, 1, problems),
        padding=_padding_pairs(padding, count, problems),
        dilation=_per_dim("dilation", dilation, count, 1, problems),
    )
    return geometry, problems
