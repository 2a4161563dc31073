"""The file of rows that ``zoo sweep`` writes, and the table of choices that is made of it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import lzma
import math
import os
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import complain, emit
from benchmarks.operands import FP8, case_of

__all__ = ["Layer", "Rows", "mixes_times", "read_layers", "read_rows", "run_table", "table_of"]


class Rows:
    """The file of rows, to which lines are appended.

    ``done`` are the layer, direction and dtype of rows without an error, ``failed`` of the others.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        rows = [row for row in read_rows(path) if "layer" in row]
        keys = [(row["layer"], row["direction"], row["dtype"]) for row in rows]
        self.done = {key for key, row in zip(keys, rows, strict=True) if not row.get("error")}
        self.failed = {*keys} - self.done

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row and has the system write it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the lines of a file of rows that are whole; nothing where there is no file.

    Lines with an ``environment`` stand before the rows of a run, those with a ``layer`` are rows.
    """
    if not path.exists():
        return []
    found = []
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    for line in lines:
        # The last line of a run that was killed may be a part of one.
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def mixes_times(path: pathlib.Path, dry_run: bool) -> bool:
    """Tells whether rows of a run would put invented times beside measured ones in a file."""
    environments = [row["environment"] for row in read_rows(path) if "environment" in row]
    return any(each.get("dry_run", False) != dry_run for each in environments)


@dataclass(frozen=True, slots=True)
class Layer:
    """A measured layer in a direction: its row and case, the GPU, and where it was measured."""

    row: dict[str, Any]
    case: Any
    device: Any
    environment: dict[str, Any]


def read_layers(paths: Sequence[pathlib.Path]) -> list[Layer]:
    """Returns the layers of files of rows, for the GPU that measured them."""
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.core.problem import ConvProblem

    known = {device.name: device for device in KNOWN.values()}
    device, layers, environment = KNOWN["h200"], {}, {}
    for row in (row for path in paths for row in read_rows(path)):
        if "environment" in row:
            # The table is that of another GPU; its rates are not.
            environment = row["environment"]
            measuring = known.get(environment["device"], device)
            device = dataclasses.replace(measuring, name=row["table"])
        elif row["cudnn_us"]:
            problem = ConvProblem(**{key: _tuples(value) for key, value in row["problem"].items()})
            case = case_of(row["direction"], problem, row["dtype"])
            layers[row["layer"], row["direction"], row["dtype"]] = Layer(
                row, case, device, environment
            )
    return list(layers.values())


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---- Tables ------------------------------------------------------------------------------------

# An entry takes so many times less than the models' choice; torch is as fast within as much.
_GAIN = 1.02
# So many times less time than ours makes torch faster where the models choose ours.
_CLEAR = 1.05


def table_of(layers: Sequence[Layer]) -> tuple[Any, set[str]]:
    """Returns the table of the choices that are worth an entry, and the keys of all layers.

    The configuration that loses least counts for all layers with one key.  It is worth an entry
    where it takes 2 % less time than what the models chose in the sweep, nothing that they chose
    ran, or they misjudged torch: they chose torch where it is not 2 % faster, or ours where torch
    is 5 % faster.

    Raises:
        ValueError: Times are invented, or of several GPUs.
    """
    from triton_ext.ops.core.tables import Entry, Table

    gpus = {layer.environment["device"] for layer in layers}
    if len(gpus) != 1:
        raise ValueError(f"expected rows of one GPU, found {', '.join(sorted(gpus)) or 'none'}")
    if any(layer.environment.get("dry_run") for layer in layers):
        raise ValueError("expected measured times, those of a dry run are invented")
    by_key: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        if _timed(layer):
            by_key[layer.case.key(layer.device.num_sms)].append(layer)
    table = Table(gpus.pop())
    for key, found in by_key.items():
        names = set.intersection(*({*_timed(layer)} for layer in found)) or {*_timed(found[-1])}
        best = min(sorted(names), key=lambda name: _loss(name, found))
        ran = [layer for layer in found if best in _timed(layer)]
        if not any(_is_worth(layer, best) for layer in ran):
            continue
        # The entry has the times of the layer that torch is best at.
        layer = min(ran, key=lambda each: each.row["cudnn_us"] / _timed(each)[best]["us"])
        row, result, model = layer.row, _timed(layer)[best], _models_choice(layer)
        date = layer.environment["date"].removesuffix(" UTC")
        made = datetime.datetime.strptime(date, "%Y-%m-%d %H:%M")
        table.entries[key] = Entry(
            kind=result["kind"], config=result["config"], us=round(result["us"], 2),
            model_us=round(model["us"], 2) if model else 0.0,
            torch_us=round(row["cudnn_us"], 2) if row["dtype"] != FP8 else 0.0,
            measured=made.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            triton=layer.environment["triton"],
        ).raw()  # fmt: skip
    return table, {*by_key}


def _timed(layer: Layer) -> dict[str, dict[str, Any]]:
    """Returns the results that have a time, by the kind and the configuration."""
    results = (result for result in layer.row["results"] if result["us"])
    return {json.dumps([r["kind"], r["config"]], sort_keys=True): r for r in results}


def _models_choice(layer: Layer) -> dict[str, Any] | None:
    return next((r for r in _timed(layer).values() if "model" in r["roles"]), None)


def _is_worth(layer: Layer, name: str) -> bool:
    """Returns whether a configuration is worth an entry; see :func:`table_of`."""
    row, us, model = layer.row, _timed(layer)[name]["us"], _models_choice(layer)
    if model is None or model["us"] > _GAIN * us:
        return True
    expected_us = row["torch"].get("counted_us")
    if expected_us is None or model["counted_us"] is None or row["dtype"] == FP8:
        return False
    if expected_us < model["counted_us"]:
        return bool(us < _GAIN * row["cudnn_us"])
    return bool(us > _CLEAR * row["cudnn_us"])


def _loss(name: str, layers: Sequence[Layer]) -> float:
    """Returns the mean of the logarithms of a configuration's losses, where it ran."""
    losses = []
    for layer in layers:
        timed = _timed(layer)
        if name in timed:
            least = min(result["us"] for result in timed.values())
            losses.append(math.log(timed[name]["us"] / least))
    return statistics.fmean(losses)


def run_table(files: Sequence[pathlib.Path], out: pathlib.Path | None) -> int:
    """Puts the choices of rows into a table, and takes those that are not worth it out.

    Args:
        files: What ``zoo sweep`` wrote.
        out: The table; by default that which the package ships for the GPU of the rows.

    Returns:
        2 where the rows make no table, else 0.
    """
    from triton_ext.ops.core.tables import Table, TableError, read_table, shipped_path
    from triton_ext.ops.tuning.store import update_table, write_table

    try:
        table, keys = table_of(read_layers(files))
        path = out or shipped_path(table.gpu)
        before = read_table(path, table.gpu) or Table(table.gpu)
        rest = {key: raw for key, raw in before.entries.items() if key not in keys}
        write_table(path, Table(table.gpu, rest))
        entries = update_table(path, table).entries
    except (OSError, ValueError, TableError) as error:
        complain(f"no table: {error}")
        return 2
    emit(
        f"{path}: {len(entries)} choices for {table.gpu}; of {len(keys)} that were measured "
        f"{len(table.entries)} are worth an entry"
    )
    old = before.entries
    for what, found in (("added", entries.keys() - old), ("taken out", old.keys() - entries)):
        for key in sorted(found):
            emit(f"  {what}: {key}")
    return 0
