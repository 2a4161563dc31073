"""The Python in the docs that needs no GPU and no kernel of one's own: it runs as printed."""

from __future__ import annotations

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
