"""Parts that run by turns: order, ends and errors."""

from __future__ import annotations

import _thread
import signal
import threading
import time

import pytest

pytest.importorskip("numpy")

from triton_ext.emulator.fibers import Fibers, StuckError


@pytest.fixture
def no_thread_stays():
    """Threads of other tests of the process are none of ours."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def pipe(seed, items=5, wanted=5, fail_at=None):
    """A producer and a consumer with room for two items; what they did."""
    fibers, log, queue = Fibers(seed), [], []

    def produce():
        for item in range(items):
            fibers.wait(lambda: len(queue) < 2, "room")
            queue.append(item)
            fibers.pause()
            log.append(f"+{item}")
            if item == fail_at:
                raise ValueError("broken")

    def consume():
        for _ in range(wanted):
            fibers.wait(lambda: queue, "an item")
            log.append(f"-{queue.pop(0)}")
            fibers.pause()

    fibers.together([consume, produce])
    return log


def test_a_seed_decides_the_order():
    orders = {tuple(pipe(seed)) for seed in range(40)}
    assert len(orders) > 10
    for seed in range(10):
        log = pipe(seed)
        assert log == pipe(seed)
        assert [entry for entry in log if entry[0] == "-"] == [f"-{item}" for item in range(5)]


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("seed", range(10))
def test_who_waits_for_nothing_is_stuck(seed):
    with pytest.raises(StuckError) as caught:
        pipe(seed, wanted=6)
    assert caught.value.waiting == ("an item",)
    with pytest.raises(StuckError) as caught:
        pipe(seed, items=9)
    assert caught.value.waiting == ("room",)


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("seed", range(10))
def test_an_error_ends_all(seed):
    with pytest.raises(ValueError, match="broken"):
        pipe(seed, fail_at=3)


@pytest.mark.usefixtures("no_thread_stays")
def test_an_error_in_front_of_the_first_turn_of_others():
    fibers, log = Fibers(0), []

    def fail():
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        fibers.together([fail, lambda: log.append("ran")])
    assert log == []


def test_parts_can_have_parts():
    fibers, log = Fibers(3), []

    def pair(name):
        def run():
            fibers.together([lambda: log.append(f"{name}0"), lambda: log.append(f"{name}1")])

        return run

    fibers.together([pair("a"), pair("b"), lambda: log.append("c")])
    assert sorted(log) == ["a0", "a1", "b0", "b1", "c"]


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("seed", range(10))
def test_an_error_in_a_part_of_a_part(seed):
    fibers = Fibers(seed)

    def fail():
        fibers.pause()
        raise ValueError("deep")

    def outer():
        fibers.together([lambda: fibers.wait(lambda: False, "nothing"), fail])

    with pytest.raises(ValueError, match="deep"):
        fibers.together([lambda: fibers.wait(lambda: False, "nothing"), outer, fibers.pause])


def test_one_part_waits_for_itself():
    fibers = Fibers(0)
    fibers.wait(lambda: True, "nothing")
    with pytest.raises(StuckError):
        fibers.wait(lambda: False, "nothing")


@pytest.fixture
def interruptible():
    """SIGINT interrupts, also in a process that was started in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_ends_the_wait_for_others(seed, interruptible):
    fibers, interrupted = Fibers(seed), []
    end = time.monotonic() + 60

    def interrupt():
        while time.monotonic() < end:
            if not interrupted:
                interrupted.append(True)
                _thread.interrupt_main()
                # The main thread, which waits for its turn, gets it here.
                time.sleep(0.05)
            fibers.pause()

    def run_on():
        while time.monotonic() < end:
            fibers.pause()

    with pytest.raises(KeyboardInterrupt):
        fibers.together([run_on, interrupt, run_on])
