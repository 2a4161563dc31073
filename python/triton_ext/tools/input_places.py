"""Places in the input, for operations and arguments that have no location of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triton_ext.host.diagnostics import Diagnostic
from triton_ext.ir import BlockArgument, Module, Operation
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.passes.places import place_of
from triton_ext.strings import quote

__all__ = ["locate", "place_in_text", "with_source"]


def locate(module: Module, filename: str) -> None:
    """Gives every operation, and every function's argument, without a location its place."""
    for op in list(module.walk()):
        if op.name in FUNCTIONS and op.regions:
            for argument in op.regions[0].blocks[0].args:
                _locate_argument(argument, filename)
        # A module that is not printed ends at offset 0.
        is_printed = op.parent is not None or op._span[4] > 0
        if is_printed and (op.loc is None or op.loc.resolve() is None):
            line, column = place_in_text(op)
            op.set_loc(f"loc({quote(filename)}:{line}:{column})")


def _locate_argument(argument: BlockArgument, filename: str) -> None:
    span = argument._span
    if span is None or (argument.loc_text is not None and place_of(argument).line):
        return
    line, column = argument.owner.parent_op.source.line_and_column(span[0])
    argument.set_loc(f"loc({quote(filename)}:{line}:{column})")


def place_in_text(op: Operation) -> tuple[int, int]:
    """Line and column of an operation in its text."""
    error = op.error("")
    return error.line, error.column


def with_source(
    diagnostic: Diagnostic, filename: str, lines: Sequence[str], first_line: int = 0
) -> Diagnostic:
    """Shows the line of the input; what is on disk under that name may be something else.

    Args:
        diagnostic: The diagnostic.
        filename: The name of the input.
        lines: The lines of the input, or of a part of it.
        first_line: Number of the lines before them.
    """
    index = diagnostic.line - 1 - first_line
    if diagnostic.filename != filename or not 0 <= index < len(lines):
        return diagnostic
    return replace(diagnostic, source_line=lines[index])
