"""Sweep of dgrad's tile configurations: compile many, check each, time those that are right.

The JSON that it writes, after each layer, is in the form of the forward sweep:
``python -m benchmarks.fit_config dgrad_sweep.json --fit --pick 12`` prints the table of
``triton_ext.ops.families.gemm_config``.  A layer's classes count as one product: pixels of all
classes, input channels for columns, the mean taps of a class.  Compiling runs ahead in other
processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import pathlib
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from benchmarks.compile_ahead import CompilePool
from benchmarks.conv_fprop import describe_config
from benchmarks.conv_runs import add_suite_arguments, announce, opened_suite
from benchmarks.conv_variants import BASELINE, Operands, case_of, make_operands
from benchmarks.harness import Environment, Errors, Function, emit, measure_errors, time_interleaved
from benchmarks.suites import Layer, select_layers
from benchmarks.sweep import candidates
from benchmarks.sweeping import (
    LayerSweep,
    add_sweep_arguments,
    compiled_layers,
    compiling_processes,
    gradient_of_torch,
    out_file,
)

__all__ = ["add_arguments", "compile_job", "geometry_of", "run"]

DEFAULT_OUT = pathlib.Path("dgrad_sweep.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_suite_arguments(parser)
    add_sweep_arguments(parser, resume=False)


def geometry_of(problem: Any) -> dict[str, float]:
    """Returns a problem as one product, in the names of the forward sweep."""
    from triton_ext.ops.core.stride_phases import phases_of

    dims = phases_of(problem)
    return {
        "m_gemm": problem.batch * math.prod(dim.walk_size * dim.stride for dim in dims),
        "co": problem.in_channels,
        "ci": problem.out_channels,
        "r": math.prod(dim.mean_taps for dim in dims),
        "s": 1,
    }


def configurations(problem: Any, num_sms: int, narrow: bool) -> list[Any]:
    """Returns the configurations worth timing, the shipped ones first."""
    from triton_ext.ops.families.gemm_config import DGRAD_CONFIGS as CONFIGS

    product = geometry_of(problem)
    wide = candidates(SimpleNamespace(**product), num_sms, narrow)  # type: ignore[arg-type]
    return list(dict.fromkeys([*CONFIGS, *([] if narrow else wide)]))


def _plan(operands: Operands, config: Any) -> Any:
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import make_plan

    dy = operands.dy
    case = Case(direction="dgrad", problem=operands.problem, dtype=dy.dtype, dy_strides=dy.stride())
    return make_plan(case, dy.device, config)


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`_submit` made.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    from triton_ext.ops.core.device import SMEM_BYTES, Device
    from triton_ext.ops.families.gemm_config import ConvConfig
    from triton_ext.ops.tuning.measure import compile_plan

    (layer,) = select_layers("all", [job["layer"]])
    machine = Device(job["num_sms"], capability, SMEM_BYTES)
    case = case_of("dgrad", layer.problem, job["dtype"])
    return compile_plan(case, ConvConfig(**job["config"]), machine)


class Sweep(LayerSweep):
    """The state of a run, in the form of the forward sweep."""

    def __init__(self, arguments: argparse.Namespace, environment: Environment) -> None:
        super().__init__(arguments, environment, DEFAULT_OUT, key="shapes")

    def begin(self, layer: Layer) -> None:
        """Makes room for the results of a layer."""
        entry = {"geometry": geometry_of(layer.problem), "cudnn_ms": None, "results": []}
        self.layers[layer.name] = entry

    def record(self, layer: Layer, config: Any, status: str, ms: float | None = None) -> None:
        """Keeps what became of a configuration."""
        results = self.layers[layer.name]["results"]
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
        operands = make_operands(layer.problem, sweep.arguments.dtype)
        reference, variants[BASELINE], limit = gradient_of_torch(operands, "dgrad")
        configs = [c for c in configs if _is_right(sweep, layer, operands, c, reference, limit)]
        del reference
        for config in configs:
            plan = _plan(operands, config)
            variants[describe_config(config)] = lambda plan=plan: plan.run(
                operands.dy, operands.weight
            )
    timings = time_interleaved(variants, sweep.timer, sweep.rounds)
    cudnn_ms = sweep.layers[layer.name]["cudnn_ms"] = timings[BASELINE].ms
    for config in configs:
        sweep.record(layer, config, "ok", timings[describe_config(config)].ms)
    best = sorted(configs, key=lambda config: timings[describe_config(config)].ms)[:3]
    shown = "  ".join(
        f"{describe_config(c)} {cudnn_ms / timings[describe_config(c)].ms:.3f}" for c in best
    )
    emit(f"{layer.name:<44} {len(configs)} timed; cuDNN/ours: {shown}")


def _job(sweep: Sweep, layer: Layer, config: Any) -> dict[str, Any]:
    return {
        "module": "benchmarks.dgrad_sweep",
        "layer": layer.name,
        "dtype": sweep.arguments.dtype,
        "num_sms": sweep.num_sms,
        "config": asdict(config),
    }


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong."""
    opening = opened_suite(arguments, [".json"], out_file(arguments, DEFAULT_OUT))
    if opening is None:
        return 2
    layers, environment = opening
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import refusals

    dtype = getattr(torch, arguments.dtype)
    taken = [
        each
        for each in layers
        if each.problem.groups == 1
        and not refusals(Case(direction="dgrad", problem=each.problem, dtype=dtype))
    ]
    sweep = Sweep(arguments, environment)
    announce(arguments, environment, sweep.timer, sweep.rounds)
    work = {
        layer: configurations(layer.problem, sweep.num_sms, arguments.narrow) for layer in taken
    }
    jobs = compiling_processes(arguments)
    total = sum(map(len, work.values()))
    emit(f"{len(taken)} layers, {total} configurations, compiled by {jobs} processes")
    with contextlib.ExitStack() as stack:
        pool = None
        if not arguments.dry_run:
            pool = stack.enter_context(CompilePool(jobs, torch.cuda.get_device_capability()))
        for layer, ready in compiled_layers(sweep, pool, work, functools.partial(_job, sweep)):
            if ready:
                _time_layer(sweep, layer, ready)
            sweep.save()
    return sweep.finish(taken)
