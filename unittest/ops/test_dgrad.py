"""The gradient of the input without a GPU.

What runs the kernel lives in ``interpreter_dgrad.py`` and runs in a process of its own, as
``test_conv2d.py`` explains.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

CASES = pathlib.Path(__file__).with_name("interpreter_dgrad.py")


@pytest.mark.slow
def test_everything_in_the_interpreter():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", str(CASES), "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=3000,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
