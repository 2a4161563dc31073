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
import subprocess
import sys

import pytest
from stand_in_driver import compile_stand_in, environment_of
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
    if importlib.util.find_spec("triton_ext.backends.nvidia.backend._driver") is None:
        pytest.skip("the C extension triton_ext.backends.nvidia.backend._driver is not built")
    folder = tmp_path_factory.mktemp("launch")
    if not compile_stand_in(folder):
        pytest.skip("no C compiler for the stand-in of libcuda")
    environment = environment_of(folder)
    environment |= {
        "TRITON_EXT_TILED_MAPS": request.param,
        "FAKE_LIBCUDA_FIELDS": json.dumps(state_fields),
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parent / "gluon"), environment["PYTHONPATH"]]),
    }
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
    if results[name].startswith("skip: "):
        pytest.skip(results[name].removeprefix("skip: "))
    assert results[name] == "", results[name]
