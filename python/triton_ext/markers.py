"""The markers: how the language hands the passes what stock operations have no room for.

A marker is a scalar, pure ``tt.extern_elementwise`` with our library name and a symbol of ours.
Its operands travel as ordinary SSA values through every stock pass, its result stands where a stock
operation wants an index, and a late pass finds it there (docs/adr/0001).
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "CHANNEL",
    "JOIN",
    "JOIN_LIBRARY",
    "LIBRARY",
    "MARKED",
    "METADATA_KEY",
    "PIXEL",
    "channel_problem",
    "kind_of",
    "rows_of",
    "sized",
]

# Never part of a module that does not use us: the fast path searches the printed module for it.
LIBRARY: Final = "triton_ext.markers"

# Stands in the symbol of every marker: what is searched for in LLVM IR, which has no library names.
MARKED: Final = "triton_ext.im2col"

# Our key inside an entry of Triton's tensordesc metadata; Triton keeps what it does not know.
METADATA_KEY: Final = "triton_ext"

# (n, [d, [h,]] w) -> i32: start pixel of an im2col load, outermost first.  In kernels of more than
# one CTA it may be followed by the walk: sizes, strides and paddings in front, each ([d, [h,]] w).
PIXEL: Final = f"{MARKED}.pixel"

# (c, [[offset_d,] offset_h,] offset_w) -> i32: first channel and filter offsets, outermost first.
CHANNEL: Final = f"{MARKED}.channel"

# The one marker that is not pure: it describes the WGMMAs that follow and has to stay in front of
# them.  It has its own library, because no pass over TTGIR reads it.
JOIN_LIBRARY: Final = "triton_ext.wgmma"

# (columns, columns, ..) -> i32, which nobody uses: the WGMMAs behind it are to be one.
JOIN: Final = f"{JOIN_LIBRARY}.join"

# An H200 answers any other first channel with an illegal instruction, whatever the elements are
# (Triton 3.9.0, 2026-11-20).
_CHANNEL_BYTES: Final = 16

_SIZED: Final = re.compile(
    rf"(?P<kind>{re.escape(PIXEL)}|{re.escape(CHANNEL)})(\.\d+(\.(?P<rows>\d+))?)?"
)


def sized(symbol: str, operands: int, rows: int = 0) -> str:
    """The symbol of a marker that goes on to LLVM IR, where a function has one type.

    Args:
        symbol: ``PIXEL`` or ``CHANNEL``.
        operands: How many values it carries.
        rows: Pixels of a block that the host cuts into several boxes; 0 for one that it does not.
    """
    return f"{symbol}.{operands}.{rows}" if rows else f"{symbol}.{operands}"


def kind_of(symbol: str) -> str:
    """``PIXEL`` or ``CHANNEL`` for the symbol of a marker, sized or not; empty for another."""
    match = _SIZED.fullmatch(symbol)
    return match["kind"] if match is not None else ""


def rows_of(symbol: str) -> int:
    """The rows in the symbol of a marker; 0 where it has none."""
    match = _SIZED.fullmatch(symbol)
    return int(match["rows"] or 0) if match is not None else 0


def channel_problem(channel: int, element_bytes: int) -> str:
    """Returns why a copy cannot start at a channel; empty where it can.

    Args:
        channel: The coordinate, in elements; it may lie outside of the tensor.
        element_bytes: Size of an element.
    """
    if channel * element_bytes % _CHANNEL_BYTES == 0:
        return ""
    return (
        f"an im2col copy starts at channel {channel} of {element_bytes}-byte elements, expected a "
        f"multiple of {_CHANNEL_BYTES // element_bytes}: the TMA unit stops with an illegal "
        f"instruction where the first channel is not at a multiple of {_CHANNEL_BYTES} bytes"
    )
