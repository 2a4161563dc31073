"""What the emulator has to say against a kernel."""

from __future__ import annotations

from triton_ext.errors import SourceError
from triton_ext.ir import Operation
from triton_ext.passes.places import place_of

__all__ = ["EmulationError", "fault"]


class EmulationError(SourceError):
    """A kernel did what it must never do, or what the emulator does not know."""


def fault(op: Operation, message: str, *notes: str) -> EmulationError:
    """The error at the source line that an operation was made from."""
    place = place_of(op)
    return EmulationError(
        message,
        filename=place.filename,
        line=place.line,
        column=place.column,
        source_line=place.source_line,
        notes=(*notes, *place.notes),
    )
