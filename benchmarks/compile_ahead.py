"""Compiles configurations in other processes, without a GPU, into Triton's disk cache.

A worker is ``python -m benchmarks.compile_ahead``: it reads one JSON job per line and answers each
with one JSON line.  It launches nothing: the tensors are torch's "meta" tensors, Triton's driver is
a stand-in that names the target, and the kernel's launch is replaced by its ``warmup``.  A compiler
that crashes or hangs takes one worker with it, never the sweep.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.shapes import ConvShape

__all__ = ["CompilePool", "Compiled"]

COMPILE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a job.

    Attributes:
        error: Why there is no kernel; empty where there is one.
        shared_bytes: Shared memory that the kernel asks for.
        seconds: Time that it took.
    """

    error: str
    shared_bytes: int = 0
    seconds: float = 0.0


class _Worker:
    """One compiling process, started on first use and again after a crash."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability
        self._process: subprocess.Popen[str] | None = None
        # Lives as long as the worker; stop() closes it.
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115

    def _start(self) -> subprocess.Popen[str]:
        major, minor = self._capability
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compile_ahead", str(major * 10 + minor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

    def run(self, job: dict[str, object]) -> Compiled:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        killer = threading.Timer(COMPILE_SECONDS, process.kill)
        killer.start()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            killer.cancel()
        if answer:
            return Compiled(**json.loads(answer))
        code = process.wait()
        self._process = None
        self._errors.seek(0)
        said = self._errors.read()[-300:].strip()
        return Compiled(f"the compiling process ended with {code}: {said}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class CompilePool:
    """Compiling processes, each fed by a thread; use it as a context manager.

    Args:
        jobs: Processes.
        capability: Compute capability of the target, such as (9, 0).
    """

    def __init__(self, jobs: int, capability: tuple[int, int]) -> None:
        self._workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all = [_Worker(capability) for _ in range(jobs)]
        for worker in self._all:
            self._workers.put(worker)
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="compile")

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.stop()

    def submit(self, shape: ConvShape, dtype: str, config: Any) -> Future[Compiled]:
        """Compiles ``config`` for ``shape``; jobs start in the order of submission."""
        job: dict[str, object] = {
            "shape": shape.name,
            "dtype": dtype,
            "config": asdict(config),
        }
        return self.submit_job(job)

    def submit_job(self, job: dict[str, object]) -> Future[Compiled]:
        """Has a job done; one with a ``module`` by that module's ``compile_job``."""
        return self._threads.submit(self._run, job)

    def _run(self, job: dict[str, object]) -> Compiled:
        worker = self._workers.get()
        try:
            return worker.run(job)
        finally:
            self._workers.put(worker)


class _TargetOnlyDriver:
    """Stands in for Triton's driver where kernels are compiled and never launched."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _CompiledOnly:
    """Stands in for a kernel: a launch compiles it and keeps the result."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.compiled: Any = None

    def __getitem__(self, grid: object) -> Any:
        def launch(*arguments: Any, **keywords: Any) -> None:
            self.compiled = self._kernel.warmup(*arguments, grid=grid, **keywords)

        return launch


def _compile_elsewhere(job: dict[str, Any], capability: tuple[int, int]) -> Compiled:
    """Has a module's own function compile the job."""
    begin = time.perf_counter()
    shared: int = importlib.import_module(job["module"]).compile_job(job, capability)
    return Compiled("", shared, time.perf_counter() - begin)


def _compile(kernel: _CompiledOnly, job: dict[str, Any]) -> Compiled:
    from triton_ext.ops.conv_config import ConvConfig
    from triton_ext.ops.functional import conv2d_with_config

    from benchmarks.conv_fprop import make_tensors
    from benchmarks.shapes import select_shapes

    begin = time.perf_counter()
    (shape,) = select_shapes([job["shape"]])
    tensors = make_tensors(shape, job["dtype"], "meta")
    pad_h, pad_w = shape.padding
    conv2d_with_config(
        tensors.x,
        tensors.weight,
        None,
        [shape.stride] * 2,
        [pad_h, pad_h, pad_w, pad_w],
        [1, 1],
        ConvConfig(**job["config"]),
    )
    shared = int(kernel.compiled.metadata.shared)
    return Compiled("", shared, time.perf_counter() - begin)


def _serve(arch: int) -> None:
    """Answers jobs until stdin ends."""
    # Whatever a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    driver.set_active(_TargetOnlyDriver(GPUTarget("cuda", arch, 32)))
    from triton_ext.ops.conv_config import SMEM_BYTES
    from triton_ext.ops.machine import Machine

    # The names that a plan looks up in its module when it is made and run.
    plans: Any = importlib.import_module("triton_ext.ops.conv_plan")
    kernel = _CompiledOnly(plans.conv_fprop_kernel)
    plans.conv_fprop_kernel = kernel
    machine = Machine(1, (arch // 10, arch % 10), SMEM_BYTES)
    plans.machine_of = lambda device, operator: machine
    for line in sys.stdin:
        try:
            job = json.loads(line)
            if "module" in job:
                result = _compile_elsewhere(job, machine.capability)
            else:
                result = _compile(kernel, job)
        except Exception as error:  # any failure of one configuration is an answer, not an end
            result = Compiled(f"{type(error).__name__}: {str(error)[:300]}")
        answers.write(json.dumps(asdict(result)) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
