"""Where plans of the gradient of the input put dx: a new tensor, or one of the caller's."""

from __future__ import annotations

import torch

from triton_ext.ops.conv_launch import TO_LAST
from triton_ext.ops.descriptors import ROW_BYTES
from triton_ext.ops.problem import ConvProblem

__all__ = ["checked_bias", "checked_output", "new_output"]


def new_output(problem: ConvProblem, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a new dx, channels-last."""
    if problem.dims == 1:
        n, ci, length = problem.x_shape
        return torch.empty((n, length, ci), device=device, dtype=dtype).mT
    packed = torch.channels_last if problem.dims == 2 else torch.channels_last_3d
    return torch.empty(problem.x_shape, device=device, dtype=dtype, memory_format=packed)


def checked_output(
    problem: ConvProblem, dtype: torch.dtype, out: torch.Tensor, *, is_aligned: bool
) -> torch.Tensor:
    """Returns the caller's tensor.

    Args:
        problem: The convolution.
        dtype: Of dx.
        out: The tensor.
        is_aligned: Whether it has to begin at a multiple of 16 bytes.

    Raises:
        ValueError: It has another shape, dtype, layout or alignment.
    """
    shape = problem.x_shape
    if tuple(out.shape) != shape or out.dtype != dtype:
        raise ValueError(
            f"out: expected {list(shape)} of {dtype}, got {list(out.shape)} of {out.dtype}"
        )
    if not out.permute(TO_LAST[problem.dims]).is_contiguous():
        raise ValueError(
            f"out: expected channels-last and packed, got strides {list(out.stride())}"
        )
    if is_aligned and out.data_ptr() % ROW_BYTES:
        raise ValueError(f"out: expected an address that is a multiple of {ROW_BYTES}")
    return out


def checked_bias(problem: ConvProblem, bias: torch.Tensor) -> torch.Tensor:
    """Returns a bias [Ci] without gaps.

    Raises:
        ValueError: It has another shape.
    """
    if tuple(bias.shape) != (problem.in_channels,):
        raise ValueError(f"bias: expected [{problem.in_channels}], got {list(bias.shape)}")
    return bias.contiguous()
