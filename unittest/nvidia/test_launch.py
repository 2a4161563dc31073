"""What a launch does with descriptors, through Triton's own launcher without a GPU.

Triton links its launcher with libcuda when it is first used, so every run is a process of its own
(``launch_program.py``) that finds the stand-in instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from triton_ext.host import capabilities

FOLDER = pathlib.Path(__file__).parent
PROGRAM = FOLDER / "launch_program.py"
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


@pytest.fixture(scope="module", params=["stock", "cached"])
def results(request, tmp_path_factory, state_fields):
    """What the program found, with tiled maps made by Triton and by us."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of libcuda")
    if importlib.util.find_spec("triton_ext.backends.nvidia.backend._driver") is None:
        pytest.skip("the C extension triton_ext.backends.nvidia.backend._driver is not built")
    folder = tmp_path_factory.mktemp("launch")
    sources = [str(FOLDER / "c" / name) for name in ("fake_libcuda.c", "fake_launcher.c")]
    library = folder / "libcuda.so.1"
    command = [compiler, "-std=c11", "-O1", "-shared", "-fPIC", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    environment = {
        **os.environ,
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TRITON_EXT_TILED_MAPS": request.param,
        "FAKE_LIBCUDA_FIELDS": json.dumps(state_fields),
        "PYTHONPATH": os.pathsep.join(
            [str(FOLDER.parent / "gluon"), os.environ.get("PYTHONPATH", "")]
        ),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_launch(results, name):
    assert results[name] == "", results[name]


def test_dry_run_of_the_benchmark(tmp_path):
    pytest.importorskip("torch", reason="the benchmarks need torch, which is not installed")
    out = tmp_path / "launch.json"
    command = [sys.executable, "-m", "benchmarks", "launch", "--dry-run", "--out", str(out)]
    done = subprocess.run(
        command, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert {row["variant"] for row in rows} == {"tiled stock", "tiled", "tiled cached", "im2col"}
    assert {row["addresses"] for row in rows} == {"same", "pool", "new"}
    assert "the times below are invented" in done.stdout
