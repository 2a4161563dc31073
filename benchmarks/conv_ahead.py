"""Fills Triton's cache with the kernels of a run of ``conv``, in several processes.

Compiling takes most of such a run's time on one core.  A process is ``python -m
benchmarks.conv_ahead``; it runs its share of the layers once on the GPU, because a kernel is only
known where it is launched, and reports nothing: what is wrong is for the run itself to find.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.conv_runs import add_suite_arguments
from benchmarks.conv_variants import BASELINE, DIRECTIONS, make_operands, variants_of
from benchmarks.harness import run_at_once
from benchmarks.suites import Layer, select_layers

__all__ = ["compile_layers"]

SECONDS = 240.0


def compile_layers(
    layers: Sequence[Layer], direction: str, dtype: str, *, gluon: bool, jobs: int | None = None
) -> float:
    """Compiles the kernels of layers; returns the seconds that it took.

    Args:
        layers: What the run is going to measure.
        direction: One of :data:`benchmarks.conv_variants.DIRECTIONS`.
        dtype: Name of a torch dtype.
        gluon: Whether the Gluon examples run as well.
        jobs: Processes; by default one per core but one, and none where that leaves one.
    """
    jobs = min(len(layers), (os.cpu_count() or 1) - 1 if jobs is None else jobs)
    if jobs < 2:
        return 0.0
    begin = time.perf_counter()
    common = ["--direction", direction, "--dtype", dtype, *(["--gluon"] if gluon else [])]
    command = [sys.executable, "-m", "benchmarks.conv_ahead", *common, "--shapes"]
    names = [layer.name for layer in layers]
    run_at_once(([*command, *names[index::jobs]] for index in range(jobs)), SECONDS)
    return time.perf_counter() - begin


def _run_once(arguments: argparse.Namespace) -> None:
    for layer in select_layers(arguments.suite, arguments.shapes):
        operands = make_operands(layer.problem, arguments.dtype)
        functions = variants_of(operands, arguments.direction, gluon=arguments.gluon)
        for name, function in functions.items():
            if name != BASELINE:
                # A refusal of one layer is told by the run.
                with contextlib.suppress(Exception):
                    function()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_suite_arguments(parser)
    parser.add_argument("--direction", choices=DIRECTIONS, required=True)
    parser.add_argument("--gluon", action="store_true")
    _run_once(parser.parse_args())
