"""One model's modes beside each other: right first, then time and memory.

A mode is right where its error against fp32 is at most twice that of eager torch in the same dtype.
The times are of consecutive steps, host time included, a measurement of every mode per round; with
CUDA graphs they are the GPU's alone.  The timing itself is that of ``benchmarks/harness.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import (
    Deadline,
    Errors,
    Plan,
    Timer,
    Timing,
    emit,
    measure_errors,
    time_interleaved,
)
from examples.models.modes import BASELINE

__all__ = [
    "GraphTimer",
    "Job",
    "Prepared",
    "Row",
    "StepTimer",
    "Stopped",
    "compare",
    "keeping",
    "prepare",
    "synchronize",
    "timed",
]

Tensor = torch.Tensor

# Calls in a CUDA graph.
_MAX_CALLS = 100
# Steps in front of a measurement of memory: what is compiled or tuned is there by then.
_WARM_UP = 3


def synchronize() -> None:
    """Waits for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class GraphTimer:
    """Many calls in one CUDA graph, back to back, warm L2; one replay takes ``target_ms``."""

    def __init__(self, target_ms: float, replays: int = 5, least_calls: int = 1) -> None:
        self._cuda = torch.cuda
        self._target_ms, self._replays, self._least_calls = target_ms, replays, least_calls

    def _elapsed_ms(self, call: Callable[[], object], count: int) -> float:
        """Returns the time of a call, the mean of several in a row."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    def plan(self, function: Callable[[], object]) -> Plan:
        stream = self._cuda.Stream()
        stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(stream):
            for _ in range(3):
                function()
            ms = max(self._elapsed_ms(function, 5), 1e-3)
        self._cuda.current_stream().wait_stream(stream)
        self._cuda.synchronize()
        calls = min(_MAX_CALLS, max(self._least_calls, round(self._target_ms / ms)))
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            for _ in range(calls):
                function()
        graph.replay()
        self._cuda.synchronize()
        return Plan(function, calls, prepared=graph)

    def measure(self, plan: Plan) -> float:
        times = [self._elapsed_ms(plan.prepared.replay, 1) for _ in range(self._replays)]
        return statistics.median(times) / plan.calls


class StepTimer:
    """Wall time of consecutive steps, on any device; a ``benchmarks.harness.Timer``.

    The number of steps is fixed: ranks of a job have to make the same.

    Args:
        steps: Per measurement.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def plan(self, function: Callable[[], object]) -> Plan:
        function()
        synchronize()
        start = time.perf_counter()
        function()
        host_us = (time.perf_counter() - start) * 1e6
        return Plan(function, self._steps, host_us)

    def measure(self, plan: Plan) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(plan.calls):
            plan.function()
        synchronize()
        step_ms = (time.perf_counter() - start) * 1e3 / plan.calls
        # Not on a CPU, where the host is all there is.
        plan.host_bound = torch.cuda.is_available() and plan.host_us > 900 * step_ms
        return step_ms


@dataclass(frozen=True, slots=True)
class Job:
    """A mode of a model, ready to run.

    Attributes:
        step: What is timed.
        result: Computes what is compared with the reference, without a change of the weights.
        taken: How many convolutions were converted, and how many of them all.
        folded: How many of them took in what stands behind them.
        notes: Why the others were left.
        first: What is done once, before anything is measured.
    """

    step: Callable[[], object]
    result: Callable[[], Tensor]
    taken: tuple[int, int]
    folded: int = 0
    notes: tuple[str, ...] = ()
    first: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of one mode of one model.

    Attributes:
        task: ``inference`` or ``training``, and the number of ranks.
        model: Its name.
        mode: One of ``MODES``.
        problem: Why there is no time, or empty.
        errors: Errors against fp32.
        timing: Time of a step.
        peak_bytes: Peak of this mode's weights and one step; 0 without a GPU.
        taken: Numbers of converted and of all convolutions.
        folded: Number of convolutions folded with what follows them.
    """

    task: str
    model: str
    mode: str
    problem: str = ""
    errors: Errors | None = None
    timing: Timing | None = None
    peak_bytes: int = 0
    taken: tuple[int, int] = (0, 0)
    folded: int = 0

    def fields(self) -> dict[str, object]:
        """Everything, flat, for CSV and JSON."""
        timing, errors = self.timing, self.errors
        return {
            "task": self.task,
            "model": self.model,
            "mode": self.mode,
            "ms": timing.ms if timing else "",
            "spread": timing.spread if timing else "",
            "host_ms": timing.host_us / 1e3 if timing else "",
            "error_l2": errors.l2 if errors else "",
            "error_max": errors.maximum if errors else "",
            "peak_mib": self.peak_bytes / 2**20,
            "converted": self.taken[0],
            "convolutions": self.taken[1],
            "folded": self.folded,
            "problem": self.problem,
        }


class Stopped(KeyboardInterrupt):
    """The user ended a run; ``rows`` is what there is of the network at work."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.rows = list(rows)


@contextlib.contextmanager
def keeping(rows: Callable[[], Sequence[Row]]) -> Iterator[None]:
    """Within, what the user ends keeps rows.

    Args:
        rows: Returns them, as they are then.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Stopped):
            raise
        raise Stopped(rows()) from None


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _peak_of(step: Callable[[], object]) -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Modes prepared for timing.

    Attributes:
        rows: Rows of every mode, without times.
        plans: Those with correct results, by task and mode.
    """

    rows: list[Row]
    plans: dict[tuple[str, str], Plan]


class _Ready:
    """A timer whose functions have their plans already.

    Args:
        timer: What made them.
        plans: By function.
    """

    def __init__(self, timer: Timer, plans: Mapping[Callable[[], object], Plan]) -> None:
        self._timer = timer
        self._plans = plans
        self._times: dict[int, list[float]] = {id(plan): [] for plan in plans.values()}

    def plan(self, function: Callable[[], object]) -> Plan:
        return self._plans[function]

    def measure(self, plan: Plan) -> float:
        ms = self._timer.measure(plan)
        self._times[id(plan)].append(ms)
        return ms

    def so_far(self, plan: Plan) -> Timing | None:
        """The times of the rounds that all plans have made; ``None`` where there are none."""
        rounds = min(map(len, self._times.values()))
        times = tuple(self._times[id(plan)][:rounds])
        return Timing(times, plan.host_us, plan.host_bound) if times else None


def compare(
    task: str,
    model: str,
    makers: Mapping[str, Callable[[], Job]],
    reference: Tensor | None,
    timer: Timer,
    *,
    rounds: int,
    **options: Any,
) -> list[Row]:
    """Checks every mode, measures its memory, then times those that are right together.

    Args:
        task: For the rows.
        model: For the rows.
        makers: Makes a mode; the baseline is the first.
        reference: The result in fp32.
        timer: Measures.
        rounds: Measurements per mode.
        options: Of :func:`prepare`.
    """
    return timed([prepare(task, model, makers, reference, timer, **options)], timer, rounds)


def timed(prepared: Sequence[Prepared], timer: Timer, rounds: int) -> list[Row]:
    """Times what was prepared, all of it once per round; returns all rows.

    Raises:
        Stopped: The user ended it; its rows have the times of the rounds so far.
    """
    plans = {f"{task} {mode}": p for each in prepared for (task, mode), p in each.plans.items()}
    steps = {name: plan.function for name, plan in plans.items()}
    ready = _Ready(timer, {plan.function: plan for plan in plans.values()})

    def rows(timings: Mapping[str, Timing | None]) -> list[Row]:
        return [
            dataclasses.replace(row, timing=timings.get(f"{row.task} {row.mode}"))
            for each in prepared
            for row in each.rows
        ]

    with keeping(lambda: rows({name: ready.so_far(plan) for name, plan in plans.items()})):
        return rows(time_interleaved(steps, ready, rounds) if steps else {})


def prepare(
    task: str,
    model: str,
    makers: Mapping[str, Callable[[], Job]],
    reference: Tensor | None,
    timer: Timer,
    *,
    deadline: Deadline,
    agree: Callable[[bool], bool] = bool,
    tolerant: bool = True,
    say: Callable[[str], None] = emit,
) -> Prepared:
    """Checks every mode, measures its memory, and makes ready what is right.

    Args:
        task: For the rows.
        model: For the rows.
        makers: Makes a mode; the baseline is the first.
        reference: The result in fp32; ``None`` where the modes have been checked before.
        timer: Is going to measure.
        deadline: Modes that are not begun by then are left out, with that reason.
        agree: Whether something is true on all ranks.
        tolerant: Whether a mode that fails becomes a row.  Of several ranks the others would wait
            for one that goes on, so it has to end there, and torchrun ends the job.
        say: Tells what goes on.

    Raises:
        Stopped: The user ended it; its rows are the modes that were checked.
    """
    rows: dict[str, Row] = {}
    plans: dict[tuple[str, str], Plan] = {}
    with keeping(lambda: [*rows.values()]):
        for mode, make in makers.items():
            row = Row(task=task, model=model, mode=mode)
            if deadline.over:
                rows[mode] = dataclasses.replace(row, problem="time limit")
                continue
            say(f"{model}: preparing {mode}, {deadline.left():.0f} s left")
            baseline = rows[BASELINE].errors if mode != BASELINE else None
            try:
                ready = _prepare_mode(row, make, reference, baseline, timer, agree)
            except Exception as error:  # whatever one does, the others are still worth timing
                if mode == BASELINE or not tolerant:
                    raise
                problem = f"{type(error).__name__}: {str(error)[:300]}"
                rows[mode] = dataclasses.replace(row, problem=problem)
                continue
            for note in ready.notes:
                say(f"  left: {note}")
            rows[mode] = ready.row
            if ready.plan is not None:
                plans[task, mode] = ready.plan
    return Prepared([*rows.values()], plans)


@dataclass(frozen=True, slots=True)
class _PreparedMode:
    """A mode that did its steps; ``plan`` is None where it is wrong, ``notes`` are the job's."""

    row: Row
    plan: Plan | None
    notes: tuple[str, ...]


def _prepare_mode(
    row: Row,
    make: Callable[[], Job],
    reference: Tensor | None,
    baseline: Errors | None,
    timer: Timer,
    agree: Callable[[bool], bool],
) -> _PreparedMode:
    """Checks one mode and measures its memory.

    Args:
        row: Of the mode, without results.
        make: Makes it.
        reference: As for :func:`prepare`.
        baseline: Errors of eager torch; None where nothing is compared with them.
        timer: As for :func:`prepare`.
        agree: As for :func:`prepare`.
    """
    before = _allocated()
    job = make()
    if job.first is not None:
        job.first()
    errors = None if reference is None else measure_errors(job.result(), reference)
    for _ in range(_WARM_UP):
        job.step()
    peak = _peak_of(job.step) - before
    right = agree(errors is None or baseline is None or errors.within(baseline))
    done = dataclasses.replace(
        row,
        problem="" if right else _wrong(errors),
        errors=errors,
        peak_bytes=max(peak, 0),
        taken=job.taken,
        folded=job.folded,
    )
    return _PreparedMode(done, timer.plan(job.step) if right else None, job.notes)


def _wrong(errors: Errors | None) -> str:
    found = "" if errors is None else f", relative error {errors.l2:.1e}"
    return f"WRONG RESULT{found}"
