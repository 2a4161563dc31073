"""Sets of locations in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["MOST", "Footprint", "Region", "bits_of"]

#: Above the number of any location in shared or tensor memory of a device.
MOST = 1 << 20

#: A CTA of the cluster, and a row of its tensor memory; row 0 for shared memory.
Plane = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Footprint:
    """A set of bytes of shared memory, or of 32-bit words of tensor memory.

    Attributes:
        planes: Each CTA and row, sorted, with the places in it: bit ``i`` for byte (or column)
            ``i``.  None is empty.
    """

    planes: tuple[tuple[Plane, int], ...] = ()

    @classmethod
    def of(cls, planes: Mapping[Plane, int]) -> Footprint:
        """Makes a set from the places of each plane."""
        return cls(tuple(sorted((plane, mask) for plane, mask in planes.items() if mask)))

    @classmethod
    def of_addresses(cls, addresses: Iterable[int]) -> Footprint:
        """Makes a set of bytes of shared memory in one CTA."""
        listed = set(addresses)
        return cls.of({(0, 0): bits_of(((each, 1) for each in listed), max(listed, default=0) + 1)})

    def __bool__(self) -> bool:
        return bool(self.planes)

    def __and__(self, other: Footprint) -> Footprint:
        return self._merged(other, lambda mine, its: mine & its)

    def __or__(self, other: Footprint) -> Footprint:
        return self._merged(other, lambda mine, its: mine | its)

    def __sub__(self, other: Footprint) -> Footprint:
        return self._merged(other, lambda mine, its: mine & ~its)

    def _merged(self, other: Footprint, operation: Callable[[int, int], int]) -> Footprint:
        mine, its = dict(self.planes), dict(other.planes)
        return Footprint.of(
            {plane: operation(mine.get(plane, 0), its.get(plane, 0)) for plane in mine | its}
        )

    def intersects(self, other: Footprint) -> bool:
        """Returns whether two sets have a place in common."""
        its = dict(other.planes)
        return any(mask & its.get(plane, 0) for plane, mask in self.planes)

    def contains(self, other: Footprint) -> bool:
        """Returns whether all places of another set are in this one."""
        mine = dict(self.planes)
        return all(not mask & ~mine.get(plane, 0) for plane, mask in other.planes)

    @property
    def of_any_cta(self) -> Footprint:
        """Returns the union over all CTAs, as one CTA."""
        found: dict[Plane, int] = {}
        for (_, row), mask in self.planes:
            found[0, row] = found.get((0, row), 0) | mask
        return Footprint.of(found)

    @property
    def first(self) -> tuple[int, int, int]:
        """Returns CTA, row and column (or byte) of the first location of a non-empty set."""
        (cta, row), mask = self.planes[0]
        return cta, row, (mask & -mask).bit_length() - 1


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Memory that a descriptor covers.

    Two regions may have equal start and size, but different holes.

    Attributes:
        base: Address of its first element: a byte of shared memory; ``row << 16 | column`` of
            tensor memory.
        length: Bytes, or columns of tensor memory, from its first element to its last one,
            including holes.
        footprint: The locations of its elements.
    """

    base: int
    length: int
    footprint: Footprint

    def __str__(self) -> str:
        return f"[{self.base}, {self.length}]"


def bits_of(runs: Iterable[tuple[int, int]], size: int) -> int:
    """Returns a number with runs of bits set.

    Args:
        runs: First bit and length of each.
        size: Number of bits; no run goes beyond.
    """
    digits = bytearray(b"0") * size
    for start, length in runs:
        digits[start : start + length] = b"1" * length
    digits.reverse()
    return int(digits, 2) if size else 0
