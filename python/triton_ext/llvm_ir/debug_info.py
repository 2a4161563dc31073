"""Where in the user's program an instruction comes from: its ``!dbg`` attachment, followed."""

from __future__ import annotations

import os
import re
from typing import Final

from ..strings import unquote
from .nodes import Instruction, Module

__all__ = ["source_position"]

_FIELD: Final = re.compile(r'\b(\w+):[ \t]*("[^"]*"|![0-9]+|-?[0-9]+|\w+)')
# Scopes are nested far less deeply; a cycle would be malformed.
_MAX_DEPTH: Final = 100


def source_position(module: Module, instruction: Instruction) -> tuple[str, int, int] | None:
    """Returns file, line and column of the innermost position; ``None`` where none is known."""
    number = instruction.location
    if number is None:
        return None
    fields = _fields(module, number)
    filename = _filename(module, fields.get("scope", ""))
    line, column = fields.get("line", "0"), fields.get("column", "0")
    if filename is None or not line.isdigit() or not column.isdigit() or line == "0":
        return None
    return filename, int(line), int(column)


def _fields(module: Module, number: int) -> dict[str, str]:
    return dict(_FIELD.findall(module.metadata.get(number, "")))


def _filename(module: Module, scope: str) -> str | None:
    """File of a scope, which may be that of a scope around it."""
    for _ in range(_MAX_DEPTH):
        if not scope.startswith("!"):
            return None
        fields = _fields(module, int(scope[1:]))
        if "filename" in fields:
            folder = unquote(fields.get("directory", '""'))
            return os.path.join(folder, unquote(fields["filename"]))
        scope = fields.get("file", fields.get("scope", ""))
    return None
