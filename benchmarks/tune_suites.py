"""Tunes the layers of the suites in one direction, for the table that the package ships.

What ``triton-ext tune`` does, over layers of networks: candidates are compiled in processes of
their own, measured in interleaved rounds, and the fastest goes into ``--out`` at once, so that
nothing is lost when the time ends.  With the table that ``conv --out`` wrote (``--from``), layers
come in the order of its ratios, worst first, and ``--only-below`` leaves out those that are fast
enough, ``--not-below`` the others: the worst are worth more candidates.  What ``--out`` has
already is not measured again.  ``python -m benchmarks.make_table`` takes such files into the
shipped table.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.conv_variants import DIRECTIONS, case_of
from benchmarks.harness import add_time_limit, emit, out_problem, read_count
from benchmarks.readings import load_rows
from benchmarks.suites import SUITES, Layer, select_layers

__all__ = ["add_arguments", "in_order", "ratios_of", "run"]

OUT = (".json",)
FP8 = "float8_e4m3fn"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--direction", choices=DIRECTIONS, default="fprop")
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    parser.add_argument(
        "--shapes", nargs="+", metavar="SHAPE",
        help="indices into the suite, or names of layers; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float16", "bfloat16", FP8), default="float16",
        help=f"of the operands (float16); {FP8} for fprop, whose output is bfloat16 then",
    )  # fmt: skip
    parser.add_argument("--candidates", type=read_count, default=10, help="per layer (10)")
    parser.add_argument(
        "--rounds", type=read_count, default=6, help="measurements of each (6); even is fair"
    )
    parser.add_argument("--jobs", type=read_count, help="compiling processes (cores - 1)")
    add_time_limit(parser)
    parser.add_argument(
        "--from", dest="before", type=pathlib.Path, metavar="FILE",
        help="what conv wrote of this direction: the worst layers come first",
    )  # fmt: skip
    parser.add_argument(
        "--only-below", type=float, default=math.inf, metavar="RATIO",
        help="of --from, layers with a lower ratio to cuDNN only, and those without one",
    )  # fmt: skip
    parser.add_argument(
        "--not-below", type=float, default=-math.inf, metavar="RATIO",
        help="of --from, layers with this or a higher ratio only: the others of --only-below",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, metavar="FILE",
        help="table to write, .json; what it has already is kept and not measured again",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: prints which layers would be tuned"
    )


def ratios_of(rows: Sequence[dict[str, str]]) -> dict[str, float]:
    """Returns cuDNN's time over ours by the names of layers; what was not measured is not there.

    Raises:
        KeyError: These are no rows of ``conv``.
    """
    ratios = {row["layer"]: row["ratio_to_cudnn"] for row in rows}
    return {name: float(ratio) for name, ratio in ratios.items() if ratio not in ("", "None")}


def in_order(
    layers: Sequence[Layer],
    ratios: dict[str, float],
    only_below: float = math.inf,
    not_below: float = -math.inf,
) -> list[Layer]:
    """Returns layers, the lowest ratio first and those without one last.

    Args:
        layers: Of the suites.
        ratios: By name.
        only_below: Leaves out what has this or a higher ratio.
        not_below: Leaves out what has a lower ratio; what has none counts as lower.
    """
    kept = [
        layer for layer in layers if not_below <= ratios.get(layer.name, -math.inf) < only_below
    ]
    return sorted(kept, key=lambda layer: ratios.get(layer.name, math.inf))


def _selected(arguments: argparse.Namespace) -> list[Layer]:
    """Returns what the options ask for.

    Raises:
        ValueError: They name nothing, or a file that has no ratios.
    """
    limits = (arguments.only_below, arguments.not_below)
    if arguments.dtype == FP8 and arguments.direction != "fprop":
        raise ValueError(f"--dtype {FP8} is for --direction fprop")
    if arguments.before is None and not all(map(math.isinf, limits)):
        raise ValueError("--only-below and --not-below need --from, the file that conv wrote")
    problem = out_problem(arguments.out, OUT)
    if problem:
        raise ValueError(f"--out {problem}")
    ratios = {}
    if arguments.before is not None:
        try:
            ratios = ratios_of(load_rows(arguments.before))
        except (KeyError, ValueError):
            ratios = {}
        if not ratios:
            raise ValueError(f"--from {arguments.before}: is no table that conv wrote, or is empty")
    layers = select_layers(arguments.suite, arguments.shapes)
    return in_order(layers, ratios, *limits)


def _case(arguments: argparse.Namespace, layer: Layer) -> Any:
    """Returns what is tuned of a layer; of fp8 as the benchmark ``fp8`` computes it."""
    import torch
    from triton_ext.ops.core.epilogue import EpilogueSpec

    case = case_of(arguments.direction, layer.problem, arguments.dtype)
    if arguments.dtype != FP8:
        return case
    return dataclasses.replace(case, epilogue=EpilogueSpec(out_dtype=torch.bfloat16))


def _unknown(cases: Sequence[Any], path: pathlib.Path, machine: Any) -> list[Any]:
    """Returns the cases that a table has no choice for, on the GPU that there is."""
    import torch
    from triton_ext.ops.core.device import device_of
    from triton_ext.ops.core.tables import read_table

    table = read_table(path)
    if table is None or (machine is None and not torch.cuda.is_available()):
        return [*cases]  # without a GPU, tune says so
    if machine is None:
        machine = device_of(torch.device("cuda"), "tune_suites")
    return [case for case in cases if case.key(machine.num_sms) not in table.entries]


def run(arguments: argparse.Namespace, **stand_ins: Any) -> int:
    """Runs the case.

    Args:
        arguments: The options.
        stand_ins: What ``tune`` takes instead of a GPU, its compiler and its clock.

    Returns:
        1 where a candidate failed or a layer was not reached, 2 where nothing can be tuned.
    """
    try:
        layers = _selected(arguments)
    except ValueError as error:
        emit(str(error))
        return 2
    if arguments.dry_run:
        for layer in layers:
            emit(f"{arguments.direction} {layer.name}")
        return 0
    from triton_ext.errors import UnsupportedError
    from triton_ext.ops.core.tables import TableError
    from triton_ext.ops.tuning.runs import tune

    cases = [_case(arguments, layer) for layer in layers]
    try:
        report = tune(
            _unknown(cases, arguments.out, stand_ins.get("machine")),
            rounds=arguments.rounds, count=arguments.candidates, force=True, save=arguments.out,
            seconds=arguments.time_limit, jobs=arguments.jobs, **stand_ins,
        )  # fmt: skip
    except (UnsupportedError, ValueError, TableError) as error:
        emit(str(error))
        return 2
    left = [outcome for outcome in report.outcomes if outcome.entry is None]
    for outcome in left:
        emit(f"no choice: {outcome}")
    for failure in report.failures:
        emit(f"failed: {failure}")
    emit(f"{arguments.out}: {len(report.table.entries)} new choices for {len(layers)} layers")
    emit(report.summary)
    return int(bool(report.failures) or report.unreached > 0)
