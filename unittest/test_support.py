"""docs/support.md says about the installed Triton what its probes find."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest
import triton

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "support_table.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("support_table", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["support_table"] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["support_table"]


def test_every_row_is_on_the_page(tool):
    page = tool.parse_page()
    assert list(page) == [row.name for row in tool.ROWS]
    for row in tool.ROWS:
        assert page[row.name]["since"] == row.since
        assert {page[row.name][host] for host in tool.HOSTS} <= {"yes", "no"}


def test_the_column_of_this_triton_is_true(tool):
    pytest.importorskip("torch")
    if triton.__version__ not in tool.HOSTS:
        pytest.skip(f"the page has no column for triton {triton.__version__}")
    page = {name: cells[triton.__version__] for name, cells in tool.parse_page().items()}
    assert page == tool.probe()
