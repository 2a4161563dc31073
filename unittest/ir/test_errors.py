"""Malformed texts: the message, the position, and the caret."""

from __future__ import annotations

import pytest
from triton_ext.errors import ParseError
from triton_ext.ir import parse

CASES = {
    # names
    "undefined": ("t.a\nt.b %x, %y\n", 2, 5, "use of undeclared SSA value '%x'"),
    "undefined-in-function": (
        "tt.func @f() {\n  t.a %x\n}\n%x = t.b\n",
        2,
        7,
        "use of undeclared SSA value '%x'",
    ),
    "partition-cannot-see-out": (
        "%x = t.a\nttg.warp_specialize()\ndefault {\n  t.b %x\n}\npartition0() num_warps(1) {\n"
        "  t.c %x\n} : () -> ()\n",
        7,
        7,
        "use of undeclared SSA value '%x'",
    ),
    "gone-behind-its-region": (
        "scf.if %c {\n  %x = t.a\n}\nt.b %x\n%c = t.c\n",
        4,
        5,
        "use of undeclared SSA value '%x'",
    ),
    "redefined": ("%x = t.a\n%y = t.a\n%x = t.b\n", 3, 1, "redefinition of SSA value '%x'"),
    "redefined-inside": (
        "%x = t.a\nscf.if %x {\n  %x = t.b\n}\n",
        3,
        3,
        "redefinition of SSA value '%x'",
    ),
    "redefined-argument": (
        "tt.func @f(%x: i32, %x: i32) {\n}\n",
        1,
        21,
        "redefinition of SSA value '%x'",
    ),
    "redefined-group": ("%x = t.a\n%x:2 = t.b\n", 2, 1, "redefinition of SSA value '%x'"),
    "no-such-result": ("%x:2 = t.a\nt.b %x#2\n", 2, 5, "'%x' has no result number 2"),
    "no-such-result-of-one": ("%x = t.a\nt.b %x#1\n", 2, 5, "'%x' has no result number 1"),
    "no-results-in-group": (
        "%x:0 = t.a\n",
        1,
        1,
        "expected at least one result in a group, found 0",
    ),
    "too-many-results": ("%x:99999 = t.a\n", 1, 4, "expected at most 2000 results, found 99999"),
    "argument-without-region": (
        "other.op (%x = %y)\n%y = t.a\n",
        1,
        11,
        "use of undeclared SSA value '%x'",
    ),
    "bad-value-name": ("t.a %\n", 1, 5, "expected the name of an SSA value behind '%'"),
    "result-list": ("%a, 1 = t.a\n", 1, 5, "expected the name of a result"),
    "no-equals": (
        "%a t.a\n",
        1,
        1,
        "expected an operation, found '%a' that is not followed by '='",
    ),
    "nothing-behind-equals": ("%a = \n", 2, 1, "expected an operation, found the end"),
    "results-twice": (
        "%a = %b = t.a\n",
        1,
        6,
        "expected the name of an operation, found '%b'",
    ),
    # blocks
    "undefined-block": (
        "tt.func @f() {\n  cf.br ^bb7\n}\n",
        2,
        9,
        "reference to an undefined block '^bb7'",
    ),
    "block-of-another-region": (
        "tt.func @f() {\n  t.a {\n    cf.br ^bb1\n  ^x:\n    t.b\n  }\n^bb1:\n}\n",
        3,
        11,
        "reference to an undefined block '^bb1'",
    ),
    "redefined-block": (
        "tt.func @f() {\n^a:\n  t.b\n^a:\n}\n",
        4,
        1,
        "redefinition of block '^a'",
    ),
    "label-without-colon": (
        "tt.func @f() {\n^a(%x: i32)\n  t.b\n}\n",
        3,
        3,
        "expected ':' behind block '^a', found 't'",
    ),
    "label-argument-without-type": (
        "tt.func @f() {\n^a(%x):\n}\n",
        2,
        6,
        "expected ':' and a type behind '%x'",
    ),
    "label-argument-list": (
        "tt.func @f() {\n^a(%x: i32 %y: i32):\n}\n",
        2,
        12,
        "expected ',' or ')', found '%'",
    ),
    "label-argument": (
        "tt.func @f() {\n^a(1):\n}\n",
        2,
        4,
        "expected the name of a block argument",
    ),
    "argument-type": ("tt.func @f(%x: ) {\n}\n", 1, 16, "expected a type, found ')'"),
    "bad-block-name": (
        "tt.func @f() {\n  t.b ^\n}\n",
        2,
        7,
        "expected the name of a block behind '^'",
    ),
    "label-at-the-top": ("^bb0:\n", 1, 1, "expected an operation, found '^'"),
    "block-in-parentheses": (
        "tt.func @f() {\n  t.b (^a)\n^a:\n}\n",
        2,
        8,
        "unexpected block name '^a'",
    ),
    # brackets and strings
    "region-not-closed": (
        "module {\n  t.a\n",
        1,
        8,
        "expected '}' to match this '{', found the end",
    ),
    "parenthesis-not-closed": ("t.a (%x\n", 1, 5, "expected ')' to match this '(', found the end"),
    "type-not-closed": ("t.a : !t<a\n", 1, 9, "expected '>' to match this '<', found the end"),
    "wrong-closer": ("t.a (1]\n", 1, 7, "expected ')', found ']'"),
    "wrong-closer-in-type": ("t.a : !t<[1}>\n", 1, 12, "expected ']', found '}'"),
    "brace-in-parentheses": ("module {\n  t.a (1\n}\n", 3, 1, "expected ')', found '}'"),
    "closes-nothing": ("t.a )\n", 1, 5, "unexpected ')' that closes nothing"),
    "closing-angle": ("t.a >\n", 1, 5, "unexpected '>' that closes nothing"),
    "brace-at-the-top": ("t.a\n}\n", 2, 1, "expected an operation, found '}'"),
    "string": ('t.a "x\n', 1, 5, "expected '\"' at the end of this string on the same line"),
    "string-in-type": (
        't.a : !t<"x>\n',
        1,
        10,
        "expected '\"' at the end of this string on the same line",
    ),
    "location-not-closed": (
        "t.a loc(#loc\n",
        1,
        8,
        "expected ')' to match this '(', found the end",
    ),
    # top level
    "no-dialect": ("nonsense\n", 1, 1, "expected an operation, found 'nonsense'"),
    "number": ("42\n", 1, 1, "expected an operation, found '4'"),
    "alias-without-equals": ("#a\n", 1, 1, "expected an alias definition, 'name = ...'"),
    "alias-without-text": ("#a = \n", 1, 6, "expected the value of alias '#a'"),
    "alias-twice": ("#a = 1\n#a = 2\n", 2, 1, "redefinition of alias '#a'"),
    "alias-brackets": ("#a = x)\n", 1, 7, "expected the end of the alias, found ')'"),
    "metadata": ("{-# a\n", 1, 1, "expected '#-}' to match this '{-#', found the end"),
    "alias-inside": ("module {\n#a = 1\n}\n", 2, 1, "expected an operation, found '#'"),
    "tab-before": ("module {\n\tt.a %x\n}\n", 2, 6, "use of undeclared SSA value '%x'"),
}


@pytest.mark.parametrize(("text", "line", "column", "message"), CASES.values(), ids=CASES.keys())
def test_position_and_message(text, line, column, message):
    with pytest.raises(ParseError) as caught:
        parse(text, "in.mlir")
    error = caught.value
    assert (error.message, error.line, error.column) == (message, line, column)
    lines = [*text.splitlines(), ""]
    assert error.source_line == lines[line - 1]
    printed = str(error).splitlines()
    assert printed[0] == f"in.mlir:{line}:{column}: error: {message}"
    assert printed[1] == lines[line - 1]
    assert printed[2].expandtabs(1) == " " * (column - 1) + "^"


def test_note_tells_what_was_open():
    with pytest.raises(ParseError) as caught:
        parse("t.a (1,\n  [2)\n", "in.mlir")
    assert str(caught.value) == (
        "in.mlir:2:5: error: expected ']', found ')'\n  [2)\n    ^\n"
        "note: to match this '[' at in.mlir:2:3"
    )


def test_regions_have_a_depth_limit():
    with pytest.raises(ParseError, match="nested more than 64 deep"):
        parse("t.a {\n" * 200 + "}\n" * 200)
    parse("t.a {\n" * 60 + "}\n" * 60)
