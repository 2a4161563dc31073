"""Predicted wavefronts are those that the GPU counts, and the cycles that accesses take.

Each counter test profiles all of its kernels in one process under ``ncu``; where there is no
``ncu``, or it may not read counters, the cycles have to do.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", minversion="3.9")
from benchmarks.bank_conflicts import (
    CASES,
    WIDTHS,
    compiled,
    count,
    cycles_of,
    expected,
    first_addresses,
    patterns,
    predicted,
)

pytestmark = pytest.mark.gpu

PATTERNS = 40


@pytest.fixture(scope="module")
def counted():
    try:
        return count(PATTERNS)
    except RuntimeError as error:
        pytest.skip(str(error))


def test_kernels_count_what_is_predicted(counted):
    cases, _ = counted
    wrong = []
    for case, got in zip(CASES, cases, strict=True):
        said = predicted(case, compiled(case)).wavefronts
        # What the unit counts besides is no access of ours.
        if got.sass != said or not said <= got.unit <= 1.02 * said + 2:
            wrong.append((case.op, case.name, said, got))
    assert not wrong


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("op", ["read", "write"])
def test_addresses_count_what_is_predicted(counted, op, bits):
    _, by_address = counted
    rows = patterns(bits, PATTERNS)
    said = [expected(row, bits, is_store=op == "write") for row in rows]
    assert [got.unit for got in by_address[op, bits]] == said


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("op", ["read", "write"])
def test_cycles_are_wavefronts(op, bits):
    rows = patterns(bits, 132)
    said = [expected(row, bits, is_store=op == "write") for row in rows]
    cycles = cycles_of(rows, bits, is_store=op == "write")
    wrong = [
        (row, predicted_, got)
        for row, predicted_, got in zip(rows, said, cycles, strict=True)
        if round(got) != predicted_ and abs(got / predicted_ - 1) > 0.15
    ]
    assert not wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.name}")
def test_cycles_of_the_first_access(case):
    kernel = compiled(case)
    addresses = first_addresses(case, kernel)
    if addresses is None:
        pytest.skip("matrices have no address for each lane")
    bits, is_store = predicted(case, kernel).bits, case.op == "write"
    (cycles,) = cycles_of([addresses], bits, is_store=is_store)
    assert round(cycles) == expected(addresses, bits, is_store=is_store)
