"""No claim of the axis analysis is false: random expressions are evaluated and compared."""

from __future__ import annotations

import os

import pytest
from axis_info_random import Program, false_claims
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_ext import ir
from triton_ext.analysis.axis_info import AxisInfoAnalysis

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


def test_random_expressions_have_what_is_claimed_of_them():
    run(500)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")
def test_twenty_thousand_random_expressions_have_what_is_claimed_of_them():
    run(20_000)
