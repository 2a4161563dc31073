"""Software model of the TMA unit's im2col walk, for tests and for Triton's interpreter.

From its start coordinate the unit steps through the pixel box: w advances by its element stride;
when it passes the end of the box it returns to the lower corner and h advances by its stride; when
h passes its end, h returns and d advances; then n, which has no end.  Offsets shift the addressed
pixel, not the box.  A pixel outside the tensor, and a channel at or beyond C, reads as zero.

The start must lie inside the box: what the hardware does otherwise is not documented, so it is an
error here.  numpy is imported inside the functions; it is not a dependency of the package.

Source: PTX ISA, section "Tensors", im2col mode.  The model agrees with an H200 for the geometries
that convolutions produce.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triton_ext.backends.nvidia.backend.geometry import ConvGeometry, Im2ColGeometry, dim_name
from triton_ext.backends.nvidia.backend.validation import SPATIAL_LIMITS
from triton_ext.errors import DescriptorError
from triton_ext.markers import channel_problem

if TYPE_CHECKING:
    import numpy as np

__all__ = ["element_offsets", "walk"]

_OFFSET_NAMES: dict[int, str] = {1: "[w]", 2: "[h, w]", 3: "[d, h, w]"}


def _check_operands(
    geometry: Im2ColGeometry, start: tuple[int, ...], offsets: tuple[int, ...], pixels: int
) -> None:
    """Raises a DescriptorError for operands that the hardware gives no meaning to."""
    rank = geometry.rank
    problems: list[str] = []
    if len(start) != rank - 1:
        problems.append(
            f"start {start} has {len(start)} coordinates, expected {rank - 1} (n first)"
        )
    if len(offsets) != rank - 2:
        problems.append(
            f"offsets {offsets} have {len(offsets)} entries, expected {rank - 2} "
            f"{_OFFSET_NAMES[rank - 2]}"
        )
    if pixels < 0:
        problems.append(f"cannot load {pixels} pixels")
    if not problems:
        if start[0] < 0:
            problems.append(f"start image {start[0]} is negative (start {start})")
        for index, (first, last) in enumerate(
            zip(geometry.box_first, geometry.box_last, strict=True)
        ):
            if not first <= start[index + 1] <= last:
                problems.append(
                    f"start coordinate {start[index + 1]} of {dim_name(rank, index + 1)} is "
                    f"outside the pixel box {first}..{last} (start {start})"
                )
        limit = SPATIAL_LIMITS[rank - 2].offset_max
        for index, offset in enumerate(offsets):
            if not 0 <= offset <= limit:
                problems.append(
                    f"im2col offset {offset} of {dim_name(rank, index + 1)} is outside 0..{limit} "
                    f"(offsets {offsets})"
                )
    if problems:
        raise DescriptorError("; ".join(problems))


def walk(
    geometry: Im2ColGeometry, start: Sequence[int], offsets: Sequence[int], pixels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pixels that one im2col load addresses.

    Args:
        geometry: The tensor map.
        start: (n, [d, [h,]] w) of the first pixel; inside the pixel box, n >= 0.
        offsets: ([d, [h,]] w) added to every pixel, 0..65535/255/31 for 1/2/3 spatial dimensions.
        pixels: How many pixels to load.

    Returns:
        The addressed coordinates (n, [d, [h,]] w), offsets included, int64 [pixels, rank - 1], and
        whether each pixel lies inside the tensor, bool [pixels].

    Raises:
        DescriptorError: The start lies outside the box, an offset is out of range, or the number
            of coordinates does not fit the rank.
    """
    import numpy as np

    start = tuple(operator.index(value) for value in start)
    offsets = tuple(operator.index(value) for value in offsets)
    _check_operands(geometry, start, offsets, pixels)

    coords: np.ndarray = np.empty((pixels, geometry.rank - 1), dtype=np.int64)
    valid: np.ndarray = np.ones(pixels, dtype=bool)
    # Steps made in the current dimension; what passes the box end carries into the next outer one.
    steps: np.ndarray = np.arange(pixels, dtype=np.int64)
    first, last = geometry.box_first, geometry.box_last
    for index in range(geometry.rank - 3, -1, -1):
        stride = geometry.element_strides[index + 1]
        row = (last[index] - first[index]) // stride + 1
        # The first row begins at the start coordinate, all later ones at the lower corner.
        first_row = (last[index] - start[index + 1]) // stride + 1
        beyond: np.ndarray = steps - first_row
        wrapped = beyond >= 0
        position = np.where(
            wrapped,
            first[index] + beyond % row * stride,
            start[index + 1] + steps * stride,
        )
        steps = np.where(wrapped, beyond // row + 1, 0)
        coords[:, index + 1] = position + offsets[index]
        valid &= (coords[:, index + 1] >= 0) & (coords[:, index + 1] < geometry.shape[index + 1])
    coords[:, 0] = start[0] + steps
    valid &= coords[:, 0] < geometry.shape[0]
    return coords, valid


def _check_conv(conv: ConvGeometry, start: Sequence[int], offsets: Sequence[int]) -> None:
    """Refuses operands that no output pixel and no filter tap of a convolution has.

    Raises:
        DescriptorError: The hardware would read them, and the result would be wrong.
    """
    problems: list[str] = []
    for index, (position, offset) in enumerate(zip(start[1:], offsets, strict=True)):
        name = dim_name(conv.rank, index + 1)
        stride, (low, _) = conv.stride[index], conv.padding[index]
        if (position + low) % stride:
            problems.append(
                f"start coordinate {position} of {name} is where no output pixel starts: with "
                f"stride {stride} and padding {low} they start at {-low}, {stride - low}, "
                f"{2 * stride - low}, ... (start {tuple(start)}; im2col_start gives them)"
            )
        dilation, taps = conv.dilation[index], conv.filter_size[index]
        if offset % dilation or offset > conv.filter_reach[index]:
            taken = ", ".join(str(tap * dilation) for tap in range(min(taps, 4)))
            more = ", ..." if taps > 4 else ""
            problems.append(
                f"im2col offset {offset} of {name} belongs to no filter tap: {taps} taps with "
                f"dilation {dilation} have {taken}{more} (offsets {tuple(offsets)})"
            )
    if problems:
        raise DescriptorError("; ".join(problems))


def element_offsets(
    geometry: Im2ColGeometry,
    start: Sequence[int],
    offsets: Sequence[int],
    channel: int = 0,
    *,
    block_shape: tuple[int, int] | None = None,
    conv: ConvGeometry | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where in memory the elements of one im2col block lie.

    Args:
        geometry: The tensor map.
        start: As for :func:`walk`.
        offsets: As for :func:`walk`.
        channel: First channel of the block, at a multiple of 16 bytes.
        block_shape: (pixels, channels) of the block; the descriptor's by default.
        conv: The convolution that the descriptor was made for: start and offsets have to be a
            start and a tap of it.  ``None`` for any that the hardware takes.

    Returns:
        Offsets from the base address in elements, int64 [pixels, channels], 0 where masked; and
        the mask, bool [pixels, channels]: false means the element reads as the fill value.

    Raises:
        DescriptorError: As for :func:`walk`; the first channel is not at a multiple of 16 bytes;
            or the start or the offsets do not belong to the convolution.
    """
    import numpy as np

    channel = operator.index(channel)
    problem = channel_problem(channel, geometry.element_bytes)
    if problem:
        raise DescriptorError(problem)
    if block_shape is None:
        block_shape = (geometry.pixels_per_column, geometry.channels_per_pixel)
    pixels, channels = block_shape
    coords, pixel_valid = walk(geometry, start, offsets, pixels)
    if conv is not None:
        _check_conv(conv, start, offsets)
    channel_index: np.ndarray = channel + np.arange(channels, dtype=np.int64)
    channel_valid = (channel_index >= 0) & (channel_index < geometry.shape[-1])
    strides = np.asarray(geometry.strides[:-1], dtype=np.int64)
    mask = pixel_valid[:, None] & channel_valid[None, :]
    flat = (coords @ strides)[:, None] + channel_index[None, :] * geometry.strides[-1]
    return np.where(mask, flat, 0), mask
