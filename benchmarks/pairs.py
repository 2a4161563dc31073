"""Shared code of cases that time ours against something else per shape, and print one mean."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.conv_runs import announce, make_timer, opened
from benchmarks.harness import (
    Deadline,
    Errors,
    Function,
    Timer,
    Timing,
    emit,
    geometric_mean,
    measure_each,
    measure_errors,
    time_interleaved,
    write_rows,
)
from benchmarks.shapes import ConvShape, select_shapes

__all__ = ["OURS", "Pair", "PairRow", "run_pairs"]

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Pair:
    """Functions to time for a shape.

    Attributes:
        functions: By name; :data:`OURS` is one of them.
        reference: Their result, in fp32.
        limit: Allowed errors; ``None`` to allow twice those of the first function.
    """

    functions: Mapping[str, Function]
    reference: Any
    limit: Errors | None = None


@dataclass(frozen=True, slots=True)
class PairRow:
    """Results of a shape; ``timings`` is empty where one was wrong."""

    shape: ConvShape
    errors: dict[str, Errors]
    wrong: tuple[str, ...]
    timings: dict[str, Timing]

    def ratio(self, over: str) -> float:
        """Time of a variant over ours."""
        return self.timings[over].ms / self.timings[OURS].ms

    def fields(self, names: Sequence[str]) -> dict[str, object]:
        """Everything, flat, for CSV and JSON."""
        row: dict[str, object] = {"shape": self.shape.name, "flops": self.shape.flops}
        row["wrong"] = " ".join(self.wrong)
        for name in names:
            timing, errors = self.timings.get(name), self.errors[name]
            row[f"{name}_ms"] = timing.ms if timing else ""
            row[f"{name}_spread"] = timing.spread if timing else ""
            row[f"{name}_host_us"] = timing.host_us if timing else ""
            row[f"{name}_error_l2"] = errors.l2
            row[f"{name}_error_max"] = errors.maximum
            row[f"ratio_to_{name}"] = self.ratio(name) if timing else ""
        return row

    def line(self, names: Sequence[str]) -> str:
        """The line of the table."""
        head = f"{self.shape.name:<28}"
        if self.wrong:
            found = ", ".join(f"{name} {self.errors[name].l2:.1e}" for name in self.errors)
            return f"{head} WRONG RESULT, not timed: rel. error {found}"
        times = " ".join(
            f"{self.timings[n].ms * 1e3:>12.1f} {self.timings[n].spread * 100:>5.1f}" for n in names
        )
        ratios = " ".join(f"{self.ratio(name):>13.3f}" for name in names if name != OURS)
        late = [name for name, timing in self.timings.items() if timing.host_bound]
        marks = f" (waited for the host: {', '.join(late)})" if late else ""
        return f"{head} {times} {ratios} {self.errors[OURS].l2:>10.1e}{marks}"


def measure(shape: ConvShape, pair: Pair, timer: Timer, rounds: int) -> PairRow:
    """Checks a shape, then times it."""
    errors = {name: measure_errors(f(), pair.reference) for name, f in pair.functions.items()}
    first = next(iter(errors.values()))
    limit = pair.limit

    def right(found: Errors) -> bool:
        if limit is None:
            return found.within(first)
        return found.l2 <= limit.l2 and found.maximum <= limit.maximum

    wrong = tuple(name for name, found in errors.items() if not right(found))
    row = PairRow(shape, errors, wrong, {})
    if wrong:
        return row
    return dataclasses.replace(row, timings=time_interleaved(pair.functions, timer, rounds))


def run_pairs(
    arguments: argparse.Namespace,
    names: Sequence[str],
    make: Callable[[ConvShape], Pair],
    shapes: Sequence[ConvShape],
) -> int:
    """Measures shapes one after another; returns 1 where a result was wrong or a shape failed.

    Args:
        arguments: Of :func:`benchmarks.harness.add_conv_arguments`.
        names: Of the variants, in the order of the table.
        make: Draws the tensors of a shape.
        shapes: What is measured if the options name nothing.
    """
    opening = opened(
        arguments, lambda: select_shapes(arguments.shapes) if arguments.shapes else shapes
    )
    if opening is None:
        return 2
    chosen, environment = opening
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, arguments.target_ms)
    announce(arguments, environment, timer)
    times = " ".join(f"{name + ' us':>12} {'+-%':>5}" for name in names)
    ratios = " ".join(f"{name + '/ours':>13}" for name in names if name != OURS)
    emit(f"{'N,H,W,Ci,Co,R,S,stride':<28} {times} {ratios} {'rel. error':>10}")

    def measured(shape: ConvShape) -> PairRow:
        if arguments.dry_run:
            timings = time_interleaved(dict.fromkeys(names, lambda: None), timer, arguments.rounds)
            return PairRow(shape, dict.fromkeys(names, Errors(0.0, 0.0)), (), timings)
        return measure(shape, make(shape), timer, arguments.rounds)

    def show(rows: list[PairRow]) -> None:
        emit(rows[-1].line(names))
        if arguments.out is not None:
            write_rows(arguments.out, environment, [each.fields(names) for each in rows])

    rows, missing = measure_each(chosen, measured, show, deadline)
    return _summarise(rows, missing, names)


def _summarise(rows: Sequence[PairRow], missing: Sequence[str], names: Sequence[str]) -> int:
    timed = [row for row in rows if row.timings]
    emit()
    for name in names if timed else ():
        if name == OURS:
            continue
        worst = min(timed, key=lambda row, name=name: row.ratio(name))
        mean = geometric_mean([row.ratio(name) for row in timed])
        emit(
            f"{name}/ours, geometric mean of {len(timed)} ratios: {mean:.3f}; "
            f"worst {worst.ratio(name):.3f} ({worst.shape.name})"
        )
    wrong = [row.shape.name for row in rows if row.wrong]
    for what, found in (("wrong", wrong), ("missing", missing)):
        if found:
            emit(f"{what}: {' '.join(found)}")
    return 1 if wrong or missing else 0
