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


@pytest.mark.parametrize(
    "source",
    [
        'import re\nre.subn("(a+)+b", "", text)',
        'import re\nre.compile(pattern="(a+)+b")',
        'from re import compile as c\nc("(a+)+b")',
        'import re as r\nr.compile("(a+)+b")',
        'def f():\n    import re as r; return r.split("(a+)+b", x)',
    ],
)
def test_each_form_of_a_call_is_found(tool, source):
    (pattern,) = tool.patterns_of(source)
    assert pattern.line == 2
    assert "exponential" in tool.problem_of(pattern)


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    p = "(a+)+b"; re.compile(p)',
        "# a parameter\nre.search(rf'{word}b', text)",
        "# any\nre.search(*given)",
        "# any\nre.search(**given)",
        "# no call\nuse(re.compile)",
        "# 128 arms\nre.compile(" + " + ".join(['("a" if x else "b")'] * 7) + ")",
    ],
)
def test_a_pattern_that_is_not_known_needs_a_reason(tool, source):
    (pattern,) = tool.patterns_of(
        f"import re;{source}" if source[0] == "#" else f"{source}\nimport re"
    )
    assert pattern.line == 2
    assert "not known" in tool.problem_of(pattern)
    for reason, count in (("", 1), ("the user gives it", 0)):
        found = tool.patterns_of(f"import re\n{source}  # pattern: {reason}\n")
        assert sum(tool.problem_of(each) is not None for each in found) == count


def test_what_is_escaped_is_known(tool):
    (pattern,) = tool.patterns_of('import re\nre.search(re.escape(name) + "+b", text)')
    assert (pattern.text, tool.problem_of(pattern)) == ("x+b", None)
