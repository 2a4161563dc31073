"""What is refused, and where the error stands."""

from __future__ import annotations

import pytest
from triton_ext.errors import ParseError
from triton_ext.llvm_ir import Call, parse
from triton_ext.llvm_ir.lexer import tokenize

BAD = {
    'define void @f() {\n  ret void ; "\n}\n@a = global "b\n': (4, 13, "this string has no end"),
    "define void @f() {\n  ret void\n": (1, 1, "the function @f has no end"),
    "define void @f()\n": (1, 1, "expected a body in braces behind 'define'"),
    "define void @f()\n}\n": (1, 1, "expected a body in braces behind 'define'"),
    "define void {\n}\n": (1, 1, "expected a function with a name behind 'define'"),
    "define void @f() {\n  switch i32 %0, label %1 [\n    i32 1, label %2\n}\n": (
        4,
        1,
        "a bracket closes what was not opened",
    ),
    "define void @f() {\n  ret void)\n}\n": (2, 3, "a bracket closes what was not opened"),
    "@a = global [2 x i8] [\n": (1, 1, "the '[' of this line is never closed"),
    "}\n": (1, 1, "a bracket closes what was not opened"),
    "define void @f() {\n  %1 = add i32 1, 2 %2 = add i32 1, 2\n}\n": (
        2,
        3,
        "expected one instruction on a line, found two",
    ),
    "define void @f() {\nentry: ret void\n}\n": (
        2,
        1,
        "expected a line of its own for what is behind a label",
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_malformed_modules(text):
    line, column, message = BAD[text]
    with pytest.raises(ParseError) as caught:
        parse(text, "bad.ll")
    error = caught.value
    assert (error.filename, error.line, error.column) == ("bad.ll", line, column)
    assert message in error.message
    assert error.source_line == text.split("\n")[line - 1]
    assert str(error).startswith(f"bad.ll:{line}:{column}: error: ")


def test_a_character_that_begins_no_token():
    module = parse("define void @f() {\n  call void @g(i32 §)\n}\n")
    with pytest.raises(ParseError, match="expected a token of LLVM IR, found '§'") as caught:
        Call.match(next(module.functions[0].instructions()))
    assert (caught.value.line, caught.value.column) == (2, 20)


def test_a_string_without_end_is_no_token():
    with pytest.raises(ParseError, match="this string has no end"):
        tokenize('call "a')
