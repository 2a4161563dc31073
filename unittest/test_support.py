"""docs/support.md says about the installed Triton what its probes find."""

from __future__ import annotations

import pathlib

import pytest
import triton

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "support_table.py"


def test_every_row_is_on_the_page(tool):
    page = tool.parse_page()
    assert list(page) == [row.name for row in tool.ROWS]
    for row in tool.ROWS:
        assert page[row.name]["since"] == row.since
        cells = {tool.plain(page[row.name][host]).partition(",")[0] for host in tool.HOSTS}
        assert cells <= {"yes", "no"}


def test_a_no_says_from_when_on(tool):
    cells = {"3.6.0": "no", "3.7.0": "yes, in LLVM IR", "3.8.0": "no"}
    told = tool._with_the_first(cells)
    assert told == {"3.6.0": "no, from 3.7.0 on", "3.7.0": "yes, in LLVM IR", "3.8.0": "no"}
    assert {host: tool.plain(cell) for host, cell in told.items()} == cells


def test_the_column_of_this_triton_is_true(tool):
    pytest.importorskip("torch")
    if triton.__version__ not in tool.HOSTS:
        pytest.skip(f"the page has no column for triton {triton.__version__}")
    page = {
        name: tool.plain(cells[triton.__version__]) for name, cells in tool.parse_page().items()
    }
    assert page == tool.probe()
