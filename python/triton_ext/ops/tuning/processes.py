"""Compiling processes: they do jobs one line at a time, and survive jobs that end their process.

A process reads a JSON object per line and answers each with a JSON line, the fields of
:class:`Compiled`.  A compiler that crashes or hangs takes one process with it, never the caller.
Kernels are compiled into Triton's cache on disk without a GPU: tensors are torch's "meta" tensors,
Triton's driver is a stand-in that names the target, and launches compile only.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from triton_ext.host.children import command
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, assumed_device
from triton_ext.ops.core.launcher import compiling
from triton_ext.ops.tuning.measure import make_tensors, run_plan

__all__ = [
    "CompilePool",
    "Compiled",
    "Processes",
    "TargetOnlyDriver",
    "compile_kernels",
    "compile_plan",
    "serve",
    "target_only",
]

# A configuration takes one to ten seconds.
_JOB_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of a job."""

    error: str  # why there is no kernel; empty where there is one
    shared_bytes: int = 0  # shared memory that the kernel asks for
    seconds: float = 0.0


# ---- In a compiling process ---------------------------------------------------------------------


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


def compile_kernels(case: Case, config: Any, machine: Device) -> list[Any]:
    """Compiles all kernels of a case's plan for a GPU that need not be there.

    Returns:
        Triton's compiled kernels; their ``asm`` holds TTGIR, PTX and cubin.
    """
    meta = torch.device("meta")
    with assumed_device(machine), compiling() as kernels:
        # A plan that was made before could hold kernels that were compiled for another machine.
        planner.make_plan.cache_clear()
        plan = planner.make_plan(case.dense, meta, config)
        run_plan(case, plan, make_tensors(case, meta))
    return kernels


def compile_plan(case: Case, config: Any, machine: Device) -> int:
    """Compiles as :func:`compile_kernels`; returns the largest shared memory of a kernel."""
    return max(int(kernel.metadata.shared) for kernel in compile_kernels(case, config, machine))


def serve(do: Callable[[dict[str, Any]], int]) -> None:
    """Answers jobs by the bytes of shared memory that ``do`` returns, until standard input ends."""
    # Whatever a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            shared = do(json.loads(line))
            result = Compiled("", shared, time.perf_counter() - begin)
        except Exception as error:  # any failure of one job is an answer, not an end
            result = Compiled(f"{type(error).__name__}: {str(error)[:300]}")
        answers.write(json.dumps(asdict(result)) + "\n")
        answers.flush()


def _compile(job: dict[str, Any]) -> int:
    # Pickled by the process that started this one.
    case, config, machine = pickle.loads(base64.b64decode(job["job"]))
    target_only(machine.capability)
    return compile_plan(case, config, machine)


_WORKER = f"from {__name__} import _compile, serve; serve(_compile)"


# ---- Pools of processes -------------------------------------------------------------------------


class _Process:
    """One process, started on first use and again after a crash, until :meth:`end`.

    One thread at a time has it do jobs; any thread may end it.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._command = list(command)
        self._options = options
        self._lock = threading.Lock()  # of the two below
        self._running: subprocess.Popen[str] | None = None
        self._ended = False
        # Lives as long as the object; close() closes it.
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115

    def start(self) -> subprocess.Popen[str] | None:
        """Returns the running process; ``None`` after :meth:`end`."""
        pipe = subprocess.PIPE
        with self._lock:
            if self._running is None and not self._ended:
                self._running = subprocess.Popen(
                    self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True,
                    **self._options,
                )  # fmt: skip
            return self._running

    def run(self, job: Mapping[str, object]) -> Compiled:
        process = self.start()
        if process is None:
            return Compiled("the compiling processes were ended before this job began")
        assert process.stdin is not None
        assert process.stdout is not None
        killer = threading.Timer(_JOB_SECONDS, process.kill)
        killer.start()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            killer.cancel()
        if answer.endswith("\n"):  # else the process ended in the middle of it, or before
            return Compiled(**json.loads(answer))
        code = process.wait()
        with self._lock:
            self._running = None
        _close_streams(process)
        self._errors.seek(0)
        said = self._errors.read()[-300:].strip()
        return Compiled(f"the compiling process ended with {code}: {said}")

    def end(self) -> None:
        """Kills the process; a thread that waits for its answer sees that as a crash."""
        with self._lock:
            self._ended = True
            if self._running is not None:
                self._running.kill()

    def close(self) -> None:
        """Frees what an ended process holds; no thread may use it any more."""
        if self._running is not None:
            self._running.wait()
            _close_streams(self._running)
        self._errors.close()


def _close_streams(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            # Closing a pipe writes again what the process has not read.
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Processes:
    """Processes, each fed by a thread; use it as a context manager.

    Args:
        count: Number of processes.
        command: Starts one.
        options: Further options of ``subprocess.Popen``, such as ``cwd``.
    """

    def __init__(self, count: int, command: Sequence[str], **options: Any) -> None:
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._all = [_Process(command, **options) for _ in range(count)]
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="compile")

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._all:
            process.end()
        # The threads end at once: what they wait for is dead, and nothing starts again.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            process.close()

    def start(self) -> None:
        """Starts all processes now: what they import takes seconds."""
        for process in self._all:
            process.start()

    def submit_job(self, job: Mapping[str, object]) -> Future[Compiled]:
        """Has a job done; jobs start in the order of submission."""
        return self._threads.submit(self._run, job)

    def _run(self, job: Mapping[str, object]) -> Compiled:
        process = self._idle.get()
        try:
            return process.run(job)
        finally:
            self._idle.put(process)


class CompilePool(Processes):
    """Processes that compile candidates.

    Args:
        count: Number of processes; one per core but one by default, 32 at most.
    """

    def __init__(self, count: int | None = None) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        environment.pop("TRITON_INTERPRET", None)
        cores = len(os.sched_getaffinity(0))
        count = count or min(32, max(1, cores - 1))
        super().__init__(count, command("-c", _WORKER), env=environment)

    def __enter__(self) -> CompilePool:
        return self

    def submit(self, case: Any, config: Any, machine: Any) -> Future[Compiled]:
        """Compiles a configuration; returns a future of :class:`Compiled`."""
        job = base64.b64encode(pickle.dumps((case, config, machine)))
        return self.submit_job({"job": job.decode("ascii")})
