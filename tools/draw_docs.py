"""Draws the pictures of ``docs/assets`` from what the package and the pages say.

``python tools/draw_docs.py`` writes them, ``python tools/draw_docs.py --check`` compares.

* ``pipeline.svg``: the stages of a compile, and what triton-ext adds to each.
* ``im2col-walk.svg``: the pixels of three im2col loads, by the model of the TMA unit.
* ``roles.svg``: the timeline of ``docs/im2col/5-roles.md`` (``tools/draw_timeline.py``).
* ``roofline.svg``: the rates in the table of ``docs/explanation/gluon-measured.md``.

The same inputs give the same bytes; ``unittest/test_docs_pictures.py`` draws them again.  Needs
what the package needs, and torch.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import draw_timeline
from environment import ROOT, say
from triton_ext.tools.picture_style import BLUE, DARK, LIGHT, PINK, RULES, TEAL
from triton_ext.tools.svg import document, path, rect, text

__all__ = ["FOLDER", "PICTURES", "Layer", "layers_of"]

FOLDER = ROOT / "docs" / "assets"
_MEASURED = ROOT / "docs" / "explanation" / "gluon-measured.md"

#: Name, colour on light, colour on dark.
_COLOURS = (
    ("one", *BLUE),
    ("two", *TEAL),
    ("three", *PINK),
    ("own", "#3f51b5", "#9fa8da"),
)


def _colours(index: int) -> str:
    return "".join(
        f".f-{name}{{fill:{each[index]}}}.b-{name}{{fill:{each[index]};fill-opacity:.2}}"
        f".s-{name}{{stroke:{each[index]};fill:none;stroke-width:2}}"
        f".o-{name}{{fill:{each[index]};fill-opacity:.1;stroke:{each[index]};stroke-width:1.5}}"
        for name, *each in _COLOURS
    )


_CSS = (
    f"{RULES}.dash{{stroke-dasharray:4 3}}.arrow{{stroke-width:1.5;fill:none}}"
    f"{LIGHT}.arrow{{stroke:#4b5563}}{_colours(0)}"
    f"@media (prefers-color-scheme:dark){{{DARK}.arrow{{stroke:#9ca3af}}{_colours(1)}}}"
)


# ---- The stages of a compile --------------------------------------------------------------------

_STAGES = (
    (20, 135, "kernel", "@triton.jit, Gluon"),
    (195, 135, "TTIR", "no layouts yet"),
    (370, 135, "TTGIR", "layouts chosen"),
    (545, 135, "LLVM IR", ""),
    (720, 80, "PTX", ""),
    (840, 120, "cubin", "launch"),
)
_OURS = (
    (20, 150, 87, "device functions", "load_im2col: markers"),
    (200, 130, 262, "your passes", "on TTIR"),
    (350, 200, 437, "passes on TTGIR", "im2col, waits, layouts, yours"),
    (570, 160, 612, "rewrites of LLVM IR", "im2col on 3.6 and 3.7"),
    (800, 160, 900, "tensor maps", "encoded once, cached"),
)


def pipeline() -> str:
    """The stages of a compile; what triton-ext adds stands below the stage that it acts on."""
    parts = [text(20, 30, "Triton, as installed", "ink bold")]
    for number, (x, width, title, below) in enumerate(_STAGES):
        parts += _labelled(x, 45, width, 54, title, below, "box")
        if number:
            before = _STAGES[number - 1]
            parts.append(_arrow(before[0] + before[1] + 3, 72, x - 3, 72))
    for x, width, target, title, below in _OURS:
        parts += _labelled(x, 165, width, 64, title, below, "o-own")
        parts.append(path(f"M{target} 163V106", "s-own dash"))
        parts.append(path(f"M{target} 101l-4 7h8z", "f-own"))
    parts += _labelled(340, 252, 220, 36, "print, parse, rewrite, verify", "", "o-own")
    parts.append(path("M450 231V250", "s-own dash"))
    said = "Blue: triton-ext. On AMD, assembly and hsaco take the places of PTX and cubin."
    parts.append(text(20, 316, said, "pale"))
    title = "Stages of a compile, and what triton-ext adds to each"
    return document("\n".join(parts) + "\n", 980, 334, title, _CSS)


def _labelled(
    x: float, y: float, width: float, height: float, title: str, below: str, classes: str
) -> list[str]:
    middle, centre = x + width / 2, y + height / 2
    found = [rect(x, y, width, height, classes, 6)]
    found.append(text(middle, centre - (4 if below else -4), title, "ink bold", "middle"))
    if below:
        found.append(text(middle, centre + 14, below, "pale", "middle"))
    return found


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A horizontal arrow."""
    return path(f"M{x:g} {y:g}L{to_x:g} {to_y:g}m-6 -4l6 4l-6 4", "arrow")


# ---- The walk of im2col loads -------------------------------------------------------------------

_SIZE, _FILTER, _PADDING, _CHANNELS = (4, 5), (3, 3), 1, 64
_PIXELS, _FIRST = 8, 7
_CELL = 30
_TAPS = (((0, 0), "one"), ((1, 1), "two"), ((2, 2), "three"))


def im2col_walk() -> str:
    """Three loads of a tile: the pixels that each reads, and where they are in the matrix."""
    from triton_ext import Im2ColDescriptor
    from triton_ext.backends.nvidia.backend.im2col_model import walk

    torch = importlib.import_module("torch")
    image = torch.zeros(1, *_SIZE, _CHANNELS, dtype=torch.float16)
    desc = Im2ColDescriptor.for_conv(
        image, _FILTER, padding=_PADDING, block_shape=[_PIXELS, _CHANNELS]
    )
    height, width = desc.output_size
    start = (0, _FIRST // width - _PADDING, _FIRST % width - _PADDING)
    box = (desc.geometry.box_first, desc.geometry.box_last)
    parts = [
        text(
            24, 34, f"Three loads of one tile: output pixels {_FIRST} to {_FIRST + 7}", "ink title"
        )
    ]
    for number, (tap, colour) in enumerate(_TAPS):
        x = 24 + number * (_CELL * (_SIZE[1] + 2) + 79)
        coords, inside = walk(desc.geometry, start, tap, _PIXELS)
        visited = [(int(h), int(w)) for _, h, w in coords]
        parts += _image(x, 78, tap, colour, visited, [bool(each) for each in inside], box)
    parts += _matrix(24, 292, height * width)
    title = "Pixels that three im2col loads read, and their places in the matrix"
    return document("\n".join(parts) + "\n", 836, 556, title, _CSS)


def _image(
    x: float,
    y: float,
    tap: tuple[int, int],
    colour: str,
    visited: list[tuple[int, int]],
    inside: list[bool],
    box: tuple[tuple[int, ...], tuple[int, ...]],
) -> list[str]:
    """The image with its padding, the pixels that are read, and the box of the walk."""

    def corner(h: int, w: int) -> tuple[float, float]:
        return x + (w + 1) * _CELL, y + (h + 1) * _CELL

    parts = [text(x, y - 12, f"tap {tap}", f"f-{colour} bold")]
    for h in range(-1, _SIZE[0] + 1):
        for w in range(-1, _SIZE[1] + 1):
            is_image = 0 <= h < _SIZE[0] and 0 <= w < _SIZE[1]
            left, top = corner(h, w)
            kind = "box" if is_image else "faint dash"
            parts.append(rect(left + 1, top + 1, _CELL - 2, _CELL - 2, kind, 3))
    for number, ((h, w), is_valid) in enumerate(zip(visited, inside, strict=True)):
        left, top = corner(h, w)
        kind = f"b-{colour}" if is_valid else f"s-{colour} dash"
        parts.append(rect(left + 2, top + 2, _CELL - 4, _CELL - 4, kind, 3))
        parts.append(text(left + _CELL / 2, top + 20, str(number), "ink mono", "middle"))
    (top_h, left_w), (bottom_h, right_w) = box
    (left, top), (right, bottom) = corner(top_h, left_w), corner(bottom_h + 1, right_w + 1)
    parts.append(rect(left, top, right - left, bottom - top, "s-own", 4))
    return parts


def _matrix(x: float, y: float, rows: int) -> list[str]:
    """The left matrix of the product, with the three tiles in it."""
    left, top, wide, high = x + 66, y + 40, 38, 9
    taps = [(r, s) for r in range(_FILTER[0]) for s in range(_FILTER[1])]
    colours = dict(_TAPS)
    parts = [text(x, y + 8, "The left matrix, of which they are three blocks", "ink bold")]
    for column, tap in enumerate(taps):
        at = left + column * wide
        said = f"{tap[0]},{tap[1]}"
        classes = f"f-{colours[tap]} bold" if tap in colours else "pale"
        parts.append(text(at + wide / 2, top - 6, said, classes, "middle"))
        parts.append(rect(at + 1, top, wide - 2, rows * high, "box", 2))
        if tap in colours:
            block = (at + 1, top + _FIRST * high, wide - 2, _PIXELS * high)
            parts.append(rect(*block, f"o-{colours[tap]}", 2))
    for row in (0, _FIRST, _FIRST + _PIXELS - 1, rows - 1):
        parts.append(text(left - 6, top + row * high + 8.5, str(row), "pale", "end"))
    parts.append(text(x, top + 9, "pixel", "pale"))
    bottom = top + rows * high + 18
    parts.append(text(left, bottom, f"columns: 9 taps x {_CHANNELS} channels", "pale"))
    notes = (
        ("Numbers", "rows of the tile, in the order of the walk"),
        ("Dashed", "outside of the image: reads as zero"),
        ("Frame", "the pixel box; at its right edge the walk"),
        ("", "goes on at the left edge, one line below"),
        ("Other taps", "the same walk, moved; the box stays"),
        ("One load", f"a block of [{_PIXELS} pixels, {_CHANNELS} channels], from"),
        ("", "the image to shared memory"),
        ("The matrix", "is never written to memory"),
    )
    for number, (word, said) in enumerate(notes):
        height = top + 12 + 22 * number
        parts.append(text(left + 372, height, word, "ink bold"))
        parts.append(text(left + 456, height, said, "ink"))
    return parts


# ---- Roofline -----------------------------------------------------------------------------------

# NVIDIA H200 SXM (data sheet): dense fp16, HBM3e.
_PEAK_TFLOPS, _PEAK_TBYTES = 989.5, 4.8
_LEFT, _TOP, _WIDE, _HIGH = 76, 70, 640, 360
_X, _Y = (20.0, 3000.0), (80.0, 1200.0)


@dataclass(frozen=True, slots=True)
class Layer:
    """A row of a table of measurements.

    Attributes:
        name: ``N,H,W,Ci,Co,R,S,stride``.
        theirs: TFLOP/s of cuDNN.
        ours: TFLOP/s of the Gluon kernel.
    """

    name: str
    theirs: float
    ours: float

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte, if x, w and y (fp16) move once."""
        n, h, w, ci, co, r, s, stride = map(int, self.name.split(","))
        out = [(size + 2 * (k // 2) - k) // stride + 1 for size, k in ((h, r), (w, s))]
        pixels = n * math.prod(out)
        moved = 2 * (n * h * w * ci + co * r * s * ci + pixels * co)
        return 2 * pixels * co * r * s * ci / moved

    @property
    def is_pointwise(self) -> bool:
        """True for a 1x1 filter."""
        return self.name.split(",")[5:7] == ["1", "1"]


def layers_of(page: str, direction: str) -> list[Layer]:
    """Returns the rows of a direction's table on the page of measurements."""
    part = page.split(f"\n### {direction}\n", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^\| ([\d,]{15,}) \| (\d+) \| \d+ \| (\d+) \|", part, re.MULTILINE)
    return [Layer(name, float(theirs), float(ours)) for name, theirs, ours in rows]


def _at(intensity: float, rate: float) -> tuple[float, float]:
    """The place of a point in the picture; both axes are logarithmic."""
    across = math.log(intensity / _X[0]) / math.log(_X[1] / _X[0])
    up = math.log(rate / _Y[0]) / math.log(_Y[1] / _Y[0])
    return _LEFT + across * _WIDE, _TOP + (1 - up) * _HIGH


def roofline() -> str:
    """Rates of the layers over their arithmetic intensity, below what the device can do."""
    layers = layers_of(_MEASURED.read_text(encoding="utf-8"), "fprop")
    parts = [
        text(24, 34, f"Forward convolutions on an H200, fp16, {len(layers)} layers", "ink title")
    ]
    parts += _axes()
    ridge = _PEAK_TFLOPS / _PEAK_TBYTES
    points = [_at(x, min(_PEAK_TFLOPS, x * _PEAK_TBYTES)) for x in (_X[0], ridge, _X[1])]
    parts.append(path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), "arrow"))
    x, y = _at(_X[1], _PEAK_TFLOPS)
    parts.append(text(x - 4, y - 8, f"{_PEAK_TFLOPS:.0f} TFLOP/s, dense fp16", "pale", "end"))
    x, y = _at(38, 38 * _PEAK_TBYTES)
    parts.append(text(x - 8, y - 8, f"{_PEAK_TBYTES} TB/s", "pale", "end"))
    for layer in layers:
        parts += _point(layer)
    parts += _legend()
    title = f"Roofline of {len(layers)} forward convolutions on an H200"
    return document("\n".join(parts) + "\n", 740, 500, title, _CSS)


def _point(layer: Layer) -> Iterable[str]:
    (x, theirs), (_, ours) = (_at(layer.intensity, rate) for rate in (layer.theirs, layer.ours))
    colour = "three" if layer.is_pointwise else "one"
    said = f"{layer.name}: cuDNN {layer.theirs:.0f}, ours {layer.ours:.0f} TFLOP/s"
    yield path(f"M{x:.1f} {theirs:.1f}V{ours:.1f}", f"s-{colour}")
    yield rect(x - 4, theirs - 4, 8, 8, f"s-{colour} paper", 4)
    yield rect(x - 5, ours - 5, 10, 10, f"f-{colour}", 5, title=said)


def _axes() -> Iterable[str]:
    bottom = _TOP + _HIGH
    for rate in (100, 200, 400, 800):
        _, y = _at(_X[0], rate)
        yield path(f"M{_LEFT} {y:.1f}H{_LEFT + _WIDE}", "faint")
        yield text(_LEFT - 8, y + 4, str(rate), "pale", "end")
    for intensity in (20, 50, 100, 200, 500, 1000, 2000):
        x, _ = _at(intensity, _Y[0])
        yield path(f"M{x:.1f} {_TOP}V{bottom}", "faint")
        yield text(x, bottom + 18, str(intensity), "pale", "middle")
    yield text(_LEFT - 8, _TOP - 12, "TFLOP/s", "ink", "middle")
    said = "floating-point operations per byte, if x, w and y move once"
    yield text(_LEFT + _WIDE / 2, bottom + 40, said, "ink", "middle")


def _legend() -> Iterable[str]:
    x, y = _LEFT + _WIDE - 190, _TOP + _HIGH - 78
    yield rect(x, y, 178, 66, "paper", 6)
    yield rect(x, y, 178, 66, "box", 6)
    for number, (colour, said) in enumerate((("one", "3x3 and 1-D"), ("three", "1x1"))):
        yield rect(x + 12, y + 11 + 18 * number, 10, 10, f"f-{colour}", 5)
        yield text(x + 30, y + 20 + 18 * number, f"{said}, triton-ext", "ink")
    yield rect(x + 13, y + 48, 8, 8, "s-one paper", 4)
    yield text(x + 30, y + 56, "the same layer, cuDNN", "ink")


PICTURES: dict[str, Callable[[], str]] = {
    "im2col-walk.svg": im2col_walk,
    "pipeline.svg": pipeline,
    "roles.svg": draw_timeline.roles,
    "roofline.svg": roofline,
}


def main(argv: list[str]) -> int:
    """Draws all pictures, or compares; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args(argv)
    status = 0
    for name, draw in PICTURES.items():
        file, drawn = FOLDER / name, draw()
        is_same = file.is_file() and file.read_text(encoding="utf-8") == drawn
        if arguments.check and not is_same:
            say(f"{file.relative_to(ROOT)}: error: differs; run python tools/draw_docs.py")
            status = 1
        elif not is_same:
            file.write_text(drawn, encoding="utf-8")
            say(f"wrote {file.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
