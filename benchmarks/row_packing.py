"""Forward convolutions over few channels: rows packed, tap by tap, gathered, and cuDNN.

Every layer is checked against cuDNN in fp32, then timed in the variants ``cudnn``, ``rows``,
``columns``, ``taps`` and, of fewer than 16 bytes of channels, ``gather``; the copies of both ways
of packing are timed alone as well, and every configuration of the kernel that gathers, of which
``gather_best`` is the fastest.  ``chosen`` says what the planner takes, beside the multiplications
per output element of each.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import packed_strides
from triton_ext.ops.core.device import SMEM_BYTES, Device, device_of
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.few_channels import FEW_CHANNELS

from benchmarks.conv_runs import H200_MULTIPROCESSORS, announce, make_timer, opened
from benchmarks.conv_variants import make_operands
from benchmarks.harness import (
    Deadline,
    Function,
    add_conv_arguments,
    emit,
    measure_each,
    measure_errors,
    run_at_once,
    time_interleaved,
    write_rows,
)

__all__ = ["LAYERS", "add_arguments", "run"]

COMPILE_SECONDS = 60.0
VARIANTS = (
    "cudnn", "taps", "rows", "columns", "rows_copies", "columns_copies", "gather", "gather_best",
)  # fmt: skip
# Whose configurations are printed.
SHOWN = ("rows", "columns", "gather_best")
_H200 = Device(H200_MULTIPROCESSORS, (9, 0), SMEM_BYTES)


@dataclass(frozen=True, slots=True)
class FewChannels:
    """A layer over few channels.

    Attributes:
        name: What it is of.
        problem: What is computed.
    """

    name: str
    problem: ConvProblem


def _layer(
    name: str,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    taps: int,
    stride: int = 1,
    padding: int = 0,
) -> FewChannels:
    dims = len(size)
    problem = ConvProblem(
        batch=batch,
        in_channels=channels[0],
        out_channels=channels[1],
        input_size=size,
        filter_size=(taps,) * dims,
        stride=(stride,) * dims,
        padding=((padding, padding),) * dims,
        dilation=(1,) * dims,
    )
    return FewChannels(name, problem)


LAYERS = (
    _layer("resnet_stem_32", 32, (3, 64), (224, 224), 7, 2, 3),
    _layer("resnet_stem_128", 128, (3, 64), (224, 224), 7, 2, 3),
    _layer("convnext_stem", 64, (3, 96), (224, 224), 4, 4),
    _layer("efficientnet_stem", 64, (3, 32), (224, 224), 3, 2, 1),
    _layer("efficientnet_stem_32", 32, (3, 32), (224, 224), 3, 2, 1),
    _layer("patches_8", 64, (3, 384), (224, 224), 8, 8),
    _layer("unet_in", 8, (4, 320), (64, 64), 3, 1, 1),
    _layer("vae_in_64", 1, (4, 512), (64, 64), 3, 1, 1),
    _layer("vae_in", 1, (4, 512), (128, 128), 3, 1, 1),
    _layer("vae_encoder_in", 1, (3, 128), (512, 512), 3, 1, 1),
    _layer("resnet3d_stem", 8, (3, 64), (16, 112, 112), 7, 2, 3),
    _layer("wav2vec_stem", 16, (1, 512), (160000,), 10, 5),
    _layer("codec_in", 8, (1, 64), (240000,), 7, 1, 3),
    _layer("c8", 32, (8, 64), (112, 112), 3, 1, 1),
    _layer("c16", 32, (16, 64), (112, 112), 3, 1, 1),
    _layer("c16_valid", 32, (16, 64), (114, 114), 3),
    _layer("c32", 32, (32, 64), (112, 112), 3, 1, 1),
    _layer("c32_valid", 32, (32, 64), (114, 114), 3),
    _layer("c32_stride2", 32, (32, 64), (112, 112), 3, 2, 1),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_conv_arguments(parser, shapes="names of layers; all by default")
    parser.add_argument("--once", action="store_true", help="run once, to fill Triton's cache")


def select(words: list[str] | None) -> tuple[FewChannels, ...]:
    """Returns layers by name.

    Raises:
        ValueError: There is no such layer; the text says what there is.
    """
    known = {layer.name: layer for layer in LAYERS}
    for word in words or ():
        if word not in known:
            raise ValueError(f"layer {word!r}: expected one of {', '.join(known)}")
    return LAYERS if not words else tuple(known[word] for word in words)


def name_of(way: RowPacking) -> str:
    """Its variant."""
    return "columns" if way.columns else "rows"


def ways_of(problem: ConvProblem) -> list[RowPacking]:
    """The ways to pack rows of a dense channels-last x of 16 bits."""
    return [way for way in RowPacking.ways(problem, _strides(problem), 2) if not way.planes]


def _strides(problem: ConvProblem) -> tuple[int, ...]:
    """Returns the strides of a dense channels-last x."""
    strides = packed_strides((problem.batch, *problem.input_size, problem.in_channels))
    return (strides[0], 1, *strides[1:-1])


def functions_of(layer: FewChannels, dtype: str) -> tuple[dict[str, Function], dict[str, str], Any]:
    """Returns the variants, their kernels' configurations, and a reference's function."""
    operands = make_operands(layer.problem, dtype)
    x, weight = operands.x, operands.weight
    case = Case(direction="fprop", problem=layer.problem, dtype=x.dtype, x_strides=x.stride())
    machine = device_of(x.device, "row_packing")
    taps = planner.plan(case, machine, among=("gluon", "gemm"))
    functions: dict[str, Function] = {
        "cudnn": lambda: operands.run_torch("fprop"),
        "taps": lambda: taps.run(x, weight),
    }
    configs = {"taps": str(taps.config)}
    for way in ways_of(layer.problem):
        plan, name = planner.plan(replace(case, packing=way), machine), name_of(way)
        copies = plan.row_copies
        configs[name] = str(plan.config)
        functions[name] = lambda plan=plan: plan.run(x, weight)
        functions[f"{name}_copies"] = lambda copies=copies: copies.pack(x, weight)
    refused = FEW_CHANNELS.refusals(case, machine)
    for number, config in enumerate(() if refused else FEW_CHANNELS.candidates(case, machine)):
        name = f"gather_{number}" if number else "gather"
        plan = planner.plan(case, machine, config)
        configs[name] = str(config)
        functions[name] = lambda plan=plan: plan.run(x, weight)
    return functions, configs, lambda: operands.in_fp32().run_torch("fprop")


def measure(layer: FewChannels, arguments: argparse.Namespace, timer: Any) -> dict[str, object]:
    """Checks and times one layer."""
    import torch

    functions, configs, reference_of = functions_of(layer, arguments.dtype)
    torch.backends.cudnn.benchmark = False
    reference = reference_of()
    torch.backends.cudnn.benchmark = True
    errors = {name: measure_errors(functions[name](), reference) for name in ("cudnn", *configs)}
    del reference
    row = describe(layer)
    row["wrong"] = " ".join(n for n, e in errors.items() if not e.within(errors["cudnn"]))
    timings = time_interleaved(functions, timer, arguments.rounds)
    gathered = [name for name in configs if name.startswith("gather")]
    if gathered:
        best = min(gathered, key=lambda name: timings[name].ms)
        timings["gather_best"], configs["gather_best"] = timings[best], configs[best]
    for name in VARIANTS:
        row[f"{name}_us"] = timings[name].ms * 1e3 if name in timings else float("nan")
        row[f"{name}_config"] = configs.get(name, "")
    return row


def describe(layer: FewChannels) -> dict[str, object]:
    """Returns the static properties of a layer, for 132 multiprocessors and 16 bits."""
    import torch
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.case import Case

    ways = {name_of(way): way for way in ways_of(layer.problem)}
    costs = {name: way.cost(H200_MULTIPROCESSORS) for name, way in ways.items()}
    fastest = min(costs, key=lambda name: costs[name].packed_us)
    cost = costs[fastest]
    row: dict[str, object] = {"layer": layer.name, "chosen": "taps" if cost.too_slow else fastest}
    case = Case(direction="fprop", problem=layer.problem, dtype=torch.float16)
    choice = planner.cheapest(case, _H200)
    if choice is not None and choice.family.kind == "gather":
        row["chosen"] = "gather"
    row["taps_k_gemm"] = cost.unpacked_k_gemm
    for name in ("rows", "columns"):
        row[f"{name}_k_gemm"] = ways[name].k_gemm if name in ways else ""
        row[f"{name}_mb"] = round(ways[name].copied_bytes / 1e6, 2) if name in ways else ""
    return row


def _compile(layers: tuple[FewChannels, ...], dtype: str) -> None:
    """Fills Triton's cache from several processes, each with a share of the layers."""
    jobs = min(len(layers), (os.cpu_count() or 1) - 1)
    command = [sys.executable, "-m", "benchmarks", "row_packing", "--once", "--dtype", dtype]
    run_at_once(
        (
            [*command, "--shapes", *(layer.name for layer in layers[index::jobs])]
            for index in range(jobs)
        ),
        COMPILE_SECONDS,
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong or a layer failed."""
    opening = opened(arguments, lambda: select(arguments.shapes))
    if opening is None:
        return 2
    chosen, environment = opening
    layers = tuple(chosen)
    if arguments.dry_run:
        for layer in layers:
            emit(" ".join(f"{key}={value}" for key, value in describe(layer).items()))
        return 0
    if arguments.once:
        for layer in layers:
            for function in functions_of(layer, arguments.dtype)[0].values():
                function()
        return 0
    timer = make_timer(arguments, arguments.target_ms)
    _compile(layers, arguments.dtype)
    announce(arguments, environment, timer)
    head = (*describe(layers[0]), *(f"{name}_us" for name in VARIANTS), "cudnn/chosen")
    emit("| " + " | ".join(head) + " |")
    emit("| --- " * len(head) + "|")

    def show(rows: list[dict[str, Any]]) -> None:
        row = rows[-1]
        ratio = row["cudnn_us"] / row[f"{row['chosen']}_us"]
        cells = [f"{row[k]:.1f}" if k.endswith("_us") else str(row[k]) for k in head[:-1]]
        wrong = f" WRONG: {row['wrong']}" if row["wrong"] else ""
        wrong += "".join(f" {name}: {row[f'{name}_config']};" for name in SHOWN)
        emit(f"| {' | '.join([*cells, f'{ratio:.3f}'])} |{wrong}")
        if arguments.out is not None:
            write_rows(arguments.out, environment, rows)

    deadline = Deadline(arguments.time_limit)
    rows, missing = measure_each(
        layers, lambda layer: measure(layer, arguments, timer), show, deadline
    )
    for name in missing:
        emit(f"missing: {name}")
    return 1 if missing or any(row["wrong"] for row in rows) else 0
