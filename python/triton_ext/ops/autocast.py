"""Autocast: which operands are brought to which dtype, as torch does it for its convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["cast_dtype", "cast_operands", "is_autocast"]

# float64 stays what it is, and so does what is smaller than half precision.
_ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)


def is_autocast(device: str) -> bool:
    """Tells whether autocast is on for a type of device; there are others, such as ``meta``."""
    return device in ("cuda", "cpu") and torch.is_autocast_enabled(device)


def cast_dtype(operand: torch.Tensor) -> torch.dtype:
    """Returns the dtype of an operand in a call: autocast's, where that is on and casts it."""
    device = operand.device.type
    if operand.dtype in _ELIGIBLE and is_autocast(device):
        return torch.get_autocast_dtype(device)
    return operand.dtype


def cast_operands(operands: Sequence[Any], casts: Sequence[bool], device: str) -> tuple[Any, ...]:
    """Returns operands as autocast wants them.

    Args:
        operands: Tensors and other arguments.
        casts: Which of them are cast.  A scale is not: it is applied to fp32.
        device: The type of device whose autocast is on; others' tensors stay what they are.
    """
    dtype = torch.get_autocast_dtype(device)
    cast = []
    for operand, is_cast in zip(operands, casts, strict=True):
        if is_cast and isinstance(operand, torch.Tensor) and operand.device.type == device:
            found = operand.dtype
            if found is not dtype and found in _ELIGIBLE:
                operand = operand.to(dtype)
        cast.append(operand)
    return tuple(cast)
