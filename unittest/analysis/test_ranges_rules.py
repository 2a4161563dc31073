"""The rule of every operation of ``arith`` against all numbers of small ranges."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_semantics import BINARY, COMPARE, FLAGS, binary, cast, compared, flag_text, signed
from triton_ext import ir
from triton_ext.analysis.ranges import IntegerRange, RangeAnalysis
from triton_ext.analysis.ranges.bits import and_bounds, or_bounds, xor_bounds

WIDTH = 4
NUMBERS = st.integers(0, (1 << WIDTH) - 1)
FLAG_SETS = {
    name: [frozenset(x for i, x in enumerate(flags) if bits >> i & 1) for bits in range(4)]
    for name, flags in FLAGS.items()
}


def ranges_of(body: str, arguments: str = "%x: i4, %y: i4") -> dict[str, IntegerRange | None]:
    """The range of every named result of a function."""
    module = ir.parse(f"tt.func @f({arguments}) {{\n{body}\n  tt.return\n}}\n")
    analysis = RangeAnalysis.of(module)
    return {value.name: analysis.range(value) for op in module.walk() for value in op.results}


class Operand:
    """An argument of 4 bits with drawn bounds, and the numbers that it may be."""

    def __init__(self, draw, name: str) -> None:
        a, b, c, d = draw(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS))
        (self.umin, self.umax), (self.smin, self.smax) = sorted((a, b)), sorted((c - 8, d - 8))
        which = draw(st.sampled_from(("unsigned", "signed", "both")))
        if which == "unsigned":
            self.smin, self.smax = -8, 7
        elif which == "signed":
            self.umin, self.umax = 0, 15
        self.lines = [
            f"%{name}{number} = arith.constant {bound} : i4\n"
            f"%{name}c{number} = arith.cmpi {predicate}, %{name}, %{name}{number} : i4\n"
            f"llvm.intr.assume %{name}c{number} : i1"
            for number, (predicate, bound) in enumerate(
                (
                    ("uge", signed(self.umin, WIDTH)),
                    ("ule", signed(self.umax, WIDTH)),
                    ("sge", self.smin),
                    ("sle", self.smax),
                )
            )
        ]
        self.numbers = [
            x
            for x in range(16)
            if self.umin <= x <= self.umax and self.smin <= signed(x, WIDTH) <= self.smax
        ]


def body_of(operands: list[Operand], line: str) -> str:
    return "\n".join([*(line for each in operands for line in each.lines), line])


def check(found: IntegerRange | None, results) -> None:
    assert found is not None
    assert all(bits in found for bits in results if bits is not None), found


@pytest.mark.parametrize("name", BINARY)
def test_results_of_two_operands_are_in_the_range(name):
    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def property_(data):
        operands = [Operand(data.draw, "x"), Operand(data.draw, "y")]
        flags = data.draw(st.sampled_from(FLAG_SETS.get(name, [frozenset()])))
        line = f"%r = arith.{name} %x, %y{flag_text(name, flags)} : i4"
        found = ranges_of(body_of(operands, line))["%r"]
        x, y = (each.numbers for each in operands)
        check(found, [binary(name, a, b, WIDTH, flags) for a in x for b in y])

    property_()


@pytest.mark.parametrize("predicate", COMPARE)
def test_comparisons_are_decided_rightly(predicate):
    @settings(max_examples=50, deadline=None)
    @given(st.data())
    def property_(data):
        operands = [Operand(data.draw, "x"), Operand(data.draw, "y")]
        found = ranges_of(body_of(operands, f"%r = arith.cmpi {predicate}, %x, %y : i4"))["%r"]
        x, y = (each.numbers for each in operands)
        results = {compared(predicate, a, b, WIDTH) for a in x for b in y}
        check(found, results)
        whole = all(each.smin == -8 and each.smax == 7 for each in operands)
        if len(results) == 1 and predicate[0] == "u" and whole:
            assert found.truth is not None

    property_()


@pytest.mark.parametrize("name", ["extsi", "extui", "trunci"])
def test_casts_are_in_the_range(name):
    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def property_(data):
        operand = Operand(data.draw, "x")
        flags = data.draw(st.sampled_from(FLAG_SETS.get(name, [frozenset()])))
        after = data.draw(st.integers(1, 3)) if name == "trunci" else 7
        line = f"%r = arith.{name} %x{flag_text(name, flags)} : i4 to i{after}"
        found = ranges_of(body_of([operand], line))["%r"]
        check(found, [cast(name, x, WIDTH, after, flags) for x in operand.numbers])

    property_()


@pytest.mark.parametrize("name", ["addui_extended", "mului_extended", "mulsi_extended"])
def test_both_results_are_in_the_range(name):
    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def property_(data):
        operands = [Operand(data.draw, "x"), Operand(data.draw, "y")]
        tail = ", i1" if name == "addui_extended" else ""
        found = ranges_of(body_of(operands, f"%r:2 = arith.{name} %x, %y : i4{tail}"))
        x, y = (each.numbers for each in operands)
        for a in x:
            for b in y:
                exact = a + b if name == "addui_extended" else a * b
                if name == "mulsi_extended":
                    exact = signed(a, WIDTH) * signed(b, WIDTH)
                check(found["%r#0"], [exact % 16])
                check(found["%r#1"], [(exact >> WIDTH) % 16])

    property_()


def test_select_takes_the_arm_that_is_known():
    body = "%c = arith.constant false\n%a = arith.constant 3 : i4\n%b = arith.constant -2 : i4\n"
    found = ranges_of(
        body
        + "%r = arith.select %c, %a, %b : i4\n"
        + "%s = arith.select %t, %a, %b : i4\n"
        + "%p = arith.select %t, %q, %q : !tt.ptr<i8>",
        "%t: i1, %q: !tt.ptr<i8>",
    )
    assert found["%r"] == IntegerRange.constant(4, -2)
    # {3, 14}: bounds of the one reading do not follow from those of the other.
    assert found["%s"] == IntegerRange(4, 3, 14, -2, 3)
    assert found["%p"] is None


def test_operations_whose_operands_are_always_poison_say_nothing():
    body = "%0 = arith.constant 0 : i4\n%7 = arith.constant 7 : i4\n"
    names = ("divsi", "divui", "remsi", "remui", "ceildivui", "floordivsi")
    lines = [f"%{name} = arith.{name} %x, %0 : i4" for name in names]
    lines += [f"%{name} = arith.{name} %x, %7 : i4" for name in ("shli", "shrsi", "shrui")]
    found = ranges_of(body + "\n".join(lines))
    assert all(found[f"%{name}"].is_full for name in (*names, "shli", "shrsi", "shrui"))


@pytest.mark.parametrize(
    ("bounds_of", "exact"),
    [(and_bounds, operator.and_), (or_bounds, operator.or_), (xor_bounds, operator.xor)],
)
def test_bounds_of_bitwise_operations_are_exact(bounds_of, exact):
    pairs = list(itertools.combinations_with_replacement(range(8), 2))
    for (a, b), (c, d) in itertools.product(pairs, repeat=2):
        results = [exact(x, y) for x in range(a, b + 1) for y in range(c, d + 1)]
        assert bounds_of((a, b), (c, d), 3) == (min(results), max(results))


# ---- the interval itself


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1), st.lists(NUMBERS, min_size=1))
def test_joined_and_met_ranges_have_the_numbers_of_both(x, y):
    one, other = (
        IntegerRange.union(IntegerRange.constant(WIDTH, number) for number in numbers)
        for numbers in (x, y)
    )
    assert all(number in one.joined(other) for number in (*x, *y))
    assert all(
        number in one.met(other) for number in range(16) if number in one and number in other
    )
    assert all(number in other.widened(one) for number in y)
    pieces = [range(lowest, highest + 1) for lowest, highest in one.pieces()]
    assert [n for n in range(16) if n in one] == sorted(n for piece in pieces for n in piece)


def test_bounds_of_one_sign_hold_in_both_readings():
    assert IntegerRange.signed(8, -3, -1) == IntegerRange(8, 253, 255, -3, -1)
    assert IntegerRange.unsigned(8, 3, 127) == IntegerRange(8, 3, 127, 3, 127)
    assert IntegerRange.unsigned(8, 3, 128) == IntegerRange(8, 3, 128, -128, 127)
    # From 0 to 200 and from -1 to 5: from 0 to 5, since -1 is 255.
    both = IntegerRange.full(8).narrowed(unsigned=(0, 200), signed=(-1, 5))
    assert both.met(IntegerRange.unsigned(8, 0, 127)) == IntegerRange(8, 0, 5, 0, 5)
    assert IntegerRange.full(1) == IntegerRange(1, 0, 1, -1, 0)
    assert IntegerRange.constant(1, 1).number == -1


def test_contradictions_narrow_nothing():
    low, high = IntegerRange.unsigned(8, 0, 3), IntegerRange.unsigned(8, 5, 9)
    assert low.met(high) == low
