"""The zoo: convolutions of 330 networks, split in two parts; sweeps of samples, and a report.

``collect`` records the convolutions of networks of torchvision, timm, diffusers, MONAI,
transformers and segmentation_models_pytorch over meta tensors into ``layers.jsonl``, on any
machine.  ``sweep`` measures a sample of one part, or layers of a suite, as the planner chooses and
with candidates of all families.  Of its rows ``report`` prints figures, ``fit`` judges and fits the
planner's models, ``table`` makes a table of choices; ``rows/`` has those of the tuning part.  Tune
on the part ``tune`` and report on ``held-out``; a layer never moves.
"""

from __future__ import annotations

import argparse
import pathlib

from benchmarks.harness import complain, out_problem, read_count, read_positive
from benchmarks.operands import DIRECTIONS, DTYPES, FP8
from benchmarks.suites import SUITES
from benchmarks.zoo.layers import PARTS, ZOO

__all__ = ["add_arguments", "run"]

_ROWS = (".jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    whats = parser.add_subparsers(dest="what", required=True)
    collect = whats.add_parser("collect", help="record the layers of all networks")
    collect.add_argument("names", nargs="*", help="networks; all by default")
    collect.add_argument("--out", type=_rows_file, default=ZOO, metavar="FILE")
    collect.add_argument(
        "--partial", action="store_true", help="write the file without networks that fail"
    )
    _add_sweep(whats.add_parser("sweep", help="measure layers on a GPU"))
    of_rows = {
        "report": "print the figures of measured rows",
        "fit": "judge the models of all families by measured rows",
        "table": "put the choices of rows that are worth it into a table",
    }
    report, fit, table = (whats.add_parser(name, help=text) for name, text in of_rows.items())
    for each in (report, fit, table):
        each.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    report.add_argument("--worst", type=read_count, default=25, help="layers to list (25)")
    fit.add_argument("--cross", action="store_true", help="fit to each half, judge by the other")
    fit.add_argument(
        "--costs", action="store_true", help="fit the costs of configurations, not shared numbers"
    )
    table.add_argument("--out", type=pathlib.Path, help="by default the one that is shipped")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    parser.add_argument(
        "--suite", choices=(*SUITES, "all"), help="layers of a suite instead of the zoo's"
    )
    parser.add_argument(
        "--shapes", nargs="+", metavar="SHAPE", help="names in the suite, or indices"
    )
    parser.add_argument("--direction", choices=DIRECTIONS, default="fprop")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16",
        help=f"layers of this type (bfloat16); {FP8} for fprop of suites",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=read_count, default=200, help="layers (200), of a suite evenly spread"
    )
    parser.add_argument("--seed", type=lambda text: read_count(text, 0), default=0)
    parser.add_argument(
        "--candidates", type=lambda text: read_count(text, 0),
        help="configurations beside the planner's choices (6; of the held-out part 0)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=read_count, default=4, help="measurements of each (4); even is fair"
    )
    parser.add_argument("--minutes", type=read_positive, default=8.0, help="to stop after (8)")
    parser.add_argument(
        "--jobs", type=read_count, default=0, help="compiling processes (cores - 1)"
    )
    parser.add_argument(
        "--out", type=_rows_file, required=True, metavar="FILE",
        help="rows, .jsonl; layers that it has are not measured again, but where they failed",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: invented times, nothing is computed"
    )


def _rows_file(text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    if problem := out_problem(path, _ROWS):
        raise argparse.ArgumentTypeError(problem)
    return path


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where something failed, 2 where nothing can be done."""
    what = arguments.what
    if what == "collect":
        from benchmarks.zoo.collect import collect

        return collect(arguments.out, arguments.names, arguments.partial)
    if what == "sweep":
        from benchmarks.zoo.sweep import run_sweep

        if arguments.dtype == FP8 and (arguments.direction != "fprop" or not arguments.suite):
            complain(f"--dtype {FP8} is for --direction fprop and a --suite")
            return 2
        if arguments.candidates is None:
            arguments.candidates = 0 if arguments.part == "held-out" and not arguments.suite else 6
        return run_sweep(arguments)
    missing = [str(path) for path in arguments.files if not path.exists()]
    if missing:
        complain(f"no such file: {', '.join(missing)}")
        return 2
    if what == "fit":
        from benchmarks.zoo.fit import run_fit

        return run_fit(arguments.files, arguments.cross, arguments.costs)
    if what == "table":
        from benchmarks.zoo.rows import run_table

        return run_table(arguments.files, arguments.out)
    from benchmarks.zoo.report import run_report

    return run_report(arguments.files, arguments.worst)
