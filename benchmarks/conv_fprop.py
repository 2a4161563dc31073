"""Forward convolution: triton_ext.ops.conv2d beside cuDNN.

cuDNN runs channels-last with ``torch.backends.cudnn.benchmark = True``.  Both results are checked
against cuDNN in fp32 with TF32 off before anything is timed.  ``--sweep`` times tile configurations
instead (:mod:`benchmarks.sweep`).
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

from benchmarks.conv_runs import (
    H200_MULTIPROCESSORS,
    announce,
    make_timer,
    multiprocessors,
    opened,
)
from benchmarks.harness import (
    Deadline,
    Errors,
    Function,
    Timer,
    Timing,
    add_conv_arguments,
    emit,
    geometric_mean,
    measure_errors,
    time_interleaved,
    write_rows,
)
from benchmarks.shapes import ConvShape, select_shapes
from benchmarks.sweeping import add_sweep_arguments

__all__ = ["Tensors", "add_arguments", "describe_config", "make_tensors", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser)
    sweep = parser.add_argument_group("sweep of tile configurations")
    sweep.add_argument("--sweep", action="store_true", help="time configurations, write JSON")
    add_sweep_arguments(sweep)


@dataclass(frozen=True, slots=True)
class Tensors:
    """Input and weight of a problem, NCHW views of channels-last memory, and how to convolve them.

    Attributes:
        x: [N, Ci, H, W], standard normal.
        weight: [Co, Ci, R, S], normal with variance 1 / (R * S * Ci).
        shape: The problem.
    """

    x: Any
    weight: Any
    shape: ConvShape

    def torch(self) -> Any:
        """Returns torch's result: cuDNN on a GPU."""
        from torch.nn.functional import conv2d

        return conv2d(self.x, self.weight, None, self.shape.stride, self.shape.padding)

    def ours(self) -> Any:
        """Returns the package's result."""
        from triton_ext.ops import conv2d

        return conv2d(self.x, self.weight, None, self.shape.stride, self.shape.padding)

    def reference(self) -> Any:
        """fp32 without TF32, contiguous NCHW as cuDNN likes it best in fp32."""
        import torch
        from torch.nn.functional import conv2d

        torch.backends.cudnn.benchmark = False
        x, weight = self.x.float(), self.weight.float()
        y = conv2d(x, weight, None, self.shape.stride, self.shape.padding)
        torch.backends.cudnn.benchmark = True
        return y


def make_tensors(shape: ConvShape, dtype: str, device: str = "cuda") -> Tensors:
    """Draws a problem's tensors from a fixed seed; on the "meta" device they have no values."""
    import torch

    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Any:
        return torch.randn(*sizes, generator=generator, device=device)

    x = normal(shape.n, shape.h, shape.w, shape.ci).to(getattr(torch, dtype))
    weight = normal(shape.co, shape.r, shape.s, shape.ci) / shape.k_gemm**0.5
    return Tensors(
        x.permute(0, 3, 1, 2), weight.to(getattr(torch, dtype)).permute(0, 3, 1, 2), shape
    )


def describe_config(config: Any) -> str:
    """Returns a configuration in one word, which docs/performance.md spells out.

    Those of the Gluon kernel are spelled out in docs/gluon-conv.md and begin with ``gluon:``.
    """
    kind = type(config).__name__
    if kind == "TileConfig":
        return f"gluon:{config}"
    if kind != "ConvConfig":
        return str(config).replace(" ", "")
    order = "t" if config.taps_inner else "c"
    return (
        f"{config.block_m}x{config.block_n}x{config.block_k}"
        f"_s{config.num_stages}_w{config.num_warps}_p{config.store_parts}_g{config.group_size_m}_{order}"
    )


def chosen_config(shape: ConvShape, num_sms: int) -> Any:
    """Returns the configuration with which ``conv2d`` runs the shape, by the models alone."""
    import torch
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import SMEM_BYTES, Device

    case = Case(direction="fprop", problem=shape.problem(), dtype=torch.float16)
    return planner.ranking(case, Device(num_sms, (9, 0), SMEM_BYTES))[0]


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one shape; ``timings`` is empty where the result was wrong."""

    shape: ConvShape
    config: str
    errors: dict[str, Errors]
    timings: dict[str, Timing]

    @property
    def correct(self) -> bool:
        """Returns whether our result is correct enough to be timed."""
        return self.errors["ours"].within(self.errors["cudnn"])

    @property
    def ratio(self) -> float:
        """cuDNN's time over ours."""
        return self.timings["cudnn"].ms / self.timings["ours"].ms

    def fields(self) -> dict[str, object]:
        """Everything, flat, for CSV and JSON."""
        row: dict[str, object] = {"shape": self.shape.name, "flops": self.shape.flops}
        row["correct"] = self.correct
        row["config"] = self.config
        for name in ("cudnn", "ours"):
            timing = self.timings.get(name)
            row[f"{name}_ms"] = timing.ms if timing else ""
            row[f"{name}_tflops"] = self.shape.flops / timing.ms / 1e9 if timing else ""
            row[f"{name}_spread"] = timing.spread if timing else ""
            row[f"{name}_host_us"] = timing.host_us if timing else ""
            row[f"{name}_host_bound"] = timing.host_bound if timing else ""
            row[f"{name}_error_l2"] = self.errors[name].l2
            row[f"{name}_error_max"] = self.errors[name].maximum
        row["ratio"] = self.ratio if self.timings else ""
        return row


HEADER = (
    f"{'N,H,W,Ci,Co,R,S,stride':<28} {'cuDNN':>9} {'':>6} {'ours':>9} {'':>6} {'':>6} "
    f"{'spread %':>11} {'rel. error':>17} {'host us':>9}\n"
    f"{'':<28} {'ms':>9} {'TF/s':>6} {'ms':>9} {'TF/s':>6} {'ratio':>6} "
    f"{'cuDNN  ours':>11} {'cuDNN     ours':>17} {'cuDNN ours':>9}  configuration"
)


def format_row(row: Row) -> str:
    """Returns the line of the table."""
    errors = f"{row.errors['cudnn'].l2:>8.1e} {row.errors['ours'].l2:>8.1e}"
    if not row.timings:
        return f"{row.shape.name:<28} WRONG RESULT, not timed: rel. error {errors}  {row.config}"
    cudnn, ours = row.timings["cudnn"], row.timings["ours"]
    rates = [row.shape.flops / timing.ms / 1e9 for timing in (cudnn, ours)]
    marks = "".join(
        f" ({name} waited for the host)" for name, t in row.timings.items() if t.host_bound
    )
    return (
        f"{row.shape.name:<28} {cudnn.ms:>9.4f} {rates[0]:>6.0f} {ours.ms:>9.4f} {rates[1]:>6.0f} "
        f"{row.ratio:>6.3f} {cudnn.spread * 100:>5.1f} {ours.spread * 100:>5.1f} {errors} "
        f"{cudnn.host_us:>5.0f} {ours.host_us:>4.0f}  {row.config}{marks}"
    )


def measure(shape: ConvShape, dtype: str, timer: Timer, rounds: int, num_sms: int) -> Row:
    """Checks one shape, then times it."""
    tensors = make_tensors(shape, dtype)
    reference = tensors.reference()
    errors = {
        "cudnn": measure_errors(tensors.torch(), reference),
        "ours": measure_errors(tensors.ours(), reference),
    }
    del reference
    row = Row(shape, describe_config(chosen_config(shape, num_sms)), errors, {})
    if not row.correct:
        return row
    variants: dict[str, Function] = {"cudnn": tensors.torch, "ours": tensors.ours}
    return dataclasses.replace(row, timings=time_interleaved(variants, timer, rounds))


def measure_nothing(shape: ConvShape, timer: Timer, rounds: int) -> Row:
    """The dry run's stand-in for :func:`measure`."""
    zero = Errors(0.0, 0.0)
    config = describe_config(chosen_config(shape, H200_MULTIPROCESSORS))
    timings = time_interleaved({"cudnn": lambda: None, "ours": lambda: None}, timer, rounds)
    return Row(shape, config, {"cudnn": zero, "ours": zero}, timings)


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a shape failed."""
    if arguments.sweep:
        from benchmarks import sweep

        return sweep.run(arguments)
    opening = opened(arguments, lambda: select_shapes(arguments.shapes))
    if opening is None:
        return 2
    shapes, environment = opening
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, arguments.target_ms)
    announce(arguments, environment, timer)
    num_sms = H200_MULTIPROCESSORS if arguments.dry_run else multiprocessors()
    emit(HEADER)
    rows: list[Row] = []
    skipped: list[str] = []
    failed: list[str] = []
    for shape in shapes:
        if deadline.over:
            skipped.append(shape.name)
            continue
        try:
            if arguments.dry_run:
                row = measure_nothing(shape, timer, arguments.rounds)
            else:
                row = measure(shape, arguments.dtype, timer, arguments.rounds, num_sms)
        except Exception as error:  # whatever one shape does, the others are still worth timing
            failed.append(shape.name)
            emit(f"{shape.name:<28} FAILED: {type(error).__name__}: {str(error)[:300]}")
            continue
        rows.append(row)
        emit(format_row(row))
        if arguments.out is not None:
            write_rows(arguments.out, environment, [each.fields() for each in rows])
    return summarise(rows, skipped, failed)


def summarise(rows: list[Row], skipped: list[str], failed: list[str]) -> int:
    """Prints the geometric mean and what is missing from it; returns the exit code."""
    timed = [row for row in rows if row.timings]
    wrong = [row.shape.name for row in rows if not row.timings]
    emit()
    if timed:
        ratios = [row.ratio for row in timed]
        worst = min(timed, key=lambda row: row.ratio)
        emit(
            f"geometric mean of {len(timed)} ratios: {geometric_mean(ratios):.3f}; "
            f"worst {worst.ratio:.3f} ({worst.shape.name}); "
            f"ahead of cuDNN on {sum(ratio > 1 for ratio in ratios)}"
        )
    for what, names in (("wrong", wrong), ("failed", failed), ("skipped (time limit)", skipped)):
        if names:
            emit(f"{what}: {' '.join(names)}")
    return 1 if wrong or failed else 0
