"""triton-ext-verify-async-waits: against an executable model of the queues, on kernels and mutants.

The model runs a kernel in adversarial schedules and tells which operation read LDS too early, or
wrote it while a copy was at it.  What it finds must be reported at the same operation; kernels that
are right as they are must not be refused.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterator

import async_mistakes
import pytest
from async_blocks import generate_blocks
from async_host import Host
from async_kernels import generate
from async_model import Counts, Program, wrong_numbers
from async_text import Kernel
from ir_helpers import CORPUS, NO_CORPUS
from triton_ext.backends.amd.passes.update_async_wait_count import UpdateAsyncWaitCount
from triton_ext.backends.amd.passes.verify_async_waits import VerifyAsyncWaits
from triton_ext.errors import PassError
from triton_ext.host.capabilities import features
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


def asked(module: Module, arch: str) -> Counts:
    """How waits wait that no pass has lowered; on gfx9 their tokens are of no meaning then."""
    return Counts.lowered(module, marks=arch == "gfx950")


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
        assert not broken(program, asked(located(text), arch), 20), seed
        assert not refused(module), seed
        assert not refused(lowered(module)), f"{seed}, lowered"


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_what_the_model_breaks_is_reported_at_its_line(arch: str) -> None:
    found = 0
    for name, module in mutants(KERNELS, arch):
        lines = broken(Program(module, async_mistakes.emitted_of(arch)), asked(module, arch))
        errors = {error.line for error in refused(module)}
        assert lines <= errors, name
        found += bool(lines)
    assert found > KERNELS / 2


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_nothing_is_missed_where_statements_make_no_sense(arch: str) -> None:
    for seed in range(2 * KERNELS):
        module = located(generate(seed, "3.9.0", arch, "arbitrary"))
        program = Program(module, async_mistakes.emitted_of(arch))
        lines = broken(program, asked(module, arch))
        assert lines <= {error.line for error in refused(module)}, seed


def test_nothing_is_missed_between_blocks_and_in_functions() -> None:
    """Nor has a wait a number that is too high: what it asks for is done behind it."""
    found = 0
    for seed in range(2 * KERNELS):
        text = generate_blocks(seed)
        program = Program(located(text), async_mistakes.emitted_of("gfx1250"))
        module = located(text)
        lines = broken(program, asked(module, "gfx1250"), 30)
        assert lines <= {error.line for error in refused(module)}, seed
        counts = Counts.lowered(lowered(module))
        faults = program.search(range(30), counts)
        assert not wrong_numbers(faults), seed
        lines = {place_of(fault.op).line for fault in faults if fault.kind != "wait"}
        assert lines <= {error.line for error in refused(module)}, f"{seed}, lowered"
        found += bool(lines)
    assert found > KERNELS


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
        assert not broken(program, asked(module, arch)), name
        fixed += 1
    assert fixed


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
def test_what_is_raised_is_right(arch: str) -> None:
    """A kernel that was right is so behind ``fix=all``, in every partition of it."""
    raised = 0
    for seed in range(2 * KERNELS):
        text = generate(seed, "3.9.0", arch)
        module = located(text)
        before = str(module)
        assert not refused(module, fix="all"), seed
        raised += str(module) != before
        assert not refused(module), seed
        program = Program(module, async_mistakes.emitted_of(arch))
        assert not broken(program, asked(module, arch)), seed
    assert raised


@pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
@pytest.mark.parametrize(
    "tells",
    [
        "gpu.barrier",
        '"test.anything"() : () -> ()',
        "%told{} = tt.atomic_rmw add, release, gpu, %flag{}, %one{} : (!tt.ptr<i32>, i32) -> i32",
    ],
)
def test_nothing_is_raised_in_front_of_what_tells_others(arch: str, tells: str) -> None:
    for seed in range(KERNELS // 2):
        lines = []
        for number, line in enumerate(generate(seed, "3.9.0", arch).splitlines()):
            lines.append(line)
            if any(f"{name} " in line for name in WAITS):
                lines.append(tells.replace("{}", str(number)))
                if "%flag" in tells:
                    zero = f"%zero{number} = arith.constant 0 : i64"
                    to_pointer = (
                        f"%flag{number} = tt.int_to_ptr %zero{number} : i64 -> !tt.ptr<i32>"
                    )
                    one = f"%one{number} = arith.constant 1 : i32"
                    lines[-1:-1] = [zero, to_pointer, one]
        module = located("\n".join(lines))
        before = str(module)
        refused(module, fix="all")
        assert str(module) == before, seed


# ---- pipelines as people write them: right with one number, wrong with the next

ROWS = 16


class Pipeline:
    """Writes a kernel; tiles are of one instruction.

    Args:
        depth: Number of buffers.
    """

    def __init__(self, depth: int) -> None:
        self.kernel = Kernel("3.9.0", "gfx1250")
        arguments = {"ptr": "!tt.ptr<f16>", "n": "i32", "m": "i32"}
        self.f = self.kernel.function("kernel", arguments)
        arguments["d16"] = self.f.desc_type(ROWS)
        self.depth = depth
        self.buffers = self.f.alloc(ROWS, depth)
        self.f.pointers(ROWS)

    def plus(self, value: str, number: int) -> str:
        return self.f.value(f"arith.addi {value}, {self.f.const(number)} : i32")

    def tile(self, index: str, *, is_slot: bool = False) -> str:
        if not is_slot:
            index = self.f.value(f"arith.remsi {index}, {self.f.const(self.depth)} : i32")
        return self.f.slot(self.buffers, index, ROWS, self.depth)

    def fill(self, tile: str) -> None:
        self.f.commit(self.f.copy(tile, ROWS))

    def read(self, tile: str) -> None:
        self.f.load(tile, ROWS)

    def loop(self, name: str, end: str, carried: str) -> contextlib.AbstractContextManager[None]:
        count = carried.count("=")
        types = ", ".join(["i32"] * count)
        f = self.f
        return f.block(
            f"%{name}:{count} = scf.for %i_{name} = {f.const(0)} to {end} step {f.const(1)} "
            f"iter_args({carried}) -> ({types}) : i32 {{"
        )

    def hand_on(self, *values: str) -> None:
        self.f.emit(f"scf.yield {', '.join(values)} : {', '.join(['i32'] * len(values))}")


def persistent(num: int) -> Pipeline:
    """A counter that goes on over tiles; prologue and epilogue in each tile."""
    p = Pipeline(3)
    f = p.f
    with p.loop("tile", "%m", f"%count = {f.const(0)}"):
        for ahead in (0, 1):
            p.fill(p.tile(p.plus("%count", ahead)))
        end = f.value(f"arith.subi %n, {f.const(2)} : i32")
        with p.loop("k", end, "%x = %count"):
            f.wait(num=num)
            p.read(p.tile("%x"))
            p.fill(p.tile(p.plus("%x", 2)))
            p.hand_on(p.plus("%x", 1))
        f.wait(num=num)
        p.read(p.tile("%k#0"))
        f.wait(num=0)
        p.read(p.tile(p.plus("%k#0", 1)))
        p.hand_on(p.plus("%k#0", 2))
    return p


def continuous(num: int) -> Pipeline:
    """Reads and fills have slots of their own, which rotate on over tiles."""
    p = Pipeline(4)
    f = p.f

    def rotated(slot: str) -> str:
        following = p.plus(slot, 1)
        is_last = f.value(f"arith.cmpi eq, {following}, {f.const(4)} : i32")
        return f.value(f"arith.select {is_last}, {f.const(0)}, {following} : i32")

    for slot in (0, 1):
        p.fill(p.tile(f.const(slot), is_slot=True))
    with p.loop("tile", "%m", f"%r = {f.const(0)}, %w = {f.const(2)}"):
        with p.loop("k", "%n", "%x = %r, %y = %w"):
            p.fill(p.tile("%y", is_slot=True))
            f.wait(num=num)
            p.read(p.tile("%x", is_slot=True))
            p.hand_on(rotated("%x"), rotated("%y"))
        p.hand_on("%k#0", "%k#1")
    return p


def flipped(num: int) -> Pipeline:
    """Two buffers of the tensor data mover; the slot is flipped by ``xori``."""
    p = Pipeline(2)
    f = p.f
    f.tdm_load(p.tile(f.const(0), is_slot=True), ROWS)
    with p.loop("k", "%n", f"%x = {f.const(0)}"):
        other = f.value(f"arith.xori %x, {f.const(1)} : i32")
        f.tdm_load(p.tile(other, is_slot=True), ROWS)
        f.tdm_wait(num=num)
        p.read(p.tile("%x", is_slot=True))
        p.hand_on(other)
    return p


def while_loop(num: int) -> Pipeline:
    p = Pipeline(2)
    f = p.f
    p.fill(p.tile(f.const(0)))
    f.emit(f"%k:1 = scf.while (%x = {f.const(0)}) : (i32) -> (i32) {{")
    more = f.value("arith.cmpi slt, %x, %n : i32")
    f.emit(f"scf.condition({more}) %x : i32")
    f.emit("} do {")
    f.emit("^bb0(%y: i32):")
    following = p.plus("%y", 1)
    p.fill(p.tile(following))
    f.wait(num=num)
    p.read(p.tile("%y"))
    p.hand_on(following)
    f.emit("}")
    return p


def blocks(num: int) -> Pipeline:
    p = Pipeline(2)
    f = p.f
    p.fill(p.tile(f.const(0)))
    f.emit(f"cf.br ^bb1({f.const(0)} : i32)")
    f.emit("^bb1(%y: i32):")
    more = f.value("arith.cmpi slt, %y, %n : i32")
    f.emit(f"cf.cond_br {more}, ^bb2, ^bb3")
    f.emit("^bb2:")
    following = p.plus("%y", 1)
    p.fill(p.tile(following))
    f.wait(num=num)
    p.read(p.tile("%y"))
    f.emit(f"cf.br ^bb1({following} : i32)")
    f.emit("^bb3:")
    return p


def counted(num: int) -> Pipeline:
    """A prologue that is a loop of three iterations."""
    p = Pipeline(4)
    f = p.f
    with f.block(f"scf.for %j = {f.const(0)} to {f.const(3)} step {f.const(1)} : i32 {{"):
        p.fill(p.tile("%j"))
    f.wait(num=num)
    p.read(p.tile(f.const(0), is_slot=True))
    with f.block(f"scf.for %i = {f.const(1)} to {f.const(3)} step {f.const(1)} : i32 {{"):
        f.wait(num=num - 1)
        p.fill(p.tile(p.plus("%i", 2)))
        p.read(p.tile("%i"))
    return p


@pytest.mark.parametrize(
    ("write", "best"),
    [(persistent, 1), (continuous, 2), (flipped, 1), (while_loop, 1), (blocks, 1), (counted, 2)],
)
def test_pipelines_that_people_write(write: Callable[[int], Pipeline], best: int) -> None:
    right, wrong = (write(num) for num in (best, best + 1))
    for each in (right, wrong):
        each.f.drain()
    right, wrong = (located(str(each.kernel)) for each in (right, wrong))
    assert not refused(right)
    assert any("read of LDS" in error.message for error in refused(wrong))
    assert not refused(wrong, fix="unsafe")
    assert str(wrong) == str(right)


@pytest.mark.parametrize(
    ("case", "arch"),
    [pytest.param(c, a, id=f"{c.name}-{a}") for c in async_mistakes.CASES for a in c.arches],
)
def test_what_triton_gets_wrong_is_reported(
    case: async_mistakes.Case, arch: str, host: Host
) -> None:
    if host.version not in case.hosts or case.dies:
        pytest.skip(f"triton {host.version} gives no wrong number")
    text = async_mistakes.make(case, host.version, arch)
    printed = host.lowered(text, arch)
    assert isinstance(printed, str)
    with pytest.raises(PassError) as raised:
        VerifyAsyncWaits().run(parse(printed), PassContext("", features))
    assert raised.value.message.startswith("unsafe ")
    # The kernel itself is right, unless the host looks at its numbers where it has tokens.
    if case.name != "token-ignored":
        VerifyAsyncWaits().run(parse(text), PassContext("", features))
    module = parse(text)
    UpdateAsyncWaitCount().run(module, PassContext("", features))
    VerifyAsyncWaits().run(module, PassContext("", features))


def test_the_corpus_is_right() -> None:
    """What Triton's own pipeliner makes, before and behind our numbers; all of it has waits."""
    files = [f for f in sorted(CORPUS.glob("3.[89].*/hip-*/*.ttgir")) if "async" in f.read_text()]
    if not files:
        pytest.skip(NO_CORPUS)
    for file in files:
        module = parse(file.read_text(), file.name)
        assert not refused(module), file
        assert not refused(lowered(module)), f"{file}, lowered"
