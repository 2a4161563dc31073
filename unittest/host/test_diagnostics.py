"""What Triton prints to file descriptor 2, read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_ext.errors import ParseError
from triton_ext.host.diagnostics import Diagnostic, of_error, read_printed

FAILED_PASS = """\
a.mlir:5:7: remark: tried hard
    tt.return %r : i32
      ^
a.mlir:5:5: error: failed to legalize operation 'tt.return': "tt.return"(%4) : (i32) -> ()
    tt.return %r : i32
    ^
a.mlir:4:1: note: see here
\ttt.other
^
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @f() {
    tt.return
  }
}

{-#
  external_resources: {
    mlir_reproducer: {
      pipeline: "builtin.module(a)",
    }
  }
#-}
a.mlir:1:1: error: Failures have been detected while processing an MLIR pass pipeline
module attributes {"ttg.num-warps" = 4 : i32} {
^
a.mlir:1:1: note: Pipeline failed while executing [`A` on 'builtin.module' operation]: reproducer
"""


def test_a_failed_pass():
    remark, error = read_printed(FAILED_PASS).diagnostics
    assert remark == Diagnostic(
        severity="remark",
        message="tried hard",
        filename="a.mlir",
        line=5,
        column=7,
        source_line="    tt.return %r : i32",
    )
    assert error.message.endswith('"tt.return"(%4) : (i32) -> ()')
    assert (error.line, error.column) == (5, 5)
    (note,) = error.notes
    assert (note.message, note.line, note.source_line) == ("see here", 4, "\ttt.other")
    assert "mlir_reproducer" in read_printed(FAILED_PASS).other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('loc("a.mlir":4:10): error: bad\n', ("error", "a.mlir", 4, 10, "bad")),
        (
            'loc(callsite("a.mlir":4:10 at "b.mlir":7:1)): error: bad\n',
            ("error", "a.mlir", 4, 10, "bad"),
        ),
        ("<unknown>:0: error: bad\n", ("error", "", 0, 0, "bad")),
        ("loc(unknown): warning: bad\n", ("warning", "", 0, 0, "bad")),
        ("error: bad\n", ("error", "", 0, 0, "bad")),
        ("C:\\x y.mlir:1:2: error: two\nlines\n", ("error", "C:\\x y.mlir", 1, 2, "two\nlines")),
        ("a.mlir:1:1: error: x: error: y\n", ("error", "a.mlir", 1, 1, "x: error: y")),
    ],
)
def test_forms(text, expected):
    (found,) = read_printed(text).diagnostics
    actual = (found.severity, found.filename, found.line, found.column, found.message)
    assert actual == expected


def test_other_text_is_kept():
    printed = read_printed("// -----// IR Dump //----- //\nmodule {\n}\n")
    assert printed.diagnostics == ()
    assert printed.other == "// -----// IR Dump //----- //\nmodule {\n}\n"


def test_a_source_line_that_looks_like_a_module():
    text = "a.mlir:1:1: error: bad\nmodule attributes {} {\n^\nmodule {\n}\n"
    printed = read_printed(text)
    assert printed.diagnostics[0].source_line == "module attributes {} {"
    assert printed.diagnostics[0].message == "bad"
    assert printed.other == "module {\n}\n"


def test_last_words():
    text = (
        "a.mlir:1:1: error: bad\n"
        "python3: /root/.triton/llvm/include/A.h:180: static T f(int *, Args &&...) [T = A]: "
        "Assertion `succeeded(g(x, y...))' failed.\n"
        "a.mlir:1:1: error: A signal was caught while processing the MLIR module:reproducer\n"
    )
    printed = read_printed(text)
    assert [d.message for d in printed.diagnostics] == ["bad"]
    assert printed.last_words == "Assertion `succeeded(g(x, y...))' failed. (A.h:180)"
    assert read_printed("LLVM ERROR: no\n").last_words == "LLVM ERROR: no"
    assert read_printed("a.mlir:1:1: error: bad\n").last_words == ""


def test_prints_like_a_compiler():
    text = "a.mlir:3:2: error: bad\n\tx\n\t^\nb.mlir:1:1: note: see\nnote: more"
    error = ParseError(
        "bad", filename="a.mlir", line=3, column=2, source_line="\tx", notes=("see", "more")
    )
    assert str(of_error(error)) == str(error)
    printed = read_printed(text + "\n").diagnostics[0]
    assert str(printed) == text


PLACED = st.builds(
    Diagnostic,
    severity=st.sampled_from(["error", "warning", "remark"]),
    message=st.text("abc' :(){}%", min_size=1).map(str.strip).filter(bool),
    filename=st.sampled_from(["a.mlir", "/tmp/x-1/b.mlir", "<stdin>"]),
    line=st.integers(1, 999),
    column=st.integers(1, 20),
    source_line=st.text("abcdef ", min_size=20, max_size=30) | st.none(),
)


@given(st.lists(PLACED, max_size=4))
def test_what_is_printed_is_read_again(diagnostics):
    text = "".join(f"{diagnostic}\n" for diagnostic in diagnostics)
    assert list(read_printed(text).diagnostics) == diagnostics


@given(st.text('errornote: ^\n{}module#=-"1(loc)', max_size=80))
def test_any_text_can_be_read(text):
    read_printed(text)
