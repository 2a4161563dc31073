"""docs/convolutions.md: its code prints what it says, its table is what support answers."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from triton_ext.ops import support
from triton_ext.ops.core.descriptors import channels_last

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "convolutions.md").read_text(encoding="utf-8")
TABLE = re.search(r"<!-- table: .*?-->\n(.*?)<!-- end of table -->", PAGE, re.DOTALL)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (TABLE[1] if TABLE else "").splitlines()[2:]
]


@pytest.mark.parametrize("index", range(5))
def test_the_code_prints_what_it_says(index, tmp_path):
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[index]
    # Behind the print, or in the line after it.
    said = re.findall(r"^(?:print\(.*?\)  )?# (.*)$", code, re.MULTILINE)
    assert said
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said


def test_the_table_is_there():
    assert len(ROWS) >= 15


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_the_table_is_what_support_answers(row):
    x_shape, w_shape, dtype, arguments, *answers = row
    x, weight = (
        channels_last(
            torch.empty(
                [int(n) for n in shape.split(",")], dtype=getattr(torch, dtype), device="meta"
            )
        )
        for shape in (x_shape, w_shape)
    )
    found = support(x, weight, **eval(f"dict({arguments.strip('`')})"))
    for direction, answer in zip(("fprop", "dgrad", "wgrad"), answers, strict=True):
        reasons = getattr(found, direction)
        if answer == "yes":
            assert reasons == (), direction
        else:
            fragment = answer.removeprefix("no: ")
            assert any(fragment in reason for reason in reasons), (direction, reasons)
