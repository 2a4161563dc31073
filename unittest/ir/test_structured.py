"""Structured edits: text, def-use chains, and the host's verifier."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ir_helpers import check_contract, fixture, named, value
from triton_ext.errors import VerifyError
from triton_ext.ir import (
    Module,
    Operation,
    Value,
    append_block_argument,
    append_captures,
    append_if_results,
    append_iter_args,
    append_while_args,
    parse,
)


@pytest.fixture
def control() -> Module:
    return parse(fixture("control.ttgir"), "control.ttgir")


@pytest.fixture
def specialized() -> Module:
    return parse(fixture("warp_specialize.ttgir"), "warp_specialize.ttgir")


class TestIf:
    def test_more_results(self, control):
        op = named(control, "scf.if")[0]
        i, flag = op.operands[0], value(control, "%flag")
        new = append_if_results(op, [flag, i], [value(control, "%n"), i])
        assert [(r.name, r.type) for r in new] == [("%5#2", "i32"), ("%5#3", "i1")]
        text = str(control)
        assert "%5:4 = scf.if %4 -> (tensor<128xf32, #blocked>, i32, i32, i1) {" in text
        assert "scf.yield %6, %i, %flag, %4 : tensor<128xf32, #blocked>, i32, i32, i1 loc" in text
        assert "scf.yield %x, %3, %n, %4 : tensor<128xf32, #blocked>, i32, i32, i1 loc" in text
        check_contract(control)

    def test_from_no_results_and_no_else(self, control):
        op = named(control, "scf.if")[1]
        n, flag = value(control, "%n"), value(control, "%flag")
        (new,) = append_if_results(op, [n], [flag])
        assert new.name == "%if"
        assert (
            "      %if = scf.if %0 -> (i32) {\n"
            '        tt.assert %0, "n must be \\22positive\\22 {here}, not %n" : i1 loc(#loc3)\n'
            "        scf.yield %n : i32 loc(#loc3)\n"
            "      } else {\n"
            "        scf.yield %flag : i32 loc(#loc3)\n"
            "      } loc(#loc3)\n"
        ) in str(control)
        check_contract(control)
        (other,) = append_if_results(op, [flag], [n])
        assert (new.name, other.name) == ("%if#0", "%if#1")
        assert "%if:2 = scf.if %0 -> (i32, i32) {" in str(control)
        check_contract(control)

    def test_a_single_result_gets_a_number_where_it_is_used(self):
        module = parse(
            "tt.func @f(%c: i1, %v: i32) {\n  %x = scf.if %c -> i32 {\n    scf.yield %v : i32\n"
            "  } else {\n    scf.yield %v : i32\n  }\n  t.use %x : i32\n}\n"
        )
        append_if_results(named(module, "scf.if")[0], [value(module, "%c")], [value(module, "%c")])
        text = str(module)
        assert "%x:2 = scf.if %c -> (i32, i1) {" in text
        assert "t.use %x#0 : i32" in text
        check_contract(module)

    def test_types_must_agree(self, control):
        op = named(control, "scf.if")[0]
        text = str(control)
        with pytest.raises(VerifyError, match="must have one type, found 'i32' and 'i1'") as caught:
            append_if_results(op, [value(control, "%n")], [value(control, "%true")])
        assert caught.value.line == 28
        with pytest.raises(VerifyError, match="found 1 and 0"):
            append_if_results(op, [value(control, "%n")], [])
        with pytest.raises(VerifyError, match=r"expected 'scf.if', found 'scf.for'"):
            append_if_results(named(control, "scf.for")[0], [], [])
        assert append_if_results(op, [], []) == ()
        assert str(control) == text


class TestFor:
    def test_more_iter_args(self, control):
        op = named(control, "scf.for")[0]
        ((arg, result), (other, _)) = append_iter_args(
            op, [value(control, "%flag"), value(control, "%true")]
        )
        assert (arg.name, arg.type, result.name, result.type) == ("%flag_0", "i32", "%2#1", "i32")
        text = str(control)
        assert (
            "%2:3 = scf.for %arg4 = %c0_i32 to %n step %c1_i32 iter_args(%acc = %1#0,"
            " %flag_0 = %flag, %true_0 = %true) -> (tensor<128xf32, #blocked>, i32, i1)  : i32 {"
        ) in text
        assert "scf.yield %3, %flag_0, %true_0 : tensor<128xf32, #blocked>, i32, i1 loc" in text
        assert "tt.store %p, %2#0 :" in text
        terminator = op.regions[0].blocks[0].terminator
        assert terminator.operands[1:] == (arg, other)
        terminator.set_operand(1, value(control, "%n"))
        assert "scf.yield %3, %n, %true_0" in str(control)
        check_contract(control)

    def test_from_none(self, control):
        op = named(control, "scf.for")[1]
        ((arg, result),) = append_iter_args(op, [value(control, "%true")])
        text = str(control)
        assert (
            "    %for = scf.for %i = %c0_i32 to %n step %1#1 iter_args(%true_0 = %true)"
            " -> (i1)  : i32 {\n"
        ) in text
        assert "      scf.yield %true_0 : i1 loc(#loc3)\n    } loc(#loc3)" in text
        assert arg.uses[0].op.name == "scf.yield"
        assert result.uses == ()
        check_contract(control)

    def test_index_loop_without_locations(self):
        module = parse("tt.func @f(%n: index) {\n  scf.for %i = %n to %n step %n {\n  }\n}\n")
        append_iter_args(named(module, "scf.for")[0], [value(module, "%n")])
        assert str(module) == (
            "tt.func @f(%n: index) {\n"
            "  %for = scf.for %i = %n to %n step %n iter_args(%n_0 = %n) -> (index) {\n"
            "    scf.yield %n_0 : index\n  }\n}\n"
        )
        check_contract(module)


class TestWhile:
    def test_more(self, control):
        op = named(control, "scf.while")[0]
        ((before, after, result),) = append_while_args(op, [value(control, "%flag")])
        text = str(control)
        assert (
            "%1:3 = scf.while (%x = %cst, %i = %c0_i32, %flag_0 = %flag) :"
            " (tensor<128xf32, #blocked>, i32, i32) -> (tensor<128xf32, #blocked>, i32, i32) {"
        ) in text
        assert "scf.condition(%3) %x, %i, %flag_0 : tensor<128xf32, #blocked>, i32, i32" in text
        assert "%i: i32 loc(callsite(#loc8 at #loc3)), %flag_1: i32 loc(unknown)):\n" in text
        assert "scf.yield %5#0, %5#1, %flag_1 : tensor<128xf32, #blocked>, i32, i32" in text
        assert (before.name, after.name, result.name) == ("%flag_0", "%flag_1", "%1#2")
        check_contract(control)

    def test_from_none(self):
        module = parse(
            "tt.func @f(%c: i1) {\n  scf.while : () -> () {\n    scf.condition(%c)\n  } do {\n"
            "    scf.yield\n  }\n}\n"
        )
        append_while_args(named(module, "scf.while")[0], [value(module, "%c")])
        assert str(module) == (
            "tt.func @f(%c: i1) {\n  %while = scf.while (%c_0 = %c) : (i1) -> (i1) {\n"
            "    scf.condition(%c) %c_0 : i1\n  } do {\n  ^bb0(%c_1: i1):\n"
            "    scf.yield %c_1 : i1\n  }\n}\n"
        )
        check_contract(module)


class TestCaptures:
    def test_more(self, specialized):
        op = named(specialized, "ttg.warp_specialize")[0]
        first, second = append_captures(op, [value(specialized, "%a_desc.shape.0")])
        text = str(specialized)
        assert "ttg.warp_specialize(%0, %1, %a_desc, %k, %a_desc.shape.0) attributes" in text
        assert text.count('%k_1: i32 loc("k"(#loc)), %a_desc.shape.0_0: i32 loc("a_desc"') == 1
        assert text.count('%k_1: i32 loc("k"(#loc)), %a_desc.shape.0_1: i32 loc("a_desc"') == 1
        assert "!tt.tensordesc<64x64xf16, #shared>, i32, i32) -> i32 loc(#loc)" in text
        assert first[0].owner is op.regions[1].blocks[0]
        assert second[0].type == "i32"
        check_contract(specialized)

    def test_from_none(self, specialized):
        op = named(specialized, "ttg.warp_specialize")[1]
        append_captures(op, [value(specialized, "%k"), value(specialized, "%true")])
        text = str(specialized)
        assert "    ttg.warp_specialize(%k, %true) attributes {requestedRegisters" in text
        assert 'partition0(%k_0: i32 loc("k"(#loc)), %true_0: i1 loc(#loc)) num_warps(1) {' in text
        assert "} : (i32, i1) -> () loc(#loc)" in text
        check_contract(specialized)

    def test_quoted_form_is_refused(self):
        module = parse('"ttg.warp_specialize"() ({\n}) : () -> ()\n', "f")
        with pytest.raises(VerifyError, match="in its generic form"):
            append_captures(module.body[0], [])


class TestBlockArguments:
    def test_from_none_and_more(self, control):
        blocks = control.body[0].regions[0].blocks
        n, flag = value(control, "%n"), value(control, "%flag")
        append_block_argument(blocks[2], [n])
        append_block_argument(blocks[1], [flag])
        arg = append_block_argument(blocks[2], [flag])
        text = str(control)
        assert "cf.cond_br %0, ^bb1(%flag : i32), ^bb2(%n, %flag : i32, i32) loc(#loc3)" in text
        assert '  ^bb2(%n_0: i32 loc("n"(#loc)), %flag_1: i32 loc(unknown)):  // pred: ^bb0' in text
        assert arg.owner is blocks[2]
        branch = blocks[0].terminator
        assert [v.name for v in branch.operands] == ["%0", "%flag", "%n", "%flag"]
        check_contract(control)

    def test_refusals(self, control):
        blocks = control.body[0].regions[0].blocks
        with pytest.raises(VerifyError, match="first block"):
            append_block_argument(blocks[0], [])
        with pytest.raises(VerifyError, match="each of the 1 edges into '\\^bb1', found 0"):
            append_block_argument(blocks[1], [])


def _outer(op: Operation) -> Value:
    """A value of the function that is visible everywhere but in partitions."""
    func = op
    while func.name != "tt.func":
        assert func.parent_op is not None
        func = func.parent_op
    return func.regions[0].blocks[0].args[-1]


def _edit_if(op: Operation) -> None:
    inside = op.operands[0]
    append_if_results(op, [inside], [inside])
    append_if_results(op, [inside, inside], [inside, inside])


def _edit_for(op: Operation) -> None:
    append_iter_args(op, op.operands[:1])
    append_iter_args(op, op.operands[:2])


def _edit_while(op: Operation) -> None:
    append_while_args(op, [_outer(op)])
    append_while_args(op, [_outer(op)] * 2)


def _edit_specialize(op: Operation) -> None:
    append_captures(op, [_outer(op)])
    append_captures(op, [_outer(op)] * 2)


def _edit_branch(op: Operation) -> None:
    for block in op.successors:
        append_block_argument(block, op.operands[:1])
        append_block_argument(block, op.operands[:1])


EDITS: dict[str, Callable[[Operation], None]] = {
    "cf.cond_br": _edit_branch,
    "scf.for": _edit_for,
    "scf.if": _edit_if,
    "scf.while": _edit_while,
    "ttg.warp_specialize": _edit_specialize,
}


@pytest.mark.parametrize("name", EDITS)
def test_host_accepts_fixtures(name, host):
    host.needs_present_syntax()
    done = 0
    for file in ("control.ttgir", "warp_specialize.ttgir"):
        module = parse(fixture(file), file)
        for op in named(module, name):
            EDITS[name](op)
            done += 1
        check_contract(module)
        host.text(str(module))
    assert done


@pytest.mark.parametrize("name", EDITS)
def test_host_accepts_corpus(name, host, corpus):
    """Edits every operation of a name in every file that this host printed."""
    files = [path for path in corpus if host.version.startswith(path.parts[-3])]
    if not files:
        pytest.skip(f"the corpus has nothing of host {host.version}")
    done = 0
    for path in files:
        text = path.read_text()
        if f" {name} " not in text and f" {name}(" not in text:
            continue
        module = parse(text, str(path))
        for op in named(module, name):
            EDITS[name](op)
            done += 1
        host.text(str(module))
    assert done
