"""Every file of tests for a GPU imports and collects where there is none."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from host_plan import FIRST, ONE_HOST

pytest.importorskip("torch", reason="the tests for a GPU need torch, which is not installed")

HERE = pathlib.Path(__file__).parent
UNITTEST = HERE.parent


def test_files_for_a_gpu_collect():
    files = {
        path
        for path in UNITTEST.rglob("test_*.py")
        if path.name.endswith("_gpu.py") or "mark.gpu" in path.read_text(encoding="utf-8")
    }
    files.discard(pathlib.Path(__file__))
    files.discard(HERE / "test_lost_context.py")  # has tests for a GPU in a string
    assert len(files) > 15
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment["TRITON_INTERPRET"] = "0"  # or their modules are skipped
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*command, "-p", "as_if_gpu", "--collect-only", "-m", "gpu", *map(str, sorted(files))],
        cwd=UNITTEST.parent, env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    # What this Triton lacks is skipped, and named with the reason.
    assert result.returncode == 0, result.stdout + result.stderr
    for path in files:
        assert path.name in result.stdout, f"{path.name} has no test for a GPU"


def test_what_is_planned_by_name_is_there():
    for name in (*FIRST, *(name for names in ONE_HOST.values() for name in names)):
        file, _, function = name.partition("::")
        assert (UNITTEST / file).is_file(), f"{file} is in host_plan.py, not in unittest/"
        text = (UNITTEST / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text or not function, f"{file} has no {function}"
