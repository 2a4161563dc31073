"""Adversarial orders: no false alarm, the same order for a seed, and the seed in an error."""

from __future__ import annotations

import os

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="the launches take CPU tensors of torch")
blackwell = pytest.importorskip("triton.experimental.gluon.language.nvidia.blackwell")
if not hasattr(getattr(blackwell, "tensor_memory_descriptor", None), "get_reg_layout"):
    pytest.skip("Gluon's tensor memory has no default layout", allow_module_level=True)

import triton_ext  # noqa: E402
from blackwell_kernels import descriptors, specialized_matmul  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
#: Iterations: two rounds of the ring, and one stage more.
STEPS = 7
K = 32 * STEPS


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The TTGIR of the kernel, its arguments, c and what c should be."""
    torch.manual_seed(1)
    a, b = torch.randn(64, K).half(), torch.randn(64, K).half()
    c = torch.zeros(64, 64).half()
    arguments = [*descriptors((a, b), [64, 32]), *descriptors((c,), [64, 64]), K]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        launcher = triton_ext.emulated(specialized_matmul, "sm_100")
        text = launcher.compile(*arguments, num_warps=4).asm["ttgir"]
    return text, arguments, c, (a.double() @ b.double().T).half()


def test_random_orders_raise_no_false_alarm(case):
    text, arguments, c, expected = case
    program = Program(text)
    program.run((1,), arguments)
    torch.testing.assert_close(c, expected, rtol=2e-3, atol=1e-2)
    first = c.clone()
    for seed in range(100_000 if NIGHTLY else 1_000):
        c.zero_()
        program.run((1,), arguments, seed, "random")
        # Products of one part keep their order, so every bit is the same.
        assert torch.equal(c, first), seed


def order_of(program, arguments, seed, schedule="random"):
    """Which asynchronous operations completed, one after the other."""
    from triton_ext.backends.nvidia.emulator.mbarriers import Mbarrier

    seen = []
    land_one = Mbarrier.land_one

    def noted(barrier, flight):
        seen.append((barrier.name, barrier.phases, flight.op.name))
        land_one(barrier, flight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mbarrier, "land_one", noted)
        program.run((1,), arguments, seed, schedule)
    return tuple(seen)


def test_a_seed_decides_the_order(case):
    text, arguments, _, _ = case
    program = Program(text)
    orders = [order_of(program, arguments, seed) for seed in range(20)]
    assert orders == [order_of(program, arguments, seed) for seed in range(20)]
    assert len(set(orders)) > 10


def run_seeds(program, arguments, seeds):
    for seed in seeds:
        program.run((1,), arguments, seed, "random")


def test_an_error_names_its_order(case):
    text, arguments, _, _ = case
    lines = text.splitlines(keepends=True)
    waits = [number for number, line in enumerate(lines) if "ttng.wait_barrier" in line]
    for number in waits:
        program = Program("".join([*lines[:number], *lines[number + 1 :]]))
        with pytest.raises(EmulationError) as caught:
            run_seeds(program, arguments, range(20))
        note = caught.value.notes[-1]
        assert note.startswith("in the order of schedule='random', seed=")
        seed = int(note.rpartition("=")[2])
        with pytest.raises(EmulationError) as again:
            program.run((1,), arguments, seed, "random")
        assert str(again.value) == str(caught.value)


def test_there_are_two_schedules(case):
    text, arguments, _, _ = case
    with pytest.raises(ValueError, match="schedule is 'early': expected one of late, random"):
        Program(text).run((1,), arguments, 0, "early")
