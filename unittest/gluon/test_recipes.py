"""Recipes of docs/: each page's programs run and print what the page says."""

from __future__ import annotations

import pytest
from pages import Page, check

pytest.importorskip("torch", reason="Triton's interpreter needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")


@pytest.mark.parametrize("name", ["max-pool.md"])
def test_a_recipe(name, tmp_path):
    page = Page(f"recipes/{name}")
    assert page.broken_links() == []
    page.write_programs(tmp_path)
    commands = page.commands(page.text)
    assert commands
    for command in commands:
        check(command, tmp_path, CUDA_VISIBLE_DEVICES="")
