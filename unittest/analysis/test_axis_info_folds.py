"""Constants of the axis analysis: all pairs of small numbers, flags, and what is poison."""

from __future__ import annotations

import itertools

import pytest
from integer_semantics import (
    BINARY,
    COMPARE,
    FLAGS,
    SHIFTS,
    binary,
    cast,
    compared,
    flag_text,
    signed,
)
from triton_ext import ir
from triton_ext.analysis.axis_info import AxisInfo, AxisInfoAnalysis

WIDTH = 3
NUMBERS = range(1 << WIDTH)
#: MLIR's canonicalizer folds these, and no host's axis analysis does.
UNFOLDED = ("ceildivsi", "ceildivui", "floordivsi")


def constants(width: int) -> str:
    """The constant ``%c<n>`` of every bit pattern of a width."""
    return "\n".join(
        f"%c{bits} = arith.constant {signed(bits, width) if width > 1 else str(bool(bits)).lower()}"
        + (f" : i{width}" if width > 1 else "")
        for bits in range(1 << width)
    )


def infos(lines: list[str], width: int = WIDTH) -> dict[str, AxisInfo]:
    """Returns the claims about every named result, by name."""
    body = "\n".join([constants(width), *lines])
    module = ir.parse(f"tt.func @f(%x: i{width}) {{\n{body}\n  tt.return\n}}\n")
    analysis = AxisInfoAnalysis.of(module)
    return {value.name: analysis.info(value) for op in module.walk() for value in op.results}


def flag_sets(name: str):
    flags = FLAGS.get(name, ())
    for count in range(len(flags) + 1):
        yield from map(frozenset, itertools.combinations(flags, count))


def shown(bits: int | None, width: int) -> int | None:
    """A constant as the analysis shows it; true is 1."""
    return bits if bits is None or width == 1 else signed(bits, width)


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("name", [name for name in BINARY if name not in UNFOLDED])
def test_results_of_constants(name, width):
    for flags in flag_sets(name):
        pairs = list(itertools.product(range(1 << width), repeat=2))
        lines = [
            f"%r{a}_{b} = arith.{name} %c{a}, %c{b}{flag_text(name, flags)} : i{width}"
            for a, b in pairs
        ]
        found = infos(lines, width)
        for a, b in pairs:
            expected = shown(binary(name, a, b, width, flags), width)
            one = found[f"%r{a}_{b}"]
            assert one.constant == expected, f"{a} {name}{flag_text(name, flags)} {b}: {one}"
            # (6) Old hosts have a constant where the result is poison.
            assert expected is not None or not one.complete


@pytest.mark.parametrize("predicate", COMPARE)
def test_comparisons_of_constants(predicate):
    for width in (1, WIDTH):
        pairs = list(itertools.product(range(1 << width), repeat=2))
        found = infos(
            [f"%r{a}_{b} = arith.cmpi {predicate}, %c{a}, %c{b} : i{width}" for a, b in pairs],
            width,
        )
        for a, b in pairs:
            assert found[f"%r{a}_{b}"].constant == compared(predicate, a, b, width)


@pytest.mark.parametrize(("name", "after"), [("extsi", 5), ("extui", 5), ("trunci", 2)])
def test_casts_of_constants(name, after):
    for flags in flag_sets(name):
        tail = f"{flag_text(name, flags)} : i{WIDTH} to i{after}"
        found = infos([f"%r{bits} = arith.{name} %c{bits}{tail}" for bits in NUMBERS])
        for bits in NUMBERS:
            expected = shown(cast(name, bits, WIDTH, after, flags), after)
            assert found[f"%r{bits}"].constant == expected, f"{name} {bits} {tail}"


def test_constants_of_128_bits():
    lines = [
        "%m = arith.constant -1 : i64",
        "%s = arith.extsi %m : i64 to i128",
        "%u = arith.extui %m : i64 to i128",
        "%t = arith.trunci %u : i128 to i64",
    ]
    found = infos(lines)
    assert [found[name].constant for name in ("%s", "%u", "%t")] == [-1, (1 << 64) - 1, -1]


def test_a_constant_that_becomes_a_float_is_none():
    lines = ["%t = arith.constant dense<1> : tensor<8xi32>"]
    lines += ["%f = tt.bitcast %t : tensor<8xi32> -> tensor<8xf32>"]
    found = infos(lines)
    assert found["%t"].constant == 1
    assert found["%f"] == AxisInfo((1,), (1,), (8,))


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_by_what_is_not_known_claim_no_constant(name):
    assert infos([f"%r = arith.{name} %c4, %x : i3"])["%r"].constant is None


# ---- casts to types of other dialects


def test_claims_go_through_other_types():
    lines = [
        "%t = tt.make_range {end = 12 : i32, start = 4 : i32} : tensor<8xi32>",
        "%s = builtin.unrealized_conversion_cast %t : tensor<8xi32> to !llvm.struct<(i32)>",
        "%b = builtin.unrealized_conversion_cast %s : !llvm.struct<(i32)> to tensor<8xi32>",
        "%n = builtin.unrealized_conversion_cast %s : !llvm.struct<(i32)> to tensor<16xi32>",
    ]
    found = infos(lines)
    assert found["%s"] == found["%b"] == found["%t"] == AxisInfo((8,), (4,), (1,))
    assert found["%n"].contiguity == (1,)


def test_a_struct_that_two_ranks_flow_into_claims_nothing():
    text = """
tt.func @f(%c: i1, %a: tensor<8x8xi32> {tt.divisibility = dense<[8, 8]> : tensor<2xi32>},
           %b: tensor<8xi32>) {
  %0 = builtin.unrealized_conversion_cast %a : tensor<8x8xi32> to !llvm.struct<(i32)>
  %1 = builtin.unrealized_conversion_cast %b : tensor<8xi32> to !llvm.struct<(i32)>
  cf.cond_br %c, ^bb1(%0 : !llvm.struct<(i32)>), ^bb1(%1 : !llvm.struct<(i32)>)
^bb1(%s: !llvm.struct<(i32)>):
  %r = builtin.unrealized_conversion_cast %s : !llvm.struct<(i32)> to tensor<8x8xi32>
  tt.return
}
"""
    module = ir.parse(text)
    analysis = AxisInfoAnalysis.of(module)
    (result,) = next(
        op.results for op in module.walk() if op.results and op.results[0].name == "%r"
    )
    assert analysis.info(result).divisibility == (1, 1)
