"""How pictures look: fonts, colours for light and dark, measures of text."""

from __future__ import annotations

import html

__all__ = [
    "BLUE",
    "DARK",
    "FONT",
    "LIGHT",
    "MONO",
    "PINK",
    "RULES",
    "TEAL",
    "escape",
    "mono_width",
    "text_width",
    "wrap",
]

FONT = "ui-sans-serif,system-ui,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
#: Size of all but titles, in pixels.
SMALL = 12
#: Colours of what is told apart, on light and on dark.
BLUE, TEAL, PINK = ("#2563eb", "#60a5fa"), ("#0d9488", "#2dd4bf"), ("#db2777", "#f472b6")


def _theme(ink: str, paper: str, pale: str, faint: str, bad: str, hint: str, good: str) -> str:
    return (
        f".paper{{fill:{paper}}}.ink{{fill:{ink}}}.pale{{fill:{pale}}}"
        f".box{{fill:{ink};fill-opacity:.035;stroke:{ink};stroke-opacity:.16}}"
        f".loop{{stroke:{pale}}}.tip{{fill:{pale}}}"
        f".rule,.thin{{stroke:{ink}}}.faint{{stroke:{faint}}}.badge{{fill:{ink}}}.onbadge{{fill:{paper}}}"
        f".bad{{fill:{bad}}}.hint{{fill:{hint}}}.good{{fill:{good}}}.onlabel{{fill:{paper}}}"
        f".alarm{{fill:{bad};fill-opacity:.1}}.ring{{stroke:{bad};fill:{paper}}}.cross{{stroke:{bad}}}"
        f".gap{{stroke:{paper}}}"
    )


LIGHT = _theme("#1f2937", "#ffffff", "#6b7280", "#d1d5db", "#dc2626", "#b45309", "#15803d")
DARK = _theme("#e5e7eb", "#0f1419", "#9ca3af", "#374151", "#f87171", "#fbbf24", "#4ade80")

RULES = (
    f"text{{font:{SMALL}px {FONT}}}.mono{{font:{SMALL}px {MONO}}}.bold{{font-weight:600}}"
    f".title{{font:600 18px {FONT}}}.tiny{{font:600 11px {FONT}}}"
    ".touch{fill-opacity:0}.box{stroke-width:1}.loop{fill:none;stroke-width:1.5}.rule{stroke-width:2.5;fill:none}"
    ".faint,.thin{stroke-width:1;fill:none}.commit{stroke-width:1.5;stroke-dasharray:2 3;fill:none}"
    ".ring{stroke-width:2}.cross{stroke-width:2;fill:none}"
    ".lead{stroke-dasharray:2 3;stroke-width:1;fill:none}"
    ".gap{stroke-width:2.5;fill:none;stroke-opacity:.75}"
)


def escape(text: str) -> str:
    """Text as it stands in XML."""
    return html.escape(text, quote=True)


def mono_width(text: str) -> float:
    """About how wide text is in the fixed-width font."""
    return len(text) * SMALL * 0.605


def text_width(text: str) -> float:
    """About how wide text is in the other font; rather too much than too little."""
    return sum(_wide(character) for character in text) * SMALL


def _wide(character: str) -> float:
    if character in "ijl.,:;'|()[] ":
        return 0.36
    if character in "mwMW→":
        return 0.9
    return 0.67 if character.isupper() or character in "_+=0123456789" else 0.58


def wrap(text: str, width: float) -> list[str]:
    """Text in lines of at most so many pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
