"""The state of one value (axis info), and the join of two states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...ir import Operation

__all__ = ["LIMIT", "AxisInfo", "exact", "join", "largest_power"]

#: Divisibility of 0: the largest power of two in a signed 64-bit number, as in upstream.
LIMIT = 1 << 62


def largest_power(number: int) -> int:
    """Returns the largest power of two that divides a number; :data:`LIMIT` for 0."""
    return min(number & -number, LIMIT) if number else LIMIT


@dataclass(frozen=True, slots=True)
class AxisInfo:
    """Known properties of a value; a scalar has one dimension of one element.

    Attributes:
        contiguity: Property 1, for each dimension.
        divisibility: Property 2.
        constancy: Property 3.
        constant: Property 4; ``None`` if the elements differ or are unknown.
        gap: Property 6: the first operation about which the host may know more than we do, or
            ``None``.
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    constant: int | None = None
    gap: Operation | None = None

    @property
    def complete(self) -> bool:
        """Returns whether the host cannot know more than this; see property 6."""
        return self.gap is None

    @property
    def rank(self) -> int:
        """Number of dimensions; 1 for a scalar."""
        return len(self.contiguity)

    @property
    def divisor(self) -> int:
        """Returns a power of two that divides every element (property 5)."""
        if self.constant is not None:
            return largest_power(self.constant)
        pairs = zip(self.contiguity, self.divisibility, strict=True)
        # Without a dimension of contiguity 1 only the first elements of groups are known.
        return max((divisor for run, divisor in pairs if run == 1), default=1)

    def group_divisor(self, dim: int, size: int, stride: int = 1) -> int:
        """Returns a divisor of the first element of every aligned group of ``size`` elements.

        Args:
            dim: The dimension.
            size: A power of two; may differ from the contiguity.
            stride: Distance of neighbours in a contiguous group: 1, or a pointer's bytes.
        """
        known = self.divisibility[dim]
        if self.contiguity[dim] > size:
            # The group may start inside a contiguous one, at a multiple of size from its start.
            known = math.gcd(known, size * stride)
        return max(known, self.divisor)

    def normalized(self) -> AxisInfo:
        """Returns the same with property 5 applied to every dimension."""
        divisor = self.divisor
        if all(known >= divisor for known in self.divisibility):
            return self
        return replace(self, divisibility=tuple(max(x, divisor) for x in self.divisibility))

    def with_gap(self, gap: Operation | None) -> AxisInfo:
        """Returns the same claims, incomplete if an operation is given."""
        return self if gap is None or self.gap is not None else replace(self, gap=gap)

    def of_rank(self, rank: int) -> AxisInfo:
        """Returns the same claims for a value of this rank; no claims if the rank differs.

        A value of another dialect's type may carry the claims of a tensor that was cast to it.
        """
        return self if self.rank == rank else AxisInfo.nothing(rank, self.gap)

    @staticmethod
    def nothing(rank: int, gap: Operation | None = None) -> AxisInfo:
        """Returns the state that is true of every value."""
        ones = (1,) * rank
        return AxisInfo(ones, ones, ones, None, gap)

    @staticmethod
    def splat(constant: int, shape: Iterable[int]) -> AxisInfo:
        """Returns the state of a constant; ``shape`` is ``(1,)`` for a scalar."""
        constancy = tuple(shape)
        rank = len(constancy)
        return AxisInfo((1,) * rank, (largest_power(constant),) * rank, constancy, constant)


def join(lhs: AxisInfo, rhs: AxisInfo, stride: int = 1) -> AxisInfo:
    """Returns the state of a value that is one of two.

    It also holds for a value whose every contiguous or constant group comes from one of the two.

    Args:
        lhs: The state of the one.
        rhs: The state of the other.
        stride: Bytes of an element for pointers, else 1.
    """
    contiguity = tuple(map(math.gcd, lhs.contiguity, rhs.contiguity))
    return AxisInfo(
        contiguity,
        tuple(
            math.gcd(lhs.group_divisor(d, run, stride), rhs.group_divisor(d, run, stride))
            for d, run in enumerate(contiguity)
        ),
        tuple(map(math.gcd, lhs.constancy, rhs.constancy)),
        lhs.constant if lhs.constant == rhs.constant else None,
        lhs.gap or rhs.gap,
    )


def exact(number: int, width: int) -> int:
    """Returns a number as a two's complement integer of ``width`` bits; one bit is 0 or 1."""
    number &= (1 << width) - 1
    return number - (1 << width) if width > 1 and number >> (width - 1) else number
