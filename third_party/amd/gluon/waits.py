"""How many TDM operations a wait may let be in flight, counted in what a person has in mind.

The hardware counts instructions of one wave, ``amdg.async_tdm_wait`` counts operations, and a
pipeline is thought of in stages.  :class:`TdmStage` says what one stage issues; everything else is
arithmetic.  All of it is pure and runs while a kernel is traced, on constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = [
    "MAX_TENSORCNT",
    "TdmStage",
    "load_instructions",
    "rows_instructions",
]

#: TENSORCNT has 6 bits (CDNA5 ISA): no wait can let more instructions be in flight.
MAX_TENSORCNT: Final = 63


def rows_instructions(rows_per_wave: int, index_bits: int) -> int:
    """Instructions that one wave issues for a gather or scatter.

    Args:
        rows_per_wave: Rows that each wave names, side by side in its registers.
        index_bits: 16 or 32.
    """
    return max(1, math.ceil(rows_per_wave / (16 if index_bits == 16 else 8)))


def load_instructions(pieces: int, num_warps: int) -> int:
    """Instructions that one wave issues for a load.

    Args:
        pieces: Partitions times groups of the layout; 1 where it is not partitioned.
        num_warps: Waves of the workgroup.
    """
    return math.ceil(pieces / math.gcd(num_warps, pieces))


@dataclass(frozen=True)
class TdmStage:
    """What one stage of a pipeline issues.

    Attributes:
        instructions: For each TDM operation of the stage, in the order in which they are issued,
            the instructions that one wave issues for it.
    """

    instructions: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(self.instructions)
        if not counts or any(not isinstance(n, int) or n < 1 for n in counts):
            raise ValueError(
                "TdmStage: expected a number of instructions, 1 or more, for each TDM operation of "
                f"the stage, got {self.instructions!r}"
            )
        object.__setattr__(self, "instructions", counts)

    @property
    def ops(self) -> int:
        """Operations of the stage."""
        return len(self.instructions)

    def behind(self, stages: int, newer: int = 0) -> int:
        """Operations in flight behind a stage.

        Args:
            stages: Stages that were issued behind it, all of their operations.
            newer: Further operations that were issued behind it.

        Raises:
            ValueError: A number is negative, or more than TENSORcnt holds: such a wait would let
                the hardware wrap around.
        """
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
        """Operations that surely are all of the newest ``instructions`` instructions or fewer.

        Counted back from the end of a stage.  A wait for this number of operations lets at most
        ``instructions`` instructions be in flight.

        Raises:
            ValueError: ``instructions`` is negative, or more than TENSORcnt holds.
        """
        if not 0 <= instructions <= MAX_TENSORCNT:
            raise ValueError(
                f"expected 0 to {MAX_TENSORCNT} instructions in flight, got {instructions}"
            )
        ops, left = 0, instructions
        while left >= (count := self.instructions[-1 - ops % self.ops]):
            left -= count
            ops += 1
        return ops
