"""A timeline as text: one line for each operation, one column for each copy in flight.

``●`` is where a copy is issued, ``┃`` where it may be in flight, ``┊`` where one of an earlier
iteration may be, ``╎`` where it may be on another path than the one above, ``┻`` where a wait
retires it, and ``✗`` where it may be in flight although its buffer is used.
"""

from __future__ import annotations

from triton_ext.analysis.timeline import (
    Close,
    Commit,
    Copy,
    Open,
    Row,
    Section,
    Split,
    Timeline,
    Wait,
)
from triton_ext.tools.pen import Pen
from triton_ext.tools.waits_layout import Layout, Piece, layout_of
from triton_ext.tools.waits_words import (
    Tone,
    arithmetic,
    detail,
    headline,
    in_flight,
    verdicts,
)

__all__ = ["render_text"]

_LANES = ("34", "35", "36", "33")
_TONES = {Tone.GOOD: "32", Tone.HINT: "33", Tone.BAD: "1;31"}
_MARKS = {Tone.GOOD: "✓", Tone.HINT: "•", Tone.BAD: "✗"}
_KEY = (
    "● issued   ┃ in flight   ┊ from an earlier iteration   ╎ on another path\n"
    "┻ retired by the wait   ✗ in flight where its buffer is used"
)


def render_text(timeline: Timeline, source: str, host: str, *, colours: bool = False) -> str:
    """Draws a timeline as text.

    Args:
        timeline: The timeline.
        source: Name of the input.
        host: Name of the Triton whose lowering decides the numbers.
        colours: Whether to use the colours of a terminal.
    """
    pen = Pen(colours)
    lines = [pen.paint(f"{source}: {timeline.arch}, {host}", "1")]
    if not timeline.sections:
        lines.append("no asynchronous operations: nothing to wait for")
    for section in timeline.sections:
        lines += ["", *_section(section, timeline, pen)]
    if timeline.sections:
        lines += ["", pen.paint(_KEY, "2")]
    return "\n".join(lines) + "\n"


def _section(section: Section, timeline: Timeline, pen: Pen) -> list[str]:
    layout = layout_of(section, timeline)
    waves = f", {section.waves} waves" if section.waves is not None else ""
    lines = [pen.paint(f"@{section.title}{waves}", "1")]
    numbers = [_line(row) for row in section.rows]
    width = max(len("line"), *(len(number) for number in numbers))
    # The names of the lanes above their columns, each on a line of its own.
    column = width + 2
    for number, lane in enumerate(section.lanes):
        lines.append(" " * column + pen.paint(f"╭ {lane}", _LANES[number % 4]))
        column += layout.widths[number] + 1
        lines[-1] = _with_stems(lines[-1], section, layout, number, width, pen)
    canvas = _Canvas(section, layout, pen)
    for index, row in enumerate(section.rows):
        gutter = pen.paint(numbers[index].rjust(width), "2")
        what = _what(row, pen)
        boxes = _boxes(row, pen)
        lines.append(f"{gutter}  {canvas.row(index)} {boxes}{what}".rstrip())
        blank = f"{' ' * width}  {canvas.below(index)} {'│ ' * row.depth}"
        for note in _notes(row, pen):
            lines.append(f"{blank}  {note}".rstrip())
    return lines


def _with_stems(
    line: str, section: Section, layout: Layout, number: int, width: int, pen: Pen
) -> str:
    """Continues the stems of the lanes to the left of a lane's name."""
    stems = ""
    for left in range(number):
        stems += pen.paint("│", _LANES[left % 4]) + " " * layout.widths[left]
    return " " * (width + 2) + stems + line.lstrip(" ") if number else line


def _line(row: Row) -> str:
    place = getattr(row.item, "place", None)
    return "" if place is None or isinstance(row.item, Close) else str(place.line)


def _boxes(row: Row, pen: Pen) -> str:
    inner = "│ " * row.depth
    if isinstance(row.item, Open):
        return pen.paint(f"{inner}╭─", "2")
    if isinstance(row.item, Split):
        return pen.paint(f"{inner}├─", "2")
    if isinstance(row.item, Close):
        return pen.paint(f"{inner}╰─", "2")
    return pen.paint(inner, "2")


def _what(row: Row, pen: Pen) -> str:
    item = row.item
    if isinstance(item, Close):
        return ""
    if isinstance(item, Split):
        return f" {item.title}"
    main, rest = headline(row)
    if isinstance(item, Open):
        return f" {pen.paint(main, '1')} {pen.paint(rest, '2')}".rstrip()
    if isinstance(item, Copy):
        return f"{pen.paint(main, '1')} {rest} {pen.paint(f'({detail(item)})', '2')}"
    if isinstance(item, Wait):
        return f"{pen.paint(main, '1')} {rest}"
    return f"{main} {pen.paint(rest, '2')}".rstrip()


def _notes(row: Row, pen: Pen) -> list[str]:
    notes = []
    if isinstance(row.item, Wait):
        notes.append(arithmetic(row.item))
        if row.item.path:
            notes.append(pen.paint(f"on the path: {', '.join(row.item.path)}", "2"))
        notes.append(pen.paint(in_flight(row), "2"))
    for verdict in verdicts(row):
        text = f"{_MARKS[verdict.tone]} {verdict.badge}"
        text += f": {verdict.text}" if verdict.text else ""
        notes.append(pen.paint(text, _TONES[verdict.tone]))
    return notes


def _body(piece: Piece) -> str:
    if piece.is_elsewhere:
        return "╎"
    return "┊" if piece.iterations else "┃"


class _Canvas:
    """The columns of the copies.

    Args:
        section: The section.
        layout: Where its copies stand.
        pen: Writes in colours.
    """

    def __init__(self, section: Section, layout: Layout, pen: Pen) -> None:
        self._section = section
        self._layout = layout
        self._pen = pen

    def row(self, index: int) -> str:
        """The columns beside a row."""
        row = self._section.rows[index]
        unsafe = {unsafe.copy for unsafe in row.unsafe}
        cells = self._cells()
        for piece in self._layout.pieces:
            if not piece.first <= index <= piece.last:
                continue
            body = _body(piece)
            if piece.label in unsafe and index > piece.first:
                body = "✗"
            elif index == piece.first and piece.is_issue:
                body = "●"
            elif index == piece.last and piece.is_retired:
                body = "┻"
            elif index == piece.last and not isinstance(row.item, Wait) and not piece.is_retired:
                # Another piece of the same bar may start here.
                body = self._get(cells, piece.label) or body
            self._set(cells, piece.label, body)
        if isinstance(row.item, Copy) and not row.item.hi:
            self._set(cells, row.item.label, "○")
        return self._joined(cells, row)

    def below(self, index: int) -> str:
        """The columns beside a note under a row."""
        cells = self._cells()
        for piece in self._layout.pieces:
            if piece.first <= index < piece.last:
                self._set(cells, piece.label, _body(piece))
        return self._joined(cells, None)

    def _ends_group(self, commit: Commit, lane: int) -> bool:
        """Returns whether a commit has copies of a lane, or has none and counts for the lane."""
        if not commit.copies:
            return commit.counter == self._section.lanes[lane].counter
        tracks = self._layout.tracks
        return any(label in tracks and tracks[label].lane == lane for label in commit.copies)

    def _cells(self) -> list[list[str]]:
        return [[""] * width for width in self._layout.widths]

    def _get(self, cells: list[list[str]], label: str) -> str:
        track = self._layout.tracks[label]
        return cells[track.lane][track.index]

    def _set(self, cells: list[list[str]], label: str, text: str) -> None:
        track = self._layout.tracks[label]
        cells[track.lane][track.index] = text

    def _joined(self, cells: list[list[str]], row: Row | None) -> str:
        item = row.item if row is not None else None
        shown = []
        for number, (lane, tracks) in enumerate(zip(self._section.lanes, cells, strict=True)):
            filler = " "
            if isinstance(item, Wait) and item.counter == lane.counter:
                filler = "─"
            elif isinstance(item, Commit) and self._ends_group(item, number):
                filler = "╌"
            colour = _LANES[number % 4]
            shown.append(
                "".join(
                    self._pen.paint(cell or filler, "1;31" if cell == "✗" else colour)
                    for cell in tracks
                )
            )
        return " ".join(shown)
