"""Measures a case: its tensors, compiling ahead in processes, and times of calls on the GPU.

Processes compile one job at a time and survive jobs that end them: a compiler that crashes or hangs
takes one process with it, never the caller.  A process reads a job per line and answers each
with a JSON line, the error.  Kernels are compiled into Triton's cache on disk without a GPU:
tensors are torch's "meta" tensors, Triton's driver is a stand-in that names the target, and
launches compile only.

Times are those between CUDA events around each call, with cold L2, in interleaved rounds.  Before
every call the L2 is flushed by writing more than it holds.  A kernel that spins runs before a
measurement and keeps the GPU busy until the host has enqueued all of it, so that the kernel is
measured and not its launch.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import pickle
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from triton_ext.host.children import command
from triton_ext.ops.api.execution import TorchConvolution
from triton_ext.ops.api.operators import DGRAD, FPROP, WGRAD, ConvCall
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, assumed_device
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.family import TORCH
from triton_ext.ops.core.launcher import compiling
from triton_ext.ops.core.problem import ConvParameters
from triton_ext.ops.families.by_torch import TorchConfig

Function = Callable[[], object]
Operands = tuple[torch.Tensor, torch.Tensor, EpilogueArguments]

# A configuration takes one to ten seconds.
_JOB_SECONDS = 120.0
_TARGET_MS = 2.0
_CALLS = (5, 25)
_MAX_SPIN_MS = 100.0
_CALIBRATION_CYCLES = 2_000_000
# Functions slower than the fastest by this factor after the first rounds are not measured further.
_LEFT_BEHIND = 1.2
_FIRST_ROUNDS = 2
# Candidates may add in another order: so many units in the last place of the largest value.
_ROUNDING_UNITS = 8.0
_OPERATORS = {each.direction: each for each in (FPROP, DGRAD, WGRAD)}


def make_tensors(case: Case, device: torch.device) -> Operands:
    """Returns what a plan of a case runs over, drawn without touching torch's generators.

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
        return draw(problem.x_shape, dtype), draw(problem.y_shape, dtype), EpilogueArguments()
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
    return draw(first, dtype), draw(problem.w_shape, dtype), operands


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration of a case as a function that runs it, which clocks measure."""

    case: Case
    config: Any
    run: Callable[[], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        return self.run()


def agreeing(
    case: Case, configs: Sequence[Any], errors: Sequence[str], device: torch.device, tensors: Any
) -> tuple[list[Trial], list[str]]:
    """Returns trials of configurations that run and agree with the first, and failures of others.

    ``errors`` say which did not compile; they are empty for those that did.
    """
    expected: torch.Tensor | None = None
    trials, failures = [], []
    for config, error in zip(configs, errors, strict=True):
        try:
            if not error:
                plan = planner.make_plan(case.dense, device, config)
                trial = Trial(case, config, partial(plan.run, *tensors))
                result = trial()
        except torch.OutOfMemoryError:
            raise
        except Exception as raised:  # whatever one does, the others may be right
            text = str(raised).partition("\n")[0][:200]
            error = f"{type(raised).__name__}: {text}"
        if not error and expected is not None and not _agree(result, expected):
            error = "another result than the first candidate"
        if error:
            failures.append(f"{case} {config}: {error}")
        else:
            trials.append(trial)
            expected = result if expected is None else expected
    return trials, failures


def torch_trials(case: Case, device: Device, tensors: Any) -> list[Trial]:
    """Returns the trial of torch's own convolution; none where torch is not compared."""
    if TORCH[case.direction].refusals(case, device):
        return []
    problem, (first, second, epilogue) = case.problem, tensors
    bias = epilogue.bias
    sides = tuple(side for pair in problem.padding for side in pair)
    parameters = ConvParameters(problem.stride, sides, problem.dilation, problem.groups)
    size = {"fprop": None, "dgrad": problem.input_size, "wgrad": problem.filter_size}
    how = (EpilogueArguments(), parameters, size[case.direction], True)
    convolution = TorchConvolution(ConvCall(_OPERATORS[case.direction], first, second, *how))

    def run() -> torch.Tensor:
        return convolution.run(first, second, None if bias is None else bias.to(first.dtype))

    try:
        run()
    except RuntimeError:  # cuDNN has no kernel, or no memory
        return []
    return [Trial(case, TorchConfig(), run)]


def _agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    if not result.dtype.is_floating_point:
        return torch.equal(result, expected)
    reference = expected.float()
    largest = reference.abs().max()
    eps = 2.0**-10 if result.dtype == torch.float32 else torch.finfo(result.dtype).eps
    return bool((result.float() - reference).abs().max() <= _ROUNDING_UNITS * eps * largest)


class TargetOnlyDriver:
    """Stands in for Triton's driver where kernels are compiled and never launched."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def target_only(capability: tuple[int, int]) -> None:
    """Has Triton compile for a GPU of a compute capability, from now on in this process."""
    major, minor = capability
    driver.set_active(TargetOnlyDriver(GPUTarget("cuda", major * 10 + minor, 32)))


def compile_kernels(case: Case, config: Any, device: Device) -> list[Any]:
    """Returns Triton's compiled kernels of a case's plan, for a GPU that need not be there."""
    meta = torch.device("meta")
    with assumed_device(device), compiling() as kernels:
        # A plan that was made before could hold kernels that were compiled for another device.
        planner.make_plan.cache_clear()
        plan = planner.make_plan(case.dense, meta, config)
        plan.run(*make_tensors(case, meta))
    return kernels


def _serve() -> None:
    """Compiles the jobs of standard input; answers each with an error, or an empty text."""
    # Whatever a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        error = ""
        try:
            # Pickled by the process that started this one.
            case, config, device = pickle.loads(base64.b64decode(line))
            target_only(device.capability)
            compile_kernels(case, config, device)
        except Exception as raised:  # any failure of one job is an answer, not an end
            error = f"{type(raised).__name__}: {str(raised)[:300]}"
        answers.write(json.dumps(error) + "\n")
        answers.flush()


def default_jobs() -> int:
    """Returns the number of compiling processes: one per core but one, 32 at most."""
    return min(32, max(1, len(os.sched_getaffinity(0)) - 1))


class CompilePool(contextlib.AbstractContextManager["CompilePool"]):
    """Processes that compile candidates, each fed by a thread; use it as a context manager.

    There are :func:`default_jobs` by default.  Each starts on first use and again after a crash.
    """

    def __init__(self, count: int | None = None) -> None:
        self._command = command("-c", f"from {__name__} import _serve; _serve()")
        self._environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        self._environment.pop("TRITON_INTERPRET", None)
        self._count = count or default_jobs()
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="compile")
        self._idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        for _ in range(self._count):
            self._idle.put(None)  # not started
        self._lock = threading.Lock()  # of the two below
        self._errors: dict[subprocess.Popen[str], TextIO] = {}  # what a process prints
        self._ended = False

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._ended = True
            for process in self._errors:
                process.kill()
        # The threads end at once: what they wait for is dead, and nothing starts again.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in tuple(self._errors):
            self._close(process)

    def start(self) -> None:
        """Starts all processes now: what they import takes seconds."""
        # In the pool's threads: a process ends with the thread that started it.
        started = [self._threads.submit(self._start_one) for _ in range(self._count)]
        for future in started:
            future.result()

    def _start_one(self) -> None:
        process = self._idle.get()
        try:
            process = process or self._begin()
        finally:
            self._idle.put(process)

    def submit(self, case: Any, config: Any, device: Device) -> Future[str]:
        """Compiles a configuration; the future has the error, empty where there is none.

        Jobs start in the order of submission.
        """
        job = base64.b64encode(pickle.dumps((case, config, device))).decode("ascii")
        return self._threads.submit(self._run, job + "\n")

    def _begin(self) -> subprocess.Popen[str] | None:
        """Returns a new process; ``None`` where all were ended."""
        pipe = subprocess.PIPE
        with self._lock:
            if self._ended:
                return None
            errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
            process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=errors, text=True,
                env=self._environment,
            )  # fmt: skip
            self._errors[process] = errors
            return process

    def _close(self, process: subprocess.Popen[str]) -> str:
        """Waits for the end of a process and frees what it holds; returns how it ended."""
        code = process.wait()
        with self._lock:
            errors = self._errors.pop(process)
        for stream in (process.stdin, process.stdout):
            # Closing a pipe writes again what the process has not read.
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]
        with errors:
            errors.seek(0)
            return f"the compiling process ended with {code}: {errors.read()[-300:].strip()}"

    def _run(self, job: str) -> str:
        process = self._idle.get()
        try:
            process = process or self._begin()
            if process is None:
                return "the compiling processes were ended before this job began"
            answer = _ask(process, job)
            if answer.endswith("\n"):  # else the process ended in the middle of it, or before
                return str(json.loads(answer))
            ended, process = process, None
            return self._close(ended)
        finally:
            self._idle.put(process)


def _ask(process: subprocess.Popen[str], line: str) -> str:
    """Returns the line that a process answers; a process that takes too long is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    killer = threading.Timer(_JOB_SECONDS, process.kill)
    killer.start()
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return ""
    finally:
        killer.cancel()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


class EventClock:
    """The clock of a GPU; it prepares a function's calls and the milliseconds of its launch.

    A measurement takes ``target_ms`` on the GPU, with ``calls`` at least and at most.
    ``host_bound`` tells whether the GPU waited for the host in the last one.
    """

    def __init__(
        self,
        device: torch.device,
        target_ms: float = _TARGET_MS,
        calls: tuple[int, int] = _CALLS,
    ) -> None:
        self._target_ms, self._calls, self.host_bound = target_ms, calls, False
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

    def prepare(self, function: Function) -> tuple[Function, int, float]:
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
        least, most = self._calls
        calls = min(most, max(least, math.ceil(self._target_ms / ms)))
        return function, calls, host_ms

    def _spin(self, milliseconds: float) -> None:
        torch.cuda._sleep(int(min(milliseconds, _MAX_SPIN_MS) * self._cycles_per_ms))

    def measure(self, prepared: tuple[Function, int, float]) -> float:
        """Returns the median time of a call, in microseconds."""
        function, calls, host_ms = prepared
        # Two events and the flush cost the host about 20 us.
        spin_ms = calls * (host_ms + 0.02) * 1.5
        for _ in range(3):
            events = [(_event(), _event()) for _ in range(calls)]
            self._spin(spin_ms)
            for start, end in events:
                self._flush.zero_()
                start.record()
                function()
                end.record()
            self.host_bound = events[0][0].query()
            torch.cuda.synchronize()
            if not self.host_bound:
                break
            # The GPU did not wait for the host to be done: again, with more of a lead.
            spin_ms *= 2
        return 1e3 * statistics.median(start.elapsed_time(end) for start, end in events)


def turns(items: Sequence[Any], number: int) -> Sequence[Any]:
    """Returns the order of a round: rotating, and every other time backwards.

    On some machines every other measurement takes 0.5 us more.  A round and the next one, which is
    the same backwards, have each item once at an even and once at an odd place.  The first round
    has number 0.
    """
    turn = number // 2 % max(1, len(items))
    order = [*items[turn:], *items[:turn]]
    return order[::-1] if number % 2 else order


def interleaved(functions: Sequence[Function], clock: EventClock, rounds: int) -> list[float]:
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
            left = [index for index in left if min(times[index]) <= _LEFT_BEHIND * best]
        for index in turns(left, number):
            times[index].append(clock.measure(prepared[index]))
    return [statistics.median(each) for each in times]
