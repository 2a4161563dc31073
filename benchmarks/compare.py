"""Operators of the package beside cuDNN, torch.compile and the Gluon examples, layer by layer.

Variants are ``cudnn`` (torch in eager mode, channels-last, ``cudnn.benchmark = True``), ``compile``
(the same under torch.compile, tuned), ``ours`` (``triton_ext.ops``), ``jit`` (the package's
@triton.jit kernel as its own model configures it), ``gluon`` (``examples/gluon/hopper``),
``cluster`` (its forward kernel in clusters of two CTAs), and ``bfloat16`` (ours in that type).
Every result is checked against cuDNN in fp32 with TF32 off before anything is timed: its error may
be twice that of the first variant.  Ratios are times over that of the last variant.  With
``--epilogue`` forward layers have a bias, a residual and a ReLU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import (
    Deadline,
    Errors,
    EventTimer,
    FakeTimer,
    Function,
    Timer,
    Timing,
    add_out_argument,
    collect_environment,
    emit,
    geometric_mean,
    has_gpu,
    machine_line,
    measure_each,
    measure_errors,
    prepare_torch,
    read_count,
    read_positive,
    time_interleaved,
    write_rows,
)
from benchmarks.operands import (
    BASELINE,
    DIRECTIONS,
    DTYPES,
    FP8,
    FP8_LIMIT,
    OURS,
    Operands,
    call_of,
    case_of,
    make_operands,
)
from benchmarks.suites import SUITES, Layer, select_layers

__all__ = ["Row", "add_arguments", "add_timing_arguments", "measure", "run", "run_rows"]

FORMULA = (
    "TFLOP/s = 2 * (N * out_h * out_w) * Co * (R * S * Ci) / time; spread = (slowest - fastest "
    "round) / median"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument(
        "variants", nargs="*", metavar="VARIANT",
        help=f"among {', '.join(VARIANTS)} ({BASELINE} {OURS}; of fp8 bfloat16 {OURS})",
    )  # fmt: skip
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    add_timing_arguments(parser, "indices into the suite, or names; all by default", DTYPES)
    parser.add_argument("--direction", choices=DIRECTIONS, default="fprop")
    parser.add_argument("--epilogue", action="store_true", help="bias, residual and ReLU, too")
    parser.add_argument("--jobs", type=read_count, help="compiling processes (cores - 1)")


def add_timing_arguments(
    parser: argparse.ArgumentParser, shapes: str, dtypes: Sequence[str], rounds: int = 8
) -> None:
    """Declares what is measured and how; ``shapes`` is a help, the default of ``dtypes`` first."""
    parser.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    parser.add_argument("--shapes", nargs="+", metavar="SHAPE", help=shapes)
    parser.add_argument(
        "--rounds", type=read_count, default=rounds,
        help="measurements per variant; even is fair (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=read_positive, default=480.0, metavar="S",
        help="seconds to stop after (480)",
    )  # fmt: skip
    add_out_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="no GPU: invented times, nothing is computed"
    )


# ---- Variants ----------------------------------------------------------------------------------


def _compile(operands: Operands, direction: str) -> Function:
    """Returns torch.compile's convolution, the fastest of its Triton templates and of cuDNN."""
    import torch

    torch._dynamo.reset()
    compiled: Function = torch.compile(
        lambda: operands.run_torch(direction), mode="max-autotune-no-cudagraphs"
    )
    return compiled


def _jit(operands: Operands, direction: str) -> Function | None:
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.device import device_of

    dtype = str(operands.x.dtype).removeprefix("torch.")
    case = case_of(direction, operands.problem, dtype)
    found = (
        offer.times[0][0]
        for offer in planner.offers(case, device_of(operands.x.device, "compare"))
        if offer.family.kind in ("gemm", "wgrad") and offer.times
    )
    config = next(found, None)
    return None if config is None else call_of(case, config, operands)


def _gluon(operands: Operands, direction: str, config: Any = None) -> Function | None:
    """The example kernel of examples/gluon/hopper; ``None`` for what it does not compute."""
    from examples.gluon.hopper import dgrad, fprop, wgrad

    p = operands.problem
    if p.groups > 1 or p.in_channels % 8 or p.out_channels % 8:
        return None
    x, weight, dy = (tensor.movedim(1, -1) for tensor in (operands.x, operands.weight, operands.dy))
    common = (p.stride, p.padding, p.dilation)
    if direction == "fprop":
        how = {} if config is None else {"config": config}
        return lambda: fprop.conv_fprop(x, weight, *common, **how).movedim(-1, 1)
    if direction == "wgrad":
        return lambda: wgrad.conv_wgrad(x, dy, p.filter_size, *common).movedim(-1, 1)
    low = tuple(sides[0] for sides in p.padding)
    return lambda: dgrad.conv_dgrad(dy, weight, p.input_size, p.stride, low, p.dilation).movedim(
        -1, 1
    )


def cluster_config(case: Any, num_sms: int) -> Any:
    """Returns the configuration that the model expects to be fastest in clusters of two CTAs."""
    from triton_ext.ops.families.gluon import product_of
    from triton_ext.ops.families.gluon_config import expected_times

    from examples.gluon.hopper.fprop_cluster import in_cluster

    # A cluster is a multiprocessor with half of the pixels of each tile, of half as many.
    product = product_of(case)
    product = dataclasses.replace(product, pixels=math.ceil(product.pixels / 2))
    times = expected_times(product, num_sms // 2)
    return in_cluster(min((c for c in times if not c.filter_steps), key=lambda c: times[c].us))


def _cluster(operands: Operands, direction: str) -> Function | None:
    case = case_of(direction, operands.problem, "float16")
    return _gluon(operands, direction, cluster_config(case, _machine(False).num_sms))


def _bfloat16(operands: Operands, direction: str) -> Function:
    import torch

    wide = operands.as_type(torch.bfloat16)
    return lambda: wide.run_ours(direction)


VARIANTS: dict[str, Any] = {
    BASELINE: lambda operands, direction: lambda: operands.run_torch(direction),
    "compile": _compile,
    "jit": _jit,
    "gluon": _gluon,
    "cluster": _cluster,
    "bfloat16": _bfloat16,
    OURS: lambda operands, direction: lambda: operands.run_ours(direction),
}


def _chosen(arguments: argparse.Namespace) -> list[str]:
    """Returns the variants that the options ask for.

    Raises:
        ValueError: There is no such variant, or it does not go with the other options.
    """
    is_fp8 = arguments.dtype == FP8
    names: list[str] = arguments.variants or ["bfloat16" if is_fp8 else BASELINE, OURS]
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"variant {name!r}: expected among {', '.join(VARIANTS)}")
    if len(set(names)) < max(2, len(names)):
        raise ValueError(f"variants {' '.join(names)}: expected two or more different ones")
    if arguments.direction != "fprop" and (is_fp8 or arguments.epilogue or "cluster" in names):
        raise ValueError("fp8, --epilogue and cluster are for --direction fprop")
    if is_fp8 and not {*names} <= {"bfloat16", OURS}:
        raise ValueError(f"--dtype {FP8}: expected the variants bfloat16 and {OURS}")
    if "bfloat16" in names and not is_fp8:
        raise ValueError(f"variant bfloat16 is for --dtype {FP8}")
    if arguments.epilogue and not {*names} <= {BASELINE, "compile", OURS}:
        raise ValueError(f"--epilogue is for the variants {BASELINE}, compile and {OURS}")
    return names


# ---- Measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one layer."""

    layer: Any  # with a name, a suite and work: operations or bytes
    names: Sequence[str]  # the variants
    _: dataclasses.KW_ONLY
    refused: str = ""  # why the package does not take it; empty if it does
    errors: dict[str, Errors]  # of every variant that computes the layer, against fp32
    wrong: tuple[str, ...] = ()  # variants whose error is too large to be timed
    # By variant; empty where a result was wrong or refused.
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    chosen: str = ""  # family of the kernel that ``ours`` runs

    def ratio(self, name: str) -> float | None:
        """Time of a variant over that of the last one."""
        timings, last = self.timings, self.names[-1]
        return timings[name].ms / timings[last].ms if {name, last} <= timings.keys() else None

    def fields(self) -> dict[str, object]:
        """Everything, flat, for CSV and JSON; equal keys for equal names."""
        work = self.layer.work
        row: dict[str, object] = {"suite": self.layer.suite, "layer": self.layer.name}
        row |= {"work": work, "refused": self.refused, "wrong": " ".join(self.wrong)}
        row["chosen"] = self.chosen
        for name in self.names:
            timing, errors = self.timings.get(name), self.errors.get(name)
            row[f"{name}_ms"] = timing.ms if timing else ""
            row[f"{name}_tera_per_s"] = work / timing.ms / 1e9 if timing else ""
            row[f"{name}_spread"] = timing.spread if timing else ""
            row[f"{name}_host_us"] = timing.host_us if timing else ""
            row[f"{name}_error_l2"] = errors.l2 if errors else ""
            ratio = self.ratio(name)
            row[f"ratio_to_{name}"] = "" if ratio is None else ratio
        return row

    def line(self) -> str:
        """Returns the line of the table."""
        head = f"{self.layer.name:<44}"
        if self.refused:
            return f"{head} refused: {self.refused}"
        if self.wrong:
            found = ", ".join(f"{name} {self.errors[name].l2:.1e}" for name in self.errors)
            return f"{head} WRONG RESULT, not timed: rel. error {found}"
        cells = []
        for name in self.names:
            timing = self.timings.get(name)
            cells.append(
                f"{timing.ms * 1e3:>12.1f} {timing.spread * 100:>5.1f}" if timing else f"{'-':>18}"
            )
        for name in self.names[:-1]:
            ratio = self.ratio(name)
            cells.append(f"{'-':>13}" if ratio is None else f"{ratio:>13.3f}")
        last = self.names[-1]
        rate = self.layer.work / self.timings[last].ms / 1e9 if last in self.timings else 0
        late = [name for name, timing in self.timings.items() if timing.host_bound]
        marks = f" (waited for the host: {', '.join(late)})" if late else ""
        return f"{head} {' '.join(cells)} {rate:>7.1f} {self.chosen}{marks}"


def _header(names: Sequence[str], unit: str) -> str:
    times = " ".join(f"{name + ' us':>12} {'+-%':>5}" for name in names)
    ratios = " ".join(f"{name + '/' + names[-1]:>13}" for name in names[:-1])
    return f"{'layer':<44} {times} {ratios} {unit:>7} kernel"


def measure(
    layer: Layer, operands: Operands, names: Sequence[str], direction: str, timer: Timer,
    rounds: int,
) -> Row:  # fmt: skip
    """Checks one layer, then times it."""
    import torch
    from triton_ext.errors import TritonExtError

    torch.backends.cudnn.benchmark = False
    reference = operands.in_fp32().run_torch(direction)
    torch.backends.cudnn.benchmark = True
    functions: dict[str, Function] = {}
    errors: dict[str, Errors] = {}
    for name in names:
        try:
            function = VARIANTS[name](operands, direction)
            if function is not None:
                errors[name] = measure_errors(function(), reference)
                functions[name] = function
        except (TritonExtError, ValueError, TypeError) as error:
            if name != OURS:
                raise
            return Row(layer, names, refused=str(error).partition("\n")[0], errors=errors)
    del reference
    limit = errors[names[0]] if operands.scale is None else FP8_LIMIT
    wrong = tuple(name for name, found in errors.items() if not found.within(limit))
    timings = {} if wrong else time_interleaved(functions, timer, rounds)
    return Row(layer, names, errors=errors, wrong=wrong, timings=timings)


def _choice(layer: Layer, arguments: argparse.Namespace, machine: Any) -> tuple[Any, Any, str]:
    """Returns a case, and the configuration and family that the planner chooses, if any."""
    from triton_ext.ops.core import planner

    case = case_of(arguments.direction, layer.problem, arguments.dtype)
    choice = planner.measured(case, machine) or planner.cheapest(case, machine)
    return (case, None, "") if choice is None else (case, choice.config, choice.family.kind)


def _compile_ahead(
    layers: Sequence[Layer], arguments: argparse.Namespace, machine: Any, deadline: Deadline
) -> None:
    """Fills Triton's cache with what the planner chooses, in several processes."""
    from triton_ext.ops.tuning.measure import CompilePool

    with CompilePool(arguments.jobs) as pool:
        chosen = [_choice(layer, arguments, machine) for layer in layers]
        futures = [pool.submit(case, config, machine) for case, config, _ in chosen if config]
        concurrent.futures.wait(futures, timeout=deadline.left() / 2)


def _machine(dry_run: bool) -> Any:
    """Returns the GPU; in a dry run an H200."""
    import torch
    from triton_ext.ops.core.device import KNOWN, device_of

    return KNOWN["h200"] if dry_run else device_of(torch.device("cuda"), "compare")


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a layer failed."""

    def select() -> tuple[list[str], Sequence[Layer]]:
        return _chosen(arguments), select_layers(arguments.suite, arguments.shapes)

    def prepare(
        layers: Sequence[Layer], names: Sequence[str], timer: Timer, deadline: Deadline
    ) -> Callable[[Layer], Row]:
        machine, direction = _machine(arguments.dry_run), arguments.direction
        if not arguments.dry_run and not arguments.epilogue and {OURS, "bfloat16"} & {*names}:
            _compile_ahead(layers, arguments, machine, deadline)

        def measured(layer: Layer) -> Row:
            if arguments.dry_run:
                row = invented(layer, names, timer, arguments.rounds)
            else:
                import torch

                # cuDNN tries algorithms as far as there is memory for them.
                torch.cuda.empty_cache()
                how = {"epilogue": arguments.epilogue}
                operands = make_operands(layer.problem, arguments.dtype, **how)
                row = measure(layer, operands, names, direction, timer, arguments.rounds)
            return dataclasses.replace(row, chosen=_choice(layer, arguments, machine)[2])

        return measured

    return run_rows(arguments, select, prepare)


def invented(layer: Any, names: Sequence[str], timer: Timer, rounds: int) -> Row:
    """Returns the row of a dry run."""
    timings = time_interleaved(dict.fromkeys(names, lambda: None), timer, rounds)
    return Row(layer, names, errors=dict.fromkeys(names, Errors(0.0, 0.0)), timings=timings)


def run_rows(
    arguments: argparse.Namespace,
    select: Callable[[], tuple[Sequence[str], Sequence[Any]]],
    prepare: Callable[..., Callable[[Any], Row]],
    unit: str = "TFLOP/s",
    target_ms: float = 20.0,  # GPU time of a measurement
) -> int:
    """Measures layers one by one and prints rows and means.

    ``select`` gives the variants and the layers, each with a name, a suite and work, or raises a
    ValueError where the options name nothing.  ``prepare`` takes both, the timer and the deadline,
    and returns what measures a layer.

    Returns:
        1 where something is wrong or missing, 2 where nothing can run.
    """
    try:
        names, layers = select()
    except ValueError as error:
        emit(str(error))
        return 2
    if not arguments.dry_run:
        if not has_gpu():
            return 2
        prepare_torch()
    environment, deadline = collect_environment(arguments.dry_run), Deadline(arguments.time_limit)
    timer: Timer = FakeTimer() if arguments.dry_run else EventTimer(target_ms)
    for line in environment.lines():
        emit(line)
    how = "timing:     CUDA events per call, L2 flushed before each, host time hidden"
    emit("DRY RUN: every time below is invented" if arguments.dry_run else how)
    emit(f"inputs:     {arguments.dtype}; x normal(0, 1), weight normal(0, 1/(R*S*Ci))")
    emit(f"rounds:     {arguments.rounds}, interleaved; a round is the median over its calls")
    emit(f"formula:    {FORMULA}")
    if not arguments.dry_run:
        emit(machine_line(timer))
    measured = prepare(layers, names, timer, deadline)
    emit(f"\n{_header(names, unit)}")

    def show(rows: list[Row]) -> None:
        emit(rows[-1].line())
        if arguments.out is not None:
            write_rows(arguments.out, environment, [each.fields() for each in rows])

    rows, missing = measure_each(layers, measured, show, deadline)
    emit()
    for line in _summary(rows, names):
        emit(line)
    wrong = [row.layer.name for row in rows if row.wrong]
    for what, found in (("wrong", wrong), ("missing", missing)):
        if found:
            emit(f"{what}: {' '.join(found)}")
    return 1 if wrong or missing else 0


def _summary(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Geometric means over all rows and over each suite, and what is not in them."""
    lines = []
    for name in names[:-1]:
        timed = [(ratio, row.layer) for row in rows if (ratio := row.ratio(name)) is not None]
        if not timed:
            continue
        worst, layer = min(timed, key=lambda each: each[0])
        lines.append(
            f"{name}/{names[-1]}, geometric mean of {len(timed)} layers: "
            f"{geometric_mean([ratio for ratio, _ in timed]):.3f}; worst {worst:.3f} "
            f"({layer.name}); ahead on {sum(ratio > 1 for ratio, _ in timed)}"
        )
        for suite in dict.fromkeys(layer.suite for _, layer in timed):
            part = [ratio for ratio, layer in timed if layer.suite == suite]
            lines.append(f"  {suite}: {geometric_mean(part):.3f} ({len(part)})")
    refused = [row for row in rows if row.refused]
    return lines + [f"refused, not in any mean: {r.layer.name}: {r.refused}" for r in refused]
