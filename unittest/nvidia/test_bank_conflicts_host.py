"""The instructions of the model are those that Triton emits, its counts those of an H200.

Needs no GPU: ``bank_conflicts_h200.csv`` is what ``python -m benchmarks bank_conflicts`` counted.
"""

from __future__ import annotations

import csv
import os
import pathlib
import random
import re
from collections import Counter

import pytest

# The counts are those of its code; Gluon of earlier releases refuses some of the kernels.
pytest.importorskip("triton", minversion="3.9")
from benchmarks.bank_conflicts import (
    CASES,
    COLUMNS,
    ROWS,
    Case,
    compiled,
    expected,
    first_addresses,
    predicted,
)

MEASURED = pathlib.Path(__file__).parent / "bank_conflicts_h200.csv"
NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
_PLAIN = r"\b{op}\.shared(?:\.v(\d))?\.b(\d+)"
_MATRIX = r"\b{op}matrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.shared"


def emitted(ptx, op):
    """Reads (writes) of a warp by their bits, and matrices by whether they are transposed."""
    plain = Counter(
        int(match[1] or 1) * int(match[2]) for match in re.finditer(_PLAIN.format(op=op), ptx)
    )
    matrices = Counter()
    for match in re.finditer(_MATRIX.format(op=op), ptx):
        matrices[bool(match[2])] += int(match[1])
    return plain, matrices


def check_instructions(case):
    """Compares instructions; returns the kernel and what is said of it."""
    kernel = compiled(case)
    said = predicted(case, kernel)
    plain, matrices = emitted(kernel.asm["ptx"], "ld" if case.op == "read" else "st")
    each = said.instructions // case.warps
    if said.is_transposed:
        assert not plain
        assert set(matrices) == {True}
        assert -(-matrices[True] // 4) == each
    elif matrices:
        # One matrix for each 32-bit access of a warp that it stands for.
        assert not plain
        assert matrices == {False: each}
        assert said.bits == 32
    else:
        assert plain == {said.bits: each}
    return kernel, said


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.name}")
def test_prediction(case, fresh_triton_cache):
    kernel, said = check_instructions(case)
    addresses = first_addresses(case, kernel)
    assert (addresses is None) == said.is_transposed
    if addresses is not None:
        one = expected(addresses, said.bits, is_store=case.op == "write")
        assert one * said.instructions == said.wavefronts
    assert said.wavefronts == int(counted(case)["wavefronts"])


def random_case(seed):
    """A kernel whose buffer is swizzled in some way."""
    source = random.Random(seed)

    def split(total):
        one = 1 << source.randrange(total.bit_length())
        return [one, total // one]

    bits = source.choice([8, 16, 32, 64])
    order = source.choice([ROWS, COLUMNS])
    registers = (split(source.choice([1, 2, 4, 8])), split(32), split(4), order)
    swizzle = [source.choice([1, 2, 4, 8]), source.choice([1, 2, 4]), source.choice([1, 2, 4, 8])]
    shared = (*swizzle, source.choice([ROWS, COLUMNS]))
    shape = (source.choice([16, 32, 64]), source.choice([32, 64]))
    return Case(f"{seed}", source.choice(["read", "write"]), bits, shape, registers, shared)


@pytest.mark.parametrize("seed", range(150 if NIGHTLY else 12))
def test_instructions_of_random_layouts(seed, fresh_triton_cache):
    check_instructions(random_case(seed))


def counted(case):
    """The row of a case among the measurements."""
    lines = MEASURED.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    (row,) = [row for row in rows if (row["op"], row["case"]) == (case.op, case.name)]
    return row


def test_every_kernel_was_measured():
    lines = MEASURED.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [(row["op"], row["case"]) for row in rows] == [(case.op, case.name) for case in CASES]
    assert len(rows) >= 20
