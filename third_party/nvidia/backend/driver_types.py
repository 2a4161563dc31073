"""Enumerations of the CUDA driver's tensor map API, with what the driver checks about them.

The values are those of ``cuda.h`` (CUDA 13.1); they are ABI and do not change.
"""

from __future__ import annotations

import enum

__all__ = ["ElementType", "Swizzle"]


class ElementType(enum.IntEnum):
    """``CUtensorMapDataType`` (host numbering), the types that hold one element per unit."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12

    @property
    def size_bytes(self) -> int:
        """Size of one element in bytes."""
        return _SIZE_BYTES[self]

    @property
    def is_float(self) -> bool:
        """True for floating-point types of the driver; fp8 travels as UINT8."""
        return self >= ElementType.FLOAT16


_SIZE_BYTES: dict[ElementType, int] = {
    ElementType.UINT8: 1,
    ElementType.UINT16: 2,
    ElementType.UINT32: 4,
    ElementType.INT32: 4,
    ElementType.UINT64: 8,
    ElementType.INT64: 8,
    ElementType.FLOAT16: 2,
    ElementType.FLOAT32: 4,
    ElementType.FLOAT64: 8,
    ElementType.BFLOAT16: 2,
    ElementType.FLOAT32_FTZ: 4,
    ElementType.TFLOAT32: 4,
    ElementType.TFLOAT32_FTZ: 4,
}


class Swizzle(enum.IntEnum):
    """``CUtensorMapSwizzle``: how 16-byte chunks of a shared memory tile are permuted."""

    NONE = 0
    SWIZZLE_32B = 1
    SWIZZLE_64B = 2
    SWIZZLE_128B = 3
    SWIZZLE_128B_ATOM_32B = 4
    SWIZZLE_128B_ATOM_32B_FLIP_8B = 5
    SWIZZLE_128B_ATOM_64B = 6

    @property
    def span_bytes(self) -> int | None:
        """Widest channel box in bytes, or ``None`` where only the 256-element cap holds."""
        return {0: None, 1: 32, 2: 64}.get(int(self), 128)
