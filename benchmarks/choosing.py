"""Choosing configurations: how long it takes from nothing, and how good the model alone is.

``--what cold`` runs ``triton-ext tune`` over the distinct forward convolutions of ResNet-50 in a
process of its own, with empty caches and tables, and times it from start to end.  ``--what model``
measures the candidates of layers of a suite and compares what the model ranks first with the
fastest; a ratio is the time of the best found over that of the model's.  ``--what choices``
needs no GPU: it writes what is chosen for the layers of a suite on an H200 and on an H100, with and
without the tables of measured choices, as rows that can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.choices import DTYPES, GPUS, choices
from benchmarks.conv_runs import add_suite_arguments, opened_suite
from benchmarks.conv_variants import DIRECTIONS, case_of
from benchmarks.harness import (
    ROOT,
    TABLES,
    Deadline,
    collect_environment,
    emit,
    geometric_mean,
    read_count,
    write_rows,
)
from benchmarks.suites import select_layers

__all__ = ["add_arguments", "cold_command", "resnet_names", "run"]

# Measured together, so that compiling runs ahead; rows are written in between.
GROUP = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_suite_arguments(parser)
    parser.add_argument("--what", choices=("cold", "model", "choices"), default="model")
    parser.add_argument("--direction", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument(
        "--candidates", type=read_count, default=12, help="per layer, with model (12)"
    )
    parser.add_argument(
        "--every",
        type=read_count,
        default=1,
        metavar="N",
        help="with model and choices, every Nth layer only (1)",
    )
    parser.add_argument("--jobs", type=read_count, help="compiling processes (cores - 1)")


def resnet_names() -> list[str]:
    """The 23 distinct forward convolutions of ResNet-50 at batch 32."""
    suite = [layer.name for layer in select_layers("resnet") if layer.problem.batch == 32]
    # The suite leaves out the first 1x1 of each stage, which has another input than the others.
    firsts = ((64, 56, 64), (256, 56, 128), (512, 28, 256), (1024, 14, 512))
    return [*suite, *(f"32x{ci}x{size}x{size}_{co}_k1x1" for ci, size, co in firsts)]


def cold_command(shapes: Sequence[str]) -> list[str]:
    """The command that is timed; tables are looked at by no candidate of ``--force``."""
    tune = "import sys; from triton_ext.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ["--direction", "fprop", "--dtype", "bfloat16", "--force", "--quiet"]
    return [sys.executable, "-c", tune, "tune", *options, "--shapes", *shapes]


def _run_cold(arguments: argparse.Namespace) -> int:
    layers = resnet_names()
    opening = opened_suite(arguments, TABLES)
    if opening is None:
        return 2
    _, environment = opening
    command = cold_command(layers)
    if arguments.dry_run:
        command = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory(prefix="triton-ext-cold-") as name:
        folder = pathlib.Path(name)
        fresh = {
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "TRITON_EXT_TUNING_DIR": str(folder / "tables"),
        }
        begin = time.perf_counter()
        try:
            code = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **fresh}, timeout=arguments.time_limit,
                check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
        seconds = time.perf_counter() - begin
    row = {"layers": len(layers), "seconds": round(seconds, 2), "exit": code}
    if arguments.out is not None:
        write_rows(arguments.out, environment, [row])
    emit(f"choosing, cold: {seconds:.1f} s for {len(layers)} layers, exit status {code}")
    return int(code != 0)


def _run_model(arguments: argparse.Namespace) -> int:
    opening = opened_suite(arguments, TABLES)
    if opening is None:
        return 2
    layers, environment = opening
    layers = layers[:: max(1, arguments.every)]
    deadline = Deadline(arguments.time_limit)
    cases = [
        case_of(direction, layer.problem, arguments.dtype)
        for layer in layers
        for direction in arguments.direction
    ]
    rows: list[dict[str, object]] = []
    failures: list[str] = []
    reached = 0
    with contextlib.ExitStack() as stack:
        pool = None
        if not arguments.dry_run:
            from triton_ext.ops.tuning.measure import CompilePool

            pool = stack.enter_context(CompilePool(arguments.jobs))
        for start in range(0, len(cases), GROUP):
            if deadline.over:
                break
            group = cases[start : start + GROUP]
            found, failed, left = _measured(group, arguments, pool, max(1.0, deadline.left()))
            rows += found
            failures += failed
            reached += len(group) - left
            if arguments.out is not None and rows:
                write_rows(arguments.out, environment, rows)
            for row in found:
                emit(f"{row['ratio']:.3f} {row['direction']} {row['case']}")
    if reached < len(cases):
        emit(f"missing (time limit): {len(cases) - reached} of {len(cases)}")
    for direction in arguments.direction:
        ratios = [float(str(r["ratio"])) for r in rows if r["direction"] == direction]
        if ratios:
            emit(f"  {direction}: {geometric_mean(ratios):.3f} ({len(ratios)})")
    every = [float(str(row["ratio"])) for row in rows]
    worst = min(every, default=float("nan"))
    emit(
        f"best found / model alone, geometric mean of {len(every)}: {geometric_mean(every):.3f}; "
        f"worst {worst:.3f}"
    )
    for failure in failures:
        emit(f"failed: {failure}")
    return int(bool(failures) or len(rows) == 0)


def _measured(
    cases: Sequence[Any], arguments: argparse.Namespace, pool: Any, seconds: float
) -> tuple[list[dict[str, object]], list[str], int]:
    """Measures the candidates of some cases; a case with one candidate is not in the rows.

    Returns:
        The rows, what failed, and how many cases there was no time for.
    """
    if arguments.dry_run:
        return [_row(case, 100.0, 102.0) for case in cases], [], 0
    from triton_ext.ops.tuning.runs import tune

    report = tune(
        cases, rounds=arguments.rounds, count=arguments.candidates, force=True, progress=False,
        save=False, compiler=pool, seconds=seconds,
    )  # fmt: skip
    rows = [
        _row(outcome.case, outcome.entry.us, outcome.entry.model_us)
        for outcome in report.outcomes
        if outcome.entry is not None and outcome.entry.model_us
    ]
    return rows, list(report.failures), report.unreached


def _row(case: Any, best_us: float, model_us: float) -> dict[str, object]:
    return {
        "case": str(case),
        "direction": case.direction,
        "best_us": best_us,
        "model_us": model_us,
        "ratio": best_us / model_us,
    }


def _run_choices(arguments: argparse.Namespace) -> int:
    """Says what is chosen for the selected layers; nothing runs on a GPU."""
    try:
        layers = select_layers(arguments.suite, arguments.shapes)
    except ValueError as error:
        emit(str(error))
        return 2
    rows = []
    for row in choices(layers[:: max(1, arguments.every)], arguments.direction):
        rows.append(row)
        if arguments.out is None:
            emit(" ".join(str(value) for value in row.values()))
    if arguments.out is not None:
        write_rows(arguments.out, collect_environment(dry_run=True), rows)
    emit(f"choices: {len(rows)}, {len(layers)} layers, {', '.join(GPUS)}, {', '.join(DTYPES)}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a candidate failed or nothing was measured."""
    runs = {"cold": _run_cold, "model": _run_model, "choices": _run_choices}
    return runs[arguments.what](arguments)
