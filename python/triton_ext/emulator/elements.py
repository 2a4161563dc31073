"""Element types: how the values of a kernel lie in numpy arrays and in memory.

Integers are kept signed, whatever a kernel calls them; operations that read them as unsigned do so
themselves.  ``bf16`` and the two fp8 types that GPUs multiply, which numpy has not, are kept as the
float32 of the same value and rounded after each operation.
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
_FLOATS = {
    "f16": np.float16,
    "bf16": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": np.float32,
    "f8E5M2": np.float32,
}
#: Bytes of those that lie in memory otherwise than in numpy.
_NARROW = {"bf16": 2, "f8E4M3FN": 1, "f8E5M2": 1}


def _fp8_numbers(exponent_bits: int, finite: int) -> Array:
    """The numbers of the codes of an fp8 type without a sign, as far as they are finite."""
    code: Array = np.arange(finite, dtype=np.int64)
    mantissa_bits = 7 - exponent_bits
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    is_normal = exponent > 0
    fraction = mantissa / (1 << mantissa_bits) + is_normal
    return np.ldexp(fraction, np.maximum(exponent, 1) - bias).astype(np.float32)


#: OCP 8-bit Floating Point Specification: E4M3 has one NaN and no infinity, E5M2 is as IEEE 754 has
#: it.
_FP8 = {"f8E4M3FN": _fp8_numbers(4, 0x7F), "f8E5M2": _fp8_numbers(5, 0x7C)}


def _fp8_from_memory(name: str, raw: Array) -> Array:
    numbers = _FP8[name]
    magnitudes: Array = np.full(128, np.nan, np.float32)
    magnitudes[: len(numbers)] = numbers
    if name == "f8E5M2":
        magnitudes[len(numbers)] = np.inf
    return np.concatenate([magnitudes, -magnitudes])[raw]


def _fp8_to_memory(name: str, values: Array) -> Array:
    """Rounds to the nearest, ties to even; what is too large becomes the largest finite number.

    That is what ``cvt.rn.satfinite`` does (PTX ISA, cvt), which Triton casts by.
    """
    numbers, size = _FP8[name], np.abs(values)
    middles = (numbers[:-1] + numbers[1:]) / 2
    below, above = (np.searchsorted(middles, size, side) for side in ("left", "right"))
    # Where they differ it is a tie: one of the two codes is even.
    codes = np.where(below % 2 == 0, below, above)
    codes = np.where(np.isnan(values), 0x7F, codes)
    return (codes | np.signbit(values).astype(codes.dtype) << 7).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Element:
    """One element type.

    Attributes:
        name: As MLIR prints it; ``ptr`` for pointers, which are addresses of 64 bits.
        dtype: The numpy dtype of its values.
        size_bytes: Its size in memory.
    """

    name: str
    dtype: np.dtype[Any]
    size_bytes: int

    @property
    def is_float(self) -> bool:
        """True for floating-point types."""
        return self.name in _FLOATS

    def poison(self) -> Any:
        """Returns the value of memory that nobody wrote, or that a copy is filling."""
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
        if self.name in _FP8:
            return _fp8_from_memory(self.name, _fp8_to_memory(self.name, array))
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
        if self.name in _FP8:
            return _fp8_from_memory(self.name, raw)
        if self.dtype == np.bool_:
            return raw != 0
        return raw.view(self.dtype)

    def to_memory(self, values: Any) -> Array:
        """Returns the bits of values in memory, as unsigned integers of the element's size."""
        array = np.asarray(np.asarray(values).astype(self.dtype, copy=False), order="C")
        if self.name == "bf16":
            return (self.rounded(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        if self.name in _FP8:
            return _fp8_to_memory(self.name, array)
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
        dtype = np.dtype(_FLOATS[type_.name])
        return Element(type_.name, dtype, _NARROW.get(type_.name, dtype.itemsize))
    if isinstance(type_, IndexType):
        return Element("index", np.dtype(np.int64), 8)
    if isinstance(type_, PointerType):
        return Element("ptr", np.dtype(np.int64), 8)
    raise UnsupportedError(f"the emulator has no values of type {type_}")
