"""Errors of emulated kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_ext.errors import SourceError
from triton_ext.ir import Operation
from triton_ext.passes.places import place_of

__all__ = ["EmulationError", "UnreadyError", "Waiting", "at_place", "deadlock", "fault"]


class EmulationError(SourceError):
    """A kernel did what it must never do, or what the emulator does not support."""


class UnreadyError(Exception):
    """A value is read before it is there; becomes an :class:`EmulationError` at the reader.

    Args:
        message: What is read.
        notes: What would be right.
    """

    def __init__(self, message: str, *notes: str) -> None:
        super().__init__(message)
        self.message = message
        self.notes = notes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of a kernel that waits.

    Attributes:
        op: The wait.
        describe: Says what for.
    """

    op: Operation
    describe: Callable[[], tuple[str, ...]]


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


def at_place(what: str, op: Operation) -> str:
    """A note about another operation: what it is, and where."""
    place = place_of(op)
    where = f"{place.filename}:{place.line}:{place.column}: " if place.line else ""
    return f"{what}: {where}{op.name}"


def deadlock(kernel: Operation, waiting: Sequence[object]) -> EmulationError:
    """The error of parts that all wait.

    Args:
        kernel: The kernel.
        waiting: The waits, as :class:`Waiting`.
    """
    waits = [each for each in waiting if isinstance(each, Waiting)]
    if not waits:
        return fault(kernel, "deadlock: the kernel waits for what never happens")
    first, *others = sorted(waits, key=lambda each: str(place_of(each.op)))
    what, *notes = first.describe()
    for other in others:
        text, *more = other.describe()
        notes += [at_place(f"and {text}", other.op), *more]
    return fault(first.op, f"deadlock: {what}", *notes)
