"""No claim of the axis analysis is false: random expressions are evaluated and compared."""

from __future__ import annotations

import os

import numpy as np
import pytest
from axis_info_random import Made, Program, false_claims
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_ext import ir
from triton_ext.analysis.axis_info import LIMIT, AxisInfo, AxisInfoAnalysis

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))


def values_of(op):
    """Results, and arguments of the blocks inside."""
    arguments = (block.args for region in op.regions for block in region.blocks)
    return [*op.results, *(argument for each in arguments for argument in each)]


def check(random, length):
    """Fails where a claim about a value of a random function is contradicted by its numbers."""
    program = Program(random, length)
    text = program.text()
    module = ir.parse(text)
    analysis = AxisInfoAnalysis.of(module)
    named = {value.name: value for op in module.walk() for value in values_of(op)}
    for made in (*program.values, *program.inner):
        if made.name in named:
            info = analysis.info(named[made.name])
            assert not false_claims(made, info), f"{made.name}: {info}\n{text}"


def run(examples):
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.randoms(use_true_random=True), st.integers(4, 30))
    def property_(random, length):
        check(random, length)

    property_()


@pytest.mark.slow
def test_random_expressions_have_what_is_claimed_of_them():
    run(500)


LANE = np.arange(128)
#: Groups of 4 that start anywhere at a multiple of 4.
STARTS = [4 * np.random.default_rng(seed).integers(99, size=32) for seed in range(9)]
FOURS = [starts.repeat(4) + LANE % 4 for starts in STARTS]
NONE = [0 * LANE]


@pytest.mark.parametrize(
    ("line", "numbers", "claimed"),
    [
        # Equal multiples of 4 and equal remainders on both sides.
        ("arith.subi %lane, %fours", [LANE - x for x in FOURS], AxisInfo((1,), (4,), (1,))),
        ("arith.subi %lane, %lane", NONE, AxisInfo((1,), (LIMIT,), (128,), 0)),
        ("arith.subi %fours, %fours", NONE, AxisInfo((1,), (LIMIT,), (128,), 0)),
        ("arith.andi %lane, %t64", [LANE & 64], AxisInfo((1,), (64,), (1,))),
        ("arith.shrsi %lane, %t4", [LANE >> 4], AxisInfo((1,), (1,), (16,))),
    ],
)
def test_arithmetic_has_what_is_claimed_of_it(line, numbers, claimed):
    text = f"""\
tt.func @f(%fours: tensor<128xi32> {{tt.contiguity = 4 : i32, tt.divisibility = 4 : i32}}) {{
  %lane = tt.make_range {{end = 128 : i32, start = 0 : i32}} : tensor<128xi32>
  %t4 = arith.constant dense<4> : tensor<128xi32>
  %t64 = arith.constant dense<64> : tensor<128xi32>
  %r = {line} : tensor<128xi32>
  tt.return
}}
"""
    module = ir.parse(text)
    (result,) = (v for op in module.walk() for v in op.results if v.name == "%r")
    info = AxisInfoAnalysis.of(module).info(result)
    shown = AxisInfo(info.contiguity, info.divisibility, info.constancy, info.constant)
    assert shown == claimed
    assert not false_claims(Made("%r", "i32", (128,), numbers), info)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")
def test_twenty_thousand_random_expressions_have_what_is_claimed_of_them():
    run(20_000)
