"""Random convolutions under NVIDIA's memory checker: ``compute-sanitizer --tool memcheck``.

Geometries are shared out among processes that run side by side: once without the checker, which
fills Triton's cache, then under it.  A geometry runs the kernel that is chosen and the best
configuration of every other kernel that takes it, in memory that torch's allocator does not keep,
so that what lies behind a tensor belongs to nobody.  Nothing is timed.  ``--tool`` takes the
checker's other tools too.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.harness import Deadline, emit, read_count, read_positive, run_at_once
from benchmarks.operands import DIRECTIONS, case_of
from benchmarks.reproduce import end_on_sigterm

__all__ = ["add_arguments", "draw_problems", "find_checker", "run", "shares_of"]

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
# The checker makes kernels tens of times slower.
MOST_FLOPS = 2e8
SEED = 2026
DTYPES = ("float16", "bfloat16")
# Exit status of the checker if it found errors.
ERROR_STATUS = 77


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--direction", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--cases", type=read_count, default=20, help="per direction (20)")
    parser.add_argument("--processes", type=read_count, default=9, help="under the checker (9)")
    parser.add_argument("--tool", choices=TOOLS, default="memcheck")
    parser.add_argument(
        "--checker", metavar="PATH", help=f"{NAME}, or its folder; by default that on the PATH"
    )
    parser.add_argument(
        "--time-limit", type=read_positive, default=560.0, metavar="S", help="seconds in all (560)"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("memcheck"), metavar="DIR",
        help="folder of the checker's logs (memcheck)",
    )  # fmt: skip
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    # Which of how many shares of a direction's geometries the process runs.
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)


def find_checker(path: str | None) -> str:
    """Returns the program, which is ``path``, in the folder ``path``, or by default on the PATH.

    Raises:
        ValueError: There is none; the text says where was looked.
    """
    if path is None:
        if (found := shutil.which(NAME)) is None:
            raise ValueError(
                f"{NAME} is not on the PATH; it comes with the CUDA toolkit (bin/{NAME}): "
                "give its place with --checker PATH"
            )
        return found
    given = pathlib.Path(path)
    program = given / NAME if given.is_dir() else given
    if not program.is_file() or not os.access(program, os.X_OK):
        raise ValueError(f"--checker {path}: {program} is no program")
    return str(program.resolve())


def draw_problems(direction: Any, count: int) -> list[tuple[Any, str]]:
    """Returns geometries that kernels of a direction take, with a dtype each; always the same."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import refusals
    from triton_ext.ops.core.problem import ConvProblem

    rng = random.Random(f"{SEED} {direction}")
    found: list[tuple[Any, str]] = []
    while len(found) < count:
        dims = rng.randint(1, 3)
        groups = rng.choice((1, 1, 1, 1, 2, 8))
        size = tuple(rng.randint(1, {1: 300, 2: 40, 3: 12}[dims]) for _ in range(dims))
        problem = ConvProblem(
            batch=rng.randint(1, 5),
            in_channels=groups * rng.choice((3, 8, 12, 24, 64, 72, 136)),
            out_channels=groups * rng.choice((4, 8, 32, 64, 72, 200)),
            input_size=size,
            filter_size=tuple(rng.randint(1, 5) for _ in range(dims)),
            stride=tuple(rng.randint(1, 3) for _ in range(dims)),
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=tuple(rng.randint(1, 3) for _ in range(dims)),
            groups=groups,
        )
        if min(problem.output_size) < 1 or problem.flops > MOST_FLOPS:
            continue
        dtype = DTYPES[len(found) % len(DTYPES)]
        case = Case(direction=direction, problem=problem, dtype=getattr(torch, dtype))
        if not refusals(case):
            found.append((problem, dtype))
    return found


def kinds(case: Any, machine: Any) -> list[Any]:
    """Returns ``None``, for what is chosen, then the best configuration of every kernel."""
    from triton_ext.ops.tuning.runs import candidates

    ranked = candidates(case.problem, case.direction, case.dtype, machine, count=1000)
    return [None, *{type(config): config for config in reversed(ranked)}.values()]


def _inside(arguments: argparse.Namespace) -> int:
    """Runs the geometries of one direction."""
    import torch
    from triton_ext.ops.core.device import device_of
    from triton_ext.ops.core.planner import make_plan
    from triton_ext.ops.tuning.measure import make_tensors

    device = torch.device("cuda", torch.cuda.current_device())
    machine = device_of(device, "memcheck")
    (direction,) = arguments.direction
    index, count = arguments.share
    for problem, dtype in draw_problems(direction, arguments.cases)[index::count]:
        case = case_of(direction, problem, dtype)
        tensors = make_tensors(case, device)
        configs = kinds(case, machine)
        for config in configs:
            result = make_plan(case, device, config).run(*tensors)
            torch.cuda.synchronize()
            if not bool(torch.isfinite(result).all()):
                emit(f"{case} {config}: a result that is not finite")
                return 1
        emit(f"ran {case}: {len(configs)} configurations")
    return 0


class Share(NamedTuple):
    """Geometries of a direction that one process runs."""

    direction: str
    index: int
    count: int  # shares of the direction
    cases: int  # geometries of the direction, in all shares

    def command(self, checker: str = "", tool: str = "", log: str = "") -> list[str]:
        """Returns the command, under the checker or without."""
        # Triton's loader tries an attribute of shared memory that Hopper's driver refuses, and goes
        # on without it (its driver.c): one error per kernel, and none of memory.
        under = [checker, "--tool", tool, "--error-exitcode", str(ERROR_STATUS)]
        under += ["--report-api-errors", "no", "--log-file", log]
        return [
            *(under if checker else ()),
            *(sys.executable, "-m", "benchmarks", "memcheck", "--inside"),
            *("--direction", self.direction, "--cases", str(self.cases)),
            *("--share", str(self.index), str(self.count)),
        ]


def shares_of(directions: Sequence[str], cases: int, processes: int) -> list[Share]:
    """Returns about as many shares as processes, as many of each direction."""
    count = max(1, min(cases, processes // len(directions)))
    return [Share(each, index, count, cases) for each in directions for index in range(count)]


def _environment() -> dict[str, str]:
    # Every tensor is a block of its own of the driver's.
    return {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_EXT_TUNING": "0"}


def _fill_cache(directions: Sequence[str], cases: int, deadline: Deadline) -> float:
    """Runs everything without the checker, to compile it; returns the seconds that it took."""
    begin = time.perf_counter()
    shares = shares_of(directions, cases, max(1, (os.cpu_count() or 1) - 1))
    commands = (share.command() for share in shares)
    run_at_once(commands, max(1.0, deadline.left() / 2), _environment())
    return time.perf_counter() - begin


def check(checker: str, arguments: argparse.Namespace, deadline: Deadline) -> bool:
    """Runs all directions under the checker and prints what was found; returns whether nothing."""
    tool, folder = arguments.tool, arguments.out.resolve()
    shares = shares_of(arguments.direction, arguments.cases, arguments.processes)
    logs = [folder / f"{tool}.{share.direction}.{share.index}.log" for share in shares]
    for log in logs:
        log.unlink(missing_ok=True)
    commands = (
        share.command(checker, tool, str(log)) for share, log in zip(shares, logs, strict=True)
    )
    outputs = [log.with_suffix(".out") for log in logs]
    codes = run_at_once(commands, max(deadline.left(), 0.0), _environment(), outputs)
    is_clean = True
    for direction in arguments.direction:
        mine = [n for n, share in enumerate(shares) if share.direction == direction]
        # A signal is what ends those that take too long.
        statuses = {
            "stopped by the time limit" if codes[n] < 0 and deadline.over
            else f"exit status {codes[n]}"
            for n in mine
        }  # fmt: skip
        errors, ran = found_errors([_read(logs[n]) for n in mine]), []
        for n in mine:
            ran += re.findall(r"^ran .*: (\d+) configurations$", _read(outputs[n]), re.MULTILINE)
        clean = (errors, len(ran), statuses) == (0, arguments.cases, {"exit status 0"})
        emit(
            f"{'clean' if clean else 'NOT CLEAN'}: {tool} {direction}: "
            f"{'no summary' if errors is None else f'{errors} errors'}, {len(ran)} of "
            f"{arguments.cases} geometries, {sum(map(int, ran))} launches of plans, "
            f"{', '.join(sorted(statuses))}; {arguments.out / f'{tool}.{direction}.*.log'}"
        )
        is_clean &= clean
    return is_clean


def found_errors(logs: Sequence[str]) -> int | None:
    """Returns the errors in the checker's logs; ``None`` where one has no summary."""
    # racecheck counts hazards instead.
    found = [re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log) for log in logs]
    return sum(int(each[-1]) for each in found) if all(found) else None


def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a direction is not clean, 2 where nothing can be checked."""
    if arguments.inside:
        return _inside(arguments)
    import torch

    try:
        checker = find_checker(arguments.checker)
        if not torch.cuda.is_available():
            raise ValueError("no CUDA GPU: nothing to check")
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        emit(str(error))
        return 2
    end_on_sigterm()
    deadline = Deadline(arguments.time_limit)
    seconds = _fill_cache(arguments.direction, arguments.cases, deadline)
    emit(f"compiled in {seconds:.0f} s, without the checker")
    return int(not check(checker, arguments, deadline))
