"""Where passes of triton-ext differ from upstream's on purpose.

A test passes *but for listed lines* if it passes with each of these lines changed as it says here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEVIATIONS", "Deviation", "with_deviations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Lines of one test in which upstream's result is another one.

    Attributes:
        file: The test.
        upstream: What the lines hold, a fragment of them.
        ours: What has to stand in its place.
        reason: Why ours is right, one sentence.
        proof: What shows it: a test of this repository, or a command.
    """

    file: str
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
        for number, line in enumerate(lines):
            if deviation.upstream in line:
                lines[number] = line.replace(deviation.upstream, deviation.ours)
                found.append((number + 1, deviation))
    return "".join(lines), tuple(found)
