"""What ``tools/fuzz.py`` found once, through everything that it asks again."""

from __future__ import annotations

import importlib
import pathlib
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
CASES = sorted((pathlib.Path(__file__).parent / "cases").iterdir())


@pytest.fixture(scope="module")
def fuzz_cases():
    sys.path.insert(0, str(TOOLS))
    try:
        yield importlib.import_module("fuzz_cases")
    finally:
        sys.path.remove(str(TOOLS))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case(fuzz_cases, path):
    text = path.read_bytes().decode("utf-8", "surrogatepass")
    finding = fuzz_cases.examine_case(text, is_llvm=path.suffix == ".ll")
    assert finding is None, f"{finding.step}: {finding.detail}"
