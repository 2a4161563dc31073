"""Generated kernels: legal, right as written, and right with the numbers of our pass."""

from __future__ import annotations

import os
import sys

import pytest
from async_kernels import generate
from async_mistakes import emitted_of, may_skip_of
from async_model import Counts, Program, wrong_numbers
from async_text import ARCHES
from triton_ext.ir import parse

FLAVOURS = ("intended", "arbitrary")
NIGHTLY = pytest.mark.skipif(
    not os.environ.get("TRITON_EXT_NIGHTLY"), reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it"
)


def program_of(text, host, arch):
    return Program(parse(text), emitted_of(arch), may_skip_of(host.version, arch))


def check(host, arch, flavour, kernels, schedules):
    """Runs kernels with our numbers and returns how many Triton's numbers break."""
    broken = 0
    for seed in kernels:
        text = generate(seed, host.version, arch, flavour)
        program = program_of(text, host, arch)
        faults = wrong_numbers(program.search(schedules, host.ours(parse(text), arch)))
        assert faults == [], f"seed {seed} of {arch}, {flavour}"
        counts = host.counts(text, arch)
        # A pass that dies gives no numbers.
        if isinstance(counts, Counts):
            broken += bool(wrong_numbers(program.search(schedules, counts, stop=True)))
    return broken


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_generated_kernels_are_legal(arch, flavour, host):
    for seed in range(15):
        text = generate(seed, host.version, arch, flavour)
        assert generate(seed, host.version, arch, flavour) == text
        assert host.problems(text) == [], f"seed {seed}"
        parse(text).verify()


@pytest.mark.parametrize("arch", ARCHES)
def test_intended_kernels_are_right_as_written(arch, host):
    for seed in range(40):
        text = generate(seed, host.version, arch)
        program = program_of(text, host, arch)
        contract = Counts.contract(parse(text))
        assert program.search(range(20), contract) == [], f"seed {seed}"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_our_numbers_hold(arch, flavour, host):
    check(host, arch, flavour, range(15), range(20))


@NIGHTLY
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_our_numbers_hold_in_a_million_schedules(arch, flavour, host, capsys):
    """With all targets and flavours: 3,000 kernels, 1,000,000 schedules."""
    broken = check(host, arch, flavour, range(1000, 1500), range(334))
    with capsys.disabled():
        sys.stdout.write(
            f"\ntriton {host.version}, {arch}, {flavour}: the own numbers break {broken} of 500\n"
        )
