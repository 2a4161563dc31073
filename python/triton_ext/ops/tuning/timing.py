"""Times calls on the GPU: CUDA events around each, cold L2, in interleaved rounds.

Before every call the L2 is flushed by writing more than it holds.  A kernel that spins stands in
front of a measurement and keeps the GPU busy until the host has enqueued all of it, so that what is
measured is the kernel and not its launch.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

__all__ = ["Clock", "EventClock", "interleaved", "turns"]

Function = Callable[[], object]
_Item = TypeVar("_Item")

_TARGET_MS = 2.0
_CALLS = (5, 25)
_MAX_SPIN_MS = 100.0
_CALIBRATION_CYCLES = 2_000_000
# What is slower than the fastest by this factor after the first rounds is not measured further.
_HOPELESS = 1.2
_FIRST_ROUNDS = 2


class Clock(Protocol):
    """Measures functions that enqueue work on the current stream."""

    def prepare(self, function: Function) -> Any:
        """Warms a function up and returns how it is going to be measured."""

    def measure(self, prepared: Any) -> float:
        """Returns the median time of a call, in microseconds."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    function: Function
    calls: int
    host_ms: float


class EventClock:
    """The clock of a GPU.

    Args:
        device: Which one.
    """

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        # Twice what it holds: half of it could stay in the cache.
        flush_bytes = max(2 * properties.L2_cache_size, 1 << 25)
        self._flush = torch.empty(flush_bytes // 4, dtype=torch.int32, device=device)
        self._cycles_per_ms = 0.0
        start, end = self._event(), self._event()
        for _ in range(2):  # the first one loads the kernel
            start.record()
            torch.cuda._sleep(_CALIBRATION_CYCLES)
            end.record()
            end.synchronize()
        self._cycles_per_ms = _CALIBRATION_CYCLES / start.elapsed_time(end)

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def prepare(self, function: Function) -> _Prepared:
        """Warms a function up and decides how often to call it."""
        function()
        torch.cuda.synchronize()
        start, end = self._event(), self._event()
        self._spin(2.0)
        start.record()
        begin = time.perf_counter()
        for _ in range(3):
            function()
        host_ms = (time.perf_counter() - begin) / 3 * 1e3
        end.record()
        end.synchronize()
        ms = max(start.elapsed_time(end) / 3, 1e-3)
        calls = min(_CALLS[1], max(_CALLS[0], math.ceil(_TARGET_MS / ms)))
        return _Prepared(function, calls, host_ms)

    def _spin(self, milliseconds: float) -> None:
        torch.cuda._sleep(int(min(milliseconds, _MAX_SPIN_MS) * self._cycles_per_ms))

    def measure(self, prepared: _Prepared) -> float:
        """Returns the median time of a call, in microseconds."""
        # Two events and the flush cost the host about 20 us.
        spin_ms = prepared.calls * (prepared.host_ms + 0.02) * 1.5
        for _ in range(3):
            starts = [self._event() for _ in range(prepared.calls)]
            ends = [self._event() for _ in range(prepared.calls)]
            self._spin(spin_ms)
            for start, end in zip(starts, ends, strict=True):
                self._flush.zero_()
                start.record()
                prepared.function()
                end.record()
            caught_up = starts[0].query()
            torch.cuda.synchronize()
            if not caught_up:
                break
            # The GPU did not wait for the host to be done: again, with more of a lead.
            spin_ms *= 2
        return 1e3 * statistics.median(
            start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)
        )


def turns(items: Sequence[_Item], number: int) -> Sequence[_Item]:
    """Returns the order of a round: rotating, and every other time backwards.

    On some machines every other measurement takes 0.5 us more.  A round and the one behind it,
    which is the same backwards, have each item once at an even and once at an odd place.

    Args:
        items: What is measured in the round.
        number: Of the round, from 0.
    """
    turn = number // 2 % max(1, len(items))
    order = [*items[turn:], *items[:turn]]
    return order[::-1] if number % 2 else order


def interleaved(functions: Sequence[Function], clock: Clock, rounds: int) -> list[float]:
    """Returns the median time of every function over rounds that measure each once, in turns.

    Args:
        functions: What is measured.
        clock: Measures one.
        rounds: How often; what is hopeless after the first two is left out of the others.  An even
            number gives every function as many of the longer measurements of :func:`turns`.
    """
    prepared = [clock.prepare(function) for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    left = list(range(len(functions)))
    for number in range(rounds):
        if number == _FIRST_ROUNDS and left:
            best = min(min(times[index]) for index in left)
            left = [index for index in left if min(times[index]) <= _HOPELESS * best]
        for index in turns(left, number):
            times[index].append(clock.measure(prepared[index]))
    return [statistics.median(each) for each in times]
