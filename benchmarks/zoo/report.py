"""Figures of the rows that ``zoo sweep`` wrote: ours and cuDNN's, and how the planner chose.

A ratio is cuDNN's time over another time of the same row.
"""

from __future__ import annotations

import math
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import emit, geometric_mean
from benchmarks.zoo.rows import read_rows

__all__ = ["Outcome", "kind_of_layer", "outcomes", "percentile", "run_report", "weighted_mean"]

# Shares of layers below which a percentile is reported.
_PERCENTILES = (0.01, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A row in the terms of the report."""

    layer: str  # its name
    kind: str  # see :func:`kind_of_layer`
    weight: int  # occurrences
    cudnn_us: float  # cuDNN's time
    # Our kernel's, as the planner chooses it with tables; ``None`` where none runs.
    alone_us: float | None
    model_us: float | None  # the same without tables
    best_us: float | None  # that of the fastest of ours that was measured
    family: str  # the chosen family
    best_family: str  # the fastest family
    decided_by: str  # with ``prefer="fastest"``: ``"table"``, ``"model"`` or ``"torch"``

    @property
    def alone(self) -> float | None:
        """cuDNN's time over ours."""
        return self.cudnn_us / self.alone_us if self.alone_us else None

    @property
    def fastest(self) -> float:
        """cuDNN's time over that of what ``prefer="fastest"`` runs."""
        return 1.0 if self.decided_by == "torch" or not self.alone_us else self.alone or 1.0

    @property
    def regret(self) -> float | None:
        """The time of the model's choice over that of the fastest that was measured."""
        return self.model_us / self.best_us if self.model_us and self.best_us else None


def kind_of_layer(problem: dict[str, Any]) -> str:
    """Returns the kind of a layer, of which there are some ten.

    Args:
        problem: Fields of a :class:`triton_ext.ops.core.problem.ConvProblem`.
    """
    groups, ci, co = problem["groups"], problem["in_channels"], problem["out_channels"]
    dims = len(problem["input_size"])
    if groups > 1:
        return "depthwise" if groups == ci == co else "grouped"
    if math.prod(problem["input_size"]) == 1:
        return "one pixel"
    if min(ci, co) < 16:
        return "few channels"
    if dims != 2:
        return f"{dims}-D"
    narrow = " narrow" if ci % 64 or co % 64 else ""
    if math.prod(problem["filter_size"]) == 1:
        return "1x1" + narrow
    return ("strided" if max(problem["stride"]) > 1 else "dense") + narrow


def _time_of(results: Sequence[dict[str, Any]], role: str) -> dict[str, Any] | None:
    return next((r for r in results if role in r["roles"] and r["us"]), None)


def outcomes(rows: Iterable[dict[str, Any]]) -> list[Outcome]:
    """Returns the outcomes of rows that have a time of cuDNN."""
    found = []
    for row in rows:
        if not row.get("cudnn_us"):
            continue
        timed = [result for result in row["results"] if result["us"]]
        model, table = _time_of(timed, "model"), _time_of(timed, "table")
        chosen = table or model
        best = min(timed, key=lambda result: float(result["us"]), default=None)
        decided = "model" if table is None else "table"
        if row["torch"].get("chosen") or chosen is None:
            decided = "torch"
        found.append(
            Outcome(
                layer=row["layer"],
                kind=kind_of_layer(row["problem"]),
                weight=row["occurrences"],
                cudnn_us=row["cudnn_us"],
                alone_us=chosen["us"] if chosen else None,
                model_us=model["us"] if model else None,
                best_us=best["us"] if best else None,
                family=chosen["kind"] if chosen else "none",
                best_family=best["kind"] if best else "none",
                decided_by=decided,
            )
        )
    return found


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the weighted geometric mean; NaN of nothing."""
    total = sum(weights)
    if not total:
        return math.nan
    logs = (weight * math.log(value) for value, weight in zip(values, weights, strict=True))
    return math.exp(sum(logs) / total)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which a share of the values lies, at most; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[min(math.floor(share * len(values)), len(values) - 1)]


def _figures(name: str, values: Sequence[float], weights: Sequence[float]) -> str:
    """Returns a line of the table."""
    lowest = "".join(f"{percentile(values, share):>8.3f}" for share in _PERCENTILES)
    below = sum(value < 0.99 for value in values)
    return (
        f"{name:<22}{len(values):>6}{geometric_mean(values):>9.3f}"
        f"{weighted_mean(values, weights):>10.3f}{min(values, default=math.nan):>8.3f}{lowest}"
        f"{below:>7}"
    )


_HEAD = (
    f"{'cuDNN / ...':<22}{'layers':>6}{'mean':>9}{'weighted':>10}{'worst':>8}"
    + "".join(f"{f'{share:.0%}':>8}" for share in _PERCENTILES)
    + f"{'<0.99':>7}"
)


def _show(title: str, rows: Sequence[dict[str, Any]], worst: int) -> None:
    found = outcomes(rows)
    emit(f"\n{title}: {len(rows)} rows, {len(found)} timed")
    for text, count in _complaints(rows).most_common(8):
        emit(f"    {count} x {text}")
    if not found:
        return
    own = [each for each in found if each.alone_us]
    emit(_HEAD)
    lines: list[tuple[str, Callable[[Outcome], float | None]]] = [
        ("ours alone", lambda each: each.alone),
        ("ours, no tables", lambda each: each.cudnn_us / (each.model_us or math.nan)),
        ("best measured of ours", lambda each: each.cudnn_us / (each.best_us or math.nan)),
    ]
    for name, ratio in lines:
        taken = [(r, each.weight) for each in own if (r := ratio(each)) and not math.isnan(r)]
        emit(_figures(name, [r for r, _ in taken], [w for _, w in taken]))
    emit(_figures('prefer="fastest"', [e.fastest for e in found], [e.weight for e in found]))
    ideal = [max(1.0, each.cudnn_us / (each.best_us or each.cudnn_us)) for each in found]
    emit(_figures("best of all", ideal, [each.weight for each in found]))
    _show_choices(found)
    emit("ours alone by kind:")
    for kind in sorted({each.kind for each in own}):
        of_kind = [each for each in own if each.kind == kind]
        emit(_figures(f"  {kind}", [e.alone or 1.0 for e in of_kind], [e.weight for e in of_kind]))
    emit("worst of ours alone:")
    for each in sorted(own, key=lambda each: each.alone or 0.0)[:worst]:
        emit(
            f"  {each.alone:.3f}  {each.layer:<48} {each.kind:<16} cuDNN {each.cudnn_us:9.1f} us  "
            f"{each.family} {each.alone_us:9.1f} us; best {each.best_family} {each.best_us:9.1f} us"
            f"; fastest runs {each.decided_by}"
        )


def _show_choices(found: Sequence[Outcome]) -> None:
    """Prints who decides, how well, and what the verdict on torch costs."""
    total = sum(each.weight for each in found)
    shares = []
    for name in ("table", "model", "torch"):
        of_name = [each for each in found if each.decided_by == name]
        weight = sum(each.weight for each in of_name)
        shares.append(f"{name} {len(of_name) / len(found):.1%} ({weight / max(total, 1):.1%})")
    emit(f"decided by: {', '.join(shares)}; in brackets by occurrence")
    regrets = [each.regret for each in found if each.regret]
    if regrets:
        emit(
            f"model's choice / best measured of ours: mean {geometric_mean(regrets):.3f}, "
            f"99 % below {percentile(regrets, 0.99):.3f}, worst {max(regrets):.3f}"
        )
    slower = [each for each in found if each.decided_by != "torch" and each.fastest < 0.95]
    lost = [each for each in found if each.decided_by == "torch" and (each.alone or 0.0) > 1.05]
    emit(
        f"verdict on torch: {len(slower)} layers run ours below 0.95, "
        f"{len(lost)} run torch where ours is 1.05 or more"
    )


def _complaints(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Returns errors, refusals and statuses of choices, by their first words."""
    found: Counter[str] = Counter()
    for row in rows:
        for text in (row["error"], row["refusal"] and f"refused: {row['refusal']}"):
            if text:
                found[text[:120]] += 1
        for result in row["results"]:
            status = result["status"]
            if status not in ("ok", "pending") and not status.startswith("slow"):
                role = "candidate" if result["roles"] == ["candidate"] else "choice"
                found[f"{role} {result['kind']}: {status[:90]}"] += 1
    return found


def run_report(files: Sequence[pathlib.Path], worst: int) -> int:
    """Prints the figures of files of rows; returns 1 where there are no rows.

    Args:
        files: What ``zoo sweep`` wrote.
        worst: How many layers to list.
    """
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    devices: set[str] = set()
    for path in files:
        for row in read_rows(path):
            if "environment" in row:
                env = row["environment"]
                invented = ", INVENTED" if env.get("dry_run") else ""
                devices.add(
                    f"{env['device']}, torch {env['torch']}, cuDNN {env['cudnn']}, Triton "
                    f"{env['triton']}, commit {env['commit']}, table of {row['table']}{invented}"
                )
            else:
                title = f"{row['direction']} {row['dtype']} {row['part']}"
                # The later row counts if a layer was measured twice.
                groups.setdefault(title, {})[row["layer"]] = row
    for device in sorted(devices):
        emit(device)
    for title in sorted(groups):
        _show(title, list(groups[title].values()), worst)
    return int(not groups)
