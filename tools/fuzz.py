"""Attacks the package with mutated input: IR, command lines, tables, descriptors, C calls.

    python tools/fuzz.py --minutes 10                    # the package that is installed here
    python3 tools/fuzz.py --minutes 10 --only ir         # a checkout; needs Python alone
    python tools/fuzz.py --modules 1000000 --seeds CHECKOUT_OF_TRITON --out summary.json
    python tools/fuzz.py --seed 7 --show 4711            # prints module 4711 of that run
    python tools/fuzz.py --seed 7 --only tables --show 8 # the same of another door

Seeds are the lit files under ``test``, the data of ``unittest``, the corpus that
``TRITON_EXT_CORPUS`` names, and the folders of ``--seeds``.  Module number n of a run with one
seed and the same seed files is always the same, and so is input n of each other door.  Findings
are reduced and written as cases (``--cases``), which ``unittest/fuzz`` runs again.  The exit status
is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import platform
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

ROOT = pathlib.Path(__file__).resolve().parent.parent

if TYPE_CHECKING:
    from fuzz_ir import Finding, Mutator

#: Bytes that a worker may allocate.
_MEMORY = 8 << 30
#: Wall-clock seconds after which a worker that makes no progress is ended.  Loops in Python end
#: before, by CPU time.
_STUCK_SECONDS = 90.0
_REPORT_SECONDS = 1.0
#: Wall-clock seconds that the reduction of a finding may take.
_KEEPING_SECONDS = 300.0
#: Fractions of modules that are edited, that go through a pass, and whose pass gets options.
_EDITED, _PASSED, _OPTIONS = 0.25, 0.25, 0.3
#: Modules for each input of another door, where both are wanted.
_OTHERS_EVERY = 200
DOORS = ("ir", "command-lines", "tables", "descriptors", "c")
#: Step of a finding that ended its process: nothing runs such an input again.
ENDED = "unknown"


def make_importable() -> None:
    """Makes the package of this checkout importable where none is installed."""
    if importlib.util.find_spec("triton_ext") is None:
        sys.path.insert(0, str(ROOT / "python"))
    from triton_ext import backends

    third_party = ROOT / "third_party"
    if not backends.folders("nvidia") and third_party.is_dir():
        backends.__path__.append(str(third_party))


@dataclass(slots=True)
class Totals:
    """Statistics of a run.

    Attributes:
        modules: Number of modules, by origin of the seed.
        others: Number of other inputs, by door.
        findings: By signature; number and the shortest input of each.
        times: Number of occurrences of each.
        slowest: CPU seconds and number of the slowest module.
    """

    modules: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, Finding]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)

    def add(self, number: int, finding: Finding) -> None:
        """Keeps a finding."""
        signature = finding.signature
        self.times[signature] += 1
        known = self.findings.get(signature)
        if known is None or len(finding.text) < len(known[1].text):
            self.findings[signature] = (number, finding)


class _Worker:
    """A process that examines every ``jobs``-th input.

    Args:
        index: Its number, less than ``jobs``.
        first: The first input.
        plan: What to do.

    Attributes:
        now: Number of the input, when it was begun in milliseconds, index of its door.
        problem: Why it was ended; empty if it was not.
    """

    def __init__(self, index: int, first: int, plan: _Plan) -> None:
        context = multiprocessing.get_context("fork")
        self.index = index
        self.plan = plan
        self.problem = ""
        self.now = context.Array("q", [first, _milliseconds(), 0], lock=False)
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_work, args=(os.getpid(), first, plan, self.now, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def is_stuck(self) -> bool:
        """Returns whether it has been with one input for too long."""
        return bool(_milliseconds() - self.now[1] > 1000 * _STUCK_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Plan of all workers of a run.

    Attributes:
        mutator: Creates the modules.
        seed: Seed of the inputs of other doors.
        doors: The doors.
        jobs: Number of workers.
        end: Stop time, by ``time.monotonic``.
        modules: Number of modules, or of inputs of each other door without ``ir``; 0 for no limit.
    """

    mutator: Mutator
    seed: int
    doors: tuple[str, ...]
    jobs: int
    end: float
    modules: int

    def tries_others(self, number: int) -> bool:
        """Returns whether doors other than ``ir`` get an input of that number."""
        return "ir" not in self.doors or number // self.jobs % _OTHERS_EVERY == _OTHERS_EVERY // 2


def _milliseconds() -> int:
    return int(time.monotonic() * 1000)


def _work(
    parent: int, first: int, plan: _Plan, now: Any, pipe: multiprocessing.connection.Connection
) -> None:
    """Examines inputs until the end; runs in a process of its own, which ends with its parent."""
    _limit_process(parent)
    totals, told = Totals(), time.monotonic()
    number = first
    while not plan.modules or number < plan.modules:
        for index, door in enumerate(plan.doors):
            if door != "ir" and not plan.tries_others(number):
                continue
            now[0], now[1], now[2] = number, _milliseconds(), index
            begin = time.process_time()
            if door == "ir":
                origin, finding = examine_module(plan.mutator, number)
                totals.modules[origin] += 1
                totals.slowest = max(totals.slowest, (time.process_time() - begin, number))
            else:
                finding = examine_other(door, plan.seed, number)
                totals.others[door] += 1
            if finding is not None:
                totals.add(number, finding)
        number += plan.jobs
        if time.monotonic() - told > _REPORT_SECONDS:
            pipe.send(totals)  # Ends the process if nobody reads any more.
            totals, told = Totals(), time.monotonic()
            if told > plan.end:
                break
    pipe.send(totals)
    pipe.close()


def examine_module(mutator: Mutator, number: int) -> tuple[str, Finding | None]:
    """Examines one module of a run.

    Args:
        mutator: Makes it.
        number: Its number.

    Returns:
        The origin of its seed, and the finding.
    """
    from fuzz_ir import examine, examine_llvm, pass_names

    seed, text, rng = mutator.make(number)
    if seed.is_llvm:
        return seed.origin, examine_llvm(text)
    passes = [rng.choice(pass_names())] if rng.random() < _PASSED else []
    edits = 1 if rng.random() < _EDITED else 0
    options = rng.random() < _OPTIONS
    return seed.origin, examine(text, rng, passes=passes, edits=edits, options=options)


def _limit_process(parent: int) -> None:
    """Has this process end with its parent, and limits its memory and its stack."""
    from triton_ext.host.child import end_with

    end_with(parent)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(1000)


def make_other(door: str, seed: int, number: int) -> tuple[str, Any]:
    """Returns an input of another door as text, and the function that runs it.

    Args:
        door: Its name.
        seed: Seed of the run.
        number: Number of the input.
    """
    import fuzz_doors

    rng = Random((seed << 52) + (DOORS.index(door) << 48) + number)
    return fuzz_doors.INPUTS[door](rng)


def examine_other(door: str, seed: int, number: int) -> Finding | None:
    """Examines one input of another door of a run.

    Args:
        door: Its name.
        seed: Seed of the run.
        number: Number of the input.
    """
    from fuzz_ir import guarded

    text, run_input = make_other(door, seed, number)
    return guarded(door, text, run_input)


def run(plan: _Plan) -> Totals:
    """Runs the workers until the time is over or all inputs are made.

    Args:
        plan: What they do.
    """
    totals = Totals()
    if not plan.doors:
        return totals
    workers = {w.pipe: w for w in (_Worker(i, i, plan) for i in range(plan.jobs))}
    told = start = time.monotonic()
    while workers:
        for ready in multiprocessing.connection.wait(list(workers), timeout=1.0):
            assert isinstance(ready, multiprocessing.connection.Connection)
            _take(ready, workers, totals)
        for worker in workers.values():
            if worker.is_stuck and not worker.problem:
                # Its pipe is read to the end, which is where it is replaced.
                worker.problem = "hang"
                worker.process.kill()
        if time.monotonic() - told > 10:
            told = time.monotonic()
            of_ir = "ir" in plan.doors
            count = totals.modules.total() if of_ir else totals.others.total()
            rate, inputs = count / (told - start), "modules" if of_ir else "inputs"
            _say(f"{count:9} {inputs}, {rate:6.0f} a second, {len(totals.findings)} findings")
    return totals


def _take(
    pipe: multiprocessing.connection.Connection, workers: dict[Any, _Worker], totals: Totals
) -> None:
    """Adds what a worker has sent; a worker that ended without a last word has a finding."""
    worker = workers[pipe]
    try:
        part: Totals = pipe.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        # One that was killed may leave half a message.
        worker.process.join(_STUCK_SECONDS)
        worker.process.kill()
        worker.process.join()
        if worker.problem or worker.process.exitcode != 0:
            problem = worker.problem or f"exit status {worker.process.exitcode}"
            _replace(pipe, workers, totals, problem)
        else:
            del workers[pipe]
        pipe.close()
        return
    totals.modules += part.modules
    totals.others += part.others
    for signature, (number, finding) in part.findings.items():
        if signature not in totals.findings:
            _say(f"found in {finding.door} {number}: {signature}")
        totals.add(number, finding)
        totals.times[signature] += part.times[signature] - 1
    totals.slowest = max(totals.slowest, part.slowest)


def _replace(pipe: Any, workers: dict[Any, _Worker], totals: Totals, problem: str) -> None:
    """Notes the input that ended a worker, and lets another one go on behind it."""
    from fuzz_ir import Finding

    worker = workers.pop(pipe)
    plan, number, door = worker.plan, worker.now[0], worker.plan.doors[worker.now[2]]
    is_ir = door == "ir"
    text = plan.mutator.make(number)[1] if is_ir else make_other(door, plan.seed, number)[0]
    found = Finding(
        door=door,
        kind="hang" if problem == "hang" else "exception",
        step=ENDED,
        signature=f"the process ended in {door}: {problem}",
        detail=f"input {number}",
        text=text,
    )
    totals.add(number, found)
    _say(f"found in {door} {number}: {found.signature}")
    again = _Worker(worker.index, number + plan.jobs, plan)
    workers[again.pipe] = again


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _kept(finding: Finding, folder: pathlib.Path) -> pathlib.Path | None:
    """Keeps a finding as a case, as it is where its reduction does not end well.

    The reduction runs the input again, in a process of its own with the limits of a worker.
    """
    import fuzz_cases

    if finding.step != ENDED:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)

        def reduce(parent: int) -> None:
            _limit_process(parent)
            theirs.send(fuzz_cases.keep(finding, folder))

        process = context.Process(target=reduce, args=(os.getpid(),), daemon=True)
        process.start()
        theirs.close()
        try:
            with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
                if ours.poll(_KEEPING_SECONDS):
                    path: pathlib.Path | None = ours.recv()
                    return path
        finally:
            process.kill()
            process.join()
            ours.close()
    return fuzz_cases.keep(finding, folder, reduce=False)


def _summary(
    totals: Totals, arguments: argparse.Namespace, seconds: float, origins: Counter[str]
) -> dict[str, object]:
    count = totals.modules.total()
    kinds = Counter(finding.kind for _, finding in totals.findings.values())
    return {
        "seed": arguments.seed,
        "jobs": arguments.jobs,
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
        "seeds": dict(origins),
        "modules": count,
        "modules_a_second": round(count / seconds, 1),
        "modules_by_origin": dict(totals.modules),
        "other_inputs": dict(totals.others),
        "slowest_module": {"cpu_seconds": round(totals.slowest[0], 3), "number": totals.slowest[1]},
        "foreign_exceptions": kinds["exception"],
        "hangs": kinds["hang"],
        "differing_round_trips": kinds["round trip"],
        "left_invalid": kinds["invalid"],
        "findings": [
            {
                "signature": signature,
                "times": totals.times[signature],
                "number": number,
                "door": finding.door,
                "kind": finding.kind,
                "step": finding.step,
                "detail": finding.detail,
                "text": finding.text,
            }
            for signature, (number, finding) in sorted(totals.findings.items())
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after these (10)")
    parser.add_argument("--modules", type=int, default=0, help="stop after these inputs; 0: do not")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=None, help="of the run; default: the time")
    parser.add_argument(
        "--seeds", type=pathlib.Path, action="append", default=[], help="a folder of more IR"
    )
    parser.add_argument("--only", choices=DOORS, action="append", help="instead of all doors")
    parser.add_argument(
        "--cases",
        type=pathlib.Path,
        default=ROOT / "unittest" / "fuzz" / "cases",
        help="where reduced findings are written",
    )
    parser.add_argument("--out", type=pathlib.Path, help="write a summary as JSON")
    parser.add_argument("--show", type=int, help="print one input of the run, and examine it")
    return parser


def main() -> int:
    """Runs the command line."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.jobs < 1 or arguments.modules < 0 or not 0 < arguments.minutes < 60 * 24:
        parser.error("--jobs is at least 1, --modules at least 0, and --minutes less than a day")
    if arguments.seed is None:
        arguments.seed = int(time.time())
    missing = [str(path) for path in arguments.seeds if not path.exists()]
    if missing:
        parser.error(f"there is no {', '.join(missing)}")
    make_importable()
    from fuzz_ir import Mutator, seeds_in

    folders = [ROOT / "test", ROOT / "unittest", *arguments.seeds]
    corpus = os.environ.get("TRITON_EXT_CORPUS")
    if corpus:
        folders.append(pathlib.Path(corpus))
    seeds = [seed for folder in folders if folder.exists() for seed in seeds_in(folder)]
    if not seeds and "ir" in (arguments.only or DOORS):
        parser.error("there is no IR to start from; name a folder with --seeds")
    mutator = Mutator(seeds, arguments.seed)
    if arguments.show is not None:
        shown = (arguments.only or DOORS)[0]
        if shown == "c":
            parser.error("--show: C calls have no inputs to show; --seed repeats all of them")
        return _show(shown, mutator, arguments.seed, arguments.show)
    return _run(arguments, mutator, Counter(seed.origin for seed in seeds))


def _show(door: str, mutator: Mutator, seed: int, number: int) -> int:
    is_ir = door == "ir"
    text = mutator.make(number)[1] if is_ir else make_other(door, seed, number)[0]
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    if not is_ir:
        import fuzz_doors

        fuzz_doors.prepare([door])
        finding = examine_other(door, seed, number)
    else:
        finding = examine_module(mutator, number)[1]
    sys.stdout.flush()
    sys.stderr.write(f"{finding.signature}\n{finding.detail}\n" if finding else "no finding\n")
    return 0 if finding is None else 1


def _run(arguments: argparse.Namespace, mutator: Mutator, origins: Counter[str]) -> int:
    wanted = [door for door in DOORS if door in (arguments.only or DOORS)]
    doors = [door for door in wanted if door == "ir"]
    if wanted != doors:
        import fuzz_doors

        doors += [d for d in wanted if d in fuzz_doors.INPUTS and fuzz_doors.is_there(d, _say)]
        # Imports, of torch above all, are no time of an input, and none of the run.
        fuzz_doors.prepare(doors)
    _say(f"seed {arguments.seed}, {arguments.jobs} jobs, {origins.total()} texts to start from")
    start = time.monotonic()
    plan = _Plan(
        mutator=mutator,
        seed=arguments.seed,
        doors=tuple(doors),
        jobs=arguments.jobs,
        end=start + 60 * arguments.minutes,
        modules=arguments.modules,
    )
    totals = run(plan)
    seconds = time.monotonic() - start
    if "c" in wanted:
        # For the whole time where nothing else is wanted, else once.
        end = start if doors else plan.end
        for finding in fuzz_doors.c_calls(arguments.seed, totals.others, _say, end):
            totals.add(0, finding)
    for number, finding in totals.findings.values():
        _say(f"\nfinding: {finding.signature} ({totals.times[finding.signature]} times)")
        again = f"--only {finding.door} --show {number}" if finding.door != "c" else "--only c"
        _say(f"  --seed {arguments.seed} {again.replace('llvm', 'ir')}: {finding.step}")
        _say(f"  {finding.detail}")
        path = _kept(finding, arguments.cases)
        if path is not None:
            _say(f"  kept: {path}")
    summary = _summary(totals, arguments, seconds, origins)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    others = ", ".join(f"{count} {door}" for door, count in sorted(totals.others.items()))
    _say(
        f"\n{summary['modules']} modules ({summary['modules_a_second']} a second)"
        f"{', ' + others if others else ''}: {summary['foreign_exceptions']} foreign exceptions, "
        f"{summary['hangs']} hangs, {summary['differing_round_trips']} differing round trips, "
        f"{summary['left_invalid']} modules left invalid"
    )
    return 1 if totals.findings else 0


if __name__ == "__main__":
    sys.exit(main())
