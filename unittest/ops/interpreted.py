"""Runs test files in processes of their own, whose kernels are interpreted.

Whether kernels are interpreted is fixed when they are defined.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_wgrad.py``.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

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


def assert_passes_in_the_interpreter(file: str, timeout_s: int = 900) -> None:
    """Runs a test file of this folder with interpreted kernels; skips where there is no numpy."""
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")
    cases = str(FOLDER / file)
    options = ("-q", "-p", "no:cacheprovider")
    result = run_python("-m", "pytest", cases, *options, timeout_s=timeout_s, TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
