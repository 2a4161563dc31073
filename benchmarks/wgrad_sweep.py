"""Sweep of wgrad's tile configurations: compile many, check each, time those that are right.

Of the @triton.jit kernel, and of the Gluon kernel where that takes a layer.  The JSON that it
writes, after each layer, is what ``python -m benchmarks.make_table`` makes a table of.
Compiling runs ahead in other processes while the GPU times what is ready.  What does not compile or
computes something wrong is recorded as such and skipped; what hangs or breaks the CUDA context ends
the process after it has been recorded, and ``--resume`` goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.compile_ahead import CompilePool
from benchmarks.conv_runs import add_suite_arguments, announce, opened_suite
from benchmarks.conv_variants import BASELINE, Operands, make_operands
from benchmarks.harness import Environment, Function, Timing, emit, measure_errors, time_interleaved
from benchmarks.suites import Layer, select_layers
from benchmarks.sweeping import (
    ContextLostError,
    LayerSweep,
    add_sweep_arguments,
    check_context,
    compiled_layers,
    compiling_processes,
    earlier_results,
    gradient_of_torch,
    out_file,
    watched,
)

__all__ = [
    "Candidate",
    "Choice",
    "GluonChoice",
    "add_arguments",
    "candidate_of",
    "candidates",
    "compile_job",
    "run",
]

DEFAULT_OUT = pathlib.Path("wgrad_sweep.json")
# Under which the layers stand in that file.
KEY = "layers"
BLOCKS_CO = (64, 128, 256)
BLOCKS_CI = (16, 32, 64, 128, 256)
TAPS = (1, 2, 3, 5, 7)
MAX_STAGES = 10
# A thread has 255 registers; some 35 are for the rest, and the compiler needs room.
MAX_ACCUMULATORS = 192
# Slower than this by estimate is not worth compiling.
WORTHWHILE = 1.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    add_suite_arguments(parser)
    add_sweep_arguments(parser)


# ---- What is tried -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """One point of the sweep.

    Attributes:
        config: The tile configuration.
        part_rounds: Parts of tiles of the busiest program.
    """

    config: Any
    part_rounds: int

    def fields(self) -> dict[str, object]:
        """The JSON form."""
        return {"config": asdict(self.config), "part_rounds": self.part_rounds}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Choice:
        """The inverse of :meth:`fields`."""
        from triton_ext.ops.families.wgrad import WgradConfig

        return cls(WgradConfig(**fields["config"]), fields["part_rounds"])

    def entry(self) -> Any:
        """Returns the entry of plans and tables."""
        from triton_ext.ops.families.wgrad import WgradChoice

        return WgradChoice(config=self.config, part_rounds=self.part_rounds)

    def tiles(self, problem: Any, num_sms: int) -> Any:
        """The tiles of a problem."""
        return self.entry().tiles(problem, num_sms)

    def __str__(self) -> str:
        c = self.config
        return (
            f"{c.block_co}x{c.block_ci}x{c.taps}_p{c.block_pixels}_s{c.num_stages}"
            f"_w{c.num_warps}_e{c.store_parts}_r{self.part_rounds}"
        )


@dataclass(frozen=True, slots=True)
class GluonChoice:
    """One point of the sweep of the Gluon kernel.

    Attributes:
        config: The tile configuration.
        add_in_place: Whether the CTA with a tile's last part adds the others.
    """

    config: Any
    add_in_place: bool

    def fields(self) -> dict[str, object]:
        """The JSON form."""
        fields = {"config": asdict(self.config), "add_in_place": self.add_in_place}
        return {"kind": GLUON_KIND, **fields}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> GluonChoice:
        """The inverse of :meth:`fields`."""
        from triton_ext.ops.families.gluon_wgrad import WgradTileConfig

        return cls(WgradTileConfig(**fields["config"]), fields["add_in_place"])

    def entry(self) -> Any:
        """Returns the entry of plans and tables."""
        from triton_ext.ops.families.gluon_wgrad import WgradTileChoice

        return WgradTileChoice(config=self.config, add_in_place=self.add_in_place)

    def tiles(self, problem: Any, num_sms: int) -> Any:
        """The tiles of a problem, and who computes them."""
        return self.entry().tiles(problem, num_sms)

    def __str__(self) -> str:
        return f"{self.config}_{'a' if self.add_in_place else 'k'}"


Candidate = Choice | GluonChoice

# Kind of entries in tuning's tables; results of the other kernel have none.
GLUON_KIND = "gluon_wgrad"


def candidate_of(fields: dict[str, Any]) -> Candidate:
    """Returns what has the fields in a sweep."""
    return GluonChoice.of(fields) if fields.get("kind") == GLUON_KIND else Choice.of(fields)


def candidates(problem: Any, num_sms: int, narrow: bool = False) -> list[Candidate]:
    """Returns what is worth timing for a problem, the shipped configurations first."""
    every = [_jit_candidates(problem, num_sms, narrow)]
    if _is_for_gluon(problem, num_sms):
        every.append(_gluon_candidates(problem, num_sms, narrow))
    kept: list[Candidate] = []
    for found in every:
        # Estimates of the two kernels are not compared: the sweep is to find out.
        best = min(estimate for estimate, _ in found.values())
        kept += [choice for us, choice in found.values() if us <= WORTHWHILE * best]
    return kept


def _jit_candidates(problem: Any, num_sms: int, narrow: bool) -> dict[Any, tuple[float, Candidate]]:
    from triton_ext.ops.families.wgrad import CONFIGS, MOST_PART_ROUNDS

    wide = [] if narrow else list(_tiles())
    found: dict[Any, tuple[float, Candidate]] = {}
    for config in dict.fromkeys([*CONFIGS, *wide]):
        for part_rounds in range(1, MOST_PART_ROUNDS + 1):
            choice = Choice(config, part_rounds)
            tiles = choice.tiles(problem, num_sms)
            # More rounds may give the same parts.
            has_whole = tiles.partition.tiles > tiles.split_tiles
            if config.taps <= problem.taps and _fits(config, has_whole):
                found.setdefault(tiles, (_estimate_us(tiles), choice))
    return found


def _fits(config: Any, has_whole: bool = True) -> bool:
    """Tells whether a CTA has the shared memory; dw has 16-bit elements and is stored by TMA."""
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.core.refusals import smem_refusals

    return not smem_refusals(config.smem_bytes(2 if has_whole else 0), KNOWN["h200"])


def _is_for_gluon(problem: Any, num_sms: int) -> bool:
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN
    from triton_ext.ops.families.gluon_wgrad import GLUON_WGRAD

    # The layer's own type makes no difference among 16-bit types.
    case = Case(direction="wgrad", problem=problem, dtype=torch.float16)
    return not GLUON_WGRAD.refusals(case, dataclasses.replace(KNOWN["h200"], num_sms=num_sms))


def _gluon_candidates(
    problem: Any, num_sms: int, narrow: bool
) -> dict[Any, tuple[float, Candidate]]:
    from triton_ext.ops.families.gluon_wgrad import CONFIGS, tile_refusals

    wide = [] if narrow else list(_gluon_tiles())
    found: dict[Any, tuple[float, Candidate]] = {}
    for config in dict.fromkeys([*CONFIGS, *wide]):
        for in_place in (False, True):
            choice = GluonChoice(config, in_place)
            work = choice.tiles(problem, num_sms)
            if not tile_refusals(work) and (work.split_tiles or not in_place):
                found[work] = (_gluon_estimate_us(work), choice)
    return found


def _gluon_tiles() -> Iterator[Any]:
    """Every tile of two accumulators at most, with as many stages as fit."""
    from triton_ext.ops.families.gluon_wgrad import WgradTileConfig

    shares: list[tuple[Any, int]] = [("columns", 1), ("columns", 2), ("columns", 3)]
    shares += [("rows", 2), ("tile", 2)]
    accumulators = ((1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2))
    sides = (False, True)
    for (share, consumers), (main, rest), rows_from_x in itertools.product(
        shares, accumulators, sides
    ):
        for pixels, stages in ((64, MAX_STAGES), (32, 2 * MAX_STAGES)):
            config = WgradTileConfig(
                rows_from_x=rows_from_x,
                share=share,
                consumers=consumers,
                main_blocks=main,
                rest_blocks=rest,
                rest_consumers=consumers if share == "rows" and rest else 0,
                pixels=pixels,
                stages=stages,
                store_buffers=1 if rest else 2,
            )
            while config.refusals() and config.stages > 3:
                config = dataclasses.replace(config, stages=config.stages - 1)
            if not config.refusals():
                yield config


def _gluon_estimate_us(work: Any) -> float:
    """A guess of a time, as :func:`_estimate_us`."""
    config, partition = work.config, work.partition
    pixels = config.step_pixels
    products = config.tile_elements * pixels / 64**3 * 0.084
    loads = (config.row_blocks + config.column_blocks) * pixels * 1.4e-3
    added = work.slots * config.tile_elements * 4 / 2**20 * 0.5
    return 8.0 + partition.most_steps * float(max(products, loads)) + partition.rounds + added


def _tiles() -> Iterator[Any]:
    """Every tile with 4 and 8 warps and as many stages as fit."""
    from triton_ext.ops.families.wgrad import WgradConfig

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
                    if config.refusals() or config.accumulators > MAX_ACCUMULATORS:
                        continue
                    while not _fits(config) and config.num_stages > 3:
                        config = dataclasses.replace(config, num_stages=config.num_stages - 1)
                    if _fits(config):
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
        Bytes of shared memory that the largest kernel asks for.
    """
    import torch
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.device import KNOWN, Device
    from triton_ext.ops.tuning.measure import compile_plan

    (layer,) = select_layers("all", [job["layer"]])
    case = Case(direction="wgrad", problem=layer.problem, dtype=getattr(torch, job["dtype"]))
    device = Device(job["num_sms"], capability, KNOWN["h200"].smem_bytes)
    return compile_plan(case, candidate_of(job).entry(), device)


def _plan(operands: Operands, choice: Candidate) -> Any:
    from triton_ext.ops.core.case import Case
    from triton_ext.ops.core.planner import make_plan

    x, dy = operands.x, operands.dy
    case = Case(
        direction="wgrad",
        problem=operands.problem,
        dtype=x.dtype,
        x_strides=x.stride(),
        dy_strides=dy.stride(),
    )
    return make_plan(case, x.device, choice.entry())


# ---- Timing ------------------------------------------------------------------------------------


class Sweep(LayerSweep):
    """The state of a run: results per layer; those of an earlier one are added to."""

    def __init__(self, arguments: argparse.Namespace, environment: Environment) -> None:
        super().__init__(arguments, environment, DEFAULT_OUT, key=KEY)

    def record(
        self, layer: Layer, choice: Candidate, status: str, timing: Timing | None = None
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

    def wanted(self, layer: Layer) -> list[Candidate]:
        """The configurations of a layer that no earlier run has timed."""
        entry = self.layers.setdefault(layer.name, {"cudnn_ms": None, "results": []})
        done = {candidate_of(result) for result in entry["results"]}
        every = candidates(layer.problem, self.num_sms, self.arguments.narrow)
        return [choice for choice in every if choice not in done]

    def watched(self, layer: Layer, choice: Candidate) -> contextlib.AbstractContextManager[None]:
        """Ends the process, with everything saved, if the kernel inside does not come back."""

        def last_words(status: str) -> None:
            self.record(layer, choice, status)
            self.save()
            emit(f"{layer.name} {choice} hangs; use --resume")

        return watched(last_words)


def _check(
    sweep: Sweep, layer: Layer, operands: Operands, choice: Candidate, reference: Any, limit: Any
) -> bool:
    """Runs a configuration once; tells whether the result is right."""
    try:
        with sweep.watched(layer, choice):
            errors = measure_errors(_plan(operands, choice).run(operands.x, operands.dy), reference)
    except Exception as error:  # recorded; the sweep goes on unless the context is gone
        sweep.record(layer, choice, f"does not run: {type(error).__name__}: {str(error)[:200]}")
        check_context(f"{layer.name} {choice}", error)
        return False
    if not errors.within(limit):
        sweep.record(layer, choice, "wrong result")
    return errors.within(limit)


def _time_layer(sweep: Sweep, layer: Layer, choices: list[Candidate]) -> None:
    """Checks the configurations of a layer, then times the right ones against each other."""
    variants: dict[str, Function] = {BASELINE: lambda: None}
    right = choices
    if not sweep.arguments.dry_run:
        operands = make_operands(layer.problem, sweep.arguments.dtype)
        reference, variants[BASELINE], limit = gradient_of_torch(operands, "wgrad")
        right = [c for c in choices if _check(sweep, layer, operands, c, reference, limit)]
        del reference
        for choice in right:
            plan = _plan(operands, choice)
            variants[str(choice)] = lambda plan=plan: plan.run(operands.x, operands.dy)
    else:
        variants |= {str(choice): lambda: None for choice in right}
    timings = time_interleaved(variants, sweep.timer, sweep.rounds)
    sweep.layers[layer.name]["cudnn_ms"] = timings[BASELINE].ms
    for choice in right:
        sweep.record(layer, choice, "ok", timings[str(choice)])


def run(arguments: argparse.Namespace) -> int:
    """Runs the case; returns 1 where a result was wrong, 3 where the GPU has to be left."""
    out = out_file(arguments, DEFAULT_OUT)
    opening = opened_suite(arguments, [".json"], out)
    if opening is None:
        return 2
    layers, environment = opening
    earlier = earlier_results(arguments, out, KEY)
    if earlier is None:
        return 2
    sweep = Sweep(arguments, environment)
    sweep.layers = earlier
    announce(arguments, environment, sweep.timer, sweep.rounds)
    work = {layer: sweep.wanted(layer) for layer in layers}
    jobs = compiling_processes(arguments)
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
    wrong = sweep.finish(layers)
    return code or wrong


def _time_all(sweep: Sweep, pool: CompilePool | None, work: dict[Layer, list[Candidate]]) -> None:
    for layer, ready in compiled_layers(sweep, pool, work, functools.partial(_job, sweep)):
        if ready:
            _time_layer(sweep, layer, ready)
            sweep.save()
            _report(sweep, layer)


def _job(sweep: Sweep, layer: Layer, choice: Candidate) -> dict[str, object]:
    return {
        "module": "benchmarks.wgrad_sweep",
        "layer": layer.name,
        "dtype": sweep.arguments.dtype,
        "num_sms": sweep.num_sms,
        **choice.fields(),
    }


def _report(sweep: Sweep, layer: Layer) -> None:
    entry = sweep.layers[layer.name]
    timed = sorted(
        (result for result in entry["results"] if result["ms"]), key=lambda result: result["ms"]
    )
    bad = [result for result in entry["results"] if result["status"] != "ok"]
    best = "  ".join(
        f"{candidate_of(result)} {entry['cudnn_ms'] / result['ms']:.3f}" for result in timed[:3]
    )
    emit(f"{layer.name:<44} {len(timed)} timed, {len(bad)} bad; cuDNN/ours: {best}")
    for result in bad:
        emit(f"    {candidate_of(result)}: {result['status']}")
