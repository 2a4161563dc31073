"""Views: every field of every view, and all operations of the corpus."""

from __future__ import annotations

import pytest
from ir_helpers import check_fields, name_of
from triton_ext.analysis.slot_form import captured
from triton_ext.errors import VerifyError
from triton_ext.ir import parse
from triton_ext.ir.dialects import View, arith, literals, scf, tt, ttg
from triton_ext.ir.dialects.arith import constant_int

PREAMBLE = """\
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], \
order = [1, 0]}>
#shared = #ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory
"""
VIEWS = {
    view.NAME: view
    for module in (arith, scf, tt, ttg)
    for name in module.__all__
    if isinstance(view := getattr(module, name), type)
    and issubclass(view, View)
    and hasattr(view, "NAME")
}

#: Operation, then the fields of its view; values by name.
CASES = [
    ("%r = arith.constant 4 : i32", {"value": 4, "result": "%r", "is_splat": False}),
    ("%r = arith.constant {a = array<i32: 1>} true", {"value": True}),
    (
        "%r = arith.constant dense<0.000000e+00> : tensor<64x64xf32, #blocked>",
        {"value": 0.0, "is_splat": True},
    ),
    ("%r = arith.constant dense<0xFF800000> : tensor<64xf32>", {"value": float("-inf")}),
    (
        "%r = arith.cmpi slt, %a, %b : i32",
        {"predicate": "slt", "lhs": "%a", "rhs": "%b", "result": "%r"},
    ),
    (
        "%r = arith.select %a, %b, %c : i32",
        {"condition": "%a", "true_value": "%b", "false_value": "%c"},
    ),
    ("%r = arith.addi %a, %b {x = 1 : i32} : i32", {"lhs": "%a", "rhs": "%b"}),
    ("%r = tt.load %a : T", {"ptr": "%a", "mask": None, "other": None, "cache_policy": None}),
    ("%r = tt.load %a, %b, %c {x} : T", {"ptr": "%a", "mask": "%b", "other": "%c"}),
    ("tt.store %a, %b : T", {"ptr": "%a", "value": "%b", "mask": None}),
    ("tt.store %a, %b, %c : T", {"ptr": "%a", "value": "%b", "mask": "%c"}),
    ("%r = tt.addptr %a, %b : T, i32", {"ptr": "%a", "offset": "%b"}),
    ("%r = tt.make_range {end = 128 : i32, start = 2 : i32} : T", {"start": 2, "end": 128}),
    ("%r = tt.splat %a : i32 -> T", {"src": "%a", "result": "%r"}),
    ("%r = tt.broadcast %a : T -> U", {"src": "%a", "result": "%r"}),
    ("%r = tt.expand_dims %a {axis = 1 : i32} : T -> U", {"src": "%a", "axis": 1}),
    ("%r = tt.trans %a {order = array<i32: 1, 0>} : T -> U", {"order": (1, 0)}),
    (
        "%r = tt.dot %a, %b, %c, inputPrecision = tf32 : T * U -> V",
        {"a": "%a", "b": "%b", "c": "%c"},
    ),
    ("%r = tt.descriptor_load %a[%b, %c] : T -> U", {"desc": "%a", "indices": ("%b", "%c")}),
    (
        "tt.descriptor_store %a[%b, %c], %d : T, U",
        {"desc": "%a", "indices": ("%b", "%c"), "src": "%d"},
    ),
    (
        "%r = ttg.async_copy_global_to_local %a, %b mask %c other %d {contiguity = 8 : i32} : "
        "T -> <U>",
        {"src": "%a", "dst": "%b", "mask": "%c", "other": "%d", "contiguity": 8, "token": "%r"},
    ),
    (
        "%r = ttg.async_copy_global_to_local %a, %b other %c : T -> <U>",
        {"mask": None, "other": "%c", "contiguity": 1},
    ),
    ("%r = ttg.async_commit_group tokens %a, %b", {"tokens": ("%a", "%b"), "token": "%r"}),
    ("%r = ttg.async_commit_group", {"tokens": ()}),
    ("%r = ttg.async_wait %a, %b {num = 2 : i32}", {"tokens": ("%a", "%b"), "num": 2}),
    ("%r = ttg.async_wait {num = 0 : i32}", {"tokens": (), "num": 0}),
    ("%r = ttg.local_alloc : () -> T", {"src": None, "result": "%r"}),
    ("%r = ttg.local_alloc %a : (T) -> U", {"src": "%a"}),
    ("ttg.local_dealloc %a : T", {"src": "%a"}),
    ("%r = ttg.local_load %a token %b : T -> U", {"src": "%a", "token": "%b"}),
    ("%r = ttg.local_load %a : T -> U", {"src": "%a", "token": None}),
    ("ttg.local_store %a, %b : T -> U", {"src": "%a", "dst": "%b"}),
    ("%r = ttg.memdesc_index %a[%b] : T -> U", {"src": "%a", "index": "%b"}),
    ("%r = ttg.memdesc_subslice %a[0, 32] : T -> U", {"src": "%a", "offsets": (0, 32)}),
    ("%r = ttg.memdesc_trans %a {order = array<i32: 1, 0>} : T -> U", {"order": (1, 0)}),
    ("%r = ttg.memdesc_reshape %a : T -> U", {"src": "%a"}),
    ("%r = ttg.memdesc_reinterpret %a : T -> U", {"src": "%a"}),
    ("%r = ttg.convert_layout %a : T -> U", {"src": "%a"}),
]
TYPES = {"T": "tensor<64x64xi32, #blocked>", "U": "tensor<64x64xi32>", "V": "tensor<4xf32>"}


def module_of(text: str):
    """A module with one operation behind the definitions of its operands."""
    for short, full in TYPES.items():
        text = text.replace(f": {short}", f": {full}").replace(f"<{short}>", f"<{full}>")
        text = text.replace(f"-> {short}", f"-> {full}").replace(f"({short})", f"({full})")
        text = text.replace(f", {short}", f", {full}").replace(f"* {short}", f"* {full}")
    return parse(
        PREAMBLE
        + "module {\n  tt.func @f(%a: i32, %b: i32, %c: i32, %d: i32) {\n    "
        + text
        + "\n    tt.return\n  }\n}\n"
    )


@pytest.mark.parametrize(("text", "fields"), CASES, ids=[text for text, _ in CASES])
def test_fields(text, fields):
    module = module_of(text)
    check_fields(VIEWS, module, fields)


def test_after_an_edit_the_view_shows_the_new_operand():
    module = module_of("tt.store %a, %b, %c : T")
    block = module.body[0].regions[0].blocks[0]
    op = block.ops[0]
    op.set_operand(2, block.args[3])
    view = tt.StoreOp.match(op)
    assert view is not None
    assert name_of(view.mask) == "%d"


def test_loops_and_branches():
    module = parse(
        "tt.func @f(%a: index, %b: index, %c: i1, %x: i32) {\n"
        "  %r:2 = scf.for %i = %a to %b step %a iter_args(%p = %x, %q = %x) -> (i32, i32) {\n"
        "    %s = scf.if %c -> (i32) {\n      scf.yield %p : i32\n    } else {\n"
        "      scf.yield %q : i32\n    }\n"
        "    scf.yield %s, %p : i32, i32\n  }\n"
        "  %w = scf.while (%y = %x) : (i32) -> i32 {\n    scf.condition(%c) %y : i32\n"
        "  } do {\n  ^bb0(%z: i32):\n    scf.yield %z : i32\n  }\n"
        "  tt.return\n}\n"
    )
    ops = {op.name: op for op in module.walk()}
    loop = scf.ForOp.match(ops["scf.for"])
    assert name_of((loop.lower_bound, loop.upper_bound, loop.step)) == ("%a", "%b", "%a")
    assert loop.induction_variable.name == "%i"
    assert name_of((loop.inits, loop.iter_args)) == (("%x", "%x"), ("%p", "%q"))
    assert name_of((loop.yielded, loop.results)) == (("%s", "%p"), ("%r#0", "%r#1"))
    branch = scf.IfOp.match(ops["scf.if"])
    assert branch.condition.name == "%c"
    assert name_of(scf.YieldOp.match(branch.else_block.terminator).values) == ("%q",)
    while_ = scf.WhileOp.match(ops["scf.while"])
    assert name_of((while_.inits, while_.results)) == (("%x",), ("%w",))
    condition = scf.ConditionOp.match(while_.before.terminator)
    assert name_of((condition.condition, condition.values)) == ("%c", ("%y",))
    assert while_.after.args[0].name == "%z"


def test_warp_specialize():
    module = parse(
        "tt.func @f(%a: i32, %b: i32) {\n"
        "  %r = ttg.warp_specialize(%a, %b) attributes {requestedRegisters = array<i32: 24, 80>}\n"
        "  default {\n    ttg.warp_yield %a : i32\n  }\n"
        "  partition0(%x: i32, %y: i32) num_warps(1) {\n    ttg.warp_return\n  }\n"
        "  partition1(%x: i32, %y: i32) num_warps(4) {\n    ttg.warp_return\n"
        "  } : (i32, i32) -> i32\n  tt.return\n}\n"
    )
    view = next(v for op in module.walk() if (v := ttg.WarpSpecializeOp.match(op)) is not None)
    assert name_of(view.captures) == ("%a", "%b")
    assert [partition.num_warps for partition in view.partitions] == [1, 4]
    assert [name_of(partition.block.args) for partition in view.partitions] == [("%x", "%y")] * 2
    assert view.requested_registers == (24, 80)
    assert name_of(scf.YieldOp.match(view.default.terminator).values) == ("%a",)


@pytest.mark.parametrize(("outer", "inner"), [("%a, %b", ""), ("", "%a, %b"), ("%b", "%a, %b")])
def test_captures_of_the_partitions(outer, inner):
    types = {"": "", "%b": "i32", "%a, %b": "i32, i32"}
    module = parse(
        "tt.func @f(%a: i32, %b: i32) {\n"
        f'  "ttg.warp_specialize"({outer}) ({{\n    "ttg.warp_yield"() : () -> ()\n  }}, {{\n'
        f'    "ttg.warp_specialize.partitions"({inner}) ({{\n    ^bb0(%x: i32, %y: i32):\n'
        f'      "ttg.warp_return"() : () -> ()\n    }}) : ({types[inner]}) -> ()\n'
        f"  }}) {{partitionNumWarps = array<i32: 1>}} : ({types[outer]}) -> ()\n  tt.return\n}}\n"
    )
    holder = next(op for op in module.walk() if op.name == ttg.PARTITIONS)
    assert name_of(ttg.captures_of(holder)) == ("%a", "%b")
    assert [captured(x).name for x in holder.regions[0].blocks[0].args] == ["%a", "%b"]


def test_constant_int():
    module = module_of("%r = arith.constant dense<7> : T")
    op = module.body[0].regions[0].blocks[0].ops[0]
    assert constant_int(op.results[0]) == 7
    assert constant_int(module.body[0].regions[0].blocks[0].args[0]) is None


def test_an_operation_that_lacks_operands_is_an_error_at_its_place():
    module = module_of("ttg.local_store %a : T")
    with pytest.raises(VerifyError) as error:
        ttg.LocalStoreOp.match(module.body[0].regions[0].blocks[0].ops[0])
    assert "expected another operand in 'ttg.local_store'" in str(error.value)
    assert (error.value.line, error.value.column) == (6, 5)


def test_literals_leave_out_attributes():
    module = module_of("tt.store %a, %b {x = 1 : i32} : T")
    op = module.body[0].regions[0].blocks[0].ops[0]
    before = literals(op)
    assert before[:2] == ("tt.store ", ", ")
    op._touch()
    str(module)
    assert literals(op)[:2] == before[:2]


def test_corpus(corpus):
    """Every operation that has a view matches it, untouched and edited."""
    found = set()
    for path in corpus[::3]:
        for op in parse(path.read_text(), path.name).walk():
            view = VIEWS.get(op.name)
            if view is None:
                continue
            found.add(op.name)
            fresh = view.match(op)
            assert fresh is not None
            op._touch()
            assert view.match(op) == fresh
    assert len(found) > 25


def test_literals_of_an_operation_without_operands_stay_after_an_edit():
    text = "module {\n  %x = tt.get_program_id y : i32 loc(unknown)\n}\n"
    op = parse(text).body[0]
    before = literals(op)
    assert before == ("tt.get_program_id y : i32 ",)
    op.set_loc('loc("k.py":1:2)')
    assert literals(op) == before


def test_flags_of_arithmetic():
    text = """
tt.func @f(%a: i8, %nsw: i8) {
  %0 = arith.addi %a, %nsw : i8
  %1 = arith.addi %a, %nsw overflow<nsw> {note = "exact"} : i8
  %2 = "arith.addi"(%a, %nsw) <{overflowFlags = #arith.overflow<nsw, nuw>}> : (i8, i8) -> i8
  %3 = arith.divsi %a, %nsw exact : i8
  %4 = "arith.divsi"(%a, %nsw) <{isExact}> : (i8, i8) -> i8
  %5 = arith.extui %a nneg : i8 to i16
  %6 = arith.trunci %5 overflow<nuw> : i16 to i8
  tt.return
}
"""
    ops = parse(text).body[0].regions[0].blocks[0].ops[:-1]
    expected = [set(), {"nsw"}, {"nsw", "nuw"}, {"exact"}, {"exact"}, {"nneg"}, {"nuw"}]
    assert [arith.poison_flags(op) for op in ops] == expected
    for op in ops:
        op.set_loc('loc("exact nneg.py":1:2)')
    assert [arith.poison_flags(op) for op in ops] == expected


def test_an_operation_without_its_result_has_no_view():
    text = "%b = t.a : !ttg.memdesc<1xi64>\n  ttg.memdesc_subslice %b, 1 : !ttg.memdesc<1xi64>"
    op = parse(f"module {{\n  {text}\n}}\n").body[1]
    assert not op.results
    with pytest.raises(VerifyError, match=r"expected a result in 'ttg\.memdesc_subslice'"):
        ttg.MemDescSubsliceOp.match(op)
