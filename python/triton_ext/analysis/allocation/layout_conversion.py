"""Decides whether a layout conversion goes through shared memory.

It does not if every thread has the elements it needs (registers move), nor if every warp has them
and at most one bit moves between registers and lanes (shuffles).  Upstream:
``cvtNeedsSharedMemory`` in ``lib/Analysis/Utility.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...ir.linear_layout import LinearLayout
from .swizzling import FlatLayout

__all__ = ["crosses_ctas", "goes_through_memory", "stays_in_ctas", "stays_in_warps"]

_INNER: Final = ("register", "lane")
_SLOWEST_FIRST: Final = ("block", "warp", "lane", "register")
# Maximum exchanges between registers and lanes for shuffles.
_EXCHANGES: Final = 2


def goes_through_memory(
    source: LinearLayout, target: LinearLayout, *, shuffles_broadcasts: bool
) -> bool:
    """Returns whether a conversion needs shared memory.

    Args:
        source: Layout of the operand.
        target: Layout of the result.
        shuffles_broadcasts: Whether the host distributes by shuffles what all warps of the source
            hold.
    """
    moved = _moved_dims(source, target)
    if moved <= {"register"}:
        return False
    if moved == set(_INNER):
        return _exchanges(source, target) >= _EXCHANGES
    return not (shuffles_broadcasts and _is_within_warps(source, target))


def crosses_ctas(source: LinearLayout, target: LinearLayout) -> bool:
    """Returns whether a CTA needs elements of another one."""
    return "block" in _moved_dims(source, target)


def stays_in_ctas(source: LinearLayout, target: LinearLayout) -> bool:
    """Returns whether every CTA has the elements it needs.

    If several CTAs hold an element, each uses its own copy.
    """
    conversion = target.invert_and_compose(source)
    at = conversion.out_dim_names.index("block")
    free = source.free_variable_masks().get("block", 0)
    for name, vectors in conversion.bases:
        for bit, basis in enumerate(vectors):
            if basis[at] & ~free != (1 << bit if name == "block" else 0) & ~free:
                return False
    return True


def stays_in_warps(source: LinearLayout, target: LinearLayout) -> bool:
    """Returns whether every warp needs only elements that it wrote itself.

    If several warps hold an element, one of them writes it for all.
    """
    if any(layout.free_variable_masks().get("warp", 0) for layout in (source, target)):
        return False
    if not stays_in_ctas(source, target):
        return False
    conversion = target.invert_and_compose(source)
    at = conversion.out_dim_names.index("warp")
    outs = len(conversion.out_dim_names)
    return all(
        basis == tuple((1 << bit) * (i == at) for i in range(outs))
        if name == "warp"
        else not basis[at]
        for name, vectors in conversion.bases
        for bit, basis in enumerate(vectors)
    )


def _moved_dims(source: LinearLayout, target: LinearLayout) -> set[str]:
    """Returns the dimensions that the conversion changes, the slowest first."""
    conversion = target.invert_and_compose(source)
    for dim in _SLOWEST_FIRST:
        outs = conversion.out_dim_names
        if dim not in outs or not conversion.has_in_dim(dim):
            continue
        at = outs.index(dim)
        stays = conversion.in_dim_size(dim) == conversion.out_dim_size(dim) and all(
            basis == tuple((1 << bit) * (i == at) for i in range(len(outs)))
            for bit, basis in enumerate(conversion.in_bases(dim))
        )
        mixes = any(
            basis[at] for name, vectors in conversion.bases if name != dim for basis in vectors
        )
        if not stays or mixes:
            break
        ins = [name for name in conversion.in_dim_names if name != dim]
        conversion = conversion.sublayout(ins, [name for name in outs if name != dim])
    return set(conversion.out_dim_names)


def _exchanges(source: LinearLayout, target: LinearLayout) -> int:
    """Counts the bits that move from lanes to registers in the conversion's permutation.

    Redundant bits on one side are filled in: with themselves if both sides have one, otherwise in
    the order of registers and lanes.
    """
    one, two = FlatLayout.of(source), FlatLayout.of(target)
    before, after = _places(one, two), _places(two, one)
    held = {basis: place for place, basis in after.items() if basis}
    goes = {place: held.get(basis, place) for place, basis in before.items() if basis}
    goes |= {place: place for place, basis in before.items() if not basis and not after[place]}
    free = [place for place, basis in before.items() if not basis and after[place]]
    empty = [place for place, basis in after.items() if not basis and before[place]]
    goes |= dict(zip(free, empty, strict=False))
    return sum(start[0] == "lane" and end[0] == "register" for start, end in goes.items())


def _places(layout: FlatLayout, other: FlatLayout) -> Mapping[tuple[str, int], int]:
    """Returns the bases of registers and lanes, padded with zeros to the other layout's size."""
    found: dict[tuple[str, int], int] = {}
    for name, bases, others in (
        ("register", layout.registers, other.registers),
        ("lane", layout.lanes, other.lanes),
    ):
        padded = (*bases, *(0,) * (len(others) - len(bases)))
        found |= {(name, i): basis for i, basis in enumerate(padded)}
    return found


def _is_within_warps(source: LinearLayout, target: LinearLayout) -> bool:
    """Returns whether each warp has what it needs, with at most one exchange left."""
    one, two = FlatLayout.of(source), FlatLayout.of(target)
    outer = zip((*one.warps, *one.blocks), (*two.warps, *two.blocks), strict=False)
    lanes = set(one.lanes) - {0}
    if any(a != b and (a or b not in lanes) for a, b in outer):
        return False
    held = lanes | set(one.registers)
    if not held >= {*two.registers, *two.lanes} - {0}:
        return False
    to_lanes = sum(basis in one.registers for basis in two.lanes if basis)
    to_registers = sum(basis in lanes for basis in two.registers)
    return max(to_lanes, to_registers) < _EXCHANGES
