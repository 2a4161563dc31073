"""Convolutions in Gluon (examples/gluon/hopper) beside cuDNN and this package's @triton.jit ones.

``--clusters`` puts forward convolutions in clusters of two CTAs beside the chosen configuration:
the two configurations that the model expects to be fastest in clusters, and the first without.

``--sweep`` times every tile configuration of the kernel instead (:mod:`benchmarks.gluon_sweep`).

cuDNN runs channels-last with ``torch.backends.cudnn.benchmark = True``.  Every result is checked
against cuDNN in fp32 with TF32 off before anything is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from benchmarks.conv_fprop import Tensors, make_tensors
from benchmarks.conv_runs import (
    H200_MULTIPROCESSORS,
    announce,
    make_timer,
    multiprocessors,
    opened,
)
from benchmarks.conv_variants import case_of
from benchmarks.gluon_sweep import jit_config, run_sweep
from benchmarks.harness import (
    Deadline,
    Errors,
    Function,
    Timer,
    Timing,
    add_conv_arguments,
    emit,
    geometric_mean,
    measure_each,
    measure_errors,
    time_interleaved,
    write_rows,
)
from benchmarks.shapes import ConvShape, select_shapes
from benchmarks.sweeping import add_sweep_arguments

__all__ = ["add_arguments", "run"]

BASELINE = "cudnn"
GLUON = "gluon"
# The package's @triton.jit kernel, as its own model configures it.
JIT = "triton"
VARIANTS = {
    "fprop": (BASELINE, JIT, GLUON),
    "dgrad": (BASELINE, JIT, GLUON),
    "wgrad": (BASELINE, JIT, GLUON),
    "clusters": (BASELINE, GLUON, "alone", "cluster", "cluster 2"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--kernel", choices=("fprop", "dgrad", "wgrad"), default="fprop")
    parser.add_argument(
        "--clusters", action="store_true", help="fprop in clusters beside the chosen configurations"
    )
    add_conv_arguments(parser)
    sweep = parser.add_argument_group("sweep of tile configurations")
    sweep.add_argument("--sweep", action="store_true", help="time configurations, write CSV")
    add_sweep_arguments(sweep, resume=False)


def jit_function(kernel: str, tensors: Tensors, *operands: Any) -> Function:
    """Returns the package's @triton.jit kernel of a direction, as a function.

    Args:
        kernel: fprop, dgrad or wgrad.
        tensors: The convolution.
        operands: Of the direction, NCHW: x and weight, dy and weight, or x and dy.
    """
    from triton_ext.ops.core.epilogue import NO_OPERANDS
    from triton_ext.ops.core.planner import make_plan
    from triton_ext.ops.tuning.measure import run_plan

    problem, x = tensors.shape.problem(), tensors.x
    case = case_of(kernel, problem, str(x.dtype).removeprefix("torch."))
    config = jit_config(kernel, problem, x.dtype, multiprocessors())
    plan = make_plan(case, x.device, config)
    return lambda: run_plan(case, plan, (operands, NO_OPERANDS))


def fprop_functions(tensors: Tensors) -> tuple[dict[str, Function], Any]:
    """Returns the variants of the forward convolution by name, and the reference."""
    from examples.gluon.hopper.fprop import conv_fprop

    shape = tensors.shape
    x, weight = (tensor.permute(0, 2, 3, 1) for tensor in (tensors.x, tensors.weight))
    functions: dict[str, Function] = {
        BASELINE: tensors.torch,
        JIT: jit_function("fprop", tensors, tensors.x, tensors.weight),
        GLUON: lambda: conv_fprop(x, weight, shape.stride, shape.padding).permute(0, 3, 1, 2),
    }
    return functions, tensors.reference()


def clustered(shape: ConvShape, num_sms: int) -> list[Any]:
    """Returns the two configurations, without clusters, whose clusters the model likes best."""
    from triton_ext.ops.families.gemm_config import Product
    from triton_ext.ops.families.gluon_config import expected_times

    # A cluster is a multiprocessor with half of the pixels of each tile, of half as many.
    product = Product(
        pixels=math.ceil(shape.m_gemm / 2),
        columns=shape.co,
        channels=shape.ci,
        taps=(shape.r * shape.s,),
    )
    times = expected_times(product, num_sms // 2)
    loading = [config for config in times if not config.filter_steps]
    return sorted(loading, key=times.__getitem__)[:2]


def cluster_functions(tensors: Tensors) -> tuple[dict[str, Function], Any]:
    """Returns the forward convolution in and without clusters by name, and the reference."""
    from examples.gluon.hopper.fprop import conv_fprop
    from examples.gluon.hopper.fprop_cluster import in_cluster

    shape = tensors.shape
    x, weight = (tensor.permute(0, 2, 3, 1) for tensor in (tensors.x, tensors.weight))
    first, second = clustered(shape, multiprocessors())

    def with_config(config: Any) -> Function:
        return lambda: conv_fprop(x, weight, shape.stride, shape.padding, config=config).permute(
            0, 3, 1, 2
        )

    configs = {
        GLUON: None,
        "alone": first,
        "cluster": in_cluster(first),
        "cluster 2": in_cluster(second),
    }
    functions = {name: with_config(config) for name, config in configs.items()}
    return {BASELINE: tensors.torch, **functions}, tensors.reference()


def make_gradient(tensors: Tensors) -> Any:
    """Draws dy [N, out_h, out_w, Co], standard normal."""
    import torch

    shape = tensors.shape
    generator = torch.Generator("cuda").manual_seed(1)
    dy = torch.randn(shape.n, *shape.output_size, shape.co, generator=generator, device="cuda")
    return dy.to(tensors.x.dtype)


def torch_backward(tensors: Tensors, gradient: Any, which: int, *, in_fp32: bool = False) -> Any:
    """Returns what torch gives: the gradient of x (0) or of the weight (1).

    Args:
        tensors: The convolution.
        gradient: Of the output, NCHW.
        which: 0 or 1.
        in_fp32: Whether to compute the reference, without TF32.
    """
    import torch

    shape = tensors.shape
    operands = (gradient, tensors.x, tensors.weight)
    if in_fp32:
        operands = tuple(operand.float() for operand in operands)
    wanted = [which == 0, which == 1, False]
    stride = [shape.stride, shape.stride]
    torch.backends.cudnn.benchmark = not in_fp32
    gradients = torch.ops.aten.convolution_backward(
        *operands, None, stride, list(shape.padding), [1, 1], False, [0, 0], 1, wanted
    )
    torch.backends.cudnn.benchmark = True
    return gradients[which]


def dgrad_functions(tensors: Tensors) -> tuple[dict[str, Function], Any]:
    """Returns the variants of the gradient of the input by name, and the reference."""
    from examples.gluon.hopper.dgrad import conv_dgrad

    shape = tensors.shape
    dy = make_gradient(tensors)
    weight = tensors.weight.permute(0, 2, 3, 1)
    nchw = dy.permute(0, 3, 1, 2)
    functions: dict[str, Function] = {
        BASELINE: lambda: torch_backward(tensors, nchw, 0),
        JIT: jit_function("dgrad", tensors, nchw, tensors.weight),
        GLUON: lambda: conv_dgrad(
            dy, weight, (shape.h, shape.w), shape.stride, shape.padding
        ).permute(0, 3, 1, 2),
    }
    return functions, torch_backward(tensors, nchw, 0, in_fp32=True)


def wgrad_functions(tensors: Tensors) -> tuple[dict[str, Function], Any]:
    """Returns the variants of the gradient of the weight by name, and the reference."""
    from examples.gluon.hopper.wgrad import conv_wgrad

    shape = tensors.shape
    dy = make_gradient(tensors)
    x = tensors.x.permute(0, 2, 3, 1)
    nchw = dy.permute(0, 3, 1, 2)
    functions: dict[str, Function] = {
        BASELINE: lambda: torch_backward(tensors, nchw, 1),
        JIT: jit_function("wgrad", tensors, tensors.x, nchw),
        GLUON: lambda: conv_wgrad(x, dy, (shape.r, shape.s), shape.stride, shape.padding).permute(
            0, 3, 1, 2
        ),
    }
    return functions, torch_backward(tensors, nchw, 1, in_fp32=True)


FUNCTIONS = {
    "fprop": fprop_functions,
    "dgrad": dgrad_functions,
    "wgrad": wgrad_functions,
    "clusters": cluster_functions,
}


def chosen_config(kernel: str, shape: ConvShape, num_sms: int) -> str:
    """Returns the configuration with which the Gluon kernel runs the shape."""
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.core.stride_phases import StridePhases
    from triton_ext.ops.families.gluon_wgrad import GLUON_WGRAD

    from examples.gluon.hopper import dgrad, fprop

    taps = shape.r * shape.s
    if kernel == "wgrad":
        device = dataclasses.replace(KNOWN["h200"], num_sms=num_sms)
        case = Case(direction="wgrad", problem=shape.problem(), dtype=torch.float16)
        choice = next(iter(GLUON_WGRAD.candidates(case, device)))
        return str(choice.tiles(case.problem, num_sms))
    if kernel in ("fprop", "clusters"):
        chosen = fprop.choose_config(shape.m_gemm, shape.co, shape.ci, taps, num_sms)
        others = clustered(shape, num_sms) if kernel == "clusters" else []
        return ", ".join(map(str, [chosen, *others]))
    dims = [
        StridePhases(size=size, taps=taps, stride=shape.stride, dilation=1, low=low)
        for size, taps, low in (
            (shape.h, shape.r, shape.padding[0]),
            (shape.w, shape.s, shape.padding[1]),
        )
    ]
    return str(dgrad.choose_config(dims, shape.n, shape.ci, shape.co, num_sms))


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one shape; ``timings`` is empty where a result was wrong."""

    shape: ConvShape
    config: str
    errors: dict[str, Errors]
    timings: dict[str, Timing]

    @property
    def wrong(self) -> tuple[str, ...]:
        """Variants whose error is too large to be timed."""
        return tuple(n for n, e in self.errors.items() if not e.within(self.errors[BASELINE]))

    def ratio(self, over: str) -> float:
        """Time of a variant over that of the Gluon kernel."""
        return self.timings[over].ms / self.timings[GLUON].ms

    def fields(self) -> dict[str, object]:
        """Everything, flat, for CSV and JSON."""
        row: dict[str, object] = {"shape": self.shape.name, "flops": self.shape.flops}
        row["wrong"] = " ".join(self.wrong)
        row["config"] = self.config
        for name in self.errors:
            timing = self.timings.get(name)
            row[f"{name}_ms"] = timing.ms if timing else ""
            row[f"{name}_tflops"] = self.shape.flops / timing.ms / 1e9 if timing else ""
            row[f"{name}_spread"] = timing.spread if timing else ""
            row[f"{name}_host_us"] = timing.host_us if timing else ""
            row[f"{name}_error_l2"] = self.errors[name].l2
            row[f"{name}_error_max"] = self.errors[name].maximum
            row[f"ratio_to_{name}"] = self.ratio(name) if timing else ""
        return row


def format_header(names: tuple[str, ...]) -> str:
    """Returns the head of the table."""
    rates = " ".join(f"{name + ' TF/s':>12} {'spread %':>8}" for name in names)
    ratios = " ".join(f"{name + '/gluon':>13}" for name in names if name != GLUON)
    return f"{'N,H,W,Ci,Co,R,S,stride':<28} {rates} {ratios} {'rel. error':>10}  configuration"


def format_row(row: Row) -> str:
    """Returns the line of the table."""
    if row.wrong:
        found = ", ".join(f"{name} {row.errors[name].l2:.1e}" for name in row.errors)
        return f"{row.shape.name:<28} WRONG RESULT, not timed: rel. error {found}  {row.config}"
    rates = " ".join(
        f"{row.shape.flops / t.ms / 1e9:>12.0f} {t.spread * 100:>8.1f}"
        for t in row.timings.values()
    )
    ratios = " ".join(f"{row.ratio(name):>13.3f}" for name in row.timings if name != GLUON)
    late = [name for name, timing in row.timings.items() if timing.host_bound]
    marks = f" (waited for the host: {', '.join(late)})" if late else ""
    error = row.errors[GLUON].l2
    return f"{row.shape.name:<28} {rates} {ratios} {error:>10.1e}  {row.config}{marks}"


def measure(kernel: str, shape: ConvShape, dtype: str, timer: Timer, rounds: int) -> Row:
    """Checks one shape, then times it."""
    functions, reference = FUNCTIONS[kernel](make_tensors(shape, dtype))
    errors = {name: measure_errors(f(), reference) for name, f in functions.items()}
    del reference
    row = Row(shape, chosen_config(kernel, shape, multiprocessors()), errors, {})
    if row.wrong:
        return row
    return dataclasses.replace(row, timings=time_interleaved(functions, timer, rounds))


def measure_nothing(kernel: str, shape: ConvShape, timer: Timer, rounds: int) -> Row:
    """The dry run's stand-in for :func:`measure`."""
    names = VARIANTS[kernel]
    timings = time_interleaved({name: lambda: None for name in names}, timer, rounds)
    config = chosen_config(kernel, shape, H200_MULTIPROCESSORS)
    return Row(shape, config, {name: Errors(0.0, 0.0) for name in names}, timings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a shape failed."""
    if arguments.sweep:
        return run_sweep(arguments)
    opening = opened(arguments, lambda: select_shapes(arguments.shapes))
    if opening is None:
        return 2
    shapes, environment = opening
    kernel = "clusters" if arguments.clusters else arguments.kernel
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, arguments.target_ms)
    announce(arguments, environment, timer)
    emit(format_header(VARIANTS[kernel]))

    def measured(shape: ConvShape) -> Row:
        if arguments.dry_run:
            return measure_nothing(kernel, shape, timer, arguments.rounds)
        return measure(kernel, shape, arguments.dtype, timer, arguments.rounds)

    def show(rows: list[Row]) -> None:
        emit(format_row(rows[-1]))
        if arguments.out is not None:
            write_rows(arguments.out, environment, [each.fields() for each in rows])

    return summarise(*measure_each(shapes, measured, show, deadline))


def summarise(rows: list[Row], missing: list[str]) -> int:
    """Prints the geometric means and what is missing from them; returns the exit code."""
    timed = [row for row in rows if row.timings]
    emit()
    names = [name for name in timed[0].timings if name != GLUON] if timed else []
    for name in names:
        ratios = [row.ratio(name) for row in timed]
        worst = min(timed, key=lambda row, name=name: row.ratio(name))
        emit(
            f"{name}/gluon, geometric mean of {len(timed)} ratios: {geometric_mean(ratios):.3f}; "
            f"worst {worst.ratio(name):.3f} ({worst.shape.name}); "
            f"ahead on {sum(ratio > 1 for ratio in ratios)}"
        )
    wrong = [row.shape.name for row in rows if row.wrong]
    for what, shapes in (("wrong", wrong), ("missing", missing)):
        if shapes:
            emit(f"{what}: {' '.join(shapes)}")
    return 1 if wrong or missing else 0
