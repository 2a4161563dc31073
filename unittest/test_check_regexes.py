"""``tools/check_regexes.py``: which patterns it finds, and which it refuses."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("regexploit")
TOOL = pathlib.Path(__file__).parent.parent / "tools" / "check_regexes.py"


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (r"""re.compile(r"(?:\s+|//[^\n]*)*:")""", "exponential"),
        (r"""re.search(rf"{NAME}(a+)+b", text)""", "exponential"),
        (r"""re.match("(a+" + r")+b", text)""", "exponential"),
        (r"""re.compile(STAR + "b")""", "exponential"),
        (r"""re.fullmatch(r"[ \t]*(?:@x)?[ \t]*\d?[ \t]*:", text)""", "degree 3"),
    ],
)
def test_slow_patterns_are_refused(tool, source, word):
    (pattern,) = tool.patterns_of(f'import re\nSTAR = "(a+)+"\n\n{source}\n')
    assert pattern.line == 4
    assert word in tool.problem_of(pattern)


@pytest.mark.parametrize(
    "source",
    [
        r"""re.compile(r"\s*(?://[^\n]*\n\s*)*:")""",
        r"""re.compile(r"(?:[^a\n]+|b)*(?:(a)|(\Z)|(.))")""",  # always matches
        r"""re.compile(r"( a+ ) # many a*a*a*b", re.VERBOSE | re.ASCII)""",
    ],
)
def test_others_are_not(tool, source):
    (pattern,) = tool.patterns_of(f"import re\n{source}\n")
    assert tool.problem_of(pattern) is None


def test_a_pattern_that_cannot_be_analysed_is_refused(tool):
    assert "not analysed" in tool.problem_of(tool.Pattern(1, "(a"))
