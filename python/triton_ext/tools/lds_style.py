"""How memory maps look: colours of buffers and of conflicts, for light and dark."""

from __future__ import annotations

from triton_ext.tools.picture_style import DARK, LIGHT, RULES

__all__ = ["COLOURS", "CSS", "heat"]

#: Colour on light, colour on dark.
_BUFFERS = (
    ("#2563eb", "#60a5fa"),
    ("#0d9488", "#2dd4bf"),
    ("#7c3aed", "#a78bfa"),
    ("#db2777", "#f472b6"),
    ("#65a30d", "#a3e635"),
    ("#0891b2", "#22d3ee"),
    ("#c2410c", "#fb923c"),
    ("#4f46e5", "#818cf8"),
)
#: A wavefront without a conflict, then the 2nd, the 3rd and 4th, up to the 8th, and all others.
_HEAT = (
    ("#10b981", "#34d399"),
    ("#fbbf24", "#fcd34d"),
    ("#f97316", "#fb923c"),
    ("#ef4444", "#f87171"),
    ("#991b1b", "#dc2626"),
)
_SCRATCH = ("#6b7280", "#9ca3af")

COLOURS = len(_BUFFERS)


def heat(wavefront: int) -> str:
    """The class of a bank that is busy in a wavefront of its phase, counted from 0."""
    return f"h{min(wavefront.bit_length(), len(_HEAT) - 1)}"


def _rules(index: int) -> str:
    found = []
    named = [(f"k{number}", pair) for number, pair in enumerate(_BUFFERS)]
    for name, pair in (*named, ("ks", _SCRATCH)):
        colour = pair[index]
        found.append(
            f".{name}{{fill:{colour};fill-opacity:.8;stroke:{colour}}}"
            f".g-{name}{{fill:{colour};fill-opacity:.14;stroke:{colour};stroke-dasharray:3 3}}"
        )
    found += [f".h{number}{{fill:{pair[index]}}}" for number, pair in enumerate(_HEAT)]
    return "".join(found)


def _theme(ink: str, paper: str, bad: str) -> str:
    return (
        f".area{{fill:{ink};fill-opacity:.035}}.hole{{stroke:{ink};stroke-opacity:.2}}"
        f".bank,.grid{{fill:{ink};fill-opacity:.06}}.edge{{stroke:{ink};stroke-opacity:.35}}"
        f".end{{stroke:{bad}}}.beyond{{fill:{bad};fill-opacity:.12}}.mark{{fill:{paper}}}"
        f".total{{stroke:{ink};stroke-opacity:.55}}.zone{{fill:{ink};fill-opacity:.05}}"
        f".chip{{fill:{ink};fill-opacity:.06}}.peak{{fill:{ink}}}.onbar{{fill:{paper}}}"
        f".alive{{fill:{ink};fill-opacity:.3}}"
    )


_LIGHT = LIGHT + _theme("#1f2937", "#ffffff", "#dc2626") + _rules(0)
_DARK = DARK + _theme("#e5e7eb", "#0f1419", "#f87171") + _rules(1)

CSS = (
    f"{RULES}"
    ".hole{stroke-width:1;fill:none}.edge{stroke-dasharray:2 3;stroke-width:1;fill:none}"
    ".end{stroke-width:2;fill:none}.total{stroke-width:1.5;stroke-dasharray:5 3;fill:none}"
    ".buffer:hover{fill-opacity:1}.mark{fill-opacity:.92}"
    f"{_LIGHT}@media (prefers-color-scheme:dark){{{_DARK}}}"
)
