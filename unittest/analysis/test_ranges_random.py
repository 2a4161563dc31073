"""No number of a random program is out of its range."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_semantics import cut
from ranges_random import WIDTHS, Abandoned, Program, Run, forget
from triton_ext import ir
from triton_ext.analysis.ranges import RangeAnalysis

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
RUNS = 12


def runs_of(program: Program, function: ir.Operation, random: Random):
    """Executions for drawn arguments, without those that are none."""
    for _ in range(RUNS):
        arguments = [
            cut(random.choice((0, 0, 1 << (width - 1))) + random.randrange(-9, 20), width)
            for width in (WIDTHS[type_] for _, type_ in program.arguments)
        ]
        try:
            yield Run(function, arguments)
        except Abandoned:
            continue


def check(random: Random, length: int) -> int:
    """Fails where a number contradicts its range; returns the number of executions."""
    program = Program(random, length)
    module = ir.parse(program.text)
    module.verify()
    analysis = RangeAnalysis.of(module)
    count = 0
    forget()
    for run in runs_of(program, module.body[0], random):
        count += 1
        for value, bits in run.defined:
            found = analysis.range(value)
            assert analysis.is_reached(value), f"{value.name} is reached\n{program.text}"
            assert bits in found, f"{value.name} is {bits}, not in {found}\n{program.text}"
        for value, block, bits in run.used:
            found = analysis.range(value, block)
            assert bits in found, f"a use of {value.name} is {bits}: {found}\n{program.text}"
        for loop, number in run.iterations:
            most = analysis.trip_count(loop)
            assert most is None or number <= most, f"{number} iterations\n{program.text}"
    return count


def check_many(examples: int) -> None:
    counts = []

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.randoms(use_true_random=True), st.integers(5, 40))
    def property_(random, length):
        counts.append(check(random, length))

    property_()
    # Most programs are run for some arguments.
    assert sum(map(bool, counts)) > examples // 2


@pytest.mark.slow
def test_numbers_of_random_programs_are_in_their_ranges():
    check_many(300)


LOOPS = """\
tt.func @f(%x: i32) {
  %0 = arith.constant 0 : i32
  %1 = arith.constant 1 : i32
  %16 = arith.constant 16 : i32
  %1023 = arith.constant 1023 : i32
  %least = arith.cmpi sge, %x, %0 : i32
  llvm.intr.assume %least : i1
  %most = arith.cmpi sle, %x, %1023 : i32
  llvm.intr.assume %most : i1
"""
NESTED = """\
  %r = scf.for %i = %0 to %16 step %1 iter_args(%a = %0) -> (i32) : i32 {
    %s = scf.for %j = %0 to %16 step %1 iter_args(%b = %a) -> (i32) : i32 {
      %y = arith.addi %b, %x : i32
      scf.yield %y : i32
    }
    scf.yield %s : i32
  }
"""
TURNS = """\
  %r:2 = scf.for %i = %0 to %16 step %1 iter_args(%a = %x, %b = %x) -> (i32, i32) : i32 {
    %y = arith.addi %b, %x : i32
    scf.yield %y, %a : i32, i32
  }
"""


@pytest.mark.parametrize(
    ("loops", "expected"),
    [
        # 16 * 16 iterations add up to 1023 each.
        pytest.param(NESTED, {"%r": 256 * 1023, "%s": 256 * 1023, "%y": 256 * 1023}, id="nested"),
        # Each of two values grows in every other iteration.
        pytest.param(TURNS, {"%r#0": 9 * 1023, "%r#1": 9 * 1023, "%y": 9 * 1023}, id="turns"),
    ],
)
def test_ends_of_ranges_behind_loops_are_numbers_that_occur(loops, expected):
    module = ir.parse(f"{LOOPS}{loops}  tt.return\n}}\n")
    analysis = RangeAnalysis.of(module)
    runs = [Run(module.body[0], [x]) for x in (0, 1, 1023)]
    forget()
    numbers: dict[ir.Value, set[int]] = {}
    for value, bits in (pair for run in runs for pair in run.defined):
        numbers.setdefault(value, set()).add(bits)
    found = {value.name: value for value in numbers}
    for name, most in expected.items():
        claimed = analysis.range(found[name])
        assert (claimed.smin, claimed.smax) == (0, most)
        assert (min(numbers[found[name]]), max(numbers[found[name]])) == (0, most)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")
def test_numbers_of_five_thousand_random_programs_are_in_their_ranges():
    check_many(5_000)
