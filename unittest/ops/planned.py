"""Plans, rankings and refusals of a direction, from a problem and the strides of its operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.partial_im2col import (
    PARTIAL_IM2COL,
    PARTIAL_IM2COL_WGRAD,
    SwappedConfig,
)
from triton_ext.ops.families.wgrad import WgradChoice, WgradConfig

Strides = tuple[int, ...]

TAP_BY_TAP = ("gluon", "gemm", "depthwise", "direct", "wgrad", "gluon_wgrad", "depthwise_wgrad")


def plan_fprop(
    problem: ConvProblem,
    x_strides: Strides,
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec = PLAIN,
    config: Any = None,
    pack_rows: bool | RowPacking | None = None,
) -> Any:
    """The plan of y; ``pack_rows`` says whether rows of the filter become channels, or how."""
    case = Case(
        direction="fprop", problem=problem, dtype=dtype, epilogue=epilogue, x_strides=x_strides
    )
    if pack_rows is None:
        return planner.make_plan(case, device, config)
    return _packed(case, device, config, pack_rows, PARTIAL_IM2COL)


def plan_dgrad(
    problem: ConvProblem,
    dy_strides: Strides,
    dtype: torch.dtype,
    device: torch.device,
    config: Any = None,
) -> Any:
    """The plan of dx."""
    case = Case(direction="dgrad", problem=problem, dtype=dtype, dy_strides=dy_strides)
    return planner.make_plan(case, device, config)


def plan_wgrad(
    problem: ConvProblem,
    x_strides: Strides,
    dy_strides: Strides,
    dtype: torch.dtype,
    device: torch.device,
    config: Any = None,
    out_dtype: torch.dtype | None = None,
    num_sms: int | None = None,
    part_rounds: int = 1,
    pack_rows: bool | RowPacking | None = None,
) -> Any:
    """The plan of dw; a configuration may be that of tiles alone, in ``part_rounds`` parts."""
    case = Case(
        direction="wgrad",
        problem=problem,
        dtype=dtype,
        out_dtype=out_dtype,
        x_strides=x_strides,
        dy_strides=dy_strides,
    )
    if type(config) is WgradConfig:
        config = WgradChoice(config=config, part_rounds=part_rounds)
    elif type(config) is SwappedConfig and type(config.config) is WgradConfig:
        config = SwappedConfig(WgradChoice(config=config.config, part_rounds=part_rounds))
    if pack_rows is not None:
        return _packed(case, device, config, pack_rows, PARTIAL_IM2COL_WGRAD)
    if num_sms is None:
        return planner.make_plan(case, device, config)
    found = replace(planner.device_of(device, case.operator), num_sms=num_sms)
    return planner.plan(case, found, config)


def _packed(
    case: Case, device: torch.device, config: Any, pack_rows: bool | RowPacking, rewrite: Any
) -> Any:
    found = planner.device_of(device, case.operator)
    if pack_rows is True:
        case = rewrite.rewritten(case, found)
    elif pack_rows is not False:
        case = replace(case, packing=pack_rows)
    if config is None:
        config = planner.in_order(tap_by_tap(case, found))[0].config
    return planner.plan(case, found, config)


def ranking_of(
    direction: Direction,
    problem: ConvProblem,
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec = PLAIN,
) -> list[Any]:
    """The configurations that fit, by their expected times; those of wgrad tap by tap."""
    case = Case(direction=direction, problem=problem, dtype=dtype, epilogue=epilogue)
    offers = planner.offers(case, device, compared=True)
    found = planner.in_order(tap_by_tap(case, device) if direction == "wgrad" else offers)
    return [each.config for each in found]


def tap_by_tap(case: Case, device: Device) -> list[planner.Offer]:
    """What families without a rewrite have for a case, those that they supersede left out."""
    found = [each for each in planner.offers(case, device) if each.family.kind in TAP_BY_TAP]
    return [each for each in found if not each.passed_over and each.superseded_by not in TAP_BY_TAP]


def refusals_of(
    direction: Direction, problem: ConvProblem, dtype: torch.dtype, device: Device | None = None
) -> tuple[str, ...]:
    """Why no kernel takes a problem."""
    case = Case(direction=direction, problem=problem, dtype=dtype)
    return tuple(map(str, planner.refusals(case, device)))
