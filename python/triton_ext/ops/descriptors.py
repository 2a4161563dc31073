"""What the plans of all directions need to describe tensors to TMA."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["ROUNDS_TO_TF32", "ROW_BYTES", "Layout", "packed_strides"]

# TMA wants addresses and rows of multiples of this many bytes.
ROW_BYTES = 16

# Triton's tiled descriptors round fp32 to tf32 from 3.7 on; before, tensor cores cut off the rest.
ROUNDS_TO_TF32 = "round_f32_to_tf32" in {each.name for each in fields(TensorDescriptor)}


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor without memory, to validate a geometry with."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        """As a tensor's."""
        return self.strides

    def data_ptr(self) -> int:
        """An address that is aligned to everything."""
        return 0


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps whose last dimension is innermost."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
