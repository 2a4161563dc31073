"""Edits change what they are made on and nothing else."""

from __future__ import annotations

import difflib

import pytest
from llvm_helpers import read
from triton_ext.llvm_ir import parse

FORMS = read("forms.ll")


def changed(module):
    """The lines that were taken out and put in."""
    pairs = difflib.ndiff(FORMS.split("\n"), str(module).split("\n"))
    return [line for line in pairs if line[0] in "+-"]


@pytest.fixture
def module():
    return parse(FORMS, "forms.ll")


@pytest.fixture
def kernel(module):
    return module.functions[0]


def test_replace(module, kernel):
    add = kernel.definition("%7")
    (at,) = add.uses("%4")
    add.replace(at, at + 2, "%1")
    assert changed(module) == ["-   %7 = add nuw nsw i32 %4, 64", "+   %7 = add nuw nsw i32 %1, 64"]
    assert kernel.is_changed
    assert not module.functions[1].is_changed


def test_insert(module, kernel):
    freeze = kernel.definition("%11")
    first = freeze.insert_before("%a = add i32 %10, 1")
    freeze.insert_after("%b = add i32 %10, 2")
    assert changed(module) == ["+   %a = add i32 %10, 1", "+   %b = add i32 %10, 2"]
    assert (first.result, first.opcode, first.line) == ("%a", "add", 0)
    order = [one.result for one in kernel.blocks[2].instructions]
    assert order[order.index("%a") :][:3] == ["%a", "%11", "%b"]


def test_erase_with_the_comments_in_front_of_it(module, kernel):
    kernel.definition("%4").erase()
    assert [line[:30] for line in changed(module)] == [
        "-   ; the entry block has no l",
        "-   %4 = call i32 @marker(i32 ",
    ]
    assert kernel.definition("%4") is None


def test_erased_instructions_have_no_place(kernel):
    record = kernel.users("%10")[0]
    record.erase()
    with pytest.raises(ValueError, match="was erased before: #dbg_value"):
        record.erase()
    with pytest.raises(ValueError, match="was erased: #dbg_value"):
        record.insert_after("ret void")


def test_fresh_names_are_new(module, kernel):
    first, second = kernel.fresh_name(), kernel.fresh_name()
    assert first != second
    assert first not in FORMS
    taken = parse("define void @f(i32 %ext.1, i32 %_ext.2) {\n  ret void\n}\n").functions[0]
    assert taken.fresh_name() == "%__ext.1"


def test_a_removed_declaration_takes_its_blank_line_along(module):
    (elect,) = (one for one in module.declarations if "elect" in one.name)
    module.remove(elect)
    gone = ["- ", "- declare { i32, i1 } @llvm.nvvm.elect.sync(i32) #1"]
    assert sorted(changed(module)) == gone
    (marker,) = (one for one in module.declarations if one.name == "@marker")
    module.remove(marker)
    assert "@marker(i32, i32" not in str(module)
    assert 'declare void @"a b"' in str(module)
