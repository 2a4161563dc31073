"""Remarks and statistics of a pass.

A pass gets the context as an argument and nothing is global, so that two runs never mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from triton_ext.errors import PassError
from triton_ext.ir import BlockArgument, Operation
from triton_ext.passes.places import place_of

__all__ = ["PassContext", "Remark", "Statistic", "no_host"]

Severity = Literal["remark", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that a user may want to know: why an optimisation was skipped, or done.

    Attributes:
        message: Lower case, no full stop.
        severity: A warning says that the kernel is probably not what its author wanted.
        pass_name: The pass that says so.
        filename: Source file, or ``<unknown>``.
        line: Line, counted from 1; 0 where no place is known.
        column: Column, counted from 1; 0 where no place is known.
        source_line: The text of that line, or ``None``.
        notes: Further lines.
    """

    message: str
    severity: Severity = "remark"
    pass_name: str = ""
    filename: str = "<unknown>"
    line: int = 0
    column: int = 0
    source_line: str | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        error = PassError(
            self.message,
            filename=self.filename,
            line=self.line,
            column=self.column,
            source_line=self.source_line,
            notes=self.notes,
        )
        place, _, rest = str(error).partition(": error: ")
        return f"{place}: {self.severity}: {rest}"


@dataclass(frozen=True, slots=True)
class Statistic:
    """How often a pass did something."""

    pass_name: str
    name: str
    count: int


def no_host() -> None:
    """Stands for a host that is not known."""


@dataclass(slots=True)
class PassContext:
    """Collects what one pass tells while it runs, and tells it who compiles the module.

    Attributes:
        pass_name: The pass.
        host_features: Returns the names of what the Triton that compiles the module can do
            (``triton_ext.host.capabilities``), or ``None`` where it is not known.  A pass asks only
            if its result depends on it: finding out means loading Triton.
        remarks: In the order in which they were made.
        counts: Statistics by name.
    """

    pass_name: str = ""
    host_features: Callable[[], frozenset[str] | None] = no_host
    remarks: list[Remark] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def remark(self, what: Operation | BlockArgument, message: str, *notes: str) -> None:
        """Notes something at the source line that an operation or an argument was made from."""
        self._add(what, "remark", message, notes)

    def warning(self, op: Operation, message: str, *notes: str) -> None:
        """Notes something that is probably a mistake of the kernel's author."""
        self._add(op, "warning", message, notes)

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a statistic, such as ``"loads-lowered"``."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def _add(
        self,
        what: Operation | BlockArgument,
        severity: Severity,
        message: str,
        notes: tuple[str, ...],
    ) -> None:
        place = place_of(what)
        self.remarks.append(
            Remark(
                message=message,
                severity=severity,
                pass_name=self.pass_name,
                filename=place.filename,
                line=place.line,
                column=place.column,
                source_line=place.source_line,
                notes=(*notes, *place.notes),
            )
        )
