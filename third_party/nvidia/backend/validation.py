"""Checks of im2col descriptors before the driver sees them.

The driver answers every bad argument of ``cuTensorMapEncodeIm2col`` with the one code
CUDA_ERROR_INVALID_VALUE.  The functions here find all that is wrong, say it in terms of the
convolution where there is one, and name a legal value.  Nothing that they accept is refused by the
driver (checked with driver 580.159, CUDA 13.0, on an H200).

They are stricter than the driver on purpose where a map would be encoded that is useless or wrong
for a kernel:

- element strides of N and C must be 1 (the driver takes up to 8);
- strides must be positive and must not decrease towards the outer dimensions (the driver takes 0
  and any order: expanded and permuted views);
- element types of 8, 16 and 32 bits only (the driver takes 64-bit types; Triton loads none);
- blocks are powers of two, as Triton's are, are at least 16 bytes of channels wide, which their
  boxes must divide, and fit the shared memory of a CTA;
- spatial dimensions and the pixels of the walk fit an int32, the index type of kernels (the driver
  takes a dimension of 2^32, but refuses one of 2^31 and more that is walked in steps above 1).

Strides of dimensions of size 1 mean nothing and are never a reason to refuse: they are replaced by
the packed stride first (``geometry.packed_size_one_strides``).

Sources: CUDA driver API, ``cuTensorMapEncodeIm2col``; PTX ISA, ``cp.async.bulk.tensor`` (im2col
offsets); CUDA C++ Programming Guide, technical specifications per compute capability (227 KiB).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from triton_ext.backends.nvidia.backend.driver_types import ElementType, Swizzle
from triton_ext.backends.nvidia.backend.geometry import (
    DTYPE_BYTES,
    ConvGeometry,
    Im2ColGeometry,
    dim_letter,
    dim_name,
)
from triton_ext.errors import DescriptorError

__all__ = [
    "MAX_CHANNELS",
    "MAX_ELEMENT_STRIDE",
    "MAX_PIXELS",
    "SHARED_MEMORY_BYTES",
    "SPATIAL_LIMITS",
    "SpatialLimits",
    "address_violations",
    "advice_on_order",
    "block_violations",
    "conv_violations",
    "descriptor_error",
    "layout_violations",
    "violations",
]

MAX_PIXELS = 1024
MAX_CHANNELS = 256
MAX_ELEMENT_STRIDE = 8
SHARED_MEMORY_BYTES = 227 * 1024
_MAX_DIM = 1 << 32
_MAX_STRIDE_BYTES = 1 << 40
_MAX_INT32 = (1 << 31) - 1
_ALIGNMENT_BYTES = 16
# Images of three colours are larger; NHWC tensors of three rows have fewer columns or channels.
_IMAGE_PIXELS = 16


@dataclass(frozen=True, slots=True)
class SpatialLimits:
    """Ranges that depend on the number of spatial dimensions.

    Attributes:
        corner_min: Smallest value of a pixel box corner.
        corner_max: Largest value of a pixel box corner.
        offset_max: Largest im2col offset; the smallest is 0.
    """

    corner_min: int
    corner_max: int
    offset_max: int


# By number of spatial dimensions.  Corners: CUDA driver API; offsets: PTX ISA.
SPATIAL_LIMITS: dict[int, SpatialLimits] = {
    1: SpatialLimits(-32768, 32767, 65535),
    2: SpatialLimits(-128, 127, 255),
    3: SpatialLimits(-16, 15, 31),
}


def descriptor_error(problems: Sequence[str]) -> DescriptorError:
    """Returns one error that lists all problems, one per line when there are several."""
    if len(problems) == 1:
        return DescriptorError(problems[0])
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return DescriptorError(f"im2col descriptor breaks {len(problems)} rules:{lines}")


def advice_on_order(
    shape: Sequence[int], strides: Sequence[int]
) -> tuple[str, Literal["certain", "likely", "possible"]]:
    """Returns what to pass instead of a tensor in torch's order of dimensions: N, C, spatial.

    Args:
        shape: Sizes in elements, outermost first.
        strides: In elements.

    Returns:
        The advice, empty for tensors that it is not about, and how sure it is.  It is certain for
        channels-last memory.  Contiguous memory may be in either order; torch's is likely where H
        and W are equal and differ from the second size, or where the second size is 3 (images).
    """
    rank = len(shape)
    if rank not in (3, 4, 5) or len(strides) != rank:
        return "", "possible"
    order = ", ".join(("N", "C", *"DHW"[5 - rank :]))
    expected = ", ".join(("N", *"DHW"[5 - rank :], "C"))
    advice = f"expected the order [{expected}], found x of {list(shape)}"
    contiguous = _contiguous_strides(shape)
    batch, *spatial, channels = _contiguous_strides((shape[0], *shape[2:], shape[1]))
    if tuple(strides) == (batch, channels, *spatial) != contiguous:
        return f"{advice}, channels-last [{order}]; pass x.movedim(1, -1)", "certain"
    if tuple(strides) != contiguous:
        return "", "possible"
    copy = "x.movedim(1, -1).contiguous()"
    if rank > 3:
        memory_format = "channels_last" if rank == 4 else "channels_last_3d"
        copy = f"x.contiguous(memory_format=torch.{memory_format}).movedim(1, -1)"
    is_likely = _looks_like_torch(shape)
    what = "which looks like" if is_likely else "which may be"
    advice = f"{advice}, {what} [{order}]; if it is, pass {copy}"
    return advice, "likely" if is_likely else "possible"


def _looks_like_torch(shape: Sequence[int]) -> bool:
    """Returns whether sizes look like N, C, spatial rather than N, spatial, C."""
    if len(shape) == 3:
        return False
    _, second, *rest = shape
    if second == 3 and min(rest) > _IMAGE_PIXELS:
        return True
    if len(rest) == 3 and rest[1] == rest[2] != rest[0]:
        return second not in (1, rest[1])
    return len({*rest}) == 1 and second not in (1, rest[0])


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _binary_parts(value: int) -> list[int]:
    """Returns the powers of two that add up to ``value``, largest first."""
    return [1 << bit for bit in range(value.bit_length() - 1, -1, -1) if value >> bit & 1]


def address_violations(address: int) -> list[str]:
    """Lists what is wrong with a base address, in bytes: TMA wants 16-byte alignment."""
    off = address % _ALIGNMENT_BYTES
    if off == 0:
        return []
    return [
        f"base address must be {_ALIGNMENT_BYTES}-byte aligned, is off by {off}; "
        "a sliced view often causes this"
    ]


def _element_problems(
    dtype: str, padding: str, round_f32_to_tf32: bool, is_conv: bool
) -> list[str]:
    """Element type and fill value."""
    problems: list[str] = []
    if dtype not in DTYPE_BYTES:
        problems.append(f"dtype {dtype} not supported (8-, 16-, 32-bit only)")
    name = "fill" if is_conv else "padding"
    if not isinstance(padding, str) or padding not in ("zero", "nan"):
        problems.append(f'{name} must be "zero" or "nan", got {padding!r}')
    elif padding == "nan" and dtype not in ("fp16", "bf16", "fp32"):
        note = " (TMA moves fp8 as 8-bit integers)" if dtype.startswith("fp8") else ""
        problems.append(f'{name}="nan" needs a float dtype of 16 or 32 bits, got {dtype}{note}')
    if round_f32_to_tf32 and dtype != "fp32":
        problems.append(f"round_f32_to_tf32 needs dtype fp32, got {dtype}")
    return problems


def block_violations(pixels: int, channels: int, element_bytes: int) -> list[str]:
    """Lists what is wrong with a block, as Triton and one CTA can hold it."""
    problems: list[str] = []
    if not 1 <= pixels <= MAX_PIXELS:
        problems.append(f"pixel block {pixels}: TMA allows 1..{MAX_PIXELS}")
    elif not _is_power_of_two(pixels):
        parts = " + ".join(map(str, _binary_parts(pixels)))
        problems.append(
            f"block of {pixels} pixels: Triton blocks are powers of two; "
            f"use {_next_power_of_two(pixels)}, or loads of {parts}"
        )
    block_bytes = channels * element_bytes
    if not _is_power_of_two(channels):
        problems.append(
            f"block of {channels} channels: Triton blocks are powers of two; "
            f"use {max(_next_power_of_two(channels), _ALIGNMENT_BYTES // element_bytes)} "
            "(channels beyond the tensor's are zero)"
        )
    elif block_bytes < _ALIGNMENT_BYTES:
        problems.append(
            f"block of {channels} channels x {element_bytes} B = {block_bytes} B: TMA needs a "
            f"multiple of {_ALIGNMENT_BYTES} B; use {_ALIGNMENT_BYTES // element_bytes} channels "
            "or more"
        )
    tile_bytes = pixels * block_bytes
    if tile_bytes > SHARED_MEMORY_BYTES:
        problems.append(
            f"tile needs {tile_bytes} bytes of shared memory ({pixels} pixels x {channels} "
            f"channels x {element_bytes} B), a CTA has {SHARED_MEMORY_BYTES}"
        )
    return problems


def _tensor_problems(geometry: Im2ColGeometry) -> list[str]:
    """Sizes and strides of the tensor."""
    problems: list[str] = []
    rank, size, strides = geometry.rank, geometry.element_bytes, geometry.strides
    channels = geometry.shape[-1]
    for dim, extent in enumerate(geometry.shape):
        if not 1 <= extent <= _MAX_DIM:
            problems.append(f"{dim_name(rank, dim)} has size {extent}, allowed 1..2^32")
        elif 0 < dim < rank - 1 and extent > _MAX_INT32:
            problems.append(
                f"{dim_name(rank, dim)} has size {extent}, int32 coordinates of kernels overflow"
            )
    if strides[-1] != 1:
        problems.append(
            f"channels must be contiguous (channels-last), got channel stride {strides[-1]}; "
            "the last dim of x must be C in memory too: x.contiguous()"
        )
    for dim in range(rank - 1):
        stride_bytes = strides[dim] * size
        where = dim_name(rank, dim)
        if not 0 < stride_bytes < _MAX_STRIDE_BYTES:
            problems.append(
                f"stride of {where} is {stride_bytes} bytes: must be > 0 and < 2^40 bytes "
                "(expanded/flipped views are not supported)"
            )
        elif stride_bytes % _ALIGNMENT_BYTES:
            unit = _ALIGNMENT_BYTES // size if size <= _ALIGNMENT_BYTES else 1
            # Where C itself is fine, the strides are those of a view of something larger.
            advice = f"pad C={channels} to a multiple of {unit}"
            if channels % unit == 0:
                advice = "x is a view with such strides, make a dense copy with C last in memory"
            problems.append(
                f"stride of {where} is {stride_bytes} bytes, TMA needs a multiple of "
                f"{_ALIGNMENT_BYTES}: {advice}"
            )
    problems.extend(_stride_order_problems(geometry))
    return problems


def _stride_order_problems(geometry: Im2ColGeometry) -> list[str]:
    """Strides that shrink towards the outer dimensions; size-1 dimensions do not count."""
    problems: list[str] = []
    rank = geometry.rank
    inner: int | None = None
    for dim in range(rank - 2, -1, -1):
        stride = geometry.strides[dim]
        if geometry.shape[dim] == 1 or stride <= 0:
            continue
        if inner is not None and stride < geometry.strides[inner]:
            problems.append(
                f"stride of {dim_name(rank, dim)} is {stride}, smaller than the stride "
                f"{geometry.strides[inner]} of {dim_name(rank, inner)}: dims must be in memory "
                "order N, spatial..., C (permuted views are not supported)"
            )
        inner = dim
    return problems


def conv_violations(conv: ConvGeometry, unknown: Collection[str] = ()) -> list[str]:
    """Lists what is wrong with filter, stride, padding and dilation, in the convolution's words.

    Args:
        conv: The convolution.
        unknown: Names of arguments that had the wrong length; nothing is said that needs them.
    """
    problems: list[str] = []
    spatial_rank = conv.rank - 2
    for index in range(spatial_rank):
        limits = SPATIAL_LIMITS[spatial_rank]
        if {"filter_size", "padding", "dilation"} & set(unknown):
            problems.extend(_partial_dim_problems(conv, index, limits, unknown))
        else:
            problems.extend(_conv_dim_problems(conv, index, limits))
    if not problems and not unknown and conv.m_gemm > _MAX_INT32:
        problems.append(f"output has {conv.m_gemm} pixels, int32 pixel index overflows")
    return problems


def _stride_problems(conv: ConvGeometry, index: int) -> list[str]:
    stride, where = conv.stride[index], dim_letter(conv.rank, index + 1)
    if 1 <= stride <= MAX_ELEMENT_STRIDE:
        return []
    return [f"conv stride {stride} in {where}: TMA supports 1..{MAX_ELEMENT_STRIDE}"]


def _front_problems(conv: ConvGeometry, index: int, limits: SpatialLimits) -> list[str]:
    """The padding in front of a dimension, which alone makes the lower corner."""
    low, _ = conv.padding[index]
    where = dim_letter(conv.rank, index + 1)
    scope = _scope(conv)
    if low > -limits.corner_min:
        return [f"padding {low} in {where} too large: at most {-limits.corner_min} {scope}"]
    if low < -limits.corner_max:
        return [f"padding {low} in {where} too small: at least {-limits.corner_max} {scope}"]
    return []


def _offset_problems(conv: ConvGeometry, index: int, limits: SpatialLimits) -> list[str]:
    reach, where = conv.filter_reach[index], dim_letter(conv.rank, index + 1)
    if reach <= limits.offset_max:
        return []
    return [
        f"filter offset {reach} in {where} exceeds {limits.offset_max}: (R-1)*dilation is "
        f"limited {_scope(conv)}"
    ]


def _scope(conv: ConvGeometry) -> str:
    plural = "dim" if conv.rank == 3 else "dims"
    return f"for {conv.rank - 2} spatial {plural}"


def _partial_dim_problems(
    conv: ConvGeometry, index: int, limits: SpatialLimits, unknown: Collection[str]
) -> list[str]:
    """One spatial dimension of a convolution of which some arguments are not known."""
    where = dim_letter(conv.rank, index + 1)
    problems: list[str] = []
    # Unknown arguments have neutral values, which break no rule.
    problems.extend(_stride_problems(conv, index))
    for name, value in (("filter size", conv.filter_size), ("dilation", conv.dilation)):
        if value[index] < 1:
            problems.append(f"{name} {value[index]} in {where}: must be at least 1")
    problems.extend(_front_problems(conv, index, limits))
    if not problems and not {"filter_size", "dilation"} & set(unknown):
        problems.extend(_offset_problems(conv, index, limits))
    return problems


def _conv_dim_problems(conv: ConvGeometry, index: int, limits: SpatialLimits) -> list[str]:
    """One spatial dimension of a convolution; ``index`` counts spatial dimensions from 0."""
    where = dim_letter(conv.rank, index + 1)
    scope = _scope(conv)
    taps, dilation = conv.filter_size[index], conv.dilation[index]
    low, high = conv.padding[index]
    problems = _stride_problems(conv, index)
    if taps < 1 or dilation < 1:
        problems.append(
            f"filter size {taps} with dilation {dilation} in {where}: both must be at least 1"
        )
        return problems
    reach = (taps - 1) * dilation
    problems.extend(_front_problems(conv, index, limits))
    if high - reach < limits.corner_min:
        problems.append(
            f"dilated filter extent {reach + 1} in {where} too large: (R-1)*dilation - padding = "
            f"{reach - high} must be <= {-limits.corner_min} {scope}"
        )
    elif high - reach > limits.corner_max:
        problems.append(
            f"padding {high} behind the last pixel of {where} too large: padding - (R-1)*dilation "
            f"= {high - reach} must be <= {limits.corner_max} {scope}"
        )
    problems.extend(_offset_problems(conv, index, limits))
    padded = conv.spatial_shape[index] + low + high
    if reach + 1 > padded:
        problems.append(
            f"filter (dilated extent {reach + 1}) larger than padded input {padded} in {where}: "
            "empty output"
        )
    return problems


def _box_problems(geometry: Im2ColGeometry) -> list[str]:
    """Explicit corners and element strides, in the driver's words."""
    problems: list[str] = []
    rank = geometry.rank
    limits = SPATIAL_LIMITS[rank - 2]
    # Arrays of another length are reported as such; the others can be judged all the same.
    steps, lower, upper = (
        values if len(values) == expected else ()
        for values, expected in (
            (geometry.element_strides, rank),
            (geometry.pixel_box_lower_corner, rank - 2),
            (geometry.pixel_box_upper_corner, rank - 2),
        )
    )
    for dim, step in enumerate(steps):
        if dim in (0, rank - 1):
            if step != 1:
                problems.append(
                    f"element_strides for N and C must be 1, got {step} for {dim_name(rank, dim)}"
                )
        elif not 1 <= step <= MAX_ELEMENT_STRIDE:
            problems.append(
                f"element stride {step} in {dim_name(rank, dim)}: TMA supports "
                f"1..{MAX_ELEMENT_STRIDE}"
            )
    for name, corner in (
        ("pixel_box_lower_corner", lower),
        ("pixel_box_upper_corner", upper),
    ):
        for index, value in enumerate(corner):
            if not limits.corner_min <= value <= limits.corner_max:
                problems.append(
                    f"{name}[{index}] = {value} of {dim_name(rank, index + 1)}: allowed "
                    f"{limits.corner_min}..{limits.corner_max} for rank {rank}"
                )
    if not lower or not upper:
        return problems
    for index, (first, last) in enumerate(zip(geometry.box_first, geometry.box_last, strict=True)):
        if last < first:
            problems.append(
                f"pixel box of {dim_name(rank, index + 1)} is empty: pixel_box_lower_corner "
                f"starts it at {first}, pixel_box_upper_corner ends it at {last}"
            )
    if steps and not problems and geometry.walk_pixels > _MAX_INT32:
        problems.append(f"output has {geometry.walk_pixels} pixels, int32 pixel index overflows")
    return problems


def _length_problems(geometry: Im2ColGeometry) -> list[str]:
    """Rank, and lengths of the arrays that go with it."""
    rank = geometry.rank
    if rank - 2 not in SPATIAL_LIMITS:
        return [f"im2col needs a 3-, 4- or 5-D tensor (N, spatial..., C), got rank {rank}"]
    return [
        f"{name} has {len(values)} entries, expected {expected} for rank {rank}"
        for name, values, expected in (
            ("strides", geometry.strides, rank),
            ("pixel_box_lower_corner", geometry.pixel_box_lower_corner, rank - 2),
            ("pixel_box_upper_corner", geometry.pixel_box_upper_corner, rank - 2),
            ("element_strides", geometry.element_strides, rank),
        )
        if len(values) != expected
    ]


def violations(
    geometry: Im2ColGeometry,
    *,
    conv: ConvGeometry | None = None,
    address: int | None = None,
    padding: str = "zero",
    round_f32_to_tf32: bool = False,
    wrong_lengths: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Lists everything that makes a descriptor impossible, whatever kernel will use it.

    Args:
        geometry: The tensor map for the driver; strides in elements, size-1 dimensions packed.
        conv: The convolution it was made for: its corners and element strides are then reported as
            padding, filter and stride.
        address: Base address in bytes; ``None`` where there is none yet (fake tensors).
        padding: Fill of elements outside the tensor, ``"zero"`` or ``"nan"``.
        round_f32_to_tf32: Whether fp32 elements are rounded to tf32 as they are loaded.
        wrong_lengths: Problems of ``block_shape`` and of arguments of the convolution that have
            another length, by name; these are listed, and nothing is said that depends on them.

    Returns:
        One lower-case sentence per violation, in the order in which they are best repaired.
    """
    problems: list[str] = []
    problems.extend(_element_problems(geometry.dtype, padding, round_f32_to_tf32, conv is not None))
    if address is not None:
        problems.extend(address_violations(address))
    problems.extend(_length_problems(geometry))
    problems.extend(wrong_lengths.values())
    if geometry.rank - 2 in SPATIAL_LIMITS:
        if len(geometry.strides) == geometry.rank:
            problems.extend(_tensor_problems(geometry))
        # A dimension without a legal size is reported as such; its box has no meaning.
        if all(extent >= 1 for extent in geometry.shape):
            problems.extend(
                _box_problems(geometry)
                if conv is None
                else conv_violations(conv, wrong_lengths.keys() - {"block_shape"})
            )
    if "block_shape" not in wrong_lengths:
        problems.extend(
            block_violations(
                geometry.pixels_per_column, geometry.channels_per_pixel, geometry.element_bytes
            )
        )
    return tuple(problems)


def _channel_box_problems(channels: int, element_bytes: int, swizzle: Swizzle) -> list[str]:
    """Channels of one TMA box."""
    box_bytes = channels * element_bytes
    size = f"channel box {channels} x {element_bytes} B = {box_bytes} B"
    if not 1 <= channels <= MAX_CHANNELS:
        fits = MAX_CHANNELS
        advice = f"; use {-(-channels // fits)} boxes of {fits}" if channels > fits else ""
        return [f"channel box of {channels} elements: TMA allows 1..{MAX_CHANNELS}{advice}"]
    if box_bytes % _ALIGNMENT_BYTES:
        return [f"{size} is not a multiple of {_ALIGNMENT_BYTES} B"]
    span = swizzle.span_bytes
    if span is not None and box_bytes > span:
        fits = span // element_bytes
        return [f"{size} exceeds {span}-byte swizzle; use {-(-channels // fits)} boxes of {fits}"]
    return []


def layout_violations(
    geometry: Im2ColGeometry,
    *,
    address: int,
    swizzle: int,
    elem_size: int,
    elem_type: int,
    box: tuple[int, int],
    fill_nan: bool = False,
) -> tuple[str, ...]:
    """Lists what a compiled kernel asks for and the descriptor or the hardware cannot give.

    Args:
        geometry: A geometry without :func:`violations`.
        address: Base address in bytes, as it is now.
        swizzle: ``CUtensorMapSwizzle`` of the kernel's shared memory layout.
        elem_size: Size in bytes of the elements that the kernel loads.
        elem_type: ``CUtensorMapDataType`` of the elements, host numbering.
        box: (pixels, channels) that one TMA instruction loads: the block, split by CTAs and by
            swizzle span.
        fill_nan: Whether elements outside the tensor read as NaN.

    Returns:
        One lower-case sentence per violation.
    """
    pixels, channels = box
    problems = address_violations(address)
    if elem_size != geometry.element_bytes:
        problems.append(
            f"kernel loads elements of {elem_size} B, the descriptor's {geometry.dtype} has "
            f"{geometry.element_bytes} B"
        )
    try:
        element_type = ElementType(elem_type)
    except ValueError:
        problems.append(f"tensor map data type {elem_type} is not in 0..{max(ElementType):d}")
    else:
        if element_type.size_bytes != elem_size:
            problems.append(
                f"tensor map data type {element_type.name} has {element_type.size_bytes} B per "
                f"element, the kernel's elements have {elem_size} B"
            )
        if fill_nan and not element_type.is_float:
            problems.append(f'padding="nan" needs a float dtype, got {element_type.name}')
    if not 1 <= pixels <= MAX_PIXELS:
        problems.append(f"pixel box {pixels}: TMA allows 1..{MAX_PIXELS}")
    elif geometry.pixels_per_column % pixels:
        problems.append(
            f"pixel box {pixels} does not divide the block of {geometry.pixels_per_column} pixels"
        )
    try:
        mode = Swizzle(swizzle)
    except ValueError:
        problems.append(f"swizzle mode {swizzle} is not in 0..{max(Swizzle):d}")
    else:
        box_problems = _channel_box_problems(channels, elem_size, mode)
        problems.extend(box_problems)
        if not box_problems and geometry.channels_per_pixel % channels:
            problems.append(
                f"channel box {channels} does not divide the block of "
                f"{geometry.channels_per_pixel} channels"
            )
    return tuple(problems)
