"""The planner: the only place that chooses which family computes a case, and how.

A measured choice goes first (``tables.py``), then the least time of the families' models, each with
its correction.  :func:`offers` lists all candidates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import TritonExtError, UnsupportedError
from triton_ext.ops.core import dispatch_cache
from triton_ext.ops.core.case import DIRECTIONS, Case
from triton_ext.ops.core.device import Device, Expected, device_of
from triton_ext.ops.core.family import FAMILIES, HOPELESS, TORCH, Family, families_of, family_of
from triton_ext.ops.core.packing import geometry_refusals as forward_refusals
from triton_ext.ops.core.refusals import (
    DTYPES,
    Refusal,
    dtype_refusals,
    epilogue_refusals,
    refuse,
    refused,
    tf32_refusals,
)
from triton_ext.ops.core.stride_phases import geometry_refusals as dgrad_refusals
from triton_ext.ops.core.tables import Entry, entry_for, find

descriptor_error = backends.load("nvidia", "descriptor_error")

#: How much faster than a measured kernel torch has to be in its model.
MEASURED_MARGIN = 1.35


@dataclass(frozen=True, slots=True)
class Choice:
    """A family and its configuration, which compute a case; the models' time if they chose."""

    family: Family[Any]
    config: Any
    expected: Expected = field(default=Expected.of(math.nan), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The configurations of a family for a case, or why it has none.

    Attributes:
        family: The family.
        refusals: Why it does not compute the case; empty if it does.
        passed_over: Why it is not compared with others though it computes the case.
        superseded_by: The kind of the family that goes first, without a comparison.
        times: Its configurations and the times of its model, its best guess first.
    """

    family: Family[Any]
    refusals: tuple[Refusal, ...] = ()
    passed_over: str = ""
    superseded_by: str = ""
    times: tuple[tuple[Any, Expected], ...] = ()


def register(family: Family[Any]) -> None:
    """Adds a family from outside the package, for this process; ours go first at equal times.

    Raises:
        TypeError: ``family`` is not a Family, or its ``config_type`` not a frozen dataclass.
        ValueError: ``kind`` is not a name or ``direction`` is unknown.  The direction has the kind
            or the class already, or another direction has another pair: tables hold kinds.
    """
    if not isinstance(family, Family):
        raise TypeError(f"register: expected a Family, got {type(family).__name__}")
    kind, direction = getattr(family, "kind", None), getattr(family, "direction", None)
    if not isinstance(kind, str) or not kind.isidentifier():
        raise ValueError(f"register: kind is {kind!r}: expected a name")
    if direction not in DIRECTIONS:
        expected = " or ".join(DIRECTIONS)
        raise ValueError(f"register: direction is {direction!r}: expected {expected}")
    parameters = getattr(getattr(family, "config_type", None), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise TypeError(f"register: {kind}.config_type: expected a frozen dataclass")
    for other in FAMILIES:
        is_kind, is_class = family.kind == other.kind, family.config_type is other.config_type
        if is_kind != is_class or (is_kind and family.direction == other.direction):
            raise ValueError(
                f"register: {other.direction} has {other.kind!r} of {other.config_type.__name__}, "
                f"expected another kind and class than {family.kind!r} of "
                f"{family.config_type.__name__}"
            )
    FAMILIES.append(family)
    # Cached plans were chosen without it.
    make_plan.cache_clear()
    dispatch_cache.clear()


@lru_cache(maxsize=4096)
def make_plan(case: Case, device: torch.device, config: Any = None) -> Any:
    """Returns the plan of a case, whose batch is not empty; the next call gets the same one.

    A plan is all of a launch that does not depend on addresses; it holds no tensor.

    Raises:
        DescriptorError: TMA cannot express the geometry or the strides.
        UnsupportedError: The device cannot run it; otherwise as :func:`plan`.
    """
    found = device_of(device, case.operator)
    check(case, device)
    return plan(case, found, config)


def plan_or_refusal(case: Case, device: torch.device) -> Any | Refusal:
    """Returns the plan of a case, as :func:`make_plan`, or why there is none."""
    try:
        return make_plan(case, device)
    except TritonExtError as error:
        return Refusal(str(error), type(error))


def plan(case: Case, device: Device, config: Any = None) -> Any:
    """Returns the plan of a case that :func:`check` lets pass.

    The class of ``config`` names the family; ``None`` for the measured configuration, else the one
    that models expect to be fastest.

    Raises:
        DescriptorError: TMA cannot describe the operands.
        UnsupportedError: No family takes the case, or the family of ``config`` refuses it.
    """
    if config is None:
        # Tables hold choices for pixels as they are.
        choice = measured(case, device) if case.packing is None else None
        choice = choice or cheapest(case, device)
        if choice is None:
            found = "; ".join(map(str, refusals(case, device)))
            raise UnsupportedError(f"{case.operator}: {found}")
        return choice.family.bind(choice.config, case, device)
    family = family_of(config, case.direction)
    if family is None:
        raise UnsupportedError(
            f"{case.operator}: {type(config).__name__} is no configuration of {case.direction}"
        )
    if case.packing is not None and not family.reads_packed:
        raise UnsupportedError(f"{case.operator}: {family.kind} does not take packed rows")
    refuse(f"{case.operator}: {family.kind}", family.refusals(case, device, config))
    return family.bind(config, case, device)


def torch_offer(case: Case, device: Device) -> Offer:
    """Returns the offer of torch's own convolution for a case."""
    offer = _offer(TORCH[case.direction], case, device)
    times = () if offer.refusals else offer.family.candidates(case, device).items()
    return replace(offer, times=tuple(times))


def torch_ratio(case: Case, device: torch.device) -> tuple[float, bool]:
    """Returns torch's time over that of the kernel that would be chosen.

    It is infinite where torch is refused, where no kernel takes the case, and in the interpreter,
    NaN where torch has no model.

    Returns:
        The ratio, and whether both times were measured in the same rounds.
    """
    try:
        found = device_of(device, case.operator)
        check(case, device)
    except TritonExtError:
        return math.inf, False
    offer, choice = torch_offer(case, found), measured(case, found)
    _, raw = entry_for(case.dense, found)
    if not offer.times or device.type == "cpu":
        return math.inf, False
    if choice is not None and raw is not None:
        entry = Entry.of(raw)
        if entry.torch_us:
            return entry.torch_us / entry.us, True
        # The model errs by a quarter and more, a measurement does not.
        us = entry.us / MEASURED_MARGIN
    elif (choice := cheapest(case, found)) is not None:
        us = choice.expected.counted_us
    else:
        return math.inf, False
    return offer.times[0][1].counted_us / us, False


def measured(case: Case, device: Device) -> Choice | None:
    """Returns the choice that a table holds, ``None`` where it holds none that can run."""
    config = find(case.dense, device)
    family = None if config is None else family_of(config, case.direction)
    # A table says what was fastest, not that it can run here, nor over these strides.
    if family is None or family.refusals(case, device, config):
        return None
    return Choice(family, config)


def cheapest(case: Case, device: Device) -> Choice | None:
    """Returns what the models expect to be fastest; ``None`` if no family takes it."""
    found = [offer for offer in offers(case, device, compared=True) if offer.times]
    best = min(found, key=lambda offer: offer.times[0][1].counted_us, default=None)
    return None if best is None else Choice(best.family, *best.times[0])


def offers(case: Case, device: Device, *, compared: bool = False) -> list[Offer]:
    """Returns the offer of every family of a case's direction, in the order of FAMILIES.

    With ``compared``, families that are not compared are left out: their models take time.
    """
    found = [
        _offer(family, case, device)
        for family in families_of(case.direction)
        if case.packing is None or family.reads_packed
    ]
    taking = [each.family for each in found if not each.refusals and not each.passed_over]
    by = {kind: family.kind for family in taking for kind in family.supersedes}
    result = []
    for each in found:
        superseded_by = by.get(each.family.kind, "")
        if compared and (each.refusals or each.passed_over or superseded_by):
            continue
        if not each.refusals:
            times = tuple(each.family.candidates(case, device).items())
            each = replace(each, superseded_by=superseded_by, times=times)
        result.append(each)
    return result


def _offer(family: Family[Any], case: Case, device: Device) -> Offer:
    found = family.refusals(case, device)
    passed_over = "" if found else family.passed_over(case, device)
    return Offer(family=family, refusals=found, passed_over=passed_over)


def in_order(found: Iterable[Offer]) -> list[Choice]:
    """Returns choices by their times, the best one of another family second.

    Models err by family more than by configuration.  Each family's configurations keep its order.
    """
    times: list[tuple[float, Choice]] = []
    for offer in found:
        least_us = 0.0
        for config, expected in offer.times:
            least_us = max(least_us, expected.counted_us)
            times.append((least_us, Choice(offer.family, config)))
    choices = [choice for _, choice in sorted(times, key=lambda item: item[0])]
    others = [i for i, each in enumerate(choices) if each.family is not choices[0].family]
    if others:
        choices.insert(1, choices.pop(others[0]))
    return choices


def candidates(case: Case, device: Device, count: int) -> list[Any]:
    """Returns up to ``count`` configurations to measure, the models' choice first.

    The list is empty where no kernel takes the case or its batch is empty.
    """
    best = None
    if case.problem.batch and not refusals(case, device):
        best = cheapest(case, device)
    if best is None:
        return []
    found = [offer for offer in offers(case, device) if offer.times]
    # The family, or both kernels of one algorithm.
    first = [
        each
        for each in found
        if each.family is best.family or (each.family.is_gemm and best.family.is_gemm)
    ]
    others = [each for each in found if each not in first and _is_tried(each, found, case, device)]
    few = count // 3 if others else 0
    return _various(in_order(first), count - few) + _various(in_order(others), few)


def _is_tried(offer: Offer, found: list[Offer], case: Case, device: Device) -> bool:
    """Tells whether a family that the models do not choose may still be the fastest."""
    if offer.family.is_hopeless(case, device):
        return False
    if not offer.passed_over and (offer.family.is_gemm or len(offer.times) == 1):
        # Models of other families are not comparable with a GEMM's; one configuration costs little.
        return True
    compared = (each for each in found if not (each.passed_over or each.superseded_by))
    return offer.times[0][1].us <= HOPELESS * min(each.times[0][1].us for each in compared)


def _various(ranked: list[Choice], count: int) -> list[Any]:
    """Returns ``count`` configurations of a ranking, in its order: all kernels, many tiles.

    Models err by kernel and by tile more than by other fields.  So the first configuration of every
    kernel is taken, and at most a third are of one tile unless the others are too few.
    """
    found: dict[Any, Any] = {}
    for choice in ranked:
        # Fewer stages are for problems that leave less shared memory.
        found.setdefault(choice.family.variant(choice.config), choice.config)
    seen: Counter[Any] = Counter()
    parts: tuple[list[Any], ...] = ([], [], [])
    for (kernel, tile, _), config in found.items():
        seen.update((kernel, (kernel, tile)))
        is_surplus = seen[kernel, tile] > max(1, count // 3)
        parts[0 if seen[kernel] == 1 else 2 if is_surplus else 1].append(config)
    taken = set([config for part in parts for config in part][:count])
    return [config for config in found.values() if config in taken]


def check(case: Case, device: torch.device) -> None:
    """Raises where no kernel takes a case on any GPU.

    Raises:
        DescriptorError: TMA cannot express the geometry; every refusal is listed.
        UnsupportedError: Dtypes, groups or the epilogue.
    """
    refuse(case.operator, epilogue_refusals(case, device))
    if found := geometry_refusals(case):
        raise descriptor_error([each.text for each in found])
    refuse(case.operator, dtype_refusals(case))


def geometry_refusals(case: Case) -> tuple[Refusal, ...]:
    """Returns why TMA cannot express a case."""
    problem = case.problem
    if not 1 <= problem.dims <= 3:
        return refused(f"{problem.dims} spatial dimensions: expected 1 to 3")
    return (dgrad_refusals if case.direction == "dgrad" else forward_refusals)(problem)


def refusals(case: Case, device: Device | None = None) -> tuple[Refusal, ...]:
    """Returns why no kernel takes a case, of one image at least; ``None`` for any device."""
    case = replace(case, problem=replace(case.problem, batch=max(case.problem.batch, 1)))
    wrong = (*dtype_refusals(case), *geometry_refusals(case))
    if device is not None and device.capability < (9, 0):
        major, minor = device.capability
        wrong += refused(f"TMA im2col needs sm_90 or newer, the GPU is sm_{major}{minor}")
    if wrong or device is None:
        return wrong
    found = offers(case, device, compared=True)
    if any(offer.times for offer in found):
        return ()
    if found:
        return refused(
            f"a CTA has {device.smem_bytes} bytes of shared memory, the smallest tile "
            "configuration needs more"
        )
    every = (_offer(family, case, device) for family in families_of(case.direction))
    return refused(*(f"{each.family.kind}: {why}" for each in every for why in each.refusals))


def refusals_on(case: Case, device: torch.device) -> tuple[Refusal, ...]:
    """Returns why no kernel takes a case over tensors of a device; on ``meta``, of any device."""
    found: tuple[Refusal, ...] = ()
    gpu = None
    if device.type != "meta":
        try:
            gpu = device_of(device, case.operator)
        except UnsupportedError as error:
            found = refused(str(error))
    if case.dtype in DTYPES[case.direction]:
        found += tf32_refusals(case.dtype, device)
    return (*found, *epilogue_refusals(case, device), *refusals(case, gpu))
