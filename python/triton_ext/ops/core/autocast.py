"""Autocast: which operands are brought to which dtype, as torch does it for its convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["cast_dtype", "cast_operands", "is_autocast", "is_cast"]

# float64 stays what it is, and so does what is smaller than half precision.
_ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)


def is_autocast(device: str) -> bool:
    """Tells whether autocast is on for a type of device; there are others, such as ``meta``."""
    return device in ("cuda", "cpu") and torch.is_autocast_enabled(device)


def is_cast(operand: torch.Tensor) -> bool:
    """Tells whether autocast is on for an operand, and brings it to its dtype."""
    return operand.dtype in _ELIGIBLE and is_autocast(operand.device.type)


def cast_dtype(operand: torch.Tensor) -> torch.dtype:
    """Returns the dtype of an operand in a call: autocast's, where that casts it."""
    return torch.get_autocast_dtype(operand.device.type) if is_cast(operand) else operand.dtype


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
