"""wgrad without a GPU.

Whether kernels are interpreted is fixed when they are defined, so what runs one lives in
``interpreter_wgrad.py`` and runs in a process of its own.  By hand:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/interpreter_wgrad.py``.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

FOLDER = pathlib.Path(__file__).parent


@pytest.mark.slow
def test_everything_in_the_interpreter():
    cases = str(FOLDER / "interpreter_wgrad.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", cases, "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=FOLDER.parent.parent,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
