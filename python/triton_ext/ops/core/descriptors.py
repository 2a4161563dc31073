"""Memory order of tensors: channels-last, and the operands that TMA descriptors take.

Channels-last is dense [N, C, *size] with the channels of a pixel side by side; its sizes may be
symbolic where torch traces with dynamic shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

#: Makes the descriptor of a tensor.
Describe = Callable[[torch.Tensor], Any]


def channels_last_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the strides of a dense tensor [N, C, *size] whose channels lie side by side."""
    strides: list[Any] = []
    step = shape[1]
    for size in reversed(shape[2:]):
        strides.insert(0, step)
        step = step * size
    return (step, 1, *strides)


def empty_channels_last(
    shape: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns a dense tensor [N, C, *size] without values, channels contiguous."""
    return torch.empty_strided(
        tuple(shape), channels_last_strides(shape), dtype=dtype, device=device
    )


def pixel_dims(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns all dimensions of a tensor [N, C, *size] but that of the channels."""
    return (0, *range(2, tensor.dim()))


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor [N, C, *size] dense and with channels contiguous; copies if it has to."""
    rank = tensor.dim()
    rows = tensor.permute(0, *range(2, rank), 1).contiguous()
    return rows.permute(0, rank - 1, *range(1, rank - 1))


def filter_strides(shape: Sequence[int], groups: int) -> tuple[int, ...]:
    """Returns the strides in which kernels read a filter [Co, Ci / groups, *filter_size].

    Channels lie side by side: those of a group, or where each group has one, those of all groups,
    with the taps outermost.
    """
    if shape[1] != 1 or not 1 < groups == shape[0]:
        return channels_last_strides(shape)
    steps = channels_last_strides((1, groups, *shape[2:]))
    return (1, groups, *steps[2:])


def in_filter_order(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns a filter with :func:`filter_strides`; copies if it has to."""
    if filter_strides(weight.shape, groups)[0] != 1:
        return channels_last(weight)
    taps = range(2, weight.dim())
    rows = weight.permute(*taps, 1, 0).contiguous()
    return rows.permute(-1, -2, *range(weight.dim() - 2))


# TMA wants addresses and rows of multiples of this many bytes.
ROW_BYTES = 16
#: Bytes of an element of fp16 and bf16, to which the models of time were fitted.
ELEMENT_BYTES = 2

# Triton's tiled descriptors round fp32 to tf32 from 3.7 on.
ROUNDS_TO_TF32 = "round_f32_to_tf32" in {each.name for each in fields(TensorDescriptor)}


def rounding(dtype: torch.dtype) -> dict[str, bool]:
    """Returns the options of tiled descriptors of a dtype.

    Where Triton cannot round fp32 to tf32, tensor cores truncate it: twice the error, and biased.
    """
    return {"round_f32_to_tf32": True} if ROUNDS_TO_TF32 and dtype == torch.float32 else {}


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides and dtype of a tensor, to validate a descriptor without memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        """As a tensor's."""
        return self.strides

    def data_ptr(self) -> int:
        """An address that is aligned to everything."""
        return 0


def aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy on a 16-byte boundary with the same strides; no dimension may be expanded."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def aligned_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor packed and on a 16-byte boundary, copied where it is not."""
    rows = tensor.contiguous()
    return rows.clone() if rows.data_ptr() % ROW_BYTES else rows


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps whose last dimension is innermost."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def matrix_row_stride(x_desc: Any) -> int | None:
    """Returns the distance of two pixels where im2col of a descriptor is the identity, or None."""
    conv = x_desc.conv
    is_identity = (
        math.prod(conv.filter_size) == 1
        and set(conv.stride) == {1}
        and all(sides == (0, 0) for sides in conv.padding)
    )
    return pixel_stride(x_desc.geometry) if is_identity else None


def pixel_stride(geometry: Any) -> int | None:
    """Returns the distance of two pixels of an im2col descriptor's tensor; None where it varies."""
    return row_stride_of(geometry.shape[-2::-1], geometry.strides[-2::-1])


def row_stride_of(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """Returns the distance of two pixels, by dimensions from the innermost; None if it varies."""
    # Dimensions of size 1 may have any stride.
    counting = [pair for pair in zip(sizes, strides, strict=True) if pair[0] != 1]
    row_stride = counting[0][1] if counting else strides[0]
    pixels = 1
    for size, stride in counting:
        if stride != row_stride * pixels:
            return None
        pixels *= size
    return row_stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel reads x or dy."""

    channels: int  # of a pixel as it is read
    missing_channels: int = 0  # zeros among them that a copy adds, for rows of whole 16 bytes
    is_copied: bool = False  # whether the tensor is copied to a dense one
    pixel_stride: int = 0  # elements from a pixel to the next; 0 where there is no one number

    @classmethod
    def make(
        cls, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, as_matrix: bool
    ) -> Operand:
        """Returns how a tensor [N, C, *spatial] is read, in place or as [pixels, channels]."""
        unit = ROW_BYTES // itemsize
        missing = -shape[1] % unit
        channels = shape[1] + missing
        sizes = (*shape[:1:-1], shape[0])
        stride = row_stride_of(sizes, (*strides[:1:-1], strides[0])) or 0
        if math.prod(sizes) == 1:
            stride = channels
        if missing or stride % unit or stride < channels or (strides[1] != 1 and channels > 1):
            stride = 0
        copied = missing > 0 or (as_matrix and not stride)
        return cls(
            channels=channels,
            missing_channels=missing,
            is_copied=copied,
            pixel_stride=channels if copied else stride,
        )

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernel reads it."""
        rows = tensor.movedim(1, -1)
        if self.missing_channels:
            return pad(rows, (0, self.missing_channels)).contiguous()
        return rows.contiguous() if self.is_copied else rows
