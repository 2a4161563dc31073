"""A case as a call: its candidates, its plan, tensors for it, and running it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.family import Family
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.gluon_config import TileConfig
from triton_ext.ops.families.gluon_wgrad_config import WgradTileConfig
from triton_ext.ops.families.wgrad_config import WgradConfig

__all__ = ["MOST_CANDIDATES", "candidates", "make_plan", "make_tensors", "run_plan"]

#: Compiling one takes 1.5 s of a core, which is most of what tuning costs.
MOST_CANDIDATES = 6

# A family that its model expects to take so many times what others do is not tried.
_HOPELESS = 1.5

# Kinds of one algorithm: the best of either is among the first.
_PAIRS = ({"gemm", "gluon"}, {"wgrad", "gluon_wgrad"})

# What of a configuration says which tile it computes.
_TILE_SIZES: dict[type, tuple[str, ...]] = {
    ConvConfig: ("block_m", "block_n"),
    TileConfig: ("rows", "consumers", "ping_pong", "block_n_main", "block_n_rest"),
    WgradConfig: ("block_co", "block_ci", "taps"),
    WgradTileConfig: ("rows_from_x", "consumers", "main_blocks", "rest_blocks"),
}

Tensors = tuple[torch.Tensor, ...]


def candidates(
    problem: ConvProblem,
    direction: Direction,
    dtype: torch.dtype,
    machine: Device,
    *,
    epilogue: EpilogueSpec = PLAIN,
    out_dtype: torch.dtype | None = None,
    count: int = MOST_CANDIDATES,
) -> list[Any]:
    """Returns the configurations worth measuring, what the model takes for the fastest first.

    Args:
        problem: What is computed.
        direction: Whose kernel.
        dtype: Of the operands.
        machine: Where it is to run.
        epilogue: Of fprop.
        out_dtype: Of wgrad's output; ``None`` for that of the operands.
        count: How many at most.

    Returns:
        Configurations; none where no kernel of ours takes the problem, or its batch is empty.

    Raises:
        TypeError: What describes the problem is of another type, or there is no such direction.
    """
    # Refuses what would be an error in the depths of a model.
    case = Case(
        direction=direction, problem=problem, dtype=dtype, epilogue=epilogue, out_dtype=out_dtype
    )
    if not isinstance(machine, Device):
        raise TypeError(f"candidates: machine is {machine!r}: expected a Device")
    if not problem.batch or planner.refusals(case, machine):
        return []
    best = planner.cheapest(case, machine)
    assert best is not None
    found = [offer for offer in planner.offers(case, machine) if offer.times]
    first = planner.in_order(each for each in found if _is_beside(each.family, best.family))
    others = planner.in_order(
        each for each in found if _is_tried(each, found, best.family, case, machine)
    )
    few = count // 3 if others else 0
    return _various(first, count - few) + _various(others, few)


def _is_beside(family: Family[Any], other: Family[Any]) -> bool:
    """Tells whether two families are one, or the two kernels of one algorithm."""
    return family is other or {family.kind, other.kind} in _PAIRS


def _is_tried(
    offer: planner.Offer, found: list[planner.Offer], best: Family[Any], case: Case, device: Device
) -> bool:
    """Tells whether a family that the models do not choose may still be the fastest."""
    if _is_beside(offer.family, best):
        return False
    if offer.family.is_hopeless(case, device):
        return False
    if not offer.passed_over and any(offer.family.kind in pair for pair in _PAIRS):
        # What walks tap by tap is tried beside whatever is faster by a model of its own.
        return True
    us = offer.times[0][1].us
    if math.isnan(us):  # no model
        return not offer.passed_over
    compared = (each for each in found if not (each.passed_over or each.superseded_by))
    return us <= _HOPELESS * min(each.times[0][1].us for each in compared)


def _various(ranked: list[Any], count: int) -> list[Any]:
    """Returns so many of a ranking, in its order: of every kernel and of many tiles.

    Models err by kernel and by tile more than by what else a configuration says.  So the first one
    of every kernel is among them, and no more than a third are of one tile unless the others are
    too few.
    """
    found: dict[Any, Any] = {}
    for config in ranked:
        # One with fewer stages is there for problems that leave less shared memory.
        found.setdefault(_without_stages(config), config)
    most = max(1, count // 3)
    seen: Counter[Any] = Counter()
    first: list[Any] = []
    kept: list[Any] = []
    surplus: list[Any] = []
    for config in found.values():
        kernel, tile = _kernel_of(config), _tile_of(config)
        seen.update((kernel, tile))
        part = first if seen[kernel] == 1 else kept if seen[tile] <= most else surplus
        part.append(config)
    taken = set((first + kept + surplus)[:count])
    return [config for config in found.values() if config in taken]


def _kernel_of(config: Any) -> tuple[type, ...]:
    """Returns the classes of a configuration and of those in it, which say which kernel it is."""
    inner = getattr(config, "config", None)
    return (type(config), *(() if inner is None else _kernel_of(inner)))


def _tile_of(config: Any) -> tuple[Any, ...]:
    """Returns the kernel of a configuration and the sizes of its tile."""
    inner = config
    while getattr(inner, "config", None) is not None:
        inner = inner.config
    names = _TILE_SIZES.get(type(inner))
    # Of the other kernels, every configuration is a tile of its own.
    sizes = (inner,) if names is None else tuple(getattr(inner, name) for name in names)
    return (*_kernel_of(config), sizes)


def _without_stages(config: Any) -> Any:
    inner = getattr(config, "config", None)
    if inner is not None:
        return replace(config, config=_without_stages(inner))
    return replace(config, num_stages=1) if hasattr(config, "num_stages") else config


def make_plan(case: Case, device: torch.device, config: Any = None) -> Any:
    """Returns the plan of a case for packed channels-last tensors.

    Args:
        case: What is computed.
        device: Where the tensors are.
        config: The configuration; ``None`` as for the planner.
    """
    return planner.make_plan(case.dense, device, config)


def make_tensors(case: Case, device: torch.device) -> tuple[Tensors, EpilogueOperands]:
    """Returns the operands of a case, drawn without touching torch's generators.

    Args:
        case: What is computed.
        device: Where to; on ``meta`` they have no values.
    """
    generator = None
    if device.type != "meta":
        generator = torch.Generator(device).manual_seed(0)

    def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = (shape[0], *shape[2:], shape[1])
        if dtype == torch.int8:
            drawn = torch.randint(-8, 8, size, generator=generator, device=device)
        else:
            half = torch.float32 if dtype == torch.float32 else torch.bfloat16
            drawn = torch.randn(size, generator=generator, device=device, dtype=half)
        return drawn.to(dtype).movedim(-1, 1)

    def vector() -> torch.Tensor:
        return torch.randn(co, generator=generator, device=device, dtype=torch.float32)

    problem, spec, dtype = case.problem, case.epilogue, case.dtype
    co = problem.out_channels
    if case.direction == "wgrad":
        return (draw(problem.x_shape, dtype), draw(problem.y_shape, dtype)), EpilogueOperands()
    first = problem.x_shape if case.direction == "fprop" else problem.y_shape
    residual_dtype = dtype if dtype.itemsize > 1 else torch.float16
    residual_shape = problem.y_shape
    if spec.residual_per_image:
        residual_shape = (*problem.y_shape[:2], *(1,) * problem.dims)
    operands = EpilogueOperands(
        bias=vector() if spec.bias else None,
        scale=vector() if spec.scale else None,
        residual=draw(residual_shape, residual_dtype) if spec.residual else None,
        out_scale=torch.ones(1, device=device) if spec.out_scale else None,
        amax=torch.zeros(1, device=device) if spec.amax else None,
    )
    return (draw(first, dtype), draw(problem.w_shape, dtype)), operands


def run_plan(case: Case, plan: Any, tensors: tuple[Tensors, EpilogueOperands]) -> torch.Tensor:
    """Runs a plan once; returns its output."""
    operands, epilogue = tensors
    if case.direction == "fprop":
        return plan.run(*operands, epilogue)
    return plan.run(*operands)
