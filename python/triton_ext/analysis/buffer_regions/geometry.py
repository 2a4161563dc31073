"""Locations of the elements of a ``!ttg.memdesc`` type, relative to its memory.

The map from elements to locations is linear over the field of two elements, so the images of the
powers of two of each dimension determine it.  Padding of shared memory is applied afterwards.  A
type with one dimension more than its encoding is an array of buffers (*pages*).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_, xor

from ...errors import UnsupportedError, VerifyError
from ...ir.encodings import (
    Encoding,
    NvmmaSharedEncoding,
    PaddedSharedEncoding,
    PartitionedSharedEncoding,
    SharedEncoding,
    TensorMemory,
)
from ...ir.linear_layout import is_power_of_two, log2
from ...ir.types import MemDescType
from ..linear_layout import layout_of
from .footprint import MOST, bits_of

__all__ = ["Geometry", "Offset", "geometry_of"]


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A location relative to the start of a buffer, or the difference of two.

    Attributes:
        cta: CTA of the cluster.
        partition: Partition of a partitioned buffer.
        row: Row of tensor memory.
        unit: Byte of shared memory, without padding; 32-bit column of tensor memory.
    """

    cta: int = 0
    partition: int = 0
    row: int = 0
    unit: int = 0

    def __xor__(self, other: Offset) -> Offset:
        return Offset(
            self.cta ^ other.cta,
            self.partition ^ other.partition,
            self.row ^ other.row,
            self.unit ^ other.unit,
        )


@lru_cache(maxsize=512)
def geometry_of(type_: MemDescType) -> Geometry:
    """Returns the geometry of a type, cached.

    Raises:
        VerifyError: The type is malformed, or the encoding does not fit its shape.
        UnsupportedError: The encoding or the element size is unknown, or the type has more than
            :data:`~triton_ext.analysis.buffer_regions.footprint.MOST` bytes.
    """
    return Geometry(type_)


class Geometry:
    """The locations of the elements of a type.

    Attributes:
        in_tensor_memory: Whether it is tensor memory, where offsets of views are added; in shared
            memory they are XORed.
        pages: Number of buffers; 1 for a type without a page dimension.
        partitions: Number of partitions.
        rank: Number of dimensions of the type.
        shape: Sizes of one page.
    """

    def __init__(self, type_: MemDescType) -> None:
        encoding, bits = type_.encoding, type_.bit_width
        if not isinstance(encoding, SharedEncoding | TensorMemory) or not bits:
            raise UnsupportedError(f"the places of the elements of '{type_}' are not known")
        type_.verify()
        self.in_tensor_memory = isinstance(encoding, TensorMemory)
        self.rank = type_.rank
        self._bits = bits if self.in_tensor_memory else max(8, bits)
        if not is_power_of_two(self._bits):
            raise UnsupportedError(f"the places of elements of {bits} bits are not known")
        rank = _rank_of(encoding, type_.rank)
        outer, self.shape = type_.static_shape[:-rank], type_.static_shape[-rank:]
        self._alloc_shape = type_.full_alloc_shape[-rank:]
        self.pages = math.prod(outer)
        self._layout = layout_of(encoding, self._alloc_shape)
        if not self._layout.is_surjective:
            raise VerifyError(f"expected an encoding that reaches every element, found '{type_}'")
        inner: object = encoding
        self.partitions = 1
        if isinstance(encoding, PartitionedSharedEncoding):
            inner, self.partitions = encoding.partition_layout, encoding.num_partitions
        self._padding = inner if isinstance(inner, PaddedSharedEncoding) else None
        self._inverse = self._layout.pseudoinvert()
        self._bases = [
            [self._offset(dim, 1 << bit) for bit in range(log2(size))]
            for dim, size in enumerate(self.shape)
        ]
        if self.length > MOST:
            raise UnsupportedError(f"the places of more than {MOST} bytes are not listed")

    def _offset(self, dim: int, coordinate: int) -> Offset:
        """Returns the offset of an element from one coordinate, the others being 0."""
        names = self._inverse.in_dim_names
        found = self._inverse.apply(
            {name: coordinate if i == dim else 0 for i, name in enumerate(names)}
        )
        place = found.get("col", 0) if self.in_tensor_memory else found.get("offset", 0)
        bits = place * self._bits
        unit = bits // 32 if self.in_tensor_memory else bits // 8
        return Offset(found.get("block", 0), found.get("partition", 0), found.get("row", 0), unit)

    # ---- sizes

    @property
    def page_stride(self) -> int:
        """Bytes without padding, or columns, between one buffer and the next."""
        if self.in_tensor_memory:
            return -(-self._layout.in_dim_size("col") * self._bits // 32)
        return self._layout.in_dim_size("offset") * self._bits // 8

    @property
    def length(self) -> int:
        """Bytes, or columns, from the first element to the last, over all partitions."""
        if self.in_tensor_memory:
            return self._columns * self.pages
        elements = self.page_stride * 8 // self._bits
        last = elements
        if self.shape != self._alloc_shape:
            last = self._last_element()
        total = ((self.pages - 1) * elements + last) * self.partitions
        if self._padding is not None:
            total = self._padding.padded_size(total)
        return total * self._bits // 8

    def _last_element(self) -> int:
        """Returns the number of elements up to the last one of a view, including broadcasts."""
        reached = reduce(or_, (basis.unit for bases in self._bases for basis in bases), 0)
        size = reached * 8 // self._bits
        for bit, basis in enumerate(self._layout.in_bases("offset")):
            size |= 0 if any(basis) else 1 << bit
        return size + 1

    @property
    def _columns(self) -> int:
        """Columns of one buffer of tensor memory, at least one."""
        last = 0
        for bit, basis in enumerate(self._layout.in_bases("col")):
            # Bases outside of the view do not count.
            if any(0 < x < size for x, size in zip(basis, self.shape, strict=True)):
                last = bit + 1
        return max(1, (1 << last) * self._bits // 32)

    # ---- locations

    def place(self, coordinates: Sequence[int]) -> Offset:
        """Returns the offset of an element of the allocation.

        Args:
            coordinates: One for each dimension, pages first.

        Raises:
            VerifyError: They are outside of the allocation.
        """
        outer, inner = coordinates[: -len(self.shape)], coordinates[-len(self.shape) :]
        if outer and not 0 <= outer[-1] < self.pages:
            raise VerifyError(f"expected a buffer from 0 to {self.pages - 1}, found {outer[-1]}")
        if any(not 0 <= x < size for x, size in zip(inner, self._alloc_shape, strict=True)):
            raise VerifyError(
                f"expected offsets inside of {list(self._alloc_shape)}, found {list(inner)}"
            )
        places = (self._offset(dim, x) for dim, x in enumerate(inner))
        found = reduce(xor, places, Offset())
        return replace(found, unit=found.unit + (outer[-1] * self.page_stride if outer else 0))

    def padded(self, unit: int) -> int:
        """Returns the byte in memory for an offset without padding."""
        if self._padding is None:
            return unit
        size = self._bits // 8
        return self._padding.padded_offset(unit // size) * size + unit % size

    def masks(self, start: Offset) -> Iterator[tuple[Offset, int, int]]:
        """Yields the locations of the elements of a view.

        Args:
            start: Offset of the view's first element.

        Yields:
            Row, partition and CTA; the offset of the page; and the locations from there, bit ``i``
            for byte (or column) ``i``.
        """
        for page in range(self.pages):
            at = self.padded(page * self.page_stride)
            for plane, mask in self._page_masks(start):
                yield plane, at, mask

    def _page_masks(self, start: Offset) -> list[tuple[Offset, int]]:
        bases = [basis for each in self._bases for basis in each]
        # Within an element.
        size = self._bits // (32 if self.in_tensor_memory else 8)
        bases += [Offset(unit=1 << bit) for bit in range(max(0, size.bit_length() - 1))]
        run, rest = _runs(bases, self._smallest_interval)
        units: dict[Offset, list[int]] = {}
        for point in _span(rest):
            moved = self._moved(point, start)
            at = moved.unit if self.in_tensor_memory else self.padded(moved.unit - moved.unit % run)
            units.setdefault(replace(moved, unit=0), []).append(at)
        return [
            (plane, bits_of(((at, run) for at in found), max(found) + run))
            for plane, found in units.items()
        ]

    def _moved(self, point: Offset, start: Offset) -> Offset:
        if not self.in_tensor_memory:
            return point ^ start
        row, unit = point.row + start.row, point.unit + start.unit
        return Offset(point.cta ^ start.cta, 0, row, unit)

    @property
    def _smallest_interval(self) -> int:
        """Returns the most bytes that padding never splits; 0 if unlimited."""
        if self._padding is None:
            return 0
        intervals = [interval for interval, _ in self._padding.interval_padding_pairs]
        return min(intervals) * self._bits // 8


def _rank_of(encoding: Encoding, rank: int) -> int:
    """Returns the number of dimensions of one buffer."""
    known = encoding.rank
    if isinstance(encoding, NvmmaSharedEncoding):
        known = encoding.given_rank
    elif isinstance(encoding, PartitionedSharedEncoding):
        inner = encoding.partition_layout
        known = _rank_of(inner, rank) if isinstance(inner, Encoding) else None
    return min(rank, known) if known is not None else rank


def _runs(bases: Sequence[Offset], limit: int) -> tuple[int, list[Offset]]:
    """Splits a span into runs of units.

    Returns:
        The length of the runs, a power of two of at most ``limit`` (0: any), and independent bases
        of their starts.
    """
    reduced = _reduced(bases)
    run = 1
    while Offset(unit=run) in reduced and (not limit or run < limit):
        reduced.remove(Offset(unit=run))
        run *= 2
    return run, reduced


def _reduced(bases: Sequence[Offset]) -> list[Offset]:
    """Returns independent bases of a span, none with the leading bit of another one set."""
    found: list[Offset] = []
    for basis in bases:
        for known in found:
            basis = min(basis, basis ^ known)
        if basis == Offset():
            continue
        found = [min(known, known ^ basis) for known in found]
        found.append(basis)
    return found


def _span(bases: Sequence[Offset]) -> list[Offset]:
    points = [Offset()]
    for basis in bases:
        points += [point ^ basis for point in points]
    return points
