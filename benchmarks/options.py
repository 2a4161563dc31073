"""Options, beginning and header that cases over convolutions and normalizations have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.harness import (
    Environment,
    EventTimer,
    FakeTimer,
    GraphTimer,
    Timer,
    add_out_argument,
    collect_environment,
    emit,
    read_count,
    read_positive,
    time_interleaved,
)

__all__ = ["add_timing_arguments", "announce", "has_gpu", "machine_rate", "make_timer", "opened",
           "prepare_torch"]  # fmt: skip

FORMULA = (
    "TFLOP/s = 2 * (N * out_h * out_w) * Co * (R * S * Ci) / time; spread = (slowest - fastest "
    "round) / median"
)

Problem = TypeVar("Problem")


def add_timing_arguments(
    parser: argparse.ArgumentParser, shapes: str, dtypes: Sequence[str] = ("float16", "bfloat16")
) -> None:
    """Declares what is measured and how; ``shapes`` is a help, the default of ``dtypes`` first."""
    parser.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    parser.add_argument("--shapes", nargs="+", metavar="SHAPE", help=shapes)
    parser.add_argument(
        "--rounds", type=read_count, default=8,
        help="measurements per variant; even is fair (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--target-ms", type=read_positive, default=20.0, help="GPU time of a measurement (20)"
    )
    parser.add_argument(
        "--time-limit", type=read_positive, default=480.0, metavar="S",
        help="seconds to stop after (480)",
    )  # fmt: skip
    parser.add_argument(
        "--graph", action="store_true", help="repeat through CUDA graphs (warm L2, no launch gaps)"
    )
    parser.add_argument(
        "--no-prefill", action="store_true",
        help="do not hide host time behind a spin kernel; measures as triton.testing.do_bench does",
    )  # fmt: skip
    add_out_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: invented times, nothing is computed"
    )


def opened(
    arguments: argparse.Namespace, select: Callable[[], Sequence[Problem]]
) -> tuple[Sequence[Problem], Environment] | None:
    """Begins a run: reads the options, looks for the GPU and prepares torch.

    ``select`` gives what is to be measured, or raises a ValueError where the options name nothing.
    Returns that and where it runs; ``None``, after a line that says why, where nothing can run.
    """
    try:
        problems = select()
    except ValueError as error:
        emit(str(error))
        return None
    if not arguments.dry_run:
        if not has_gpu():
            return None
        prepare_torch()
    return problems, collect_environment(arguments.dry_run)


def has_gpu(instead: str = "--dry-run shows the output") -> bool:
    """Tells whether there is a GPU; prints a line where there is none, and what to do instead."""
    import torch

    found: bool = torch.cuda.is_available()
    if not found:
        emit(f"no CUDA GPU: nothing to time ({instead} without one)")
    return found


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


def make_timer(arguments: argparse.Namespace) -> Timer:
    """Returns the timer that the options ask for."""
    if arguments.dry_run:
        return FakeTimer()
    if arguments.graph:
        return GraphTimer(arguments.target_ms)
    return EventTimer(arguments.target_ms, prefill=not arguments.no_prefill)


def announce(arguments: argparse.Namespace, environment: Environment, timer: Timer) -> None:
    """Prints what the numbers below are."""
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
    emit(f"rounds:     {arguments.rounds}, interleaved; a round is the median over its calls")
    emit(f"formula:    {FORMULA}")
    if not arguments.dry_run:
        emit(f"machine:    8192^3 fp16 torch matmul at {machine_rate(timer):.0f} TFLOP/s")
    emit()
