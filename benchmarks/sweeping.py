"""Shared code of the sweeps of tile configurations: options, limits, and early stops."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict
from typing import Any

from benchmarks.compile_ahead import Compiled, CompilePool
from benchmarks.conv_runs import H200_MULTIPROCESSORS, make_timer, multiprocessors
from benchmarks.conv_variants import Operands
from benchmarks.harness import (
    Deadline,
    Environment,
    Errors,
    Function,
    Timer,
    complain,
    emit,
    measure_errors,
    read_count,
    write_json,
)
from benchmarks.readings import is_invented, load_sweep
from benchmarks.suites import Layer

__all__ = [
    "HANG_SECONDS",
    "RESERVE_SECONDS",
    "ROUNDS",
    "TARGET_MS",
    "ContextLostError",
    "LayerSweep",
    "add_sweep_arguments",
    "check_context",
    "compiled_layers",
    "compiling_processes",
    "earlier_results",
    "gradient_of_torch",
    "is_compiled",
    "out_file",
    "watched",
]

# GPU time of one measurement, and measurements per configuration: an even number is fair.
TARGET_MS = 8.0
ROUNDS = 4
HANG_SECONDS = 30.0
# Kept back from the time limit, to finish a shape and write.
RESERVE_SECONDS = 15.0


class ContextLostError(Exception):
    """The CUDA context is broken; nothing more can run in this process."""


def add_sweep_arguments(parser: Any, resume: bool = True) -> None:
    """Declares the options of a sweep on a parser, or on a group of one.

    Args:
        parser: What gets the options.
        resume: Whether the sweep can go on behind an earlier one.
    """
    parser.add_argument("--narrow", action="store_true", help="the shipped configurations only")
    if resume:
        parser.add_argument(
            "--resume", action="store_true", help="keep what --out holds and time the rest"
        )
    parser.add_argument(
        "--jobs", type=read_count, default=0, help="compiling processes (cores - 1)"
    )


def out_file(arguments: argparse.Namespace, default: pathlib.Path) -> pathlib.Path:
    """Returns the file that a sweep writes.

    Args:
        arguments: The options.
        default: The file, where they name none. A dry run invents times and leaves it alone.
    """
    if arguments.out is not None:
        return pathlib.Path(arguments.out)
    return default.with_suffix(f".dry{default.suffix}") if arguments.dry_run else default


def earlier_results(
    arguments: argparse.Namespace, out: pathlib.Path, key: str
) -> dict[str, dict[str, Any]] | None:
    """Returns what ``--resume`` keeps, by the name of the layer; nothing where there is no file.

    Args:
        arguments: The options.
        out: The file.
        key: Under which the layers stand in it.

    Returns:
        ``None``, after a line that says why, where the file is no such sweep, or where one of
        invented and measured times would go on behind the other.
    """
    if not arguments.resume or not out.exists():
        return {}
    try:
        sweep = load_sweep(out, key)
    except ValueError as error:
        complain(f"--resume: {error}")
        return None
    if is_invented(sweep) != arguments.dry_run:
        kinds = ("measured", "invented") if is_invented(sweep) else ("invented", "measured")
        complain(f"--resume: {out}: expected {kinds[0]} times, these are {kinds[1]}")
        return None
    found: dict[str, dict[str, Any]] = sweep[key]
    return found


def compiling_processes(arguments: argparse.Namespace) -> int:
    """Returns how many processes compile."""
    jobs: int = arguments.jobs
    return jobs or max(1, (os.cpu_count() or 2) - 1)


def is_compiled(
    future: Future[Compiled] | None, deadline: Deadline, record: Callable[[str], None]
) -> bool:
    """Waits for the compiler, not beyond the time limit; tells whether there is a kernel.

    Args:
        future: Of the compiling process; ``None`` in a dry run.
        deadline: Of the sweep.
        record: Takes the status of a configuration that does not compile.
    """
    if future is None:
        return True
    try:
        compiled = future.result(timeout=max(deadline.left() - RESERVE_SECONDS / 2, 0.0))
    except FutureTimeoutError:
        return False
    if compiled.error:
        record(f"does not compile: {compiled.error}")
    return not compiled.error


def check_context(what: str, error: Exception) -> None:
    """Raises a ContextLostError if the GPU answers nothing any more after ``error``."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as lost:
        raise ContextLostError(f"{what}: {lost}") from error


@contextlib.contextmanager
def watched(last_words: Callable[[str], None], seconds: float = HANG_SECONDS) -> Iterator[None]:
    """Ends the process if the kernel inside does not come back.

    Args:
        last_words: Takes the status of the configuration, to save and print it.
        seconds: How long that may take.
    """

    def give_up() -> None:
        last_words(f"hangs: no end after {seconds:.0f} s")
        os._exit(3)

    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def gradient_of_torch(operands: Operands, direction: str) -> tuple[Any, Function, Errors]:
    """Returns torch's gradient in fp32, a call of that in the operands' dtype, and its errors."""
    import torch

    torch.backends.cudnn.benchmark = False
    reference = operands.in_fp32().run_torch(direction)
    torch.backends.cudnn.benchmark = True

    def baseline() -> object:
        return operands.run_torch(direction)

    return reference, baseline, measure_errors(baseline(), reference)


class LayerSweep:
    """The state of a sweep over layers of networks, and the file it goes to.

    Attributes:
        layers: What was measured, by the layer's name; ``results`` of each has a ``status``.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        environment: Environment,
        default_out: pathlib.Path,
        key: str,
    ) -> None:
        """Begins one.

        Args:
            arguments: The options.
            environment: Where it runs.
            default_out: The file, where the options name none.
            key: Under which the layers stand in the file.
        """
        self.arguments = arguments
        self.out = out_file(arguments, default_out)
        self.environment = environment
        self.deadline = Deadline(arguments.time_limit)
        self.timer: Timer = make_timer(arguments, min(arguments.target_ms, TARGET_MS))
        self.rounds: int = min(arguments.rounds, ROUNDS)
        self.num_sms = H200_MULTIPROCESSORS if arguments.dry_run else multiprocessors()
        self.layers: dict[str, dict[str, Any]] = {}
        self._key = key

    def begin(self, layer: Layer) -> None:
        """Makes room for the results of a layer, where a sweep has not done so before."""

    def record(self, layer: Layer, candidate: Any, status: str) -> None:
        """Keeps what became of a configuration."""
        raise NotImplementedError

    def save(self) -> None:
        """Writes all that is known."""
        document = {
            "environment": asdict(self.environment),
            "dtype": self.arguments.dtype,
            "num_sms": self.num_sms,
            self._key: self.layers,
        }
        write_json(self.out, document)

    def finish(self, layers: Sequence[Layer]) -> int:
        """Prints how many results of some layers were wrong; returns the exit code."""
        wrong = sum(
            result["status"] == "wrong result"
            for layer in layers
            for result in self.layers.get(layer.name, {"results": []})["results"]
        )
        emit(f"{wrong} wrong results; written to {self.out}")
        return int(wrong > 0)


def compiled_layers(
    sweep: LayerSweep,
    pool: CompilePool | None,
    work: Mapping[Layer, Sequence[Any]],
    job_of: Callable[[Layer, Any], dict[str, Any]],
) -> Iterator[tuple[Layer, list[Any]]]:
    """Compiles everything ahead, and goes through the layers that there is time for.

    Args:
        sweep: The sweep.
        pool: The compiling processes; ``None`` in a dry run.
        work: Configurations by layer.
        job_of: What a process is told to compile.

    Yields:
        A layer, and its configurations that compiled; those that did not are recorded.
    """
    futures = {}
    if pool is not None:
        futures = {
            (layer, candidate): pool.submit_job(job_of(layer, candidate))
            for layer, candidates in work.items()
            for candidate in candidates
        }
    for layer, candidates in work.items():
        if sweep.deadline.left() < RESERVE_SECONDS:
            emit(f"{layer.name:<44} skipped (time limit)")
            for future in futures.values():
                future.cancel()
            continue
        sweep.begin(layer)
        yield (
            layer,
            [
                candidate
                for candidate in candidates
                if is_compiled(
                    futures.get((layer, candidate)),
                    sweep.deadline,
                    functools.partial(sweep.record, layer, candidate),
                )
            ],
        )
