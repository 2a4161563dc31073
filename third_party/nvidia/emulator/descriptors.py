"""Tensor descriptors of a launch: which elements a block of the TMA unit has, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from triton_ext.emulator.elements import Array, Element

from ..backend.geometry import ConvGeometry, Im2ColGeometry, normalize_dtype
from ..backend.im2col_model import element_offsets

__all__ = ["Descriptor", "Im2Col", "Tiled", "make_descriptor"]


class Descriptor(Protocol):
    """The interface of descriptors for copies."""

    @property
    def element(self) -> Element:
        """Type of the elements."""

    @property
    def fills_nan(self) -> bool:
        """True if elements out of bounds read as NaN, not as zero."""

    def block(
        self, shape: Sequence[int], coord: Sequence[int], offsets: Sequence[int]
    ) -> tuple[Array, Array]:
        """Addresses of a block's elements, and which of them are inside of the tensor.

        Args:
            shape: Shape of the block.
            coord: Where it starts.
            offsets: Filter offsets, in im2col mode.

        Raises:
            ValueError: The hardware gives the operands no meaning.
        """


@dataclass(frozen=True, slots=True)
class Tiled:
    """A descriptor in tiled mode.

    Attributes:
        element: Type of the elements.
        address: Address of the tensor.
        shape: Shape of the tensor.
        strides: In elements.
        fills_nan: Whether what is out of bounds arrives as NaN, not as zeros.
    """

    element: Element
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    fills_nan: bool = False

    def block(
        self, shape: Sequence[int], coord: Sequence[int], offsets: Sequence[int]
    ) -> tuple[Array, Array]:
        """Addresses of a block's elements, and which of them are inside of the tensor."""
        if offsets or len(coord) != len(self.shape) or len(shape) != len(self.shape):
            raise ValueError(
                f"a tiled descriptor of rank {len(self.shape)}, with {len(coord)} coordinates, "
                f"{len(offsets)} filter offsets and a block {list(shape)}"
            )
        rank = len(shape)
        addresses: Array = np.full((1,) * rank, self.address, np.int64)
        inside: Array = np.ones((1,) * rank, np.bool_)
        for dim, (size, start, bound, stride) in enumerate(
            zip(shape, coord, self.shape, self.strides, strict=True)
        ):
            index: Array = np.arange(start, start + size, dtype=np.int64)
            index = index.reshape([-1 if each == dim else 1 for each in range(rank)])
            addresses = addresses + index * (stride * self.element.size_bytes)
            if start < 0 or start + size > bound:
                inside = inside & (index >= 0) & (index < bound)
        return addresses, np.broadcast_to(inside, addresses.shape)

    def rows(self, rows: Array, start: int, width: int) -> tuple[Array, Array]:
        """Addresses of rows by their numbers, and which of their elements are inside.

        Args:
            rows: Numbers of the rows.
            start: The first column.
            width: Columns.
        """
        if len(self.shape) != 2:
            raise ValueError(f"rows of a tensor of rank {len(self.shape)}")
        row, column = rows.astype(np.int64)[:, None], np.arange(start, start + width)[None, :]
        offsets = row * self.strides[0] + column * self.strides[1]
        inside = (row >= 0) & (row < self.shape[0]) & (column >= 0) & (column < self.shape[1])
        return self.address + offsets * self.element.size_bytes, inside


@dataclass(frozen=True, slots=True)
class Im2Col:
    """A descriptor in im2col mode.

    Attributes:
        element: Type of the elements.
        address: Address of the tensor.
        geometry: The tensor map as the driver sees it.
        fills_nan: Whether what is out of bounds arrives as NaN, not as zeros.
        conv: The convolution that it was made for, or ``None``.
    """

    element: Element
    address: int
    geometry: Im2ColGeometry
    fills_nan: bool = False
    conv: ConvGeometry | None = None

    def block(
        self, shape: Sequence[int], coord: Sequence[int], offsets: Sequence[int]
    ) -> tuple[Array, Array]:
        """Addresses of a block's elements, and which of them are inside of the tensor."""
        pixels, channels = shape
        # The operands are 16 bits without a sign.
        unsigned = [offset % (1 << 16) for offset in offsets]
        flat, inside = element_offsets(
            self.geometry,
            coord[:-1],
            unsigned,
            coord[-1],
            block_shape=(pixels, channels),
            conv=self.conv,
        )
        return self.address + flat * self.element.size_bytes, inside


def make_descriptor(host: Any, element: Element, address: int) -> Descriptor:
    """Returns the descriptor that a kernel gets for one of the host.

    Args:
        host: Triton's ``TensorDescriptor``, or an im2col descriptor of this package.
        element: Type of its elements.
        address: Address of its tensor.

    """
    fills_nan = getattr(host, "padding", "zero") == "nan"
    geometry = getattr(host, "geometry", None)
    if geometry is not None:
        return Im2Col(element, address, geometry, fills_nan, getattr(host, "conv", None))
    if hasattr(host, "pixel_box_lower_corner"):
        return Im2Col(element, address, _geometry_of(host, element), fills_nan)
    shape, strides = (tuple(int(x) for x in values) for values in (host.shape, host.strides))
    return Tiled(element, address, shape, strides, fills_nan)


def _geometry_of(host: Any, element: Element) -> Im2ColGeometry:
    """The tensor map of one of Triton's own im2col descriptors."""

    def ints(values: Any) -> tuple[int, ...]:
        return tuple(int(x) for x in values)

    steps = host.element_strides
    return Im2ColGeometry(
        shape=ints(host.shape),
        strides=ints(host.strides),
        element_bytes=element.size_bytes,
        dtype=normalize_dtype(host.base.dtype),
        pixel_box_lower_corner=ints(host.pixel_box_lower_corner),
        pixel_box_upper_corner=ints(host.pixel_box_upper_corner),
        element_strides=ints(steps) if steps is not None else (1,) * len(host.shape),
        pixels_per_column=int(host.block_shape[0]),
        channels_per_pixel=int(host.block_shape[1]),
    )
