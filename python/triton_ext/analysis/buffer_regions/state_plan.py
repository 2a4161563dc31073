"""Plans the state that a sanitizer keeps of memory: one lane for memory that is used as a unit.

Bytes that the same regions cover share state.  Each such set of bytes is an *atom* with one lane; a
region's mask has the lanes of its atoms, so two regions have a lane in common if and only if they
have memory in common, ignoring CTAs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .footprint import Footprint, Region

__all__ = ["StatePlan", "state_plan"]


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The lanes of regions.

    Attributes:
        lanes: Number of lanes.
        masks: The lanes of each region, bit ``i`` for lane ``i``.
        unknown: The lanes of an unknown region: all of them, including one of its own; 0 if there
            is none.
    """

    lanes: int
    masks: tuple[int, ...]
    unknown: int = 0


def state_plan(regions: Sequence[Region], *, with_unknown: bool = False) -> StatePlan:
    """Plans the lanes of regions.

    Args:
        regions: The regions.
        with_unknown: Whether there are unknown regions.
    """
    footprints = [region.footprint.of_any_cta for region in regions]
    masks = [0] * len(regions)
    lanes = 0
    for component in _components(footprints):
        for members in _atoms(footprints, component):
            for number in members:
                masks[number] |= 1 << lanes
            lanes += 1
    if not with_unknown:
        return StatePlan(lanes, tuple(masks))
    return StatePlan(lanes + 1, tuple(masks), (1 << (lanes + 1)) - 1)


def _components(footprints: Sequence[Footprint]) -> list[list[int]]:
    """Returns the regions that overlap each other, directly or through others."""
    left = [number for number, footprint in enumerate(footprints) if footprint]
    found = []
    while left:
        component = [left.pop(0)]
        for number in component:
            touching = [each for each in left if footprints[number].intersects(footprints[each])]
            component += touching
            left = [each for each in left if each not in touching]
        found.append(sorted(component))
    return found


def _atoms(footprints: Sequence[Footprint], component: Sequence[int]) -> list[list[int]]:
    """Returns the regions that cover each atom, the atoms sorted by their first place."""
    atoms: list[tuple[Footprint, list[int]]] = []
    for number in component:
        left = footprints[number]
        split = []
        for places, members in atoms:
            common = places & left
            rest = places - left
            split += [(common, [*members, number])] if common else []
            split += [(rest, members)] if rest else []
            left -= common
        atoms = [*split, (left, [number])] if left else split
    return [members for _, members in sorted(atoms, key=lambda atom: atom[0].first)]
