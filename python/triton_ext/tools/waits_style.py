"""How the pictures of timelines look: colours of the counters."""

from __future__ import annotations

from triton_ext.analysis.timeline import Lane
from triton_ext.tools.picture_style import BLUE, DARK, LIGHT, PINK, RULES, TEAL

__all__ = ["CSS", "colour_of"]

#: Name, colour on light, colour on dark.
_LANES = (
    ("vm", *BLUE),
    ("loads", *TEAL),
    ("stores", *PINK),
    ("tensor", "#7c3aed", "#a78bfa"),
)


def colour_of(lane: Lane) -> str:
    """The class of everything that has a lane's colour."""
    if lane.counter.startswith("TENSOR"):
        return "tensor"
    if lane.counter.startswith("VM"):
        return "vm"
    return "stores" if lane.what == "stores" else "loads"


def _lanes(index: int) -> str:
    rules = []
    for name, *colours in _LANES:
        colour = colours[index]
        rules.append(
            f".f-{name}{{fill:{colour}}}.b-{name}{{fill:{colour};fill-opacity:.09}}"
            f".c-{name}{{fill:{colour};fill-opacity:.2;stroke:{colour};stroke-dasharray:3 3}}"
            f".o-{name}{{fill:{colour};fill-opacity:.5}}"
            f".s-{name}{{stroke:{colour}}}"
        )
    return "".join(rules)


CSS = f"{RULES}{LIGHT}{_lanes(0)}@media (prefers-color-scheme:dark){{{DARK}{_lanes(1)}}}"
