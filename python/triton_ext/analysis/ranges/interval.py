"""The range of an integer: unsigned and signed lower and upper bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Bounds", "IntegerRange"]

#: A lower and an upper bound.
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """Unsigned and signed bounds of an integer.

    A bit pattern is in the range if both of its readings are in their bounds.

    Attributes:
        width: Bits of the integer; 64 for ``index``.
        umin: The least unsigned number.
        umax: The greatest unsigned number.
        smin: The least signed number; true is -1 as a signed ``i1``.
        smax: The greatest signed number.
    """

    width: int
    umin: int
    umax: int
    smin: int
    smax: int

    # ---- construction

    @staticmethod
    def full(width: int) -> IntegerRange:
        """Returns the range of every integer of a width."""
        half = 1 << (width - 1)
        return IntegerRange(width, 0, 2 * half - 1, -half, half - 1)

    @staticmethod
    def constant(width: int, number: int) -> IntegerRange:
        """Returns the range of one number, truncated to the width."""
        return IntegerRange.wrapped(width, (number, number))

    @staticmethod
    def unsigned(width: int, lowest: int, highest: int) -> IntegerRange:
        """Returns a range from unsigned bounds, which must fit the width."""
        return IntegerRange.full(width).narrowed(unsigned=(lowest, highest))

    @staticmethod
    def signed(width: int, lowest: int, highest: int) -> IntegerRange:
        """Returns a range from signed bounds, which must fit the width."""
        return IntegerRange.full(width).narrowed(signed=(lowest, highest))

    @staticmethod
    def wrapped(width: int, *exact: Bounds) -> IntegerRange:
        """Returns the range of a result that is truncated to a width.

        Args:
            width: Bits of the result.
            exact: Bounds of the result before truncation, as signed numbers of any size; all of
                them hold.
        """
        found = IntegerRange.full(width)
        half = 1 << (width - 1)
        for lowest, highest in exact:
            # Both ends lose the same multiple of 2**width, or the bounds tell nothing.
            if lowest >> width == highest >> width:
                cut = lowest >> width << width
                found = found.narrowed(unsigned=(lowest - cut, highest - cut))
            if (lowest + half) >> width == (highest + half) >> width:
                cut = (lowest + half) >> width << width
                found = found.narrowed(signed=(lowest - cut, highest - cut))
        return found

    @staticmethod
    def union(ranges: Iterable[IntegerRange]) -> IntegerRange | None:
        """Returns the union of several ranges; ``None`` if there are none."""
        found: IntegerRange | None = None
        for one in ranges:
            found = one if found is None else found.joined(one)
        return found

    # ---- queries

    @property
    def number(self) -> int | None:
        """The only signed number in the range; ``None`` if there are several."""
        if self.umin == self.umax or self.smin == self.smax:
            return self.smin
        return None

    @property
    def truth(self) -> bool | None:
        """The only truth value in the range of an ``i1``; ``None`` if it may be either."""
        return None if self.umin != self.umax else bool(self.umin)

    @property
    def is_full(self) -> bool:
        """Tells whether every number of the width is in the range."""
        return self == IntegerRange.full(self.width)

    def pieces(self) -> Iterator[Bounds]:
        """Yields the parts with sign bit 0 and 1, as unsigned bounds."""
        modulus = 1 << self.width
        for lowest, highest in (
            (max(self.smin, 0), self.smax),
            (self.smin + modulus, min(self.smax, -1) + modulus),
        ):
            piece = max(lowest, self.umin), min(highest, self.umax)
            if piece[0] <= piece[1]:
                yield piece

    def __contains__(self, number: int) -> bool:
        """Tells whether an unsigned or signed number is in the range."""
        half = 1 << (self.width - 1)
        bits = number & (2 * half - 1)
        signed = (bits ^ half) - half
        return self.umin <= bits <= self.umax and self.smin <= signed <= self.smax

    def __str__(self) -> str:
        return f"unsigned : [{self.umin}, {self.umax}] signed : [{self.smin}, {self.smax}]"

    # ---- combining

    def joined(self, other: IntegerRange) -> IntegerRange:
        """Returns the union with another range."""
        return IntegerRange(
            self.width,
            min(self.umin, other.umin),
            max(self.umax, other.umax),
            min(self.smin, other.smin),
            max(self.smax, other.smax),
        ).narrowed()

    def met(self, other: IntegerRange) -> IntegerRange:
        """Returns the intersection with another range."""
        return self.narrowed((other.umin, other.umax), (other.smin, other.smax))

    def narrowed(
        self, unsigned: Bounds | None = None, signed: Bounds | None = None
    ) -> IntegerRange:
        """Returns the range restricted to further bounds.

        Bounds of one reading that do not cross the sign also bound the other one.  If no number is
        left, the range is unchanged: no execution reaches it, so every range is correct.
        """
        umin, umax, smin, smax = self.umin, self.umax, self.smin, self.smax
        if unsigned is not None:
            umin, umax = max(umin, unsigned[0]), min(umax, unsigned[1])
        if signed is not None:
            smin, smax = max(smin, signed[0]), min(smax, signed[1])
        half, modulus = 1 << (self.width - 1), 1 << self.width
        # Twice, because the first bounds may put the others on one side of the sign.
        for _ in range(2):
            if (umin < half) == (umax < half):
                offset = 0 if umax < half else modulus
                smin, smax = max(smin, umin - offset), min(smax, umax - offset)
            if (smin < 0) == (smax < 0):
                offset = 0 if smin >= 0 else modulus
                umin, umax = max(umin, smin + offset), min(umax, smax + offset)
        if umin > umax or smin > smax:
            return self
        return IntegerRange(self.width, umin, umax, smin, smax)

    def widened(self, before: IntegerRange) -> IntegerRange:
        """Returns this range with every bound that moved since ``before`` at its extreme."""
        full = IntegerRange.full(self.width)
        return IntegerRange(
            self.width,
            self.umin if self.umin >= before.umin else full.umin,
            self.umax if self.umax <= before.umax else full.umax,
            self.smin if self.smin >= before.smin else full.smin,
            self.smax if self.smax <= before.smax else full.smax,
        ).narrowed()
