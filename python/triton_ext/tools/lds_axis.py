"""Bytes of shared memory along an axis on which long stretches that nobody uses are short."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Axis", "Stretch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A piece of the axis.

    Attributes:
        start: First byte.
        end: Behind the last byte.
        left: Where it starts on the axis.
        right: Where it ends.
        is_used: Whether a buffer ever lies there.
        is_short: Whether it is drawn shorter than it is.
    """

    start: int
    end: int
    left: float
    right: float
    is_used: bool
    is_short: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """Where bytes are on the axis.

    Attributes:
        stretches: The pieces, which leave out nothing.
    """

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(
        cls, used: Iterable[tuple[int, int]], end: int, width: float, longest_gap: float
    ) -> Axis:
        """Lays out an axis.

        Args:
            used: Ranges of bytes that are used at some time.
            end: Behind the last byte that is shown.
            width: Width of the axis.
            longest_gap: How long a stretch may be in which nothing is used.
        """
        pieces = _pieces(used, end)
        short: set[int] = set()
        while True:
            room = width - longest_gap * len(short)
            total = sum(b - a for i, (a, b, _) in enumerate(pieces) if i not in short)
            scale = room / total if total else 0.0
            more = {
                i
                for i, (a, b, is_used) in enumerate(pieces)
                if not is_used and i not in short and (b - a) * scale > longest_gap
            }
            if not more or len(short) == len(pieces) - 1:
                break
            short |= more
        stretches, at = [], 0.0
        for index, (start, stop, is_used) in enumerate(pieces):
            wide = longest_gap if index in short else (stop - start) * scale
            stretches.append(
                Stretch(
                    start=start,
                    end=stop,
                    left=at,
                    right=at + wide,
                    is_used=is_used,
                    is_short=index in short,
                )
            )
            at += wide
        return cls(tuple(stretches))

    def at(self, byte: int) -> float:
        """Where a byte starts."""
        for stretch in self.stretches:
            if byte <= stretch.end:
                share = (byte - stretch.start) / max(1, stretch.end - stretch.start)
                return stretch.left + share * (stretch.right - stretch.left)
        return self.stretches[-1].right if self.stretches else 0.0


def _pieces(used: Iterable[tuple[int, int]], end: int) -> list[tuple[int, int, bool]]:
    """Bytes that are used and bytes that are not, in turn."""
    found: list[tuple[int, int, bool]] = []
    at = 0
    for start, stop in sorted(used):
        if start > at:
            found.append((at, start, False))
        if stop > max(at, start):
            first = max(at, start)
            if found and found[-1][2] and found[-1][1] == first:
                found[-1] = (found[-1][0], stop, True)
            else:
                found.append((first, stop, True))
        at = max(at, stop)
    if end > at:
        found.append((at, end, False))
    return found
