"""Texts of modules: comments, locations, aliases, parts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_helpers import CORPUS, NO_CORPUS
from triton_ext import strings
from triton_ext.errors import ParseError, UnsupportedError
from triton_ext.ir import parse
from triton_ext.tools import ir_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t.a loc(#loc1)\n#loc1 = loc(unknown)\n", "t.a\n"),
        ('t.a loc("x"(callsite("a(":1:2 at #loc2))) // c\n', "t.a // c\n"),
        ('t.a {s = "loc(x)"} : i32\n', 't.a {s = "loc(x)"} : i32\n'),
        ("t.a {where = loc(unknown)} loc(unknown)\n", "t.a {where = loc(unknown)}\n"),
        ("t.f(%a: i32 loc(#loc), %b: i32 loc(#loc))\n", "t.f(%a: i32, %b: i32)\n"),
        ("t.alloc(%x)\n", "t.alloc(%x)\n"),
        ("t.a // loc(unknown)\n", "t.a // loc(unknown)\n"),
    ],
)
def test_without_locations(text, expected):
    assert ir_text.without_locations(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  %0 = t.a %x \n      : i32 -> i32\n  t.b\n", "  %0 = t.a %x : i32 -> i32\n  t.b\n"),
        ("  %0 = t.a %x : i32\n    -> i32\n", "  %0 = t.a %x : i32 -> i32\n"),
        ("^bb0:\n  t.a\n", "^bb0:\n  t.a\n"),
        ("  t.a {\n  } : i32\n", "  t.a {\n  } : i32\n"),
        ('  t.a "\\0A : "\n', '  t.a "\\0A : "\n'),
    ],
)
def test_types_on_a_line_of_their_own(text, expected):
    assert ir_text.with_types_in_line(text) == expected


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x85", "\u2028"])
def test_a_comment_ends_at_a_line_feed_only(character):
    text = f"t.a // one{character}two\n// three{character}four\nt.b\n"
    assert ir_text.without_comments(text) == "t.a\nt.b\n"


def test_names_of_another_text():
    text = 'module {\n  %row = f.a %x, "%q" loc(#loc1) // %c\n  f.b %row#0 loc("%row")\n}\n'
    other = 'module {\n  %0 = f.a %arg0, "%q"\n  f.b %0#0\n}\n'
    named = 'module {\n  %0 = f.a %arg0, "%q" loc(#loc1) // %c\n  f.b %0#0 loc("%row")\n}\n'
    assert ir_text.with_names_of(text, other) == named
    with pytest.raises(UnsupportedError, match=r"3 mentions of values .* and 2 without: expected"):
        ir_text.with_names_of(text, other.replace("%arg0", ""))


def test_aliases_are_written_out_in_each_other():
    text = (
        "#b = #ttg.blocked<{a = 1}>\n"
        "#s = #ttg.slice<{parent = #b}>\n"
        '#loc1 = loc("a.py":1:2)\n'
        't.a {n = "#b", x = #s} : tensor<1xi32, #b> loc(callsite(#loc1 at #loc1))\n'
        "t.b %r#0 : !unknown<#other> loc(#loc1)\n"
    ).replace("t.b %r#0", "t.b")
    assert ir_text.expand_aliases(parse(text)) == (
        't.a {n = "#b", x = #ttg.slice<{parent = #ttg.blocked<{a = 1}>}>}'
        " : tensor<1xi32, #ttg.blocked<{a = 1}>>"
        ' loc(callsite("a.py":1:2 at "a.py":1:2))\n'
        't.b : !unknown<#other> loc("a.py":1:2)\n'
    )


def test_an_alias_of_itself_ends():
    assert "#a" in ir_text.expand_aliases(parse("#a = #t.x<#a>\nt.a #a\n"))


def test_aliases_of_each_other_end():
    text = ir_text.expand_aliases(parse("#a = #t.x<#b>\n#b = #t.y<#a>\nt.a #a\n"))
    assert text == "t.a #t.x<#t.y<#a>>\n"


def test_a_deep_chain_of_aliases_is_written_out():
    depth = 3000
    lines = [f"#a{i} = #t.x<#a{i - 1}>" for i in range(depth, 0, -1)]
    module = parse("\n".join([*lines, "#a0 = #t.z", f"t.a #a{depth}", ""]))
    expected = "t.a " + "#t.x<" * depth + "#t.z" + ">" * depth + "\n"
    assert ir_text.expand_aliases(module) == expected


def test_aliases_that_double_are_refused_at_their_place():
    lines = [f"#a{i} = #t.x<#a{i - 1}, #a{i - 1}>" for i in range(1, 60)]
    module = parse("\n".join(["#a0 = #t.z", *lines, "t.a #a59", ""]), "in.mlir")
    with pytest.raises(ParseError, match="aliases written out take more than") as caught:
        ir_text.expand_aliases(module)
    error = caught.value
    assert (error.filename, error.column) == ("in.mlir", 1)
    assert 15 < error.line < 30
    assert error.source_line == lines[error.line - 2]


def test_the_text_is_gone_through_once(monkeypatch):
    """Counts searches instead of seconds: their number grows with the text, not its square."""
    count = 4000
    lines = [f"#a{i} = #t.x<{i}>" for i in range(count)]
    module = parse("\n".join([*lines, *(f"t.a #a{i}" for i in range(count)), ""]))
    searched = 0
    whole = len(str(module))

    class Counting:
        def __init__(self, pattern):
            self.pattern = pattern

        def finditer(self, text):
            nonlocal searched
            searched += len(text)
            return self.pattern.finditer(text)

    monkeypatch.setattr(ir_text, "_ALIAS", Counting(ir_text._ALIAS))
    monkeypatch.setattr(ir_text.re, "compile", lambda *a: pytest.fail("a pattern for each alias"))
    text = ir_text.expand_aliases(module)
    assert text == "".join(f"t.a #t.x<{i}>\n" for i in range(count))
    assert searched < 4 * whole


@given(st.lists(st.sampled_from(["a\n", "\n", " // -----\n"]), max_size=6), st.integers(0, 3))
def test_split_keeps_every_line_and_its_number(lines, parts):
    text = "// -----\n".join(["".join(lines)] * (parts + 1))
    found = ir_text.split(text, "// -----")
    assert len(found) == parts + 1
    for first_line, part in found:
        assert text.splitlines(keepends=True)[first_line:][: len(part.splitlines())] == (
            part.splitlines(keepends=True)
        )


def test_a_file_of_very_many_parts_is_split_in_linear_time():
    count = 100_000
    before = time.process_time()
    found = ir_text.split("tt.func @f()\n// -----\n" * count, "// -----")
    assert (len(found), found[-1]) == (count + 1, (2 * count, ""))
    # 0.05 s on an idle core; to count all lines before each part takes a minute.
    assert time.process_time() - before < 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\r\nb\n", "a\nb\n"),
        ("a\rb\n", "a b\n"),
        ("a // c\rb // d\r\n", "a      b // d\n"),
        ('"a\rb // c\rd"\n', '"a\rb // c\rd"\n'),
        ("// \r// \r\n", "    // \n"),
    ],
)
def test_carriage_returns(text, wanted):
    assert strings.without_carriage_returns(text) == wanted


def corpus_sample():
    return sorted(CORPUS.glob("*/cuda-90/*.ttgir"))[::12]


@pytest.mark.skipif(not corpus_sample(), reason=NO_CORPUS)
def test_the_corpus_without_locations_and_aliases_is_the_same_module():
    for path in corpus_sample():
        module = parse(path.read_text(), path.name)
        bare = ir_text.without_locations(str(module))
        assert "loc(" not in bare
        again = parse(bare, path.name)
        expanded = parse(ir_text.expand_aliases(module), path.name)
        assert not expanded.aliases
        names = [op.name for op in module.walk()]
        assert names == [op.name for op in again.walk()] == [op.name for op in expanded.walk()]
        before = [op.loc.resolve() if op.loc else None for op in module.walk()]
        assert before == [op.loc.resolve() if op.loc else None for op in expanded.walk()]


def test_normalized_text():
    """Terminators that hand nothing on are not printed, properties stand in front of regions."""
    module = parse(
        """tt.func @f(%c: i1, %x: tensor<4xf32>) {
  scf.if %c {
    scf.yield
  }
  scf.while : () -> () {
    scf.condition(%c)
  } do {
    scf.yield
  }
  %r = "tt.reduce"(%x) ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    tt.reduce.return %s : f32
  }) {axis = 0 : i32} : (tensor<4xf32>) -> f32
  tt.return
}
"""
    )
    ir_text.normalize(module)
    text = str(module)
    assert text.count("scf.yield") == 1
    assert '%r = "tt.reduce"(%x) <{axis = 0 : i32}> ({\n' in text
    assert "\n  }) : (tensor<4xf32>) -> f32\n" in text
    once = str(module)
    ir_text.normalize(module)
    assert str(module) == once


def test_empty_lines_go_with_comments():
    """What is left has no empty lines, those of the input included."""
    assert ir_text.without_comments("a\n\n  // b\nc // d\n\n") == "a\nc\n"
