"""Element types: how the values of a kernel lie in numpy arrays and in memory.

Integers are kept signed, whatever a kernel calls them; operations that read them as unsigned do so
themselves.  ``bf16``, which numpy has not, is kept as the float32 of the same value and rounded
after each operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_ext.errors import UnsupportedError
from triton_ext.ir.types import FloatType, IndexType, IntegerType, PointerType, Type

__all__ = ["Array", "Element", "element_of"]

#: A numpy array; mypy is told to skip what numpy says of its own types.
Array = Any

_INTEGERS = {1: np.bool_, 8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOATS = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}


@dataclass(frozen=True, slots=True)
class Element:
    """One element type.

    Attributes:
        name: As MLIR prints it; ``ptr`` for pointers, which are addresses of 64 bits.
        dtype: What its values are in numpy.
        size_bytes: Its size in memory.
    """

    name: str
    dtype: np.dtype[Any]
    size_bytes: int

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.name in _FLOATS

    def poison(self) -> Any:
        """What memory holds that nobody wrote, or that a copy is filling."""
        if self.is_float:
            return np.array(np.nan, self.dtype)
        if self.dtype == np.bool_:
            return np.array(True)
        return (
            np.array(int("a5" * self.size_bytes, 16)).astype(f"u{self.size_bytes}").view(self.dtype)
        )

    def rounded(self, values: Any) -> Any:
        """Values of the type that are nearest to given ones."""
        array = np.asarray(values).astype(self.dtype, copy=False)
        if self.name != "bf16":
            return array
        bits = array.astype(np.float32).view(np.uint32)
        even = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        kept = np.where(np.isnan(array), bits | np.uint32(0x400000), bits + even)
        return (kept & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)

    def from_memory(self, raw: Array) -> Array:
        """Values of what memory holds, given as unsigned integers of its size."""
        if self.name == "bf16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.dtype == np.bool_:
            return raw != 0
        return raw.view(self.dtype)

    def to_memory(self, values: Any) -> Array:
        """What memory holds for values, as unsigned integers of its size."""
        array = np.asarray(np.asarray(values).astype(self.dtype, copy=False), order="C")
        if self.name == "bf16":
            return (self.rounded(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return array.view(f"u{self.size_bytes}")


def element_of(type_: Type) -> Element:
    """The element of a scalar type.

    Raises:
        UnsupportedError: The emulator has no such values.
    """
    if isinstance(type_, IntegerType) and type_.width in _INTEGERS:
        dtype = np.dtype(_INTEGERS[type_.width])
        return Element(f"i{type_.width}", dtype, max(1, type_.width // 8))
    if isinstance(type_, FloatType) and type_.name in _FLOATS:
        size = 2 if type_.name == "bf16" else np.dtype(_FLOATS[type_.name]).itemsize
        return Element(type_.name, np.dtype(_FLOATS[type_.name]), size)
    if isinstance(type_, IndexType):
        return Element("index", np.dtype(np.int64), 8)
    if isinstance(type_, PointerType):
        return Element("ptr", np.dtype(np.int64), 8)
    raise UnsupportedError(f"the emulator has no values of type {type_}")
