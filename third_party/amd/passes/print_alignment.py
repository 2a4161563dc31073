"""``test-print-amd-alignment``: ``test-print-alignment`` with the rules of ``amdg`` operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.axis_info import Rules
from triton_ext.backends.amd.analysis.axis_info import AXIS_INFO_RULES
from triton_ext.passes.print_alignment import PrintAlignment

__all__ = ["PrintAMDAlignment"]


@dataclass(frozen=True, slots=True)
class PrintAMDAlignment(PrintAlignment):
    """Prints contiguity, divisibility, constancy and constant of every result in a function."""

    name: ClassVar[str] = "test-print-amd-alignment"

    def rules(self) -> Rules | None:
        """Returns the rules of ``amdg`` operations."""
        return AXIS_INFO_RULES
