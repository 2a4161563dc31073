"""Shared code of all benchmarks: environment, timing, checks of results, and output.

Method.  A round measures every variant once, in rotating order and every other time backwards; a
measurement is the median of CUDA-event times over many calls, by the clock of the package's own
tuning (``triton_ext.ops.tuning.measure.EventClock``): before each call the L2 is flushed, and a
spin kernel keeps the GPU busy until the host has enqueued all of a measurement, so that host time
does not leak into kernels that are shorter than their own launch.  Clocks are left as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import gc
import io
import itertools
import json
import math
import os
import pathlib
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["TABLES", "Deadline", "Environment", "Errors", "EventTimer", "FakeTimer",
           "Timer", "Timing", "add_out_argument", "collect_environment", "complain", "cpu_seconds",
           "emit",
           "end_group", "geometric_mean", "has_gpu", "machine_line", "measure_each",
           "measure_errors", "milliseconds", "out_problem", "prepare_torch", "read_count",
           "read_positive", "run_at_once", "time_interleaved", "times_ms", "write_json",
           "write_rows"]  # fmt: skip

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNKNOWN = "unknown"

MIN_CALLS = 10
# The driver queues about a thousand launches; one call makes four or more (flush, events, kernels).
MAX_CALLS = 100

# A kernel may err twice as much as cuDNN in the same dtype, plus this much of the reference.
RELATIVE_FLOOR = 1e-5

# A process that is told to end gets so long before it is killed.
GRACE_SECONDS = 3.0

Function = Callable[[], object]


def emit(text: str = "") -> None:
    """Writes a line to stdout at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Writes a line to stderr: why nothing is done."""
    sys.stderr.write(text + "\n")


def read_count(text: str, least: int = 1) -> int:
    """Reads a number of things, of which there is at least one or so many, for argparse."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, found '{text}'")
    return int(text)


def read_positive(text: str) -> float:
    """Reads a positive number, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, found '{text}'")
    return number


#: How the names of files end that write_rows writes.
TABLES = (".csv", ".json")


def out_problem(path: pathlib.Path | None, suffixes: Sequence[str] = TABLES) -> str:
    """Why a file cannot be written; empty if it seems that it can, or none is asked for."""
    if path is None:
        return ""
    if path.suffix not in suffixes:
        return f"{path}: expected a name that ends in {' or '.join(suffixes)}"
    if os.path.isdir(path):
        return f"{path}: is a folder"
    # Folders that are not there will be made.
    folder = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not os.path.isdir(folder):
        return f"{path}: {folder} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{path}: nothing can be written to {folder}"
    return ""


def add_out_argument(parser: argparse.ArgumentParser, suffixes: Sequence[str] = TABLES) -> None:
    """Declares the file to write; one that cannot be written ends the program at its start."""

    def checked(text: str) -> pathlib.Path:
        path = pathlib.Path(text)
        problem = out_problem(path, suffixes)
        if problem:
            raise argparse.ArgumentTypeError(problem)
        return path

    parser.add_argument(
        "--out", type=checked, metavar="FILE", help=f"{' or '.join(suffixes)} to write"
    )


class Deadline:
    """A time limit that is asked, not enforced."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left; negative when over."""
        return self._end - time.monotonic()

    @property
    def over(self) -> bool:
        """Returns whether the time is used up."""
        return self.left() <= 0


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started, which are a group of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)


def run_at_once(
    commands: Iterable[Sequence[str]], seconds: float,
    environment: Mapping[str, str] | None = None, outputs: Iterable[pathlib.Path] | None = None,
) -> list[int]:  # fmt: skip
    """Runs commands in the root of the checkout, side by side; returns exit codes.

    After so many seconds, or when this is interrupted, they are ended with all that they started.
    ``outputs`` are the files that take what each of them prints; without, nothing is kept.
    """
    end = time.monotonic() + seconds
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, path in zip(commands, outputs or itertools.repeat(os.devnull)):  # noqa: B905
            # One by one: what has begun is ended also where the next one does not.
            with open(path, "wb") as file:
                running.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                        cwd=ROOT, env=environment, start_new_session=True,
                    )
                )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in running:
                process.wait(timeout=max(0.0, end - time.monotonic()))
    finally:
        for process in running:
            end_group(process)
    return [process.wait() for process in running]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the numbers come from; a field that cannot be found out says so.

    ``dry_run`` tells that the times are invented.
    """

    device: str
    driver: str
    clocks: str
    torch: str
    cuda: str
    cudnn: str
    triton: str
    triton_ext: str
    commit: str
    sources: str
    python: str
    date: str
    dry_run: bool = False

    def lines(self) -> list[str]:
        """The environment as text, one line per field; of a dry run there is one where it is."""
        fields = asdict(self)
        if not self.dry_run:
            del fields["dry_run"]
        return [f"{name + ':':<12}{value}" for name, value in fields.items()]


def _output_of(command: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, cwd=ROOT
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def _commit() -> str:
    commit = _output_of(["git", "rev-parse", "--short=12", "HEAD"])
    if not commit:
        return UNKNOWN
    return f"{commit}, changed since" if _output_of(["git", "status", "--porcelain"]) else commit


def collect_environment(dry_run: bool = False) -> Environment:
    """Asks torch, Triton, the driver and git; never raises for what is missing."""
    import torch
    import triton
    import triton_ext
    from triton_ext import plugin

    gpu = torch.cuda.is_available()
    queried = ""
    if gpu:
        fields = "driver_version,clocks.max.sm,power.limit"
        queried = _output_of(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i0"]
        )
    driver, _, clocks = queried.partition(", ")
    return Environment(
        device=torch.cuda.get_device_name() if gpu else "none",
        driver=driver or UNKNOWN,
        clocks=f"not locked; maximum and power limit {clocks}" if clocks else UNKNOWN,
        torch=torch.__version__,
        cuda=str(torch.version.cuda),
        cudnn=str(torch.backends.cudnn.version()) if gpu else "none",
        triton=triton.__version__,
        triton_ext=triton_ext.__version__,
        commit=_commit(),
        # Tells builds apart where there is no git.
        sources=plugin.cache_key().rpartition("-")[2][:16],
        python=platform.python_version(),
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        dry_run=dry_run,
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one variant, one per round."""

    rounds_ms: tuple[float, ...]  # median time of a call in each round, in milliseconds
    host_us: float  # time that the host needs to enqueue a call; 0 in a CUDA graph
    # Whether the GPU had to wait for the host, so that the times are too long.
    host_bound: bool = False

    @property
    def ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds_ms)

    @property
    def spread(self) -> float:
        """(slowest - fastest round) / median."""
        return (max(self.rounds_ms) - min(self.rounds_ms)) / self.ms


@dataclass(slots=True)
class Plan:
    """A function that is going to be timed, and what its first calls told about it."""

    function: Function
    calls: int = 1
    host_us: float = 0.0
    host_bound: bool = False
    prepared: Any = None  # the timer's own: a function and its calls, or a graph


class Timer(Protocol):
    """Measures functions that enqueue work on the current CUDA stream."""

    def plan(self, function: Function) -> Plan:
        """Warms the function up and decides how often to call it."""

    def measure(self, plan: Plan) -> float:
        """Returns the median time of a call in milliseconds."""


def time_interleaved(
    variants: Mapping[str, Function], timer: Timer, rounds: int
) -> dict[str, Timing]:
    """Times every variant once per round, in the order of the package's own tuning."""
    from triton_ext.ops.tuning.measure import turns

    plans = {name: timer.plan(function) for name, function in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in plans}
    names = list(plans)
    for index in range(rounds):
        for name in turns(names, index):
            times[name].append(timer.measure(plans[name]))
    return {
        name: Timing(tuple(times[name]), plan.host_us, plan.host_bound)
        for name, plan in plans.items()
    }


class EventTimer:
    """CUDA events around each call, cold L2.

    Args:
        target_ms: GPU time that the calls of one measurement take, without the flushes.
        least_calls: Calls of one measurement, however long they take.
    """

    def __init__(self, target_ms: float, least_calls: int = MIN_CALLS) -> None:
        import torch
        from triton_ext.ops.tuning.measure import EventClock

        device = torch.device("cuda", torch.cuda.current_device())
        self._clock = EventClock(device, target_ms, (least_calls, MAX_CALLS))

    def plan(self, function: Function) -> Plan:
        prepared = self._clock.prepare(function)
        _, calls, host_ms = prepared
        return Plan(function, calls, host_ms * 1e3, prepared=prepared)

    def measure(self, plan: Plan) -> float:
        us = self._clock.measure(plan.prepared)
        plan.host_bound = self._clock.host_bound
        return us / 1e3


class FakeTimer:
    """Invented times for dry runs: the functions are called once, nothing is measured."""

    def __init__(self) -> None:
        self._count = 0

    def plan(self, function: Function) -> Plan:
        function()
        return Plan(function, host_us=1.0)

    def measure(self, plan: Plan) -> float:
        self._count += 1
        return 1.0 + (self._count * 7919 % 100) / 1000


def has_gpu(instead: str = "--dry-run shows the output") -> bool:
    """Tells whether there is a GPU; prints a line where there is none, and what to do instead."""
    import torch

    found: bool = torch.cuda.is_available()
    if not found:
        emit(f"no CUDA GPU: nothing to time ({instead} without one)")
    return found


def prepare_torch() -> None:
    """Has torch compute fp32 without TF32, and cuDNN try its algorithms."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def machine_line(timer: Timer) -> str:
    """Returns TFLOP/s of an 8192^3 fp16 product of torch: is the GPU in good shape?"""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    timing = time_interleaved({"matmul": lambda: a @ b}, timer, rounds=3)["matmul"]
    rate = 2 * size**3 / timing.ms / 1e9
    return f"machine:    8192^3 fp16 torch matmul at {rate:.0f} TFLOP/s"


@dataclass(frozen=True, slots=True)
class Errors:
    """Distance of a result from a reference in higher precision."""

    l2: float  # norm of the difference over the norm of the reference
    maximum: float  # largest difference over the largest absolute value of the reference

    def within(self, other: Errors) -> bool:
        """Returns whether this is at most twice ``other``, plus the floor; NaN is not."""
        return (
            self.l2 <= 2 * other.l2 + RELATIVE_FLOOR
            and self.maximum <= 2 * other.maximum + RELATIVE_FLOOR
        )


def measure_errors(result: Any, reference: Any) -> Errors:
    """Compares a tensor with an fp32 reference of the same shape, both on one device."""
    difference = result.float() - reference
    return Errors(
        (difference.norm() / reference.norm()).item(),
        (difference.abs().max() / reference.abs().max()).item(),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean; NaN of nothing."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file, lines as they are, so that it is always whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(temporary, path)


def write_json(path: pathlib.Path, value: object) -> None:
    """Writes JSON so that the file is always whole."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_rows(
    path: pathlib.Path, environment: Environment, rows: Sequence[Mapping[str, object]]
) -> None:
    """Writes rows with equal keys: CSV with the environment in comments, or JSON, by the suffix.

    Raises:
        ValueError: It cannot be written, by its name or place.
    """
    problem = out_problem(path)
    if problem:
        raise ValueError(problem)
    if path.suffix == ".json":
        write_json(path, {"environment": asdict(environment), "rows": list(rows)})
        return
    file = io.StringIO(newline="")
    file.writelines(f"# {line}\n" for line in environment.lines())
    if rows:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_text(path, file.getvalue())


Row = TypeVar("Row")


def measure_each(
    items: Iterable[Any],
    measure: Callable[[Any], Row],
    show: Callable[[list[Row]], None],
    deadline: Deadline,
) -> tuple[list[Row], list[str]]:
    """Measures one item after another until the time is up.

    ``show`` is called after each with all rows so far, so that nothing measured is lost.  Returns
    the rows, and the names of what is missing, each with the reason.
    """
    rows: list[Row] = []
    missing: list[str] = []
    for item in items:
        if deadline.over:
            missing.append(f"{item.name} (time limit)")
            continue
        try:
            rows.append(measure(item))
        except Exception as error:  # whatever one does, the others are still worth timing
            missing.append(f"{item.name} ({type(error).__name__})")
            emit(f"{item.name} FAILED: {type(error).__name__}: {str(error)[:300]}")
            continue
        show(rows)
    return rows, missing


def milliseconds(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Host time of one call, with the garbage collected before and left alone meanwhile."""
    gc.collect()
    gc.disable()
    try:
        start = clock()
        function()
        return (clock() - start) * 1e3
    finally:
        gc.enable()


def cpu_seconds() -> float:
    """CPU time of this process and of its children that ended; other processes do not show."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def times_ms(
    variants: Mapping[str, Function], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Times of functions by round, measured in turn: a slow machine is slow for all of them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, function in variants.items():
            times[name].append(milliseconds(function, clock))
    return times
