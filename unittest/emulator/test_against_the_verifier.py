"""The emulator and the verifier of waits say the same of random kernels.

Both are told what a kernel asks for (operations) and what the hardware is told (instructions).  A
kernel that the verifier passes must run; where the control flow is plain, one that it refuses must
fail.  Some kernels end without a wait.
"""

from __future__ import annotations

import os
import random

import pytest

np = pytest.importorskip("numpy")

from emulator_text import tdm_kernel  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.errors import PassError  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.passes import PassManager  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
KERNELS = 800 if NIGHTLY else 80
COUNT = "tritonamdgpu-update-async-wait-count"
VERIFY = "triton-ext-verify-async-waits"


def draw(rng, number, wait):
    """Some lines: copies, waits, reads and writes of three buffers; mostly sensible ones."""
    lines = []
    for _ in range(number):
        buffer = rng.choice("abc")
        kind = rng.choice(
            ("load", "load", "gather", "store", "scatter", wait, wait, "read", "write")
        )
        if kind == wait:
            lines.append(f"${wait} {rng.choice((0, 0, 1, 1, 2, 3))}")
        elif kind == "read":
            lines.append(f"$read v{rng.random()} {buffer}".replace("0.", "r"))
        elif kind == "write":
            lines.append(f"$write {buffer} given")
        else:
            lines.append(f"${kind} {buffer}")
    return lines


def body_of(lines, *, is_drained=True):
    start = [f"$alloc {name}" for name in "abc"]
    start += ["$load c", "$wait 0", "$read given c"]
    return "\n".join([*start, *lines, *["$wait 0"] * is_drained])


def looped(rng, before, inside, behind):
    """The lines with a loop in the middle that runs three times."""
    loop = ["%lo = arith.constant 0 : i32", "%hi = arith.constant 3 : i32"]
    loop += ["%st = arith.constant 1 : i32", "scf.for %i = %lo to %hi step %st : i32 {"]
    return [*before, *loop, *inside, "}", *behind]


def verifier_objects(text):
    try:
        PassManager(VERIFY).run(parse(text))
    except PassError as error:
        return str(error)
    return None


def emulator_objects(text):
    x = np.zeros((20, 50), np.float32)
    arrays = [x, x.copy(), np.zeros((8, 32), np.float32), np.arange(8, dtype=np.int32)]
    try:
        Program(text).run((1,), [*arrays, 20, 50])
    except EmulationError as error:
        return str(error)
    return None


def counted(text):
    """The kernel with its waits in instructions."""
    module = parse(text)
    PassManager(f"{COUNT}{{gfx-arch=gfx1250}}").run(module)
    return str(module)


@pytest.mark.parametrize("wait", ["wait", "count"])
def test_straight_code(wait):
    rng = random.Random(f"straight {wait}")
    verdicts = {True: 0, False: 0}
    for _ in range(KERNELS):
        lines = draw(rng, rng.randint(2, 9), wait)
        text = tdm_kernel(body_of(lines, is_drained=rng.random() < 0.7))
        texts = [text] if wait == "count" else [text, counted(text)]
        for each in texts:
            verifier, emulator = verifier_objects(each), emulator_objects(each)
            assert (verifier is None) == (emulator is None), f"{verifier}\n{emulator}\n{each}"
            verdicts[emulator is None] += 1
    assert min(verdicts.values()) > KERNELS // 10


@pytest.mark.parametrize("wait", ["wait", "count"])
def test_a_loop(wait):
    rng = random.Random(f"loop {wait}")
    verdicts = {True: 0, False: 0}
    for _ in range(KERNELS // 2):
        parts = (draw(rng, rng.randint(0, 3), wait) for _ in range(3))
        text = tdm_kernel(body_of(looped(rng, *parts), is_drained=rng.random() < 0.7))
        verifier, emulator = verifier_objects(text), emulator_objects(text)
        # Three iterations are as many as a wait can look back over here.
        assert (verifier is None) == (emulator is None), f"{verifier}\n{emulator}\n{text}"
        verdicts[emulator is None] += 1
    assert min(verdicts.values()) > KERNELS // 20


def draw_by_address(rng, number, stores):
    """Copies by address, commits and waits for groups."""
    lines = []
    kinds = ("copy", "copy", "commit", "commit", "groups", "groups", "read", "write")
    for _ in range(number):
        buffer = rng.choice("abc")
        kind = rng.choice((*kinds, "copyback") if stores else kinds)
        if kind == "groups":
            lines.append(f"$groups {rng.choice((0, 0, 1, 1, 2))}")
        elif kind == "commit":
            lines.append("$commit")
        elif kind == "read":
            lines.append(f"$read v{rng.random()} {buffer}".replace("0.", "r"))
        elif kind == "write":
            lines.append(f"$write {buffer} given")
        else:
            lines.append(f"${kind} {buffer}")
    return lines


@pytest.mark.skipif(
    not capabilities()["amd-async-stores"].available,
    reason=capabilities()["amd-async-stores"].reason,
)
@pytest.mark.parametrize("stores", [False, True])
def test_copies_by_address(stores):
    rng = random.Random(f"by address {stores}")
    verdicts = {True: 0, False: 0}
    for _ in range(KERNELS):
        lines = draw_by_address(rng, rng.randint(2, 9), stores)
        end = ["$commit", "$groups 0"] if rng.random() < 0.7 else []
        text = tdm_kernel(body_of([*lines, *end]))
        for each in (text, counted(text)):
            verifier, emulator = verifier_objects(each), emulator_objects(each)
            assert (verifier is None) == (emulator is None), f"{verifier}\n{emulator}\n{each}"
            verdicts[emulator is None] += 1
    assert min(verdicts.values()) > KERNELS // 10
