"""What is read from the headers of functions."""

from __future__ import annotations

import pytest
from triton_ext.ir import parse
from triton_ext.ir.functions import visibility_of


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("tt.func @f() { tt.return }", "public"),
        ("tt.func public @f() { tt.return }", "public"),
        ("tt.func private @f() attributes {noinline = true} { tt.return }", "private"),
        ('tt.func @"private f"() { tt.return }', "public"),
        ('tt.func @f(%private: i32 loc("private ")) { tt.return }', "public"),
        (
            '"tt.func"() <{sym_name = "f", function_type = () -> (), sym_visibility = "private"}> '
            '({ "tt.return"() : () -> () }) : () -> ()',
            "private",
        ),
    ],
)
def test_visibility(function, expected):
    (op,) = [op for op in parse(f"module {{ {function} }}").walk() if op.name == "tt.func"]
    assert visibility_of(op) == expected
