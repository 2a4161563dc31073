"""Every text prints as it was read, and its parts are what LLVM's printed form says they are."""

from __future__ import annotations

import pathlib

import pytest
from llvm_helpers import FIXTURES, corpus_files, read
from triton_ext.llvm_ir import Call, Entity, parse

FORMS = read("forms.ll")


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
@pytest.mark.parametrize("end", ["", "\n", "\n\n; end\n", "\r\n", "\n}"[:1]])
def test_fixtures_print_as_read(path, end):
    text = path.read_text().rstrip() + end
    assert str(parse(text)) == text
    crlf = text.replace("\r\n", "\n").replace("\n", "\r\n")
    assert str(parse(crlf)) == crlf


@pytest.mark.parametrize("text", ["", "\n", "; nothing", "@a = global i32 0", "\n\n; a\n\n"])
def test_small_texts(text):
    module = parse(text)
    assert str(module) == text
    assert module.functions == ()


def test_entities():
    module = parse(FORMS, "forms.ll")
    names = [(one.keyword, one.name) for one in module.entities if isinstance(one, Entity)]
    assert ("declare", "@marker") in names
    assert ("declare", '@"a b"') in names
    assert ("", "@table") in names
    assert ("", "!10") in names
    assert [one.name for one in module.functions] == ["@kernel", "@small"]
    assert [one.name for one in module.declarations] == [
        "@marker",
        '@"a b"',
        "@llvm.nvvm.elect.sync",
    ]
    # A list over several lines is one entity.
    (table,) = (one for one in module.entities if isinstance(one, Entity) and one.name == "@table")
    assert table.text.count("\n") == 4


def test_lines_are_those_of_the_text():
    lines = FORMS.split("\n")
    module = parse(FORMS)
    for one in module.entities:
        assert lines[one.line - 1] == str(one).split("\n")[0]
    for function in module.functions:
        for instruction in function.instructions():
            assert lines[instruction.line - 1] == instruction.text.split("\n")[0]


def test_blocks_and_instructions():
    kernel, calls = parse(FORMS).functions[0], ["call"] * 3
    assert [block.label for block in kernel.blocks] == ["", "%6", '%"a label"', "%default"]
    assert [[one.opcode for one in block.instructions] for block in kernel.blocks] == [
        ["call", "call", "extractvalue", "call", "switch"],
        ["add", "br"],
        ["phi", "phi", "select", "#dbg_value", "freeze", "or", "getelementptr", *calls, "br"],
        ["ret"],
    ]
    results = [one.result for one in kernel.instructions()]
    assert results[:5] == ["%4", "%5", '%"a value"', "", ""]
    assert kernel.blocks[3].tail == "; behind the last instruction\n"
    assert kernel.blocks[3].instructions[0].lead.count("\n") == 2
    small = parse(FORMS).functions[1]
    assert [block.label for block in small.blocks] == ["%entry"]


def test_users_and_definitions():
    kernel = parse(FORMS).functions[0]
    # Not the comment that names %5, nor what is behind a longer name.
    assert [one.result or one.opcode for one in kernel.users("%4")] == ["call", "%7", "%8"]
    assert [one.result for one in kernel.users("%5")] == ['%"a value"']
    assert [one.opcode for one in kernel.users('%"a value"')] == ["call"]
    assert kernel.definition("%10").opcode == "select"
    assert kernel.definition("%1") is None


@pytest.mark.slow
def test_what_this_triton_prints(printed):
    """Kernels of every kind, compiled for every target that this Triton compiles them for."""
    assert printed
    for name, text in printed.items():
        module = parse(text, name)
        assert str(module) == text, name
        assert module.functions, name
        check_meaning(module, name)


def check_meaning(module, name):
    """Blocks end where control goes elsewhere, and every call is understood."""
    for function in module.functions:
        for block in function.blocks:
            opcodes = [one.opcode for one in block.instructions]
            assert opcodes[-1] in ("br", "ret", "switch", "unreachable"), (name, block)
            assert not {"br", "ret", "switch"} & set(opcodes[:-1]), (name, block)
        for one in function.instructions():
            assert one.opcode != "call" or Call.match(one) is not None, (name, one.text)


def test_corpus():
    files = corpus_files()
    if not files:
        pytest.skip("no corpus with LLVM IR; TRITON_EXT_CORPUS names another folder")
    for path in files:
        text = pathlib.Path(path).read_text()
        module = parse(text, str(path))
        assert str(module) == text, path
        check_meaning(module, str(path))
