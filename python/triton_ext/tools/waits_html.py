"""A timeline as a page: the picture, and the same as text to copy from.

One file that needs nothing from elsewhere.  Its script only brings out what belongs to a wait while
the pointer is over it; without scripts nothing is missing.
"""

from __future__ import annotations

from triton_ext.analysis.timeline import Timeline
from triton_ext.tools import svg
from triton_ext.tools.waits_style import CSS
from triton_ext.tools.waits_svg import svg_body
from triton_ext.tools.waits_text import render_text

__all__ = ["render_html"]

_BARS = (
    ".bar{transition:opacity .12s}.lit .bar{opacity:.16}.lit .bar.on{opacity:1}"
    ".wait{cursor:default}.bar:hover{opacity:.75}"
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
        host: Name of the Triton whose lowering decides the numbers.
    """
    body, width, height = svg_body(timeline, source, host)
    text = render_text(timeline, source, host)
    title = f"{source}: asynchronous copies and waits"
    return svg.page(body, width, height, title, f"{_BARS}{CSS}", text, _SCRIPT)
