"""Families beside cuDNN, layer by layer: the best configurations of every family that takes it.

Models of families err against each other more than within one, so the first ``--each`` of every
family are timed, of merged groups those of every factor.  Every one is checked against torch in
fp32.  The JSON has a row per configuration; compiling runs ahead in other processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import pathlib
from typing import Any

from benchmarks.compile_ahead import CompilePool
from benchmarks.conv_runs import add_suite_arguments, announce, opened_suite
from benchmarks.conv_variants import BASELINE, DIRECTIONS, Operands, case_of, make_operands
from benchmarks.harness import Environment, Errors, Function, emit, measure_errors, time_interleaved
from benchmarks.suites import SUITES, Layer
from benchmarks.sweeping import (
    LayerSweep,
    add_sweep_arguments,
    compiled_layers,
    compiling_processes,
    gradient_of_torch,
    out_file,
)

__all__ = ["add_arguments", "compile_job", "configurations", "run"]

DEFAULT_OUT = pathlib.Path("family_sweep.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_suite_arguments(parser)
    add_sweep_arguments(parser, resume=False)
    parser.add_argument("--direction", choices=DIRECTIONS, default="fprop")
    parser.add_argument("--each", type=int, default=3, help="configurations of a family (3)")


def _family_of(config: Any, kind: str) -> str:
    """Returns the group of configurations of which the first are timed."""
    factor = getattr(config, "factor", None)
    return kind if factor is None else f"{kind} x{factor} {type(config.config).__name__}"


def configurations(case: Any, device: Any, each: int) -> dict[Any, tuple[str, float]]:
    """Returns the configurations to time, with their family and the time that is expected.

    Args:
        case: What is computed.
        device: Where.
        each: How many of a family.
    """
    from triton_ext.ops.core.planner import offers

    found: dict[Any, tuple[str, float]] = {}
    count: dict[str, int] = {}
    for offer in offers(case, device):
        for config, expected in offer.times:
            family = _family_of(config, offer.family.kind)
            count[family] = count.get(family, 0) + 1
            if count[family] <= each:
                found[config] = (family, expected.us)
    return found


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`_job` made.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    from triton_ext.ops.core.device import SMEM_BYTES, Device
    from triton_ext.ops.core.tables import decode
    from triton_ext.ops.tuning.processes import compile_plan

    by_name = {layer.name: layer for layers in SUITES.values() for layer in layers}
    machine = Device(job["num_sms"], capability, SMEM_BYTES)
    case = case_of(job["direction"], by_name[job["layer"]].problem, job["dtype"])
    return compile_plan(case, decode(job["kind"], job["config"]), machine)


class Sweep(LayerSweep):
    """The state of a run: a row per layer and configuration."""

    def __init__(self, arguments: argparse.Namespace, environment: Environment) -> None:
        super().__init__(arguments, environment, DEFAULT_OUT, key="layers")
        self.expected: dict[Layer, dict[Any, tuple[str, float]]] = {}

    def begin(self, layer: Layer) -> None:
        """Makes room for the results of a layer."""
        entry = {"direction": self.arguments.direction, "cudnn_us": None, "results": []}
        self.layers[layer.name] = entry

    def record(self, layer: Layer, config: Any, status: str, us: float | None = None) -> None:
        """Keeps what became of a configuration."""
        from triton_ext.ops.core.tables import encode, kind_of

        family, expected_us = self.expected[layer][config]
        self.layers[layer.name]["results"].append(
            {
                "family": family,
                "kind": kind_of(config),
                "config": encode(config),
                "expected_us": None if math.isnan(expected_us) else expected_us,
                "status": status,
                "us": us,
            }
        )
        if status != "ok":
            emit(f"    {family} {encode(config)}: {status}")


def _call(operands: Operands, direction: str, dtype: str, config: Any) -> Function:
    """Returns a call of a configuration's plan."""
    from triton_ext.ops.core.epilogue import NO_OPERANDS
    from triton_ext.ops.core.planner import make_plan
    from triton_ext.ops.tuning.measure import run_plan

    o, case = operands, case_of(direction, operands.problem, dtype)
    plan = make_plan(case, o.x.device, config)
    given = {"fprop": (o.x, o.weight), "dgrad": (o.dy, o.weight), "wgrad": (o.x, o.dy)}[direction]
    tensors = (given, NO_OPERANDS)
    return lambda: run_plan(case, plan, tensors)


def _checked(
    sweep: Sweep, layer: Layer, operands: Operands, config: Any, reference: Any, limit: Errors
) -> Function | None:
    """Returns a call whose result is right; ``None`` where it is not, which is recorded."""
    direction, dtype = sweep.arguments.direction, sweep.arguments.dtype
    try:
        call = _call(operands, direction, dtype, config)
        right = measure_errors(call(), reference).within(limit)
    except Exception as error:  # recorded: the next configuration may run
        sweep.record(layer, config, f"does not run: {type(error).__name__}: {str(error)[:200]}")
        return None
    if not right:
        sweep.record(layer, config, "wrong result")
    return call if right else None


def _time_layer(sweep: Sweep, layer: Layer, configs: list[Any]) -> None:
    """Checks the configurations of a layer, then times the right ones against each other."""
    variants: dict[Any, Function] = {BASELINE: lambda: None}
    if sweep.arguments.dry_run:
        variants |= {config: lambda: None for config in configs}
    else:
        operands = make_operands(layer.problem, sweep.arguments.dtype)
        direction = sweep.arguments.direction
        reference, variants[BASELINE], limit = gradient_of_torch(operands, direction)
        for config in configs:
            call = _checked(sweep, layer, operands, config, reference, limit)
            if call is not None:
                variants[config] = call
        del reference
    names = {f"{number}": key for number, key in enumerate(variants)}
    timings = time_interleaved(
        {name: variants[key] for name, key in names.items()}, sweep.timer, sweep.rounds
    )
    us = {key: timings[name].ms * 1e3 for name, key in names.items()}
    sweep.layers[layer.name]["cudnn_us"] = us[BASELINE]
    best: dict[str, tuple[float, float]] = {}
    for config in [key for key in variants if key != BASELINE]:
        sweep.record(layer, config, "ok", us[config])
        family, expected_us = sweep.expected[layer][config]
        best[family] = min(best.get(family, (us[config], expected_us)), (us[config], expected_us))
    emit(f"{layer.name:<44} cuDNN {us[BASELINE]:.1f} us")
    for family, (measured, expected_us) in sorted(best.items(), key=lambda item: item[1]):
        ratio = us[BASELINE] / measured
        emit(f"    {family:<32} {measured:8.1f} us  cuDNN/ours {ratio:.3f}  {_model(expected_us)}")


def _model(us: float) -> str:
    return "no model" if math.isnan(us) else f"model {us:.1f}"


def _job(sweep: Sweep, layer: Layer, config: Any) -> dict[str, Any]:
    from triton_ext.ops.core.tables import encode, kind_of

    return {
        "module": "benchmarks.family_sweep",
        "layer": layer.name,
        "direction": sweep.arguments.direction,
        "dtype": sweep.arguments.dtype,
        "num_sms": sweep.num_sms,
        "kind": kind_of(config),
        "config": encode(config),
    }


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong."""
    opening = opened_suite(arguments, [".json"], out_file(arguments, DEFAULT_OUT))
    if opening is None:
        return 2
    layers, environment = opening
    import torch
    from triton_ext.ops.core.device import KNOWN, device_of

    sweep = Sweep(arguments, environment)
    announce(arguments, environment, sweep.timer, sweep.rounds)
    device = KNOWN["h200"]
    if not arguments.dry_run:
        device = device_of(torch.device("cuda"), "family_sweep")
    for layer in layers:
        case = case_of(arguments.direction, layer.problem, arguments.dtype)
        sweep.expected[layer] = configurations(case, device, arguments.each)
    jobs = compiling_processes(arguments)
    total = sum(map(len, sweep.expected.values()))
    emit(f"{len(layers)} layers, {total} configurations, compiled by {jobs} processes")
    with contextlib.ExitStack() as stack:
        pool = None
        if not arguments.dry_run:
            pool = stack.enter_context(CompilePool(jobs, torch.cuda.get_device_capability()))
        work = {layer: list(found) for layer, found in sweep.expected.items()}
        for layer, ready in compiled_layers(sweep, pool, work, functools.partial(_job, sweep)):
            if ready:
                _time_layer(sweep, layer, ready)
            sweep.save()
    return sweep.finish(layers)
