"""Measures layers beside cuDNN: the planner's choices, and candidates of all families.

A layer is a line of the file, written and flushed as soon as it is measured, so a run that ends
early loses nothing; a run with the same file goes on with the layers that are not in it, then with
those that failed.  Compiling processes work ahead of the GPU.  Results are checked against torch in
fp32 before they are timed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness import (
    Deadline,
    Environment,
    Errors,
    EventTimer,
    FakeTimer,
    Function,
    Timer,
    Timing,
    collect_environment,
    complain,
    emit,
    has_gpu,
    machine_line,
    measure_errors,
    prepare_torch,
    time_interleaved,
)
from benchmarks.operands import (
    BASELINE,
    FP8,
    FP8_LIMIT,
    Operands,
    call_of,
    case_of,
    make_operands,
)
from benchmarks.suites import select_layers
from benchmarks.zoo.layers import ZooLayer, sample, zoo_layers
from benchmarks.zoo.rows import Rows, mixes_times

__all__ = ["Variant", "run_sweep", "variants_for"]

# GPU time of one measurement, and calls at least: most layers take less than 100 us.
TARGET_MS = 3.0
LEAST_CALLS = 5
# All variants of a layer take a few seconds.
_HANG_SECONDS = 120.0
# Kept back from the time limit, to finish a layer and write.
_RESERVE_SECONDS = 15.0
# A candidate that takes so many times what the fastest does, in one call, is not timed further.
_HOPELESS = 3.0
# A family that its model expects to take so many times what the best does is not tried.
_ABSURD = 5.0
# Layers whose kernels are being compiled while one is measured.
_AHEAD = 48
_NETWORKS = 6  # names of networks in a row


class ContextLostError(Exception):
    """The CUDA context is broken; nothing more can run in this process."""


@dataclass(slots=True, kw_only=True)
class Variant:
    """A configuration of a layer."""

    # Why it is measured: ``"model"`` and ``"table"`` where the planner chooses it without and with
    # tables, ``"candidate"`` for the others.
    roles: list[str]
    kind: str  # its family's name
    config: Any  # the configuration
    # The time that its family's model expects, and the same as the planner compares it; ``None``
    # without a model.
    model_us: float | None = None
    counted_us: float | None = None
    status: str = "pending"  # ``"ok"``, or why there is no time
    timing: Timing | None = None  # its times

    @property
    def is_choice(self) -> bool:
        """Returns whether the planner chooses it, with tables or without."""
        return self.roles != ["candidate"]

    def fields(self) -> dict[str, Any]:
        """Returns the JSON form."""
        from triton_ext.ops.core.tables import encode

        names = ("roles", "kind", "model_us", "counted_us", "status")
        found = {name: getattr(self, name) for name in names}
        return found | {"config": encode(self.config), **_times(self.timing)}


def _times(timing: Timing | None) -> dict[str, float | None]:
    if timing is None:
        return {"us": None, "spread": None}
    return {"us": round(timing.ms * 1e3, 3), "spread": round(timing.spread, 4)}


@dataclass(slots=True)
class Work:
    """A layer, its variants, and the kernels that are being compiled for them."""

    layer: ZooLayer
    case: Any  # a direction of it
    variants: list[Variant] = field(default_factory=list)  # what is measured
    refusal: str = ""  # why no kernel takes it; empty where one does
    # What the model of torch's convolution expects, and whether torch is chosen.
    torch: dict[str, Any] = field(default_factory=lambda: {"chosen": True})
    error: str = ""  # why there is no plan
    futures: list[Any] = field(default_factory=list)  # of the compiling processes

    def row(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Returns the row of the layer without times."""
        layer = self.layer
        return {
            "layer": layer.name,
            "direction": arguments.direction,
            "dtype": layer.dtype,
            "part": arguments.suite or layer.part,
            "occurrences": layer.occurrences(arguments.direction),
            "networks": list(layer.networks[:_NETWORKS]),
            "problem": asdict(layer.problem),
            "gflop": round(layer.problem.flops / 1e9, 3),
            "refusal": self.refusal,
            "torch": self.torch,
            "error": self.error,
            "cudnn_us": None,
            "cudnn_spread": None,
            "results": [],
        }


# ---- What is measured --------------------------------------------------------------------------


def variants_for(case: Any, device: Any, candidates: int) -> list[Variant]:
    """Returns the planner's choices for a case, and further configurations worth measuring.

    Args:
        case: What is computed.
        device: Where.
        candidates: How many further ones at most: the first of every family, then those that
            ``triton-ext tune`` would try.
    """
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.tables import kind_of

    expected: dict[Any, Any] = {}
    first: dict[str, Any] = {}
    for offer in planner.offers(case, device):
        is_hopeless = offer.family.is_hopeless(case, device) if offer.times else True
        for config, times in offer.times:
            expected[config] = times
            # Without a model, a family that the planner passes over is not worth a try.
            if not is_hopeless and not (offer.passed_over and math.isnan(times.us)):
                first.setdefault(_group_of(config, offer.family.kind), config)
    found: dict[Any, list[str]] = {}
    choices = {"model": planner.cheapest(case, device), "table": planner.measured(case, device)}
    for role, choice in choices.items():
        if choice is not None:
            found.setdefault(choice.config, []).append(role)
    if candidates:
        known = [times.us for times in expected.values() if not math.isnan(times.us)]
        limit = _ABSURD * min(known, default=math.inf)
        # A family without a model goes first.
        firsts = sorted(first.values(), key=lambda config: _number(expected[config].us) or 0.0)
        firsts = [each for each in firsts if each not in found and not expected[each].us > limit]
        # Half for the first of each family, which models compare worst.
        others = firsts[: candidates // 2]
        tried = planner.candidates(case, device, candidates + 1)
        others += [config for config in tried if config not in found and config not in others]
        found |= {config: ["candidate"] for config in others[:candidates]}
    return [
        Variant(
            roles=roles, kind=kind_of(config), config=config,
            model_us=_number(getattr(expected.get(config), "us", None)),
            counted_us=_number(getattr(expected.get(config), "counted_us", None)),
        )
        for config, roles in found.items()
    ]  # fmt: skip


def _number(us: float | None) -> float | None:
    """Returns microseconds for JSON, which has no NaN."""
    return None if us is None or math.isnan(us) else round(us, 3)


def _group_of(config: Any, kind: str) -> str:
    """Returns what models compare worst with others: families, and factors of merged groups."""
    factor = getattr(config, "factor", None)
    return kind if factor is None else f"{kind} x{factor} {type(config.config).__name__}"


def _planned(layer: ZooLayer, arguments: argparse.Namespace, machine: Any) -> Work:
    """Returns the work of a layer, nothing of which is compiled yet."""
    import torch
    from triton_ext.ops.core import planner
    from triton_ext.ops.core.device import assumed_device

    case = case_of(arguments.direction, layer.problem, layer.dtype)
    if refused := planner.refusals(case, machine):
        return Work(layer, case, refusal="; ".join(map(str, refused))[:300])
    offer = planner.torch_offer(case, machine)
    with assumed_device(machine):
        told: dict[str, Any] = {"chosen": planner.torch_ratio(case, torch.device("meta"))[0] < 1}
    if offer.times:
        times = offer.times[0][1]
        told |= {"model_us": _number(times.us), "counted_us": _number(times.counted_us)}
    else:
        told["refusal"] = "; ".join(map(str, offer.refusals))
    return Work(layer, case, variants_for(case, machine, arguments.candidates), torch=told)


# ---- Measuring ---------------------------------------------------------------------------------


def _reference(operands: Operands, direction: str) -> tuple[Any, Function, Errors]:
    """Returns torch's result in fp32, a call of cuDNN in the operands' type, and its errors.

    cuDNN takes no fp8: of that it computes in bfloat16, and errors have a limit of their own.
    """
    import torch

    cudnn, is_tf32 = torch.backends.cudnn, operands.x.dtype == torch.float32
    cudnn.benchmark, cudnn.allow_tf32 = False, False
    exact = operands.in_fp32().run_torch(direction)
    cudnn.benchmark, cudnn.allow_tf32 = True, is_tf32
    is_fp8 = operands.x.dtype.itemsize == 1
    theirs = operands.as_type(torch.bfloat16) if is_fp8 else operands

    def baseline() -> object:
        return theirs.run_torch(direction)

    return exact, baseline, FP8_LIMIT if is_fp8 else measure_errors(baseline(), exact)


def _single_ms(function: Function) -> float:
    """Returns the time of one warm call, host time included."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    function()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _checked(work: Work, operands: Operands) -> tuple[Function, dict[int, Function]]:
    """Returns the call of cuDNN, and those of variants that are right and promising, by number."""
    exact, baseline, limit = _reference(operands, work.case.direction)
    calls: dict[int, Function] = {}
    for number, variant in enumerate(work.variants):
        if variant.status != "pending":
            continue
        try:
            call = call_of(work.case, variant.config, operands)
            right = measure_errors(call(), exact).within(limit)
        except Exception as error:  # recorded: the next configuration may run
            variant.status = f"does not run: {type(error).__name__}: {str(error)[:200]}"
            check_context(f"{work.layer.name} {variant.kind}", error)
            continue
        if right:
            calls[number] = call
        else:
            variant.status = "wrong result"
    times = {number: _single_ms(call) for number, call in calls.items()}
    for number, ms in times.items():
        variant = work.variants[number]
        if ms > _HOPELESS * min(times.values()) and not variant.is_choice:
            variant.status = f"slow: {ms * 1e3:.1f} us in one call"
            del calls[number]
    return baseline, calls


def measure(work: Work, timer: Timer, rounds: int, dry_run: bool) -> Timing:
    """Checks and times the variants of a layer; returns cuDNN's times."""
    calls: dict[int, Function]
    if dry_run:
        baseline: Function = lambda: None  # noqa: E731
        pending = [n for n, v in enumerate(work.variants) if v.status == "pending"]
        calls = {number: baseline for number in pending}
    else:
        import torch

        # cuDNN tries algorithms as far as there is memory for them.
        torch.cuda.empty_cache()
        # Plans have no scale.
        operands = make_operands(work.layer.problem, work.layer.dtype)
        baseline, calls = _checked(work, dataclasses.replace(operands, scale=None))
    functions = {BASELINE: baseline} | {str(number): call for number, call in calls.items()}
    timings = time_interleaved(functions, timer, rounds)
    for number in calls:
        work.variants[number].timing = timings[str(number)]
        work.variants[number].status = "ok"
    return timings[BASELINE]


def check_context(what: str, error: Exception) -> None:
    """Raises a ContextLostError if the GPU answers nothing any more after ``error``."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as lost:
        raise ContextLostError(f"{what}: {lost}") from error


@contextlib.contextmanager
def watched(last_words: Callable[[str], None], seconds: float) -> Iterator[None]:
    """Ends the process if what is inside does not come back; ``last_words`` takes the status."""

    def give_up() -> None:
        last_words(f"hangs: no end after {seconds:.0f} s")
        os._exit(3)

    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


# ---- A run -------------------------------------------------------------------------------------


def _selected(arguments: argparse.Namespace) -> list[ZooLayer]:
    """Returns the layers of a run in the order of the sample."""
    if arguments.suite:
        found = select_layers(arguments.suite, arguments.shapes)
        return [
            ZooLayer(
                problem=layer.problem, transposed=False, dtype=arguments.dtype, inference=1,
                training=1, networks=(layer.suite,),
            )
            for layer in found[:: -(-len(found) // arguments.sample)]
        ]  # fmt: skip
    layers = [layer for layer in zoo_layers(arguments.part) if layer.dtype == arguments.dtype]
    return sample(layers, arguments.direction, arguments.sample, arguments.seed)


class Run:
    """The state of a run.

    Args:
        arguments: The options.
        environment: Where it runs.
        machine: What choices are made for.
        pool: The compiling processes; ``None`` in a dry run.
    """

    def __init__(
        self, arguments: argparse.Namespace, environment: Environment, machine: Any, pool: Any
    ) -> None:
        self._arguments, self._machine, self._pool = arguments, machine, pool
        self._rows = Rows(arguments.out)
        self._timer: Timer = FakeTimer()
        if not arguments.dry_run:
            self._timer = EventTimer(TARGET_MS, least_calls=LEAST_CALLS)
        self._deadline = Deadline(60 * arguments.minutes)
        self.measured = self.failed = 0
        kinds = (str, int, float, bool, type(None))
        told = {key: value for key, value in vars(arguments).items() if isinstance(value, kinds)}
        head = {"environment": asdict(environment), "options": told}
        self._rows.add(head | {"table": machine.name, "num_sms": machine.num_sms})

    def layers(self, layers: Sequence[ZooLayer]) -> int:
        """Measures layers until the time is up; returns how many were not reached."""

        def key(layer: ZooLayer) -> tuple[str, str, str]:
            return layer.name, self._arguments.direction, layer.dtype

        left = [layer for layer in layers if key(layer) not in self._rows.done]
        # Those that failed, which may end the process again, go last.
        waiting = deque(sorted(left, key=lambda layer: key(layer) in self._rows.failed))
        begun: deque[Work] = deque()
        while (waiting or begun) and self._deadline.left() > _RESERVE_SECONDS:
            while waiting and len(begun) < _AHEAD:
                begun.append(self._begin(waiting.popleft()))
            self._finish(begun.popleft())
        for work in begun:
            for future in work.futures:
                future.cancel()
        return len(waiting) + len(begun)

    def _begin(self, layer: ZooLayer) -> Work:
        """Plans a layer and has its kernels compiled."""
        try:
            work = _planned(layer, self._arguments, self._machine)
        except Exception as error:  # a planner that fails is a row, too
            case = case_of(self._arguments.direction, layer.problem, layer.dtype)
            told = f"planner failed: {type(error).__name__}: {str(error)[:200]}"
            return Work(layer, case, error=told)
        if self._pool is not None:
            work.futures = [
                self._pool.submit(work.case, variant.config, self._machine)
                for variant in work.variants
            ]
        return work

    def _compiled(self, work: Work) -> bool:
        """Waits for the compiler; tells whether there was time for all that is needed."""
        for variant, future in zip(work.variants, work.futures):  # noqa: B905
            try:
                left = max(self._deadline.left() - _RESERVE_SECONDS / 2, 0.0)
                error = future.result(timeout=left)
            except FutureTimeoutError:
                return False
            if error:
                variant.status = f"does not compile: {error}"
        return True

    def _finish(self, work: Work) -> None:
        """Measures a layer and appends its row.

        Raises:
            ContextLostError: The GPU answers nothing any more; the row says so.
        """
        if not self._compiled(work):
            return
        row, dry_run = work.row(self._arguments), self._arguments.dry_run

        def last_words(status: str) -> None:
            self._rows.add(row | {"error": status, "results": [v.fields() for v in work.variants]})
            emit(f"{work.layer.name}: {status}; run again with the same file")

        try:
            if not work.error:
                with watched(last_words, _HANG_SECONDS):
                    timing = measure(work, self._timer, self._arguments.rounds, dry_run)
                row |= {f"cudnn_{key}": value for key, value in _times(timing).items()}
                if not dry_run and work.layer.dtype != FP8:
                    work.torch["chosen"] = _is_torch_faster(work)
        except Exception as error:  # the next layer may be measured
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, ContextLostError):
                raise
            _after_failure(work.layer.name, error, dry_run)
        finally:
            row["results"] = [variant.fields() for variant in work.variants]
            self._rows.add(row)
            self.failed += bool(row["error"])
        self.measured += 1
        emit(_line(row))


def _is_torch_faster(work: Work) -> bool:
    """Returns the verdict of ``prefer="fastest"``, which may measure on its own."""
    import torch
    from triton_ext.ops.tuning import runs

    return runs.is_torch_faster(work.case, torch.device("cuda", torch.cuda.current_device()))


def _after_failure(name: str, error: Exception, dry_run: bool) -> None:
    """Frees the GPU's memory; raises a ContextLostError where nothing can run any more."""
    if dry_run:
        return
    import torch

    check_context(name, error)
    torch.cuda.empty_cache()


def _line(row: dict[str, Any]) -> str:
    """Returns what is printed about a row."""
    if row["error"] or row["cudnn_us"] is None:
        return f"{row['layer']:<52} {row['error']}"
    text = f"{row['layer']:<52} cuDNN {row['cudnn_us']:9.1f} us"
    timed = [r for r in row["results"] if r["us"]]
    for result in timed:
        if result["roles"] != ["candidate"]:
            ratio = row["cudnn_us"] / result["us"]
            text += f"  {'+'.join(result['roles'])} {result['kind']} {ratio:.3f}"
    if timed:
        best = min(timed, key=lambda result: float(result["us"]))
        text += f"  best {best['kind']} {row['cudnn_us'] / best['us']:.3f}"
    statuses = [r["status"] for r in row["results"] if not r["us"]]
    bad = [status for status in statuses if not status.startswith("slow")]
    return text + f"  refused: {row['refusal']}" * bool(row["refusal"]) + f"  {bad}" * bool(bad)


def run_sweep(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        1 where a layer failed, 2 where nothing can be measured, 3 where the GPU was lost.
    """
    import torch
    from triton_ext.ops.core.device import KNOWN, device_of
    from triton_ext.ops.tuning.measure import CompilePool

    try:
        layers = _selected(arguments)
    except ValueError as error:
        complain(str(error))
        return 2
    dry_run, out = arguments.dry_run, arguments.out
    if not dry_run and not has_gpu():
        return 2
    if mixes_times(out, dry_run):
        complain(f"{out} would have invented times beside measured ones: give another --out")
        return 2
    environment = collect_environment(dry_run)
    for line in environment.lines():
        emit(line)
    left = code = 0
    with contextlib.ExitStack() as stack:
        pool, machine = None, KNOWN["h200"]
        if not dry_run:
            prepare_torch()
            machine = device_of(torch.device("cuda"), "zoo sweep")
            pool = stack.enter_context(CompilePool(arguments.jobs or None))
            pool.start()
            emit(machine_line(EventTimer(20.0)))
        run = Run(arguments, environment, machine, pool)
        try:
            left = run.layers(layers)
        except ContextLostError as error:
            emit(f"{error}; run again with the same file")
            code = 3
    emit(
        f"{run.measured} layers, {run.failed} of them failed, {left} not reached; written to {out}"
    )
    return code or int(run.failed > 0)
