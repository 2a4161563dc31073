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

    Args:
        path: The file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.done = {
            (row["layer"], row["direction"], row["dtype"])
            for row in read_rows(path)
            if "layer" in row
        }

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


def table_of(layers: Sequence[Layer]) -> Any:
    """Returns the table of the fastest configurations of layers.

    The configuration that loses least counts for all layers with one key, where it ran.

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
        if any(result["us"] for result in layer.row["results"]):
            by_key[layer.case.key(layer.device.num_sms)].append(layer)
    table = Table(gpus.pop())
    for key, found in by_key.items():
        last = found[-1]
        timed = {_name(r): r for r in last.row["results"] if r["us"]}
        best = min(timed, key=lambda name: _loss(name, found))
        model = next((r["us"] for r in timed.values() if "model" in r["roles"]), 0.0)
        date = last.environment["date"].removesuffix(" UTC")
        made = datetime.datetime.strptime(date, "%Y-%m-%d %H:%M")
        table.entries[key] = Entry(
            kind=timed[best]["kind"], config=timed[best]["config"],
            us=round(timed[best]["us"], 2), model_us=round(model, 2),
            torch_us=round(last.row["cudnn_us"], 2) if last.row["dtype"] != FP8 else 0.0,
            measured=made.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
            triton=last.environment["triton"],
        ).raw()  # fmt: skip
    return table


def _name(result: dict[str, Any]) -> str:
    return json.dumps([result["kind"], result["config"]], sort_keys=True)


def _loss(name: str, layers: Sequence[Layer]) -> float:
    """Returns the mean of the logarithms of a configuration's losses, where it ran."""
    losses = []
    for layer in layers:
        times = {_name(r): r["us"] for r in layer.row["results"] if r["us"]}
        if name in times:
            losses.append(math.log(times[name] / min(times.values())))
    return statistics.fmean(losses)


def run_table(files: Sequence[pathlib.Path], out: pathlib.Path | None) -> int:
    """Adds the choices of rows to a table; returns 2 where they make none.

    Args:
        files: What ``zoo sweep`` wrote.
        out: The table; by default that which the package ships for the GPU of the rows.
    """
    from triton_ext.ops.core.tables import shipped_path
    from triton_ext.ops.tuning.store import update_table

    try:
        table = table_of(read_layers(files))
        path = out or shipped_path(table.gpu)
        table = update_table(path, table)
    except (OSError, ValueError) as error:
        complain(f"no table: {error}")
        return 2
    emit(f"{path}: {len(table.entries)} choices for {table.gpu}")
    return 0
