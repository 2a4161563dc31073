"""A timeline as a page: the picture, and the same as text to copy from.

One file that needs nothing from elsewhere.  Its script only brings out what belongs to a wait while
the pointer is over it; without scripts nothing is missing.
"""

from __future__ import annotations

from triton_ext.analysis.timeline import Timeline
from triton_ext.tools.waits_style import CSS, FONT, MONO, escape
from triton_ext.tools.waits_svg import svg_body
from triton_ext.tools.waits_text import render_text

__all__ = ["render_html"]

_PAGE = (
    ":root{color-scheme:light dark}"
    f"body{{margin:0;font:14px {FONT};background:#f3f4f6;color:#1f2937}}"
    "main{max-width:1500px;margin:0 auto;padding:28px 20px}"
    ".card{background:#fff;border-radius:14px;overflow-x:auto;"
    "box-shadow:0 1px 3px rgba(0,0,0,.12),0 8px 24px rgba(0,0,0,.05)}"
    ".card svg{display:block;margin:0 auto}"
    "details{margin:18px 4px}summary{cursor:pointer;color:#6b7280}"
    f"pre{{font:12px/1.35 {MONO};overflow-x:auto;padding:16px;background:#fff;border-radius:14px}}"
    ".bar{transition:opacity .12s}.lit .bar{opacity:.16}.lit .bar.on{opacity:1}"
    ".wait{cursor:default}.bar:hover{opacity:.75}"
    "@media (prefers-color-scheme:dark){body{background:#070a0d;color:#e5e7eb}"
    ".card,pre{background:#0f1419}summary{color:#9ca3af}}"
)

_SCRIPT = """
const svg = document.querySelector("svg");
for (const wait of svg.querySelectorAll(".wait")) {
  const about = new Set(wait.dataset.copies.split(" "));
  wait.addEventListener("mouseenter", () => {
    svg.classList.add("lit");
    for (const bar of svg.querySelectorAll(".bar"))
      bar.classList.toggle("on", about.has(bar.dataset.copy));
  });
  wait.addEventListener("mouseleave", () => svg.classList.remove("lit"));
}
"""


def render_html(timeline: Timeline, source: str, host: str) -> str:
    """Draws a timeline as an HTML page.

    Args:
        timeline: The timeline.
        source: Name of the input.
        host: Whose lowering the numbers are for.
    """
    body, width, height = svg_body(timeline, source, host)
    text = render_text(timeline, source, host)
    title = escape(f"{source}: asynchronous copies and waits")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{title}</title>\n<style>{_PAGE}{CSS}</style>\n</head>\n<body>\n<main>\n"
        f'<div class="card"><svg viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{title}">\n{body}</svg></div>\n'
        f"<details><summary>The same as text</summary><pre>{escape(text)}</pre></details>\n"
        f"</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
