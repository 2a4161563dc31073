"""Fits the model that chooses tiles of the Gluon kernels to sweeps, without a GPU.

    python -m benchmarks.fit_gluon gluon_dgrad_sweep.csv [more.csv] [--fit] [--pick N] [--best N]

Reads what ``python -m benchmarks gluon_conv --kernel fprop|dgrad --sweep`` wrote.  Prints, per
shape, how much slower what was chosen is than the best.  ``--fit`` prints the three numbers of each
configuration as ``triton_ext.ops.families.gluon_config`` holds them (of forward tiles with two
accumulators, joined), and how much slower than the best what these choose would be.  ``--pick N``
finds by greedy search the N configurations that lose least; ``--best N`` prints the N fastest of
each shape with what the model does not see: rounds of the multiprocessors, how full the last one
is, and steps of a tile.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fit_config import FIT_SHAPES, fit_cost, print_pick
from benchmarks.harness import complain, emit, geometric_mean
from benchmarks.shapes import ConvShape, select_shapes

__all__ = ["Measured", "features_of", "load", "main"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a shape.

    Attributes:
        kernel: fprop or dgrad.
        shape: The shape.
        num_sms: Multiprocessors of the GPU.
        chosen: The choice of the sweep's model; ``None`` if that was not timed.
        cudnn_us: cuDNN's time.
        times: Microseconds by configuration.
    """

    kernel: str
    shape: ConvShape
    num_sms: int
    chosen: Any
    cudnn_us: float
    times: dict[Any, float]

    @property
    def best(self) -> Any:
        """The fastest configuration."""
        return min(self.times, key=self.times.__getitem__)


def load(paths: Sequence[pathlib.Path]) -> list[Measured]:
    """Reads sweeps; of a shape that several hold, the last counts.

    Raises:
        ValueError: A file is no sweep of fprop or dgrad.
    """
    from triton_ext.ops.core.tables import decode

    found: dict[tuple[str, str], Measured] = {}
    for path in paths:
        lines = path.read_text("utf-8").splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        here: dict[tuple[str, str], Measured] = {}
        for row in rows:
            if row.get("kernel") not in ("fprop", "dgrad"):
                kernel = row.get("kernel", "of something else")
                raise ValueError(f"{path}: expected a sweep of fprop or dgrad, this is {kernel}")
            if row["status"] != "ok" or not float(row["us"]) > 0:
                continue
            key = (row["kernel"], row["shape"])
            if key not in here:
                (shape,) = select_shapes([row["shape"]])
                num_sms, cudnn_us = int(row["num_sms"]), float(row["cudnn_us"])
                here[key] = Measured(row["kernel"], shape, num_sms, None, cudnn_us, {})
            config = decode(row["kind"], json.loads(row["config"]))
            here[key].times[config] = float(row["us"])
            if row["chosen"] == "True":
                here[key] = replace(here[key], chosen=config)
        found |= here
    return list(found.values())


def tiles_of(measured: Measured, config: Any) -> tuple[int, int, list[float]]:
    """Returns (rows of tiles of a class, columns of tiles, steps of a tile of every class)."""
    from triton_ext.ops.core.stride_phases import phase_taps, phases_of

    shape = measured.shape
    class_taps: tuple[float, ...] = (shape.r * shape.s,)
    pixels, columns, channels = shape.m_gemm, shape.co, shape.ci
    if measured.kernel == "dgrad":
        # Shapes of the sweep have few classes, so each is there once.
        class_pixels, class_taps, _ = phase_taps(phases_of(shape.problem()))
        pixels, columns, channels = shape.n * class_pixels, shape.ci, shape.co
    blocks = math.ceil(channels / config.block_k)
    rows = math.ceil(pixels / config.block_m)
    return rows, math.ceil(columns / config.block_n), [taps * blocks for taps in class_taps]


def dealt(measured: Measured, config: Any) -> tuple[int, list[float], int]:
    """Returns (tiles of a class, steps of a tile of every class, who shares these tiles)."""
    rows, columns, steps = tiles_of(measured, config)
    if config.filter_steps:
        return rows, steps, measured.num_sms // columns
    return rows * columns, steps, measured.num_sms


def waves_of(measured: Measured, config: Any) -> int:
    """Tiles of the busiest multiprocessor."""
    tiles, steps, programs = dealt(measured, config)
    return math.ceil(tiles * len(steps) / programs)


def features_of(measured: Measured, config: Any) -> list[float]:
    """How often a time has a step, a tile, and a launch: of the busiest multiprocessor."""
    from triton_ext.ops.families.gemm_config import busiest

    return [busiest(*dealt(measured, config)), waves_of(measured, config), 1.0]


def kind_of(config: Any) -> Any:
    """Returns the cost class of a configuration, independent of the length of a resident filter."""
    return replace(config, filter_steps=1, stages=4) if config.filter_steps else config


def _text(config: Any) -> str:
    return f"{config} (kept)" if config.filter_steps == 1 and config.stages == 4 else str(config)


def judge(problems: Sequence[Measured]) -> None:
    """Prints what was lost by choosing."""
    losses = []
    for measured in problems:
        best = measured.best
        best_us = measured.times[best]
        line = f"{measured.shape.name:<28} cuDNN/best {measured.cudnn_us / best_us:.3f}  {best}"
        if measured.chosen is not None:
            us = measured.times[measured.chosen]
            losses.append(us / best_us)
            line += f"; chosen {measured.chosen}, {(us / best_us - 1) * 100:.1f} % slower"
        emit(line)
    if losses:
        emit(
            f"chosen/best, geometric mean of {len(losses)}: {geometric_mean(losses):.4f}, worst "
            f"{max(losses):.4f}"
        )


def print_fit(problems: Sequence[Measured]) -> None:
    """Prints the costs, and what choosing by them would lose."""
    by_kind: dict[Any, list[tuple[Measured, Any]]] = {}
    for measured in problems:
        for config in measured.times:
            by_kind.setdefault(kind_of(config), []).append((measured, config))
    costs: dict[Any, Sequence[float]] = {}
    for kind, pairs in sorted(by_kind.items(), key=lambda item: str(item[0])):
        if len(pairs) < FIT_SHAPES:
            continue
        features = [features_of(measured, config) for measured, config in pairs]
        cost, error = fit_cost(features, [measured.times[config] for measured, config in pairs])
        costs[kind] = [float(value) for value in cost]
        step, tile, launch = costs[kind]
        emit(
            f"{_text(kind):<36} Cost({step:.3f}, {tile:.2f}, {launch:.1f})"
            f"  median error {error * 100:.1f} %, {len(pairs)} shapes"
        )
    losses = []
    for measured in problems:
        expected = {
            config: sum(c * f for c, f in zip(costs[kind_of(config)],
                                              features_of(measured, config), strict=True))
            for config in measured.times
            if kind_of(config) in costs
        }  # fmt: skip
        if expected:
            chosen = min(expected, key=expected.__getitem__)
            losses.append(measured.times[chosen] / measured.times[measured.best])
    if losses:
        emit(
            f"chosen by these/best, geometric mean of {len(losses)}: {geometric_mean(losses):.4f}, "
            f"worst {max(losses):.4f}"
        )


def print_best(problems: Sequence[Measured], count: int) -> None:
    """Prints the fastest configurations with what their tiles leave idle."""
    for measured in problems:
        emit(f"{measured.shape.name}: cuDNN {measured.cudnn_us:.1f} us")
        for config in sorted(measured.times, key=measured.times.__getitem__)[:count]:
            class_rows, columns, class_steps = tiles_of(measured, config)
            rows, steps = class_rows * len(class_steps), statistics.mean(class_steps)
            waves = waves_of(measured, config)
            full = rows * columns / (waves * measured.num_sms)
            emit(
                f"    {measured.times[config]:>8.1f} us {config!s:<36} {rows} x {columns} tiles, "
                f"{waves} rounds {full * 100:.0f} % full, {steps:.0f} steps"
            )


def main(argv: list[str] | None = None) -> int:
    """Runs the program; returns 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_gluon",
        description="Fits the model that chooses tiles of the Gluon kernels to sweeps.",
    )
    parser.add_argument("sweeps", nargs="+", type=pathlib.Path, help="CSV files of --sweep")
    parser.add_argument("--fit", action="store_true", help="cost model per configuration")
    parser.add_argument("--pick", type=int, default=0, metavar="N", help="greedy best N")
    parser.add_argument("--best", type=int, default=0, metavar="N", help="fastest N of a shape")
    arguments = parser.parse_args(argv)
    try:
        problems = load(arguments.sweeps)
    except (OSError, ValueError, KeyError) as error:
        complain(f"cannot be read: {error}")
        return 2
    if not problems:
        complain("no timed configuration in these files")
        return 2
    judge(problems)
    if arguments.fit:
        emit()
        print_fit(problems)
    if arguments.pick:
        emit()
        times: list[Mapping[Any, float]] = []
        for each in problems:
            kinds: dict[Any, float] = {}
            for config, us in each.times.items():
                kinds[kind_of(config)] = us
            times.append(kinds)
        print_pick(times, arguments.pick, _text)
    if arguments.best:
        emit()
        print_best(problems, arguments.best)
    return 0


if __name__ == "__main__":
    sys.exit(main())
