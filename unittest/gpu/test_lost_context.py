"""The plugin that names the test which lost the CUDA context, in runs with a stand-in for torch."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent

TORCH = '''
class cuda:
    """A GPU whose context is lost from the call of ``lose`` on."""

    lost = ""
    once = ""

    def is_available():
        return {gpu}

    def is_initialized():
        return True

    def synchronize():
        assert {gpu}, "a GPU that is not there was asked"
        text, cuda.once = cuda.once or cuda.lost, ""
        if text:
            raise RuntimeError(text + "\\nsecond line")
'''

CONFTEST = """
import lost_context

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    lost_context.register(config)
    lost_context.register(config)  # conftest files may be read twice
"""

TESTS = """
import pytest
import torch

@pytest.mark.gpu
def test_a_good():
    pass

@pytest.mark.gpu
def test_b_error_of_one_call():
    torch.cuda.once = "invalid configuration"

@pytest.mark.gpu
def test_c_culprit():
    torch.cuda.lost = "an illegal instruction was encountered"
    {failure}

@pytest.mark.gpu
def test_d_victim():
    assert not torch.cuda.lost

def test_e_on_the_cpu():
    pass
"""


def run(folder, *options, gpu=True, failure=""):
    for name, text in {
        "torch.py": TORCH.format(gpu=gpu),
        "conftest.py": CONFTEST,
        "test_it.py": TESTS.format(failure=failure),
        "pytest.ini": "[pytest]\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(HERE)])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


def test_without_xdist_the_rest_of_the_gpu_tests_is_skipped(tmp_path):
    result = run(tmp_path, "-p", "no:xdist")
    text = result.stdout
    assert result.returncode == 1, text + result.stderr
    assert "PASSED test_it.py::test_a_good" in text
    assert "PASSED test_it.py::test_b_error_of_one_call" in text
    assert "FAILED test_it.py::test_c_culprit" in text
    reason = (
        "test_it.py::test_c_culprit lost the CUDA context: RuntimeError: an illegal instruction"
    )
    assert f"LostContextError: {reason}" in text
    assert "second line" not in text
    assert "SKIPPED [1]" in text
    assert "PASSED test_it.py::test_e_on_the_cpu" in text
    assert "1 failed, 3 passed, 1 skipped" in text


def test_a_fixture_is_watched_too(tmp_path):
    tests = tmp_path / "test_fixture.py"
    text = """
import pytest
import torch

@pytest.fixture
def broken():
    torch.cuda.lost = "an illegal memory access was encountered"

@pytest.mark.gpu
def test_of_it(broken):
    raise AssertionError("never comes here")
"""
    tests.write_text(text, encoding="utf-8")
    text = run(tmp_path, "-p", "no:xdist", "test_fixture.py").stdout
    assert "ERROR test_fixture.py::test_of_it" in text
    assert "test_fixture.py::test_of_it lost the CUDA context" in text
    assert "never comes here" not in text


def test_the_end_of_a_fixture_is_watched_too(tmp_path):
    tests = tmp_path / "test_fixture.py"
    text = """
import pytest
import torch

@pytest.fixture
def late():
    yield
    torch.cuda.lost = "an illegal memory access was encountered"

@pytest.mark.gpu
def test_of_it(late):
    pass

@pytest.mark.gpu
def test_victim():
    raise AssertionError("never comes here")
"""
    tests.write_text(text, encoding="utf-8")
    text = run(tmp_path, "-p", "no:xdist", "test_fixture.py").stdout
    assert "ERROR test_fixture.py::test_of_it" in text
    assert "test_fixture.py::test_of_it lost the CUDA context" in text
    assert "1 passed, 1 skipped, 1 error" in text


def test_what_the_test_itself_raised_is_kept(tmp_path):
    text = run(tmp_path, "-p", "no:xdist", failure="assert 1 == 2").stdout
    assert "assert 1 == 2" in text
    assert "test_c_culprit lost the CUDA context" in text


def test_nothing_is_asked_without_a_gpu(tmp_path):
    # The test that looks at the stand-in fails; none is skipped, none is the culprit.
    text = run(tmp_path, "-p", "no:xdist", gpu=False).stdout
    assert "1 failed, 4 passed" in text
    assert "CUDA context" not in text


@pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="needs pytest-xdist, which is not installed"
)
def test_a_worker_ends_and_another_takes_the_rest(tmp_path):
    result = run(tmp_path, "-n1", "--dist", "worksteal", "--max-worker-restart", "4")
    text = result.stdout
    assert result.returncode == 1, text + result.stderr
    assert "LostContextError: test_it.py::test_c_culprit lost the CUDA context" in text
    assert "crashed while running 'test_it.py::test_c_culprit'" in text
    # In the process that followed the context is whole.
    for name in ("a_good", "b_error_of_one_call", "d_victim", "e_on_the_cpu"):
        assert f"PASSED test_it.py::test_{name}" in text
    assert "replacing crashed worker" in text
