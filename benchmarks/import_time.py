"""Time of imports: the package alone, and what a kernel imports of it behind Triton.

Every measurement is a process of its own under ``-X importtime``; the first one of each line, which
may have to write byte code, does not count.  What stands behind a line is the sum of what the
modules of triton-ext cost there with all that they import.  Needs neither a GPU nor torch.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points

from benchmarks.harness import emit, read_count

__all__ = ["LIMIT_MS", "add_arguments", "measure", "run"]

#: Limit of the time of ``import triton_ext``.
LIMIT_MS = 30.0

# Imports before the measurement, and the measured ones.
_LINES = (
    ("", "triton_ext"),
    ("triton", "triton_ext"),
    ("triton", "triton_ext.language"),
    ("triton, triton.experimental.gluon", "triton_ext.gluon.nvidia"),
)
_IMPORTED = re.compile(r"import time:\s*\d+ \|\s*(\d+) \|( +)(\S+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--runs", type=read_count, default=15, help="processes per line (15)")


def measure(before: str, module: str, runs: int) -> list[float]:
    """Returns the milliseconds that importing a module takes, for each process."""
    code = f"import {before}\nimport {module}" if before else f"import {module}"
    command = [sys.executable, "-X", "importtime", "-c", code]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": folder}
        for _ in range(runs + 1):
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            found = _IMPORTED.findall(done.stderr)
            # The outermost imports alone: the others are in their sums.
            outermost = min(len(indent) for _, indent, _ in found)
            ours = [
                int(us)
                for us, indent, name in found
                if len(indent) == outermost and name.partition(".")[0] == "triton_ext"
            ]
            times.append(sum(ours) / 1000)
            if os.listdir(folder):
                raise SystemExit(f"error: import {module} compiled something")
    return times[1:]


def run(arguments: argparse.Namespace) -> int:
    """Prints a line per import; returns 1 where the package alone takes longer than it may."""
    emit(f"python {sys.version.split()[0]}, {arguments.runs} processes per line, milliseconds")
    emit(f"{'import':28}{'behind':36}{'median':>8}{'least':>8}{'most':>8}")
    medians = []
    for before, module in _LINES:
        times = measure(before, module, arguments.runs)
        medians.append(statistics.median(times))
        emit(f"{module:28}{before or '-':36}{medians[-1]:8.1f}{min(times):8.1f}{max(times):8.1f}")
    # Triton loads the entry points of its own groups at its start.
    at_start = [e for e in entry_points(group="triton.backends") if "triton_ext" in e.value]
    emit(
        f"loaded by Triton at its start: {', '.join(e.name for e in at_start) or 'nothing of ours'}"
    )
    emit(f"import triton_ext may take {LIMIT_MS:g}: {'yes' if medians[0] < LIMIT_MS else 'NO'}")
    return int(medians[0] >= LIMIT_MS)
