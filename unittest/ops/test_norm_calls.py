"""The benchmark of calls of norms, and what such calls launch; on a driver that does nothing."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from stand_in_driver import STAND_IN_VARIABLE, compile_stand_in, environment_of

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of a process whose libcuda is the stand-in."""
    if importlib.util.find_spec("triton_ext.backends.nvidia.backend._driver") is None:
        pytest.skip("the C extension triton_ext.backends.nvidia.backend._driver is not built")
    folder = tmp_path_factory.mktemp("norm_calls")
    if not compile_stand_in(folder):
        pytest.skip("no C compiler for the stand-in of libcuda")
    found = environment_of(folder)
    if "TRITON_CACHE_DIR" in os.environ:
        found["TRITON_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"]
    return found


def run(environment, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # compiles every kernel of norms
def test_kernels_launched_together_get_what_each_gets(environment):
    found = json.loads(run(environment, str(FOLDER / "norm_launch_program.py")).splitlines()[-1])
    assert len(found) == 12
    for name, kernels in found.items():
        assert kernels == ([3, 3] if name.endswith("both") else [3]), name


@pytest.mark.slow
def test_the_benchmark_times_prepared_calls(environment, tmp_path):
    out = tmp_path / "calls.csv"
    variables = {**environment, STAND_IN_VARIABLE: "1"}
    command = ("-m", "benchmarks", "calls", "--norms", "--rounds", "1", "--chunks", "1")
    text = run(variables, *command, "--out", str(out))
    assert "is not prepared" not in text
    lines = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    assert len(rows) == 2 * 12
    assert {row["variant"] for row in rows} == {"triton", "prepared"}
    assert all(float(row["us"]) > 0 for row in rows)
