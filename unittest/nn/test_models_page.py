"""docs/models.md: its first code prints what it says."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.nn needs torch, which is not installed")

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_code_prints_what_it_says(tmp_path):
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(said) == 2
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said
