"""Measures a case: its tensors, one run of a plan, times of calls on the GPU, progress.

Times are those between CUDA events around each call, with cold L2, in interleaved rounds.  Before
every call the L2 is flushed by writing more than it holds.  A kernel that spins runs before a
measurement and keeps the GPU busy until the host has enqueued all of it, so that the kernel is
measured and not its launch.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO, TypeVar

import torch

from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.epilogue import EpilogueArguments

__all__ = [
    "Clock",
    "EventClock",
    "Progress",
    "Trial",
    "agreeing",
    "interleaved",
    "make_progress",
    "make_tensors",
    "run_plan",
    "turns",
]

Function = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]
_Item = TypeVar("_Item")

_TARGET_MS = 2.0
_CALLS = (5, 25)
_MAX_SPIN_MS = 100.0
_CALIBRATION_CYCLES = 2_000_000
# Functions slower than the fastest by this factor after the first rounds are not measured further.
_HOPELESS = 1.2
_FIRST_ROUNDS = 2
# Candidates may add in another order: so many units in the last place of the largest value.
_ROUNDING_UNITS = 8.0


# ---- A case as a call ---------------------------------------------------------------------------


def make_tensors(case: Case, device: torch.device) -> tuple[Tensors, EpilogueArguments]:
    """Returns the operands of a case, drawn without touching torch's generators.

    On ``meta`` they have no values.
    """
    generator = None
    if device.type != "meta":
        generator = torch.Generator(device).manual_seed(0)

    def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = (shape[0], *shape[2:], shape[1])
        if dtype == torch.int8:
            drawn = torch.randint(-8, 8, size, generator=generator, device=device)
        else:
            half = torch.float32 if dtype == torch.float32 else torch.bfloat16
            drawn = torch.randn(size, generator=generator, device=device, dtype=half)
        return drawn.to(dtype).movedim(-1, 1)

    def vector() -> torch.Tensor:
        co = case.problem.out_channels
        return torch.randn(co, generator=generator, device=device, dtype=torch.float32)

    problem, spec, dtype = case.problem, case.epilogue, case.dtype
    if case.direction == "wgrad":
        return (draw(problem.x_shape, dtype), draw(problem.y_shape, dtype)), EpilogueArguments()
    first = problem.x_shape if case.direction == "fprop" else problem.y_shape
    residual_dtype = dtype if dtype.itemsize > 1 else torch.float16
    residual_shape = problem.y_shape
    if spec.residual_per_image:
        residual_shape = (*problem.y_shape[:2], *(1,) * problem.dims)
    operands = EpilogueArguments(
        bias=vector() if spec.bias else None,
        scale=vector() if spec.scale else None,
        residual=draw(residual_shape, residual_dtype) if spec.residual else None,
        out_scale=torch.ones(1, device=device) if spec.out_scale else None,
        amax=torch.zeros(1, device=device) if spec.amax else None,
    )
    return (draw(first, dtype), draw(problem.w_shape, dtype)), operands


def run_plan(case: Case, plan: Any, tensors: tuple[Tensors, EpilogueArguments]) -> torch.Tensor:
    """Runs a plan once; returns its output."""
    operands, epilogue = tensors
    y: torch.Tensor = plan.run(*operands, *([epilogue] if case.direction == "fprop" else []))
    return y


@dataclass(slots=True)
class Trial:
    """A configuration of a case as a function that runs it, which clocks measure."""

    case: Case
    config: Any
    _device: torch.device
    _tensors: Any
    _plan: Any = None

    def __call__(self) -> torch.Tensor:
        if self._plan is None:
            self._plan = planner.make_plan(self.case.dense, self._device, self.config)
        return run_plan(self.case, self._plan, self._tensors)


def agreeing(trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Returns the trials that run and agree with the first one, and the failures of the others."""
    expected: torch.Tensor | None = None
    kept, failures = [], []
    for trial in trials:
        try:
            result = trial()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever one does, the others may be right
            text = str(error).partition("\n")[0][:200]
            failures.append(f"{trial.case} {trial.config}: {type(error).__name__}: {text}")
            continue
        if expected is None:
            expected = result
        elif not _agree(result, expected):
            failures.append(f"{trial.case} {trial.config}: another result than the first candidate")
            continue
        kept.append(trial)
    return kept, failures


def _agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    if not result.dtype.is_floating_point:
        return torch.equal(result, expected)
    reference = expected.float()
    largest = reference.abs().max()
    eps = 2.0**-10 if result.dtype == torch.float32 else torch.finfo(result.dtype).eps
    return bool((result.float() - reference).abs().max() <= _ROUNDING_UNITS * eps * largest)


# ---- Clocks -------------------------------------------------------------------------------------


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


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


class EventClock:
    """The clock of a GPU."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        # Twice what it holds: half of it could stay in the cache.
        flush_bytes = max(2 * properties.L2_cache_size, 1 << 25)
        self._flush = torch.empty(flush_bytes // 4, dtype=torch.int32, device=device)
        start, end = _event(), _event()
        for _ in range(2):  # the first one loads the kernel
            start.record()
            torch.cuda._sleep(_CALIBRATION_CYCLES)
            end.record()
            end.synchronize()
        self._cycles_per_ms = _CALIBRATION_CYCLES / start.elapsed_time(end)

    def prepare(self, function: Function) -> _Prepared:
        """Warms a function up and decides how often to call it."""
        function()
        torch.cuda.synchronize()
        start, end = _event(), _event()
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
            events = [(_event(), _event()) for _ in range(prepared.calls)]
            self._spin(spin_ms)
            for start, end in events:
                self._flush.zero_()
                start.record()
                prepared.function()
                end.record()
            caught_up = events[0][0].query()
            torch.cuda.synchronize()
            if not caught_up:
                break
            # The GPU did not wait for the host to be done: again, with more of a lead.
            spin_ms *= 2
        return 1e3 * statistics.median(start.elapsed_time(end) for start, end in events)


def turns(items: Sequence[_Item], number: int) -> Sequence[_Item]:
    """Returns the order of a round: rotating, and every other time backwards.

    On some machines every other measurement takes 0.5 us more.  A round and the next one, which is
    the same backwards, have each item once at an even and once at an odd place.  The first round
    has number 0.
    """
    turn = number // 2 % max(1, len(items))
    order = [*items[turn:], *items[:turn]]
    return order[::-1] if number % 2 else order


def interleaved(functions: Sequence[Function], clock: Clock, rounds: int) -> list[float]:
    """Returns the median time of every function over rounds that measure each once, in turns.

    Functions that are hopeless after the first two rounds are left out of the others.  An even
    number of rounds gives every function as many of the longer measurements of :func:`turns`.
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


# ---- Progress -----------------------------------------------------------------------------------


class Progress:
    """Shows nothing; a context manager around a run."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, compiles: int, cases: int) -> None:
        """Shows how much there is to do."""

    def compiled(self) -> None:
        """Shows that one more configuration is compiled."""

    def tuned(self, text: str) -> None:
        """Shows the result of one more case."""


class _Lines(Progress):
    """A line per case."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._cases = self._done = 0

    def begin(self, compiles: int, cases: int) -> None:
        self._cases = cases
        self._write(f"{cases} convolutions, {compiles} configurations to compile")

    def tuned(self, text: str) -> None:
        self._done += 1
        self._write(f"[{self._done}/{self._cases}] {text}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class _Bars(Progress):
    """Two bars of rich's, and a line per case above them."""

    def __init__(self, rich_progress: Any) -> None:
        self._bars = rich_progress
        self._compiling = self._tuning = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def begin(self, compiles: int, cases: int) -> None:
        self._compiling = self._bars.add_task("compiling", total=compiles)
        self._tuning = self._bars.add_task("measuring", total=cases)

    def compiled(self) -> None:
        self._bars.advance(self._compiling)

    def tuned(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)
        self._bars.advance(self._tuning)


def make_progress(is_wanted: bool, stream: TextIO | None = None) -> Progress:
    """Returns bars on a terminal where rich is installed, else lines; standard error by default."""
    stream = sys.stderr if stream is None else stream
    if not is_wanted:
        return Progress()
    if not stream.isatty():
        return _Lines(stream)
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return _Lines(stream)
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    return _Bars(progress.Progress(*columns, console=Console(file=stream)))
