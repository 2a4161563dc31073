"""Sweep of tile configurations: compile many, check each, time those that are right, write JSON.

Two phases: all candidate tiles with the default orders, then other orders of tiles and of the loop
and longer steps for the three fastest of each shape.  Compiling runs ahead in other processes while
the GPU times what is ready.  The JSON is written after each shape, for
:mod:`benchmarks.fit_config`.

A configuration that does not compile, does not fit, or computes something wrong is recorded as
such and skipped.  One that hangs, or breaks the CUDA context, ends the process after it has been
recorded; ``--resume`` goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.compile_ahead import Compiled, CompilePool
from benchmarks.conv_fprop import Tensors, describe_config, make_tensors
from benchmarks.conv_runs import (
    H200_MULTIPROCESSORS,
    announce,
    make_timer,
    multiprocessors,
    opened,
)
from benchmarks.harness import (
    Deadline,
    Environment,
    Errors,
    Function,
    Timer,
    Timing,
    emit,
    measure_errors,
    time_interleaved,
    write_json,
)
from benchmarks.shapes import ConvShape, select_shapes
from benchmarks.sweeping import (
    RESERVE_SECONDS,
    ROUNDS,
    TARGET_MS,
    ContextLostError,
    check_context,
    compiling_processes,
    earlier_results,
    is_compiled,
    out_file,
    watched,
)

__all__ = ["candidates", "run"]

DEFAULT_OUT = pathlib.Path("conv_fprop_sweep.json")
ELEMENT_BYTES = 2
BLOCKS_M = (64, 128, 256)
BLOCKS_N = (64, 128, 256)
GROUP_SIZES = (1, 4, 8, 16)
MAX_STAGES = 7
# fp32 accumulators per thread: more do not fit beside the rest, fewer leave warps without work.
ACCUMULATORS = (32, 128)
TUNED_PER_SHAPE = 3


def candidates(shape: ConvShape, num_sms: int, narrow: bool = False) -> list[Any]:
    """Returns the configurations worth timing for a shape, the shipped ones first.

    Left out: what does not fit shared memory or registers, and tiles so large for the problem that
    most of each, or most multiprocessors, would stay idle.
    """
    from triton_ext.ops.families.gemm_config import CONFIGS

    wide = [] if narrow else list(_tiles())
    unique = dict.fromkeys([*CONFIGS, *wide])
    return [c for c in unique if c.fits(ELEMENT_BYTES) and _worthwhile(c, shape, num_sms)]


def _tiles() -> Iterator[Any]:
    """Every tile with 4 and 8 warps, as many stages as fit, and one less."""
    for block_m in BLOCKS_M:
        for block_n in BLOCKS_N:
            for warps in (4, 8):
                accumulators = block_m * block_n // (32 * warps)
                if not ACCUMULATORS[0] <= accumulators <= ACCUMULATORS[1]:
                    continue
                whole = _deepest(block_m, block_n, warps, store_parts=1)
                halves = _deepest(block_m, block_n, warps, store_parts=2)
                yield from whole[:2]
                # Storing in two parts is for the sake of one more stage.
                if halves[0].num_stages > whole[0].num_stages:
                    yield halves[0]


def _deepest(block_m: int, block_n: int, num_warps: int, store_parts: int) -> list[Any]:
    """The configurations of a tile that fit shared memory, the one with the most stages first."""
    from triton_ext.ops.families.gemm_config import ConvConfig

    configs = [
        ConvConfig(
            block_m=block_m,
            block_n=block_n,
            num_stages=stages,
            num_warps=num_warps,
            store_parts=store_parts,
        )
        for stages in range(MAX_STAGES, 1, -1)
    ]
    return [config for config in configs if config.fits(ELEMENT_BYTES)]


def _worthwhile(config: Any, shape: ConvShape, num_sms: int) -> bool:
    if config.block_n > 64 and config.block_n >= 2 * shape.co:
        return False
    if config.block_m > 64 and config.block_m >= 2 * shape.m_gemm:
        return False
    tiles = math.ceil(shape.m_gemm / config.block_m) * math.ceil(shape.co / config.block_n)
    smallest = config.block_m == 64 and config.block_n == 64
    return smallest or bool(tiles * 4 >= num_sms)


@dataclass(slots=True)
class Result:
    """One configuration on one shape.

    Attributes:
        config: The configuration.
        status: ``ok``, ``pending``, or what went wrong.
        timing: Times, where it is ok.
        errors: Distance from the reference, where it ran.
        shared_bytes: Shared memory that the compiler asked for.
    """

    config: Any
    status: str = "pending"
    timing: Timing | None = None
    errors: Errors | None = None
    shared_bytes: int = 0

    def fields(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "config": asdict(self.config),
            "status": self.status,
            "ms": self.timing.ms if self.timing else None,
            "spread": self.timing.spread if self.timing else None,
            "error": self.errors.l2 if self.errors else None,
            "shared_bytes": self.shared_bytes,
        }


@dataclass(slots=True)
class ShapeResults:
    """All configurations of one shape."""

    shape: ConvShape
    results: list[Result] = field(default_factory=list)
    cudnn: Timing | None = None
    kept: dict[str, object] | None = None

    def fields(self) -> dict[str, object]:
        """The JSON form; what an earlier run measured stays in front."""
        if self.kept is not None and not self.results:
            return self.kept
        done = [result.fields() for result in self.results if result.status != "pending"]
        earlier: Any = self.kept["results"] if self.kept is not None else []
        measured = [result["config"] for result in done]
        return {
            "geometry": {**asdict(self.shape), "m_gemm": self.shape.m_gemm},
            "cudnn_ms": self.cudnn.ms if self.cudnn else None,
            "results": [r for r in earlier if r["config"] not in measured] + done,
        }

    def best(self, count: int) -> list[Result]:
        """The fastest configurations of this run."""
        timed = [r for r in self.results if r.timing is not None]
        return sorted(timed, key=lambda r: r.timing.ms if r.timing else math.inf)[:count]


class Sweep:
    """The state of a run: results per shape, and the file they go to."""

    def __init__(
        self, arguments: argparse.Namespace, environment: Environment, deadline: Deadline
    ) -> None:
        self.dtype: str = arguments.dtype
        self.rounds: int = min(arguments.rounds, ROUNDS)
        self.dry_run: bool = arguments.dry_run
        self.out = out_file(arguments, DEFAULT_OUT)
        self.environment = environment
        self.deadline = deadline
        self.timer: Timer = make_timer(arguments, TARGET_MS)
        self.num_sms = H200_MULTIPROCESSORS if self.dry_run else multiprocessors()
        self.shapes: dict[str, ShapeResults] = {}
        # Results of an earlier run that this one does not time.
        self.others: dict[str, dict[str, Any]] = {}

    def save(self) -> None:
        """Writes all that is known."""
        write_json(
            self.out,
            {
                "environment": asdict(self.environment),
                "dtype": self.dtype,
                "num_sms": self.num_sms,
                "shapes": {
                    **self.others,
                    **{name: each.fields() for name, each in self.shapes.items()},
                },
            },
        )

    def watched(self, result: Result, name: str) -> contextlib.AbstractContextManager[None]:
        """Ends the process, with everything saved, if the kernel inside does not come back."""

        def last_words(status: str) -> None:
            result.status = status
            self.save()
            emit(f"{name} {describe_config(result.config)}: {status}; use --resume")

        return watched(last_words)


def run(arguments: argparse.Namespace) -> int:
    """Runs the sweep; returns 1 where a result was wrong, 3 where the GPU has to be left."""
    out = out_file(arguments, DEFAULT_OUT)
    opening = opened(arguments, lambda: select_shapes(arguments.shapes), [".json"], out)
    if opening is None:
        return 2
    shapes, environment = opening
    earlier = earlier_results(arguments, out, "shapes")
    if earlier is None:
        return 2
    sweep = Sweep(arguments, environment, Deadline(arguments.time_limit))
    announce(arguments, environment, sweep.timer, sweep.rounds)
    for shape in shapes:
        kept = earlier.pop(shape.name, None)
        done = [entry["config"] for entry in kept["results"]] if kept is not None else []
        wanted = candidates(shape, sweep.num_sms, arguments.narrow)
        results = [Result(config) for config in wanted if asdict(config) not in done]
        sweep.shapes[shape.name] = ShapeResults(shape, results, kept=kept)
    sweep.others = earlier
    total = sum(len(each.results) for each in sweep.shapes.values())
    jobs = compiling_processes(arguments)
    emit(f"{len(shapes)} shapes, {total} configurations, compiled by {jobs} processes")
    code = 0
    with contextlib.ExitStack() as stack:
        pool: CompilePool | None = None
        if not arguments.dry_run:
            import torch

            capability = torch.cuda.get_device_capability()
            pool = stack.enter_context(CompilePool(jobs, capability))
        try:
            _phase(sweep, pool, {name: each.results for name, each in sweep.shapes.items()})
            if not arguments.narrow:
                _phase(sweep, pool, _variations(sweep))
        except ContextLostError as error:
            emit(f"{error}; the results so far are in {sweep.out}; use --resume")
            code = 3
        sweep.save()
    return code or _summarise(sweep)


def _variations(sweep: Sweep) -> dict[str, list[Result]]:
    """The fastest configurations of each shape, and what is worth changing about them.

    The fastest are timed again, so that all variations are compared within the same rounds.
    """
    more: dict[str, list[Result]] = {}
    for name, each in sweep.shapes.items():
        known = {result.config for result in each.results}
        best = each.best(TUNED_PER_SHAPE)
        wanted = [config for result in best for config in _varied(result.config, each.shape)]
        added = [Result(config) for config in dict.fromkeys(wanted) if config not in known]
        if added:
            more[name] = best + added
            each.results += added
    return more


def _varied(config: Any, shape: ConvShape) -> Iterator[Any]:
    """A configuration in other orders of tiles and of the loop, and with longer steps."""
    orders = [config]
    # With one tap or one block of channels there is one order; the same for one column of tiles.
    if shape.r * shape.s > 1 and shape.ci > config.block_k:
        orders.append(dataclasses.replace(config, taps_inner=not config.taps_inner))
    if config.block_n < shape.co:
        orders += [
            dataclasses.replace(order, group_size_m=size)
            for order in orders
            for size in GROUP_SIZES
        ]
    yield from orders
    if shape.ci > config.block_k:
        longer = dataclasses.replace(
            config, block_k=2 * config.block_k, num_stages=max(2, config.num_stages // 2)
        )
        if longer.fits(ELEMENT_BYTES):
            yield longer


def _phase(sweep: Sweep, pool: CompilePool | None, work: dict[str, list[Result]]) -> None:
    """Compiles everything in the order of the shapes; times each shape as soon as it is ready."""
    futures: dict[int, Future[Compiled]] = {}
    if pool is not None:
        for name, results in work.items():
            for result in results:
                shape = sweep.shapes[name].shape
                futures[id(result)] = pool.submit(shape, sweep.dtype, result.config)
    for name, results in work.items():
        if sweep.deadline.left() < RESERVE_SECONDS:
            emit(f"{name:<28} skipped (time limit)")
            for future in futures.values():
                future.cancel()
            continue
        if not results:
            continue
        ready = [r for r in results if _take_compiled(sweep, r, futures.get(id(r)))]
        try:
            _time_shape(sweep, sweep.shapes[name], ready)
        except ContextLostError:
            raise
        except Exception as error:  # one shape that fails as a whole must not end the others
            emit(f"{name:<28} FAILED: {type(error).__name__}: {str(error)[:300]}")
            check_context(name, error)
        sweep.save()
        _report(sweep.shapes[name], results)


def _take_compiled(sweep: Sweep, result: Result, future: Future[Compiled] | None) -> bool:
    """Waits for the compiler; tells whether there is a kernel."""

    def record(status: str) -> None:
        result.status = status

    ready = is_compiled(future, sweep.deadline, record)
    if ready and future is not None:
        result.shared_bytes = future.result().shared_bytes
    return ready


def _time_shape(sweep: Sweep, each: ShapeResults, results: list[Result]) -> None:
    """Checks the results of one shape, then times the right ones against each other and cuDNN."""
    if sweep.dry_run:
        _time_nothing(sweep, each, results)
        return
    tensors = make_tensors(each.shape, sweep.dtype)
    reference = tensors.reference()
    limit = measure_errors(tensors.torch(), reference)
    for result in results:
        with sweep.watched(result, each.shape.name):
            _check(result, tensors, reference, limit)
    del reference
    right = [result for result in results if result.status == "ok"]
    variants: dict[str, Function] = {"cudnn": tensors.torch}
    for result in right:
        variants[describe_config(result.config)] = _function(tensors, result.config)
    timings = time_interleaved(variants, sweep.timer, sweep.rounds)
    each.cudnn = timings["cudnn"]
    for result in right:
        result.timing = timings[describe_config(result.config)]


def _time_nothing(sweep: Sweep, each: ShapeResults, results: list[Result]) -> None:
    names = ["cudnn"] + [describe_config(result.config) for result in results]
    timings = time_interleaved(dict.fromkeys(names, lambda: None), sweep.timer, sweep.rounds)
    each.cudnn = timings["cudnn"]
    for result in results:
        result.status, result.timing = "ok", timings[describe_config(result.config)]


def _function(tensors: Tensors, config: Any) -> Function:
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import make_plan

    x, problem = tensors.x, tensors.shape.problem()
    case = Case(direction="fprop", problem=problem, dtype=x.dtype, x_strides=x.stride())
    return lambda: make_plan(case, x.device, config).run(x, tensors.weight)


def _check(result: Result, tensors: Tensors, reference: Any, limit: Errors) -> None:
    """Runs a configuration once and sets its status.

    Raises:
        ContextLostError: The GPU answers nothing any more.
    """
    try:
        result.errors = measure_errors(_function(tensors, result.config)(), reference)
    except Exception as error:  # recorded; the sweep goes on unless the context is gone
        result.status = f"does not run: {type(error).__name__}: {str(error)[:200]}"
        check_context(f"{tensors.shape.name} {describe_config(result.config)}", error)
        return
    result.status = "ok" if result.errors.within(limit) else "wrong result"


def _report(each: ShapeResults, results: list[Result]) -> None:
    bad = [r for r in results if r.status not in ("ok", "pending")]
    best = each.best(TUNED_PER_SHAPE)
    cudnn_ms = each.cudnn.ms if each.cudnn else math.nan
    shown = "  ".join(
        f"{describe_config(r.config)} {cudnn_ms / r.timing.ms:.3f}" for r in best if r.timing
    )
    emit(f"{each.shape.name:<28} {len(results)} tried, {len(bad)} bad; cuDNN/ours: {shown}")
    for result in bad:
        emit(f"    {describe_config(result.config)}: {result.status}")


def _summarise(sweep: Sweep) -> int:
    results = [result for each in sweep.shapes.values() for result in each.results]
    wrong = sum(result.status == "wrong result" for result in results)
    pending = sum(result.status == "pending" for result in results)
    emit()
    emit(
        f"{sum(r.status == 'ok' for r in results)} timed, {wrong} wrong, {pending} not reached; "
        f"written to {sweep.out}"
    )
    return 1 if wrong else 0
