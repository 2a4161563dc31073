"""A timeline as a picture.

Time runs down.  Left stands what the program does, in the middle a bar for each copy from where it
is issued to the wait that retires it, right how the number of each wait comes about.  The picture
stands alone: no scripts, no fonts or images from elsewhere, and colours for light and dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from triton_ext.analysis.timeline import (
    Close,
    Commit,
    Copy,
    Open,
    Row,
    Section,
    Split,
    Timeline,
    Use,
    Wait,
)
from triton_ext.tools import svg
from triton_ext.tools.picture_style import escape, mono_width, text_width, wrap
from triton_ext.tools.waits_layout import Layout, Piece, layout_of
from triton_ext.tools.waits_style import CSS, colour_of
from triton_ext.tools.waits_words import (
    Tone,
    arithmetic,
    detail,
    headline,
    in_flight,
    summary,
    verdicts,
)

__all__ = ["render_svg", "svg_body"]

_MARGIN: Final = 28
_LINE: Final = 17
_NUMBER: Final = 44  # the column of line numbers
_INDENT: Final = 18
_BAR: Final = 14
_NOTES: Final = 540
_MOST_WHAT: Final = 460
_MOST_LABEL: Final = 8  # letters


def render_svg(timeline: Timeline, source: str, host: str) -> str:
    """Draws a timeline as an SVG file.

    Args:
        timeline: The timeline.
        source: Name of the input.
        host: Name of the Triton whose lowering decides the numbers.
    """
    body, width, height = svg_body(timeline, source, host)
    title = f"asynchronous copies and waits of {source}"
    return svg.document(body, width, height, title, CSS)


def svg_body(timeline: Timeline, source: str, host: str) -> tuple[str, int, int]:
    """The drawing without what is around it, its width and its height."""
    top = float(_MARGIN)
    width = 640.0
    parts: list[str] = []
    for section in timeline.sections:
        drawing = _Drawing(section, timeline, f"{source} · {timeline.arch} · {host}", top)
        parts += drawing.parts
        width = max(width, drawing.right + _MARGIN)
        top = drawing.bottom + 36
    if timeline.sections:
        lanes = timeline.sections[0].lanes
        legend, top = _legend(top, width, colour_of(lanes[0]) if lanes else "vm")
        parts += legend
        top += 34
    else:
        said = f"{source}: no asynchronous operations, nothing to wait for"
        parts.append(svg.text(_MARGIN, top + 14, said, "ink"))
        top += 40
    return "\n".join(parts) + "\n", round(width), round(top + 8)


@dataclass(frozen=True, slots=True)
class _Note:
    """A line of the right column.

    Attributes:
        text: Its text.
        classes: How it looks.
        badge: A word in a frame in front of it; empty without one.
        tone: Class of the frame.
    """

    text: str
    classes: str
    badge: str = ""
    tone: str = ""


class _Drawing:
    """Draws one section.

    Args:
        section: The section.
        timeline: The timeline that it is of.
        about: The line under the title.
        top: Where it starts.

    Attributes:
        parts: The elements, those in front last.
        right: Where it ends to the right.
        bottom: Where it ends at the bottom.
    """

    def __init__(self, section: Section, timeline: Timeline, about: str, top: float) -> None:
        self._section = section
        self._copies = {copy.label: copy for copy in timeline.copies}
        self._layout: Layout = layout_of(section, timeline)
        self._notes = [_notes(row) for row in section.rows]
        self.parts: list[str] = []
        self._place_columns()
        self._place_rows(top + 74)
        self.right = self._notes_x + _NOTES
        self.bottom = self._tops[-1]
        self._title(top, about)
        self._boxes()
        self._lanes(top + 74)
        for index, row in enumerate(section.rows):
            self._behind(index, row)
        for piece in self._layout.pieces:
            self._bar(piece)
        for index, row in enumerate(section.rows):
            self._in_front(index, row)

    # ---- places

    def _place_columns(self) -> None:
        self._what_x = _MARGIN + _NUMBER + 34
        widest = 0.0
        for row in self._section.rows:
            main, rest = headline(row)
            widest = max(widest, mono_width(f"{main} {rest}") + row.depth * _INDENT)
        self._what_width = min(max(widest, 180.0) + 12, _MOST_WHAT)
        x = self._what_x + self._what_width + 20
        labels = max((len(_short(label)) for label in self._layout.tracks), default=1)
        self._pitch = max(26.0, 7.4 * labels + 16)
        self._lane_x: list[float] = []
        self._lane_width: list[float] = []
        for lane, tracks in zip(self._section.lanes, self._layout.widths, strict=True):
            width = max(tracks * self._pitch + 12, text_width(str(lane)) + 16)
            self._lane_x.append(x)
            self._lane_width.append(width)
            x += width + 10
        self._notes_x = x + 58

    def _place_rows(self, top: float) -> None:
        self._tops = [top]
        for row, notes in zip(self._section.rows, self._notes, strict=True):
            self._tops.append(self._tops[-1] + _height(row, len(notes)))

    def _middle(self, index: int) -> float:
        """Where the line of a row is."""
        if index < 0:
            return self._tops[0]
        if index >= len(self._section.rows):
            return self._tops[-1]
        row = self._section.rows[index]
        if isinstance(row.item, Close):
            return self._tops[index] + 11
        return self._tops[index] + (22 if isinstance(row.item, Open) else 16)

    def _track_x(self, label: str) -> float:
        track = self._layout.tracks[label]
        lane_x, width = self._lane_x[track.lane], self._lane_width[track.lane]
        tracks = self._layout.widths[track.lane]
        return lane_x + width / 2 + (track.index - (tracks - 1) / 2) * self._pitch

    # ---- what stands behind the bars

    def _title(self, top: float, about: str) -> None:
        section = self._section
        self.parts.append(svg.text(_MARGIN, top + 16, f"@{section.title}", "title ink"))
        waves = f" · {section.waves} waves" if section.waves is not None else ""
        self.parts.append(svg.text(_MARGIN, top + 36, f"{about}{waves}", "pale"))
        self.parts.append(svg.text(self.right, top + 36, summary(section), "pale", "end"))

    def _boxes(self) -> None:
        opened: list[int] = []
        for index, row in enumerate(self._section.rows):
            if isinstance(row.item, Open):
                opened.append(index)
            elif isinstance(row.item, Close) and opened:
                self._box(opened.pop(), index)

    def _box(self, first: int, last: int) -> None:
        row = self._section.rows[first]
        left = self._what_x + row.depth * _INDENT - 12
        top, bottom = self._tops[first] + 5, self._middle(last) + 2
        right = self.right + 8 - row.depth * 6
        # The outer ones first, so that inner ones lie on them.
        self.parts.insert(3, svg.rect(left, top, right - left, bottom - top, "box", 9))
        if isinstance(row.item, Open) and row.item.is_loop:
            self.parts += svg.way_back(left, self._middle(first) - 4, bottom - 10, 9, 5)

    def _lanes(self, top: float) -> None:
        for number, lane in enumerate(self._section.lanes):
            x, width = self._lane_x[number], self._lane_width[number]
            colour = colour_of(lane)
            height = self.bottom - top + 8
            self.parts.append(svg.rect(x, top - 26, width, height + 26, f"b-{colour}", 8))
            middle = x + width / 2
            self.parts.append(svg.text(middle, top - 10, str(lane), f"tiny f-{colour}", "middle"))

    def _behind(self, index: int, row: Row) -> None:
        item, y = row.item, self._middle(index)
        if row.unsafe or (isinstance(item, Wait) and (item.unsafe or item.tokens_disagree)):
            height = self._tops[index + 1] - self._tops[index]
            x = self._what_x - 6
            self.parts.append(
                svg.rect(x, self._tops[index] + 2, self.right - x + 4, height - 4, "alarm", 6)
            )
        for number, lane in enumerate(self._section.lanes):
            if isinstance(item, Commit) and self._ends_group(item, number):
                left, width = self._lane_x[number], self._lane_width[number]
                self.parts.append(
                    svg.path(f"M{left:.1f} {y:.1f}h{width:.1f}", f"commit s-{colour_of(lane)}")
                )
        if isinstance(item, Wait):
            start, end = self._span(item.counter)
            self.parts.append(svg.path(f"M{start - 6:.1f} {y:.1f}H{end + 6:.1f}", "rule"))
            # On to the wait's number, behind the bars of other counters.
            self.parts.append(svg.path(f"M{end + 6:.1f} {y:.1f}H{self._notes_x - 20:.1f}", "thin"))

    def _ends_group(self, commit: Commit, lane: int) -> bool:
        """Returns whether a commit has copies of a lane, or has none and counts for the lane."""
        if not commit.copies:
            return commit.counter == self._section.lanes[lane].counter
        tracks = self._layout.tracks
        return any(label in tracks and tracks[label].lane == lane for label in commit.copies)

    def _span(self, counter: str) -> tuple[float, float]:
        """From where to where the lanes of a counter reach."""
        numbers = [n for n, lane in enumerate(self._section.lanes) if lane.counter == counter]
        first, last = numbers[0], numbers[-1]
        return self._lane_x[first], self._lane_x[last] + self._lane_width[last]

    # ---- bars

    def _bar(self, piece: Piece) -> None:
        copy = self._copies[piece.label]
        colour, x = colour_of(copy.lane), self._track_x(piece.label)
        rows = self._section.rows
        top, bottom = self._middle(piece.first), self._middle(piece.last)
        starts_box = 0 <= piece.first < len(rows) and isinstance(
            rows[piece.first].item, Open | Split
        )
        if starts_box:
            top = self._tops[piece.first + 1] - 7
        is_issued_again = piece.last < len(rows) and rows[piece.last].item == copy
        if is_issued_again:
            bottom -= 11
        body = "c" if piece.iterations else "o" if piece.is_elsewhere else "f"
        tooltip = self._tooltip(copy, piece)
        shapes = [
            f'<g class="bar" data-copy="{escape(piece.label)}"><title>{escape(tooltip)}</title>'
        ]
        shapes.append(svg.rect(x - _BAR / 2, top, _BAR, bottom - top, f"{body}-{colour}", 4))
        if copy.may_be_skipped and body == "f":
            shapes += _hatching(x, top, bottom)
        if starts_box and piece.iterations:
            shapes.append(svg.path(f"M{x - 5:.1f} {top - 5:.1f}h10l-5 6z", f"f-{colour}"))
        for y in self._ways_round(piece):
            shapes.append(svg.path(f"M{x - 9:.1f} {y - 6:.1f}h18l-9 12z", "paper"))
            shapes.append(svg.path(f"M{x - 6:.1f} {y - 4:.1f}h12l-6 8z", f"f-{colour}"))
        shapes.append("</g>")
        self.parts.append("".join(shapes))

    def _ways_round(self, piece: Piece) -> list[float]:
        """Where a bar crosses the end of a loop at whose start its copy is in flight again."""
        found: list[float] = []
        opened: list[Row] = []
        for index, row in enumerate(self._section.rows):
            if isinstance(row.item, Open):
                opened.append(row)
            elif isinstance(row.item, Close) and opened:
                start = opened.pop()
                is_loop = isinstance(start.item, Open) and start.item.is_loop
                again = any(f.label == piece.label and f.iterations for f in start.in_flight)
                if is_loop and again and piece.first < index <= piece.last:
                    found.append(self._middle(index) - 8)
        return found

    def _tooltip(self, copy: Copy, piece: Piece) -> str:
        age = f", issued {piece.iterations} iterations before" if piece.iterations else ""
        age = ", on another path than the one above" if piece.is_elsewhere else age
        text = f"copy {copy.label}, {copy.place}: {detail(copy)}{age}"
        rows = self._section.rows
        if piece.is_retired and piece.last < len(rows):
            wait = rows[piece.last].item
            if isinstance(wait, Wait):
                text += f"; retired by the wait at {wait.place}"
        return text

    # ---- what stands in front

    def _in_front(self, index: int, row: Row) -> None:
        y = self._middle(index)
        item = row.item
        if isinstance(item, Close):
            return
        group = self.parts
        place = getattr(item, "place", None)
        if place is not None:
            group.append(svg.text(_MARGIN + _NUMBER, y + 4, str(place.line), "mono pale", "end"))
        self._what(row, y)
        if isinstance(item, Copy):
            self._label(item, y)
        if isinstance(item, Wait):
            self._number(item, y)
        if isinstance(item, Use) and not row.unsafe:
            group.append(svg.text(self._notes_x, y + 4, "✓ covered", "good"))
        for unsafe in row.unsafe:
            if unsafe.copy in self._layout.tracks:
                self._cross(unsafe.copy, y)
        if isinstance(item, Wait):
            about = dict.fromkeys([item.awaited, *(t.label for t in item.terms), *item.retires])
            group.append(f'<g class="wait" data-copies="{escape(" ".join(about))}">')
            height = self._tops[index + 1] - self._tops[index]
            group.append(svg.rect(self._notes_x, self._tops[index], _NOTES, height, "touch"))
        for number, note in enumerate(self._notes[index]):
            x, line = self._notes_x, y + 4 + number * _LINE
            if note.badge:
                wide = text_width(note.badge) + 14
                group.append(svg.rect(x, line - 12, wide, 16, note.tone, 8))
                group.append(svg.text(x + wide / 2, line, note.badge, "tiny onlabel", "middle"))
                x += wide + 8
            group.append(svg.text(x, line, note.text, note.classes))
        if isinstance(item, Wait):
            group.append("</g>")

    def _what(self, row: Row, y: float) -> None:
        x = self._what_x + row.depth * _INDENT
        if isinstance(row.item, Split):
            self.parts.append(svg.text(x, y + 4, row.item.title, "mono pale bold"))
            line = f"M{x - 12:.1f} {y - 9:.1f}H{self.right + 8 - row.depth * 6:.1f}"
            self.parts.append(svg.path(line, "faint"))
            return
        main, rest = headline(row)
        weight = "" if isinstance(row.item, Use | Commit) else " bold"
        tone = "pale" if isinstance(row.item, Commit) else "ink"
        if row.unsafe:
            tone = "bad"
        room = self._what_width - row.depth * _INDENT - mono_width(f"{main} ")
        rest = svg.cut(rest, room)
        self.parts.append(svg.text(x, y + 4, main, f"mono {tone}{weight}"))
        if rest:
            self.parts.append(svg.text(x + mono_width(f"{main} "), y + 4, rest, "mono pale"))

    def _label(self, copy: Copy, y: float) -> None:
        x, colour = self._track_x(copy.label), colour_of(copy.lane)
        label = _short(copy.label)
        wide = max(20.0, 7.4 * len(label) + 10)
        self.parts.append(svg.rect(x - wide / 2 - 1.5, y - 10.5, wide + 3, 21, "paper", 10.5))
        self.parts.append(svg.rect(x - wide / 2, y - 9, wide, 18, f"f-{colour}", 9))
        self.parts.append(svg.text(x, y + 4, label, "tiny onlabel", "middle"))

    def _number(self, wait: Wait, y: float) -> None:
        number = f"≤ {wait.counted}"
        wide = max(34.0, text_width(number) + 12)
        x = self._notes_x - wide - 12
        self.parts.append(svg.rect(x, y - 10, wide, 20, "badge", 6))
        self.parts.append(svg.text(x + wide / 2, y + 4, number, "tiny onbadge", "middle"))

    def _cross(self, label: str, y: float) -> None:
        x = self._track_x(label)
        start = self._what_x + self._what_width
        self.parts.append(svg.path(f"M{start:.1f} {y:.1f}H{x - 9:.1f}", "cross lead"))
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" class="ring"/>')
        self.parts.append(svg.path(f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6", "cross"))


def _height(row: Row, notes: int) -> float:
    if isinstance(row.item, Close):
        return 22
    if isinstance(row.item, Open):
        return 42
    if isinstance(row.item, Wait):
        return max(2, notes) * _LINE + 18
    return max(1, notes) * _LINE + (9 if isinstance(row.item, Use | Commit) else 15)


def _notes(row: Row) -> list[_Note]:
    item = row.item
    notes = []
    if isinstance(item, Copy):
        notes += [_Note(line, "pale") for line in wrap(detail(item), _NOTES)]
    if isinstance(item, Wait):
        notes += [_Note(line, "ink bold") for line in wrap(arithmetic(item), _NOTES / 1.08)]
        if item.path:
            path = f"on the path: {', '.join(item.path)}"
            notes += [_Note(line, "pale") for line in wrap(path, _NOTES)]
        notes += [_Note(line, "pale") for line in wrap(in_flight(row), _NOTES)]
    for verdict in verdicts(row):
        tone = {Tone.BAD: "bad", Tone.HINT: "hint", Tone.GOOD: "good"}[verdict.tone]
        room = _NOTES - text_width(verdict.badge) - 22
        first, *more = wrap(verdict.text, room)
        notes.append(_Note(first, "ink", verdict.badge, tone))
        if more:
            notes += [_Note(line, "ink") for line in wrap(" ".join(more), _NOTES)]
    return notes


def _short(label: str) -> str:
    """A label that is not wider than its column should be; its number is kept."""
    if len(label) <= _MOST_LABEL:
        return label
    number = label[len(label.rstrip("0123456789'")) :][-4:]
    return f"{label[: _MOST_LABEL - 1 - len(number)]}…{number}"


def _hatching(x: float, top: float, bottom: float) -> list[str]:
    """Slanted gaps in a bar."""
    lines = []
    y = top + 14
    while y < bottom - 6:
        lines.append(f"M{x - _BAR / 2:.1f} {y:.1f}l{_BAR} -6")
        y += 9
    return [svg.path("".join(lines), "gap")] if lines else []


def _legend(y: float, width: float, colour: str) -> tuple[list[str], float]:
    """Draws the legend; returns its elements and its lower edge."""
    bar = svg.rect(0, -6, 26, 12, f"f-{colour}", 4)
    ring = '<circle cx="13" cy="0" r="7" class="ring"/>'
    samples = (
        (bar, "in flight until a wait retires it"),
        (svg.rect(0, -6, 26, 12, f"c-{colour}", 4), "issued in an earlier iteration"),
        (svg.rect(0, -6, 26, 12, f"o-{colour}", 4), "on another path"),
        (bar + svg.path("M4 6l6 -12M12 6l6 -12M20 6l5 -10", "gap"), "a wave may skip it"),
        (svg.path("M7 -4h12l-6 8z", f"f-{colour}"), "goes on in the next iteration"),
        (svg.path("M0 0h26", f"commit s-{colour}"), "end of a group"),
        (svg.path("M0 0h26", "rule"), "wait"),
        (ring + svg.path("M10 -3l6 6m0 -6l-6 6", "cross"), "used while in flight"),
    )
    parts = [svg.path(f"M{_MARGIN} {y - 14:.1f}H{width - _MARGIN:.1f}", "faint")]
    x = float(_MARGIN)
    for sample, text in samples:
        wide = 34 + text_width(text) + 20
        if x + wide > width:
            x, y = float(_MARGIN), y + 24
        parts.append(f'<g transform="translate({x:.1f} {y + 6:.1f})">{sample}</g>')
        parts.append(svg.text(x + 34, y + 10, text, "pale"))
        x += wide
    return parts, y
