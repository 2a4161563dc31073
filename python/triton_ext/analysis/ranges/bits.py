"""Bounds of bitwise operations on bounds without a sign, exact in all cases.

The algorithms are those of H. S. Warren, Hacker's Delight, 2nd edition, section 4-3.
"""

from __future__ import annotations

from .interval import Bounds

__all__ = ["and_bounds", "or_bounds", "xor_bounds"]


def or_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a | b``."""
    return _least_or(lhs, rhs, width), _greatest_or(lhs, rhs, width)


def and_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a & b``, which is ``~(~a | ~b)``."""
    mask = (1 << width) - 1
    least, greatest = or_bounds(_inverted(lhs, mask), _inverted(rhs, mask), width)
    return mask - greatest, mask - least


def xor_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a ^ b``."""
    return _least_xor(lhs, rhs, width), _greatest_xor(lhs, rhs, width)


def _inverted(bounds: Bounds, mask: int) -> Bounds:
    return mask - bounds[1], mask - bounds[0]


def _bits_down(width: int) -> list[int]:
    return [1 << place for place in reversed(range(width))]


def _least_or(lhs: Bounds, rhs: Bounds, width: int) -> int:
    (a, b), (c, d) = lhs, rhs
    for bit in _bits_down(width):
        if ~a & c & bit:
            # A greater a that has the bit of c, and nothing below it.
            raised = (a | bit) & -bit
            if raised <= b:
                a = raised
                break
        elif a & ~c & bit:
            raised = (c | bit) & -bit
            if raised <= d:
                c = raised
                break
    return a | c


def _greatest_or(lhs: Bounds, rhs: Bounds, width: int) -> int:
    (a, b), (c, d) = lhs, rhs
    for bit in _bits_down(width):
        if b & d & bit:
            # One of the two can give up the bit for all bits below it.
            lowered = (b - bit) | (bit - 1)
            if lowered >= a:
                b = lowered
                break
            lowered = (d - bit) | (bit - 1)
            if lowered >= c:
                d = lowered
                break
    return b | d


def _least_xor(lhs: Bounds, rhs: Bounds, width: int) -> int:
    (a, b), (c, d) = lhs, rhs
    for bit in _bits_down(width):
        if ~a & c & bit:
            raised = (a | bit) & -bit
            if raised <= b:
                a = raised
        elif a & ~c & bit:
            raised = (c | bit) & -bit
            if raised <= d:
                c = raised
    return a ^ c


def _greatest_xor(lhs: Bounds, rhs: Bounds, width: int) -> int:
    (a, b), (c, d) = lhs, rhs
    for bit in _bits_down(width):
        if b & d & bit:
            lowered = (b - bit) | (bit - 1)
            if lowered >= a:
                b = lowered
            else:
                lowered = (d - bit) | (bit - 1)
                if lowered >= c:
                    d = lowered
    return b ^ d
