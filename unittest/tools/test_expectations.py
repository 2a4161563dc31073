"""-verify-diagnostics: how designators are read, and what is compared with what."""

from __future__ import annotations

import signal
import time
import warnings

import pytest
from triton_ext.host.diagnostics import Diagnostic
from triton_ext.tools.expectations import expectations, verify


def error(line, message, *notes, filename="a.mlir", severity="error"):
    return Diagnostic(
        severity=severity, message=message, filename=filename, line=line, column=1, notes=notes
    )


def messages(problems):
    return [problem.message for problem in problems]


def check(text, *diagnostics, only_expected=False):
    return messages(verify(diagnostics, text, "a.mlir", only_expected=only_expected))


def test_notes_that_nobody_can_give_are_remarked_upon():
    text = "x // expected-error {{m}}\n// expected-note @-1 {{n}}\n// expected-error {{o}}\n"
    found = verify([error(1, "m")], text, "a.mlir", only_expected=False, without_notes=True)
    assert [problem.severity for problem in found] == ["remark", "error"]
    assert messages(found)[0].startswith('expected note "n" is not known')
    assert [p.severity for p in verify([error(1, "m")], text, "a.mlir", only_expected=False)] == [
        "error",
        "error",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x // expected-error {{m}}", 1),
        ("// expected-error @+1 {{m}}\nx", 2),
        ("// expected-error@+1{{m}}\nx", 2),
        ("\n\n// expected-error @-2 {{m}}", 1),
        ("x\n// expected-note @+0 {{a}}\n// expected-error @above {{m}}", 1),
        ("// expected-error @below {{m}}\n// expected-note @below {{a}}\nx", 3),
        ("// expected-error @unknown {{m}}", 0),
        ("// expected-error @ +1 {{m}}", 2),
    ],
)
def test_places(text, line):
    found = [e for e in expectations(text) if e.kind == "error"]
    assert [(e.line, e.text) for e in found] == [(line, "m")]


def test_lines_before_the_text_count():
    text = "// expected-error @below {{a}}\nx\n// expected-error @above {{b}}\n"
    text += "bad // expected-error {{c}}"
    (one, two, three) = expectations(text, first_line=10)
    assert [(e.line, e.stands[0]) for e in (one, two, three)] == [(12, 11), (12, 13), (14, 14)]
    diagnostics = [error(12, "a"), error(12, "b")]
    (problem,) = verify(diagnostics, text, "a.mlir", only_expected=False, first_line=10)
    assert (problem.line, problem.source_line) == (14, "bad // expected-error {{c}}")
    text = "// expected-error @above {{b}}"
    assert expectations(text, first_line=10)[0].line == 10


def test_what_is_no_designator():
    text = "// as expected-error says\nexpected-error {{m}}\n// the expected-trip-count is {8}\n"
    assert expectations(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x // expected-error {{a", (1, 6)),
        ("// expected-error {{a}} expected-note {{b", (1, 25)),
        ("\n// expected-error@nowhere {{a}}", (2, 4)),
        ("// expected-eror @+1 {{a}}", (1, 4)),
        ("// the expected-fatal {{a}}", (1, 8)),
        ("//expected-error @+1", (1, 3)),
        ("// expected-error -re {{a}}", (1, 4)),
        ("// expected-error " + "9" * 5000 + " {{a}}", (1, 4)),
        ("// expected-error@+" + "9" * 5000 + " {{a}}", (1, 4)),
    ],
)
def test_what_is_almost_a_designator_is_an_error(text, place):
    (problem,) = verify([], text, "a.mlir", only_expected=False)
    assert problem.severity == "error"
    assert (problem.filename, problem.line, problem.column) == ("a.mlir", *place)
    assert problem.source_line == text.split("\n")[place[0] - 1]
    assert "'@below'" in problem.notes[0].message


def test_a_designator_in_a_text_is_no_other_one():
    (one,) = expectations("// expected-error {{an expected-foo {{x}} y}}")
    assert one.text == "an expected-foo {{x}} y"


def test_a_huge_count_takes_no_memory():
    text = "// expected-error 99999999999 {{a}}\n// expected-note @below 99999999999 {{b}}\nx"
    found = expectations(text)
    assert [(e.line, e.count) for e in found] == [(1, 99999999999), (3, 99999999999)]
    assert check(text, error(1, "a"), error(1, "a")) == [
        'expected error "a" was not produced 99999999997 more times',
        'expected note "b" was not produced 99999999999 times',
    ]


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_a_line_feed_ends_a_line(character):
    text = f"a{character}b{character}c\r\nx // expected-error {{{{bad}}}}\r\n"
    assert check(text, error(2, "bad")) == []
    text = f"a{character}b\nx // expected-error {{{{bad}}}}\n"
    (problem,) = verify([], text, "a.mlir", only_expected=False)
    assert (problem.line, problem.source_line) == (2, "x // expected-error {{bad}}")


def test_all_kinds_and_counts():
    text = "// expected-warning 2 {{w}} expected-remark @+3 {{r}} expected-note {{n}}"
    assert [(e.kind, e.line, e.count) for e in expectations(text)] == [
        ("warning", 1, 2),
        ("remark", 4, 1),
        ("note", 1, 1),
    ]


def test_braces_in_the_text():
    (one,) = expectations("// expected-error {{#a<{x = {y}}>}}")
    assert one.text == "#a<{x = {y}}>"


def test_regular_expressions_stand_in_braces():
    (one,) = expectations("// expected-error-re {{a.b {{[0-9]+}} c{{$}}}}")
    assert one.accepts("a.b 12 c")
    assert not one.accepts("axb 12 c")
    assert not one.accepts("a.b 12 cd")


def test_regular_expressions_reach_over_lines():
    (one,) = expectations("// expected-error-re {{a{{.*}}b}}")
    assert one.accepts("a\nb")


def test_a_broken_regular_expression_is_told():
    (said,) = check("// expected-error-re {{a {{(}} b}}")
    assert said.startswith("'a {{(}} b' has an invalid regular expression")


def test_a_regular_expression_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr("triton_ext.tools.expectations._SECONDS", 0.2)
    text = "// expected-error-re @+1 {{{{(a+)+$}}}}\nx"
    before = signal.getsignal(signal.SIGALRM)
    (said,) = check(text, error(2, "a" * 40 + "b"))
    assert said == "the regular expressions of this file take longer than 5 s"
    assert signal.getsignal(signal.SIGALRM) is before
    assert check(text, error(2, "a" * 40)) == []


def test_regular_expressions_of_a_file_share_their_time(monkeypatch):
    monkeypatch.setattr("triton_ext.tools.expectations._SECONDS", 1.0)
    # Each takes a part of that time, and fails.
    text = "".join("// expected-error-re @1 {{{{(a+)+$}}}}\n" for _ in range(1000))
    text = text.replace("@1", "@+0")
    diagnostics = [error(line, "a" * 20 + "b") for line in range(1, 1001)]
    start = time.monotonic()
    (said,) = check(text, *diagnostics)
    assert said == "the regular expressions of this file take longer than 5 s"
    assert time.monotonic() - start < 30


def test_many_designators_on_a_line_take_no_time():
    count = 100_000
    text = "// " + "expected-note {{}}" * count
    assert len(expectations(text)) == count
    (problem,) = verify([], "// x " + "expected-a" * count, "a.mlir", only_expected=True) or [None]
    assert problem is None


@pytest.mark.parametrize("pattern", ["a{99999999999}b", "(" * 5000])
def test_a_regular_expression_that_is_too_large_is_told(pattern):
    (said,) = check(f"// expected-error-re {{{{a {{{{{pattern}}}}}}}}}")
    assert "has an invalid regular expression" in said


def test_equal_is_silent():
    text = "// expected-error @+1 {{bad}}\nx"
    assert check(text, error(2, "very bad thing")) == []


@pytest.mark.parametrize(
    "reported",
    [
        error(1, "very bad thing"),
        error(2, "good"),
        error(2, "bad", severity="warning"),
        error(2, "bad", filename="b.mlir"),
    ],
)
def test_another_place_text_kind_or_file_is_both_missing_and_unexpected(reported):
    said = check("// expected-error @+1 {{bad}}\nx", reported)
    assert said == [
        f"unexpected {reported.severity}: {reported.message}",
        'expected error "bad" was not produced',
    ]


def test_each_designator_counts_once():
    text = "// expected-error @+1 {{bad}}\nx"
    assert check(text, error(2, "bad"), error(2, "bad")) == ["unexpected error: bad"]
    assert check(text.replace("{{", "2 {{"), error(2, "bad"), error(2, "bad")) == []


def test_notes_with_a_place_have_to_be_expected():
    text = "// expected-error @+1 {{bad}}\nx"
    assert check(text, error(2, "bad", error(1, "here", severity="note"))) == [
        "unexpected note: here"
    ]
    text += " // expected-note @-1 {{here}}"
    assert check(text, error(2, "bad", error(1, "here", severity="note"))) == []


def test_notes_without_a_place_may_be_expected():
    note = Diagnostic(severity="note", message="did you mean y?")
    text = "// expected-error @+1 {{bad}}\nx"
    assert check(text, error(2, "bad", note)) == []
    assert check(text + " // expected-note {{did you mean}}", error(2, "bad", note)) == []


def test_only_expected():
    text = "// expected-error @+1 {{bad}}\nx"
    assert check(text, error(2, "bad"), error(1, "other"), only_expected=True) == []
    assert check(text, error(1, "other"), only_expected=True) == [
        'expected error "bad" was not produced'
    ]


def test_a_diagnostic_without_a_place():
    assert (
        check("// expected-error @unknown {{bad}}", Diagnostic(severity="error", message="bad"))
        == []
    )


def test_a_pattern_is_compiled_once_and_without_warnings():
    text = "// expected-error-re@below 2 {{ {{[[a]--b]}} }}\nx"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (one,) = expectations(text)
        assert check(text, error(2, " a--b] "), error(2, " no "))[-1].endswith(" was not produced")
    assert one.pattern.pattern == r"\ [[a]--b]\ "
    assert said == []
