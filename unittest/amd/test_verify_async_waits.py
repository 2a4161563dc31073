"""tritonext-verify-async-waits: against an executable model of the queues, on kernels and mutants.

The model runs a kernel in adversarial schedules and tells which operation read LDS too early, or
wrote it while a copy was at it.  What it finds must be reported at the same operation; kernels that
are right as they are must not be refused.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator

import async_mistakes
import pytest
from async_kernels import generate
from async_model import Counts, Program
from triton_ext.backends.amd.passes.update_async_wait_count import UpdateAsyncWaitCount
from triton_ext.backends.amd.passes.verify_async_waits import VerifyAsyncWaits
from triton_ext.errors import PassError
from triton_ext.ir import Module, Operation, parse
from triton_ext.passes import PassContext
from triton_ext.passes.places import place_of

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
KERNELS = 200 if NIGHTLY else 12
SCHEDULES = 300 if NIGHTLY else 60

#: What a recent host can do; ``MARKS`` are those that make groups of waits on gfx9.
FEATURES = frozenset(
    {"amd-async-stores", "amd-tdm-rows", "amd-tdm-intrinsic-wait", "amd-tdm-rows-by-layout"}
    | {"amd-masked-loads-predicated", "amd-async-marks"}
)
WAITS = (
    "ttg.async_wait",
    "amdg.async_wait",
    "amdg.async_tdm_wait",
    "amdg.async_tdm_intrinsic_wait",
)
_WAIT = re.compile(r"(async_wait|async_tdm_wait)( [^{\n]*)\{num = (\d+) : i32\}")
_NUMBER = re.compile(r"\b(num|num_inst|count) = (\d+) : i32")


def located(text: str) -> Module:
    """The module with the place of each operation in the text as its location."""
    module = parse(text, "kernel.mlir")
    for op in list(module.walk()):
        if op.parent is not None:
            op.set_loc(f'loc("kernel.mlir":{op.error("").line}:1)')
    return module


def refused(module: Module, **options: str) -> list[PassError]:
    """The errors of the verifier."""
    try:
        VerifyAsyncWaits(**options).run(module, PassContext("", lambda: FEATURES))
    except PassError as error:
        return [error, *error.others]
    return []


def lowered(module: Module) -> Module:
    """The module with numbers of instructions in its waits."""
    UpdateAsyncWaitCount().run(module, PassContext("", lambda: FEATURES))
    return module


def broken(program: Program, counts: Counts, schedules: int = SCHEDULES) -> set[int]:
    """Lines of the operations that the model saw at LDS too early."""
    faults = program.search(range(schedules), counts)
    return {place_of(fault.op).line for fault in faults if fault.kind != "wait"}


def waits_of(module: Module) -> list[Operation]:
    return [op for op in module.walk() if op.name in WAITS]


def mutants(count: int, arch: str) -> Iterator[tuple[str, Module]]:
    """Kernels in which one wait lets more through than it should, or has lost its tokens."""
    for seed in range(count):
        text = generate(seed, "3.9.0", arch)
        rng = random.Random(seed)
        waits = list(_WAIT.finditer(text))
        for wait in rng.sample(waits, min(len(waits), 4)):
            more = rng.choice((1, 1, 50))
            tokens, number = wait[2], int(wait[3]) + more
            if tokens.strip():
                tokens, number = " ", 63  # as good as no wait
            changed = f"{wait[1]}{tokens}{{num = {number} : i32}}"
            line = text.count("\n", 0, wait.start()) + 1
            mutant = text[: wait.start()] + changed + text[wait.end() :]
            yield f"seed {seed}, wait in line {line}: {changed}", located(mutant)


def raise_number(wait: Operation, more: int) -> None:
    match = _NUMBER.search(wait.text)
    assert match is not None
    wait.set_attribute(match[1], f"{int(match[2]) + more} : i32")


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_no_kernel_that_is_right_is_refused(arch: str) -> None:
    for seed in range(2 * KERNELS):
        text = generate(seed, "3.9.0", arch)
        module = located(text)
        program = Program(located(text), async_mistakes.emitted_of(arch))
        assert not broken(program, Counts.contract(located(text)), 20), seed
        assert not refused(module), seed
        assert not refused(lowered(module)), f"{seed}, lowered"


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_what_the_model_breaks_is_reported_at_its_line(arch: str) -> None:
    found = 0
    for name, module in mutants(KERNELS, arch):
        lines = broken(Program(module, async_mistakes.emitted_of(arch)), Counts.contract(module))
        errors = {error.line for error in refused(module)}
        assert lines <= errors, name
        found += bool(lines)
    assert found > KERNELS / 2


def test_a_number_of_instructions_that_is_one_too_high_is_reported() -> None:
    found = 0
    for seed in range(KERNELS):
        text = generate(seed, "3.9.0", "gfx1250")
        program = Program(located(text), async_mistakes.emitted_of("gfx1250"))
        module = lowered(located(text))
        for wait in waits_of(module)[:6]:
            match = _NUMBER.search(wait.text)
            assert match is not None
            raise_number(wait, 1)
            lines = broken(program, Counts.lowered(module))
            assert lines <= {error.line for error in refused(module)}, f"{seed}: {wait.text}"
            found += bool(lines)
            wait.set_attribute(match[1], f"{match[2]} : i32")
    assert found > KERNELS / 4


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_what_is_fixed_is_right(arch: str) -> None:
    """Behind ``fix`` nothing is refused, and the model finds nothing, where numbers can do it."""
    fixed = 0
    for name, module in mutants(KERNELS // 2, arch):
        if not refused(module) or any(wait.operands for wait in waits_of(module)):
            continue
        assert not refused(module, fix="all"), name
        assert not refused(module), name
        program = Program(module, async_mistakes.emitted_of(arch))
        assert not broken(program, Counts.contract(module)), name
        fixed += 1
    assert fixed
