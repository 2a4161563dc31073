"""The memory order of the operators: dense [N, C, *size], the channels of a pixel side by side.

Sizes may be symbolic where torch traces with dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["channels_last", "channels_last_strides", "empty_channels_last", "pixel_dims"]


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
