"""Finds the fastest dimension of a register layout."""

from __future__ import annotations

from ...ir.encodings import DistributedEncoding
from ..linear_layout import layout_of

__all__ = ["order_and_run"]


def order_and_run(encoding: DistributedEncoding, shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the fastest dimension of a register layout, and its contiguous elements per thread.

    Args:
        encoding: Encoding of a tensor.
        shape: Its shape.

    Returns:
        The dimension that the lowest register bit moves in (the last one if no register moves),
        and the length of the run of registers along it.
    """
    bases = layout_of(encoding, shape).in_bases("register")
    moved = [dim for basis in bases for dim, x in enumerate(basis) if x]
    fastest = moved[0] if moved else len(shape) - 1
    run = 1
    for basis in bases:
        if basis != tuple(run if dim == fastest else 0 for dim in range(len(shape))):
            break
        run *= 2
    return fastest, run
