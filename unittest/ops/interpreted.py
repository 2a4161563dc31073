"""Runs test files in processes of their own, whose kernels are interpreted.

Whether kernels are interpreted is fixed when they are defined.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_kernels.py``.
"""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import subprocess
import sys

import interpreted_process
import pytest
from line_process import LineProcess

__all__ = ["assert_passes_in_the_interpreter", "run_python"]

FOLDER = pathlib.Path(__file__).parent


def run_python(
    *arguments: str, timeout_s: int = 900, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python in the root of the repository, interpreted only if ``variables`` say so."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**environment, **variables},
        cwd=FOLDER.parent.parent,
        timeout=timeout_s,
        check=False,
    )


@functools.cache
def _process() -> LineProcess:
    """The process that runs files of tests, one for all files of this process."""
    process = LineProcess(interpreted_process.FILE)
    atexit.register(process.close)
    return process


def assert_passes_in_the_interpreter(file: str, timeout_s: int = 900, *options: str) -> None:
    """Runs a test file of this folder with interpreted kernels; skips where there is no numpy."""
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")
    arguments = [str(FOLDER / file), "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = _process().exchange([arguments, environment, timeout_s])
    assert result["status"] == 0, f"{result['output']}\npytest ended with {result['status']}"
