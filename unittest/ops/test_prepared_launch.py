"""Prepared launches pass what Triton's launcher passes; on a driver that does nothing.

Triton links its launcher with libcuda when it is first used, so the checks run in a process of its
own (``prepared_program.py``) that finds the stand-in instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from stand_in_driver import compile_stand_in, environment_of
from triton_ext.host import capabilities

FOLDER = pathlib.Path(__file__).parent
PROGRAM = FOLDER / "prepared_program.py"
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)
# The switches of the stand-in, in the order in which it has them.
STATE = re.findall(
    r"^    atomic_int (\w+);",
    (FOLDER.parent / "nvidia" / "c" / "fake_libcuda.h").read_text(encoding="utf-8"),
    re.MULTILINE,
)

pytestmark = [
    pytest.mark.slow,  # compiles a kernel of every kind
    pytest.mark.skipif(
        not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program found."""
    if importlib.util.find_spec("triton_ext.backends.nvidia.backend._driver") is None:
        pytest.skip("the C extension triton_ext.backends.nvidia.backend._driver is not built")
    folder = tmp_path_factory.mktemp("prepared")
    if not compile_stand_in(folder):
        pytest.skip("no C compiler for the stand-in of libcuda")
    environment = environment_of(folder)
    if "TRITON_CACHE_DIR" in os.environ:
        environment["TRITON_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(STATE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_launch(results: Any, name: str) -> None:
    if results[name].startswith("skip: "):
        pytest.skip(results[name].removeprefix("skip: "))
    assert results[name] == ""
