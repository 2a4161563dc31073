"""Fits the models of wgrad's two kernels to a sweep and judges the choice, without GPU.

    python -m benchmarks.fit_wgrad wgrad_sweep.json [more.json] [--pick N] [--fit]

Prints, per layer, how much slower the chosen configuration is than the best measured one, and the
geometric mean.  ``--pick N`` finds by greedy search the N configurations that lose least when the
best of them is always chosen.  ``--fit`` prints the numbers of the models for all configurations
that ran on enough layers: those of each, and those that all configurations share; for the
@triton.jit kernel as ``triton_ext.ops.families.wgrad`` has them, for the Gluon kernel as
``gluon_wgrad`` does.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from benchmarks.fit_config import print_pick
from benchmarks.harness import complain, emit, geometric_mean
from benchmarks.readings import load_sweep
from benchmarks.suites import select_layers
from benchmarks.wgrad_sweep import Candidate, Choice, GluonChoice, candidate_of

__all__ = ["GLUON", "JIT", "Kernel", "Measured", "fit", "load", "main"]

# A configuration that ran on fewer layers is not fitted.
FIT_LAYERS = 6
FIT_ROUNDS = 10
# Relative error below which a layer counts as described.
FIT_TOLERANCE = 0.02

# Of a time that DRAM takes, beyond which it says nothing of the steps.
MEMORY_BOUND = 0.35
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the model of a kernel multiplies with numbers that are fitted.

    Attributes:
        choice: Class of its candidates in a sweep.
        shared: Names of the numbers that all configurations share.
        features: Of tiles: what these numbers are multiplied with, and what those of a
            configuration are.
        memory_us: Of tiles and MiB of x and dy: time in which these come from DRAM.
    """

    choice: type[Candidate]
    shared: tuple[str, ...]
    features: Callable[[Any], tuple[list[float], list[float]]]
    memory_us: Callable[[Any, float], float]


def _jit_features(tiles: Any) -> tuple[list[float], list[float]]:
    partition = tiles.partition
    shared = [1.0, float(partition.parts > 0), tiles.workspace_elements * 4 / 2**20]
    return shared, [partition.most_steps, partition.rounds]


def _jit_memory_us(tiles: Any, mib: float) -> float:
    from triton_ext.ops.families.wgrad import memory_us

    return memory_us(tiles)


def _gluon_features(work: Any) -> tuple[list[float], list[float]]:
    tile_kib = work.config.tile_elements * 4 / 1024
    added, reduced = [0.0, 0.0], [0.0, 0.0]
    if work.is_split and work.add_in_place:
        added = [1.0, (work.parts - 1) * tile_kib]
    elif work.is_split:
        reduced = [1.0, work.slots * tile_kib / 1024]
    return [1.0, work.partition.rounds * tile_kib, *added, *reduced], [work.partition.most_steps]


def _gluon_memory_us(work: Any, mib: float) -> float:
    from triton_ext.ops.core.device import H200

    return mib * H200.read_us_per_mib


JIT = Kernel(
    Choice, ("_LAUNCH_US", "_REDUCE_US", "_REDUCE_US_PER_MIB"), _jit_features, _jit_memory_us
)
GLUON = Kernel(
    GluonChoice,
    (
        *("LAUNCH_US", "STORE_US_PER_KIB", "ADD_US", "ADD_US_PER_KIB"),
        *("REDUCE_US", "REDUCE_US_PER_MIB"),
    ),
    _gluon_features,
    _gluon_memory_us,
)


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
    times: dict[Candidate, float]

    @property
    def best(self) -> Any:
        """The fastest configuration."""
        return min(self.times, key=self.times.__getitem__)

    def tiles(self, choice: Candidate) -> Any:
        """The tiles of a choice."""
        return choice.tiles(self.problem, self.num_sms)

    def is_memory_bound(self, kernel: Kernel, choice: Candidate) -> bool:
        """Whether DRAM, and not the steps, may have set the time."""
        elements = math.prod(self.problem.x_shape) + math.prod(self.problem.y_shape)
        us = kernel.memory_us(self.tiles(choice), elements * ELEMENT_BYTES / 2**20)
        return us > MEMORY_BOUND * self.times[choice] * 1e3


def load(paths: list[pathlib.Path]) -> list[Measured]:
    """Reads sweeps; of a layer that several hold, the last counts."""
    problems = {layer.name: layer.problem for layer in select_layers("all")}
    found: dict[str, Measured] = {}
    for path in paths:
        sweep = load_sweep(path, "layers")
        for name, entry in sweep["layers"].items():
            times = {
                candidate_of(result): result["ms"]
                for result in entry["results"]
                if result["status"] == "ok"
            }
            if times:
                cudnn_ms = entry["cudnn_ms"] or math.nan
                found[name] = Measured(name, problems[name], sweep["num_sms"], cudnn_ms, times)
    return list(found.values())


def _chosen(one: Measured) -> Candidate:
    """Returns what the models choose; dw has the type of the operands, 16 bits."""
    import torch
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families.gluon_wgrad import WgradTileChoice

    case = Case(direction="wgrad", problem=one.problem, dtype=torch.float16)
    device = replace(KNOWN["h200"], num_sms=one.num_sms, name="")
    best = planner.ranking(case, device, ("wgrad", "gluon_wgrad"))[0]
    if isinstance(best, WgradTileChoice):
        return GluonChoice(best.config, best.add_in_place)
    return Choice(best.config, best.part_rounds)


def judge(measured: list[Measured]) -> float:
    """Prints the loss per layer; returns the geometric mean of chosen over best time."""
    emit(f"{'layer':<44} {'loss %':>7} {'cuDNN/chosen':>13} {'cuDNN/best':>11}  chosen -> best")
    losses, to_chosen, to_best = [], [], []
    for one in measured:
        wanted = _chosen(one)
        tiles = one.tiles(wanted)
        chosen = next(
            (c for c in one.times if type(c) is type(wanted) and one.tiles(c) == tiles), None
        )
        if chosen is None:
            emit(f"{one.name:<44} chosen but not measured: {wanted}")
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


def fit(
    measured: list[Measured], kernel: Kernel = JIT
) -> tuple[list[float], dict[Any, tuple[float, ...]], float]:
    """Fits a model: the shared numbers, those by configuration, median error.

    A configuration of the @triton.jit kernel has step_us and segment_us, one of the Gluon kernel
    step_us; without measurements of the kernel there are none.

    Least squares of the relative error, all configurations together, reweighted towards the
    absolute one so that a few layers that the model does not describe do not bend it.
    """
    import numpy as np

    counts: dict[Any, int] = {}
    usable = [
        (one, choice)
        for one in measured
        for choice in one.times
        if isinstance(choice, kernel.choice) and not one.is_memory_bound(kernel, choice)
    ]
    for _, choice in usable:
        counts[choice.config] = counts.get(choice.config, 0) + 1
    configs = [config for config, count in counts.items() if count >= FIT_LAYERS]
    if not configs:
        return [], {}, math.nan
    shared = len(kernel.shared)
    own = len(kernel.features(usable[0][0].tiles(usable[0][1]))[1])
    place = {config: shared + own * i for i, config in enumerate(configs)}
    rows = []
    for one, choice in usable:
        at = place.get(choice.config)
        if at is None:
            continue
        row = np.zeros(shared + own * len(configs))
        row[:shared], row[at : at + own] = kernel.features(one.tiles(choice))
        rows.append(row / (one.times[choice] * 1e3))
    matrix = np.array(rows)
    numbers = _nonnegative(matrix, np.ones(len(rows)))
    for _ in range(FIT_ROUNDS):
        weights = 1 / np.sqrt(np.abs(matrix @ numbers - 1) + FIT_TOLERANCE)
        numbers = _nonnegative(matrix * weights[:, None], weights)
    error = float(np.median(np.abs(matrix @ numbers - 1)))
    costs = {
        config: tuple(float(number) for number in numbers[at : at + own])
        for config, at in place.items()
    }
    return [float(number) for number in numbers[:shared]], costs, error


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
    """Prints the models' numbers as ``wgrad`` and ``gluon_wgrad`` have them."""
    for kernel in (JIT, GLUON):
        shared, costs, error = fit(measured, kernel)
        if not costs:
            continue
        for name, number in zip(kernel.shared, shared, strict=True):
            emit(f"{name} = {number:.3g}")
        for config, numbers in sorted(costs.items(), key=lambda item: str(item[0])):
            emit(f"    {_row(config, numbers)},")
        emit(f"median error {error * 100:.1f} %")


def _row(config: Any, numbers: tuple[float, ...]) -> str:
    """Returns a row of a model's table."""
    if len(numbers) == 1:
        changed = [
            f"{field.name}={getattr(config, field.name)!r}"
            for field in fields(config)
            if getattr(config, field.name) != field.default
        ]
        return f"WgradTileConfig({', '.join(changed)}): {numbers[0]:.3f}"
    pieces = f", store_parts={config.store_parts}" if config.store_parts > 1 else ""
    return (
        f"_config({config.block_co}, {config.block_ci}, {config.taps}, {config.num_stages}, "
        f"{config.num_warps}{pieces}): Cost({numbers[0]:.3f}, {numbers[1]:.2f})"
    )


def times_per_config(measured: list[Measured]) -> list[dict[Any, float]]:
    """Returns each layer's milliseconds by configuration, with its best number of rounds."""
    times: list[dict[Any, float]] = []
    for one in measured:
        times.append({})
        for choice, ms in one.times.items():
            times[-1][choice.config] = min(ms, times[-1].get(choice.config, math.inf))
    return times


def main(argv: list[str] | None = None) -> int:
    """Runs the program; returns 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_wgrad",
        description="Fits the model of wgrad's configurations to a sweep, and judges its choice.",
    )
    parser.add_argument("sweeps", nargs="+", type=pathlib.Path, help="JSON of wgrad_sweep")
    parser.add_argument("--pick", type=int, default=0, metavar="N", help="greedy best N")
    parser.add_argument("--fit", action="store_true", help="the numbers of the model")
    arguments = parser.parse_args(argv)
    try:
        measured = load(arguments.sweeps)
    except ValueError as error:
        complain(str(error))
        return 2
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
