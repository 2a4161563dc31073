"""The rules of the axis analysis, one table; control flow, hints, calls, and what is not known."""

from __future__ import annotations

import pytest
from triton_ext import ir
from triton_ext.analysis.axis_info import LIMIT, RULES, AxisInfo, AxisInfoAnalysis, Visit
from triton_ext.errors import VerifyError

#: The divisor of the first element of a range from 0.
FROM_0 = 1 << 30

HEADER = """\
  tt.func public @f(%n: i32 {tt.divisibility = 8 : i32}, %x: i32, %c: i1, \
%p: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %tx: tensor<16xi32>, %tc: tensor<16xi1>) {
    %0 = arith.constant 0 : i32
    %1 = arith.constant 1 : i32
    %4 = arith.constant 4 : i32
    %t1 = arith.constant dense<1> : tensor<16xi32>
    %t2 = arith.constant dense<2> : tensor<16xi32>
    %t4 = arith.constant dense<4> : tensor<16xi32>
    %t6 = arith.constant dense<6> : tensor<16xi32>
    %range = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %late = tt.make_range {end = 20 : i32, start = 4 : i32} : tensor<16xi32>
    %tn = tt.splat %n : i32 -> tensor<16xi32>
    %sum = arith.addi %tn, %range : tensor<16xi32>
    %tp = tt.splat %p : !tt.ptr<f16> -> tensor<16x!tt.ptr<f16>>
    %ptr = tt.addptr %tp, %sum : tensor<16x!tt.ptr<f16>>, tensor<16xi32>
    %column = tt.expand_dims %range {axis = 1 : i32} : tensor<16xi32> -> tensor<16x1xi32>
    %tile = tt.broadcast %column : tensor<16x1xi32> -> tensor<16x4xi32>
    %groups = arith.divsi %range, %t4 : tensor<16xi32>
"""


def analyse(body: str, **options) -> tuple[AxisInfoAnalysis, dict[str, ir.Value]]:
    """The analysis of a function that begins as above, and its values by name."""
    module = ir.parse("module {\n" + HEADER + body + "\n    tt.return\n  }\n}\n", "t.mlir")
    values = {
        value.name: value
        for op in module.walk()
        for value in (
            *op.results,
            *(argument for region in op.regions for b in region.blocks for argument in b.args),
        )
    }
    return AxisInfoAnalysis.of(module, **options), values


def info(body: str, name: str = "%r", **options) -> AxisInfo:
    analysis, values = analyse(body, **options)
    return analysis.info(values[name])


T = "tensor<16xi32>"
ROWS = [
    # A line that defines %r; contiguity, divisibility, constancy, constant.
    ("arith.constant 12 : i32", [1], [4], [1], 12),
    ("arith.constant 0 : i32", [1], [LIMIT], [1], 0),
    ("arith.constant dense<-8> : tensor<4x4xi32>", [1, 1], [8, 8], [4, 4], -8),
    ("arith.constant dense<1.5> : tensor<4xf32>", [1], [1], [4], None),
    ("arith.constant dense<[1, 2]> : tensor<2xi32>", [1], [1], [1], None),
    ("arith.constant true", [1], [1], [1], 1),
    ("tt.make_range {end = 28 : i32, start = 12 : i32} : tensor<16xi32>", [16], [4], [1], None),
    (f"tt.splat %n : i32 -> {T}", [1], [8], [16], None),
    (f"arith.addi %tn, %range : {T}", [16], [8], [1], None),
    (f"arith.addi %range, %late : {T}", [1], [2], [1], None),
    (f"arith.addi %range, %groups : {T}", [4], [1], [1], None),
    (f"arith.subi %sum, %tn : {T}", [16], [8], [1], None),
    (f"arith.subi %tn, %range : {T}", [1], [1], [1], None),
    (f"arith.subi %sum, %range : {T}", [1], [8], [1], None),
    (f"arith.subi %t6, %t2 : {T}", [1], [4], [16], 4),
    (f"arith.muli %range, %t1 : {T}", [16], [FROM_0], [1], None),
    (f"arith.muli %range, %t4 : {T}", [1], [4], [1], None),
    (f"arith.muli %tn, %t6 : {T}", [1], [16], [16], None),
    ("arith.muli %x, %0 : i32", [1], [LIMIT], [1], 0),
    (f"arith.divsi %range, %t4 : {T}", [1], [1], [4], None),
    (f"arith.divsi %sum, %t2 : {T}", [1], [1], [2], None),
    (f"arith.divui %tn, %t4 : {T}", [1], [2], [16], None),
    (f"arith.divsi %range, %t1 : {T}", [16], [FROM_0], [1], None),
    (f"arith.divsi %range, %t6 : {T}", [1], [1], [2], None),
    (f"arith.remsi %range, %t4 : {T}", [4], [4], [1], None),
    (f"arith.remui %sum, %tn : {T}", [8], [8], [1], None),
    ("arith.remsi %x, %1 : i32", [1], [LIMIT], [1], 0),
    ("arith.remsi %n, %4 : i32", [1], [4], [1], None),
    (f"arith.shli %tn, %t2 : {T}", [1], [32], [16], None),
    (f"arith.shli %range, %t2 : {T}", [1], [4], [1], None),
    (f"arith.shrui %tn, %t2 : {T}", [1], [2], [16], None),
    (f"arith.shrsi %sum, %t2 : {T}", [1], [1], [4], None),
    (f"arith.shrsi %tx, %t2 : {T}", [1], [1], [1], None),
    (f"arith.andi %tx, %t4 : {T}", [1], [4], [1], None),
    (f"arith.ori %tn, %t4 : {T}", [1], [4], [16], None),
    (f"arith.xori %tn, %t6 : {T}", [1], [2], [16], None),
    (f"arith.minsi %sum, %late : {T}", [16], [4], [1], None),
    (f"arith.maxui %tn, %t4 : {T}", [1], [4], [16], None),
    (f"arith.cmpi slt, %sum, %tn : {T}", [1], [1], [8], None),
    (f"arith.cmpi sge, %sum, %t4 : {T}", [1], [1], [4], None),
    (f"arith.cmpi sgt, %t4, %range : {T}", [1], [1], [4], None),
    (f"arith.cmpi sgt, %range, %t4 : {T}", [1], [1], [1], None),
    (f"arith.cmpi ne, %tn, %t4 : {T}", [1], [1], [16], None),
    (f"arith.cmpi slt, %t4, %t6 : {T}", [1], [1], [16], 1),
    (f"arith.select %c, %range, %late : {T}", [16], [4], [1], None),
    (f"arith.select %tc, %range, %late : tensor<16xi1>, {T}", [1], [1], [1], None),
    ("arith.select %c, %4, %4 : i32", [1], [4], [1], 4),
    ("arith.extsi %n : i32 to i64", [1], [8], [1], None),
    (f"arith.trunci %range : {T} to tensor<16xi8>", [16], [FROM_0], [1], None),
    ("arith.extui %4 : i32 to i64", [1], [4], [1], 4),
    ("arith.index_cast %n : i32 to index", [1], [8], [1], None),
    (f"ttg.convert_layout %sum : {T} -> {T}", [16], [8], [1], None),
    (f"builtin.unrealized_conversion_cast %sum : {T} to {T}", [16], [8], [1], None),
    ("tt.addptr %p, %x : !tt.ptr<f16>, i32", [1], [2], [1], None),
    ("tt.addptr %p, %4 : !tt.ptr<f16>, i32", [1], [8], [1], None),
    ("tt.bitcast %ptr : tensor<16x!tt.ptr<f16>> -> tensor<16x!tt.ptr<i16>>", [16], [16], [1], None),
    ("tt.bitcast %ptr : tensor<16x!tt.ptr<f16>> -> tensor<16x!tt.ptr<f32>>", [1], [2], [1], None),
    ("tt.ptr_to_int %ptr : tensor<16x!tt.ptr<f16>> -> tensor<16xi64>", [1], [2], [1], None),
    ("tt.int_to_ptr %n : i32 -> !tt.ptr<f16>", [1], [8], [1], None),
    ("tt.expand_dims %tn {axis = 0 : i32} : tensor<16xi32> -> tensor<1x16xi32>",
     [1, 1], [8, 8], [1, 16], None),
    ("tt.expand_dims %sum {axis = 1 : i32} : tensor<16xi32> -> tensor<16x1xi32>",
     [16, 1], [8, 1], [1, 1], None),
    ("tt.broadcast %column : tensor<16x1xi32> -> tensor<16x4xi32>",
     [16, 1], [FROM_0, 1], [1, 4], None),
    ("tt.trans %tile {order = array<i32: 1, 0>} : tensor<16x4xi32> -> tensor<4x16xi32>",
     [1, 16], [1, FROM_0], [4, 1], None),
    ("tt.reshape %sum : tensor<16xi32> -> tensor<4x4xi32>", [1, 4], [1, 4], [1, 1], None),
    ("tt.reshape %tile : tensor<16x4xi32> -> tensor<64xi32>", [1], [1], [4], None),
    ("tt.reshape %groups : tensor<16xi32> -> tensor<4x4xi32>", [1, 1], [1, 1], [1, 4], None),
    ("tt.join %range, %late : tensor<16xi32> -> tensor<16x2xi32>", [16, 1], [4, 1], [1, 1], None),
    ("tt.load %p : !tt.ptr<f16>", [1], [1], [1], None),
    ("tt.load %tp : tensor<16x!tt.ptr<f16>>", [1], [1], [16], None),
    ("tt.load %tp, %tc : tensor<16x!tt.ptr<f16>>", [1], [1], [1], None),
    ("tt.get_program_id x : i32", [1], [1], [1], None),
    ("ub.poison : i32", [LIMIT], [LIMIT], [LIMIT], None),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0].split(" : ")[0] for row in ROWS])
def test_rule(row):
    text, contiguity, divisibility, constancy, constant = row
    found = info(f"    %r = {text}")
    assert found.contiguity == tuple(contiguity)
    assert found.divisibility == tuple(divisibility)
    assert found.constancy == tuple(constancy)
    assert found.constant == constant
    # Hosts up to 3.8 keep the contiguity of pointers that are cast to wider ones; %sum is %tn plus
    # %range, and less either of them the other one.
    folds = text.startswith(("arith.subi %sum, %tn", "arith.subi %sum, %range"))
    assert found.complete == ("-> tensor<16x!tt.ptr<f32>>" not in text and not folds)


def test_splits_keep_the_other_dimensions():
    body = "    %j = tt.join %range, %late : tensor<16xi32> -> tensor<16x2xi32>\n"
    body += "    %r, %s = tt.split %j : tensor<16x2xi32> -> tensor<16xi32>"
    assert info(body) == info(body, "%s") == AxisInfo((16,), (4,), (1,))


# ---- hints


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("tt.divisibility = dense<16> : tensor<1xi32>", ((1,), (16,), (1,))),
        ("tt.divisibility = 16 : i32", ((1,), (16,), (1,))),
        ("tt.contiguity = dense<4> : tensor<1xi32>", ((4,), (1,), (1,))),
        ("tt.constancy = dense<[8]> : tensor<1xi32>", ((1,), (1,), (8,))),
        ("tt.divisibility = dense<[16, 16]> : tensor<2xi32>", ((1,), (1,), (1,))),
    ],
)
def test_hints_on_operations_are_believed(hint, expected):
    found = info(f"    %r = arith.addi %tx, %tx {{{hint}}} : {T}")
    assert (found.contiguity, found.constancy) == (expected[0], expected[2])
    assert found.divisibility == expected[1]


def test_hints_do_not_take_away_what_is_known():
    hint = "tt.divisibility = dense<4> : tensor<1xi32>"
    assert info(f"    %r = arith.addi %tn, %range {{{hint}}} : {T}").divisibility == (8,)


def test_hints_that_are_no_powers_of_two_count_as_far_as_they_are():
    found = info(f"    %r = arith.addi %tx, %tx {{tt.divisibility = 24 : i32}} : {T}")
    assert found.divisibility == (8,)
    assert not found.complete


# ---- control flow

LOOP = """\
    %r = scf.for %i = %0 to {upper} step %4 iter_args(%a = %tn) -> (tensor<16xi32>)  : i32 {{
      %y = arith.addi %a, {added} : tensor<16xi32>
      scf.yield %y : tensor<16xi32>
    }}"""


def test_loops_keep_what_every_iteration_keeps():
    body = LOOP.format(upper="%x", added="%t4")
    assert info(body, "%i") == AxisInfo((1,), (4,), (1,))
    assert info(body, "%a") == AxisInfo((1,), (4,), (16,))
    assert info(body) == AxisInfo((1,), (4,), (16,))


def test_loops_lose_what_an_iteration_changes():
    assert info(LOOP.format(upper="%x", added="%tx")) == AxisInfo((1,), (1,), (1,))


def test_loops_of_known_length():
    # One iteration: the start does not reach the result, nor the yielded value the argument.
    body = LOOP.format(upper="%4", added="%range")
    assert info(body) == AxisInfo((16,), (8,), (1,))
    assert info(body, "%a") == AxisInfo((1,), (8,), (16,))
    assert info(LOOP.format(upper="%0", added="%tx")) == AxisInfo((1,), (8,), (16,))


def test_if_joins_its_branches():
    body = """\
    %r = scf.if {} -> (tensor<16xi32>) {{
      scf.yield %sum : tensor<16xi32>
    }} else {{
      scf.yield %late : tensor<16xi32>
    }}"""
    assert info(body.format("%c")) == AxisInfo((16,), (4,), (1,))
    assert info("    %true = arith.constant true\n" + body.format("%true")) == info("", "%sum")


def test_while_joins_start_and_yield():
    body = """\
    %r = scf.while (%a = %n) : (i32) -> i32 {
      scf.condition(%c) %a : i32
    } do {
    ^bb0(%b: i32):
      %y = arith.addi %b, %4 : i32
      scf.yield %y : i32
    }"""
    assert info(body) == info(body, "%b") == AxisInfo((1,), (4,), (1,))


def test_block_arguments_join_all_branches():
    body = """\
    cf.cond_br %c, ^bb1(%n : i32), ^bb2(%x, %4 : i32, i32)
  ^bb1(%a: i32):
    cf.br ^bb2(%a, %n : i32, i32)
  ^bb2(%b: i32, %d: i32):"""
    assert info(body, "%a").divisibility == (8,)
    assert info(body, "%b").divisibility == (1,)
    assert info(body, "%d") == AxisInfo((1,), (4,), (1,))


def test_partitions_get_what_is_captured():
    body = """\
    ttg.warp_specialize(%sum) attributes {requestedRegisters = array<i32: 24>}
    default {
      ttg.warp_yield
    }
    partition0(%a: tensor<16xi32>) num_warps(1) {
      ttg.warp_return
    } : (tensor<16xi32>) -> ()"""
    assert info(body, "%a") == info("", "%sum")


CALLEE = """\
  tt.func private @g(%a: i32 {tt.divisibility = 2 : i32}) -> i32 {
    %r = arith.addi %a, %a : i32
    tt.return %r : i32
  }
"""


@pytest.mark.parametrize(("passed", "expected"), [("%n", 8), ("%x", 2)])
def test_arguments_are_what_all_calls_pass_and_the_header_promises(passed, expected):
    text = "module {\n" + CALLEE + HEADER
    text += (
        f"    %s = tt.call @g(%n) : (i32) -> i32\n    %q = tt.call @g({passed}) : (i32) -> i32\n"
    )
    module = ir.parse(text + "    tt.return\n  }\n}\n")
    callee = module.body[0]
    argument = callee.regions[0].blocks[0].args[0]
    for root in (module, callee):
        assert AxisInfoAnalysis.of(root).info(argument).divisibility == (expected,)


def test_recursion_leaves_a_gap():
    text = CALLEE.replace("    tt.return", "    %s = tt.call @g(%r) : (i32) -> i32\n    tt.return")
    module = ir.parse(f"module {{\n{text}}}\n")
    function = module.body[0]
    found = AxisInfoAnalysis.of(module).info(function.regions[0].blocks[0].args[0])
    assert found.gap is function


# ---- what is not known


def test_an_operation_without_a_rule_leaves_a_gap():
    body = "    %u = new.op %range : tensor<16xi32>\n    %r = arith.addi %u, %tn : tensor<16xi32>"
    found = info(body)
    assert not found.complete
    assert found.gap.name == "new.op"
    assert found.contiguity == (1,)
    assert info(body, "%sum").complete


def test_what_the_host_may_fold_leaves_a_gap():
    assert info("    %r = arith.ceildivsi %4, %1 : i32").gap is not None
    assert info("    %r = arith.ceildivsi %n, %4 : i32").complete


def test_a_gap_comes_through_loops():
    body = "    %u = new.op %tn : tensor<16xi32>\n" + LOOP.format(upper="%x", added="%u")
    assert info(body, "%a").gap is not None
    assert info(body).gap is not None


def test_rules_of_a_vendor_close_it():
    def rule(visit: Visit) -> AxisInfo:
        return visit.operands[0]

    body = "    %r = new.op %sum : tensor<16xi32>"
    assert info(body, rules={"new.op": rule}) == info("", "%sum")


@pytest.mark.parametrize(
    "line",
    [
        # `other` shows through the mask; a constant that old hosts read as a large number; one that
        # they take for the larger one.
        "tt.load %tp, %t, %range : tensor<16x!tt.ptr<i32>>",
        "arith.minsi %m, %4 : i32",
        "arith.divsi %m, %4 : i32",
    ],
)
def test_claims_of_hosts_that_are_false_leave_a_gap(line):
    body = "    %t = tt.splat %c : i1 -> tensor<16xi1>\n    %m = arith.constant -8 : i32\n"
    assert info(f"{body}    %r = {line}").gap.name == line.split()[0]


# ---- questions

ENCODED = """\
#b = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], \
order = [1, 0]}>
#s = #ttg.slice<{dim = 0, parent = #b}>
module attributes {"ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%p: !tt.ptr<f16> {tt.divisibility = ALIGN : i32}, %n: i32, %m: i32 \
{tt.divisibility = 4 : i32}) {
    %range = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #s>
    %row = tt.expand_dims %range {axis = 0 : i32} : tensor<64xi32, #s> -> tensor<1x64xi32, #b>
    %tile = tt.broadcast %row : tensor<1x64xi32, #b> -> tensor<64x64xi32, #b>
    %tp = tt.splat %p : !tt.ptr<f16> -> tensor<64x64x!tt.ptr<f16>, #b>
    %ptr = tt.addptr %tp, %tile : tensor<64x64x!tt.ptr<f16>, #b>, tensor<64x64xi32, #b>
    %tm = tt.splat %m : i32 -> tensor<64x64xi32, #b>
    %mask = arith.cmpi slt, %tile, %tm : tensor<64x64xi32, #b>
    tt.return
  }
}
"""


@pytest.mark.parametrize(("align", "expected"), [(16, 8), (8, 4), (2, 1), (256, 8)])
def test_pointer_contiguity_and_mask_alignment(align, expected):
    module = ir.parse(ENCODED.replace("ALIGN", str(align)))
    values = {value.name: value for op in module.walk() for value in op.results}
    analysis = AxisInfoAnalysis.of(module)
    assert analysis.pointer_contiguity(values["%ptr"]) == expected
    assert analysis.alignment(values["%ptr"]) == min(align // 2, 64)
    assert analysis.pointer_contiguity(values["%tile"], 16) == 8
    assert analysis.mask_alignment(values["%mask"]) == 4
    other = ir.parse_attribute(
        "#ttg.blocked<{sizePerThread = [1, 2], threadsPerWarp = [4, 8], "
        "warpsPerCTA = [4, 1], order = [1, 0]}>"
    )
    assert analysis.pointer_contiguity(values["%ptr"], encoding=other) == min(expected, 2)
    column = ir.parse_attribute(
        "#ttg.blocked<{sizePerThread = [2, 1], threadsPerWarp = [4, 8], "
        "warpsPerCTA = [4, 1], order = [0, 1]}>"
    )
    assert analysis.pointer_contiguity(values["%ptr"], encoding=column) == 1
    assert analysis.mask_alignment(values["%mask"], column) == 64


def test_scalars_are_accessed_one_by_one():
    analysis, values = analyse("")
    assert analysis.pointer_contiguity(values["%p"]) == 1
    assert analysis.alignment(values["%p"]) == 1
    assert analysis.mask_alignment(values["%c"]) == 1


def test_a_tensor_without_an_encoding_is_refused():
    analysis, values = analyse("")
    with pytest.raises(VerifyError, match="expected a tensor with a register encoding"):
        analysis.pointer_contiguity(values["%ptr"])


def test_only_functions_and_modules_are_analysed():
    module = ir.parse("module {\n" + HEADER + "    tt.return\n  }\n}\n")
    op = module.body[0].regions[0].blocks[0].ops[0]
    with pytest.raises(VerifyError, match=r"expected a function, found 'arith\.constant'"):
        AxisInfoAnalysis.of(op)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_operations_are_visited_a_few_times(depth):
    """Once in straight code; in nested loops as often as something new is known of an operand."""
    visits: list[str] = []

    def count(visit: Visit) -> AxisInfo | None:
        visits.append(visit.op.results[0].name)
        return RULES["arith.addi"](visit)

    lines, value = [], "%tn"
    for level in range(depth):
        head = f"scf.for %i{level} = %0 to %x step %1 iter_args(%a{level} = {value})"
        lines.append(f"    %r{level} = {head} -> ({T})  : i32 {{")
        value = f"%a{level}"
    for index in range(200):
        lines.append(f"    %v{index} = arith.addi {value}, %t4 : {T}")
        value = f"%v{index}"
    for level in reversed(range(depth)):
        lines += [f"    scf.yield {value} : {T}", "    }"]
        value = f"%r{level}"
    analysis, values = analyse("\n".join(lines), rules={"arith.addi": count})
    assert analysis.info(values["%v199"]).divisibility == (4,)
    # The two sums of the header are visited as well.
    assert len(visits) <= 202 * (1 if depth == 0 else 2)


# ---- what a host folds before it looks


T1 = "tensor<16xi1>"
FOLDED = {
    "and with all ones": [f"%r = arith.andi %range, %tm : {T}"],
    "and of one": [f"%r = arith.andi %range, %range : {T}"],
    "or with 0": [f"%r = arith.ori %range, %t0 : {T}"],
    "or with all ones": [f"%r = arith.ori %range, %tm : {T}"],
    "or of one": [f"%r = arith.ori %range, %range : {T}"],
    "or with true": [f"%r = arith.ori %tc, %true : {T1}"],
    "and with false": [f"%s = arith.xori %true, %tc : {T1}", f"%r = arith.andi %s, %tc : {T1}"],
    "exclusive or with 0": [f"%r = arith.xori %range, %t0 : {T}"],
    "exclusive or twice": [f"%s = arith.xori %range, %tx : {T}", f"%r = arith.xori %s, %tx : {T}"],
    "exclusive or with constants": [
        f"%s = arith.xori %range, %t1 : {T}",
        f"%r = arith.xori %t1, %s : {T}",
    ],
    "there and back": [f"%s = arith.addi %range, %tx : {T}", f"%r = arith.subi %s, %tx : {T}"],
    "back and there": [f"%s = arith.subi %range, %tx : {T}", f"%r = arith.addi %tx, %s : {T}"],
    "sum of constants": [
        f"%c15 = arith.constant dense<15> : {T}",
        f"%s = arith.addi %range, %c15 : {T}",
        f"%r = arith.addi %s, %t1 : {T}",
    ],
    "difference of constants": [
        f"%s = arith.subi %t1, %range : {T}",
        f"%r = arith.subi %t1, %s : {T}",
    ],
    "product of constants": [
        f"%s = arith.muli %range, %tm : {T}",
        f"%r = arith.muli %s, %tm : {T}",
    ],
    "minimum with the least": [f"%r = arith.minsi %range, %least : {T}"],
    "minimum with the greatest": [f"%r = arith.minui %range, %tm : {T}"],
    "maximum with the greatest": [f"%r = arith.maxui %range, %tm : {T}"],
    "minimum of nothing": [f"%r = arith.minui %range, %t0 : {T}"],
    "absorbed": [f"%s = arith.ori %range, %tx : {T}", f"%r = arith.andi %s, %range : {T}"],
    "never below 0": [f"%r = arith.cmpi ult, %tx, %t0 : {T}"],
    "never above": [f"%r = arith.cmpi sge, %tx, %least : {T}"],
    "shifted and back": [f"%s = arith.shli %range, %tx : {T}", f"%r = arith.shrsi %s, %tx : {T}"],
    "times and through": [f"%s = arith.muli %range, %tx : {T}", f"%r = arith.divsi %s, %tx : {T}"],
    "through itself": [f"%r = arith.divsi %range, %range : {T}"],
    "through 1": [f"%r = arith.ceildivsi %range, %t1 : {T}"],
    "chosen by its arms": [
        f"%s = arith.cmpi eq, %range, %tx : {T}",
        f"%r = arith.select %s, %range, %tx : {T1}, {T}",
    ],
    "chosen twice": [
        f"%s = arith.select %tc, %range, %tx : {T1}, {T}",
        f"%r = arith.select %tc, %s, %late : {T1}, {T}",
    ],
    "chosen by what is folded": [
        "%true1 = arith.constant true",
        "%s = arith.ori %c, %true1 : i1",
        f"%r = arith.select %s, %range, %tx : {T}",
    ],
    "computed from what is folded": [
        f"%s = arith.andi %range, %tm : {T}",
        f"%r = arith.addi %s, %tn : {T}",
    ],
}
EXTREMES = f"""\
    %t0 = arith.constant dense<0> : {T}
    %tm = arith.constant dense<-1> : {T}
    %least = arith.constant dense<-2147483648> : {T}
    %true = arith.constant dense<true> : {T1}
"""


@pytest.mark.parametrize("lines", FOLDED.values(), ids=FOLDED)
def test_an_identity_leaves_a_gap(lines):
    assert not info(EXTREMES + "\n".join(f"    {line}" for line in lines)).complete


@pytest.mark.parametrize(
    "lines",
    [
        [f"%r = arith.addi %range, %t0 : {T}"],
        [f"%r = arith.subi %range, %t0 : {T}"],
        [f"%r = arith.muli %range, %t1 : {T}"],
        [f"%r = arith.divsi %range, %t1 : {T}"],
        [f"%r = arith.andi %tc, %true : {T1}"],
        [f"%r = arith.minsi %range, %tm : {T}"],
        [f"%r = arith.minsi %range, %range : {T}"],
        [f"%r = arith.andi %range, %t6 : {T}"],
        [f"%r = arith.cmpi slt, %range, %t0 : {T}"],
        [f"%r = arith.cmpi eq, %range, %tx : {T}"],
        ["%s = arith.extui %c : i1 to i32", "%r = arith.cmpi eq, %s, %0 : i32"],
        [f"%s = arith.addi %range, %t4 : {T}", f"%r = arith.addi %s, %t1 : {T}"],
        [f"%s = arith.divsi %range, %tx : {T}", f"%r = arith.muli %s, %tx : {T}"],
        [f"%s = arith.muli %tx, %tn : {T}", f"%r = arith.addi %s, %tn : {T}"],
    ],
    ids=lambda lines: lines[-1].split(" : ")[0],
)
def test_what_the_rules_see_leaves_none(lines):
    assert info(EXTREMES + "\n".join(f"    {line}" for line in lines)).complete


#: ``{}`` is a condition; what an ``scf.if`` yields is known as far as both ways are.
CHOICE = """\
    %r = scf.if {} -> (tensor<16xi32>) {{
      scf.yield %range : tensor<16xi32>
    }} else {{
      scf.yield %tx : tensor<16xi32>
    }}
"""


@pytest.mark.parametrize(
    ("line", "complete"),
    [
        ("%k = arith.andi %c, %c : i1", True),
        ("%y = arith.constant true\n    %k = arith.ori %c, %y : i1", False),
        ("%y = arith.minui %x, %0 : i32\n    %k = arith.cmpi eq, %y, %0 : i32", False),
        ("%k = arith.cmpi uge, %x, %0 : i32", False),
        ("%k = arith.cmpi sgt, %x, %0 : i32", True),
    ],
)
def test_conditions_that_a_host_folds(line, complete):
    assert info(f"    {line}\n{CHOICE.format('%k')}").complete == complete


@pytest.mark.parametrize(("outer", "complete"), [("%c", False), ("%d", True)])
def test_a_condition_is_known_inside_of_its_branch(outer, complete):
    inner = CHOICE.format("%c").replace("%r =", "%s =")
    body = f"""\
    %d = arith.cmpi sgt, %x, %0 : i32
    %r = scf.if {outer} -> (tensor<16xi32>) {{
{inner}      scf.yield %s : tensor<16xi32>
    }} else {{
      scf.yield %range : tensor<16xi32>
    }}
"""
    assert info(body).complete == complete


@pytest.mark.parametrize(
    ("head", "complete"),
    [
        ("%i = %0 to %x step %1", True),
        ("%i = %0 to %4 step %1", True),
        ("unsigned %i = %0 to %4 step %1", False),
        ("%i = %4 to %0 step %0", False),
        ("%i = %x to %x step %1", False),
        ("%i = %0 to %y step %1", False),
        ("%i = %x to %z step %1", False),
    ],
)
def test_loops_that_a_host_counts(head, complete):
    body = f"""\
    %y = arith.minui %x, %0 : i32
    %z = arith.addi %x, %1 : i32
    %r = scf.for {head} iter_args(%a = %range) -> (tensor<16xi32>) : i32 {{
      %b = arith.addi %a, %tn : tensor<16xi32>
      scf.yield %b : tensor<16xi32>
    }}
"""
    analysis, values = analyse(body)
    assert analysis.info(values["%r"]).complete == complete
    assert analysis.info(values["%a"]).complete == complete


def test_an_unsigned_loop_runs_as_often_as_its_bounds_say():
    # 0 to -1 is nothing for a signed loop.
    body = """\
    %end = arith.constant -1 : i32
    %r = scf.for unsigned %i = %0 to %end step %1 iter_args(%a = %range) -> (tensor<16xi32>) : i32 {
      scf.yield %tx : tensor<16xi32>
    }
"""
    found = info(body)
    assert found.contiguity == (1,)
    assert not found.complete
    assert info(body, "%a").contiguity == (1,)


def test_what_no_path_reaches_leaves_a_gap():
    body = """\
    scf.for %i = %4 to %0 step %1 iter_args(%a = %range) -> (tensor<16xi32>) : i32 {
      %r = arith.addi %a, %tn : tensor<16xi32>
      scf.yield %r : tensor<16xi32>
    }
"""
    found = info(body.replace("    scf.for", "    %u = scf.for"))
    assert found == AxisInfo((1,), (1,), (1,), None, found.gap)
    assert found.gap.name == "arith.addi"


@pytest.mark.parametrize("second", ["%p", "%q"])
@pytest.mark.parametrize("noinline", ["true", "false"])
def test_a_host_may_put_a_function_in_the_place_of_its_calls(second, noinline):
    text = f"""\
module {{
  tt.func public @f(%p: !tt.ptr<f16> {{tt.divisibility = 16 : i32}}, %q: !tt.ptr<f16>) {{
    %x = tt.call @g(%p) : (!tt.ptr<f16>) -> !tt.ptr<f16>
    %y = tt.call @g({second}) : (!tt.ptr<f16>) -> !tt.ptr<f16>
    tt.return
  }}
  tt.func private @g(%a: !tt.ptr<f16>) -> !tt.ptr<f16> attributes {{noinline = {noinline}}} {{
    tt.return %a : !tt.ptr<f16>
  }}
}}
"""
    module = ir.parse(text)
    analysis = AxisInfoAnalysis.of(module)
    argument = module.body[1].regions[0].blocks[0].args[0]
    [call, _] = [op for op in module.walk() if op.name == "tt.call"]
    inlined = noinline == "false"
    assert analysis.info(argument).complete == (not inlined or second == "%p")
    assert analysis.info(call.results[0]).complete == (not inlined)


@pytest.mark.parametrize(
    ("condition", "complete"),
    [("%c", True), ("%d", True), ("%folds", False), ("%known", False)],
)
def test_edges_and_loops_of_which_a_host_may_know_whether_they_are_taken(condition, complete):
    head = """\
    %d = arith.cmpi sgt, %x, %0 : i32
    %least = arith.minui %x, %0 : i32
    %folds = arith.cmpi eq, %least, %0 : i32
    %known = arith.constant true
"""
    loop = f"""\
    %r = scf.while (%a = %range) : (tensor<16xi32>) -> tensor<16xi32> {{
      scf.condition({condition}) %a : tensor<16xi32>
    }} do {{
    ^bb0(%b: tensor<16xi32>):
      scf.yield %tx : tensor<16xi32>
    }}
"""
    assert info(head + loop).complete == complete
    branch = f"""\
    cf.cond_br {condition}, ^one(%range : tensor<16xi32>), ^one(%tx : tensor<16xi32>)
  ^one(%r: tensor<16xi32>):
"""
    # Of a constant the analysis takes the way that hosts take.
    assert info(head + branch).complete == (complete or condition == "%known")


def test_a_condition_is_known_behind_its_branch():
    body = """\
    cf.cond_br %c, ^one, ^two
  ^one:
    %r = arith.select %c, %range, %tx : tensor<16xi32>
    cf.br ^two
  ^two:
"""
    assert not info(body).complete


def test_constants_of_which_only_a_part_is_folded_here():
    # What is computed with floating-point numbers is not computed here, but may be by a host.
    body = """\
    %f = arith.constant 2.0 : f32
    %g = arith.mulf %f, %f : f32
    %r = arith.fptosi %g : f32 to i32
"""
    assert not info(body).complete
