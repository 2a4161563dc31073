"""Texts of modules: comments, locations, aliases, parts."""

from __future__ import annotations

import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_ext.ir import parse
from triton_ext.tools import ir_text

CORPUS = pathlib.Path(
    os.environ.get("TRITON_EXT_CORPUS")
    or pathlib.Path(__file__).parents[2].parent / "shared" / "corpus"
)


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


@given(st.lists(st.sampled_from(["a\n", "\n", " // -----\n"]), max_size=6), st.integers(0, 3))
def test_split_keeps_every_line_and_its_number(lines, parts):
    text = "// -----\n".join(["".join(lines)] * (parts + 1))
    found = ir_text.split(text, "// -----")
    assert len(found) == parts + 1
    for first_line, part in found:
        assert text.splitlines(keepends=True)[first_line:][: len(part.splitlines())] == (
            part.splitlines(keepends=True)
        )


def corpus_sample():
    return sorted(CORPUS.glob("*/cuda-90/*.ttgir"))[::12]


@pytest.mark.skipif(not corpus_sample(), reason=f"no corpus in {CORPUS}")
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
