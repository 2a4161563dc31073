"""Ends processes at random moments, and lets two users write one table; says what is left.

    python tools/abuse.py kills triton-opt --times 100    # needs Triton
    python tools/abuse.py kills tune --times 100          # and torch
    python tools/abuse.py kills compile --times 100
    python tools/abuse.py writers --writers 20            # as root, who can be two users

Each run has folders of its own for temporary files, caches and tables.  A kill ends the process
that a user started, or the compile worker, and nothing else; a minute later no process of the run
may be there, no temporary folder, and every table and output must be whole.  The exit status is 1
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bound_processes import completed, ending_with_this
from triton_ext.host.child import end_with

_TOKEN = "TRITON_EXT_ABUSE"
_GPU = "NVIDIA H200"
_MOST_PROBLEMS = 20
_KEYS = 400
_ENTRY = {"kind": "gemm", "config": {}, "us": 1.0, "measured": "2026-11-20T22:15:00Z"}
_WAIT_SECONDS = 60.0
#: Seconds in which a run that nobody ends, an ended process, and all writers have to be done.
_LIMIT_SECONDS = 600.0
#: User and group of the two kinds of writers, who share the second group.
_USERS, _GROUP = (54321, 54322), 54323

#: The output of triton-opt before a run.
_OLD = "// old\n"
_MODULE = "module {\n" + "".join(
    f"  tt.func public @f{n}(%x: i32, %y: i32) -> i32 {{\n"
    + "    %a = arith.addi %x, %y : i32\n    %b = arith.muli %a, %a : i32\n"
    + "    tt.return %b : i32\n  }\n"
    for n in range(400)
)
_COMPILE = """
import torch
from triton_ext.ops import tuning
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import KNOWN
from triton_ext.ops.tuning import parse_shape

device = KNOWN["h200"]
problem = parse_shape("2x64x14x14_64_k3x3")
case = Case(direction="fprop", problem=problem, dtype=torch.float16)
configs = tuning.candidates(problem, "fprop", torch.float16, device, count=2)
with tuning.CompilePool(1) as pool:
    pool.start()
    futures = [pool.submit(case, config, device) for config in configs]
    print([future.result() for future in futures])
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders of a run.

    Attributes:
        root: Holds all of them.
        environment: Of the processes.
    """

    root: pathlib.Path
    environment: dict[str, str]

    @property
    def temporary(self) -> pathlib.Path:
        """Where temporary files go."""
        return self.root / "tmp"

    @property
    def table(self) -> pathlib.Path:
        """The table that is written."""
        return self.root / "tables" / "table.json"

    @property
    def output(self) -> pathlib.Path:
        """The file that triton-opt writes; its folder has no other."""
        return self.root / "out" / "out.mlir"


@contextlib.contextmanager
def _place() -> Iterator[_Place]:
    with tempfile.TemporaryDirectory(prefix="triton-ext-abuse-") as folder:
        root = pathlib.Path(folder)
        variables = {
            "TMPDIR": "tmp",
            "HOME": "home",
            "XDG_CACHE_HOME": "cache",
            "TRITON_CACHE_DIR": "kernels",
            "TRITON_EXT_TUNING_DIR": "tables",
        }
        for name in variables.values():
            (root / name).mkdir()
        environment = {**os.environ, **{k: str(root / v) for k, v in variables.items()}}
        environment |= {_TOKEN: folder, "PYTHONWARNINGS": "ignore"}
        yield _Place(root, environment)


def _write(path: pathlib.Path, entries: int, first: int = 0) -> None:
    from triton_ext.ops.core.tables import Table
    from triton_ext.ops.tuning.store import write_table

    table = Table(_GPU, {f"key {n}": dict(_ENTRY) for n in range(first, first + entries)})
    write_table(path, table)


def _command(what: str, place: _Place, number: int) -> list[str]:
    if what == "triton-opt":
        module = place.root / "in.mlir"
        module.write_text(f"{_MODULE}}}\n")
        place.output.parent.mkdir(exist_ok=True)
        place.output.write_text(_OLD)
        tool = [sys.executable, "-m", "triton_ext.tools.opt", "--host=always"]
        return [*tool, "-canonicalize", "-cse", str(module), "-o", str(place.output)]
    if what == "tune":
        source = place.root / f"source-{number}.json"
        _write(source, 1, first=_KEYS + number)
        tool = [sys.executable, "-m", "triton_ext", "tune"]
        return [*tool, "--merge", str(source), "--out", str(place.table)]
    return [sys.executable, "-c", _COMPILE]


def _processes(place: _Place) -> list[int]:
    """The processes that were started for a run, and are more than entries for their parent."""
    wanted = f"{_TOKEN}={place.environment[_TOKEN]}".encode()
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _kills(arguments: argparse.Namespace) -> list[str]:
    """Starts and ends a tool many times; returns what is wrong afterwards."""
    rng = random.Random(arguments.seed)
    with _place() as place:
        _write(place.table, _KEYS)
        _finish(place, _command(arguments.what, place, 0))  # fills the caches
        start = time.monotonic()
        _finish(place, _command(arguments.what, place, 0))
        whole = time.monotonic() - start
        texts = (_OLD, place.output.read_text()) if place.output.exists() else ()
        _say(f"{arguments.what}: {whole:.1f} s from start to end, seed {arguments.seed}")
        finished, problems = [0], list[str]()
        number = kills = 0
        while kills < arguments.times and len(problems) < _MOST_PROBLEMS:
            number += 1
            command = _command(arguments.what, place, number)
            end = _run_and_kill(place, command, rng, whole, arguments.what == "compile")
            said = [end.problem, _torn_output(place, texts)]
            problems += [f"run {number} {problem}" for problem in said if problem]
            if end.was_killed:
                kills += 1
                if kills % 20 == 0:
                    _say(f"{kills} killed, {len(finished) - 1} finished before")
            elif not end.problem:
                finished.append(number)
        problems += _left(place)
        _finish(place, _command(arguments.what, place, 0))
        problems += _files_left(place, arguments.what)
        if arguments.what == "tune":
            problems += _check_table(place.table, [f"key {_KEYS + n}" for n in finished])
    return problems


def _torn_output(place: _Place, texts: Sequence[str]) -> str:
    """The problem with the file of triton-opt, which has to have one of these texts, if any."""
    if not texts:
        return ""
    try:
        found = place.output.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return f"left an output that cannot be read: {error}"
    return "" if found in texts else f"left {len(found)} characters of output: {found[:60]!r}"


def _finish(place: _Place, command: list[str]) -> None:
    done = completed(command, _LIMIT_SECONDS, env=place.environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:6])} failed:\n{done.stdout}{done.stderr}")


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended.

    Attributes:
        was_killed: Whether a signal of this program ended it, or its worker.
        problem: What is wrong about its end; empty if nothing is.
    """

    was_killed: bool
    problem: str = ""


def _run_and_kill(
    place: _Place, command: list[str], rng: random.Random, whole: float, workers: bool
) -> _End:
    """Starts a command and ends it, or its worker, at a random time."""
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(
            ending_with_this(command),
            env=place.environment,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            start_new_session=True,
        ) as process,
    ):
        worker_killed = False
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 1.1 * whole))
        if process.returncode is None and workers and rng.random() < 0.5:
            worker_killed = _kill_a_child(place, process.pid, rng)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * rng.random() * whole)
        # Sends nothing to a process that has ended: its number may be another's.
        process.send_signal(number)
        try:
            process.wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return _End(True, f"went on for {_LIMIT_SECONDS:g} s after {number.name}")
        status = process.returncode
        if status == -number or (worker_killed and status != 0):
            return _End(True)
        if status == 0:
            return _End(worker_killed)
        printed.seek(0)
        said = printed.read()[-500:].decode(errors="replace").strip()
        return _End(False, f"ended with status {status}, and nothing had ended it: {said}")


def _kill_a_child(place: _Place, parent: int, rng: random.Random) -> bool:
    """Kills a child of a process; returns whether there was one."""
    children = [each for each in _processes(place) if _parent_of(each) == parent]
    if not children:
        return False
    child = rng.choice(children)
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(child)
        try:
            # Now the number is that of no other process.
            if _parent_of(child) == parent:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def _parent_of(process: int) -> int:
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[1])


def _left(place: _Place) -> list[str]:
    """The processes that are there a minute later."""
    end = time.monotonic() + _WAIT_SECONDS
    while _processes(place) and time.monotonic() < end:
        time.sleep(0.5)
    left = []
    for each in _processes(place):
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ")
            left.append(f"process {each} is left: {words[:120].decode(errors='replace')}")
    return left


def _files_left(place: _Place, what: str) -> list[str]:
    """Temporary folders and files of ours, after one more run that was not ended."""
    problems = []
    for path in sorted(place.temporary.iterdir()):
        # ptxas is given files by Triton, which a kill leaves; they are not ours.
        is_tritons = what == "compile" and path.is_file() and path.name.startswith("tmp")
        # The cache of torch's compiler.
        is_torchs = path.name.startswith("torchinductor_")
        if not is_tritons and not is_torchs:
            problems.append(f"{path.name} is left in the temporary folder")
    for path in sorted(place.output.parent.glob("*")):
        if path != place.output:
            problems.append(f"{path.name} is left beside the output")
    for name in ("cache", "tables"):
        for path in (place.root / name).rglob("*"):
            if ".tmp" in path.name or ".aside-" in path.name or path.name.endswith(".lock"):
                problems.append(f"{path.name} is left beside {name}")
    return problems


def _check_table(path: pathlib.Path, wanted: list[str]) -> list[str]:
    from triton_ext.ops.core.tables import read_table

    table = read_table(path, _GPU)
    if table is None:
        return ["the table is gone"]
    keys = [f"key {n}" for n in range(_KEYS)] + wanted
    missing = [key for key in keys if key not in table.entries]
    return [f"{len(missing)} entries are lost: {missing[:5]}"] if missing else []


def _forked(run: Callable[[], None]) -> int:
    """Starts a process that does something and ends; returns its number."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        end_with(parent)
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _ends(processes: Sequence[int]) -> list[int]:
    """Waits for processes of :func:`_forked`, kills them when time is over; returns statuses."""
    end = time.monotonic() + _LIMIT_SECONDS
    statuses = []
    for process in processes:
        found, status = os.waitpid(process, os.WNOHANG)
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            found, status = os.waitpid(process, os.WNOHANG)
        if not found:
            os.kill(process, signal.SIGKILL)  # It is ours, and nobody else waits for it.
            _, status = os.waitpid(process, 0)
        statuses.append(os.waitstatus_to_exitcode(status))
    return statuses


def _update_often(path: pathlib.Path, number: int, updates: int) -> None:
    """Becomes one of the users and adds entries to a table."""
    from triton_ext.ops.core.tables import Table
    from triton_ext.ops.tuning.store import update_table

    parent = os.getppid()
    os.setgroups([_GROUP])
    os.setgid(_USERS[number % 2])
    os.setuid(_USERS[number % 2])
    end_with(parent)  # Another user loses the death signal (prctl(2)).
    os.umask(0o002)
    for update in range(updates):
        update_table(path, Table(_GPU, {f"{number} {update}": dict(_ENTRY)}))


def _writers(arguments: argparse.Namespace) -> list[str]:
    """Has writers of two users of one group update a table at once."""
    import triton_ext.ops.tuning.store  # Before users who may not read it.
    from triton_ext.ops.core.tables import read_table

    del triton_ext
    if os.geteuid() != 0:
        raise SystemExit("only root can be two users")
    with _place() as place:
        os.chmod(place.root, 0o755)
        folder = place.table.parent
        os.chown(folder, 0, _GROUP)
        os.chmod(folder, 0o2775)
        start = time.monotonic()
        writers = [
            _forked(functools.partial(_update_often, place.table, number, arguments.updates))
            for number in range(arguments.writers)
        ]
        problems = [f"a writer ended with {status}" for status in _ends(writers) if status]
        seconds = time.monotonic() - start
        table = read_table(place.table, _GPU)
        found = len(table.entries) if table is not None else 0
        total = arguments.writers * arguments.updates
        mode = stat.filemode(place.table.stat().st_mode) if table is not None else "none"
        _say(f"{found} of {total} updates are there after {seconds:.1f} s; the table is {mode}")
        if found != total:
            problems.append(f"{total - found} updates are lost")
        left = sorted(path.name for path in folder.iterdir() if path != place.table)
        if left:
            problems.append(f"{', '.join(left)} are left")
    return problems


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("kills")
    command.add_argument("what", choices=("triton-opt", "tune", "compile"))
    command.add_argument("--times", type=int, default=100)
    command.add_argument("--seed", type=int, default=int(time.time()))
    command.set_defaults(run=_kills)
    command = commands.add_parser("writers")
    command.add_argument("--writers", type=int, default=20)
    command.add_argument("--updates", type=int, default=50, help="of each writer")
    command.set_defaults(run=_writers)
    arguments = parser.parse_args()
    problems: list[str] = arguments.run(arguments)
    for problem in problems:
        _say(f"problem: {problem}")
    _say(json.dumps({"problems": len(problems)}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
