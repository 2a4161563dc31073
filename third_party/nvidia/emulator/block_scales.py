"""Numbers of block-scaled products: fp4 in pairs, fp8, and the scales of their blocks.

OCP Microscaling Formats Specification: e2m1 and e8m0.  PTX ISA, "tcgen05.mma", block scaling.
"""

from __future__ import annotations

import numpy as np
from triton_ext.emulator.elements import Array, Element, element_of
from triton_ext.ir.types import FloatType

__all__ = ["numbers_of", "scales_of", "unpacked_scales"]

#: The numbers of e2m1: a sign, two bits of exponent and one of mantissa.
_E2M1: Array = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4: Array = np.concatenate([_E2M1, -_E2M1])
_FP8 = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}


def numbers_of(values: Array, element: Element, kind: str, size: int, dim: int) -> Array:
    """The numbers of an operand, as float32.

    Args:
        values: Its values: of fp8, or bytes.
        element: Their type.
        kind: How the product reads them: ``e2m1``, ``e4m3`` or ``e5m2``.
        size: Numbers along the reduced dimension.
        dim: That dimension.

    Raises:
        ValueError: There is no such type, or fp4 is packed along another dimension.
    """
    if kind == "e2m1":
        codes = values.view(np.uint8)
        pairs = np.stack([codes & 0xF, codes >> 4], axis=dim + 1)
        if values.shape[dim] * 2 != size:
            raise ValueError("the emulator knows fp4 in pairs along the reduced dimension only")
        shape = [n * 2 if each == dim else n for each, n in enumerate(values.shape)]
        return _FP4[pairs.reshape(shape)]
    if kind not in _FP8:
        raise ValueError(f"the emulator has no operands of {kind}")
    if element.is_float:
        return np.asarray(values, np.float32)
    return np.asarray(element_of(FloatType(_FP8[kind])).from_memory(values.view(np.uint8)))


def scales_of(values: Array, element: Element) -> Array:
    """Scales as float32: e8m0 where they are bytes."""
    if element.is_float:
        return np.asarray(values, np.float32)
    codes = values.view(np.uint8).astype(np.int32)
    powers = np.ldexp(np.float32(1), np.minimum(codes, 0xFE) - 127)
    return np.where(codes == 0xFF, np.float32(np.nan), powers)


def unpacked_scales(values: Array, shape: tuple[int, ...]) -> Array:
    """Scales in the order of rows and columns, from blocks of 32 x 4 x 4 as copies move them.

    Args:
        values: Scales in either order.
        shape: Rows and columns.

    Raises:
        ValueError: They are in another order.
    """
    if values.shape == shape:
        return values
    rows, columns = shape
    if values.size != rows * columns or rows % 128 or columns % 4:
        raise ValueError(
            f"the emulator cannot read scales of the shape {list(shape)} in {list(values.shape)}"
        )
    # [blocks of 128 rows, blocks of 4 columns, 32 rows, 4 times 32 rows, 4 columns]
    blocks = values.reshape(rows // 128, columns // 4, 32, 4, 4)
    found: Array = blocks.transpose(0, 3, 2, 1, 4).reshape(shape)
    return found
