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

__all__ = [
    "Reader",
    "Reading",
    "Rows",
    "across_releases",
    "depthwise_ratio",
    "first_of",
    "good_findings",
    "is_invented",
    "load_rows",
    "load_sweep",
    "mean_of",
    "models_ratio",
    "of_curve",
    "of_modes",
    "packed_ratio",
    "ranks_efficiency",
    "ranks_error",
    "worst_of",
]

#: Output of a command: rows of texts by column.
Rows = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure as it was read.

    Attributes:
        value: NaN where there is nothing to read.
        count: Rows that it is of.
        spread: Of the median row; NaN if there is none.
        wrong: Rows with a wrong result.
        note: What else there is to say, such as the worst row.
    """

    value: float = math.nan
    count: int = 0
    spread: float = math.nan
    wrong: int = 0
    note: str = ""


#: Reads rows by suffix, or by the names of sources.
Reader = Callable[[Mapping[str, Rows]], Reading]


def load_rows(path: pathlib.Path) -> Rows:
    """Returns the rows of a CSV file, or of a JSON file's ``rows``; none where there is no file."""
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


def load_sweep(path: pathlib.Path, key: str) -> dict[str, Any]:
    """Returns what a sweep wrote as JSON.

    Args:
        path: The file.
        key: Under which its layers stand: ``layers`` of wgrad, ``shapes`` of the others.

    Raises:
        ValueError: It cannot be read, or is of something else.
    """
    expected = f"{path}: expected what a sweep wrote, with {key!r}"
    try:
        sweep = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{expected}; {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{expected}; this is no JSON") from error
    if not isinstance(sweep, dict):
        raise ValueError(f"{expected}; this is other JSON")
    if not isinstance(sweep.get(key), dict):
        raise ValueError(f"{expected}; this has {', '.join(map(repr, sweep)) or 'nothing'}")
    return sweep


def is_invented(sweep: Mapping[str, Any]) -> bool:
    """Returns whether a dry run wrote this; in CSV files the environment is text."""
    environment = sweep.get("environment")
    return isinstance(environment, dict) and str(environment.get("dry_run")) == "True"


def _spread(rows: Rows) -> float:
    """The largest spread of a row, of the median row."""
    found = [
        max(values)
        for row in rows
        if (values := [float(v) for name, v in row.items() if name.endswith("spread") and v])
    ]
    return statistics.median(found) if found else math.nan


def _name(row: Mapping[str, str]) -> str:
    return next((row[key] for key in ("shape", "layer", "model", "case") if key in row), "")


def mean_of(column: str, suffix: str = ".csv") -> Reader:
    """Reads the geometric mean of a column; empty cells were not timed."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(suffix, []) if row.get(column)]
        wrong = sum(bool(row.get("wrong")) for row in rows.get(suffix, []))
        if not timed:
            return Reading(wrong=wrong, note=f"{wrong} wrong" if wrong else "")
        worst = min(timed, key=lambda row: float(row[column]))
        return Reading(
            geometric_mean([float(row[column]) for row in timed]),
            len(timed),
            _spread(timed),
            wrong,
            f"worst {float(worst[column]):.3f} ({_name(worst)})",
        )

    return read


def worst_of(column: str, suffix: str = ".csv") -> Reader:
    """Reads the smallest value of a column."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        timed = [row for row in rows.get(suffix, []) if row.get(column)]
        if not timed:
            return Reading()
        worst = min(timed, key=lambda row: float(row[column]))
        wrong = sum(bool(row.get("wrong")) for row in rows[suffix])
        spread = _spread([worst])
        return Reading(float(worst[column]), len(timed), spread, wrong, _name(worst))

    return read


def first_of(column: str) -> Reader:
    """Reads a column of the only row, whose ``exit`` tells whether it was wrong."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        for row in rows.get(".csv", []):
            return Reading(float(row[column]), 1, wrong=int(row.get("exit", "0") != "0"))
        return Reading()

    return read


def packed_ratio(rows: Mapping[str, Rows]) -> Reading:
    """Reads cuDNN's time over that of the chosen way, of ``row_packing``."""
    found = rows.get(".csv", [])
    ratios = [float(row["cudnn_us"]) / float(row[f"{row['chosen']}_us"]) for row in found]
    wrong = sum(bool(row["wrong"]) for row in found)
    return Reading(geometric_mean(ratios), len(ratios), wrong=wrong)


def depthwise_ratio(direction: str) -> Reader:
    """Reads torch's time over that of the chosen configuration, of ``depthwise``."""

    def read(rows: Mapping[str, Rows]) -> Reading:
        mine = [row for row in rows.get(".json", []) if row["direction"] == direction]
        torch = {row["layer"]: float(row["us"]) for row in mine if row["config"] == "torch"}
        chosen = {
            row["layer"]: float(row["us"])
            for row in mine
            if row.get("chosen") == "True" and row.get("us")
        }
        ratios = [torch[layer] / us for layer, us in chosen.items()]
        wrong = sum(row["status"] == "wrong" for row in mine)
        return Reading(geometric_mean(ratios), len(ratios), wrong=wrong)

    return read


def _told(rows: Rows) -> str:
    """Returns the messages of modes that did not run, or ran incorrectly."""
    return "; ".join(f"{row['mode']}: {row['problem']}" for row in rows if row["problem"])


def of_modes(column: str, over: str, mode: str, suffix: str = ".csv") -> Reader:
    """Reads the geometric mean of a mode's value over another's, of ``examples.models``.

    Args:
        column: ``ms`` or ``peak_mib``.
        over: The mode above the line.
        mode: The one below it.
        suffix: Of the files, of one case or of all sources.
    """

    def read(rows: Mapping[str, Rows]) -> Reading:
        files = [each for name, found in rows.items() if name.endswith(suffix) for each in found]
        found = [row for row in files if row["mode"] in (over, mode)]
        if not found:
            return Reading(note=_told(files))
        # A mode without a time has a peak too, but a wrong result.
        values = {(row["model"], row["mode"]): float(row[column]) for row in found if row["ms"]}
        # Without a GPU all peaks are 0.
        ratios = {
            model: values[model, over] / value if value else 1.0
            for (model, each), value in values.items()
            if each == mode and (model, over) in values
        }
        problems = [f"{row['model']} {row['mode']}: {row['problem']}"
                    for row in found if row["problem"]]  # fmt: skip
        notes = list(problems)
        if len(ratios) > 1:
            name = min(ratios, key=ratios.__getitem__)
            notes.append(f"worst {ratios[name]:.3f} ({name})")
        timed = [row for row in found if row["ms"]]
        value = geometric_mean([*ratios.values()])
        spread = _spread(timed) if column == "ms" else math.nan
        return Reading(value, len(ratios), spread, len(problems), "; ".join(notes))

    return read


def models_ratio(over: str, mode: str) -> Reader:
    """Reads the geometric mean of a mode's time over another's, of ``examples.models``."""
    return of_modes("ms", over, mode)


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
        found = rows.get(".csv", [])
        tasks = {row["task"] for row in found}
        together = next((task for task in tasks if task.startswith(f"training {kind} ")), "")
        mine = [row for row in found if row["task"] in ("training", together) and row["ms"]]
        ms = {(row["task"], row["mode"]): float(row["ms"]) for row in mine}
        wrong = [row for row in found if row["problem"] and row["task"] in ("training", together)]
        note = _told(wrong)
        modes = ("eager", "ours")
        if not all((task, mode) in ms for task in ("training", together) for mode in modes):
            return Reading(wrong=len(wrong), note=note)
        theirs, ours = (ms["training", mode] / ms[together, mode] for mode in modes)
        told = f"torch's own {theirs:.3f}, ours {ours:.3f}"
        note = "; ".join(filter(None, (told, note)))
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
    """Reads the time on another release over that on this one, of ``conv_fprop``'s ``ours``."""
    this, other = (
        {row["shape"]: row for row in rows.get(suffix, [])} for suffix in (".csv", ".other.csv")
    )
    ratios = {
        name: float(other[name]["ours_ms"]) / float(this[name]["ours_ms"])
        for name in this
        if name in other and other[name]["ours_ms"] and this[name]["ours_ms"]
    }
    wrong = sum(row["correct"] != "True" for row in (*this.values(), *other.values()))
    if not ratios:
        return Reading(wrong=wrong)
    worst = min(ratios, key=ratios.__getitem__)
    note = f"worst {ratios[worst]:.3f} ({worst})"
    values = list(ratios.values())
    return Reading(geometric_mean(values), len(values), _spread([*this.values()]), wrong, note)
