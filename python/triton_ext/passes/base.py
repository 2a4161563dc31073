"""What a pass is.

Valid IR in, valid IR out: a pass may rely on what ``Module.verify`` and the host check, and must
leave nothing behind that they refuse.  A pass that cannot do its work raises ``PassError`` at the
user's source line; one that merely finds nothing to do returns.
"""

from __future__ import annotations

import linecache
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.errors import PassError
from triton_ext.ir import Module, Operation

__all__ = ["Pass", "error_at"]


@dataclass(frozen=True, slots=True)
class Pass(ABC):
    """A rewrite of a module; the fields of a subclass are its options.

    Attributes:
        name: As spelled in a pipeline and on the command line.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: Module) -> None:
        """Rewrites ``module`` in place.

        Raises:
            PassError: The module cannot be compiled this way.
        """


def error_at(op: Operation, message: str, *notes: str) -> PassError:
    """Returns an error at the source line that ``op`` was made from.

    The source line is shown where its file can be read; an operation without a location gives its
    own text instead of a guess.
    """
    place = op.loc.resolve() if op.loc is not None else None
    if place is None:
        return PassError(message, notes=(*notes, f"at operation: {str(op).strip()}"))
    filename, line, column = place
    source = linecache.getline(filename, line).rstrip("\n")
    return PassError(
        message,
        filename=filename,
        line=line,
        column=column,
        source_line=source or None,
        notes=notes,
    )
