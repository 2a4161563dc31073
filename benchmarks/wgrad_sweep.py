"""Sweep of wgrad's tile configurations: compile many, check each, time those that are right.

The JSON that it writes, after each layer, is what ``python -m benchmarks.fit_wgrad`` fits the model
of ``triton_ext.ops.wgrad_config`` to.  Compiling runs ahead in other processes while the GPU times
what is ready.  What does not compile or computes something wrong is recorded as such and skipped;
what hangs or breaks the CUDA context ends the process after it has been recorded, and ``--resume``
goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.compile_ahead import Compiled, CompilePool
from benchmarks.conv_fprop import (
    H200_MULTIPROCESSORS,
    announce,
    make_timer,
    multiprocessors,
    prepare_torch,
)
from benchmarks.conv_variants import BASELINE, Operands, make_operands
from benchmarks.harness import (
    Deadline,
    Environment,
    Function,
    Timer,
    Timing,
    add_conv_arguments,
    collect_environment,
    emit,
    measure_errors,
    time_interleaved,
    write_json,
)
from benchmarks.suites import SUITES, Layer, select_layers

__all__ = ["add_arguments", "candidates", "compile_job", "run"]

DEFAULT_OUT = pathlib.Path("wgrad_sweep.json")
BLOCKS_CO = (64, 128, 256)
BLOCKS_CI = (16, 32, 64, 128, 256)
TAPS = (1, 2, 3, 5, 7)
MAX_STAGES = 10
# Slower than this by estimate is not worth compiling.
WORTHWHILE = 1.25
ROUNDS = 3
TARGET_MS = 8.0
HANG_SECONDS = 30.0
# Kept back from the time limit, to finish a layer and write.
RESERVE_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    add_conv_arguments(parser, shapes="indices into the suite, or names of layers; all by default")
    parser.add_argument("--narrow", action="store_true", help="the shipped configurations only")
    parser.add_argument(
        "--resume", action="store_true", help="keep what --out holds and time the rest"
    )
    parser.add_argument("--jobs", type=int, default=0, help="compiling processes (cores - 1)")


# ---- What is tried -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What is varied.

    Attributes:
        config: The tile configuration.
        part_rounds: Parts of tiles that the busiest program has.
    """

    config: Any
    part_rounds: int

    def fields(self) -> dict[str, object]:
        """The JSON form."""
        return {"config": asdict(self.config), "part_rounds": self.part_rounds}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Choice:
        """The inverse of :meth:`fields`."""
        from triton_ext.ops.wgrad_config import WgradConfig

        return cls(WgradConfig(**fields["config"]), fields["part_rounds"])

    def __str__(self) -> str:
        c = self.config
        return (
            f"{c.block_co}x{c.block_ci}x{c.taps}_p{c.block_pixels}_s{c.num_stages}"
            f"_w{c.num_warps}_e{c.store_parts}_r{self.part_rounds}"
        )


def candidates(problem: Any, num_sms: int, narrow: bool = False) -> list[Choice]:
    """Returns what is worth timing for a problem, the shipped configurations first."""
    from triton_ext.ops.wgrad_config import CONFIGS, MOST_PART_ROUNDS, PLAIN_STORE, WgradTiles

    wide = [] if narrow else list(_tiles())
    found: dict[Any, tuple[float, Choice]] = {}
    for config in dict.fromkeys([*CONFIGS, *wide]):
        for part_rounds in range(1, MOST_PART_ROUNDS + 1):
            tiles = WgradTiles.make(config, problem, num_sms, part_rounds)
            # More rounds may give the same parts.
            if config.taps <= problem.taps and tiles.fits(PLAIN_STORE):
                found.setdefault(tiles, (_estimate_us(tiles), Choice(config, part_rounds)))
    best = min(estimate for estimate, _ in found.values())
    return [choice for estimate, choice in found.values() if estimate <= WORTHWHILE * best]


def _tiles() -> Iterator[Any]:
    """Every tile with 4 and 8 warps and as many stages as fit."""
    from triton_ext.ops.wgrad_config import MAX_ACCUMULATORS, PLAIN_STORE, WgradConfig

    for block_co in BLOCKS_CO:
        for block_ci in BLOCKS_CI:
            for taps in TAPS if block_ci < 128 else TAPS[:3]:
                for warps in (4, 8):
                    config = WgradConfig(
                        block_co=block_co,
                        block_ci=block_ci,
                        taps=taps,
                        num_stages=MAX_STAGES,
                        num_warps=warps,
                        store_parts=2 if block_co * block_ci > 128 * 128 else 1,
                    )
                    if config.problems() or config.accumulators > MAX_ACCUMULATORS:
                        continue
                    while not config.fits(PLAIN_STORE) and config.num_stages > 3:
                        config = dataclasses.replace(config, num_stages=config.num_stages - 1)
                    if config.fits(PLAIN_STORE):
                        yield config


def _estimate_us(tiles: Any) -> float:
    """A guess of a configuration's time from what WGMMA and TMA need for a step."""
    config, partition = tiles.config, tiles.partition
    # 64x64x64 products take 0.084 us of a multiprocessor, 128 bytes of a pixel 1.4 ns (H200).
    products = config.tile_elements * config.block_pixels / 64**3 * 0.084
    rows = math.ceil(config.block_co / 64) + config.taps * math.ceil(config.block_ci / 64)
    loads = rows * config.block_pixels * 1.4e-3
    added = tiles.workspace_elements * 4 / 2**20 * 0.5
    return 8.0 + partition.most_steps * float(max(products, loads)) + partition.rounds + added


# ---- Compiling ---------------------------------------------------------------------------------


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration's kernels into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`_job` made.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the first kernel asks for.
    """
    from triton_ext.ops import wgrad_plan
    from triton_ext.ops.machine import Machine
    from triton_ext.ops.wgrad_config import SMEM_BYTES

    machine = Machine(job["num_sms"], capability, SMEM_BYTES)
    wgrad_plan.machine_of = lambda device, operator: machine
    (layer,) = select_layers("all", [job["layer"]])
    operands = make_operands(layer.problem, job["dtype"], "meta")
    plan = _plan(operands, Choice.of(job))
    dw = operands.weight.movedim(1, -1)
    shared = 0
    for launcher, tensors in plan.launches(operands.x, operands.dy, dw):
        compiled = launcher.kernel.warmup(
            *tensors, *launcher.scalars, **launcher.constants, grid=launcher.grid,
            **launcher.options,
        )  # fmt: skip
        shared = max(shared, int(compiled.metadata.shared))
    return shared


def _plan(operands: Operands, choice: Choice) -> Any:
    from triton_ext.ops.wgrad_plan import make_plan

    x, dy = operands.x, operands.dy
    return make_plan(
        operands.problem, x.stride(), dy.stride(), x.dtype, x.device, choice.config,
        part_rounds=choice.part_rounds,
    )  # fmt: skip


# ---- Timing ------------------------------------------------------------------------------------


class ContextLostError(Exception):
    """The CUDA context is broken; nothing more can run in this process."""


class Sweep:
    """The state of a run: results per layer, and the file they go to."""

    def __init__(self, arguments: argparse.Namespace, environment: Environment) -> None:
        self.arguments = arguments
        self.out: pathlib.Path = arguments.out or DEFAULT_OUT
        self.environment = environment
        self.deadline = Deadline(arguments.time_limit)
        self.timer: Timer = make_timer(arguments, min(arguments.target_ms, TARGET_MS))
        self.num_sms = H200_MULTIPROCESSORS if arguments.dry_run else multiprocessors()
        self.layers: dict[str, dict[str, Any]] = {}
        if arguments.resume and self.out.exists():
            self.layers = json.loads(self.out.read_text("utf-8"))["layers"]

    def save(self) -> None:
        """Writes all that is known."""
        write_json(
            self.out,
            {
                "environment": asdict(self.environment),
                "dtype": self.arguments.dtype,
                "num_sms": self.num_sms,
                "layers": self.layers,
            },
        )

    def record(
        self, layer: Layer, choice: Choice, status: str, timing: Timing | None = None
    ) -> None:
        """Keeps what became of a configuration."""
        self.layers[layer.name]["results"].append(
            {
                **choice.fields(),
                "status": status,
                "ms": timing.ms if timing else None,
                "spread": timing.spread if timing else None,
            }
        )

    def wanted(self, layer: Layer) -> list[Choice]:
        """The configurations of a layer that no earlier run has timed."""
        entry = self.layers.setdefault(layer.name, {"cudnn_ms": None, "results": []})
        done = {Choice.of(result) for result in entry["results"]}
        every = candidates(layer.problem, self.num_sms, self.arguments.narrow)
        return [choice for choice in every if choice not in done]

    @contextlib.contextmanager
    def watched(self, layer: Layer, choice: Choice) -> Iterator[None]:
        """Ends the process, with everything saved, if the kernel inside does not come back."""

        def give_up() -> None:
            self.record(layer, choice, f"hangs: no end after {HANG_SECONDS:.0f} s")
            self.save()
            emit(f"{layer.name} {choice} hangs; use --resume")
            os._exit(3)

        watch = threading.Timer(HANG_SECONDS, give_up)
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()


def _check(
    sweep: Sweep, layer: Layer, operands: Operands, choice: Choice, reference: Any, limit: Any
) -> bool:
    """Runs a configuration once; tells whether the result is right."""
    import torch

    try:
        with sweep.watched(layer, choice):
            errors = measure_errors(_plan(operands, choice).run(operands.x, operands.dy), reference)
    except Exception as error:  # recorded; the sweep goes on unless the context is gone
        sweep.record(layer, choice, f"does not run: {type(error).__name__}: {str(error)[:200]}")
        try:
            torch.cuda.synchronize()
        except Exception as lost:
            raise ContextLostError(f"{layer.name} {choice}: {lost}") from error
        return False
    if not errors.within(limit):
        sweep.record(layer, choice, "wrong result")
    return errors.within(limit)


def _time_layer(sweep: Sweep, layer: Layer, choices: list[Choice]) -> None:
    """Checks the configurations of a layer, then times the right ones against each other."""
    rounds = min(sweep.arguments.rounds, ROUNDS)
    variants: dict[str, Function] = {BASELINE: lambda: None}
    right = choices
    if not sweep.arguments.dry_run:
        operands = make_operands(layer.problem, sweep.arguments.dtype)
        import torch

        torch.backends.cudnn.benchmark = False
        reference = operands.in_fp32().run_torch("wgrad")
        torch.backends.cudnn.benchmark = True
        variants[BASELINE] = lambda: operands.run_torch("wgrad")
        limit = measure_errors(variants[BASELINE](), reference)
        right = [c for c in choices if _check(sweep, layer, operands, c, reference, limit)]
        del reference
        for choice in right:
            plan = _plan(operands, choice)
            variants[str(choice)] = lambda plan=plan: plan.run(operands.x, operands.dy)
    else:
        variants |= {str(choice): lambda: None for choice in right}
    timings = time_interleaved(variants, sweep.timer, rounds)
    sweep.layers[layer.name]["cudnn_ms"] = timings[BASELINE].ms
    for choice in right:
        sweep.record(layer, choice, "ok", timings[str(choice)])


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong, 3 where the GPU has to be left."""
    if arguments.out is not None and arguments.out.suffix != ".json":
        emit(f"--out {arguments.out}: the sweep writes .json")
        return 2
    try:
        layers = select_layers(arguments.suite, arguments.shapes)
    except ValueError as error:
        emit(str(error))
        return 2
    environment = collect_environment()
    if not arguments.dry_run:
        if environment.device == "none":
            emit("no CUDA GPU: nothing to time (--dry-run shows the output without one)")
            return 2
        prepare_torch()
    sweep = Sweep(arguments, environment)
    announce(arguments, environment, sweep.timer)
    work = {layer: sweep.wanted(layer) for layer in layers}
    jobs = arguments.jobs or max(1, (os.cpu_count() or 2) - 1)
    total = sum(map(len, work.values()))
    emit(f"{len(layers)} layers, {total} configurations, compiled by {jobs} processes")
    code = 0
    with contextlib.ExitStack() as stack:
        pool = None
        if not arguments.dry_run:
            import torch

            pool = stack.enter_context(CompilePool(jobs, torch.cuda.get_device_capability()))
        try:
            _time_all(sweep, pool, work)
        except ContextLostError as error:
            emit(f"{error}; the results so far are in {sweep.out}; use --resume")
            code = 3
        sweep.save()
    wrong = sum(
        result["status"] == "wrong result"
        for layer in layers
        for result in sweep.layers[layer.name]["results"]
    )
    emit(f"{wrong} wrong results; written to {sweep.out}")
    return code or int(wrong > 0)


def _time_all(sweep: Sweep, pool: CompilePool | None, work: dict[Layer, list[Choice]]) -> None:
    futures: dict[tuple[Layer, Choice], Future[Compiled]] = {}
    if pool is not None:
        for layer, choices in work.items():
            for choice in choices:
                futures[layer, choice] = pool.submit_job(_job(sweep, layer, choice))
    for layer, choices in work.items():
        if sweep.deadline.left() < RESERVE_SECONDS:
            emit(f"{layer.name:<44} skipped (time limit)")
            for future in futures.values():
                future.cancel()
            continue
        ready = [c for c in choices if _is_ready(sweep, layer, c, futures.get((layer, c)))]
        if ready:
            _time_layer(sweep, layer, ready)
            sweep.save()
            _report(sweep, layer)


def _job(sweep: Sweep, layer: Layer, choice: Choice) -> dict[str, object]:
    return {
        "module": "benchmarks.wgrad_sweep",
        "layer": layer.name,
        "dtype": sweep.arguments.dtype,
        "num_sms": sweep.num_sms,
        **choice.fields(),
    }


def _is_ready(sweep: Sweep, layer: Layer, choice: Choice, future: Future[Compiled] | None) -> bool:
    """Waits for the compiler; tells whether there are kernels."""
    if future is None:
        return True
    left = sweep.deadline.left() - RESERVE_SECONDS / 2
    try:
        compiled = future.result(timeout=max(left, 0.0))
    except FutureTimeoutError:
        return False
    if compiled.error:
        sweep.record(layer, choice, f"does not compile: {compiled.error}")
    return not compiled.error


def _report(sweep: Sweep, layer: Layer) -> None:
    entry = sweep.layers[layer.name]
    timed = sorted(
        (result for result in entry["results"] if result["ms"]), key=lambda result: result["ms"]
    )
    bad = [result for result in entry["results"] if result["status"] != "ok"]
    best = "  ".join(
        f"{Choice.of(result)} {entry['cudnn_ms'] / result['ms']:.3f}" for result in timed[:3]
    )
    emit(f"{layer.name:<44} {len(timed)} timed, {len(bad)} bad; cuDNN/ours: {best}")
    for result in bad:
        emit(f"    {Choice.of(result)}: {result['status']}")
