"""Commands that end with the process that starts them, also when that one is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from triton_ext.host import children

__all__ = ["completed", "ending_with_this"]

_BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def ending_with_this(command: Sequence[str]) -> list[str]:
    """Returns a command line that runs a command, which ends with this process.

    The process asks for the death signal and then becomes the command, which keeps it (prctl(2),
    PR_SET_PDEATHSIG).  Processes that the command starts do not have it.
    """
    return children.command("-c", _BECOME, *command, options=("-I", "-S"))


def completed(
    command: Sequence[str], seconds: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends with this process, and returns its status and what it printed.

    Args:
        command: The command line.
        seconds: How long it may take.
        options: More of ``subprocess.run``.

    Raises:
        subprocess.TimeoutExpired: It took longer, and was ended.
    """
    return subprocess.run(
        ending_with_this(command), capture_output=True, text=True, errors="replace", check=False,
        timeout=seconds, **options,
    )  # fmt: skip
