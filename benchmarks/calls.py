"""Host time of a whole call of an operator, without a GPU: prepared launches beside Triton's.

Triton's launcher and ours are linked to a driver that does nothing.  A call is timed from Python to
the end of ``cuLaunchKernelEx``.  Tensors are on the CPU, so that outputs come from its allocator,
and torch is not asked for a current device; they are small, so that the allocator has no pages to
clear.  A backward of them runs in the thread that asks for it, so its time counts, with what
autograd takes for itself.  Encoding tensor maps costs nothing here, which favours Triton's
launcher: it encodes one per descriptor and call.

Times are of the thread's CPU clock, the fastest of many short chunks, so that other processes do
not show.  A round measures each variant once; the table has the median of the rounds.  Variants are
``triton``, the compiled kernel through Triton's launcher, and ``prepared``, through
``_driver.launch_prepared``, for all launches of a call together.

Normalizations (``--norms``) take statistics of x, as in training, and move running ones.  ``both``
is with the backward, gradients of x, weight, bias and residual.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from benchmarks.harness import (
    ROOT,
    add_out_argument,
    collect_environment,
    emit,
    read_count,
    write_rows,
)

__all__ = ["add_arguments", "is_prepared", "make_calls", "make_norm_calls", "norms_on_stand_in",
           "run", "through"]  # fmt: skip

Calls = dict[str, Callable[[], object]]
VARIANTS = ("triton", "prepared")
CHUNK = 100
WARM_UP = 20
# A call is seen at the first one, looked at at the second one; a backward begins one later.
FIRST_CALLS = 4

FORMULA = "us = fastest of chunks of 100 calls, median of the rounds; ratio = time / 'triton'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--rounds", type=read_count, default=5, help="measurements (5)")
    parser.add_argument("--chunks", type=read_count, default=20, help="chunks of each (20)")
    parser.add_argument("--norms", action="store_true", help="of BatchNorm and GroupNorm instead")
    add_out_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Times calls in the process of the stand-in, which it starts.

    Returns:
        1 where a launch was not prepared, 2 without a C compiler, else 0.
    """
    # Tests own the stand-ins, whose C sources stand beside them.
    sys.path.append(str(ROOT / "unittest" / "nvidia"))
    driver: Any = importlib.import_module("stand_in_driver")
    if os.environ.get(driver.STAND_IN_VARIABLE) is None:
        status: int = driver.start_on_stand_in()
        return status
    environment = collect_environment()
    for line in (*environment.lines(), FORMULA, "driver: a stand-in that does nothing"):
        emit(line)
    times: dict[tuple[str, str], list[float]] = {}
    with norms_on_stand_in():
        calls = make_norm_calls() if arguments.norms else make_calls()
        unprepared = [name for name, call in calls.items() if not is_prepared(call)]
        for _ in range(arguments.rounds):
            for variant in VARIANTS:
                with through(variant):
                    for name, call in calls.items():
                        took = fastest_us(call, arguments.chunks)
                        times.setdefault((name, variant), []).append(took)
    report(times, arguments, environment)
    for name in unprepared:
        emit(f"{name}: a launch is not prepared")
    return int(bool(unprepared))


def _last(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, dtype=torch.bfloat16).to(memory_format=torch.channels_last)


def make_calls() -> Calls:
    """Returns the calls of convolutions by name, each with tensors of its own."""
    import torch
    from triton_ext import nn, ops

    x, weight, dy = _last(2, 64, 16, 16), _last(64, 64, 3, 3), _last(2, 64, 16, 16)
    residual, bias = _last(2, 64, 16, 16), torch.zeros(64, dtype=torch.bfloat16)
    relu = {"activation": "relu"}
    leaves = (_last(2, 64, 16, 16).requires_grad_(), _last(64, 64, 3, 3).requires_grad_())
    module = nn.Conv2d(64, 64, 3, padding=1, bias=False).bfloat16()
    module.pack_weight()
    parameters = (leaves[0], module.weight)

    block = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.SiLU(),
    )
    block = nn.convert(block.bfloat16().eval(), report=False, fold=True)

    def in_evaluation(model: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = model(x)
        return y

    return {
        "conv2d": lambda: ops.conv2d(x, weight, None, 1, 1),
        "conv2d, bias": lambda: ops.conv2d(x, weight, bias, 1, 1),
        "conv2d, bias, relu": lambda: ops.conv2d(x, weight, bias, 1, 1, **relu),
        "conv2d, bias, residual, relu": lambda: ops.conv2d(
            x, weight, bias, 1, 1, residual=residual, **relu
        ),
        "conv2d_input": lambda: ops.conv2d_input(x.shape, weight, dy, 1, 1),
        "conv2d_weight": lambda: ops.conv2d_weight(x, weight.shape, dy, 1, 1),
        "conv2d, forward, backward": lambda: run_step(
            lambda: ops.conv2d(*leaves, None, 1, 1), dy, leaves
        ),
        "nn.Conv2d, no_grad": lambda: in_evaluation(module),
        "folded block, no_grad": lambda: in_evaluation(block),
        "nn.Conv2d, forward, backward": lambda: run_step(lambda: module(leaves[0]), dy, parameters),
    }


@contextlib.contextmanager
def norms_on_stand_in() -> Iterator[None]:
    """Within, normalizations take tensors on the CPU for those of a GPU, as operators do."""
    from triton_ext.ops.norms import checks

    # Triton's driver, which this patches, is there in the process of the stand-in only.
    stand_in: Any = importlib.import_module("stand_in_operators")
    with (
        stand_in.operators_on_stand_in(),
        mock.patch.object(checks, "IS_INTERPRETED", True),
        mock.patch.object(checks, "describe", return_value=stand_in.H200),
    ):
        yield


def make_norm_calls() -> Calls:
    """Returns the calls by name, each with tensors of its own."""
    import torch
    from triton_ext import nn, ops

    def leaf() -> torch.Tensor:
        return _last(2, 64, 16, 16).requires_grad_()

    class Followed(torch.nn.Module):
        def __init__(self, norm: torch.nn.Module, activation: torch.nn.Module) -> None:
            super().__init__()
            self.norm, self.activation = norm, activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.activation(self.norm(x))
            return y

    class Added(Followed):
        def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.activation(self.norm(x) + residual)
            return y

    dy, residual, x = _last(2, 64, 16, 16), leaf(), leaf()
    terms = tuple(torch.zeros(64, requires_grad=True) for _ in range(2))
    mean, variance = torch.zeros(64), torch.ones(64)

    def batch_norm(**how: Any) -> torch.Tensor:
        return ops.batch_norm(x, *terms, mean, variance, training=True, activation="relu", **how)

    forwards: dict[str, tuple[Callable[[], torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "batch_norm, relu": (batch_norm, terms),
        "batch_norm, +, relu": (lambda: batch_norm(residual=residual), terms),
        "group_norm, silu": (lambda: ops.group_norm(x, 8, *terms, activation="silu"), terms),
    }
    relu, silu = torch.nn.ReLU(), torch.nn.SiLU()
    for name, model, inputs in (
        ("nn.BatchNorm2d, ReLU", Followed(torch.nn.BatchNorm2d(64), relu), (x,)),
        ("nn.BatchNorm2d, +, ReLU", Added(torch.nn.BatchNorm2d(64), relu), (x, residual)),
        ("nn.GroupNorm, SiLU", Followed(torch.nn.GroupNorm(8, 64), silu), (x,)),
    ):
        nn.convert(model.bfloat16(), norms=True, report=False)
        forwards[name] = functools.partial(model, *inputs), tuple(model.parameters())

    calls: Calls = {}
    for name, (forward, parameters) in forwards.items():
        calls[name] = forward
        calls[f"{name}, both"] = functools.partial(
            run_step, forward, dy, (x, residual, *parameters)
        )
    return calls


def run_step(forward: Callable[[], Any], dy: Any, leaves: Sequence[Any]) -> None:
    """Runs a forward and its backward over dy, and forgets the gradients of the leaves."""
    import torch

    torch.autograd.backward((forward(),), (dy,))
    for leaf in leaves:
        leaf.grad = None


def is_prepared(call: Callable[[], object]) -> bool:
    """Compiles what a call launches, and tells whether the next ones are prepared launches."""
    from triton_ext.backends.nvidia.backend.prepared import PreparedLaunch
    from triton_ext.ops.core.launcher import LaunchGroup

    launched: list[bool] = []

    def noting(real: Callable[..., bool]) -> Callable[..., bool]:
        def launch(self: object, tensors: tuple[object, ...]) -> bool:
            launched.append(real(self, tensors))
            return launched[-1]

        return launch

    for _ in range(FIRST_CALLS):
        call()
    with contextlib.ExitStack() as stack:
        for kind in (PreparedLaunch, LaunchGroup):
            stack.enter_context(mock.patch.object(kind, "__call__", noting(kind.__call__)))
        call()
    return bool(launched) and all(launched)


@contextlib.contextmanager
def through(variant: str) -> Iterator[None]:
    """Within, launches go this way."""
    from triton_ext.backends.nvidia.backend.prepared import PreparedLaunch
    from triton_ext.ops.core.launcher import LaunchGroup

    if variant == "prepared":
        yield
        return

    # A mock would take longer than what is timed.
    def never(self: object, tensors: tuple[object, ...]) -> bool:
        return False

    with (
        mock.patch.object(PreparedLaunch, "__call__", never),
        mock.patch.object(LaunchGroup, "__call__", never),
    ):
        yield


def fastest_us(call: Callable[[], object], chunks: int) -> float:
    """Returns the microseconds of a call in the fastest chunk."""
    for _ in range(WARM_UP):
        call()
    best = float("inf")
    for _ in range(chunks):
        start = time.thread_time()
        for _ in range(CHUNK):
            call()
        best = min(best, time.thread_time() - start)
    return best / CHUNK * 1e6


def report(
    times: dict[tuple[str, str], list[float]], arguments: argparse.Namespace, environment: Any,
) -> None:  # fmt: skip
    """Prints the table, by call and variant, and writes it where the user wants it."""
    rows = []
    emit(f"{'call':<30}{'variant':<14}{'us':>8}{'ratio':>8}")
    for (name, variant), rounds in sorted(times.items(), key=lambda item: item[0][0]):
        median = statistics.median(rounds)
        ratio = median / statistics.median(times[name, VARIANTS[0]])
        emit(f"{name:<30}{variant:<14}{median:>8.2f}{ratio:>8.3f}")
        row = {"call": name, "variant": variant, "us": round(median, 3), "ratio": round(ratio, 4)}
        rows.append(row | {"rounds": len(rounds)})
    if arguments.out is not None:
        write_rows(arguments.out, environment, rows)
