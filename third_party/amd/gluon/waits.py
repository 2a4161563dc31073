"""Converts between pipeline stages, TDM operations and TDM instructions in flight.

The hardware counts instructions of one wave, ``amdg.async_tdm_wait`` counts operations, and
pipelines are written in stages.  :class:`TdmStage` describes the operations of one stage.
Everything here is pure arithmetic on constants and runs while a kernel is traced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from .numbers import positive

__all__ = [
    "MAX_TENSORCNT",
    "TdmStage",
    "load_instructions",
    "rows_instructions",
]

#: TENSORCNT has 6 bits (CDNA5 ISA): no wait can leave more instructions in flight.
MAX_TENSORCNT: Final = 63


def rows_instructions(rows_per_wave: int, index_bits: int) -> int:
    """Returns the instructions that one wave issues for a gather or scatter.

    Args:
        rows_per_wave: Rows per wave, contiguous in its registers.
        index_bits: 16 or 32.

    Raises:
        TypeError, ValueError: A number is not an integer, or out of range.
    """
    rows_per_wave = positive("rows_instructions", "rows_per_wave", rows_per_wave)
    if index_bits not in (16, 32):
        raise ValueError(f"rows_instructions: index_bits is {index_bits!r}, expected 16 or 32")
    return max(1, math.ceil(rows_per_wave / (16 if index_bits == 16 else 8)))


def load_instructions(pieces: int, num_warps: int) -> int:
    """Returns the instructions that one wave issues for a load.

    Args:
        pieces: Partitions times groups of the layout; 1 if it is not partitioned.
        num_warps: Waves of the workgroup.

    Raises:
        TypeError, ValueError: A number is not an integer, or less than 1.
    """
    pieces = positive("load_instructions", "pieces", pieces)
    num_warps = positive("load_instructions", "num_warps", num_warps)
    return math.ceil(pieces / math.gcd(num_warps, pieces))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class TdmStage:
    """The TDM operations that one stage of a pipeline issues.

    Attributes:
        instructions: For each TDM operation of the stage, in issue order, the instructions that
            one wave issues for it.
    """

    instructions: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(self.instructions) if isinstance(self.instructions, (list, tuple)) else ()
        if not counts or any(not _is_count(n) or n < 1 for n in counts):
            raise ValueError(
                "TdmStage: expected a number of instructions, 1 or more, for each TDM operation of "
                f"the stage, got {self.instructions!r}"
            )
        object.__setattr__(self, "instructions", counts)

    @property
    def ops(self) -> int:
        """Number of operations of the stage."""
        return len(self.instructions)

    def behind(self, stages: int, newer: int = 0) -> int:
        """Returns the number of operations issued after a stage.

        Args:
            stages: Complete stages issued after it.
            newer: Further operations issued after it.

        Raises:
            TypeError: A number is not an integer.
            ValueError: A number is negative, or exceeds the range of TENSORcnt, which would wrap
                around.
        """
        if not _is_count(stages) or not _is_count(newer):
            raise TypeError(
                f"expected numbers of stages and of operations, got {stages!r} and {newer!r}"
            )
        if stages < 0 or newer < 0:
            raise ValueError(
                f"expected 0 or more stages and operations behind the one that is waited for, got "
                f"{stages} and {newer}"
            )
        in_flight = stages * sum(self.instructions)
        if in_flight > MAX_TENSORCNT:
            raise ValueError(
                f"{stages} stages of {sum(self.instructions)} instructions are {in_flight} in "
                f"flight, TENSORcnt holds {MAX_TENSORCNT}: use fewer stages, or gather fewer rows "
                "per wave"
            )
        return stages * self.ops + newer

    def within(self, instructions: int) -> int:
        """Returns how many operations fit into the newest ``instructions`` instructions.

        Counts back from the end of a stage.  A wait for this number of operations leaves at most
        ``instructions`` instructions in flight.

        Raises:
            TypeError: ``instructions`` is not an integer.
            ValueError: ``instructions`` is negative, or exceeds the range of TENSORcnt.
        """
        if not _is_count(instructions):
            raise TypeError(f"expected a number of instructions in flight, got {instructions!r}")
        if not 0 <= instructions <= MAX_TENSORCNT:
            raise ValueError(
                f"expected 0 to {MAX_TENSORCNT} instructions in flight, got {instructions}"
            )
        ops, left = 0, instructions
        while left >= (count := self.instructions[-1 - ops % self.ops]):
            left -= count
            ops += 1
        return ops
