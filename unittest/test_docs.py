"""The Python in the docs that needs no GPU runs as printed."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
KERNEL = ROOT / "unittest" / "tools" / "lds" / "matmul.ttgir"


def snippets(name: str) -> list[str]:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(code: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def printed(code: str, folder: pathlib.Path) -> str:
    return run(code, folder).stdout


def test_placing_the_buffers_of_a_file(tmp_path):
    pytest.importorskip("triton")  # the snippet asks for what the installed one can do
    shutil.copy(KERNEL, tmp_path / "kernel.ttgir")
    code = snippets("shared-memory.md")[0]
    total, lower_bound, is_optimal = printed(code, tmp_path).split()
    assert (int(total), is_optimal) == (100320, "True")
    assert 4 * 17392 <= int(lower_bound) <= int(total)


def test_bank_conflicts_of_a_column(tmp_path):
    code = snippets("shared-memory.md")[1]
    (said,) = re.findall(r"print\(.*\) +# (.*)", code)
    assert printed(code, tmp_path) == f"{said}\n" == "256 32\n"


REMARK = """
from triton_ext import plugin
plugin._log.info("kernel.py:1:1: remark: said")
"""


@pytest.mark.parametrize(
    ("how", "shown"), [("", ""), ("docs", "kernel.py:1:1: remark: said\n"), ("README", "INFO:")]
)
def test_remarks_of_a_compile_are_seen_as_the_docs_say(how, shown, tmp_path):
    code = ""
    if how == "docs":
        (code,) = [s for s in snippets("partitioned-shared-memory.md") if "import logging" in s]
    elif how == "README":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (line,) = re.findall(r"^`(logging\..*)`\.$", readme, re.MULTILINE)
        code = f"import logging; {line}"
    said = run(code + REMARK, tmp_path).stderr
    assert (said == shown) if how != "README" else said.startswith(shown)


@pytest.fixture
def pointwise(tmp_path):
    """The page that adds a kernel: its file in a folder, and its other code."""
    pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
    kernel, *others = snippets("add-a-kernel.md")
    (tmp_path / "pointwise.py").write_text(kernel, encoding="utf-8")
    return others


def assert_prints_its_comments(code: str, folder: pathlib.Path, more: list[str]) -> None:
    said = re.findall(r"^print\(.*\) +# (.*)$", code, re.MULTILINE)
    assert said
    assert printed(code, folder).splitlines() == said + more


def test_a_kernel_from_outside_is_explained_and_chosen(pointwise, tmp_path):
    refusal = str(["expected 1x1, stride 1, no padding, one group"])
    assert_prints_its_comments(pointwise[0], tmp_path, [refusal])


def test_a_kernel_from_outside_runs(pointwise, tmp_path):
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")
    assert_prints_its_comments(pointwise[1], tmp_path, [])


def test_a_kernel_from_outside_passes_the_conformance_suite(pointwise, tmp_path):
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")
    page = (ROOT / "docs" / "add-a-kernel.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^TRITON_INTERPRET=1 python (-m pytest .*)$", page, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, *command.split(), "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    # Its geometries, epilogues, layouts, NaN, and single tests.
    assert int(passed[1]) > 30


def test_ten_layers_are_explained_as_printed(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
    page = (ROOT / "docs" / "recipes" / "which-kernel.md").read_text(encoding="utf-8")
    (expected,) = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (code,) = snippets("recipes/which-kernel.md")
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))  # no choices of this machine's
    assert printed(code, tmp_path) == expected


def test_a_second_family_of_a_kind_is_refused(pointwise, tmp_path):
    code = """
import pointwise
from triton_ext.ops.core.planner import register
try:
    register(pointwise.Pointwise())
except ValueError as error:
    print(error)
"""
    assert "register: fprop has 'pointwise' of PointwiseConfig, expected" in printed(code, tmp_path)
