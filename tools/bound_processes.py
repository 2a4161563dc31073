"""Commands that end with the process that starts them, also when that one is killed."""

from __future__ import annotations

from collections.abc import Sequence

from triton_ext.host import children

__all__ = ["ending_with_this"]

_BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def ending_with_this(command: Sequence[str]) -> list[str]:
    """Returns a command line that runs a command, which ends with this process.

    The process asks for the death signal and then becomes the command, which keeps it (prctl(2),
    PR_SET_PDEATHSIG).  Processes that the command starts do not have it.
    """
    return children.command("-c", _BECOME, *command, options=("-I", "-S"))
