"""``python -m examples.demo``: the whole path once, on any machine.

1. Filters a photograph with 3x3 and 5x5 filters in Triton's interpreter and compares with torch.
2. Compiles the same kernel for sm_90 and sm_100, and counts the im2col instructions.
3. Where there is an NVIDIA GPU of sm_90 or newer, runs there beside cuDNN.
4. Writes the pictures to ``.demo/out``.

Triton reads TRITON_INTERPRET when a kernel is defined, so each part is a process of its own.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / ".demo" / "out"

# Beyond twice torch's own error in the same dtype; fp16 values up to 8 are 2^-7 apart.
ERROR_FLOOR = 1e-3

# The interpreter multiplies small matrices: threads that wait for each other cost more than they
# bring, ten times as much where other processes keep the cores busy.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class DemoProblem(Exception):
    """Something is missing or wrong; the text is a sentence for the user."""


def child(module: str, *arguments: str, **variables: str) -> Iterator[dict[str, Any]]:
    """Runs a part of the demo and yields the JSON objects that it prints.

    Raises:
        DemoProblem: The part failed; what it wrote to stderr is in the text.
    """
    environment = {**os.environ, **variables}
    if not variables:
        environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", f"examples.demo.{module}", *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        if process.returncode != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-12:]
            raise DemoProblem(f"{module} failed:\n" + "\n".join(last))


def filter_photograph(console: Any, folder: pathlib.Path) -> bool:
    """Runs and shows part 1; returns whether every error is within its bound."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    console.rule("A photograph through im2col, in Triton's interpreter", align="left")
    table = Table("filters", "output", "seconds", "max error", "torch fp16", "bound", "")
    good = True
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("bands"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        names: list[str] = []
        for line in child("interpret", str(folder), TRITON_INTERPRET="1", **ONE_THREAD):
            if "jobs" in line:
                names = [job["name"] for job in line["jobs"]]
                tasks = [
                    progress.add_task(job["name"], total=job["bands"], start=False)
                    for job in line["jobs"]
                ]
                progress.start_task(tasks[0])
            elif "job" in line:
                progress.advance(tasks[line["job"]])
            else:
                done = line["done"]
                if done + 1 < len(tasks):
                    progress.start_task(tasks[done + 1])
                bound = 2 * line["torch_error"] + ERROR_FLOOR
                right = line["error"] <= bound
                good &= right
                table.add_row(
                    names[done],
                    " x ".join(map(str, line["shape"])),
                    f"{line['seconds']:.1f}",
                    f"{line['error']:.2e}",
                    f"{line['torch_error']:.2e}",
                    f"{bound:.2e}",
                    "ok" if right else "[bold red]too large[/]",
                )
    console.print(table)
    console.print(
        "Errors are against torch.nn.functional.conv2d in fp32; the bound is twice the error of "
        f"torch's own fp16 convolution plus {ERROR_FLOOR:g}.\n"
    )
    return good


def compile_kernel(console: Any) -> bool:
    """Runs and shows part 2; returns whether both targets have im2col instructions."""
    from rich.table import Table

    console.rule("The same kernel, compiled without a GPU", align="left")
    table = Table("target", "seconds", "im2col loads", "cubin", "instruction")
    good = True
    for capability in ("90", "100"):
        with console.status(f"compiling for sm_{capability}"):
            (line,) = child("compile", capability, str(OUT))
        good &= line["im2col"] > 0
        table.add_row(
            f"sm_{capability}",
            f"{line['seconds']:.1f}",
            str(line["im2col"]),
            f"{line['cubin_bytes'] / 1024:.1f} KiB",
            line["instruction"],
        )
    console.print(table)
    return good


def run_on_gpu(console: Any) -> bool:
    """Runs and shows part 3; returns whether every error is within its bound."""
    from rich.table import Table

    console.rule("On the GPU, beside cuDNN", align="left")
    table = Table(
        "convolution", "here, us", "cuDNN, us", "cuDNN / here", "max error", "cuDNN's", ""
    )
    good = True
    with console.status("looking for a GPU"):
        for line in child("gpu"):
            if "reason" in line:
                console.print(f"Skipped: {line['reason']}.\n")
                return True
            if "gpu" in line:
                console.print(f"{line['gpu']}, cuDNN {line['cudnn']}; medians, fp16")
                continue
            right = line["error"] <= 2 * line["torch_error"] + ERROR_FLOOR
            good &= right
            table.add_row(
                line["name"],
                f"{line['us']:.1f}",
                f"{line['cudnn_us']:.1f}",
                f"{line['cudnn_us'] / line['us']:.2f}",
                f"{line['error']:.2e}",
                f"{line['torch_error']:.2e}",
                "ok" if right else "[bold red]too large[/]",
            )
    console.print(table)
    return good


def run() -> int:
    """Runs all parts and returns the exit status."""
    try:
        import matplotlib  # noqa: F401 - asked for before minutes are spent
        import torch  # noqa: F401
        from rich.console import Console
        from triton_ext.host import require
    except ModuleNotFoundError as error:
        raise DemoProblem(
            f"{error.name} is not installed; 'make demo' makes an environment that has it"
        ) from error
    from triton_ext.errors import TritonExtError

    try:
        require("im2col")
    except TritonExtError as error:
        raise DemoProblem(str(error)) from error
    start = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    # Where the output is no terminal, rich would take 80 columns and fold the tables.
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "filter": filter_photograph(console, pathlib.Path(folder)),
            "compile": compile_kernel(console),
            "gpu": run_on_gpu(console),
        }
        with console.status("drawing"):
            from examples.demo.pictures import save_pictures

            files = save_pictures(pathlib.Path(folder), OUT)
    console.rule("Done", align="left")
    console.print(f"{len(files)} pictures; look at {files[0].relative_to(ROOT)} first.")
    failed = [name for name, good in parts.items() if not good]
    seconds = time.monotonic() - start
    console.print(f"demo: {'FAILED: ' + ', '.join(failed) if failed else 'ok'}, {seconds:.0f} s")
    return 1 if failed else 0


def main() -> int:
    """Runs the demo; what goes wrong is told in a sentence."""
    try:
        return run()
    except DemoProblem as problem:
        sys.stderr.write(f"demo: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
