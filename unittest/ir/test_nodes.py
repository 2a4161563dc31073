"""What the nodes tell about the constructs of the printed form."""

from __future__ import annotations

import pytest
from ir_helpers import fixture, named, value
from triton_ext.errors import VerifyError
from triton_ext.ir import BlockArgument, Module, OpResult, Use, parse


@pytest.fixture
def control() -> Module:
    return parse(fixture("control.ttgir"), "control.ttgir")


@pytest.fixture
def unknown() -> Module:
    return parse(fixture("unknown.mlir"), "unknown.mlir")


def test_walk_is_pre_order(control):
    names = [op.name for op in control.walk()]
    assert names[:3] == ["builtin.module", "tt.func", "arith.constant"]
    assert names[8:16] == [
        "cf.cond_br",
        "tt.return",
        "scf.while",
        "arith.cmpi",
        "scf.condition",
        "arith.addi",
        "arith.cmpi",
        "scf.if",
    ]
    assert control.op.name == "builtin.module"
    assert [op.name for op in control.body] == ["tt.func"]


def test_multi_results_and_uses(control):
    loop = named(control, "scf.while")[0]
    assert [r.name for r in loop.results] == ["%1#0", "%1#1"]
    assert [r.type for r in loop.results] == ["tensor<128xf32, #blocked>", "i32"]
    for_ops = named(control, "scf.for")
    select = named(control, "arith.select")[0]
    assert loop.results[0].uses == (Use(for_ops[0], 3), Use(select, 2))
    assert loop.results[1].uses == (Use(for_ops[1], 2),)


def test_block_arguments(control):
    func = control.body[0]
    entry, early, rest = func.regions[0].blocks
    assert [a.name for a in entry.args] == ["%x_ptr", "%n", "%flag"]
    assert [a.type for a in entry.args] == ["!tt.ptr<f32>", "i32", "i32"]
    assert entry.args[0].loc_text == 'loc("x_ptr"(#loc))'
    assert isinstance(entry.args[0], BlockArgument)
    assert entry.args[0].owner is entry
    assert (entry.label, early.label, rest.label) == (None, "^bb1", "^bb2")
    branch = entry.terminator
    assert branch is not None
    assert branch.successors == (early, rest)
    assert early.predecessors == (branch,)
    loop = named(control, "scf.for")[0]
    body = loop.regions[0].blocks[0]
    assert [(a.name, a.type) for a in body.args] == [
        ("%arg4", "i32"),
        ("%acc", "tensor<128xf32, #blocked>"),
    ]
    before, after = (r.blocks[0] for r in named(control, "scf.while")[0].regions)
    assert [(a.name, a.type) for a in before.args] == [(a.name, a.type) for a in after.args]
    assert (before.label, after.label) == (None, "^bb0")


def test_terminator_is_none_where_it_is_not_printed(control):
    assert named(control, "scf.for")[0].regions[0].blocks[0].terminator.name == "scf.yield"
    assert named(control, "scf.for")[1].regions[0].blocks[0].terminator is None


def test_attributes(control):
    assert dict(control.op.attributes)["ttg.target"] == '"cuda:90"'
    assert dict(control.op.attributes)["ttg.num-warps"] == "4 : i32"
    assert dict(named(control, "scf.for")[0].attributes) == {
        "tt.flatten": "unit",
        "tt.num_stages": "3 : i32",
    }
    assert dict(named(control, "tt.print")[0].attributes) == {
        "hex": "false",
        "isSigned": "array<i32: 1>",
    }
    assert dict(named(control, "tt.assert")[0].attributes) == {}
    assert dict(control.body[0].attributes) == {"noinline": "false"}


def test_derived_types(control):
    assert value(control, "%0").type == "i1"
    assert value(control, "%true").type == "i1"
    assert value(control, "%c-1_i32").type == "i32"
    select = named(control, "arith.select")[0]
    assert select.results[0].type == "tensor<128xf32, #blocked>"
    memory = parse(fixture("memory.ttgir"))
    assert named(memory, "tt.load")[0].results[0].type == "tensor<64x64xf16, #blocked>"
    for name in ("ttg.async_copy_global_to_local", "ttg.async_commit_group", "ttg.async_wait"):
        assert named(memory, name)[0].results[0].type == "!ttg.async.token"


def test_operands_are_in_printed_order():
    memory = parse(fixture("memory.ttgir"))
    copy = named(memory, "ttng.async_tma_copy_global_to_local")[0]
    names = [v.name for v in copy.operands]
    assert names == ["%d", "%i", "%i", "%i", "%i", "%r", "%r", "%0", "%1", "%true"]
    call = named(memory, "tt.call")[0]
    assert [v.name for v in call.operands] == ["%i"]
    asm = named(memory, "tt.elementwise_inline_asm")[0]
    assert [v.name for v in asm.operands] == ["%8"]


def test_warp_specialize_scopes():
    module = parse(fixture("warp_specialize.ttgir"))
    op = named(module, "ttg.warp_specialize")[0]
    default, first, second = op.regions
    assert not default.isolated
    assert first.isolated
    assert second.isolated
    assert [a.type for a in first.blocks[0].args] == [v.type for v in op.operands]
    # %3 is defined in every region and behind them: five different values.
    threes = {result for inner in module.walk() for result in inner.results if result.name == "%3"}
    assert len(threes) == 4
    assert named(module, "ttg.warp_yield")[0].operands[0] is default.blocks[0].ops[0].results[0]
    assert default.blocks[0].ops[0].operands[0] is value(module, "%k")
    copy = named(module, "ttng.async_tma_copy_global_to_local")[0]
    assert copy.operands[0] is first.blocks[0].args[2]
    muli = named(module, "arith.muli")[0]
    assert muli.operands[0] is second.blocks[0].args[3]
    assert op.results[0].type == "i32"


def test_quoted_form():
    module = parse(fixture("quoted.ttgir"))
    scan = named(module, "tt.scan")[0]
    assert dict(scan.attributes) == {"axis": "1 : i32", "reverse": "false", "tag": "unit"}
    assert [a.type for a in scan.regions[0].blocks[0].args] == ["f32"] * 4
    assert [r.type for r in scan.results] == ["tensor<32x128xf32, #blocked>"] * 2
    branch = named(module, "cf.cond_br")[0]
    assert [b.label for b in branch.successors] == ["^bb1", "^bb2"]
    assert len(branch.operands) == 3


def test_quoted_warp_specialize():
    module = parse(
        "tt.func @f(%c: i32) {\n"
        '  "ttg.warp_specialize"() ({\n    "ttg.warp_yield"() : () -> ()\n  }, {\n'
        '    "ttg.warp_specialize.partitions"(%c) ({\n    ^bb0(%a: i32):\n      t.use %a\n'
        '      "ttg.warp_return"() : () -> ()\n    }) : (i32) -> ()\n'
        "  }) {partitionNumWarps = array<i32: 1>} : () -> ()\n  tt.return\n}\n"
    )
    holder = named(module, "ttg.warp_specialize.partitions")[0]
    assert [v.name for v in holder.operands] == ["%c"]
    assert holder.regions[0].isolated
    assert not holder.parent.parent.isolated


def test_unknown_operations_have_structure(unknown):
    assert not named(unknown, "module")
    assert unknown.op.name == "builtin.module"
    assert [op.name for op in unknown.body] == ["other.global", "func.func"]
    op = named(unknown, "other.op")[0]
    assert [v.name for v in op.operands] == ["%a", "%b", "%b", "%b"]
    assert [r.name for r in op.results] == ["%r0", "%r1#0", "%r1#1"]
    assert [r.type for r in op.results] == ["i32", "i1", "i1"]
    assert dict(op.attributes) == {
        "flag": "unit",
        "n": "3 : i32",
        "quoted name": "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>",
    }
    wrapped = named(unknown, "other.wrapped")[0]
    assert [v.name for v in wrapped.operands] == ["%a", "%b", "%b"]
    assert wrapped.results[0].type == "index"
    nested = named(unknown, "other.nested")[0]
    assert [len(r.blocks) for r in nested.regions] == [1, 2]
    branch = named(unknown, "other.br")[0]
    assert branch.successors == (nested.regions[1].blocks[1],)
    assert len(named(unknown, "other.quoted")[0].regions) == 2
    assert named(unknown, "func.return")[0].operands[1].type == "i32"


def test_lead_and_text(unknown):
    wrapped = named(unknown, "other.wrapped")[0]
    assert wrapped.lead == "\n  // A comment inside.\n  "
    assert wrapped.text.endswith("-> index   // trailing")
    assert named(unknown, "func.return")[0].lead == "\n  "


def test_a_type_that_nothing_tells_is_an_error():
    module = parse("%x = other.op\n%y = other.op2 %x\n", "a.mlir")
    result = module.body[0].results[0]
    assert result.known_type is None
    with pytest.raises(VerifyError, match="type of '%x' is not printed") as caught:
        _ = result.type
    assert (caught.value.filename, caught.value.line, caught.value.column) == ("a.mlir", 1, 1)


def test_the_type_of_a_result_without_operands():
    text = """
module {
  %rank = tt.elementwise_inline_asm "mov.u32 $0, %cluster_ctarank;" {constraints = "=r", packed_element = 1 : i32, pure = true} -> i32
  %sum = arith.addi %rank, %rank : i32
}
"""  # noqa: E501 - TTGIR
    rank, total = parse(text).op.regions[0].blocks[0].ops
    assert rank.results[0].type == total.results[0].type == "i32"
    rank.results[0].set_type("i64")
    assert "pure = true} -> i64" in rank.text


def test_a_type_is_learned_from_a_user():
    module = parse('%x = other.op\n"other.use"(%x) : (i8) -> ()\n')
    assert module.body[0].results[0].type == "i8"


def test_long_chains_of_definitions_need_no_stack():
    lines = [f"  %a{i + 1} = arith.addi %a{i}, %a{i} : i32" for i in range(5000)]
    text = "\n".join(["tt.func @f(%a0: i32) {", *lines, "  tt.return", "}\n"])
    module = parse(text)
    last = module.body[0].regions[0].blocks[0].ops[-2].results[0]
    assert isinstance(last, OpResult)
    assert last.type == "i32"


def test_aliases(control, unknown):
    assert control.resolve_alias("#loc3") == 'loc("kernel.py":12:9)'
    assert control.resolve_alias("#loc4") == 'loc("kernel.py":13:5)'
    assert control.aliases["#blocked"].startswith("#ttg.blocked<{")
    assert set(unknown.aliases) == {"#alias", "!type"}
    with pytest.raises(KeyError):
        control.resolve_alias("#nothing")


def test_aliases_on_one_line():
    text = (
        "#a = #x.y<{n = 1}>#b = #x.z<#a>  !t = tensor<4xi32, #b> // a comment: #c = 1\n"
        "module {\n}\n"
    )
    module = parse(text)
    assert dict(module.aliases) == {
        "#a": "#x.y<{n = 1}>",
        "#b": "#x.z<#a>",
        "!t": "tensor<4xi32, #b>",
    }
    assert str(module) == text


def test_forward_references_in_a_control_flow_graph():
    module = parse(
        "func.func @f() {\n  cf.br ^bb2\n^bb1:\n  test.use %x\n  return\n"
        "^bb2:\n  %x = test.def : i32\n  cf.br ^bb1\n}\n"
    )
    use = named(module, "test.use")[0]
    definition = named(module, "test.def")[0]
    assert use.operands == (definition.results[0],)
    assert definition.results[0].uses == (Use(use, 0),)
