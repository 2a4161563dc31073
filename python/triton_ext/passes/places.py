"""Where in the user's program an operation comes from."""

from __future__ import annotations

import linecache
from dataclasses import dataclass

from triton_ext.errors import PassError
from triton_ext.ir import BlockArgument, Module, Operation
from triton_ext.ir.locations import Location
from triton_ext.source_files import is_source_file

__all__ = ["Place", "error_at", "place_of", "source_line_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a source file, as far as it is known.

    Attributes:
        filename: Name of the file, or ``<unknown>``.
        line: Line, counted from 1; 0 where no place is known.
        column: Column, counted from 1; 0 where no place is known.
        source_line: The text of that line where the file can be read, or ``None``.
        notes: What is said instead of a place: the operation's own text.
    """

    filename: str = "<unknown>"
    line: int = 0
    column: int = 0
    source_line: str | None = None
    notes: tuple[str, ...] = ()


def place_of(what: Operation | BlockArgument) -> Place:
    """Returns the source line that ``what`` was made from; its own text where there is none.

    An argument that is printed without a location has that of the operation around its block.

    Raises:
        TypeError: ``what`` is neither an operation nor an argument of a block.
    """
    if not isinstance(what, (Operation, BlockArgument)):
        hint = "; 'module.op' is the one of a module" if isinstance(what, Module) else ""
        raise TypeError(f"expected an Operation, found {what!r}{hint}")
    op = what if isinstance(what, Operation) else what.owner.parent_op
    loc = op.loc
    if isinstance(what, BlockArgument) and what.loc_text is not None:
        module = op.module
        loc = Location(what.loc_text, module.aliases if module is not None else {})
    known = loc.resolve() if loc is not None else None
    if known is None:
        return Place(notes=(f"at operation: {str(op).strip()}",))
    filename, line, column = known
    return Place(filename, line, column, source_line_of(filename, line))


def source_line_of(filename: str, line: int) -> str | None:
    """Returns a line of a source file, ``None`` where it cannot be read.

    A module may name any file: one that is no source file by
    :func:`~triton_ext.source_files.is_source_file` is left alone.  Sources that were never a file,
    such as the cells of a notebook, are read from Python's cache.

    Args:
        filename: Name of the file; one that no file can have is not found.
        line: The line, counted from 1.
    """
    if filename not in linecache.cache and not is_source_file(filename):
        return None
    return linecache.getline(filename, line).rstrip("\n") or None


def error_at(op: Operation, message: str, *notes: str) -> PassError:
    """Returns an error at the source line that ``op`` was made from.

    The source line is shown where its file can be read; an operation without a location gives its
    own text instead of a guess.
    """
    place = place_of(op)
    return PassError(
        message,
        filename=place.filename,
        line=place.line,
        column=place.column,
        source_line=place.source_line,
        notes=(*notes, *place.notes),
    )
