"""Shared code of the convolution benchmarks around their measurements."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.harness import (
    TABLES,
    Environment,
    EventTimer,
    FakeTimer,
    GraphTimer,
    Timer,
    add_conv_arguments,
    collect_environment,
    emit,
    out_problem,
    time_interleaved,
)
from benchmarks.suites import SUITES, Layer, select_layers

__all__ = [
    "H200_MULTIPROCESSORS",
    "add_suite_arguments",
    "announce",
    "has_gpu",
    "machine_rate",
    "make_timer",
    "multiprocessors",
    "opened",
    "opened_suite",
    "prepare_torch",
    "wrong_out",
]

# Multiprocessors for which dry runs choose configurations.
H200_MULTIPROCESSORS = 132

FORMULA = (
    "TFLOP/s = 2 * (N * out_h * out_w) * Co * (R * S * Ci) / time; "
    "ratio = cuDNN time / our time; spread = (slowest - fastest round) / median"
)


Problem = TypeVar("Problem")


def add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of a case that runs over the layers of networks."""
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    add_conv_arguments(parser, shapes="indices into the suite, or names of layers; all by default")


def wrong_out(
    arguments: argparse.Namespace,
    suffixes: Sequence[str] = TABLES,
    default_out: pathlib.Path | None = None,
) -> str:
    """Why the file to write cannot be; empty if it seems that it can, or there is none.

    Args:
        arguments: The options.
        suffixes: How its name may end.
        default_out: The file, where the options name none.
    """
    if arguments.out is None:
        problem = out_problem(default_out, suffixes)
        return f"{problem}; name another file with --out" if problem else ""
    problem = out_problem(arguments.out, suffixes)
    return f"--out {problem}" if problem else ""


def opened(
    arguments: argparse.Namespace,
    select: Callable[[], Sequence[Problem]],
    suffixes: Sequence[str] = TABLES,
    default_out: pathlib.Path | None = None,
) -> tuple[Sequence[Problem], Environment] | None:
    """Begins a run: reads the options, looks for the GPU and prepares torch.

    Args:
        arguments: Of :func:`benchmarks.harness.add_conv_arguments`.
        select: Gives what is to be measured; raises a ValueError where the options name nothing.
        suffixes: How the name of a file to write may end.
        default_out: The file to write, where the options name none.

    Returns:
        What ``select`` gave, and where it runs.  ``None``, after a line that says why, where
        nothing can be measured.
    """
    problem = wrong_out(arguments, suffixes, default_out)
    if problem:
        emit(problem)
        return None
    try:
        problems = select()
    except ValueError as error:
        emit(str(error))
        return None
    environment = collect_environment(arguments.dry_run)
    if not arguments.dry_run:
        if not has_gpu():
            return None
        prepare_torch()
    return problems, environment


def opened_suite(
    arguments: argparse.Namespace,
    suffixes: Sequence[str] = TABLES,
    default_out: pathlib.Path | None = None,
) -> tuple[Sequence[Layer], Environment] | None:
    """Begins a run over the layers that :func:`add_suite_arguments` selects; see :func:`opened`."""

    def select() -> Sequence[Layer]:
        return select_layers(arguments.suite, arguments.shapes)

    return opened(arguments, select, suffixes, default_out)


def has_gpu(instead: str = "--dry-run shows the output") -> bool:
    """Tells whether there is a GPU; prints a line where there is none.

    Args:
        instead: What the case can do without one.
    """
    import torch

    found: bool = torch.cuda.is_available()
    if not found:
        emit(f"no CUDA GPU: nothing to time ({instead} without one)")
    return found


def multiprocessors() -> int:
    """Returns the multiprocessors of the GPU."""
    import torch

    count: int = torch.cuda.get_device_properties(0).multi_processor_count
    return count


def prepare_torch() -> None:
    """Sets the one thing that cuDNN is to be compared with."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def machine_rate(timer: Timer) -> float:
    """Returns TFLOP/s of an 8192^3 fp16 product of torch: is the GPU in good shape?"""
    import torch

    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.float16)
    b = torch.randn(size, size, device="cuda", dtype=torch.float16)
    timing = time_interleaved({"matmul": lambda: a @ b}, timer, rounds=3)["matmul"]
    return 2 * size**3 / timing.ms / 1e9


def make_timer(arguments: argparse.Namespace, target_ms: float) -> Timer:
    """Returns the timer that the options ask for."""
    if arguments.dry_run:
        return FakeTimer()
    if arguments.graph:
        return GraphTimer(target_ms)
    return EventTimer(target_ms, prefill=not arguments.no_prefill)


def announce(
    arguments: argparse.Namespace,
    environment: Environment,
    timer: Timer,
    rounds: int | None = None,
) -> None:
    """Prints what the numbers below are.

    Args:
        arguments: The options.
        environment: Where the numbers come from.
        timer: What measures.
        rounds: Measurements of a variant, where they are not as many as the options say.
    """
    count = arguments.rounds if rounds is None else rounds
    for line in environment.lines():
        emit(line)
    if arguments.dry_run:
        emit("DRY RUN: every time below is invented")
    elif arguments.graph:
        emit("timing:     CUDA graphs of many calls, warm L2")
    else:
        host = "host time included" if arguments.no_prefill else "host time hidden"
        emit(f"timing:     CUDA events per call, L2 flushed before each, {host}")
    emit(f"inputs:     {arguments.dtype}; x normal(0, 1), weight normal(0, 1/(R*S*Ci))")
    emit(f"rounds:     {count}, interleaved; a round is the median over its calls")
    emit(f"formula:    {FORMULA}")
    if not arguments.dry_run:
        emit(f"machine:    8192^3 fp16 torch matmul at {machine_rate(timer):.0f} TFLOP/s")
    emit()
