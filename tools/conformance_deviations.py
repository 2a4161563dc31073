"""Where passes of triton-ext differ from upstream's on purpose.

A test *deviates as listed* if it passes with each of these lines changed as it says here, and with
nothing else changed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMMIT", "DEVIATIONS", "Deviation", "with_deviations"]

#: The checkout that the lines are those of; in another one the nearest line with the text counts.
COMMIT = "ef08c7fc4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Lines of one test in which upstream's result is another one.

    Attributes:
        file: The test.
        lines: Their numbers.
        upstream: What the lines hold, a fragment of them.
        ours: What has to stand in its place.
        reason: Why ours is right.
        proof: A test of this repository that shows it, or a command.
    """

    file: str
    lines: tuple[int, ...]
    upstream: str
    ours: str
    reason: str
    proof: str


DEVIATIONS: tuple[Deviation, ...] = ()


def with_deviations(name: str, text: str) -> tuple[str, tuple[tuple[int, Deviation], ...]]:
    """Returns a test with its listed lines changed, and each change with its line.

    Args:
        name: The test.
        text: What stands in it.
    """
    lines = text.splitlines(keepends=True)
    found = []
    for deviation in DEVIATIONS:
        if deviation.file != name:
            continue
        for wanted in deviation.lines:
            having = [n for n, line in enumerate(lines, 1) if deviation.upstream in line]
            if having:
                _, number = min((abs(n - wanted), n) for n in having)
                line = lines[number - 1]
                lines[number - 1] = line.replace(deviation.upstream, deviation.ours)
                found.append((number, deviation))
    return "".join(lines), tuple(found)
