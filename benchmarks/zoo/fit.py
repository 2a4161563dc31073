"""Judges the models of all families by rows that ``zoo sweep`` wrote, without a GPU.

Prints measured over expected times, by direction, family and kind of layer; what the choice among
the measured configurations loses; and what the verdict on torch does.  A choice that was not
measured does not count.  With ``--cross`` the shared numbers of ``core/loads.py`` are fitted to one
half of the layers, by the hash of the name, and judged on the other half.  With ``--costs`` the
costs of every configuration are fitted in their place, without ``--cross`` to all layers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import emit, geometric_mean
from benchmarks.zoo.report import kind_of_layer, percentile
from benchmarks.zoo.rows import Layer, read_layers

__all__ = ["Judged", "half_of", "judge", "run_fit"]

# Factors that a search tries on each number, in turn.
_FACTORS = (0.85, 1.18)


@dataclass(frozen=True, slots=True)
class Judged:
    """Expected times of a layer, compared with measurements."""

    ratios: tuple[tuple[str, float], ...]  # measured over expected times, with their families
    loss: float | None  # measured time of the choice over the least measured time
    cudnn_over_ours: float  # ratio for that choice, or for the table's if it has one
    is_torch_chosen: bool  # whether torch is expected to be faster than that
    cudnn_over_model: float | None  # measured over expected; ``None`` if the model refuses


def half_of(name: str) -> int:
    """Returns 0 or 1, the half of a layer."""
    return hashlib.sha1(name.encode()).digest()[0] % 2


def _key(kind: str, config: dict[str, Any]) -> str:
    return json.dumps([kind, config], sort_keys=True)


def judge(layer: Layer) -> Judged:
    """Returns what the models expect of a layer, beside what was measured."""
    from triton_ext.ops.core import planner, tables

    expected, compared = {}, {}
    for offer in planner.offers(layer.case, layer.device):
        for config, times in offer.times:
            key = _key(offer.family.kind, tables.encode(config))
            expected[key] = times.us
            if not (offer.passed_over or offer.superseded_by or math.isnan(times.us)):
                compared[key] = times.counted_us
    timed = {_key(r["kind"], r["config"]): r["us"] for r in layer.row["results"] if r["us"]}
    ratios = tuple(
        (json.loads(key)[0], us / expected[key])
        for key, us in timed.items()
        if key in expected and not math.isnan(expected[key])
    )
    choice = min((key for key in timed if key in compared), key=compared.__getitem__, default=None)
    by_table = next((r for r in layer.row["results"] if "table" in r["roles"] and r["us"]), None)
    cudnn_us = layer.row["cudnn_us"]
    us = math.inf if choice is None else timed[choice]
    model_us = math.inf if choice is None else compared[choice]
    if by_table is not None:
        us = model_us = by_table["us"]
        model_us /= planner.MEASURED_MARGIN
    offer = planner.torch_offer(layer.case, layer.device)
    torch = [expected for _, expected in offer.times if not math.isnan(expected.us)]
    return Judged(
        ratios,
        None if choice is None else timed[choice] / min(timed.values()),
        cudnn_us / us,
        any(each.counted_us < model_us for each in torch),
        cudnn_us / torch[0].us if torch else None,
    )


def _show_ratios(judged: Sequence[tuple[Layer, Judged]]) -> None:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for layer, each in judged:
        row = layer.row
        kind = kind_of_layer(row["problem"])
        for family, ratio in each.ratios:
            found[row["direction"], family, kind].append(ratio)
        if each.cudnn_over_model:
            found[row["direction"], "torch", kind].append(each.cudnn_over_model)
    emit(f"{'measured / expected':<44}{'count':>6}{'mean':>8}{'spread':>8}{'least':>8}{'most':>8}")
    for (direction, family, kind), ratios in sorted(found.items()):
        spread = statistics.pstdev(map(math.log, ratios))
        emit(
            f"{direction:<7}{family:<17}{kind:<20}{len(ratios):>6}{geometric_mean(ratios):>8.3f}"
            f"{spread:>8.3f}{min(ratios):>8.2f}{max(ratios):>8.2f}"
        )


def _show_choices(title: str, judged: Sequence[tuple[Layer, Judged]]) -> None:
    emit(title)
    for direction in ("fprop", "dgrad", "wgrad"):
        of_direction = [each for layer, each in judged if layer.row["direction"] == direction]
        losses = [each.loss for each in of_direction if each.loss]
        if not losses:
            continue
        emit(
            f"  {direction}: choice / best measured of {len(losses)} layers: mean "
            f"{geometric_mean(losses):.3f}, 99 % below {percentile(losses, 0.99):.3f}, worst "
            f"{max(losses):.3f}"
        )
        chosen = [1.0 if each.is_torch_chosen else each.cudnn_over_ours for each in of_direction]
        slower = sum(ratio < 0.95 for ratio in chosen)
        lost = sum(each.is_torch_chosen and each.cudnn_over_ours >= 1.05 for each in of_direction)
        emit(
            f'         prefer="fastest": cuDNN / ours {geometric_mean(chosen):.3f}, worst '
            f"{min(chosen):.3f}, 1 % {percentile(chosen, 0.01):.3f}; {slower} run ours below 0.95, "
            f"{lost} run torch where ours is 1.05 or more"
        )


def _all_judged(layers: Sequence[Layer]) -> list[tuple[Layer, Judged]]:
    """Returns the layers with what models expect now, whatever they cached."""
    for name, module in list(sys.modules.items()):
        if name.startswith("triton_ext.ops.families."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    return [(layer, judge(layer)) for layer in layers]


def _error(layers: Sequence[Layer]) -> float:
    """Returns the mean of the errors' logarithms, of families that load through TMA."""
    logs = [
        abs(math.log(ratio))
        for _, each in _all_judged(layers)
        for family, ratio in each.ratios
        if family in ("gemm", "gluon", "wgrad", "gluon_wgrad")
    ]
    return statistics.fmean(logs)


def _places(costs: bool) -> list[tuple[Any, Any]]:
    """Returns where fitted numbers are: mappings and their keys.

    Args:
        costs: Whether the costs of configurations are meant, or the numbers that all share.
    """
    from triton_ext.ops.core import loads
    from triton_ext.ops.families import gemm_config, gluon_config, wgrad

    if not costs:
        return [(vars(loads), "FITTED")]
    tables = (
        gemm_config.COSTS, gemm_config.DGRAD_COSTS, gemm_config.NARROW_COSTS,
        *gluon_config.COSTS.values(), wgrad._COSTS,
    )  # fmt: skip
    return [(table, config) for table in tables for config in table]


def _search(layers: Sequence[Layer], places: Sequence[tuple[Any, Any]]) -> list[str]:
    """Fits numbers to layers, one after the other, and leaves them so; returns what changed."""
    least, changes = _error(layers), []
    for holder, key in places:
        before = best = holder[key]
        for field in dataclasses.fields(before):
            start = best
            if not isinstance(getattr(start, field.name), float):
                continue
            for factor in _FACTORS:
                tried = {field.name: getattr(start, field.name) * factor}
                holder[key] = dataclasses.replace(start, **tried)
                error = _error(layers)
                if error < least:
                    least, best = error, holder[key]
            holder[key] = best
        if best != before:
            changes.append(f"  {key}: {best}")
    return changes


def _fit(layers: Sequence[Layer], costs: bool, cross: bool) -> None:
    """Fits numbers, prints them and what choices they make, and puts the shipped ones back."""
    places = _places(costs)
    shipped = [holder[key] for holder, key in places]
    judged: list[tuple[Layer, Judged]] = []
    for half in (0, 1) if cross else (-1,):
        fitted_to = [layer for layer in layers if half_of(layer.row["layer"]) != half]
        emit(f"fitted to {len(fitted_to)} layers:")
        for line in _search(fitted_to, places):
            emit(line)
        judged += _all_judged(
            [layer for layer in layers if not cross or half_of(layer.row["layer"]) == half]
        )
        for (holder, key), value in zip(places, shipped, strict=True):
            holder[key] = value
    _show_choices(
        "each half by the numbers fitted to the other:" if cross else "as fitted:", judged
    )


def run_fit(files: Sequence[pathlib.Path], cross: bool, costs: bool = False) -> int:
    """Runs the command; returns 1 where there are no rows.

    Args:
        files: What ``zoo sweep`` wrote.
        cross: Whether to fit to one half and to judge by the other, which takes minutes.
        costs: Whether to fit the costs of configurations, not the numbers that all share.
    """
    layers = read_layers(files)
    if not layers:
        return 1
    judged = _all_judged(layers)
    _show_ratios(judged)
    _show_choices("as shipped:", judged)
    if cross or costs:
        _fit(layers, costs, cross)
    return 0
