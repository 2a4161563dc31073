"""Convolutions of whole networks, every direction: triton_ext.ops beside cuDNN and others.

cuDNN runs channels-last with ``torch.backends.cudnn.benchmark = True``.  Every result is checked
against cuDNN in fp32 with TF32 off before anything is timed.  The roofline of a layer is the time
of its multiplications at the rate of an 8192^3 product, or of its bytes at the rate of a copy,
whichever is longer; both rates are measured in the same run.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.conv_ahead import compile_layers
from benchmarks.conv_runs import (
    add_suite_arguments,
    announce,
    machine_rate,
    make_timer,
    opened_suite,
)
from benchmarks.conv_variants import BASELINE, DIRECTIONS, OURS, make_operands, variants_of
from benchmarks.harness import (
    Deadline,
    Errors,
    Timer,
    Timing,
    emit,
    geometric_mean,
    measure_each,
    measure_errors,
    read_count,
    time_interleaved,
    write_rows,
)
from benchmarks.suites import SUITES, Layer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_suite_arguments(parser)
    parser.add_argument("--direction", choices=DIRECTIONS, default="fprop")
    parser.add_argument("--inductor", action="store_true", help="torch.compile's as well (slow)")
    parser.add_argument("--gluon", action="store_true", help="examples/gluon/hopper as well")
    parser.add_argument("--jobs", type=read_count, help="compiling processes (cores - 1)")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="table to write")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help=".png or .svg to write")


@dataclass(frozen=True, slots=True)
class Machine:
    """Throughput of the GPU, measured in the same run.

    Attributes:
        tflops: Rate of an 8192^3 matrix product.
        gbytes: Bytes read and written per nanosecond by a copy, in GB/s.
    """

    tflops: float
    gbytes: float

    def roofline_ms(self, flops: int, moved: int) -> float:
        """Time that no kernel can fall below."""
        return max(flops / self.tflops / 1e9, moved / self.gbytes / 1e6)


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one layer.

    Attributes:
        layer: The layer.
        refused: Why the package does not take it; empty if it does.
        errors: Of every variant, against fp32.
        timings: By variant; empty where a result was wrong or refused.
        roofline_ms: Time that no kernel can fall below.
        chosen: Which kernel of ours ran, where a direction has several.
    """

    layer: Layer
    refused: str
    errors: dict[str, Errors]
    timings: dict[str, Timing]
    roofline_ms: float
    chosen: str = ""

    @property
    def wrong(self) -> tuple[str, ...]:
        """Variants whose error is too large to be timed."""
        return tuple(n for n, e in self.errors.items() if not e.within(self.errors[BASELINE]))

    def ratio(self, over: str) -> float:
        """Time of a variant over ours."""
        return self.timings[over].ms / self.timings[OURS].ms

    def fields(self, names: Sequence[str]) -> dict[str, object]:
        """Everything, flat, for CSV and JSON; equal keys for equal names."""
        row: dict[str, object] = {"suite": self.layer.suite, "layer": self.layer.name}
        row |= {"flops": self.layer.problem.flops, "refused": self.refused}
        row |= {"wrong": " ".join(self.wrong), "roofline_ms": self.roofline_ms}
        row["chosen"] = self.chosen
        for name in names:
            timing, errors = self.timings.get(name), self.errors.get(name)
            row[f"{name}_ms"] = timing.ms if timing else ""
            row[f"{name}_spread"] = timing.spread if timing else ""
            row[f"{name}_host_us"] = timing.host_us if timing else ""
            row[f"{name}_error_l2"] = errors.l2 if errors else ""
            row[f"ratio_to_{name}"] = self.ratio(name) if timing else ""
        return row


def copy_rate(timer: Timer) -> float:
    """Returns GB/s of a copy within the GPU's memory, read and written bytes together."""
    import torch

    size = 1 << 29
    source = torch.empty(size, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    timing = time_interleaved({"copy": lambda: target.copy_(source)}, timer, rounds=3)["copy"]
    return 2 * size / timing.ms / 1e6


def measure(layer: Layer, arguments: argparse.Namespace, timer: Timer, machine: Machine) -> Row:
    """Checks one layer, then times it."""
    import torch
    from triton_ext.errors import TritonExtError

    operands = make_operands(layer.problem, arguments.dtype)
    direction = arguments.direction
    roofline = machine.roofline_ms(layer.problem.flops, operands.bytes_moved(direction))
    torch.backends.cudnn.benchmark = False
    reference = operands.in_fp32().run_torch(direction)
    torch.backends.cudnn.benchmark = True
    functions = variants_of(operands, direction, inductor=arguments.inductor, gluon=arguments.gluon)
    refused = ""
    errors = {}
    for name, function in functions.items():
        try:
            errors[name] = measure_errors(function(), reference)
        except (TritonExtError, ValueError, TypeError) as error:
            if name != OURS:
                raise
            refused = str(error).partition("\n")[0]
    del reference
    row = Row(layer, refused, errors, {}, roofline)
    if row.wrong or refused:
        return row
    row = dataclasses.replace(row, chosen=operands.chosen(direction))
    return dataclasses.replace(row, timings=time_interleaved(functions, timer, arguments.rounds))


def measure_nothing(
    layer: Layer, arguments: argparse.Namespace, timer: Timer, machine: Machine
) -> Row:
    """The dry run's stand-in for :func:`measure`."""
    operands = make_operands(layer.problem, arguments.dtype, "meta")
    names = names_of(arguments)
    timings = time_interleaved({name: lambda: None for name in names}, timer, arguments.rounds)
    roofline = machine.roofline_ms(layer.problem.flops, operands.bytes_moved(arguments.direction))
    return Row(layer, "", {name: Errors(0.0, 0.0) for name in names}, timings, roofline)


def names_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The variants that the options ask for."""
    more = ("inductor", "gluon")
    return (BASELINE, OURS, *(name for name in more if getattr(arguments, name)))


def format_header(names: Sequence[str]) -> str:
    """Returns the head of the table."""
    times = " ".join(f"{name + ' us':>12} {'+-%':>5}" for name in names)
    ratios = " ".join(f"{name + '/ours':>13}" for name in names if name != OURS)
    return f"{'layer':<44} {times} {ratios} {'of roofline':>11} {'rel. error':>10} kernel"


def format_row(row: Row, names: Sequence[str]) -> str:
    """Returns the line of the table."""
    head = f"{row.layer.name:<44}"
    if row.refused:
        return f"{head} refused: {row.refused}"
    if row.wrong:
        found = ", ".join(f"{name} {row.errors[name].l2:.1e}" for name in row.errors)
        return f"{head} WRONG RESULT, not timed: rel. error {found}"

    def told(name: str) -> str:
        timing = row.timings.get(name)
        if timing is None:
            return f"{'-':>12} {'':>5}"
        return f"{timing.ms * 1e3:>12.1f} {timing.spread * 100:>5.1f}"

    ratios = " ".join(
        f"{row.ratio(name):>13.3f}" if name in row.timings else f"{'-':>13}"
        for name in names
        if name != OURS
    )
    late = [name for name, timing in row.timings.items() if timing.host_bound]
    marks = f" (waited for the host: {', '.join(late)})" if late else ""
    fraction = row.roofline_ms / row.timings[OURS].ms
    return (
        f"{head} {' '.join(map(told, names))} {ratios} {fraction:>11.2f} "
        f"{row.errors[OURS].l2:>10.1e} {row.chosen}{marks}"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a layer failed."""
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        emit("--plot: needs matplotlib, pip install 'triton-ext[demo]'")
        return 2
    opening = opened_suite(arguments)
    if opening is None:
        return 2
    layers, environment = opening
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, arguments.target_ms)
    announce(arguments, environment, timer)
    if arguments.dry_run:
        machine = Machine(700.0, 4000.0)
    else:
        machine = Machine(machine_rate(timer), copy_rate(timer))
    measured = measure_nothing if arguments.dry_run else measure
    emit(f"roofline:   {machine.tflops:.0f} TFLOP/s, {machine.gbytes:.0f} GB/s")
    if not arguments.dry_run:
        direction, dtype, jobs = arguments.direction, arguments.dtype, arguments.jobs
        seconds = compile_layers(layers, direction, dtype, gluon=arguments.gluon, jobs=jobs)
        emit(f"compiled:   in {seconds:.0f} s, in other processes")
    names = names_of(arguments)
    emit(format_header(names))

    def show(rows: list[Row]) -> None:
        emit(format_row(rows[-1], names))
        if arguments.out is not None:
            write_rows(arguments.out, environment, [each.fields(names) for each in rows])

    rows, missing = measure_each(
        layers, lambda layer: measured(layer, arguments, timer, machine), show, deadline
    )
    emit()
    for line in summary(rows, names):
        emit(line)
    write_reports(arguments, rows, names, environment)
    wrong = [row.layer.name for row in rows if row.wrong]
    for what, found in (("wrong", wrong), ("missing", missing)):
        if found:
            emit(f"{what}: {' '.join(found)}")
    return 1 if wrong or missing else 0


def summary(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Geometric means over all rows and over each suite, and what is not in them."""
    lines = []
    for name in names:
        timed = [row for row in rows if name in row.timings]
        if name == OURS or not timed:
            continue
        worst = min(timed, key=lambda row: row.ratio(name))
        ratios = [row.ratio(name) for row in timed]
        lines.append(
            f"{name}/ours, geometric mean of {len(timed)} layers: {geometric_mean(ratios):.3f}; "
            f"worst {worst.ratio(name):.3f} ({worst.layer.name}); "
            f"ahead on {sum(ratio > 1 for ratio in ratios)}"
        )
        for suite in SUITES:
            part = [row.ratio(name) for row in timed if row.layer.suite == suite]
            if part:
                lines.append(f"  {suite}: {geometric_mean(part):.3f} ({len(part)})")
    refused = [row for row in rows if row.refused]
    lines += [f"refused, not in any mean: {row.layer.name}: {row.refused}" for row in refused]
    return lines


def write_reports(
    arguments: argparse.Namespace, rows: Sequence[Row], names: Sequence[str], environment: Any
) -> None:
    """Writes the Markdown table and the plot, if asked for."""
    timed = [row for row in rows if row.timings]
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(timed, names, environment), encoding="utf-8")
    if arguments.plot is not None and timed:
        title = f"{arguments.direction}, {arguments.dtype}, {environment.device}"
        draw(arguments.plot, timed, title)


def markdown(rows: Sequence[Row], names: Sequence[str], environment: Any) -> str:
    """The table as Markdown, the environment above it."""
    others = [name for name in names if name != OURS]
    head = ["layer", *(f"{name} us" for name in names), *(f"{n} / ours" for n in others)]
    lines = [f"{environment.device}, torch {environment.torch}, cuDNN {environment.cudnn}, Triton "]
    lines[0] += f"{environment.triton}, commit {environment.commit}, {environment.date}"
    lines += ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in rows:
        times = [f"{row.timings[n].ms * 1e3:.1f}" if n in row.timings else "" for n in names]
        ratios = [f"{row.ratio(name):.3f}" if name in row.timings else "" for name in others]
        lines.append(f"| {' | '.join([row.layer.name, *times, *ratios])} |")
    return "\n".join(lines) + "\n"


def draw(path: pathlib.Path, rows: Sequence[Row], title: str) -> None:
    """Draws cuDNN's time over ours, a bar per layer, coloured by suite."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    ordered = sorted(rows, key=lambda row: (list(SUITES).index(row.layer.suite), row.layer.name))
    figure, axes = pyplot.subplots(figsize=(8, 1.5 + 0.16 * len(ordered)), layout="constrained")
    for number, suite in enumerate(SUITES):
        places = [i for i, row in enumerate(ordered) if row.layer.suite == suite]
        values = [ordered[i].ratio(BASELINE) for i in places]
        if places:
            axes.barh(places, values, color=f"C{number}", label=suite)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(ordered)), [row.layer.name for row in ordered], fontsize=6)
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlabel("cuDNN's time / ours")
    axes.set_title(title, fontsize=9)
    figure.legend(loc="outside lower center", ncols=len(SUITES), fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
