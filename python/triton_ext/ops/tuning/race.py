"""Times of a case: its candidates and torch's own convolution, measured in the same rounds."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from triton_ext.ops.api.execution import TorchConvolution
from triton_ext.ops.api.operators import DGRAD, FPROP, WGRAD, ConvCall
from triton_ext.ops.core import planner, tables
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.problem import ConvParameters
from triton_ext.ops.core.tables import Entry, lookup
from triton_ext.ops.families.by_torch import TORCH, TorchConfig
from triton_ext.ops.tuning import measure
from triton_ext.ops.tuning.measure import Clock, Trial

_RACE_ROUNDS = 4
# The models of torch and of a kernel are not taken to be off by more than this together.
_SURE = 2.0
# Times of kernels of 6 to 10 us differ by some percent from run to run; at a tie, torch is safe.
_TIE = 1.02
# Operands of a call, and its bias.
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
_OPERATORS = {each.direction: each for each in (FPROP, DGRAD, WGRAD)}


def measure_case(
    case: Case,
    configs: Sequence[Any],
    errors: Sequence[str],
    device: torch.device,
    machine: Device,
    clock: Clock,
    rounds: int,
    tensors: Tensors | None = None,
) -> tuple[Entry | None, str, tuple[str, ...]]:
    """Measures candidates, and torch where it computes the same.

    ``errors`` say why a candidate did not compile; they are empty for the others.  ``tensors`` are
    operands and bias; by default some are drawn.

    Returns:
        The choice or None, why there is none, and why candidates are left out.
    """
    pairs = list(zip(configs, errors, strict=True))
    failures = [f"{case} {config}: {error}" for config, error in pairs if error]
    try:
        if tensors is None:
            given = measure.make_tensors(case, device)
        else:
            given = tensors[:2], EpilogueArguments(*tensors[2:])
        trials = [Trial(case, each, device, given) for each, error in pairs if not error]
        trials, wrong = measure.agreeing(trials)
        torchs = _torch_trial(case, device, machine, given) if trials else []
        times = measure.interleaved(trials + torchs, clock, rounds)
    except torch.OutOfMemoryError:
        return None, "no memory to measure in", ()
    failures += wrong
    if not trials:
        return None, "no candidate runs", tuple(failures)
    best = min(range(len(trials)), key=times.__getitem__)
    config, is_first = trials[best].config, trials[0].config == configs[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    entry = Entry(
        kind=tables.kind_of(config),
        config=tables.encode(config),
        us=round(times[best], 2),
        model_us=round(times[0], 2) if is_first else 0.0,
        torch_us=round(times[-1], 2) if torchs else 0.0,
        measured=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        triton=importlib.metadata.version("triton"),
    )
    return entry, "", tuple(failures)


@dataclass(frozen=True, slots=True)
class _TorchPlan:
    """torch's own convolution, run as the plans of kernels are."""

    convolution: TorchConvolution
    config: ClassVar[TorchConfig] = TorchConfig()

    def run(self, first: Any, second: Any, epilogue: Any = None) -> torch.Tensor:
        bias = None if epilogue is None else epilogue.bias
        return self.convolution.run(first, second, bias if bias is None else bias.to(first.dtype))


def _torch_trial(case: Case, device: torch.device, machine: Device, tensors: Any) -> list[Trial]:
    """Returns torch's trial with a case's tensors; none where torch is not compared."""
    if TORCH[case.direction].refusals(case, machine):
        return []
    problem, (first, second) = case.problem, tensors[0]
    sides = tuple(itertools.chain.from_iterable(problem.padding))
    parameters = ConvParameters(problem.stride, sides, problem.dilation, problem.groups)
    size = {"fprop": None, "dgrad": problem.input_size, "wgrad": problem.filter_size}
    how = (EpilogueArguments(), parameters, size[case.direction], True)
    plan = _TorchPlan(TorchConvolution(ConvCall(_OPERATORS[case.direction], first, second, *how)))
    trial = Trial(case, plan.config, device, tensors, plan)
    try:
        trial()
    except RuntimeError:  # cuDNN has no kernel, or no memory
        return []
    return [trial]


def is_torch_faster(case: Case, device: torch.device, tensors: Tensors | None = None) -> bool:
    """Tells whether torch takes less time for a case than the kernel that the planner chooses.

    Both are measured where no table has their times and their models are not sure.  That needs a
    GPU that may be used for it: no graph is being captured, algorithms need not be deterministic
    (``torch.use_deterministic_algorithms``), and ``TRITON_EXT_TUNING`` is not 0.  This process
    keeps the times, as :func:`tune` does.  ``tensors`` are the operands of a call, and its bias.
    """
    ratio, is_measured = planner.torch_ratio(case, device)
    if not is_measured:
        if ratio > _SURE or ratio < 1 / _SURE or not _may_race(device):
            return ratio < 1
        ratio = _race(case, device, tensors)
    return ratio < _TIE


def _may_race(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and os.environ.get("TRITON_EXT_TUNING") != "0"
        and not torch.are_deterministic_algorithms_enabled()
        and not torch.cuda.is_current_stream_capturing()
    )


def _race(case: Case, device: torch.device, tensors: Tensors | None) -> float:
    """Measures torch beside the planner's choice; returns torch's time over that of the choice."""
    if case != case.dense:
        case, tensors = case.dense, None
    machine = device_of(device, case.operator)
    choice = planner.measured(case, machine) or planner.cheapest(case, machine)
    assert choice is not None  # there is something to compare torch with
    with torch.cuda.device(device):
        clock = measure.EventClock(device)
        found = measure_case(
            case, [choice.config], [""], device, machine, clock, _RACE_ROUNDS, tensors
        )
    entry = found[0]
    if entry is None or not entry.torch_us:
        return math.inf
    key = case.key(machine.num_sms)
    lookup.add(machine.name, {key: entry.raw()}, "what this process measured")
    return entry.torch_us / entry.us
