"""docs/tdm-waits.md and its second part are true: what runs, what is printed, what is quoted."""

from __future__ import annotations

import pytest
from pages import ROOT, Page, check
from triton_ext.host import capabilities

pytest.importorskip("numpy")

PAGE = Page("tdm-waits.md", "tdm-waits/2-pipelines.md")
NEEDED = capabilities()["amd-partitioned-shared"]


def test_quotes_are_those_of_the_examples():
    quotes = PAGE.quotes()
    assert len(quotes) == 3
    for source, text in quotes:
        assert text in (ROOT / source).read_text(), source


def test_every_link_leads_somewhere():
    assert PAGE.broken_links() == []
    assert (ROOT / "unittest/emulator/test_against_the_verifier.py").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tdm-waits")
    PAGE.write_programs(folder)
    return folder


@pytest.mark.skipif(not NEEDED.available, reason=NEEDED.reason)
@pytest.mark.parametrize("command", PAGE.commands(PAGE.text), ids=lambda command: command.line[:50])
def test_it_prints_what_the_page_says(folder, command):
    check(command, folder)
