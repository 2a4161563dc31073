"""``tools/check_regexes.py``: which patterns it finds, and which it refuses."""

from __future__ import annotations

import pathlib
import sys

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


def test_each_arm_of_a_conditional_is_a_pattern(tool):
    source = """\
import re
import sys
STAR = "*" if sys.version_info >= (3, 11) else "+"
A = re.compile(r"a" + STAR)
B = re.compile(rf"({A.pattern})+b")
"""
    assert [each.text for each in tool.patterns_of(source)] == ["a*", "a+", "(a*)+b", "(a+)+b"]


def test_parts_are_found_in_other_modules(tool, tmp_path, monkeypatch):
    package = tmp_path / "python" / "some"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .words import STAR as MANY\n")
    (package / "words.py").write_text('STAR: str = "(a+)+"\nWORDS = ("b", STAR)\nSELF = SELF\n')
    user = package / "user.py"
    user.write_text("""\
import re
from some import MANY
from . import words
from .words import SELF, WORDS as MORE
re.compile(MANY + "b")
re.compile(f"{words.STAR}b")
re.compile("|".join(["c", words.STAR]) + "b")
re.compile(SELF + gone.STAR)
re.compile(".".join(MORE))
""")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    tool._module.cache_clear()
    found = list(tool.patterns_of(user.read_text(), user))
    assert [each.text for each in found] == ["(a+)+b", "(a+)+b", "c|(a+)+b", "xx", "b.(a+)+"]
    slow = ["exponential" in (tool.problem_of(each) or "") for each in found]
    assert slow == [True, True, True, False, False]
    tool._module.cache_clear()


def test_a_repetition_that_never_goes_back_counts_as_one_that_may(tool):
    # A Python before 3.11 cannot read it, and never runs that arm.
    (pattern,) = tool.patterns_of('import re\nre.compile("(a+)*+b")\n')
    assert tool.problem_of(pattern) is None or "exponential" in tool.problem_of(pattern)
    if sys.version_info >= (3, 11):
        assert "exponential" in tool.problem_of(pattern)
