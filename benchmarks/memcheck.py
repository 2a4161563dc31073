"""Random convolutions under NVIDIA's memory checker: ``compute-sanitizer --tool memcheck``.

Each direction runs in a process of its own under the checker, behind one without it that fills
Triton's cache.  A geometry runs the kernel that is chosen and the best configuration of every other
kernel that takes it, in memory that torch's allocator does not keep, so that what lies behind a
tensor belongs to nobody.  Nothing is timed.  ``--tool`` takes the checker's other tools too.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.conv_variants import DIRECTIONS, case_of
from benchmarks.harness import ROOT, Deadline, emit, end_group, run_at_once
from benchmarks.reproduce import end_on_sigterm

__all__ = ["add_arguments", "draw_problems", "find_checker", "run", "verdict"]

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
# The checker makes kernels tens of times slower.
MOST_FLOPS = 2e8
SEED = 2026
DTYPES = ("float16", "bfloat16")
# Of the checker, where it found something.
ERROR_STATUS = 77


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--direction", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--cases", type=int, default=20, help="geometries per direction (20)")
    parser.add_argument("--tool", choices=TOOLS, default="memcheck")
    parser.add_argument(
        "--checker", metavar="PATH", help=f"{NAME}, or its folder; by default that on the PATH"
    )
    parser.add_argument(
        "--time-limit", type=float, default=560.0, metavar="S", help="seconds in all (560)"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("memcheck"), metavar="DIR",
        help="folder of the checker's logs (memcheck)",
    )  # fmt: skip
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)


def find_checker(path: str | None) -> str:
    """Returns the program.

    Args:
        path: The program or a folder that has it; ``None`` to look along the PATH.

    Raises:
        ValueError: There is none; the text says where was looked.
    """
    if path is None:
        found = shutil.which(NAME)
        if found is None:
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


def draw_problems(direction: str, count: int) -> list[tuple[Any, str]]:
    """Returns geometries that kernels of a direction take, with a dtype each; always the same."""
    import torch
    from triton_ext.ops import conv_plan, dgrad_plan, wgrad_plan
    from triton_ext.ops.problem import ConvProblem

    planner: Any = {"fprop": conv_plan, "dgrad": dgrad_plan, "wgrad": wgrad_plan}[direction]
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
        if not planner.reasons(problem, getattr(torch, dtype)):
            found.append((problem, dtype))
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run under the checker came to.

    Attributes:
        errors: That it reported; ``None`` where it did not come to an end.
        geometries: That were run.
        configs: Kernels that were run.
    """

    errors: int | None
    geometries: int
    configs: int

    def is_clean(self, cases: int) -> bool:
        """Whether all cases ran, without an error."""
        return self.errors == 0 and self.geometries == cases


def verdict(log: str, output: str) -> Verdict:
    """Reads the checker's log and what the process inside printed."""
    # racecheck counts hazards instead.
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    ran = re.findall(r"^ran .*: (\d+) configurations$", output, re.MULTILINE)
    return Verdict(int(summaries[-1]) if summaries else None, len(ran), sum(map(int, ran)))


def kinds(case: Any, machine: Any) -> list[Any]:
    """Returns ``None``, for what is chosen, then the best configuration of every kernel."""
    from triton_ext.ops.tuning.calls import candidates

    ranked = candidates(case.problem, case.direction, case.dtype, machine, count=1000)
    return [None, *{type(config): config for config in reversed(ranked)}.values()]


def _inside(arguments: argparse.Namespace) -> int:
    """Runs the geometries of one direction."""
    import torch
    from triton_ext.ops.machine import machine_of
    from triton_ext.ops.tuning.calls import make_plan, make_tensors, run_plan

    device = torch.device("cuda", torch.cuda.current_device())
    machine = machine_of(device, "memcheck")
    (direction,) = arguments.direction
    for problem, dtype in draw_problems(direction, arguments.cases):
        case = case_of(direction, problem, dtype)
        tensors = make_tensors(case, device)
        configs = kinds(case, machine)
        for config in configs:
            result = run_plan(case, make_plan(case, device, config), tensors)
            torch.cuda.synchronize()
            if not bool(torch.isfinite(result).all()):
                emit(f"{case} {config}: a result that is not finite")
                return 1
        emit(f"ran {case}: {len(configs)} configurations")
    return 0


def _command(direction: str, cases: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks", "memcheck", "--inside", "--direction", direction,
            "--cases", str(cases)]  # fmt: skip


def _environment() -> dict[str, str]:
    # Every tensor is a block of its own of the driver's.
    return {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_EXT_TUNING": "0"}


def _fill_cache(directions: Sequence[str], cases: int, deadline: Deadline) -> None:
    """Runs all directions at once without the checker, to compile what they need."""
    commands = (_command(direction, cases) for direction in directions)
    run_at_once(commands, max(1.0, deadline.left() / 2), _environment())


def check(checker: str, direction: str, arguments: argparse.Namespace, seconds: float) -> bool:
    """Runs a direction under the checker; prints and returns whether it is clean.

    Args:
        checker: The program.
        direction: Of the convolutions.
        arguments: The command's.
        seconds: After which the checker and what it started are ended.
    """
    log = arguments.out / f"{arguments.tool}.{direction}.log"
    log.unlink(missing_ok=True)
    options = ["--tool", arguments.tool, "--error-exitcode", str(ERROR_STATUS)]
    command = [checker, *options, "--log-file", str(log.resolve())]
    printed = arguments.out / f"{arguments.tool}.{direction}.out"
    with printed.open("wb") as file:
        process = subprocess.Popen(
            [*command, *_command(direction, arguments.cases)], cwd=ROOT, env=_environment(),
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = f"exit status {process.wait(timeout=seconds)}"
        except subprocess.TimeoutExpired:
            status = "stopped by the time limit"
        finally:
            end_group(process)
    output = printed.read_text(encoding="utf-8", errors="replace")
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = verdict(text, output)
    errors = "no summary" if found.errors is None else f"{found.errors} errors"
    is_clean = found.is_clean(arguments.cases) and status == "exit status 0"
    emit(
        f"{'clean' if is_clean else 'NOT CLEAN'}: {arguments.tool} {direction}: {errors}, "
        f"{found.geometries} of {arguments.cases} geometries, {found.configs} launches of plans, "
        f"{status}; {log}"
    )
    return is_clean


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a direction is not clean, 2 where nothing can be checked."""
    if arguments.cases < 1:
        emit(f"--cases {arguments.cases}: expected at least 1")
        return 2
    if arguments.inside:
        return _inside(arguments)
    try:
        checker = find_checker(arguments.checker)
    except ValueError as error:
        emit(str(error))
        return 2
    import torch

    if not torch.cuda.is_available():
        emit("no CUDA GPU: nothing to check")
        return 2
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        emit(f"--out {arguments.out}: {error.strerror}")
        return 2
    end_on_sigterm()
    deadline = Deadline(arguments.time_limit)
    _fill_cache(arguments.direction, arguments.cases, deadline)
    clean = []
    for index, direction in enumerate(arguments.direction):
        share = deadline.left() / (len(arguments.direction) - index)
        clean.append(check(checker, direction, arguments, max(1.0, share)))
    return int(not all(clean))
