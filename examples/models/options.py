"""Shared code of the scripts: options, the device, the timer, and the end of a run."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence

import torch
from triton_ext.host import HostError, detect

from benchmarks.harness import (
    TABLES,
    Environment,
    Timer,
    collect_environment,
    emit,
    out_problem,
)
from examples.models import report
from examples.models.measure import GraphTimer, Row, StepTimer, Stopped
from examples.models.modes import DTYPES, MODES
from examples.models.networks import MODELS, SIZES, side_problem

__all__ = [
    "add_arguments",
    "announce",
    "device",
    "exactly",
    "file_problem",
    "finish",
    "models_of",
    "number_problem",
    "plot_problem",
    "problem_of",
    "run_problem",
    "show",
    "stopped",
    "timer_of",
    "wrong_side",
]

PLOTS = (".png", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of inference and training."""
    parser.add_argument(
        "--model", nargs="+", choices=(*MODELS, "all"), default=["resnet50"], metavar="MODEL",
        help=f"{', '.join(MODELS)} or all; all leaves convnext-timm out, the same network again",
    )  # fmt: skip
    parser.add_argument(
        "--mode", nargs="+", choices=(*MODES, "all"), default=["eager", "ours"], metavar="MODE",
        help=f"{', '.join(MODES)} or all; eager is always among them, to compare with",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny runs on a CPU")
    parser.add_argument("--batch", type=int, help="pictures per step and rank (by network)")
    parser.add_argument("--side", type=int, help="pixels or latents per side (by network)")
    parser.add_argument("--attention", action="store_true", help="in the UNet and the decoder")
    parser.add_argument("--steps", type=int, default=10, help="steps per measurement (10)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per mode (5)")
    parser.add_argument(
        "--graph", action=argparse.BooleanOptionalAction, default=False,
        help="time CUDA graphs of two steps or more: no host time",
    )  # fmt: skip
    parser.add_argument(
        "--ahead", type=int, default=0, metavar="N",
        help="compile our kernels in N processes first (0)",
    )  # fmt: skip
    parser.add_argument(
        "--tune", action="store_true",
        help="measure the tiles of our kernels in the first steps; the table is kept",
    )  # fmt: skip
    parser.add_argument(
        "--no-norms", dest="norms", action="store_false",
        help="leave BatchNorm and GroupNorm to torch in our modes",
    )  # fmt: skip
    parser.add_argument("--compile-mode", default="default", help="torch.compile's mode")
    parser.add_argument("--compile-backend", default="inductor", help="torch.compile's backend")
    parser.add_argument(
        "--time-limit", type=float, default=1800.0, metavar="S", help="seconds to stop after (1800)"
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help=".csv or .json to write")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="table to write")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help=".png or .svg to write")
    parser.add_argument(
        "--per-layer", type=pathlib.Path, metavar="FILE",
        help="every convolution's time before and after, as .png or .svg with a .csv beside it, or "
        "as .csv or .json alone; the model's name is put into FILE",
    )  # fmt: skip


def problem_of(arguments: argparse.Namespace) -> str:
    """Why the options cannot be followed here; empty if they can."""
    least = {"steps": 1, "rounds": 1, "batch": 1, "side": 1, "check_batch": 1, "ahead": 0}
    wrong_number = number_problem(arguments, least) or wrong_side(arguments)
    if wrong_number:
        return wrong_number
    if arguments.graph and not torch.cuda.is_available():
        return "--graph needs a CUDA GPU"
    layers, markdown = arguments.per_layer, arguments.markdown
    wrong_file = file_problem("--per-layer", layers, (*PLOTS, ".csv", ".json")) or (
        file_problem("--markdown", markdown, (markdown.suffix,)) if markdown is not None else ""
    )
    if layers is not None and layers.suffix in PLOTS:
        wrong_file = wrong_file or plot_problem("--per-layer", layers)
    return (
        wrong_file
        or plot_problem("--plot", arguments.plot)
        or run_problem(arguments.out)
        or _tuning_problem(arguments)
    )


def _tuning_problem(arguments: argparse.Namespace) -> str:
    """Why ``--tune`` cannot be followed here; empty if it can, or is not asked for."""
    if not arguments.tune or torch.cuda.is_available():
        return ""
    # Without the interpreter our kernels take nothing on a CPU, and there is nothing to tune.
    from triton_ext.ops.core.device import IS_INTERPRETED

    return "--tune needs a CUDA GPU: the interpreter's times say nothing" if IS_INTERPRETED else ""


def wrong_side(arguments: argparse.Namespace) -> str:
    """Why a network does not take ``--side``; empty if all do, or none is given."""
    asked = [arguments.model] if isinstance(arguments.model, str) else arguments.model
    for name in models_of(asked):
        problem = side_problem(name, arguments.size, arguments.side, arguments.batch)
        if problem:
            return f"--side {arguments.side}: {problem}"
    return ""


def number_problem(arguments: argparse.Namespace, least: Mapping[str, int]) -> str:
    """Why a number of the options is too small; empty if none is, or none is given.

    Args:
        arguments: Of a script, which need not have all of them.
        least: What each may be at least, by name.
    """
    for name, bound in least.items():
        value = getattr(arguments, name, None)
        if value is not None and value < bound:
            return f"--{name.replace('_', '-')} {value}: expected at least {bound}"
    return ""


def file_problem(option: str, path: pathlib.Path | None, suffixes: Sequence[str]) -> str:
    """Why an option's file cannot be written; empty if it seems that it can."""
    problem = out_problem(path, suffixes)
    return f"{option} {problem}" if problem else ""


def plot_problem(option: str, path: pathlib.Path | None) -> str:
    """Why a plot cannot be written; empty if it seems that it can, or none is asked for."""
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        return f"{option} needs matplotlib, pip install 'triton-ext[demo]'"
    return file_problem(option, path, PLOTS)


def run_problem(out: pathlib.Path | None, suffixes: Sequence[str] = TABLES) -> str:
    """Why nothing can run here, or be written there; empty if it seems that all can.

    Args:
        out: The file to write, or ``None``.
        suffixes: How its name may end.
    """
    wrong_out = file_problem("--out", out, suffixes)
    if wrong_out:
        return wrong_out
    try:
        detect()
    except HostError as error:
        return str(error)
    return ""


def models_of(names: Sequence[str]) -> tuple[str, ...]:
    """The networks asked for, ``all`` written out."""
    every = [name for name in MODELS if name != "convnext-timm"]
    return tuple(dict.fromkeys(each for n in names for each in (every if n == "all" else [n])))


def device() -> torch.device:
    """The current GPU, or the CPU; sets what cuDNN is to be compared with."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False  # the reference is fp32
    torch.backends.cudnn.benchmark = True
    return torch.device("cuda", torch.cuda.current_device())


def exactly() -> contextlib.AbstractContextManager[None]:
    """For references in fp32: no TF32, and no search for the fastest algorithm."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False)


def announce(
    arguments: argparse.Namespace, environment: Environment, say: Callable[[str], None]
) -> None:
    """Tells what the numbers below are."""
    for text in environment.lines():
        say(text)
    kind = "CUDA graphs, no host time" if arguments.graph else f"{arguments.steps} steps in a row"
    say(f"timing:     {kind}; {arguments.rounds} rounds, interleaved; medians")
    say(f"numbers:    {arguments.dtype}, channels-last, random weights, synthetic pictures")


def first_steps(
    arguments: argparse.Namespace, mode: str, step: Callable[[], object]
) -> Callable[[], object] | None:
    """Prepares a mode before it is measured: with ``--tune``, ours tunes its convolutions."""
    if not arguments.tune or not mode.startswith("ours"):
        return None

    def tune() -> None:
        from triton_ext.ops.tuning import warmup_steps

        # The first step meets everything; the second one runs with what was chosen.
        with warmup_steps(2) as warmup:
            for _ in range(2):
                step()
                warmup.step()

    return tune


def timer_of(arguments: argparse.Namespace) -> Timer:
    """The timer that the options ask for."""
    return GraphTimer(20.0, least_calls=2) if arguments.graph else StepTimer(arguments.steps)


def show(
    arguments: argparse.Namespace,
    rows: Sequence[Row],
    found: Sequence[Row],
    environment: Environment,
) -> None:
    """Prints the rows of a network; writes all so far, so that nothing measured is lost."""
    emit(report.header())
    for row in found:
        emit(report.line(rows, row))
    report.write(rows, environment, arguments.out, arguments.markdown, None)


def finish(arguments: argparse.Namespace, rows: Sequence[Row], environment: Environment) -> int:
    """Prints the means, writes all files; returns 1 where something was wrong or is missing."""
    emit()
    for line in report.summary(rows):
        emit(line)
    report.write(rows, environment, arguments.out, arguments.markdown, arguments.plot)
    return 1 if any(row.problem for row in rows) else 0


def stopped(
    arguments: argparse.Namespace, rows: Sequence[Row], interrupt: KeyboardInterrupt
) -> int:
    """Tells what there is where the user ends a run, and writes it; returns the exit status.

    Args:
        arguments: Of the script.
        rows: Of networks that are done.
        interrupt: What ended it; of the network that is not done, it may have rows.
    """
    more = interrupt.rows if isinstance(interrupt, Stopped) else []
    every = [*rows, *more]
    if every:
        environment = collect_environment()
        if more:
            show(arguments, every, more, environment)
        finish(arguments, every, environment)
    emit(f"interrupted: {len(every)} rows so far")
    return 130
