"""A memory map as a picture.

Time runs down, bytes run to the right.  Left stands what the program does, in the middle a bar for
each buffer from its first row to its last, right how much is alive and what accesses cost.  Below
are the banks: a row for each wavefront of one instruction.  The picture stands alone: no scripts,
no fonts or images from elsewhere, and colours for light and dark.
"""

from __future__ import annotations

from typing import Final

from triton_ext.analysis.allocation import BufferKind
from triton_ext.analysis.memory_map import Bar, Effect, FunctionMap, ModuleMap, Row, RowKind
from triton_ext.tools.lds_axis import Axis
from triton_ext.tools.lds_banks import banks
from triton_ext.tools.lds_style import COLOURS, CSS, heat
from triton_ext.tools.lds_words import (
    TIMES,
    head,
    kib,
    place_of,
    ratio,
    shown_end,
    summary,
    tooltip,
    warnings,
)
from triton_ext.tools.picture_style import mono_width, text_width, wrap
from triton_ext.tools.svg import cut, document, page, path, rect, text, texts, way_back

__all__ = ["render_html", "render_svg"]

_MARGIN: Final = 28
_ROW: Final = 22
_NUMBER: Final = 44
_INDENT: Final = 16
_MAP: Final = 640.0
_GAP: Final = 44.0
_RIGHT: Final = 210
_MOST_WHAT: Final = 380
#: Narrower ones are left out.
_LEAST_PARTITION: Final = 4.0


def render_svg(found: ModuleMap, source: str) -> str:
    """Draws the maps of a module as an SVG file.

    Args:
        found: The maps.
        source: Name of the input.
    """
    body, width, height = _body(found, source)
    return document(body, width, height, _title(found, source), CSS)


def render_html(found: ModuleMap, source: str, words: str) -> str:
    """Draws the maps of a module as an HTML page.

    Args:
        found: The maps.
        source: Name of the input.
        words: The same as text.
    """
    body, width, height = _body(found, source)
    return page(body, width, height, _title(found, source), CSS, words)


def _title(found: ModuleMap, source: str) -> str:
    return f"{found.memory.name} of {source}"


def _body(found: ModuleMap, source: str) -> tuple[str, int, int]:
    top, width = float(_MARGIN), 640.0
    parts: list[str] = []
    for function in found.functions:
        drawing = _Drawing(function, found, source, top)
        parts += drawing.parts
        width = max(width, drawing.right + _MARGIN)
        top = drawing.bottom + 40
    if found.functions:
        legend, top = _legend(top, width, found)
        parts += legend
        top += 34
    else:
        said = f"{source}: nothing lies in {found.memory.name}"
        parts.append(text(_MARGIN, top + 14, said, "ink"))
        top += 40
    return "\n".join(parts) + "\n", round(width), round(top + 8)


class _Drawing:
    """Draws one function.

    Args:
        found: The function's map.
        module: The module's.
        source: Name of the input.
        top: Where it starts.

    Attributes:
        parts: The elements, those in front last.
        right: Where it ends to the right.
        bottom: Where it ends at the bottom.
    """

    def __init__(self, found: FunctionMap, module: ModuleMap, source: str, top: float) -> None:
        self._found = found
        self._memory = module.memory
        self._placed_by = module.placed_by
        self.parts: list[str] = []
        self._place_columns()
        self._head(top, source)
        self._rows_top = top + 92
        self._rows_end = self._rows_top + _ROW * len(found.rows)
        self._loops()
        self._area()
        for bar in found.bars:
            self._ghost(bar)
        for bar in found.bars:
            self._bar(bar)
        self._lines()
        for index, row in enumerate(found.rows):
            self._row(index, row)
        at = self._chips(self._rows_end + 44)
        at = self._warnings(at)
        below, self.bottom = banks(found.accesses, module.memory, _MARGIN, at + 6, self.right)
        self.parts += below

    # ---- places

    def _place_columns(self) -> None:
        found, memory = self._found, self._memory
        self._what_x = _MARGIN + _NUMBER + 20
        widest = 150.0
        for row in found.rows:
            wide = mono_width(f"{head(row)} {row.rest}") + row.depth * _INDENT
            widest = max(widest, wide)
        self._what_width = min(widest + 14, _MOST_WHAT)
        self._map_x = self._what_x + self._what_width + 18
        used = [(bar.offset, bar.end) for bar in found.bars if bar.size]
        end = shown_end(found, memory)
        self._axis = Axis.of(used, end, _MAP, _GAP)
        self._side_x = self._map_x + _MAP + 22
        self.right = self._side_x + _RIGHT

    def _x(self, byte: int) -> float:
        return self._map_x + self._axis.at(byte)

    def _y(self, row: int) -> float:
        return self._rows_top + _ROW * row

    # ---- around the map

    def _head(self, top: float, source: str) -> None:
        found, memory = self._found, self._memory
        tone = "bad" if found.total > memory.bytes else "pale"
        self.parts.append(text(_MARGIN, top + 16, f"@{found.name}", "title ink"))
        about = f"{source} · {memory.name} of {memory.arch} · placed by {self._placed_by}"
        self.parts.append(text(_MARGIN, top + 36, about, "pale"))
        self.parts.append(text(self.right, top + 36, summary(found, memory), tone, "end"))

    def _loops(self) -> None:
        opened: list[int] = []
        for index, row in enumerate(self._found.rows):
            if row.kind is RowKind.OPEN:
                opened.append(index)
            elif row.kind is RowKind.CLOSE and opened:
                self._loop(opened.pop(), index)

    def _loop(self, first: int, last: int) -> None:
        row = self._found.rows[first]
        left = self._what_x + row.depth * _INDENT - 10
        top, bottom = self._y(first) + 2, self._y(last) + 8
        right = self._map_x - 8 - row.depth * 4
        self.parts.append(rect(left, top, right - left, bottom - top, "box", 7))
        if row.is_loop:
            self.parts += way_back(left, top + 9, bottom - 7, 8, 4)

    def _area(self) -> None:
        found, memory = self._found, self._memory
        top, height = self._rows_top, self._rows_end - self._rows_top
        self.parts.append(rect(self._map_x, top, _MAP, height, "area", 4))
        if found.total > memory.bytes:
            x = self._x(memory.bytes)
            self.parts.append(rect(x, top, self._x(found.total) - x, height, "beyond"))
        holes = set(found.holes)
        for stretch in self._axis.stretches:
            if not stretch.is_used and (stretch.start, stretch.end) in holes:
                self._hole(stretch.start, stretch.end, top, height)
        self._ticks(top)
        self._partitions(top)

    def _hole(self, start: int, end: int, top: float, height: float) -> None:
        left, right = self._x(start), self._x(end)
        lines = "".join(
            f"M{left:.1f} {y:.1f}L{right:.1f} {y - min(right - left, 8):.1f}"
            for y in range(round(top) + 10, round(top + height), 9)
        )
        self.parts.append(path(lines, "hole"))
        said = f"{kib(end - start)} that no buffer ever has, bytes {start} to {end}"
        wide, size = text_width(kib(end - start)), right - left
        if size > wide + 2:
            x, y = (left + right) / 2, top + height / 2
            self.parts.append(rect(x - wide / 2 - 2, y - 10, wide + 4, 16, "paper", 3))
            self.parts.append(text(x, y + 2, kib(end - start), "tiny pale", "middle"))
        place = {"start": start, "end": end}
        self.parts.append(rect(left, top, size, height, "touch unused", title=said, **place))

    def _ticks(self, top: float) -> None:
        found = self._found
        last = -1000.0
        places = {0, *(bar.offset for bar in found.bars), *(bar.end for bar in found.bars)}
        for byte in sorted(places):
            x, said = self._x(byte), kib(byte) if byte else "0"
            half = text_width(said) / 2
            if x - half < last + 8:
                continue
            self.parts.append(path(f"M{x:.1f} {top - 5:.1f}v5", "thin"))
            self.parts.append(text(x, top - 9, said, "pale", "middle"))
            last = x + half
        for stretch in self._axis.stretches:
            if stretch.is_short:
                middle = self._map_x + (stretch.left + stretch.right) / 2
                self.parts.append(path(f"M{middle - 4:.1f} {top + 4:.1f}l3 -8m2 8l3 -8", "thin"))

    def _partitions(self, top: float) -> None:
        size = self._memory.partition_bytes
        last = -1000.0
        # Those that there are; what lies beyond is in none.
        for number in range(self._memory.partitions):
            left, right = self._x(number * size), self._x((number + 1) * size)
            if right - last < _LEAST_PARTITION:
                continue
            last = left
            if number % 2 == 0:
                height = self._rows_end - top
                self.parts.append(rect(left, top, right - left, height, "zone"))
            said = f"partition {number}"
            if text_width(said) > right - left - 6:
                said = str(number)
            if text_width(said) <= right - left:
                self.parts.append(text((left + right) / 2, top - 26, said, "tiny pale", "middle"))
            if number:
                self.parts.append(path(f"M{left:.1f} {top - 34:.1f}V{self._rows_end:.1f}", "edge"))

    def _lines(self) -> None:
        found, memory = self._found, self._memory
        top, bottom = self._rows_top, self._rows_end
        if found.total:
            x = self._x(found.total)
            self.parts.append(path(f"M{x:.1f} {top:.1f}V{bottom + 4:.1f}", "total"))
        x = self._x(memory.bytes)
        self.parts.append(path(f"M{x:.1f} {top - 6:.1f}V{bottom + 6:.1f}", "end capacity"))
        left = memory.bytes - found.total
        said = f"{kib(left)} free" if left >= 0 else f"{kib(-left)} too much"
        said = f"{kib(memory.bytes)} in all, {said}"
        tone = "pale" if left >= 0 else "bad bold"
        self.parts.append(text(x + 1, bottom + 19, said, tone, "end"))

    # ---- buffers

    def _class(self, bar: Bar) -> str:
        if bar.kind is not BufferKind.EXPLICIT:
            return "ks"
        values = list(dict.fromkeys(b.value for b in self._found.bars if b.kind is bar.kind))
        return f"k{values.index(bar.value) % COLOURS}"

    def _box(self, bar: Bar) -> tuple[float, float]:
        left = self._x(bar.offset)
        return left, max(self._x(bar.end) - left, 2.0)

    def _ghost(self, bar: Bar) -> None:
        if bar.ghost is None or bar.ghost == (bar.first, bar.last):
            return
        left, width = self._box(bar)
        top, bottom = self._y(bar.ghost[0]), self._y(bar.ghost[1] + 1)
        said = f"{tooltip(bar)}; other warps run at the same time"
        shape = rect(
            left, top, width, bottom - top, f"g-{self._class(bar)}", 3, title=said, ghost=bar.name
        )
        self.parts.append(shape)

    def _bar(self, bar: Bar) -> None:
        left, width = self._box(bar)
        top, bottom = self._y(bar.first) + 1.5, self._y(bar.last + 1) - 1.5
        self.parts.append(
            rect(
                left,
                top,
                width,
                bottom - top,
                f"buffer {self._class(bar)}",
                3,
                title=tooltip(bar),
                buffer=bar.name,
                offset=bar.offset,
                size=bar.size,
                first=bar.first,
                last=bar.last,
            )
        )
        middle = left + width / 2
        for said in (f"{bar.name} · {kib(bar.size)}", bar.name):
            if text_width(said) + 8 <= width:
                self.parts.append(text(middle, top + 14, said, "tiny onbar", "middle"))
                return
            if width >= 13 and text_width(said) + 10 <= bottom - top:
                y = top + 6
                self.parts.append(
                    f'<g transform="translate({middle + 4:.1f} {y:.1f}) rotate(90)">'
                    f"{text(0, 8, said, 'tiny onbar')}</g>"
                )
                return

    # ---- rows

    def _row(self, index: int, row: Row) -> None:
        y = self._y(index) + _ROW / 2
        if row.kind is RowKind.CLOSE:
            return
        if row.line and row.kind is not RowKind.SPLIT:
            self.parts.append(
                text(_MARGIN + _NUMBER - 12, y + 4, str(row.line), "mono pale", "end")
            )
        x = self._what_x + row.depth * _INDENT
        if row.kind is RowKind.SPLIT:
            self.parts.append(text(x, y + 4, head(row), "mono pale bold"))
            right = self._map_x - 8 - row.depth * 4
            self.parts.append(path(f"M{x - 10:.1f} {y - 9:.1f}H{right:.1f}", "faint"))
        else:
            weight = " bold" if row.kind is RowKind.OPEN or row.access is not None else ""
            self.parts.append(text(x, y + 4, head(row), f"mono ink{weight}"))
            room = self._what_width - row.depth * _INDENT - mono_width(f"{head(row)} ")
            if row.rest and room > 20:
                rest = cut(row.rest, room)
                self.parts.append(text(x + mono_width(f"{head(row)} "), y + 4, rest, "mono pale"))
        for number, effect in row.uses:
            self._mark(self._found.bars[number], effect, y)
        self._side(row, y)

    def _mark(self, bar: Bar, effect: Effect, y: float) -> None:
        left, width = self._box(bar)
        if effect is Effect.USE or width < 5:
            return
        # Out of the way of the name in the middle.
        x = left + (width / 2 if width < 26 else 9)
        tip = "M-4 -3h8l-4 6z" if effect is Effect.WRITE else "M-4 3h8l-4 -6z"
        self.parts.append(
            f'<path d="{tip}" class="mark" transform="translate({x:.1f} {y:.1f})" '
            f'data-effect="{effect.value}"/>'
        )

    def _side(self, row: Row, y: float) -> None:
        x = self._side_x
        if row.kind is not RowKind.SPLIT:
            most = max(self._found.peak, 1)
            wide = 58 * row.alive / most
            is_peak = row.alive == self._found.peak
            self.parts.append(rect(x, y - 4, wide, 8, "peak" if is_peak else "alive", 2))
            tone = "ink bold" if is_peak else "pale"
            self.parts.append(text(x + 132, y + 4, kib(row.alive), tone, "end"))
        if row.needs:
            self.parts.append(text(x + 142, y + 4, "size unknown", "hint"))
        if row.access is None:
            return
        access = self._found.accesses[row.access]
        said, tone = f"{row.access + 1}: {TIMES}{ratio(access):.3g}", heat(round(ratio(access)) - 1)
        if access.cost is None:
            said, tone = f"{row.access + 1}: ?", "ks"
        wide = text_width(said) + 12
        self.parts.append(rect(x + 142, y - 9, wide, 18, tone, 9))
        self.parts.append(text(x + 142 + wide / 2, y + 4, said, "tiny onlabel", "middle"))

    # ---- below

    def _chips(self, top: float) -> float:
        """The buffers by name; returns where they end."""
        x, y = float(_MARGIN), top
        for bar in self._found.bars:
            said = f"{kib(bar.size)} at {place_of(bar)}"
            name = cut(bar.name, self.right - _MARGIN - 34 - text_width(said))
            wide = 26 + mono_width(name) + 8 + text_width(said)
            if x + wide > self.right and x > _MARGIN:
                x, y = float(_MARGIN), y + 20
            self.parts.append(rect(x, y - 10, 12, 12, self._class(bar), 3))
            # One text: how wide the name is, is up to the font that there is.
            words = ((name, "mono ink"), (said, "pale"))
            self.parts.append(texts(x + 18, y, words))
            x += wide + 18
        return y + 20

    def _warnings(self, top: float) -> float:
        for said in warnings(self._found):
            for line in wrap(said, self.right - _MARGIN):
                self.parts.append(text(_MARGIN, top, line, "hint"))
                top += 17
        return top


def _legend(y: float, width: float, found: ModuleMap) -> tuple[list[str], float]:
    """Draws the legend; returns its elements and its lower edge."""
    lines = "".join(f"M{x} 6l8 -12" for x in (0, 8, 16))
    mark = '<path d="M{} {}h8l-4 {}z" class="mark"/>'
    samples = [
        (rect(0, -7, 26, 14, "k0", 3), "alive"),
        (rect(0, -7, 26, 14, "k0", 3) + mark.format(9, -3, 6), "written"),
        (rect(0, -7, 26, 14, "k0", 3) + mark.format(9, 3, -6), "read"),
        (path(lines, "hole"), "never used"),
        (path("M13 -8v16", "end"), f"all there is: {kib(found.memory.bytes)}"),
        (path("M13 -8v16", "total"), "where the highest buffer ends"),
    ]
    if any(bar.ghost for f in found.functions for bar in f.bars):
        samples.append((rect(0, -7, 26, 14, "g-k0", 3), "alive in other warps meanwhile"))
    if any(f.accesses for f in found.functions):
        cells = "".join(rect(n * 7, -5, 6, 10, f"h{n}", 1) for n in range(5))
        samples.append((cells, "a bank's 1st, 2nd, 3rd, 5th, 9th word in turn"))
    parts = [path(f"M{_MARGIN} {y - 14:.1f}H{width - _MARGIN:.1f}", "faint")]
    x = float(_MARGIN)
    for sample, said in samples:
        wide = 42 + text_width(said) + 18
        if x + wide > width:
            x, y = float(_MARGIN), y + 24
        parts.append(f'<g transform="translate({x:.1f} {y + 6:.1f})">{sample}</g>')
        parts.append(text(x + 42, y + 10, said, "pale"))
        x += wide
    return parts, y
