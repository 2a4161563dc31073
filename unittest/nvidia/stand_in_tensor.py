"""Tensors that are nothing but their description, for tests without torch and without a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DType", "Tensor"]


@dataclass(frozen=True)
class DType:
    """A dtype as torch's print and answer."""

    name: str
    itemsize: int

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.name

    def __str__(self) -> str:
        return f"torch.{self.name}"


_DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("float16", 2),
        DType("bfloat16", 2),
        DType("float32", 4),
        DType("float64", 8),
        DType("float8_e4m3fn", 1),
        DType("int8", 1),
        DType("uint8", 1),
        DType("int32", 4),
        DType("int64", 8),
        DType("bool", 1),
        DType("complex64", 8),
    )
}


class Tensor:
    """A tensor at an address that nobody reads; strides are packed unless given."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: str = "float16",
        strides: Sequence[int] | None = None,
        address: int = 0x7F0000000000,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = _DTYPES[dtype]
        self.address = address
        if strides is None:
            packed = [1]
            for size in reversed(self.shape[1:]):
                packed.append(packed[-1] * size)
            strides = packed[::-1]
        self._strides = tuple(strides)

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return math.prod(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self._strides
