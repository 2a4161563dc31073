"""Whether a layout conversion goes through shared memory.

It does not where every thread has what it needs (registers move), nor where every warp has it and
at most one bit goes from registers to lanes and back (shuffles).  Upstream:
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
# Exchanges between registers and lanes for which shuffles pay.
_EXCHANGES: Final = 2


def goes_through_memory(
    source: LinearLayout, target: LinearLayout, *, shuffles_broadcasts: bool
) -> bool:
    """Whether a conversion needs shared memory.

    Args:
        source: Layout of the operand.
        target: Layout of the result.
        shuffles_broadcasts: Whether the host hands on by shuffles what all warps of the source
            hold.
    """
    moved = _moved_dims(source, target)
    if moved <= {"register"}:
        return False
    if moved == set(_INNER):
        return _exchanges(source, target) >= _EXCHANGES
    return not (shuffles_broadcasts and _is_within_warps(source, target))


def crosses_ctas(source: LinearLayout, target: LinearLayout) -> bool:
    """Whether a CTA needs what another one holds."""
    return "block" in _moved_dims(source, target)


def stays_in_ctas(source: LinearLayout, target: LinearLayout) -> bool:
    """Returns whether every CTA finds what it needs in its own memory.

    Where several CTAs hold the same, each takes what it holds itself.
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
    """Returns whether every warp finds what it needs in what it has written itself.

    Where several warps hold the same, one of them writes it for all.
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
    """The dimensions that are left when those that stay are taken off, the slowest first."""
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
    """Bits that go from lanes to registers in the permutation that the conversion is.

    Bits that hold nothing new on one side are filled in: with themselves where both sides have
    one, otherwise in the order of registers and lanes.
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
    """The bases of registers and lanes, with as many zeros as the other layout has more."""
    found: dict[tuple[str, int], int] = {}
    for name, bases, others in (
        ("register", layout.registers, other.registers),
        ("lane", layout.lanes, other.lanes),
    ):
        padded = (*bases, *(0,) * (len(others) - len(bases)))
        found |= {(name, i): basis for i, basis in enumerate(padded)}
    return found


def _is_within_warps(source: LinearLayout, target: LinearLayout) -> bool:
    """Whether lanes of each warp hold what it needs, and one exchange at most is left."""
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
