"""Figures out of what benchmarks and examples wrote, for the cases of ``reproduce``."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import geometric_mean
from benchmarks.zoo.rows import read_rows

__all__ = ["Reader", "Reading", "Rows", "across_releases", "good_findings", "load_rows", "mean_of",
           "models_ratio", "of_curve", "ranks_efficiency", "ranks_error", "seconds_of", "swept",
           "worst_of"]  # fmt: skip

#: Output of a command: rows of texts by column; of ``zoo sweep`` its own rows.
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as it was read."""

    value: float = math.nan  # NaN where there is nothing to read
    count: int = 0  # rows that it is of
    spread: float = math.nan  # of the median row; NaN if there is none
    wrong: int = 0  # rows with a wrong result
    note: str = ""  # what else there is to say, such as the worst row


#: Reads rows by suffix, or by the names of sources.
Reader = Callable[[Mapping[str, Rows]], Reading]


def load_rows(path: pathlib.Path) -> Rows:
    """Returns the rows of a CSV file, of a JSON file's ``rows``, or of ``zoo sweep``.

    There are none where there is no such file.
    """
    if path.suffix == ".jsonl":
        return read_rows(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    if path.suffix == ".json":
        try:
            rows = json.loads(text)["rows"]
        except (ValueError, KeyError, TypeError):
            return []
        return [{name: str(value) for name, value in row.items()} for row in rows]
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _spread(rows: Rows) -> float:
    """The largest spread of a row, of the median row."""
    found = [
        max(values)
        for row in rows
        if (values := [float(v) for name, v in row.items() if name.endswith("spread") and v])
    ]
    return statistics.median(found) if found else math.nan


def _mean(values: Mapping[str, float], spread: float = math.nan, wrong: int = 0) -> Reading:
    """Returns the geometric mean of values by name, with the smallest in the note."""
    if not values:
        return Reading(wrong=wrong)
    worst = min(values, key=values.__getitem__)
    note = f"worst {values[worst]:.3f} ({worst})"
    return Reading(geometric_mean([*values.values()]), len(values), spread, wrong, note)


def mean_of(column: str) -> Reader:
    """Reads the geometric mean of a column; empty cells were not timed."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(".csv", []) if row.get(column)]
        values = {row.get("layer") or row.get("shape", ""): float(row[column]) for row in timed}
        wrong = sum(bool(row.get("wrong")) for row in rows.get(".csv", []))
        return _mean(values, _spread(timed), wrong)

    return read


def worst_of(column: str) -> Reader:
    """Reads the smallest value of a column."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(".csv", []) if row.get(column)]
        if not timed:
            return Reading()
        worst = min(timed, key=lambda row: float(row[column]))
        wrong = sum(bool(row.get("wrong")) for row in rows[".csv"])
        return Reading(float(worst[column]), len(timed), _spread([worst]), wrong, worst["layer"])

    return read


def seconds_of(rows: Mapping[str, Rows]) -> Reading:
    """Reads the seconds of a case, which ``reproduce`` measures."""
    return Reading(float(rows[".seconds"][0]["seconds"]), 1)


def swept(figure: str, *suffixes: str) -> Reader:
    """Reads a geometric mean of files of ``zoo sweep``, by their suffixes.

    The figure is ``"alone"``, cuDNN's time over ours, or ``"model"``, the least time of all
    measured configurations over that of the model's choice.
    """
    from benchmarks.zoo.report import outcomes

    def read(rows: Mapping[str, Rows]) -> Reading:
        found, wrong = {}, 0
        for suffix in suffixes:
            swept_rows = [row for row in rows.get(suffix, []) if "layer" in row]
            for each in outcomes(swept_rows):
                value = each.alone if figure == "alone" else each.regret and 1 / each.regret
                if value:
                    found[f"{each.layer}{suffix.removesuffix('.jsonl')}"] = value
            statuses = [result["status"] for row in swept_rows for result in row["results"]]
            wrong += statuses.count("wrong result")
        return _mean(found, wrong=wrong)

    return read


def _told(rows: Rows) -> str:
    """Returns the messages of modes that did not run, or ran incorrectly."""
    return "; ".join(f"{row['mode']}: {row['problem']}" for row in rows if row["problem"])


def models_ratio(over: str, mode: str, column: str = "ms") -> Reader:
    """Reads the geometric mean of one mode's value over another's, of ``examples.models``.

    The column is ``ms`` or ``peak_mib``; files are those of one case, or of all sources.
    """

    def read(rows: Mapping[str, Rows]) -> Reading:
        files = [each for name, found in rows.items() if name.endswith(".csv") for each in found]
        found = [row for row in files if row["mode"] in (over, mode)]
        if not found:
            return Reading(note=_told(files))
        # A mode without a time has a peak too, but a wrong result.
        timed = [row for row in found if row["ms"]]
        values = {(row["model"], row["mode"]): float(row[column]) for row in timed}
        # Without a GPU all peaks are 0.
        ratios = {
            model: values[model, over] / value if value else 1.0
            for (model, each), value in values.items()
            if each == mode and (model, over) in values
        }
        mean = _mean(ratios, _spread(timed) if column == "ms" else math.nan)
        bad = [row for row in found if row["problem"]]
        notes = [f"{row['model']} {row['mode']}: {row['problem']}" for row in bad]
        notes += [mean.note] if len(ratios) > 1 else []
        return Reading(mean.value, mean.count, mean.spread, len(bad), "; ".join(notes))

    return read


def ranks_error(kind: str) -> Reader:
    """Reads ranks' error over that of one process, the largest of all modes."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        every = rows.get(".csv", [])
        found = [row for row in every if row["task"].startswith("check")]
        if not found:
            return Reading(note=_told(every))
        one = {row["mode"]: float(row["error_l2"]) for row in found if row["task"] == "check"}
        mine = [row for row in found if row["task"].startswith(f"check {kind} ")]
        ratios = {row["mode"]: float(row["error_l2"]) / one[row["mode"]] for row in mine}
        wrong = sum(bool(row["problem"]) for row in mine)
        note = ", ".join(f"{mode} {ratio:.2f}" for mode, ratio in ratios.items())
        return Reading(max(ratios.values(), default=math.nan), len(ratios), math.nan, wrong, note)

    return read


def ranks_efficiency(kind: str) -> Reader:
    """Reads our scaling efficiency over that of torch's own convolutions."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        every = rows.get(".csv", [])
        tasks = {row["task"] for row in every}
        together = next((task for task in tasks if task.startswith(f"training {kind} ")), "")
        found = [row for row in every if row["task"] in ("training", together)]
        mine, wrong = ([row for row in found if row[name]] for name in ("ms", "problem"))
        ms = {(row["task"], row["mode"]): float(row["ms"]) for row in mine}
        parts = [
            ms.get(("training", mode), math.nan) / ms.get((together, mode), math.nan)
            for mode in ("eager", "ours")
        ]
        if math.isnan(sum(parts)):
            return Reading(wrong=len(wrong), note=_told(wrong))
        theirs, ours = parts
        told = f"torch's own {theirs:.3f}, ours {ours:.3f}"
        note = "; ".join(filter(None, (told, _told(wrong))))
        return Reading(ours / theirs, 1, _spread(mine), len(wrong), note)

    return read


def of_curve(column: str, trouble: str) -> Reader:
    """Reads a column of what ``loss_curves`` writes; another says what is wrong."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        for row in rows.get(".json", []):
            if row.get("problem"):
                return Reading(note=row["problem"])
            return Reading(float(row[column]), 1, math.nan, int(bool(row[trouble])), row[trouble])
        return Reading()

    return read


def good_findings(rows: Mapping[str, Rows]) -> Reading:
    """Reads how many findings of ``killed_rank`` are as they should be."""
    found = rows.get(".csv", [])
    if not found:
        return Reading()
    wrong = [row["finding"] for row in found if row["good"] != "True"]
    return Reading(len(found) - len(wrong), len(found), math.nan, len(wrong), "; ".join(wrong))


def across_releases(rows: Mapping[str, Rows]) -> Reading:
    """Reads the time on another release over that on this one, of ``compare``'s ``ours``."""
    this, other = (
        {row["layer"]: row for row in rows.get(suffix, [])} for suffix in (".csv", ".other.csv")
    )
    ratios = {
        name: float(other[name]["ours_ms"]) / float(this[name]["ours_ms"])
        for name in this.keys() & other.keys()
        if other[name]["ours_ms"] and this[name]["ours_ms"]
    }
    wrong = sum(bool(row["wrong"]) for row in (*this.values(), *other.values()))
    return _mean(ratios, _spread([*this.values()]), wrong)
