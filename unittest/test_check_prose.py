"""``tools/check_prose.py``: which sentences it refuses, and what exempts them."""

from __future__ import annotations

import pathlib

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "check_prose.py"


def found(tool, texts):
    return [(text.line, problem) for text in texts for problem in tool.problems_of(text)]


@pytest.mark.parametrize("opener", ["Of", "What", "Who", "Whoever", "Whether"])
def test_openers_of_docstrings_and_comments(tool, opener):
    comment = f"    # {opener} it is,\n    # is this.\n"
    source = f'"""{opener} it is."""\n\n\ndef f():\n{comment}    return 1\n'
    problems = found(tool, tool.texts_of_python(source))
    assert [line for line, _ in problems] == [1, 5]
    assert all(problem.startswith(f"opens with '{opener}'") for _, problem in problems)


@pytest.mark.parametrize(
    "source",
    [
        '"""Returns what it is."""\n',
        '"""Offsets of a tile."""\n',
        "# The first line\n# Of a block of comments.\n",
        "# What is exempt.  prose: ok\n",
        'def f():\n    """What it is."""  # prose: ok\n',
        'x = "What is no comment"  # a comment\n',
        '"""Reads ``col2im`` as code."""\n',
        '"""A seamless copy."""\n',
    ],
)
def test_others_are_left_alone(tool, source):
    assert found(tool, tool.texts_of_python(source)) == []


def test_house_words(tool):
    source = '"""Sums by col2im over residue classes."""\n# The reason is told.\n'
    source += "x = 1\n# An operation that nobody here knows: its size is no number.\n"
    assert found(tool, tool.texts_of_python(source)) == [
        (1, "'col2im': write 'kn2row'"),
        (1, "'residue classes': write 'stride phase'"),
        (2, "'is told': write 'the fact itself'"),
        (4, "'is no number': write 'is not a'"),
        (4, "'nobody here knows': write 'unknown'"),
    ]


def test_long_sentences_of_pages(tool):
    long = " ".join(["word"] * 41) + "."
    page = f"# {long}\n\n{long}\n\n- Short.\n- {long}\n\n| {long} |\n\n```\n{long}\n```\n\n"
    page += f"{long} <!-- prose: ok -->\n\n- An item:\n\n  ```\n  {long}\n  ```\n"
    problems = found(tool, tool.texts_of_page(page))
    assert [line for line, _ in problems] == [3, 6]
    assert all("a sentence of 41 words, at most 40" in problem for _, problem in problems)
    assert found(tool, tool.texts_of_page("Two are short. " * 30)) == []


def test_what_is_clean_stays_clean(tool, capsys):
    assert tool.main([]) == 0, capsys.readouterr().out
