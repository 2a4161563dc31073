"""The banks of accesses as pictures: a row for each wavefront, a column for each bank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from triton_ext.analysis.bank_conflicts import Phase
from triton_ext.analysis.memory_map import AccessMap, SharedMemory
from triton_ext.tools.lds_style import heat
from triton_ext.tools.lds_words import access_title, caveat, cost, numbers, ratio
from triton_ext.tools.picture_style import text_width, wrap
from triton_ext.tools.svg import cut, rect, text, texts

__all__ = ["MOST_WAVEFRONTS", "banks", "lanes_of", "wavefronts_of"]

#: Rows of one picture.
MOST_WAVEFRONTS: Final = 40
_LABEL: Final = 96
_CELL: Final = 11


def wavefronts_of(phase: Phase) -> list[dict[int, int]]:
    """The wavefronts of a phase: the word that each busy bank moves."""
    return [
        {bank: words[number] for bank, words in phase.banks.items() if number < len(words)}
        for number in range(phase.wavefronts)
    ]


def lanes_of(lanes: Sequence[int]) -> str:
    """``lanes 0 to 7``, or ``32 lanes`` where they are not neighbours."""
    first, last = min(lanes), max(lanes)
    if len(lanes) == 1:
        return f"lane {first}"
    if last - first + 1 == len(lanes):
        return f"lanes {first} to {last}"
    return f"{len(lanes)} lanes"


def banks(
    accesses: Sequence[AccessMap], memory: SharedMemory, left: float, top: float, right: float
) -> tuple[list[str], float]:
    """Draws the banks of all accesses.

    Args:
        accesses: The accesses of a function.
        memory: The GPU's.
        left: Where the pictures start.
        top: Where the first one starts.
        right: Where they end.

    Returns:
        The elements, and where they end.
    """
    count = memory.banks.banks
    wide = _LABEL + count * _CELL
    columns = max(1, int((right - left + 36) // (wide + 36)))
    parts: list[str] = []
    ends = [top] * columns
    for index, access in enumerate(accesses):
        # Where there is most room.
        column = ends.index(min(ends))
        x = left + column * (wide + 36)
        made, ends[column] = _panel(index, access, count, x, ends[column] + 16, wide)
        parts += made
    bottom = max(ends)
    return parts, bottom


def _panel(
    index: int, access: AccessMap, count: int, x: float, y: float, wide: float
) -> tuple[list[str], float]:
    tone = heat(round(ratio(access)) - 1) if access.cost is not None else "ks"
    badge = str(index + 1)
    parts = [rect(x, y - 1, 20, 18, tone, 9), text(x + 10, y + 12, badge, "tiny onlabel", "middle")]
    where = numbers(access.lines)
    title = cut(access_title(access), wide - 36 - text_width(where))
    parts.append(texts(x + 28, y + 12, ((title, "mono ink bold"), (where, "pale"))))
    y += 30
    for said in (cost(access), *caveat(access)):
        for line in wrap(said, wide + 50):
            parts.append(text(x, y, line, "pale"))
            y += 16
    if not access.phases:
        return parts, y + 8
    made, y = _cells(index, access, count, x, y)
    return parts + made, y + 14


def _cells(
    index: int, access: AccessMap, count: int, x: float, y: float
) -> tuple[list[str], float]:
    start = x + _LABEL
    y += 10
    step = 8
    parts = [
        text(start + (bank + 0.5) * _CELL, y, str(bank), "tiny pale", "middle")
        for bank in (*range(0, count, step), count - 1)
    ]
    parts.append(text(x, y, "bank", "pale"))
    y += 6
    drawn = total = 0
    for phase in access.phases:
        lanes = sorted({lane for users in phase.lanes.values() for lane in users})
        rows = wavefronts_of(phase)
        total += len(rows)
        for number, words in enumerate(rows):
            if drawn >= MOST_WAVEFRONTS:
                break
            if not number:
                parts.append(text(x, y + 9, lanes_of(lanes), "pale"))
            parts.append(rect(start, y, count * _CELL - 1, _CELL - 1, "bank", 2))
            for bank, word in sorted(words.items()):
                users = ", ".join(map(str, phase.lanes[word]))
                plural = "s" if len(phase.lanes[word]) > 1 else ""
                said = f"bank {bank}: word {word}, lane{plural} {users}"
                parts.append(
                    rect(
                        start + bank * _CELL,
                        y,
                        _CELL - 1,
                        _CELL - 1,
                        heat(number),
                        2,
                        title=said,
                        access=index + 1,
                        wavefront=drawn,
                        bank=bank,
                    )
                )
            drawn += 1
            y += _CELL
        y += 3
    if total > drawn:
        parts.append(text(start, y + 9, f"and {total - drawn} more wavefronts", "pale"))
        y += 14
    return parts, y
