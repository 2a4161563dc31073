"""Where each CTA of a cluster starts when a cluster shares the pixels of an im2col block.

The walk counts pixels in a mixed-radix number (n, [d, [h,]] w): digit ``(x + front) / stride`` of
each spatial dimension, ``size`` positions wide.  A CTA that loads the pixels from the k-th on
starts where the walk is after k steps, so k is added to that number, with carries.

The arithmetic is written once, over whatever adds and divides: Python integers, operations of a
module, values of a kernel that is being traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["CTA_RANK_ASM", "Arithmetic", "Walk", "advance", "first_pixel", "splits_pixels"]

# The number of a CTA in its cluster (PTX ISA, special registers).
CTA_RANK_ASM = "mov.u32 $0, %cluster_ctarank;"

Number = TypeVar("Number")


class Arithmetic(Protocol[Number]):
    """int32 arithmetic; operands of div and rem are never negative."""

    def constant(self, value: int) -> Number:
        """Returns a constant."""

    def add(self, a: Number, b: Number) -> Number:
        """Returns a + b."""

    def sub(self, a: Number, b: Number) -> Number:
        """Returns a - b."""

    def mul(self, a: Number, b: Number) -> Number:
        """Returns a * b."""

    def div(self, a: Number, b: Number) -> Number:
        """Returns a / b, rounded down."""

    def rem(self, a: Number, b: Number) -> Number:
        """Returns the remainder of a / b."""


@dataclass(frozen=True, slots=True)
class Walk(Generic[Number]):
    """The positions that the walk visits, per spatial dimension, outermost first.

    Attributes:
        size: How many positions; the output size of a convolution.
        stride: Their distance in pixels.
        front: Distance of the first one from pixel 0, to the left: the padding in front.
    """

    size: tuple[Number, ...]
    stride: tuple[Number, ...]
    front: tuple[Number, ...]


def advance(
    arithmetic: Arithmetic[Any], start: Sequence[Any], walk: Walk[Any], pixels: Any
) -> tuple[Any, ...]:
    """Returns the coordinates that the walk reaches after a number of pixels.

    Args:
        arithmetic: What adds and divides.
        start: (n, [d, [h,]] w), a position of the walk.
        walk: The positions of each spatial dimension.
        pixels: Steps to go; not negative.
    """
    carry = pixels
    moved: list[Any] = []
    for x, size, stride, front in zip(
        reversed(start[1:]),
        reversed(walk.size),
        reversed(walk.stride),
        reversed(walk.front),
        strict=True,
    ):
        digit = arithmetic.div(arithmetic.add(x, front), stride)
        total = arithmetic.add(digit, carry)
        carry = arithmetic.div(total, size)
        position = arithmetic.mul(arithmetic.rem(total, size), stride)
        moved.insert(0, arithmetic.sub(position, front))
    return (arithmetic.add(start[0], carry), *moved)


def splits_pixels(cga_layout: Sequence[Sequence[int]]) -> bool:
    """Tells whether the CTAs of a cluster hold different pixels of a [pixels, channels] block."""
    return any(basis[0] for basis in cga_layout)


def first_pixel(
    arithmetic: Arithmetic[Any], rank: Any, cga_layout: Sequence[Sequence[int]], pixels: int
) -> Any:
    """Returns which pixel of the block is the first one of a CTA.

    Args:
        arithmetic: What adds and divides.
        rank: Number of the CTA in its cluster.
        cga_layout: One basis per bit of the rank: position of the CTA in the grid of CTAs that
            covers the block, [along pixels, along channels].
        pixels: Pixels of the block.
    """
    along = [abs(basis[0]) for basis in cga_layout]
    pixels_per_cta = pixels // (sum(along) + 1)
    result = arithmetic.constant(0)
    for bit, position in enumerate(along):
        if not position:
            continue
        shifted = arithmetic.div(rank, arithmetic.constant(1 << bit))
        is_set = arithmetic.rem(shifted, arithmetic.constant(2))
        own = arithmetic.mul(is_set, arithmetic.constant(position * pixels_per_cta))
        result = arithmetic.add(result, own)
    return result
