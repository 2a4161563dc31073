"""Every tile configuration of a Gluon kernel, timed: ``python -m benchmarks gluon_conv --sweep``.

What is tried is every legal configuration of a grid (``--narrow``: the shipped ones), as
``triton_ext.ops`` launches them.  All are compiled ahead by other processes, checked against torch
in fp32, and timed beside cuDNN; what does not compile or is wrong stays in the CSV with the reason.
``python -m benchmarks.fit_gluon`` fits the model that chooses to the CSV, on any machine.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.compile_ahead import CompilePool
from benchmarks.conv_runs import H200_MULTIPROCESSORS, announce, make_timer, multiprocessors, opened
from benchmarks.conv_variants import BASELINE, Operands, case_of, make_operands
from benchmarks.harness import Deadline, emit, geometric_mean, time_interleaved, write_rows
from benchmarks.shapes import ConvShape, select_shapes
from benchmarks.sweeping import (
    RESERVE_SECONDS,
    ROUNDS,
    TARGET_MS,
    check_context,
    compiling_processes,
    gradient_of_torch,
    is_compiled,
    out_file,
    watched,
)

__all__ = ["candidates", "compile_job", "jit_config", "model_us", "run_sweep"]

WIDTHS = ((32, 0), (64, 0), (128, 0), (256, 0), (128, 32), (128, 64), (256, 64))
# (rows, consumers, in ping-pong).
ROLES = ((64, 2, True), (128, 2, True), (64, 1, False), (64, 2, False), (64, 3, False))
STORES = ((64, 1), (32, 2))
GROUPS_M = (2, 8)
# Widths of tiles whose rows are output channels.
TURNED_WIDTHS = ((64, 0), (128, 0), (256, 0), (64, 16), (64, 32), (128, 16), (128, 32), (128, 64))
TURNED_ROLES = ((64, 1, False), (64, 2, False), (64, 3, False))
TURNED_STORES = ((16, 2), (32, 2))
MOST_STAGES = 12


def _ranking(kernel: Any, problem: Any, dtype: Any, num_sms: int) -> list[Any]:
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import SMEM_BYTES, Device

    case = Case(direction=kernel, problem=problem, dtype=dtype)
    tap_by_tap = ("wgrad", "gluon_wgrad", "depthwise_wgrad") if kernel == "wgrad" else None
    return planner.ranking(case, Device(num_sms, (9, 0), SMEM_BYTES), tap_by_tap)


def jit_config(kernel: str, problem: Any, dtype: Any, num_sms: int) -> Any:
    """Returns the configuration that the @triton.jit kernel's model considers fastest."""
    from triton_ext.ops.families.gemm_config import ConvConfig
    from triton_ext.ops.families.wgrad import WgradChoice

    ranked = _ranking(kernel, problem, dtype, num_sms)
    return next(config for config in ranked if isinstance(config, (ConvConfig, WgradChoice)))


# ---- What is tried -----------------------------------------------------------------------------


def _tiles(block_k: int, *, rows_from_w: bool = False) -> Iterator[Any]:
    """Every legal tile of the forward and input gradient kernels, with all stages that fit."""
    from triton_ext.ops.families.gluon_config import TileConfig

    axes: Any = (ROLES, WIDTHS, STORES, GROUPS_M)
    if rows_from_w:
        axes = (TURNED_ROLES, TURNED_WIDTHS, TURNED_STORES, GROUPS_M)
    for (rows, consumers, turns), (main, rest), (store_n, buffers), group_m in itertools.product(
        *axes
    ):
        made = TileConfig(
            rows=rows, consumers=consumers, ping_pong=turns, block_n_main=main, block_n_rest=rest,
            block_k=block_k, stages=2, store_n=min(store_n, main), store_buffers=buffers,
            group_m=group_m, rows_from_w=rows_from_w,
        )  # fmt: skip
        fitting = [
            config
            for stages in range(2, MOST_STAGES + 1)
            if not (config := replace(made, stages=stages)).refusals()
        ]
        # Tiles with one WGMMA for both accumulators may have room for a stage less.
        joined = [config for config in fitting if config.joins]
        yield from dict.fromkeys([*fitting[-1:], *joined[-1:]])


def _product(kernel: Any, problem: Any, dtype: Any) -> Any:
    """The product that a problem is to the kernel of fprop or dgrad."""
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.families.gluon import product_of

    return product_of(Case(direction=kernel, problem=problem, dtype=dtype))


def candidates(
    kernel: str, problem: Any, num_sms: int, dtype: Any = None, *, narrow: bool = False
) -> list[Any]:
    """Returns what is tried of the Gluon kernel, what its model takes for the fastest first."""
    import torch
    from triton_ext.ops.families.gluon_config import TileConfig, keep_filter
    from triton_ext.ops.families.wgrad import WgradChoice

    ranked = _ranking(kernel, problem, dtype or torch.float16, num_sms)
    if kernel == "wgrad":
        return [config for config in ranked if not isinstance(config, WgradChoice)]
    shipped = [config for config in ranked if isinstance(config, TileConfig)]
    if narrow or not shipped:
        return shipped
    block_k = shipped[0].block_k
    product = _product(kernel, problem, dtype or torch.float16)
    steps = product.steps(block_k)
    wide = [c for c in _tiles(block_k) if c.block_n_main < 2 * max(product.columns, 32)]
    turned = []
    if kernel == "fprop" and problem.is_pointwise:
        turned = [*_tiles(block_k, rows_from_w=True)]
    kept = [
        k for c in wide if steps and not c.block_n_rest and (k := keep_filter(c, steps)) is not None
    ]
    legal = [
        c for c in (*wide, *kept) if not (c.refusals() or c.fit_refusals(product, num_sms))
    ] + turned
    return list(dict.fromkeys([*shipped, *legal]))


def model_us(kernel: str, problem: Any, config: Any, num_sms: int) -> float:
    """Returns the model's time of a shipped configuration, in microseconds; else NaN."""
    import torch
    from triton_ext.ops.families.gluon_config import expected_times

    if kernel == "wgrad":
        return float("nan")
    # The layer's own type makes no difference among 16-bit types.
    times = expected_times(_product(kernel, problem, torch.float16), num_sms)
    return times.get(config, float("nan"))


def name_of(config: Any) -> str:
    """A configuration in one word."""
    inner = getattr(config, "config", None)
    if inner is None:
        return str(config)
    return f"{inner}_{'a' if config.add_in_place else 'k'}"


# ---- Compiling ---------------------------------------------------------------------------------


def _job(kernel: str, shape: ConvShape, dtype: str, num_sms: int, config: Any) -> dict[str, Any]:
    from triton_ext.ops.core.tables import encode, kind_of

    return {
        "module": "benchmarks.gluon_sweep",
        "kernel": kernel,
        "shape": shape.name,
        "dtype": dtype,
        "num_sms": num_sms,
        "kind": kind_of(config),
        "config": encode(config),
    }


def compile_job(job: dict[str, Any], capability: tuple[int, int]) -> int:
    """Compiles a configuration into Triton's cache; the compiling process calls it.

    Args:
        job: What :func:`run_sweep` asked for.
        capability: Compute capability of the target.

    Returns:
        Bytes of shared memory that the kernel asks for.
    """
    from triton_ext.ops.core.device import SMEM_BYTES, Device
    from triton_ext.ops.core.tables import decode
    from triton_ext.ops.tuning.measure import compile_plan

    (shape,) = select_shapes([job["shape"]])
    case = case_of(job["kernel"], shape.problem(), job["dtype"])
    machine = Device(job["num_sms"], capability, SMEM_BYTES)
    return compile_plan(case, decode(job["kind"], job["config"]), machine)


def _submit(
    pool: CompilePool, work: dict[ConvShape, list[Any]], kernel: str, dtype: str, num_sms: int
) -> dict[tuple[ConvShape, Any], Any]:
    """Has everything compiled, in the order of the shapes; what shapes share, once."""
    found: dict[tuple[ConvShape, Any], Any] = {}
    shared: dict[object, Any] = {}
    for shape, configs in work.items():
        # Kernels are compiled per kind and configuration; wgrad's depend on more.
        kind: object = (shape.r * shape.s == 1, shape.stride)
        if kernel == "wgrad":
            kind = shape
        for config in configs:
            if (kind, config) not in shared:
                job = _job(kernel, shape, dtype, num_sms, config)
                shared[kind, config] = pool.submit_job(job)
            found[shape, config] = shared[kind, config]
    return found


# ---- Timing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A configuration of a shape, and what became of it.

    Attributes:
        kernel: fprop, dgrad or wgrad.
        shape: The shape.
        config: The configuration.
        num_sms: Multiprocessors of the GPU.
        dtype: Of the operands, by torch's name.
        chosen: Whether the model takes it for the fastest.
        status: "ok", or why there is no time.
        us: Its time in microseconds, or NaN.
        spread: (slowest - fastest round) / median.
        cudnn_us: cuDNN's time in the same rounds.
    """

    kernel: str
    shape: ConvShape
    config: Any
    num_sms: int
    dtype: str
    chosen: bool
    status: str = "ok"
    us: float = float("nan")
    spread: float = float("nan")
    cudnn_us: float = float("nan")

    def fields(self) -> dict[str, object]:
        """The row of the CSV."""
        from triton_ext.ops.core.tables import encode, kind_of

        return {
            "kernel": self.kernel,
            "shape": self.shape.name,
            "num_sms": self.num_sms,
            "dtype": self.dtype,
            "name": name_of(self.config),
            "kind": kind_of(self.config),
            "config": json.dumps(encode(self.config)),
            "chosen": self.chosen,
            "status": self.status,
            "us": self.us,
            "spread": self.spread,
            "cudnn_us": self.cudnn_us,
            "model_us": model_us(self.kernel, self.shape.problem(), self.config, self.num_sms),
        }


def _is_right(plan_run: Any, reference: Any, limit: Any, what: str) -> str:
    """Runs a configuration; returns what is wrong with it."""
    from benchmarks.harness import measure_errors

    try:
        with watched(lambda text: emit(f"{what}: {text}")):
            errors = measure_errors(plan_run(), reference)
    except Exception as error:  # recorded; whatever one does, the others may be right
        check_context(what, error)
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "" if errors.within(limit) else f"wrong result, error {errors.maximum:.1e}"


def _measure(
    kernel: str,
    operands: Operands,
    entries: Sequence[Entry],
    timer: Any,
    dtype: str,
    rounds: int,
) -> list[Entry]:
    """Checks and times the configurations of a shape."""
    from triton_ext.ops.core.epilogue import NO_OPERANDS
    from triton_ext.ops.core.planner import make_plan
    from triton_ext.ops.tuning.measure import run_plan

    case = case_of(kernel, operands.problem, dtype)
    pairs = {
        "fprop": (operands.x, operands.weight),
        "dgrad": (operands.dy, operands.weight),
        "wgrad": (operands.x, operands.dy),
    }[kernel]
    reference, baseline, limit = gradient_of_torch(operands, kernel)
    variants: dict[str, Any] = {BASELINE: baseline}
    found = []
    for entry in entries:
        if entry.status == "ok":
            what = f"{entry.shape.name} {name_of(entry.config)}"
            try:
                plan = make_plan(case, operands.x.device, entry.config)
            except Exception as error:  # recorded
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
            else:
                call = functools.partial(run_plan, case, plan, (pairs, NO_OPERANDS))
                wrong = _is_right(call, reference, limit, what)
            if wrong:
                entry = replace(entry, status=wrong)
            else:
                variants[name_of(entry.config)] = call
        found.append(entry)
    del reference
    timings = time_interleaved(variants, timer, rounds)
    cudnn_us = timings[BASELINE].ms * 1e3
    return [
        replace(e, us=t.ms * 1e3, spread=t.spread, cudnn_us=cudnn_us)
        if (t := timings.get(name_of(e.config))) is not None and e.status == "ok"
        else e
        for e in found
    ]


def _invented(entries: Sequence[Entry], timer: Any, rounds: int) -> list[Entry]:
    """The dry run's stand-in for :func:`_measure`."""
    names = {name_of(entry.config): lambda: None for entry in entries}
    timings = time_interleaved({BASELINE: lambda: None, **names}, timer, rounds)
    cudnn_us = timings[BASELINE].ms * 1e3
    return [replace(e, us=timings[name_of(e.config)].ms * 1e3, cudnn_us=cudnn_us) for e in entries]


def run_sweep(arguments: argparse.Namespace) -> int:
    """Runs the sweep; returns 1 where a result was wrong."""
    kernel, dtype, dry_run = arguments.kernel, arguments.dtype, arguments.dry_run
    out = out_file(arguments, pathlib.Path(f"gluon_{kernel}_sweep.csv"))
    opening = opened(arguments, lambda: select_shapes(arguments.shapes), [".csv"], out)
    if opening is None:
        return 2
    shapes, environment = opening
    import torch

    num_sms = H200_MULTIPROCESSORS if dry_run else multiprocessors()
    deadline = Deadline(arguments.time_limit)
    timer = make_timer(arguments, min(arguments.target_ms, TARGET_MS))
    rounds = min(arguments.rounds, ROUNDS)
    announce(arguments, environment, timer, rounds)
    kind = getattr(torch, dtype)
    work = {
        shape: candidates(kernel, shape.problem(), num_sms, kind, narrow=arguments.narrow)
        for shape in shapes
    }
    jobs = compiling_processes(arguments)
    emit(f"{sum(map(len, work.values()))} configurations, compiled by {jobs} processes")
    entries: list[Entry] = []
    pool = None if dry_run else CompilePool(jobs, torch.cuda.get_device_capability())
    try:
        futures = {} if pool is None else _submit(pool, work, kernel, dtype, num_sms)
        for shape, configs in work.items():
            if deadline.left() < RESERVE_SECONDS:
                emit(f"{shape.name:<28} skipped (time limit)")
                for future in futures.values():
                    future.cancel()
                continue
            found = []
            for number, config in enumerate(configs):
                statuses: list[str] = []
                future = futures.get((shape, config))
                ready = is_compiled(future, deadline, statuses.append)
                status = "ok" if ready else (statuses or ["not compiled in time"])[0]
                found.append(Entry(kernel, shape, config, num_sms, dtype, number == 0, status))
            if dry_run:
                found = _invented(found, timer, rounds)
            else:
                operands = make_operands(shape.problem(), dtype)
                found = _measure(kernel, operands, found, timer, dtype, rounds)
            entries += found
            write_rows(out, environment, [entry.fields() for entry in entries])
            emit(_line(found))
    finally:
        if pool is not None:
            pool.__exit__(None, None, None)
    return _finish(entries, out)


def _line(entries: Sequence[Entry]) -> str:
    """The best of a shape beside what is chosen."""
    timed = [entry for entry in entries if entry.us == entry.us]
    name = entries[0].shape.name if entries else "nothing"
    if not timed:
        return f"{name:<28} none of {len(entries)} was timed: {entries[0].status}"
    best = min(timed, key=lambda entry: entry.us)
    chosen = next((entry for entry in timed if entry.chosen), None)
    text = f"{name:<28} cuDNN {best.cudnn_us:.1f} us, best {best.us:.1f} ({name_of(best.config)})"
    if chosen is not None:
        text += f", chosen {chosen.us:.1f} ({name_of(chosen.config)})"
        text += f", {chosen.us / best.us:.3f}x"
    failed = sum(entry.status != "ok" for entry in entries)
    return f"{text}; {len(timed)} timed" + (f", {failed} failed" if failed else "")


def _finish(entries: Sequence[Entry], out: pathlib.Path) -> int:
    by_shape: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.us == entry.us:
            by_shape.setdefault(entry.shape.name, []).append(entry)
    best = [min(found, key=lambda entry: entry.us) for found in by_shape.values()]
    chosen = [entry for found in by_shape.values() for entry in found if entry.chosen]
    for what, some in (("best", best), ("chosen", chosen)):
        mean = geometric_mean([entry.cudnn_us / entry.us for entry in some])
        emit(f"cudnn/{what}, geometric mean of {len(some)} shapes: {mean:.3f}")
    wrong = sum(entry.status.startswith("wrong") for entry in entries)
    emit(f"{wrong} wrong results; written to {out}")
    return int(wrong > 0)
