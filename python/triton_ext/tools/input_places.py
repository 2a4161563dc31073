"""Places in the input, for operations that have no location of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triton_ext.host.diagnostics import Diagnostic
from triton_ext.ir import Module, Operation
from triton_ext.strings import quote

__all__ = ["locate", "place_in_text", "with_source"]


def locate(module: Module, filename: str) -> None:
    """Gives every operation without a location its place in the text."""
    for op in list(module.walk()):
        if op.parent is not None and (op.loc is None or op.loc.resolve() is None):
            line, column = place_in_text(op)
            op.set_loc(f"loc({quote(filename)}:{line}:{column})")


def place_in_text(op: Operation) -> tuple[int, int]:
    """Line and column of an operation in its text."""
    error = op.error("")
    return error.line, error.column


def with_source(diagnostic: Diagnostic, filename: str, lines: Sequence[str]) -> Diagnostic:
    """Shows the line of the input; what is on disk under that name may be something else."""
    if diagnostic.filename != filename or not 0 < diagnostic.line <= len(lines):
        return diagnostic
    return replace(diagnostic, source_line=lines[diagnostic.line - 1])
