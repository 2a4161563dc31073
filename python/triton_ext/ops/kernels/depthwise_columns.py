"""Which columns of an input a position of a depthwise kernel reaches, and through which taps.

Computed while a kernel is compiled.  In a row, pixel q of a position sees column j of the input,
counted from the position's first, through tap s where ``j * up + phase = q * step + s * dilation``.
"""

from __future__ import annotations

from triton.runtime.jit import constexpr_function

__all__ = ["columns_of", "tap_of", "taps_up_to"]


@constexpr_function
def columns_of(pixels: int, taps: int, step: int, up: int, dilation: int, phase: int) -> int:
    """How many columns of the input a position reaches over."""
    return ((pixels - 1) * step + (taps - 1) * dilation - phase) // up + 1


@constexpr_function
def tap_of(
    column: int, pixel: int, taps: int, step: int, up: int, dilation: int, phase: int
) -> int:
    """The tap through which a pixel of a position sees a column of the input; -1 for none."""
    distance = column * up + phase - pixel * step
    tap = distance // dilation
    return tap if distance % dilation == 0 and 0 <= tap < taps else -1


@constexpr_function
def taps_up_to(
    column: int, pixels: int, taps: int, step: int, up: int, dilation: int, phase: int
) -> int:
    """How many of the first taps the columns up to one need; -1 where this one needs none."""
    seen = [
        (column * up + phase - pixel * step) // dilation
        for pixel in range(pixels)
        if (column * up + phase - pixel * step) % dilation == 0
    ]
    last = max([tap for tap in seen if 0 <= tap < taps], default=-1)
    return last + 1 if last >= 0 else -1
