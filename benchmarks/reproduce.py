"""Measurements behind the figures of README and docs, by name, within a time budget.

Every case runs in a process of its own with a Triton cache of its own, checks its results before it
times them, and writes its rows as it goes.  Behind each case, at once, its figures go to stdout and
to ``summary.csv`` in ``--out``, beside the goal: nothing is lost when the time ends.  A case that
crashes, hangs or is wrong is named, what it measured so far is read, and the rest goes on.

    python -m benchmarks reproduce --list
    python -m benchmarks reproduce --only gluon_conv.dgrad conv.fprop --budget 550 --out results
    python -m benchmarks reproduce --budget 550 --out results --resume    # what is not there yet
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import fnmatch
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.harness import ROOT, emit, end_group, has_gpu, read_positive
from benchmarks.readings import Reading, Rows, load_rows
from benchmarks.reproduce_cases import CASES, Case, Figure, Step

__all__ = ["Finding", "Place", "add_arguments", "allowance", "end_on_sigterm", "run", "run_cases",
           "select_cases"]  # fmt: skip

# Part of a case's time limit that is kept for its start and its end.
OVERHEAD_SECONDS = 12.0
# Kept back from the budget, to write.
RESERVE_SECONDS = 3.0
# With less than this, or half of what it takes, a case is not begun.
LEAST_SECONDS = 25.0
# Message of a script whose rows have details.
WRONG = "exit status 1"
FAILED = ("FAIL", "CRASH", "TIMEOUT", "PARTIAL", "SKIPPED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--list", action="store_true", help="print the cases and their goals")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME",
        help="names or patterns such as 'conv.*', also with commas between; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=read_positive, default=550.0, metavar="S", help="seconds in all (550)"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="DIR",
        help="folder of all that is written (reproduced; reproduced.dry of a dry run)",
    )  # fmt: skip
    parser.add_argument(
        "--other-triton", type=pathlib.Path, metavar="DIR",
        help="folder with another release of Triton, as pip install --target makes one",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the summary has a figure of"
    )
    parser.add_argument("--dry-run", action="store_true", help="no GPU: invented times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of the summary; its fields are the columns."""

    case: str  # its name
    figure: str  # what the value is
    value: float = math.nan  # NaN where nothing was measured
    reach: float | None = None  # the goal, or ``None``
    # PASS, FAIL, DONE (there is no goal), PARTIAL (some rows are missing), CRASH, TIMEOUT, SKIPPED
    # or DRY.
    result: str
    rows: int = 0  # how many the value is of
    # (slowest - fastest round) / median, of the median row; NaN if there is none.
    spread: float = math.nan
    seconds: float = 0.0  # of the whole case
    note: str = ""  # what was noticed

    def cells(self) -> dict[str, str]:
        """Returns the texts by column; a number that is not there is empty."""
        formats = {"value": ".3f", "reach": ".2f", "spread": ".1%", "seconds": ".0f"}
        found = {}
        for name, value in asdict(self).items():
            is_missing = value is None or (isinstance(value, float) and math.isnan(value))
            found[name] = "" if is_missing else format(value, formats.get(name, ""))
        return found

    def line(self) -> str:
        """Returns the summary's line on stdout."""
        cells = self.cells()
        goal = f" (reach {cells['reach']})" if cells["reach"] else ""
        spread = f", spread {cells['spread']}" if cells["spread"] else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.result:<8} {self.case}: {self.figure} {cells['value'] or '-'}{goal}; "
            f"{self.rows} rows{spread}, {cells['seconds']} s{note}"
        )


def select_cases(words: Sequence[str] | None, cases: Mapping[str, Case]) -> list[Case]:
    """Returns the cases that names or patterns mean, in the order of the table.

    Raises:
        ValueError: A word means no case; the text says which there are.
    """
    if not words:
        return list(cases.values())
    patterns = [part for word in words for part in word.split(",") if part]
    found: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(cases, pattern)
        if not matched:
            raise ValueError(f"no case {pattern!r}; there are {', '.join(cases)}")
        found.update(matched)
    return [case for name, case in cases.items() if name in found]


def allowance(case: Case, left: float) -> float:
    """Returns the seconds that a case gets of those ``left``, 0 where too few are."""
    given = min(case.seconds, left - RESERVE_SECONDS)
    return given if given >= min(LEAST_SECONDS, case.seconds / 2) else 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes, and what it runs with."""

    folder: pathlib.Path  # of results
    caches: pathlib.Path  # folder of the cases' caches
    other_triton: pathlib.Path | None = None  # folder of another release, or ``None``
    dry_run: bool = False  # whether nothing is measured
    gpus: int | None = None  # that torch sees; ``None`` where nobody asks

    def path_of(self, case: Case, step: Step) -> pathlib.Path:
        """Returns the output path of a step."""
        return self.folder / f"{case.name}{step.suffix}"

    def environment(self, case: Case, step: Step) -> dict[str, str]:
        """The environment of a step: caches and tables that no other case has."""
        caches = self.caches / f"{case.name}{'.other' * step.on_other_triton}"
        environment = {
            **os.environ,
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_EXT_TUNING_DIR": str(caches / "tables"),
        }
        if step.on_other_triton:
            paths = [str(self.other_triton), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment


def end_on_sigterm() -> None:
    """Lets SIGTERM, which ``timeout`` sends, run what is in ``finally``: the end of children."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _run_step(case: Case, step: Step, seconds: float, place: Place) -> str:
    """Runs a command; returns what went wrong, in one word or two, and nothing if all is well."""
    out = place.path_of(case, step).resolve()
    limit = max(1.0, seconds - OVERHEAD_SECONDS)
    told = {"out": out, "limit": f"{limit:.0f}", "minutes": f"{limit / 60:.2f}"}
    words = [word.format(**told) for word in step.command]
    if place.dry_run:
        words += step.dry
    with (place.folder / f"{case.name}.log").open("ab") as log:
        log.write(f"$ {' '.join(words)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=place.environment(case, step),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"TIMEOUT after {seconds:.0f} s"
        finally:
            end_group(process)
    if code < 0:
        return f"CRASH by {signal.Signals(-code).name}"
    return f"exit status {code}" if code else ""


def _finding(
    case: Case, figure: Figure, rows: Mapping[str, Rows], trouble: str, seconds: float
) -> Finding:
    """Reads a figure out of what a case wrote."""
    try:
        reading = figure.read(rows)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        reading = Reading(math.nan, 0, note=f"not read: {type(error).__name__} {error}")
    notes = [note for note in (trouble, reading.note) if note]
    if math.isnan(reading.value):
        result = trouble.partition(" ")[0]
        result = result if result in ("CRASH", "TIMEOUT") else "FAIL"
    else:
        missing = reading.count < figure.expected
        if reading.wrong:
            notes.append(f"{reading.wrong} wrong")
        if missing:
            notes.append(f"{reading.count} of {figure.expected} rows")
        if reading.wrong:
            result = "FAIL"
        elif missing or (trouble and not (case.tells_by_status and trouble == WRONG)):
            # Some rows neither reach a goal nor miss it; --resume runs the case again.
            result = "PARTIAL"
        elif figure.reach is None:
            result = "DONE"
        else:
            result = "PASS" if figure.reaches(reading.value) else "FAIL"
    return Finding(
        case=case.name, figure=figure.name, value=reading.value, reach=figure.reach, result=result,
        rows=reading.count, spread=reading.spread, seconds=seconds, note="; ".join(notes),
    )  # fmt: skip


def run_case(case: Case, seconds: float, place: Place) -> list[Finding]:
    """Runs a case, however it ends; returns a finding for each of its figures."""
    begin = time.monotonic()
    trouble, rows = "", {name: load_rows(place.folder / name) for name in case.sources}
    for step in case.steps:
        path = place.path_of(case, step)
        if path.exists():
            os.replace(path, path.with_name(path.name + ".before"))
    for step in case.steps:
        left = seconds - (time.monotonic() - begin)
        # A case of several commands shares its time among those to come.
        share = left / (len(case.steps) - case.steps.index(step))
        trouble = _run_step(case, step, share, place)
        rows[step.suffix] = load_rows(place.path_of(case, step))
        if trouble:
            break
    took = time.monotonic() - begin
    rows[".seconds"] = [{"seconds": took}]
    return [_finding(case, figure, rows, trouble, took) for figure in case.figures]


class Summary:
    """The file of findings."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._csv = folder / "summary.csv"

    def add(self, finding: Finding) -> None:
        """Writes a finding, at once, and prints it."""
        is_new = not self._csv.exists()
        with self._csv.open("a", encoding="utf-8", newline="") as file:
            cells = finding.cells()
            writer = csv.DictWriter(file, cells, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(cells)
            file.flush()
            os.fsync(file.fileno())
        emit(finding.line())

    def measured(self) -> set[str]:
        """Names of the cases whose latest findings are all figures."""
        if not self._csv.exists():
            return set()
        with self._csv.open(encoding="utf-8", newline="") as file:
            latest = {(row["case"], row["figure"]): row for row in csv.DictReader(file)}
        missing = {
            name
            for (name, _), row in latest.items()
            if row["result"] not in ("PASS", "FAIL", "DONE") or not row["value"]
        }
        return {name for name, _ in latest} - missing


def run_cases(
    cases: Sequence[Case], place: Place, budget: float, resume: bool = False
) -> list[Finding]:
    """Runs cases one after another until the time is used up; returns all findings.

    There are ``budget`` seconds in all.  With ``resume`` cases that the summary has are left out.
    """
    end = time.monotonic() + budget
    place.folder.mkdir(parents=True, exist_ok=True)
    summary = Summary(place.folder)
    known = summary.measured() if resume else set()
    findings: list[Finding] = []
    for case in cases:
        if case.name in known:
            emit(f"known    {case.name}")
            continue
        for finding in _outcome(case, place, end):
            if place.dry_run and not math.isnan(finding.value):
                finding = dataclasses.replace(finding, result="DRY", note="invented")
            findings.append(finding)
            summary.add(finding)
    return findings


def _outcome(case: Case, place: Place, end: float) -> list[Finding]:
    """Runs a case, or says why not."""
    seconds = allowance(case, end - time.monotonic())
    reason = "" if seconds else "the time is used up"
    if place.other_triton is None and any(step.on_other_triton for step in case.steps):
        reason = "needs --other-triton DIR"
    if place.gpus is not None and place.gpus < case.gpus:
        reason = f"needs {case.gpus} GPUs, torch sees {place.gpus}"
    if not reason:
        return run_case(case, seconds, place)
    common = {"case": case.name, "result": "SKIPPED", "note": reason}
    return [Finding(figure=each.name, reach=each.reach, **common) for each in case.figures]


def _print_list(cases: Sequence[Case]) -> None:
    for case in cases:
        needs = f" ({case.gpus} GPUs)" if case.gpus > 1 else ""
        emit(f"{case.name:<26} {case.seconds:>4.0f} s  {case.about}{needs}")
        for figure in case.figures:
            sign = "<=" if figure.less_is_better else ">="
            goal = "" if figure.reach is None else f" {sign} {figure.reach:g}"
            emit(f"{'':<32}{figure.name}{goal}")


def _take_folder(folder: pathlib.Path, is_dry: bool, stack: contextlib.ExitStack) -> None:
    """Makes the folder, and keeps it to this process until the stack is closed.

    Raises:
        OSError: It cannot be made or written.
        ValueError: Another process uses it, or invented times would replace measured ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((folder / ".lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError("another run writes there; wait for it or name another folder") from None
    if is_dry and Summary(folder).measured():
        raise ValueError("has measured times, a dry run invents some; name another folder")


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where something is missing, wrong or behind its goal."""
    try:
        cases = select_cases(arguments.only, CASES)
    except ValueError as error:
        emit(f"--only: {error}")
        return 2
    if arguments.list:
        _print_list(cases)
        return 0
    other = arguments.other_triton
    if other is not None and not (other / "triton" / "__init__.py").exists():
        emit(f"--other-triton {other}: has no triton/__init__.py; pip install --target makes one")
        return 2
    if not arguments.dry_run and not has_gpu():
        return 2
    import torch

    end_on_sigterm()
    folder = arguments.out or pathlib.Path("reproduced.dry" if arguments.dry_run else "reproduced")
    with contextlib.ExitStack() as stack:
        try:
            _take_folder(folder, arguments.dry_run, stack)
        except (OSError, ValueError) as error:
            emit(f"--out {folder}: {getattr(error, 'strerror', error)}")
            return 2
        caches = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="triton-ext-reproduce-", ignore_cleanup_errors=True)
        )
        gpus = None if arguments.dry_run else torch.cuda.device_count()
        place = Place(
            folder, pathlib.Path(caches), other and other.resolve(), arguments.dry_run, gpus
        )
        findings = run_cases(cases, place, arguments.budget, resume=arguments.resume)
    failed = [finding for finding in findings if finding.result in FAILED]
    emit(f"{len(findings)} figures, {len(failed)} not reached; {folder}/summary.csv")
    return int(bool(failed))
