"""Exact bounds of bitwise operations on unsigned bounds.

The algorithms are those of H. S. Warren, Hacker's Delight, 2nd edition, section 4-3.
"""

from __future__ import annotations

from .interval import Bounds

__all__ = ["and_bounds", "or_bounds", "xor_bounds"]


def or_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a | b``."""
    a, c = _least(lhs, rhs, width, once=True)
    b, d = _greatest(lhs, rhs, width, once=True)
    return a | c, b | d


def and_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a & b``, which is ``~(~a | ~b)``."""
    mask = (1 << width) - 1
    least, greatest = or_bounds(_inverted(lhs, mask), _inverted(rhs, mask), width)
    return mask - greatest, mask - least


def xor_bounds(lhs: Bounds, rhs: Bounds, width: int) -> Bounds:
    """Returns the least and the greatest ``a ^ b``."""
    a, c = _least(lhs, rhs, width, once=False)
    b, d = _greatest(lhs, rhs, width, once=False)
    return a ^ c, b ^ d


def _inverted(bounds: Bounds, mask: int) -> Bounds:
    return mask - bounds[1], mask - bounds[0]


def _least(lhs: Bounds, rhs: Bounds, width: int, *, once: bool) -> tuple[int, int]:
    """Returns the operands of the least result, from the least ones up.

    Args:
        lhs: Bounds of the left operand.
        rhs: Bounds of the right operand.
        width: Bits of both.
        once: Whether the set bit of one operand decides, as for ``or``.
    """
    (a, b), (c, d) = lhs, rhs
    for place in reversed(range(width)):
        bit = 1 << place
        # A greater operand that has the bit of the other one, and nothing below it.
        if ~a & c & bit:
            raised = (a | bit) & -bit
            if raised <= b:
                a = raised
                if once:
                    break
        elif a & ~c & bit:
            raised = (c | bit) & -bit
            if raised <= d:
                c = raised
                if once:
                    break
    return a, c


def _greatest(lhs: Bounds, rhs: Bounds, width: int, *, once: bool) -> tuple[int, int]:
    """Returns the operands of the greatest result, from the greatest ones down; see `_least`."""
    (a, b), (c, d) = lhs, rhs
    for place in reversed(range(width)):
        bit = 1 << place
        if not b & d & bit:
            continue
        # One of the two can give up the bit for all bits below it.
        lowered, other = (b - bit) | (bit - 1), (d - bit) | (bit - 1)
        if lowered >= a:
            b = lowered
        elif other >= c:
            d = other
        else:
            continue
        if once:
            break
    return b, d
