"""Ranges through control flow, assumptions and tensors, with the numbers worked out."""

from __future__ import annotations

import pytest
from triton_ext import ir
from triton_ext.analysis.ranges import IntegerRange, RangeAnalysis

HEADER = """\
tt.func public @f(%c: i1, %n: i32, %m: i32, %k: index, %p: !tt.ptr<i32>, %t: tensor<64xi32>) {
  %0 = arith.constant 0 : i32
  %1 = arith.constant 1 : i32
  %2 = arith.constant 2 : i32
  %10 = arith.constant 10 : i32
  %2000 = arith.constant 2000 : i32
  %lane = tt.make_range {end = 68 : i32, start = 4 : i32} : tensor<64xi32>
"""


class Found:
    """The analysis of a function that begins as above, and its values by name."""

    def __init__(self, body: str, **options) -> None:
        self.module = ir.parse(f"{HEADER}{body}\n  tt.return\n}}\n", "t.mlir")
        self.values = {
            value.name: value
            for op in self.module.walk()
            for value in (
                *op.results,
                *(argument for region in op.regions for b in region.blocks for argument in b.args),
            )
        }
        self.analysis = RangeAnalysis.of(self.module, **options)

    def __getitem__(self, name: str) -> IntegerRange | None:
        return self.analysis.range(self.values[name])

    def op(self, name: str) -> ir.Operation:
        return next(op for op in self.module.walk() if op.name == name)


def bounds(found: IntegerRange | None) -> tuple[int, int]:
    """The signed bounds."""
    assert found is not None
    return found.smin, found.smax


# ---- tensors


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tt.splat %10 : i32 -> tensor<8xi32>", (10, 10)),
        ("tt.expand_dims %lane {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>", (4, 67)),
        ("tt.reshape %lane allow_reorder : tensor<64xi32> -> tensor<8x8xi32>", (4, 67)),
        ("ttg.convert_layout %lane : tensor<64xi32> -> tensor<64xi32>", (4, 67)),
        ("tt.join %lane, %t : tensor<64xi32> -> tensor<64x2xi32>", (-(1 << 31), (1 << 31) - 1)),
        ("arith.addi %lane, %lane : tensor<64xi32>", (8, 134)),
        ("arith.constant dense<[3, -5]> : tensor<2xi32>", (-5, 3)),
        ("tt.get_program_id y : i32", (0, (1 << 31) - 1)),
        ("tt.get_num_programs z : i32", (0, (1 << 31) - 1)),
        ('"tt.get_program_id"() <{axis = 1 : i32}> : () -> i32', (0, (1 << 31) - 1)),
        # As many as there are elements.
        ("tt.histogram %t : tensor<64xi32> -> tensor<8xi32>", (0, 64)),
        ("tt.gather %lane[%t] {axis = 0 : i32} : (tensor<64xi32>, tensor<64xi32>)"
         " -> tensor<64xi32>", (4, 67)),
        # 67 * 67 is less than 2^32.
        ("tt.mulhiui %lane, %lane : tensor<64xi32>", (0, 0)),
        ("tt.load %p : !tt.ptr<i32>", (-(1 << 31), (1 << 31) - 1)),
        ("new.op %0 : i32 -> i32", (-(1 << 31), (1 << 31) - 1)),
    ],
)  # fmt: skip
def test_numbers_that_are_made_and_moved(line, expected):
    assert bounds(Found(f"  %r = {line}")["%r"]) == expected


def test_program_ids_that_the_caller_bounds():
    body = "  %x = tt.get_program_id x : i32\n  %y = tt.get_program_id y : i32"
    found = Found(body, programs={0: 7})
    assert bounds(found["%x"]) == (0, 7)
    assert found["%y"].smax == (1 << 31) - 1


def test_rules_of_a_vendor():
    body = "  %r = new.op %10 : i32 -> i32"
    assert bounds(Found(body, rules={"new.op": lambda visit: visit.operands[0]})["%r"]) == (10, 10)


def test_pointers_and_floats_have_no_range():
    found = Found("  %x = arith.constant 1.0 : f32")
    assert found["%x"] is None
    assert found["%p"] is None
    assert not found.analysis.is_reached(found.values["%p"])
    assert found["%n"].is_full


# ---- loops

SUM = """\
  %r = scf.for %i = {lower} to {upper} step {step} iter_args(%a = %1) -> (i32)  : i32 {{
    %b = arith.addi %a, %2 : i32
    scf.yield %b : i32
  }}"""


def test_a_loop_is_run_as_often_as_it_is():
    found = Found(SUM.format(lower="%0", upper="%10", step="%2"))
    # 5 iterations, with i = 0, 2, .. 8 and a = 1, 3, .. 9.
    assert bounds(found["%i"]) == (0, 8)
    assert bounds(found["%a"]) == (1, 9)
    assert bounds(found["%b"]) == (3, 11)
    assert bounds(found["%r"]) == (11, 11)
    assert found.analysis.trip_count(found.op("scf.for")) == 5


def test_a_loop_of_bounded_length():
    assumed = """\
  %up = arith.cmpi sle, %n, %10 : i32
  llvm.intr.assume %up : i1
"""
    found = Found(assumed + SUM.format(lower="%2", upper="%n", step="%2"))
    # Up to 4 iterations, or none.
    assert bounds(found["%r"]) == (1, 9)
    assert found.analysis.trip_count(found.op("scf.for")) == 4


def test_a_loop_without_iterations_is_not_entered():
    found = Found(SUM.format(lower="%10", upper="%2", step="%1"))
    assert bounds(found["%r"]) == (1, 1)
    assert not found.analysis.is_reached(found.values["%b"])
    assert found["%b"].is_full
    assert found.analysis.trip_count(found.op("scf.for")) == 0


@pytest.mark.parametrize("step", ["%1", "%m"])
def test_a_loop_of_unknown_or_great_length(step):
    upper = "%2000" if step == "%1" else "%10"
    found = Found(SUM.format(lower="%0", upper=upper, step=step))
    assert found["%r"].is_full
    assert bounds(found["%i"]) == (0, 1999 if step == "%1" else 9)
    expected = 2000 if step == "%1" else None
    assert found.analysis.trip_count(found.op("scf.for")) == expected
    assert found.analysis.total_trip_count(found.op("scf.for")) == expected or 1025


def test_what_does_not_grow_is_kept_in_loops_of_unknown_length():
    body = """\
  %r = scf.for %i = %0 to %n step %1 iter_args(%a = %0) -> (i32)  : i32 {
    %b = arith.addi %a, %1 : i32
    %c2 = arith.cmpi slt, %b, %10 : i32
    %d = arith.select %c2, %b, %0 : i32
    %e = arith.remui %d, %10 : i32
    scf.yield %e : i32
  }"""
    assert bounds(Found(body)["%r"]) == (0, 9)


def test_values_that_take_turns():
    body = """\
  %r:2 = scf.for %i = %0 to %10 step %1 iter_args(%a = %1, %b = %2) -> (i32, i32)  : i32 {
    scf.yield %b, %a : i32, i32
  }
  %s:2 = scf.for %i2 = %0 to %m step %1 iter_args(%a2 = %1, %b2 = %2) -> (i32, i32)  : i32 {
    scf.yield %b2, %a2 : i32, i32
  }
  %u = arith.cmpi sle, %m, %10 : i32
  llvm.intr.assume %u : i1
"""
    found = Found(body)
    # The states repeat after two iterations; all of one turn count as the last one.
    for name in ("%r#0", "%r#1", "%s#0", "%s#1"):
        assert bounds(found[name]) == (1, 2)


def test_nested_loops_are_run_as_often_as_both_say():
    body = """\
  %r = scf.for %i = %0 to %10 step %1 iter_args(%a = %0) -> (i32)  : i32 {
    %s = scf.for %j = %0 to %10 step %1 iter_args(%b = %a) -> (i32)  : i32 {
      %x = arith.addi %b, %2 : i32
      scf.yield %x : i32
    }
    scf.yield %s : i32
  }"""
    found = Found(body)
    # 10 * 10 times 2: the outer loop ends with what the last inner one ends with.
    assert bounds(found["%r"]) == (200, 200)
    assert bounds(found["%s"]) == (20, 200)
    loops = [op for op in found.module.walk() if op.name == "scf.for"]
    assert [found.analysis.total_trip_count(op) for op in loops] == [10, 100]


def test_a_loop_of_unsigned_bounds_has_an_induction_variable_without_a_sign():
    body = """\
  scf.for unsigned %i = %0 to %n step %1 : i32 {
    %x = arith.addi %i, %0 : i32
  }"""
    found = Found(body)
    assert (found["%x"].umin, found["%x"].umax) == (0, (1 << 32) - 2)
    assert found.analysis.trip_count(found.op("scf.for")) is None


def test_while_ends_with_what_its_condition_passes():
    body = """\
  %r = scf.while (%a = %0) : (i32) -> i32 {
    %b = arith.remui %a, %10 : i32
    %go = arith.cmpi slt, %b, %n : i32
    scf.condition(%go) %b : i32
  } do {
  ^bb0(%d: i32):
    %e = arith.addi %d, %2 : i32
    scf.yield %e : i32
  }"""
    found = Found(body)
    assert bounds(found["%r"]) == (0, 9)
    assert bounds(found["%e"]) == (2, 11)
    assert found.analysis.total_trip_count(found.op("scf.while")) == 1025


# ---- branches


def test_if_takes_the_way_that_is_known():
    body = """\
  %less = arith.cmpi slt, %1, %2 : i32
  %r = scf.if %less -> (i32) {
    scf.yield %10 : i32
  } else {
    %x = arith.addi %n, %1 : i32
    scf.yield %x : i32
  }
  %s = scf.if %c -> (i32) {
    scf.yield %10 : i32
  } else {
    scf.yield %2 : i32
  }"""
    found = Found(body)
    assert bounds(found["%r"]) == (10, 10)
    assert not found.analysis.is_reached(found.values["%x"])
    assert bounds(found["%s"]) == (2, 10)


def test_blocks_that_branch_back_end_at_the_extremes():
    body = """\
  cf.br ^bb1(%0, %2 : i32, i32)
^bb1(%a: i32, %b: i32):
  %x = arith.addi %a, %1 : i32
  %y = arith.remui %x, %10 : i32
  cf.cond_br %c, ^bb1(%x, %y : i32, i32), ^bb2
^bb2:
  %z = arith.addi %y, %b : i32"""
    found = Found(body)
    assert found["%a"].is_full
    # A value of a block that is run again, in a block behind it: 9 + 9.
    assert bounds(found["%z"]) == (0, 18)


def test_a_value_that_changes_late_is_seen_by_blocks_that_were_run_before():
    body = """\
  cf.br ^bb1(%0 : i32)
^bb1(%a: i32):
  %x = arith.minsi %a, %10 : i32
  %w = arith.maxsi %x, %0 : i32
  cf.cond_br %c, ^bb2, ^bb3
^bb2:
  %y = arith.addi %w, %2 : i32
  cf.br ^bb1(%y : i32)
^bb3:
  %z = arith.addi %w, %1 : i32"""
    found = Found(body)
    # %a is 0, 2, .. 12; %w is at most 10; %z is not an argument, but has to follow.
    assert bounds(found["%w"]) == (0, 10)
    assert bounds(found["%z"]) == (1, 11)


def test_a_branch_that_is_never_taken():
    body = """\
  %less = arith.cmpi slt, %2, %1 : i32
  cf.cond_br %less, ^bb1(%n : i32), ^bb2(%2 : i32)
^bb1(%a: i32):
  cf.br ^bb2(%a : i32)
^bb2(%b: i32):"""
    found = Found(body)
    assert not found.analysis.is_reached(found.values["%a"])
    assert bounds(found["%b"]) == (2, 2)


def test_partitions_get_what_is_captured():
    body = """\
  %r = ttg.warp_specialize(%10) attributes {requestedRegisters = array<i32: 24>}
  default {
    %x = arith.addi %2, %1 : i32
    ttg.warp_yield %x : i32
  }
  partition0(%a: i32) num_warps(1) {
    %b = arith.addi %a, %a : i32
    ttg.warp_return
  } : (i32) -> i32"""
    found = Found(body)
    assert bounds(found["%r"]) == (3, 3)
    assert bounds(found["%b"]) == (20, 20)


def test_regions_of_which_nothing_is_known():
    body = """\
  %r = "tt.reduce"(%t) <{axis = 0 : i32}> ({
  ^bb0(%a: i32, %b: i32):
    %x = arith.remui %a, %10 : i32
    tt.reduce.return %x : i32
  }) : (tensor<64xi32>) -> i32"""
    found = Found(body)
    assert found["%a"].is_full
    assert bounds(found["%x"]) == (0, 9)
    assert found["%r"].is_full


# ---- assumptions


def test_an_assumption_holds_in_all_of_its_block():
    body = """\
  %before = arith.addi %n, %1 : i32
  %low = arith.cmpi sge, %n, %0 : i32
  llvm.intr.assume %low : i1
  %high = arith.cmpi sgt, %10, %n : i32
  llvm.intr.assume %high : i1
  %after = arith.addi %n, %1 : i32"""
    found = Found(body)
    assert bounds(found["%n"]) == (0, 9)
    assert bounds(found["%before"]) == bounds(found["%after"]) == (1, 10)
    assert found["%low"].truth is found["%high"].truth is True


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_an_assumption_holds_where_it_is_executed(where):
    # The comparison stands outside in both cases: what counts is where it is assumed.
    assume = "llvm.intr.assume %low : i1"
    body = f"""\
  %low = arith.cmpi ult, %n, %10 : i32
  {assume if where == "outside" else ""}
  scf.if %c {{
    {assume if where == "inside" else ""}
    %x = arith.addi %n, %1 : i32
  }}
  %y = arith.addi %n, %1 : i32"""
    found = Found(body)
    assert bounds(found["%x"]) == (1, 10)
    assert found["%y"].is_full == (where == "inside")
    block = found.values["%x"].owner.parent
    assert bounds(found.analysis.range(found.values["%n"], block)) == (0, 9)


def test_an_assumption_holds_in_blocks_that_its_block_dominates():
    body = """\
  %low = arith.cmpi ult, %n, %10 : i32
  cf.cond_br %c, ^bb1, ^bb2
^bb1:
  llvm.intr.assume %low : i1
  cf.cond_br %c, ^bb3, ^bb2
^bb2:
  %x = arith.addi %n, %1 : i32
  cf.br ^bb3
^bb3:
  cf.br ^bb4
^bb4:
  %y = arith.addi %n, %1 : i32"""
    found = Found(body)
    assert found["%x"].is_full
    assert found["%y"].is_full
    assert bounds(Found(body.replace("^bb1, ^bb2", "^bb1, ^bb1"))["%y"]) == (1, 10)


def test_assumptions_of_several_facts_and_of_conditions():
    body = """\
  %low = arith.cmpi sge, %n, %2 : i32
  %high = arith.cmpi sle, %n, %10 : i32
  %both = arith.andi %low, %high : i1
  llvm.intr.assume %both : i1
  %less = arith.cmpi slt, %n, %m : i32
  llvm.intr.assume %less : i1
  %one = arith.cmpi eq, %k, %five : index
  %five = arith.constant 5 : index
  llvm.intr.assume %one : i1
  llvm.intr.assume %c : i1"""
    found = Found(body)
    assert bounds(found["%n"]) == (2, 10)
    assert bounds(found["%k"]) == (5, 5)
    # A comparison with what is no constant is true, and says no more.
    assert found["%less"].truth is True
    assert found["%m"].is_full
    assert found["%c"].truth is True


def test_assumptions_that_contradict_say_nothing_wrong():
    body = """\
  %low = arith.cmpi sgt, %n, %10 : i32
  llvm.intr.assume %low : i1
  %high = arith.cmpi slt, %n, %2 : i32
  llvm.intr.assume %high : i1"""
    assert bounds(Found(body)["%n"]) == (11, (1 << 31) - 1)
