"""Sweep of dgrad's tile configurations: compile many, check each, time those that are right.

The JSON that it writes, after each layer, is in the form of the forward sweep:
``python -m benchmarks.fit_config dgrad_sweep.json --fit --pick 12`` prints the table of
``triton_ext.ops.dgrad_config``.  A layer's classes count as one product: pixels of all classes,
input channels for columns, the mean taps of a class.  Compiling runs ahead in other processes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from benchmarks.compile_ahead import Compiled, CompilePool
from benchmarks.conv_fprop import (
    H200_MULTIPROCESSORS,
    announce,
    describe_config,
    make_timer,
    multiprocessors,
    prepare_torch,
)
from benchmarks.conv_variants import BASELINE, Operands, make_operands
from benchmarks.harness import (
    Deadline,
    Errors,
    Function,
    add_conv_arguments,
    collect_environment,
    emit,
    measure_errors,
    time_interleaved,
    write_json,
)
from benchmarks.suites import SUITES, Layer, select_layers
from benchmarks.sweep import candidates

__all__ = ["add_arguments", "compile_job", "geometry_of", "run"]

DEFAULT_OUT = pathlib.Path("dgrad_sweep.json")
ROUNDS = 3
TARGET_MS = 8.0
# Kept back from the time limit, to finish a layer and write.
RESERVE_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    add_conv_arguments(parser, shapes="indices into the suite, or names of layers; all by default")
    parser.add_argument("--narrow", action="store_true", help="the shipped configurations only")
    parser.add_argument("--jobs", type=int, default=0, help="compiling processes (cores - 1)")


def geometry_of(problem: Any) -> dict[str, float]:
    """Returns a problem as one product, in the names of the forward sweep."""
    from triton_ext.ops.dgrad_plan import residues_of

    dims = residues_of(problem)
    return {
        "m_gemm": problem.batch * math.prod(dim.walk_size * dim.stride for dim in dims),
        "co": problem.in_channels,
        "ci": problem.out_channels,
        "r": math.prod(dim.mean_taps for dim in dims),
        "s": 1,
    }


def configurations(problem: Any, num_sms: int, narrow: bool) -> list[Any]:
    """Returns the configurations worth timing, the shipped ones first."""
    from triton_ext.ops.dgrad_config import CONFIGS

    product = geometry_of(problem)
    wide = candidates(SimpleNamespace(**product), num_sms, narrow)  # type: ignore[arg-type]
    return list(dict.fromkeys([*CONFIGS, *([] if narrow else wide)]))


def _plan(operands: Operands, config: Any) -> Any:
    from triton_ext.ops.dgrad_plan import make_plan

    dy = operands.dy
    return make_plan(operands.problem, dy.stride(), dy.dtype, dy.device, config)


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`_submit` made.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    from triton_ext.ops import dgrad_plan
    from triton_ext.ops.conv_config import SMEM_BYTES, ConvConfig
    from triton_ext.ops.machine import Machine

    machine = Machine(job["num_sms"], capability, SMEM_BYTES)
    dgrad_plan.machine_of = lambda device, operator: machine
    (layer,) = select_layers("all", [job["layer"]])
    operands = make_operands(layer.problem, job["dtype"], "meta")
    plan = _plan(operands, ConvConfig(**job["config"]))
    made, compiled = plan.launcher, []

    def warm_up(tensors: tuple[Any, ...], variant: object) -> None:
        options = {**made.constants, **made.options}
        compiled.append(made.kernel.warmup(*tensors, *made.scalars, grid=made.grid, **options))

    plan.launcher = SimpleNamespace(launch=warm_up)
    plan.run(operands.dy, operands.weight)
    return int(compiled[0].metadata.shared)


class Sweep:
    """The state of a run: what was measured, and the file it goes to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: pathlib.Path = arguments.out or DEFAULT_OUT
        self.environment = collect_environment()
        self.deadline = Deadline(arguments.time_limit)
        self.timer = make_timer(arguments, min(arguments.target_ms, TARGET_MS))
        self.shapes: dict[str, dict[str, Any]] = {}
        self.num_sms = H200_MULTIPROCESSORS if arguments.dry_run else multiprocessors()

    def save(self) -> None:
        """Writes all that is known."""
        document = {
            "environment": asdict(self.environment),
            "dtype": self.arguments.dtype,
            "num_sms": self.num_sms,
            "shapes": self.shapes,
        }
        write_json(self.out, document)

    def record(self, layer: Layer, config: Any, status: str, ms: float | None = None) -> None:
        """Keeps what became of a configuration."""
        results = self.shapes[layer.name]["results"]
        results.append({"config": asdict(config), "status": status, "ms": ms})
        if status != "ok":
            emit(f"    {describe_config(config)}: {status}")


def _is_right(
    sweep: Sweep, layer: Layer, operands: Operands, config: Any, reference: Any, limit: Errors
) -> bool:
    try:
        dx = _plan(operands, config).run(operands.dy, operands.weight)
        right = measure_errors(dx, reference).within(limit)
    except Exception as error:  # recorded: the next configuration may run
        sweep.record(layer, config, f"does not run: {type(error).__name__}: {str(error)[:200]}")
        return False
    if not right:
        sweep.record(layer, config, "wrong result")
    return right


def _time_layer(sweep: Sweep, layer: Layer, configs: list[Any]) -> None:
    """Checks the configurations of a layer, then times the right ones against each other."""
    variants: dict[str, Function] = {BASELINE: lambda: None}
    if sweep.arguments.dry_run:
        variants |= {describe_config(config): lambda: None for config in configs}
    else:
        import torch

        operands = make_operands(layer.problem, sweep.arguments.dtype)
        torch.backends.cudnn.benchmark = False
        reference = operands.in_fp32().run_torch("dgrad")
        torch.backends.cudnn.benchmark = True
        variants[BASELINE] = lambda: operands.run_torch("dgrad")
        limit = measure_errors(variants[BASELINE](), reference)
        configs = [c for c in configs if _is_right(sweep, layer, operands, c, reference, limit)]
        del reference
        for config in configs:
            plan = _plan(operands, config)
            variants[describe_config(config)] = lambda plan=plan: plan.run(
                operands.dy, operands.weight
            )
    timings = time_interleaved(variants, sweep.timer, min(sweep.arguments.rounds, ROUNDS))
    cudnn_ms = sweep.shapes[layer.name]["cudnn_ms"] = timings[BASELINE].ms
    for config in configs:
        sweep.record(layer, config, "ok", timings[describe_config(config)].ms)
    best = sorted(configs, key=lambda config: timings[describe_config(config)].ms)[:3]
    shown = "  ".join(
        f"{describe_config(c)} {cudnn_ms / timings[describe_config(c)].ms:.3f}" for c in best
    )
    emit(f"{layer.name:<44} {len(configs)} timed; cuDNN/ours: {shown}")


def _is_compiled(sweep: Sweep, layer: Layer, config: Any, future: Future[Compiled] | None) -> bool:
    if future is None:
        return True
    try:
        compiled = future.result(timeout=max(sweep.deadline.left() - RESERVE_SECONDS / 2, 0.0))
    except FutureTimeoutError:
        return False
    if compiled.error:
        sweep.record(layer, config, f"does not compile: {compiled.error}")
    return not compiled.error


def _submit(sweep: Sweep, pool: CompilePool, layer: Layer, config: Any) -> Future[Compiled]:
    return pool.submit_job(
        {
            "module": "benchmarks.dgrad_sweep",
            "layer": layer.name,
            "dtype": sweep.arguments.dtype,
            "num_sms": sweep.num_sms,
            "config": asdict(config),
        }
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong."""
    if arguments.out is not None and arguments.out.suffix != ".json":
        emit(f"--out {arguments.out}: the sweep writes .json")
        return 2
    try:
        layers = select_layers(arguments.suite, arguments.shapes)
    except ValueError as error:
        emit(str(error))
        return 2
    if not arguments.dry_run:
        if collect_environment().device == "none":
            emit("no CUDA GPU: nothing to time (--dry-run shows the output without one)")
            return 2
        prepare_torch()
    import torch
    from triton_ext.ops.dgrad_plan import reasons

    dtype = getattr(torch, arguments.dtype)
    taken = [e for e in layers if e.problem.groups == 1 and not reasons(e.problem, dtype)]
    sweep = Sweep(arguments)
    announce(arguments, sweep.environment, sweep.timer)
    work = {
        layer: configurations(layer.problem, sweep.num_sms, arguments.narrow) for layer in taken
    }
    jobs = arguments.jobs or max(1, (os.cpu_count() or 2) - 1)
    total = sum(map(len, work.values()))
    emit(f"{len(taken)} layers, {total} configurations, compiled by {jobs} processes")
    with contextlib.ExitStack() as stack:
        futures: dict[tuple[Layer, Any], Future[Compiled]] = {}
        if not arguments.dry_run:
            pool = stack.enter_context(CompilePool(jobs, torch.cuda.get_device_capability()))
            for layer, configs in work.items():
                for config in configs:
                    futures[layer, config] = _submit(sweep, pool, layer, config)
        for layer, configs in work.items():
            if sweep.deadline.left() < RESERVE_SECONDS:
                emit(f"{layer.name:<44} skipped (time limit)")
                continue
            entry = {"geometry": geometry_of(layer.problem), "cudnn_ms": None, "results": []}
            sweep.shapes[layer.name] = entry
            ready = [c for c in configs if _is_compiled(sweep, layer, c, futures.get((layer, c)))]
            if ready:
                _time_layer(sweep, layer, ready)
            sweep.save()
    results = [result for entry in sweep.shapes.values() for result in entry["results"]]
    wrong = sum(result["status"] == "wrong result" for result in results)
    emit(f"{wrong} wrong results; written to {sweep.out}")
    return int(wrong > 0)
