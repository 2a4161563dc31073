"""A memory map as text: a line for each operation, bytes to the right.

A buffer is a block of one letter, from where it is made to its last use.  ``·`` is free, ``▚``
never used, ``⋯`` a long stretch of that kind, ``┊`` the end of a physical partition, ``┃`` the end
of all there is.
"""

from __future__ import annotations

import string
from typing import Final

from triton_ext.analysis.allocation import BufferKind
from triton_ext.analysis.memory_map import AccessMap, Bar, FunctionMap, ModuleMap, Row, RowKind
from triton_ext.tools.lds_axis import Axis
from triton_ext.tools.lds_banks import MOST_WAVEFRONTS, lanes_of, wavefronts_of
from triton_ext.tools.lds_words import (
    access_title,
    caveat,
    cost,
    head,
    kib,
    numbers,
    place_of,
    ratio,
    shown_end,
    summary,
    warnings,
)
from triton_ext.tools.pen import Pen

__all__ = ["render_text"]

_WIDTH: Final = 64
_MOST_WHAT: Final = 44
_BUFFERS: Final = ("34", "36", "35", "32", "33", "94", "96", "95")
_HEAT: Final = ("32", "33", "93", "31", "91")
_KEY: Final = (
    "capital letters: written or read there   · free   ▚ never used   ⋯ long and never used\n"
    "┊ end of a partition   ┃ end of all there is   ░ alive in other warps meanwhile"
)
_BANKS: Final = "█ busy   ▒ busy with a second word of the same bank, a conflict   · idle"


def render_text(found: ModuleMap, source: str, *, colours: bool = False) -> str:
    """Draws the maps of a module as text.

    Args:
        found: The maps.
        source: Name of the input.
        colours: Whether to use the colours of a terminal.
    """
    pen = Pen(colours)
    memory = found.memory
    said = f"{source}: {memory.name} of {memory.arch}, {kib(memory.bytes)}"
    lines = [pen.paint(f"{said}, placed by {found.placed_by}", "1")]
    if not found.functions:
        lines.append(f"nothing lies in {memory.name}")
    for function in found.functions:
        lines += ["", *_Map(function, found, pen).lines()]
        for index, access in enumerate(function.accesses):
            lines += ["", *_access(index, access, memory.banks.banks, pen)]
    if found.functions:
        lines += ["", pen.paint(_KEY, "2")]
        if any(function.accesses for function in found.functions):
            lines.append(pen.paint(_BANKS, "2"))
    return "\n".join(lines) + "\n"


class _Map:
    """Draws the map of one function."""

    def __init__(self, found: FunctionMap, module: ModuleMap, pen: Pen) -> None:
        self._found = found
        self._memory = module.memory
        self._pen = pen
        end = shown_end(found, module.memory)
        used = [(bar.offset, bar.end) for bar in found.bars if bar.size]
        self._axis = Axis.of(used, end, _WIDTH, 4)
        self._letters = self._name_bars()

    def lines(self) -> list[str]:
        """The lines of the map."""
        found, pen = self._found, self._pen
        tone = "1;31" if found.total > self._memory.bytes else "2"
        lines = [pen.paint(f"@{found.name}", "1"), pen.paint(summary(found, self._memory), tone)]
        lines += [pen.paint(said, "33") for said in warnings(found)]
        width = max(len("line"), *(len(str(row.line)) for row in found.rows)) if found.rows else 4
        whats = [_what(row) for row in found.rows]
        wide = min(_MOST_WHAT, max((len(what) for what in whats), default=0))
        peak = next((n for n, row in enumerate(found.rows) if row.alive == found.peak), -1)
        for index, row in enumerate(found.rows):
            if row.kind is RowKind.CLOSE:
                continue
            line = str(row.line) if row.line and row.kind is not RowKind.SPLIT else ""
            what = whats[index]
            what = what if len(what) <= wide else f"{what[: wide - 1]}…"
            alive = kib(row.alive) if row.kind is not RowKind.SPLIT else ""
            mark = "◀ peak" if index == peak else ""
            said = (
                f"{pen.paint(line.rjust(width), '2')}  {what.ljust(wide)} {self._cells(index, row)}"
            )
            said += f" {alive:>10} {self._badge(row)}{pen.paint(mark, '2')}"
            lines.append(said.rstrip())
        lines.append("")
        for bar in found.bars:
            name = f"{self._letters[bar]}  {bar.name}"
            colour = self._colour(bar)
            lines.append(f"   {pen.paint(name, colour)}: {kib(bar.size)} at {place_of(bar)}")
        for start, end in found.holes:
            lines.append(f"   ▚  never used: {kib(end - start)}, {start} to {end}")
        return lines

    def _name_bars(self) -> dict[Bar, str]:
        values = list(dict.fromkeys(bar.value for bar in self._found.bars))
        letters = string.ascii_lowercase
        return {bar: letters[values.index(bar.value) % len(letters)] for bar in self._found.bars}

    def _colour(self, bar: Bar) -> str:
        if bar.kind is not BufferKind.EXPLICIT:
            return "37"
        return _BUFFERS[(ord(self._letters[bar]) - ord("a")) % len(_BUFFERS)]

    def _badge(self, row: Row) -> str:
        if row.needs:
            return "size unknown "
        if row.access is None:
            return ""
        access = self._found.accesses[row.access]
        if access.cost is None:
            return f"[{row.access + 1}: ?] "
        code = _HEAT[min((round(ratio(access)) - 1).bit_length(), len(_HEAT) - 1)]
        return self._pen.paint(f"[{row.access + 1}: x{ratio(access):.3g}]", code) + " "

    def _cells(self, index: int, row: Row) -> str:
        cells, codes = self._ground()
        used = {number for number, _ in row.uses}
        for ghosts in (True, False):
            for number, bar in enumerate(self._found.bars):
                is_ghost = not bar.first <= index <= bar.last
                if not bar.is_at(index) or is_ghost is not ghosts:
                    continue
                first = min(_WIDTH - 1, round(self._axis.at(bar.offset)))
                last = max(first + 1, round(self._axis.at(bar.end)))
                letter = self._letters[bar]
                letter = "░" if is_ghost else letter.upper() if number in used else letter
                for at in range(first, min(last, len(cells))):
                    cells[at] = letter
                    codes[at] = self._colour(bar)
        end = round(self._axis.at(self._memory.bytes))
        cells.insert(end, "┃")
        codes.insert(end, "1;31")
        return "".join(self._pen.paint(c, code) for c, code in zip(cells, codes, strict=True))

    def _ground(self) -> tuple[list[str], list[str]]:
        """Draws a row without buffers: free and unused bytes, and the ends of partitions."""
        cells, codes = ["·"] * _WIDTH, ["2"] * _WIDTH
        for stretch in self._axis.stretches:
            if stretch.is_used:
                continue
            sign = "⋯" if stretch.is_short else "▚" if stretch.start < self._found.total else " "
            for at in range(round(stretch.left), min(_WIDTH, round(stretch.right))):
                cells[at] = sign
        for number in range(1, self._memory.partitions):
            at = round(self._axis.at(number * self._memory.partition_bytes))
            if at < _WIDTH and cells[at] != "⋯":
                cells[at] = "┊"
        return cells, codes


def _what(row: Row) -> str:
    boxes = {RowKind.OPEN: "╭ ", RowKind.SPLIT: "├ ", RowKind.CLOSE: "╰"}
    return f"{'│ ' * row.depth}{boxes.get(row.kind, '')}{head(row)} {row.rest}".rstrip()


def _access(index: int, access: AccessMap, banks: int, pen: Pen) -> list[str]:
    title = pen.paint(f"{index + 1}  {access_title(access)}", "1")
    lines = [f"{title}, {numbers(access.lines)}", f"   {cost(access)}"]
    lines += [pen.paint(f"   {said}", "33") for said in caveat(access)]
    if not access.phases:
        return lines
    ruler = "".join(f"{bank:<8}" for bank in range(0, banks, 8))
    lines.append(pen.paint(f"   {'bank':16}{ruler}".rstrip(), "2"))
    drawn = total = 0
    for phase in access.phases:
        lanes = sorted({lane for users in phase.lanes.values() for lane in users})
        rows = wavefronts_of(phase)
        total += len(rows)
        for number, words in enumerate(rows[: max(0, MOST_WAVEFRONTS - drawn)]):
            code = _HEAT[min(number.bit_length(), len(_HEAT) - 1)]
            busy = "▒" if number else "█"
            cells = "".join(
                pen.paint(busy, code) if bank in words else pen.paint("·", "2")
                for bank in range(banks)
            )
            label = lanes_of(lanes) if not number else ""
            lines.append(f"   {label:16}{cells}")
            drawn += 1
    if total > drawn:
        lines.append(f"   and {total - drawn} more wavefronts")
    return lines
