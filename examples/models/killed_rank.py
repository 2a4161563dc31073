"""``python -m examples.models.killed_rank``: what is left of a job one of whose ranks is killed?

Two ranks under torchrun train a converted network and write into Triton's cache and the tables of
tuning all the while; the second is killed in the middle of that.  The job has to end with
torchrun's ``ChildFailedError`` that names the signal, every file of both has to be whole, and the
next job can write into them.  Ends in lines that begin with PASS or FAIL.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

from benchmarks.harness import add_out_argument, collect_environment, emit, write_rows
from examples.models import networks, options, parallel, training

__all__ = ["Findings", "main"]

_AS_RANK = "--as-rank"
_RANKS = 2

# The ranks rewrite so many files of the cache, and entries of one table.
_FILES = 7
_FILE_NAME = "kernel.json"
_FILLER = 200_000
_TABLE_NAME = "gpu.json"
_GPU = "gpu"
_KIND = "k"
# After so many, and once rank 0 has written too, rank 1 dies: in the middle of a later one.
_WRITES = 40
_DEATH_S = 0.05


class Findings:
    """Verdicts, one line each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    @property
    def good(self) -> bool:
        """Returns whether all of them are good."""
        return all(row["good"] for row in self.rows)

    def tell(self, good: bool, text: str) -> None:
        """Prints one of them."""
        emit(f"{'PASS' if good else 'FAIL'} {text}")
        self.rows.append({"finding": text, "good": good})


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.models.killed_rank", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", choices=networks.MODELS, default="vae")
    parser.add_argument("--size", choices=networks.SIZES, default="full")
    parser.add_argument("--batch", type=int, default=2, help="pictures per rank and step (2)")
    parser.add_argument("--parallel", choices=parallel.KINDS, default="ddp")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="(300)")
    add_out_argument(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the job and looks at what it leaves; returns 1 where that is not as it should be."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [_AS_RANK]:
        threading.Thread(target=_write, daemon=True).start()
        return training.main(argv[1:])
    arguments = parse(argv)
    problem = options.run_problem(arguments.out) or parallel.ranks_problem(_RANKS)
    if problem:
        emit(problem)
        return 2
    findings = Findings()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _run(arguments, pathlib.Path(folder), findings)
    except KeyboardInterrupt:
        emit("interrupted")
        return 130
    if arguments.out is not None:
        write_rows(arguments.out, collect_environment(), findings.rows)
    return 0 if findings.good else 1


def _run(arguments: argparse.Namespace, folder: pathlib.Path, findings: Findings) -> None:
    cache, tables = folder / "cache", folder / "tables"
    variables = {"TRITON_CACHE_DIR": str(cache), "TRITON_EXT_TUNING_DIR": str(tables)}
    launch, environment = parallel.torchrun(_RANKS)
    command = [
        *(*launch, "-m", "examples.models.killed_rank", _AS_RANK, "--model", arguments.model),
        *("--size", arguments.size, "--batch", str(arguments.batch), "--mode", "ours"),
        *("--parallel", arguments.parallel, "--steps", "100000", "--rounds", "1"),
    ]
    with subprocess.Popen(
        command,
        env={**environment, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=arguments.time_limit)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            _, errors = process.communicate()
            findings.tell(False, f"the job ends: not within {arguments.time_limit:.0f} s")
            return
    named = "ChildFailedError" in errors and "Signal 9 (SIGKILL)" in errors
    findings.tell(
        process.returncode != 0 and named,
        f"the job ends: exit status {process.returncode}, "
        + ("ChildFailedError names SIGKILL" if named else f"its last words: {errors[-500:]}"),
    )
    findings.tell(*_cache(cache))
    findings.tell(*_tables(tables))


def _write() -> None:
    """Writes as fast as it can; on rank 1 until it is killed."""
    from triton.runtime.cache import get_cache_manager
    from triton_ext.ops.core.tables import Entry, Table
    from triton_ext.ops.tuning.store import update_table

    rank = int(os.environ["RANK"])
    table = pathlib.Path(os.environ["TRITON_EXT_TUNING_DIR"]) / _TABLE_NAME
    is_dying = False
    for number in itertools.count():
        text = json.dumps({"rank": rank, "number": number, "filler": "x" * _FILLER})
        get_cache_manager(f"{number % _FILES:064x}").put(text, _FILE_NAME, binary=False)
        entry = Entry(kind=_KIND, config={"n": number}, us=1.0, measured=f"{number:09}")
        update_table(table, Table(_GPU, {f"rank{rank}": entry.raw()}))
        if rank == 1 and number >= _WRITES and not is_dying and "rank0" in table.read_text():
            # While this thread goes on.
            is_dying = True
            threading.Timer(_DEATH_S, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _cache(folder: pathlib.Path) -> tuple[bool, str]:
    files = [path for path in folder.rglob("*.json") if "tmp." not in str(path)]
    broken = [path.name for path in files if not _is_whole(path)]
    mine = sum(path.name == _FILE_NAME for path in files)
    good = mine == _FILES and not broken
    told = ", ".join(broken) or "none"
    return (
        good,
        f"Triton's cache: {len(files)} files, {mine} written all the while, {told} broken",
    )


def _is_whole(path: pathlib.Path) -> bool:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return path.name != _FILE_NAME or len(value["filler"]) == _FILLER


def _tables(folder: pathlib.Path) -> tuple[bool, str]:
    from triton_ext.ops.core.tables import Entry, Table, TableError, read_table
    from triton_ext.ops.tuning.store import update_table

    path = folder / _TABLE_NAME
    try:
        found = read_table(path, _GPU)
        ranks = sorted(found.entries) if found is not None else []
        kinds = (
            {Entry.of(raw).kind for raw in found.entries.values()} if found is not None else set()
        )
        # The next job goes on from there: the dead rank's lock is gone.
        more = Entry(kind=_KIND, config={}, us=1.0, measured="1").raw()
        update_table(path, Table(_GPU, {"next": more}))
        again = read_table(path, _GPU)
    except TableError as error:
        return False, f"the table of tuning: {error}"
    goes_on = again is not None and "next" in again.entries
    good = ranks == ["rank0", "rank1"] and kinds == {_KIND} and goes_on
    return good, f"the table of tuning: entries of {', '.join(ranks)}, the next job's is written"


if __name__ == "__main__":
    sys.exit(main())
