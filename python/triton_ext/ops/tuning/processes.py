"""Processes that do jobs one line at a time, and survive jobs that end their process.

A process reads a JSON object per line and answers each with a JSON line, the fields of
:class:`Compiled`.  A compiler that crashes or hangs takes one process with it, never the caller.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from triton_ext.host.children import command

__all__ = ["CompilePool", "Compiled", "Processes", "usable_cores"]

# A configuration takes one to ten seconds.
_JOB_SECONDS = 120.0


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


def usable_cores() -> int:
    """Returns on how many cores this process may run."""
    return len(os.sched_getaffinity(0))


class _Process:
    """One process, started on first use and again after a crash, until :meth:`end`.

    One thread at a time has it do jobs; any thread may end it.
    """

    def __init__(
        self, command: Sequence[str], folder: str | None, environment: Mapping[str, str] | None
    ) -> None:
        self._command = list(command)
        self._folder = folder
        self._environment = environment
        self._lock = threading.Lock()  # of the two below
        self._running: subprocess.Popen[str] | None = None
        self._ended = False
        # Lives as long as the object; close() closes it.
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115

    def start(self) -> subprocess.Popen[str] | None:
        """Returns the running process; ``None`` after :meth:`end`."""
        with self._lock:
            if self._running is None and not self._ended:
                self._running = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    text=True,
                    cwd=self._folder,
                    env=self._environment,
                )
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
            # What the process did not read any more is written once again when its pipe is closed.
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Processes:
    """Processes, each fed by a thread; use it as a context manager.

    Args:
        count: Of processes.
        command: Starts one.
        folder: Where it starts; here by default.
        environment: Its variables; those of this process by default.
    """

    def __init__(
        self,
        count: int,
        command: Sequence[str],
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._all = [_Process(command, folder, environment) for _ in range(count)]
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
        count: Of processes; one per core but one by default, 32 at most.
    """

    def __init__(self, count: int | None = None) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        environment.pop("TRITON_INTERPRET", None)
        super().__init__(
            count or min(32, max(1, usable_cores() - 1)),
            command("-m", "triton_ext.ops.tuning.worker"),
            environment=environment,
        )

    def __enter__(self) -> CompilePool:
        return self

    def submit(self, case: Any, config: Any, machine: Any) -> Future[Compiled]:
        """Compiles a configuration; returns a future of :class:`Compiled`."""
        job = base64.b64encode(pickle.dumps((case, config, machine)))
        return self.submit_job({"job": job.decode("ascii")})
