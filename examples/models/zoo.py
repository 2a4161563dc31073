"""``python -m examples.models.zoo NAME...``: networks of public libraries, as they are written.

Each network is made with random weights by torchvision, timm, diffusers, MONAI, transformers or
segmentation_models_pytorch, which are optional.  It is checked against fp32, then timed in bf16
beside itself after ``nn.convert(model, norms=True, fold=True)``: in plain loops, and as CUDA
graphs.  The last column is what :func:`triton_ext.nn.report` counted: calls by our kernels / by
torch's convolution.

    python -m examples.models.zoo --list
    python -m examples.models.zoo resnet50 wan_vae --graphs --out zoo.csv
    python -m examples.models.zoo all --check          # no times: results and the report alone
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton_ext import nn as ours

from benchmarks.harness import (
    Errors,
    add_out_argument,
    collect_environment,
    emit,
    geometric_mean,
    measure_errors,
    time_interleaved,
    write_rows,
)
from examples.models import options
from examples.models.entries import Entry
from examples.models.library import EXAMPLES, networks
from examples.models.measure import GraphTimer, StepTimer, synchronize

__all__ = ["main"]

Tensor = torch.Tensor

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Measurements of one network.

    Attributes:
        name: Its key in :data:`networks`.
        problem: Why there are no measurements, or empty.
        eager_ms: Time of a call in a plain loop, host time included.
        ours_ms: The same for the converted network.
        eager_graph_ms: Time of a call in a CUDA graph.
        ours_graph_ms: The same for the converted network.
        eager_first_s: Time of the first call.
        ours_first_s: The same for the converted network.
        eager_error: Relative error against fp32.
        ours_error: The same for the converted network.
        eager_mib: Peak memory of a call, weights included.
        ours_mib: The same for the converted network.
        ours: Convolution calls that ran our kernels.
        torch: Calls that ran torch's convolution, and convolutions that were not converted.
        refusals: Reasons of refusal, the most frequent first.
    """

    name: str
    problem: str = ""
    eager_ms: float = 0.0
    ours_ms: float = 0.0
    eager_graph_ms: float = 0.0
    ours_graph_ms: float = 0.0
    eager_first_s: float = 0.0
    ours_first_s: float = 0.0
    eager_error: float = 0.0
    ours_error: float = 0.0
    eager_mib: float = 0.0
    ours_mib: float = 0.0
    ours: int = 0
    torch: int = 0
    refusals: str = ""

    @property
    def loop_ratio(self) -> float:
        """Eager torch's time over ours in plain loops; 0 where they were not timed."""
        return self.eager_ms / self.ours_ms if self.ours_ms else 0.0

    @property
    def graph_ratio(self) -> float:
        """Eager torch's time over ours as CUDA graphs; 0 where they were not timed."""
        return self.eager_graph_ms / self.ours_graph_ms if self.ours_graph_ms else 0.0

    @property
    def line(self) -> str:
        """The row of the table."""
        if self.problem:
            return f"{self.name:<24} {self.problem}"
        return (
            f"{self.name:<24} {self.eager_ms:>8.2f} {self.ours_ms:>8.2f} {self.loop_ratio:>6.2f} "
            f"{self.eager_graph_ms:>8.2f} {self.ours_graph_ms:>8.2f} {self.graph_ratio:>6.2f} "
            f"{self.eager_first_s:>6.1f} {self.ours_first_s:>6.1f} {self.eager_mib:>7.0f} "
            f"{self.ours_mib:>7.0f} {self.ours_error:>8.1e} {self.ours:>4}/{self.torch}"
            + (f"  {self.refusals}" if self.refusals else "")
        )


_HEAD = (
    f"{'network':<24} {'eager ms':>8} {'ours ms':>8} {'ratio':>6} {'graph':>8} {'ours':>8} "
    f"{'ratio':>6} {'1st s':>6} {'ours':>6} {'MiB':>7} {'ours':>7} {'error':>8} calls"
)


def _settled(model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Gives BatchNorms the statistics of one call, so that activations stay of one size."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        model(*inputs)
    model.eval()


def _in_format(value: Any) -> Any:
    """Images are given as the guides of torch give them; volumes and signals as they are."""
    if isinstance(value, (Tensor, torch.nn.Module)) and getattr(value, "ndim", 4) == 4:
        return value.to(memory_format=torch.channels_last)
    return value


def _first_call(model: Any, inputs: tuple[Any, ...]) -> tuple[Tensor, float, float]:
    """Returns the first call's output, its seconds, and the peak of a later call in MiB.

    The peak counts the model's own weights and what the call allocates, not other models.
    """
    start = time.perf_counter()
    result = model(*inputs)
    synchronize()
    seconds = time.perf_counter() - start
    if not torch.cuda.is_available():
        return result, seconds, 0.0
    weights = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model(*inputs)
    synchronize()
    return result, seconds, (torch.cuda.max_memory_allocated() - before + weights) / 2**20


@torch.no_grad()
def measure(name: str, entry: Entry, arguments: argparse.Namespace) -> Row:
    """Checks and times one network.

    Args:
        name: Its key in :data:`networks`.
        entry: How it is made.
        arguments: The options of the command line.
    """
    torch.manual_seed(_SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model, inputs = entry.make(arguments.batch or entry.batch)
    model.eval()
    dtype = torch.bfloat16
    _settled(model, inputs)
    rounded = [x.to(dtype).float() if x.is_floating_point() else x for x in inputs]
    with options.exactly():
        exact = copy.deepcopy(model).to(dtype).float()(*rounded)
    inputs = tuple(_in_format(x.to(dtype) if x.is_floating_point() else x) for x in inputs)
    model = model.to(dtype)
    if inputs[0].ndim == 4:
        model = model.to(memory_format=torch.channels_last)
    theirs, first_s, mib = _first_call(model, inputs)
    converted = ours.convert(copy.deepcopy(model), report=False, norms=True, fold=True)
    result, ours_first_s, ours_mib = _first_call(converted, inputs)
    report = ours.report(converted)
    errors = measure_errors(theirs, exact), measure_errors(result, exact)
    row = Row(
        name=name,
        eager_first_s=first_s,
        ours_first_s=ours_first_s,
        eager_error=errors[0].l2,
        ours_error=errors[1].l2,
        eager_mib=mib,
        ours_mib=ours_mib,
        ours=report.ours,
        torch=report.torch + len(report.left),
        refusals=_refusals(report),
    )
    if not _is_right(errors[1], errors[0]):
        return dataclasses.replace(row, problem=f"WRONG RESULT, relative error {errors[1].l2:.1e}")
    if arguments.check:
        return row
    both = {"eager": lambda: model(*inputs), "ours": lambda: converted(*inputs)}
    timings = time_interleaved(both, StepTimer(arguments.steps), arguments.rounds)
    row = dataclasses.replace(row, eager_ms=timings["eager"].ms, ours_ms=timings["ours"].ms)
    if not arguments.graphs:
        return row
    timings = time_interleaved(both, GraphTimer(100.0, least_calls=1), arguments.rounds)
    return dataclasses.replace(
        row, eager_graph_ms=timings["eager"].ms, ours_graph_ms=timings["ours"].ms
    )


def _is_right(errors: Errors, baseline: Errors) -> bool:
    return errors.within(baseline)


def _refusals(report: ours.Report) -> str:
    """Returns why torch computed calls, the three most frequent reasons."""
    counts: dict[str, int] = {}
    for module in report.modules:
        for refusal, count in module.refusals:
            counts[refusal] = counts.get(refusal, 0) + count
    first = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{refusal} ({count})" for refusal, count in first)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.models.zoo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", help='networks, or "all"')
    parser.add_argument("--list", action="store_true", help="list the networks and end")
    parser.add_argument("--check", action="store_true", help="check results; no times")
    parser.add_argument("--graphs", action="store_true", help="time CUDA graphs, too")
    parser.add_argument("--batch", type=int, help="batch size; each network's own by default")
    parser.add_argument("--steps", type=int, default=10, help="calls per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements")
    add_out_argument(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script.

    Returns:
        1 where a result was wrong or is missing, 2 for wrong options.
    """
    arguments = parse(sys.argv[1:] if argv is None else argv)
    entries = {name: network.entry for name, network in networks().items()} | EXAMPLES
    if arguments.list:
        for name, entry in EXAMPLES.items():
            emit(f"{name:<24} {entry.library}, batch {entry.batch}")
        emit(f"not in all: {', '.join(name for name in entries if name not in EXAMPLES)}")
        return 0
    names = list(EXAMPLES) if "all" in arguments.names else arguments.names
    unknown = [name for name in names if name not in entries]
    if unknown or not names:
        emit(f"unknown: {', '.join(unknown)}" if unknown else "no network is named; try --list")
        return 2
    torch.backends.cudnn.benchmark = True
    environment = collect_environment()
    for line in environment.lines():
        emit(line)
    emit(_HEAD)
    rows = []
    for name in names:
        entry = entries[name]
        try:
            row = measure(name, entry, arguments)
        except ImportError as error:
            row = Row(name=name, problem=f"needs {entry.library}: pip install it ({error})")
        except Exception as error:  # the others are still worth measuring
            text = (str(error).splitlines() or [""])[0][:200]
            row = Row(name=name, problem=f"{type(error).__name__}: {text}")
        rows.append(row)
        emit(row.line)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    for kind in ("loop", "graph"):
        ratios = {r.name: value for r in rows if (value := getattr(r, f"{kind}_ratio"))}
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            emit(
                f"eager / ours, {kind}s: geometric mean of {len(ratios)} "
                f"{geometric_mean(list(ratios.values())):.3f}, worst {ratios[worst]:.3f} ({worst})"
            )
    _write(arguments.out, environment, rows)
    return int(any(row.problem for row in rows))


def _write(out: pathlib.Path | None, environment: Any, rows: Sequence[Row]) -> None:
    if out is not None:
        fields = [
            {**dataclasses.asdict(r), "loop_ratio": r.loop_ratio, "graph_ratio": r.graph_ratio}
            for r in rows
        ]
        write_rows(out, environment, fields)


if __name__ == "__main__":
    sys.exit(main())
