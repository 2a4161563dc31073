"""docs/gluon-conv.md is true where it needs no GPU: its programs run and print what it says."""

from __future__ import annotations

import re

import pytest
from pages import Page, check
from triton_ext.host import capabilities

pytest.importorskip("numpy")
pytest.importorskip("torch")


class Programs(Page):
    """The page; a program has its file name in its first line, a piece of one has none."""

    def programs(self) -> dict[str, str]:
        """The programs by their file names."""
        texts = [text for _, language, text in self.blocks if language == "python"]
        named = [(re.match(r"# (\w+\.py)\n", text), text) for text in texts]
        return {match[1]: text for match, text in named if match is not None}


PAGE = Programs("gluon-conv.md")
NEEDED = capabilities()["im2col-copies"]
JOIN = capabilities()["wgmma-join"]


def test_every_link_leads_somewhere():
    assert PAGE.broken_links() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gluon-conv")
    PAGE.write_programs(folder)
    return folder


@pytest.mark.skipif(not NEEDED.available, reason=NEEDED.reason)
@pytest.mark.parametrize("command", PAGE.commands(PAGE.text), ids=lambda command: command.line)
def test_it_prints_what_the_page_says(folder, command):
    if command.line == "python joined.py" and not JOIN.available:
        pytest.skip(JOIN.reason)
    check(command, folder)
