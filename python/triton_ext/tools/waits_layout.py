"""Where the copies of a timeline stand: a track for each, and the pieces of its bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triton_ext.analysis.timeline import Close, Copy, Section, Split, Timeline, Wait

__all__ = ["Layout", "Piece", "Track", "layout_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a copy's bar: from one row down to another.

    Attributes:
        label: The copy.
        first: The row at which it starts; -1 in front of all.
        last: The row at which it ends; the number of rows where it goes on behind all.
        is_issue: Whether it starts at the copy itself.
        is_retired: Whether it ends at a wait that retires it.
        iterations: How many times control went back to the start of a loop since the copy.
        is_elsewhere: Whether it is about another path than the rows above it, on which the copy
            was retired.
    """

    label: str
    first: int
    last: int
    is_issue: bool
    is_retired: bool
    iterations: int
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Track:
    """Where the bar of a copy stands.

    Attributes:
        lane: Number of the lane in the section.
        index: Number of the track in the lane.
    """

    lane: int
    index: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The bars of a section.

    Attributes:
        pieces: The pieces of all bars, those of a copy together.
        tracks: Where the bar of each copy stands.
        widths: Number of tracks of each lane, at least one.
    """

    pieces: tuple[Piece, ...]
    tracks: Mapping[str, Track]
    widths: tuple[int, ...]


def layout_of(section: Section, timeline: Timeline) -> Layout:
    """Lays out a section of a timeline."""
    copies = {copy.label: copy for copy in timeline.copies}
    pieces: dict[str, list[Piece]] = {}
    # In front of the first row, then behind each.
    gaps = [{f.label: f.iterations for f in section.entry}]
    gaps += [{f.label: f.iterations for f in row.in_flight} for row in section.rows]
    for label in copies:
        found = _pieces(label, gaps, section)
        if found:
            pieces[label] = found
    for row in section.rows:
        if isinstance(row.item, Copy):
            pieces.setdefault(row.item.label, [])
    tracks: dict[str, Track] = {}
    widths = []
    for number, lane in enumerate(section.lanes):
        ends: list[int] = []
        inside = [label for label in pieces if copies[label].lane == lane]
        for label in sorted(inside, key=lambda label: _extent(label, pieces[label], section)[0]):
            first, last = _extent(label, pieces[label], section)
            free = next((i for i, end in enumerate(ends) if end < first), None)
            if free is None:
                free = len(ends)
                ends.append(last)
            ends[free] = last
            tracks[label] = Track(number, free)
        widths.append(max(1, len(ends)))
    everything = tuple(piece for label in pieces for piece in pieces[label])
    return Layout(everything, tracks, tuple(widths))


def _pieces(label: str, gaps: list[dict[str, int]], section: Section) -> list[Piece]:
    """The pieces of a bar: cut where the copy stands, and where its age begins or ends."""
    found: list[Piece] = []
    first: int | None = None
    for gap in range(len(gaps) + 1):
        row = gap - 1  # the row in front of the gap
        here = gaps[gap].get(label) if gap < len(gaps) else None
        is_issue = _copy_at(section, row, label) is not None
        if first is not None:
            before = gaps[gap - 1][label]
            if here is None or is_issue or bool(here) != bool(before):
                found.append(_piece(label, first, row, before, found, section))
                first = None
        if here is not None and first is None:
            first = row
    return found


def _piece(
    label: str, first: int, last: int, iterations: int, above: list[Piece], section: Section
) -> Piece:
    ends = section.rows[last].item if last < len(section.rows) else None
    starts = section.rows[first].item if first >= 0 else None
    is_joined = bool(above) and above[-1].last == first
    return Piece(
        label=label,
        first=first,
        last=last,
        is_issue=_copy_at(section, first, label) is not None,
        is_retired=isinstance(ends, Wait) and label in ends.retires,
        iterations=iterations,
        is_elsewhere=isinstance(starts, Close | Split) and not is_joined and not iterations,
    )


def _copy_at(section: Section, row: int, label: str) -> Copy | None:
    item = section.rows[row].item if 0 <= row < len(section.rows) else None
    return item if isinstance(item, Copy) and item.label == label else None


def _extent(label: str, pieces: list[Piece], section: Section) -> tuple[int, int]:
    """The first and the last row that a bar touches."""
    if not pieces:
        row = next(i for i in range(len(section.rows)) if _copy_at(section, i, label))
        return row, row
    return min(piece.first for piece in pieces), max(piece.last for piece in pieces)
