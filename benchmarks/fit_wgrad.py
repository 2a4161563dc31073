"""Fits the model of ``triton_ext.ops.wgrad_config`` to a sweep and judges its choice, without GPU.

    python -m benchmarks.fit_wgrad wgrad_sweep.json [more.json] [--pick N] [--fit]

Prints, per layer, how much slower the chosen configuration is than the best measured one, and the
geometric mean.  ``--pick N`` finds by greedy search the N configurations that lose least when the
best of them is always chosen.  ``--fit`` prints the numbers of the model for all configurations
that ran on enough layers: those of ``Cost``, and those that all configurations share.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.fit_config import print_pick
from benchmarks.harness import emit, geometric_mean
from benchmarks.suites import select_layers
from benchmarks.wgrad_sweep import Choice

__all__ = ["Measured", "fit", "load", "main"]

# A configuration that ran on fewer layers is not fitted.
FIT_LAYERS = 6
FIT_ROUNDS = 10
# Relative error below which a layer counts as described.
FIT_TOLERANCE = 0.02

# Of a time that DRAM takes, beyond which it says nothing of the steps.
MEMORY_BOUND = 0.35

# What all configurations share: the names in wgrad_config.
SHARED = ("_LAUNCH_US", "_REDUCE_US", "_REDUCE_US_PER_MIB")


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on one layer.

    Attributes:
        name: Of the layer.
        problem: What it computes.
        num_sms: Multiprocessors of the GPU.
        cudnn_ms: cuDNN's time in the same run; NaN where it was not measured.
        times: Milliseconds per choice.
    """

    name: str
    problem: Any
    num_sms: int
    cudnn_ms: float
    times: dict[Choice, float]

    @property
    def best(self) -> Any:
        """The fastest configuration."""
        return min(self.times, key=self.times.__getitem__)

    def tiles(self, choice: Choice) -> Any:
        """The tiles of a choice."""
        from triton_ext.ops.wgrad_config import WgradTiles

        return WgradTiles.make(choice.config, self.problem, self.num_sms, choice.part_rounds)

    def is_memory_bound(self, choice: Choice) -> bool:
        """Whether DRAM, and not the steps, may have set the time."""
        from triton_ext.ops.wgrad_config import memory_us

        return memory_us(self.tiles(choice)) > MEMORY_BOUND * self.times[choice] * 1e3

    def features(self, choice: Choice) -> tuple[list[float], list[float]]:
        """What the model multiplies: with the shared numbers, and with those of ``Cost``."""
        tiles = self.tiles(choice)
        partition = tiles.partition
        shared = [1.0, float(partition.parts > 0), tiles.workspace_elements * 4 / 2**20]
        return shared, [partition.most_steps, partition.rounds]


def load(paths: list[pathlib.Path]) -> list[Measured]:
    """Reads sweeps; of a layer that several hold, the last counts."""
    problems = {layer.name: layer.problem for layer in select_layers("all")}
    found: dict[str, Measured] = {}
    for path in paths:
        sweep = json.loads(path.read_text("utf-8"))
        for name, entry in sweep["layers"].items():
            times = {
                Choice.of(result): result["ms"]
                for result in entry["results"]
                if result["status"] == "ok"
            }
            if times:
                cudnn_ms = entry["cudnn_ms"] or math.nan
                found[name] = Measured(name, problems[name], sweep["num_sms"], cudnn_ms, times)
    return list(found.values())


def judge(measured: list[Measured]) -> float:
    """Prints the loss per layer; returns the geometric mean of chosen over best time."""
    from triton_ext.ops.wgrad_config import choose_tiles

    emit(f"{'layer':<44} {'loss %':>7} {'cuDNN/chosen':>13} {'cuDNN/best':>11}  chosen -> best")
    losses, to_chosen, to_best = [], [], []
    for one in measured:
        tiles = choose_tiles(one.problem, one.num_sms)
        chosen = next((choice for choice in one.times if one.tiles(choice) == tiles), None)
        if chosen is None:
            emit(f"{one.name:<44} chosen but not measured: {tiles}")
            continue
        ms, best_ms = one.times[chosen], one.times[one.best]
        losses.append(ms / best_ms)
        to_chosen.append(one.cudnn_ms / ms)
        to_best.append(one.cudnn_ms / best_ms)
        change = "" if one.best == chosen else f" -> {one.best}"
        emit(
            f"{one.name:<44} {(losses[-1] - 1) * 100:>7.1f} {to_chosen[-1]:>13.3f} "
            f"{to_best[-1]:>11.3f}  {chosen}{change}"
        )
    if not losses:
        return math.nan
    mean = geometric_mean(losses)
    emit()
    emit(
        f"geometric mean over {len(losses)} layers: chosen/best {mean:.4f}, worst "
        f"{max(losses):.4f}; cuDNN/chosen {geometric_mean(to_chosen):.3f}, cuDNN/best "
        f"{geometric_mean(to_best):.3f}"
    )
    return mean


def fit(measured: list[Measured]) -> tuple[list[float], dict[Any, tuple[float, float]], float]:
    """Fits the model: the shared numbers, (step_us, segment_us) by configuration, median error.

    Least squares of the relative error, all configurations together, reweighted towards the
    absolute one so that a few layers that the model does not describe do not bend it.
    """
    import numpy as np

    counts: dict[Any, int] = {}
    usable = [(one, c) for one in measured for c in one.times if not one.is_memory_bound(c)]
    for _, choice in usable:
        counts[choice.config] = counts.get(choice.config, 0) + 1
    configs = [config for config, count in counts.items() if count >= FIT_LAYERS]
    place = {config: len(SHARED) + 2 * i for i, config in enumerate(configs)}
    rows = []
    for one, choice in usable:
        at = place.get(choice.config)
        if at is None:
            continue
        row = np.zeros(len(SHARED) + 2 * len(configs))
        row[: len(SHARED)], row[at : at + 2] = one.features(choice)
        rows.append(row / (one.times[choice] * 1e3))
    matrix = np.array(rows)
    numbers = _nonnegative(matrix, np.ones(len(rows)))
    for _ in range(FIT_ROUNDS):
        weights = 1 / np.sqrt(np.abs(matrix @ numbers - 1) + FIT_TOLERANCE)
        numbers = _nonnegative(matrix * weights[:, None], weights)
    error = float(np.median(np.abs(matrix @ numbers - 1)))
    costs = {config: (float(numbers[at]), float(numbers[at + 1])) for config, at in place.items()}
    return [float(number) for number in numbers[: len(SHARED)]], costs, error


def _nonnegative(rows: Any, targets: Any) -> Any:
    """Least squares with numbers of at least 0: those that come out negative are left out."""
    import numpy as np

    numbers = np.zeros(rows.shape[1])
    used = np.arange(rows.shape[1])
    while len(used):
        solution = np.linalg.lstsq(rows[:, used], targets, rcond=None)[0]
        if (solution >= 0).all():
            numbers[used] = solution
            break
        used = np.delete(used, int(np.argmin(solution)))
    return numbers


def print_fit(measured: list[Measured]) -> None:
    """Prints the model's numbers as ``wgrad_config`` has them."""
    shared, costs, error = fit(measured)
    for name, number in zip(SHARED, shared, strict=True):
        emit(f"{name} = {number:.3g}")
    for config, (step_us, segment_us) in sorted(costs.items(), key=lambda item: str(item[0])):
        pieces = f", parts={config.store_parts}" if config.store_parts > 1 else ""
        emit(
            f"    _config({config.block_co}, {config.block_ci}, {config.taps}, "
            f"{config.num_stages}, {config.num_warps}{pieces}): Cost({step_us:.3f}, "
            f"{segment_us:.2f}),"
        )
    emit(f"median error {error * 100:.1f} %")


def times_per_config(measured: list[Measured]) -> list[dict[Any, float]]:
    """Returns each layer's milliseconds by configuration, with its best number of rounds."""
    times: list[dict[Any, float]] = []
    for one in measured:
        times.append({})
        for choice, ms in one.times.items():
            times[-1][choice.config] = min(ms, times[-1].get(choice.config, math.inf))
    return times


def main(argv: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_wgrad",
        description="Fits the model of wgrad's configurations to a sweep, and judges its choice.",
    )
    parser.add_argument("sweeps", nargs="+", type=pathlib.Path, help="JSON of wgrad_sweep")
    parser.add_argument("--pick", type=int, default=0, metavar="N", help="greedy best N")
    parser.add_argument("--fit", action="store_true", help="the numbers of the model")
    arguments = parser.parse_args(argv)
    measured = load(arguments.sweeps)
    if not measured:
        emit("no timed configuration in these files")
        return 2
    judge(measured)
    if arguments.pick:
        emit()
        print_pick(times_per_config(measured), arguments.pick, str)
    if arguments.fit:
        emit()
        print_fit(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
