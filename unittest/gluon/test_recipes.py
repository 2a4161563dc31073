"""Recipes of docs/: each page's programs run and print what the page says."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, Command, Page, check

pytest.importorskip("torch", reason="Triton's interpreter needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

PAGES = {path.stem: path for path in (ROOT / "docs" / "recipes").glob("*.md")}
#: Those of commands; unittest/test_docs.py runs the others.
NAMES = sorted(
    name
    for name, path in PAGES.items()
    if re.search(r"^```python\n# \w+\.py$", path.read_text(), re.M)
)
#: In front of a program that no CPU runs.
NEEDS_GPU = "<!-- needs: a GPU -->"
#: Lines, code included.
LONGEST = 80


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe(name, tmp_path):
    page = Page(f"recipes/{name}.md")
    assert len(page.text.splitlines()) <= LONGEST
    for file, text in page.programs().items():
        compile(text, file, "exec")
    if NEEDS_GPU in page.text:
        pytest.skip("its program needs a GPU")
    page.write_programs(tmp_path)
    commands = page.commands(page.text)
    assert commands
    for command in commands:
        check(command, tmp_path, CUDA_VISIBLE_DEVICES="")


def test_every_recipe_is_in_the_table():
    text = (ROOT / "docs" / "recipes" / "index.md").read_text(encoding="utf-8")
    assert [name for name in PAGES if name != "index" and f"({name}.md)" not in text] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_on_a_gpu(gpu, name, tmp_path):
    page = Page(f"recipes/{name}.md")
    page.write_programs(tmp_path)
    commands = [each for each in page.commands(page.text) if "TRITON_INTERPRET=1" in each.line]
    if NEEDS_GPU in page.text:
        (program,) = page.programs()
        commands = [Command(f"python {program}", ("True",))]
    for each in commands:
        check(Command(each.line.replace("TRITON_INTERPRET=1 ", ""), each.expected), tmp_path)
