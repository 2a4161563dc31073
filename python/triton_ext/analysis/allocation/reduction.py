"""Computes the shared memory of a reduction across warps.

If it is a series of layout conversions, each thread reduces its own elements, then each warp its
lanes'.  Then bits of warps (and CTAs) along the axis are exchanged with bits of lanes, as many as
there are, until nothing is left to reduce.  Upstream: ``ReduceOpHelper`` in
``lib/Analysis/Utility.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.linear_layout import LinearLayout
from .swizzling import FlatLayout, Swizzling

__all__ = ["bytes_by_conversion", "bytes_by_warps"]

_Bases = dict[str, list[tuple[int, ...]]]


def bytes_by_warps(
    layout: LinearLayout, shape: Sequence[int], axis: int, widths: Sequence[int]
) -> int:
    """Returns the bytes of a reduction that keeps an element for each warp along the axis.

    Args:
        layout: Layout of the operands.
        shape: Their shape.
        axis: The reduced dimension.
        widths: Element width of each operand.
    """
    warps = 1
    for basis in layout.in_bases("warp"):
        warps *= 2 if basis[axis] else 1
    if warps == 1:
        return 0
    count = warps
    for dim, size in enumerate(shape):
        count *= 1 if dim == axis else size
    return count * sum(-(-width // 8) for width in widths)


def bytes_by_conversion(
    layout: LinearLayout, axis: int, widths: Sequence[int], swizzling: Swizzling
) -> int:
    """Returns the bytes of a reduction by layout conversions: those of the largest.

    Args:
        layout: Layout of the operands.
        axis: The reduced dimension.
        widths: Element width of each operand.
        swizzling: How conversions swizzle.
    """
    bases = _within_warps(layout, axis)
    most = 0
    while any(basis[axis] for vectors in bases.values() for basis in vectors):
        source = _flat(bases)
        bases = _with_axis_in_lanes(bases, axis)
        target = _flat(bases)
        sizes = [max(width, 8) for width in widths]
        ctas = 1 << sum(map(bool, source.blocks))
        here = sum(swizzling.elements(source, target, n) // ctas * (n // 8) for n in sizes)
        most = max(most, here)
        bases = _reduced(bases, axis, "lane")
    return most


def _within_warps(layout: LinearLayout, axis: int) -> _Bases:
    """Returns the layout after threads and warps reduce their own elements."""
    bases = {name: list(vectors) for name, vectors in layout.bases}
    registers = sorted(filter(any, bases["register"]), key=lambda basis: not basis[axis])
    bases = _reduced(bases | {"register": registers}, axis, "register")
    bases["register"] = list(filter(any, bases["register"]))
    return _reduced(bases, axis, "lane")


def _reduced(bases: _Bases, axis: int, dim: str) -> _Bases:
    """Removes the axis from one dimension and renumbers the rest."""
    found: _Bases = {}
    step = 1
    for name, vectors in bases.items():
        found[name] = []
        for basis in vectors:
            along = basis[axis] and name != dim
            found[name].append((*basis[:axis], step if along else 0, *basis[axis + 1 :]))
            step *= 2 if along else 1
    return found


def _with_axis_in_lanes(bases: _Bases, axis: int) -> _Bases:
    """Exchanges bits of warps and CTAs along the axis with bits of lanes, empty ones if enough."""
    found = {name: list(vectors) for name, vectors in bases.items()}
    lanes = found["lane"]
    outer = [(name, i) for name in ("warp", "block") for i, b in enumerate(bases[name]) if b[axis]]
    empty = [i for i, basis in enumerate(lanes) if not any(basis)]
    if len(empty) < len(outer):
        empty = list(range(len(lanes)))
    if len(empty) < len(outer):
        outer = [place for place in outer if place[0] == "warp"]
    for lane, (name, i) in zip(empty, outer, strict=False):
        lanes[lane], found[name][i] = found[name][i], lanes[lane]
    return found


def _flat(bases: _Bases) -> FlatLayout:
    sizes: dict[str, int] = {}
    rank = max(len(basis) for vectors in bases.values() for basis in vectors)
    for dim in range(rank):
        most = max((b[dim] for vectors in bases.values() for b in vectors), default=0)
        sizes[f"dim{dim}"] = 1 << most.bit_length()
    return FlatLayout.of(LinearLayout.of(bases, sizes))
