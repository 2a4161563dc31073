"""Makes the table of choices that the package ships out of sweeps and of tuning.

    python -m benchmarks.make_table SWEEP.json [...] [--out python/triton_ext/ops/tables/X.json]

Takes what ``sweep``, ``dgrad_sweep`` and ``wgrad_sweep`` wrote, the CSV files of ``gluon_conv
--sweep``, and tables of ``triton-ext tune`` and ``tune_suites``.
Of every convolution the fastest right configuration goes into the table, of several convolutions
with one key that which loses least to the best on all of them.  What the table has already is
kept unless it is older, or ``--fresh`` is given.  By default, the file is that of the GPU of the
sweeps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import pathlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import complain, emit
from benchmarks.readings import is_invented, load_rows
from benchmarks.suites import select_layers

__all__ = ["main", "measurements_of", "table_of"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One convolution of a sweep.

    Attributes:
        key: As the package's tables have it.
        times: Microseconds by configuration.
        measured: When.
        triton: With which version.
    """

    key: str
    times: dict[Any, float]
    measured: str
    triton: str


def _problem(name: str, entry: dict[str, Any]) -> Any:
    """Returns the problem of a sweep's entry; the forward sweep has its own names."""
    from triton_ext.ops.tuning.collect import parse_shape

    layers = select_layers("all", [name]) if "_k" in name else ()
    if layers:
        return layers[0].problem
    if "_k" in name:
        return parse_shape(name)
    from benchmarks.shapes import select_shapes

    (shape,) = select_shapes([name])
    stride = f"_s{shape.stride}" if shape.stride != 1 else ""
    pad_h, pad_w = shape.padding
    return parse_shape(
        f"{shape.n}x{shape.ci}x{shape.h}x{shape.w}_{shape.co}_k{shape.r}x{shape.s}{stride}"
        f"_p{pad_h}x{pad_w}"
    )


def measurements_of(sweep: dict[str, Any]) -> Iterator[Measurement]:
    """Yields what a sweep holds, or what one file of ``triton-ext tune`` does."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.families.gemm_config import ConvConfig

    from benchmarks.wgrad_sweep import candidate_of

    if "rows" in sweep:
        yield from _of_rows(sweep)
        return
    is_wgrad = "layers" in sweep
    for name, entry in sweep["layers" if is_wgrad else "shapes"].items():
        # The forward sweep's names are sizes; the others' those of the suites.
        direction: Any = "wgrad" if is_wgrad else "dgrad" if "_k" in name else "fprop"
        times = {}
        for result in entry["results"]:
            if result["status"] != "ok" or not result["ms"]:
                continue
            config: Any = result["config"]
            config = candidate_of(result).entry() if is_wgrad else ConvConfig(**config)
            times[config] = result["ms"] * 1e3
        if times:
            problem, dtype = _problem(name, entry), getattr(torch, sweep["dtype"])
            key = Case(direction=direction, problem=problem, dtype=dtype).key(sweep["num_sms"])
            yield Measurement(key, times, _stamp(sweep), sweep["environment"]["triton"])


def _of_rows(sweep: dict[str, Any]) -> Iterator[Measurement]:
    """Yields what a sweep of a Gluon kernel holds."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.tables import decode

    times: dict[str, dict[Any, float]] = defaultdict(dict)
    for row in sweep["rows"]:
        if row["status"] != "ok" or row["us"] in ("", "nan"):
            continue
        # Files from before there was the column are of the default.
        dtype = row.get("dtype") or "float16"
        problem, dtype = _problem(row["shape"], {}), getattr(torch, dtype)
        case = Case(direction=row["kernel"], problem=problem, dtype=dtype)
        key = case.key(int(row["num_sms"]))
        times[key][decode(row["kind"], json.loads(row["config"]))] = float(row["us"])
    for key, found in times.items():
        yield Measurement(key, found, _stamp(sweep), sweep["environment"]["triton"])


def _stamp(sweep: dict[str, Any]) -> str:
    """When a sweep was made, as tables have it."""
    date = sweep["environment"]["date"].removesuffix(" UTC")
    made = datetime.datetime.strptime(date, "%Y-%m-%d %H:%M")
    return made.strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def _document(path: pathlib.Path) -> dict[str, Any]:
    """Returns what a file holds; of a CSV file, the rows and the comments above them.

    Raises:
        ValueError: It is of something else, or a dry run wrote it.
    """
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        lines = (line for line in text.splitlines() if line.startswith("#"))
        comments = [line.lstrip("# ").partition(":") for line in lines]
        environment = {name: value.strip() for name, _, value in comments}
        found: dict[str, Any] = {"environment": environment, "rows": load_rows(path)}
    else:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"{path}: expected a sweep or a table, this is other JSON")
    if is_invented(found):
        raise ValueError(f"{path}: expected measured times, those of a dry run are invented")
    return found


def _best(measurements: Sequence[Measurement]) -> tuple[Any, float]:
    """Returns the configuration that loses least on measurements of one key, and its time."""
    common = set.intersection(*(set(each.times) for each in measurements))
    if not common:
        # Nothing ran on all of them: the last one decides.
        measurements = measurements[-1:]
        common = set(measurements[0].times)

    def loss(config: Any) -> float:
        return sum(math.log(e.times[config] / min(e.times.values())) for e in measurements)

    best = min(common, key=loss)
    return best, measurements[-1].times[best]


def table_of(documents: Sequence[dict[str, Any]]) -> Any:
    """Returns the table of sweeps and of other tables.

    Args:
        documents: Contents of the files.

    Raises:
        ValueError: They are of several GPUs.
    """
    from triton_ext.ops.core.tables import Entry, Table, encode, kind_of, merged

    gpus = {d["gpu"] if "gpu" in d else d["environment"]["device"] for d in documents}
    if len(gpus) != 1:
        raise ValueError(f"expected files of one GPU, got {', '.join(sorted(gpus)) or 'none'}")
    by_key: dict[str, list[Measurement]] = defaultdict(list)
    table = Table(gpus.pop())
    for document in documents:
        if "gpu" in document:
            table.entries = merged(table.entries, document["entries"])
            continue
        for measurement in measurements_of(document):
            by_key[measurement.key].append(measurement)
    for key, measurements in by_key.items():
        config, us = _best(measurements)
        last = measurements[-1]
        entry = Entry(
            kind=kind_of(config),
            config=encode(config),
            us=round(us, 2),
            measured=last.measured,
            triton=last.triton,
        )
        table.entries = merged(table.entries, {key: entry.raw()})
    return table


def main(argv: list[str] | None = None) -> int:
    """Writes the table; returns 2 where the files do not go together, or are not measured."""
    from triton_ext.ops.core.tables import TableError, read_table, shipped_path
    from triton_ext.ops.tuning.store import update_table, write_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_table", description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--out", type=pathlib.Path, help="by default the one that is shipped")
    parser.add_argument("--fresh", action="store_true", help="leave out what the table has so far")
    arguments = parser.parse_args(argv)
    try:
        documents = [_document(path) for path in arguments.files]
        table = table_of(documents)
        path = arguments.out or shipped_path(table.gpu)
        before = read_table(path, table.gpu)
    except (ValueError, KeyError, OSError, TableError) as error:
        complain(f"error: {type(error).__name__}: {error}")
        return 2
    if arguments.fresh or before is None:
        write_table(path, table)
    else:
        table = update_table(path, table)
    emit(f"{path}: {len(table.entries)} choices for {table.gpu}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
