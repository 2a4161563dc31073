"""Elements of the pictures that the tools draw, and the page around one."""

from __future__ import annotations

from collections.abc import Sequence

from triton_ext.tools.picture_style import FONT, MONO, escape, mono_width

__all__ = ["cut", "document", "page", "path", "rect", "text", "texts", "way_back"]

#: Between words of different fonts.
_GAP = ' dx="7"'

_PAGE = (
    ":root{color-scheme:light dark}"
    f"body{{margin:0;font:14px {FONT};background:#f3f4f6;color:#1f2937}}"
    "main{max-width:1500px;margin:0 auto;padding:28px 20px}"
    ".card{background:#fff;border-radius:14px;overflow-x:auto;"
    "box-shadow:0 1px 3px rgba(0,0,0,.12),0 8px 24px rgba(0,0,0,.05)}"
    ".card svg{display:block;margin:0 auto}"
    "details{margin:18px 4px}summary{cursor:pointer;color:#6b7280}"
    f"pre{{font:12px/1.35 {MONO};overflow-x:auto;padding:16px;background:#fff;border-radius:14px}}"
    "@media (prefers-color-scheme:dark){body{background:#070a0d;color:#e5e7eb}"
    ".card,pre{background:#0f1419}summary{color:#9ca3af}}"
)


def text(x: float, y: float, said: str, classes: str, anchor: str = "start") -> str:
    """Text whose baseline is at ``y``."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}"{at}>{escape(said)}</text>'


def texts(x: float, y: float, said: Sequence[tuple[str, str]]) -> str:
    """Words with their classes behind each other, whatever the widths of their fonts."""
    parts = [
        f'<tspan class="{classes}"{_GAP if number else ""}>{escape(words)}</tspan>'
        for number, (words, classes) in enumerate(said)
    ]
    return f'<text x="{x:.1f}" y="{y:.1f}">{"".join(parts)}</text>'


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    classes: str,
    radius: float = 0,
    *,
    title: str = "",
    **data: object,
) -> str:
    """A rectangle; ``title`` is shown under the pointer, ``data`` become ``data-`` attributes."""
    known = "".join(f' data-{name}="{escape(str(value))}"' for name, value in data.items())
    start = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" '
        f'rx="{radius:g}" class="{classes}"{known}'
    )
    return f"{start}><title>{escape(title)}</title></rect>" if title else f"{start}/>"


def path(commands: str, classes: str) -> str:
    """A path."""
    return f'<path d="{commands}" class="{classes}"/>'


def way_back(left: float, top: float, bottom: float, width: float, corner: float) -> list[str]:
    """The arrow from the end of a loop to its start, to the left of the loop's box."""
    x = left - width
    line = (
        f"M{left:.1f} {bottom:.1f}H{x + corner:.1f}"
        f"Q{x:.1f} {bottom:.1f} {x:.1f} {bottom - corner:.1f}V{top + corner:.1f}"
        f"Q{x:.1f} {top:.1f} {x + corner:.1f} {top:.1f}H{left - 1:.1f}"
    )
    return [path(line, "loop"), path(f"M{left + 1:.1f} {top:.1f}l-6 -4v8z", "tip")]


def cut(said: str, room: float) -> str:
    """Text in the fixed-width font that is not wider than so many pixels."""
    most = max(4, int(room / mono_width("x")))
    return said if len(said) <= most else f"{said[: most - 1]}…"


def document(body: str, width: int, height: int, title: str, css: str) -> str:
    """An SVG file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{css}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}" rx="12"/>\n{body}</svg>\n'
    )


def page(
    body: str, width: int, height: int, title: str, css: str, words: str, script: str = ""
) -> str:
    """An HTML page of a picture, and of the same as text to copy from."""
    said = escape(title)
    script = f"<script>{script}</script>\n" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{said}</title>\n<style>{_PAGE}{css}</style>\n</head>\n<body>\n<main>\n"
        f'<div class="card"><svg viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{said}">\n{body}</svg></div>\n'
        f"<details><summary>The same as text</summary><pre>{escape(words)}</pre></details>\n"
        f"</main>\n{script}</body>\n</html>\n"
    )
