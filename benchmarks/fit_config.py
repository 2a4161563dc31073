"""Judges a chooser of tile configurations by a sweep, without a GPU.

    python -m benchmarks.fit_config conv_fprop_sweep.json [more.json] [--chooser module:function]
        [--rates] [--fit]
        [--pick N]

Prints, per shape, how much slower the chosen configuration is than the best measured one, and the
geometric mean.  ``--rates`` shows what a model of the machine needs: the speed of each tile once
waves are accounted for.  ``--fit`` prints the three numbers per configuration of that model, as
``triton_ext.ops.families.gemm_config`` holds them.  ``--pick N`` finds by greedy search the N
configurations that lose least when the best of them is always chosen.
"""

from __future__ import annotations

import argparse
import importlib
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.conv_fprop import describe_config
from benchmarks.harness import complain, emit, geometric_mean
from benchmarks.readings import load_sweep

__all__ = ["Problem", "fit_cost", "main", "print_pick"]

# A configuration that ran on fewer shapes is not fitted.
FIT_SHAPES = 8
FIT_ROUNDS = 10
# Relative error below which a shape counts as described.
FIT_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Measurements of one shape.

    Attributes:
        name: The shape, as the benchmark spells it.
        m_gemm: Output pixels.
        co: Output channels.
        ci: Input channels.
        taps: Filter taps.
        num_sms: Multiprocessors of the GPU.
        cudnn_ms: cuDNN's time in the same run; NaN if it was not measured.
        times: Milliseconds per configuration.
    """

    name: str
    m_gemm: int
    co: int
    ci: int
    taps: int
    num_sms: int
    cudnn_ms: float
    times: dict[Any, float]

    @property
    def best(self) -> Any:
        """The fastest configuration."""
        return min(self.times, key=self.times.__getitem__)


Chooser = Callable[[Problem], Any]


def load_problems(paths: list[pathlib.Path]) -> list[Problem]:
    """Reads sweeps; of a shape that several hold, the last counts."""
    from triton_ext.ops.families.gemm_config import ConvConfig

    problems: dict[str, Problem] = {}
    for path in paths:
        sweep = load_sweep(path, "shapes")
        for name, entry in sweep["shapes"].items():
            geometry = entry["geometry"]
            times = {
                ConvConfig(**result["config"]): result["ms"]
                for result in entry["results"]
                if result["status"] == "ok" and result["ms"] is not None
            }
            if not times:
                continue
            problems[name] = Problem(
                name=name,
                m_gemm=geometry["m_gemm"],
                co=geometry["co"],
                ci=geometry["ci"],
                taps=geometry["r"] * geometry["s"],
                num_sms=sweep["num_sms"],
                cudnn_ms=entry["cudnn_ms"] or math.nan,
                times=times,
            )
    return list(problems.values())


def shipped_chooser(problem: Problem) -> Any:
    """The package's own choice."""
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families.gemm_config import Product, expected_times

    product = Product(
        pixels=problem.m_gemm, columns=problem.co, channels=problem.ci, taps=(problem.taps,)
    )
    device = replace(KNOWN["h200"], num_sms=problem.num_sms)
    times = expected_times(product, device)
    return min(times, key=times.__getitem__)


def load_chooser(name: str | None) -> Chooser:
    """Returns ``module:function``, a function of a :class:`Problem`; the shipped one by default."""
    if name is None:
        return shipped_chooser
    module, _, attribute = name.partition(":")
    chooser: Chooser = getattr(importlib.import_module(module), attribute)
    return chooser


def judge(problems: list[Problem], choose: Chooser) -> float:
    """Prints the loss per shape; returns the geometric mean of chosen over best time."""
    emit(f"{'shape':<28} {'loss %':>7} {'cuDNN/chosen':>13} {'cuDNN/best':>11}  chosen -> best")
    losses: list[float] = []
    chosen_ratios: list[float] = []
    best_ratios: list[float] = []
    missing: list[str] = []
    for problem in problems:
        chosen, best = choose(problem), problem.best
        best_ms = problem.times[best]
        ms = problem.times.get(chosen)
        if ms is None:
            missing.append(f"{problem.name}: {describe_config(chosen)}")
            continue
        losses.append(ms / best_ms)
        chosen_ratios.append(problem.cudnn_ms / ms)
        best_ratios.append(problem.cudnn_ms / best_ms)
        change = f" -> {describe_config(best)}" if best != chosen else ""
        emit(
            f"{problem.name:<28} {(ms / best_ms - 1) * 100:>7.1f} {chosen_ratios[-1]:>13.3f} "
            f"{best_ratios[-1]:>11.3f}  {describe_config(chosen)}{change}"
        )
    mean = geometric_mean(losses)
    emit()
    if losses:
        emit(
            f"geometric mean over {len(losses)} shapes: chosen/best {mean:.4f}, worst "
            f"{max(losses):.4f}; cuDNN/chosen {geometric_mean(chosen_ratios):.3f}, cuDNN/best "
            f"{geometric_mean(best_ratios):.3f}"
        )
    for line in missing:
        emit(f"chosen but not measured: {line}")
    return mean


def print_rates(problems: list[Problem]) -> None:
    """Prints the speed of every configuration with waves accounted for.

    The busiest multiprocessor works on ceil(tiles / num_sms) tiles; the rate is its operations over
    the measured time, so padding of the tiles and idle multiprocessors do not count against it.
    """
    rates: dict[Any, list[float]] = {}
    for problem in problems:
        for config, ms in problem.times.items():
            tiles = math.ceil(problem.m_gemm / config.block_m) * math.ceil(
                problem.co / config.block_n
            )
            waves = math.ceil(tiles / problem.num_sms)
            operations = 2 * waves * config.block_m * config.block_n * problem.taps * problem.ci
            rates.setdefault(config, []).append(operations / ms / 1e9)
    title = "TFLOP/s per multiprocessor: min"
    emit(f"{'configuration':<30} {'shapes':>6} {title:>32} median    max")
    for config, values in sorted(rates.items(), key=lambda item: -statistics.median(item[1])):
        emit(
            f"{describe_config(config):<30} {len(values):>6} {min(values):>32.2f} "
            f"{statistics.median(values):>6.2f} {max(values):>6.2f}"
        )


def print_fit(problems: list[Problem]) -> None:
    """Prints the cost model of every configuration: microseconds per step, per tile, per launch."""
    for config in sorted({c for p in problems for c in p.times}, key=describe_config):
        measured = [p for p in problems if config in p.times]
        if len(measured) < FIT_SHAPES:
            continue
        features = [_features(config, p) for p in measured]
        cost, error = fit_cost(features, [p.times[config] * 1e3 for p in measured])
        emit(
            f"{describe_config(config):<30} Cost({cost[0]:.3f}, {cost[1]:.2f}, {cost[2]:.2f})"
            f"  median error {error * 100:.1f} %, {len(measured)} shapes"
        )


def fit_cost(features: Sequence[Sequence[float]], us: Sequence[float]) -> tuple[Any, float]:
    """Fits a time as a sum of features, each with a cost of at least 0.

    Least squares of the relative error, reweighted towards the absolute one so that a few shapes
    that the model does not describe (memory-bound ones) do not bend it.

    Args:
        features: Per shape: how often it has what each cost is of.
        us: Measured microseconds per shape.

    Returns:
        The costs in microseconds, and the median relative error.
    """
    import numpy as np

    rows = np.array(features, dtype=float) / np.array(us)[:, None]
    cost = _nonnegative(rows, np.ones(len(us)))
    for _ in range(FIT_ROUNDS):
        weights = 1 / np.sqrt(np.abs(rows @ cost - 1) + FIT_TOLERANCE)
        cost = _nonnegative(rows * weights[:, None], weights)
    return cost, float(np.median(np.abs(rows @ cost - 1)))


def _features(config: Any, problem: Problem) -> list[float]:
    tiles = math.ceil(problem.m_gemm / config.block_m) * math.ceil(problem.co / config.block_n)
    waves = math.ceil(tiles / problem.num_sms)
    return [waves * problem.taps * math.ceil(problem.ci / config.block_k), waves, 1.0]


def _nonnegative(rows: Any, targets: Any) -> Any:
    """Least squares with costs of at least 0: a cost that comes out negative is left out."""
    import numpy as np

    used = list(range(rows.shape[1]))
    while True:
        solution = np.linalg.lstsq(rows[:, used], targets, rcond=None)[0]
        if (solution >= 0).all() or len(used) == 1:
            break
        del used[int(np.argmin(solution))]
    cost = np.zeros(rows.shape[1])
    cost[used] = solution
    return cost


def print_pick(
    times: Sequence[Mapping[Any, float]], count: int, describe: Callable[[Any], str]
) -> None:
    """Prints a greedy choice of configurations and what is lost with the first 1, 2, ... of it.

    Args:
        times: Per problem, milliseconds of each configuration.
        count: How many to choose.
        describe: Names a configuration; ties are broken in the order of the names.
    """
    everything = {config for each in times for config in each}
    picked: list[Any] = []

    def loss(configs: list[Any]) -> float:
        # A problem that none of them fits counts as ten times too slow.
        bests = [min(each.values()) for each in times]
        return geometric_mean(
            [
                min((each[c] for c in configs if c in each), default=10 * best) / best
                for each, best in zip(times, bests, strict=True)
            ]
        )

    for _ in range(min(count, len(everything))):
        rest = sorted(everything - set(picked), key=describe)
        picked.append(min(rest, key=lambda config: loss([*picked, config])))
        emit(f"{len(picked):>3} {loss(picked):.4f}  + {describe(picked[-1])}")


def main(argv: list[str] | None = None) -> int:
    """Runs the program; returns 2 where there is nothing to read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fit_config",
        description="Judges a chooser of tile configurations by a sweep, without a GPU.",
    )
    parser.add_argument("sweeps", nargs="+", type=pathlib.Path, help="JSON files of --sweep")
    parser.add_argument("--chooser", metavar="MODULE:FUNCTION", help="takes a Problem")
    parser.add_argument("--rates", action="store_true", help="speed per configuration")
    parser.add_argument("--fit", action="store_true", help="cost model per configuration")
    parser.add_argument("--pick", type=int, default=0, metavar="N", help="greedy best N")
    arguments = parser.parse_args(argv)
    try:
        problems = load_problems(arguments.sweeps)
    except ValueError as error:
        complain(str(error))
        return 2
    if not problems:
        emit("no timed configuration in these files")
        return 2
    judge(problems, load_chooser(arguments.chooser))
    if arguments.rates:
        emit()
        print_rates(problems)
    if arguments.fit:
        emit()
        print_fit(problems)
    if arguments.pick:
        emit()
        print_pick([problem.times for problem in problems], arguments.pick, describe_config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
