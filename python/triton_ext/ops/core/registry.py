"""All families, one line each.  A kernel that is not here is never launched."""

from __future__ import annotations

from typing import Any

from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Family
from triton_ext.ops.core.refusals import Refusal
from triton_ext.ops.families.depthwise import DEPTHWISE, DEPTHWISE_DGRAD, DEPTHWISE_WGRAD
from triton_ext.ops.families.direct import DIRECT, DIRECT_DGRAD
from triton_ext.ops.families.few_channels import FEW_CHANNELS
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.families.gluon_wgrad import GLUON_WGRAD
from triton_ext.ops.families.kn2row import KN2ROW
from triton_ext.ops.families.merged_groups import MERGED, MERGED_DGRAD
from triton_ext.ops.families.partial_im2col import (
    AS_FPROP,
    OPERAND_SWAP,
    PARTIAL_IM2COL,
    PARTIAL_IM2COL_WGRAD,
)
from triton_ext.ops.families.patches import PATCHES
from triton_ext.ops.families.wgrad import WGRAD

#: The first of two that are expected to take the same time is chosen.
FAMILIES: list[Family[Any]] = [
    # fprop
    GLUON,
    GEMM,
    PARTIAL_IM2COL,
    FEW_CHANNELS,
    KN2ROW,
    DEPTHWISE,
    MERGED,
    DIRECT,
    # dgrad
    GEMM_DGRAD,
    GLUON_DGRAD,
    AS_FPROP,
    PATCHES,
    DEPTHWISE_DGRAD,
    MERGED_DGRAD,
    DIRECT_DGRAD,
    # wgrad
    WGRAD,
    GLUON_WGRAD,
    PARTIAL_IM2COL_WGRAD,
    OPERAND_SWAP,
    DEPTHWISE_WGRAD,
]


def families_of(direction: Direction) -> tuple[Family[Any], ...]:
    """Returns the families that compute a direction."""
    return tuple(family for family in FAMILIES if family.direction == direction)


def family_of(config: object, direction: Direction) -> Family[Any] | None:
    """Returns the family of a configuration; ``None`` where no family of the direction has it."""
    for family in FAMILIES:
        if family.direction == direction and family.config_type is type(config):
            return family
    return None


def config_refusals(config: object, case: Case, device: Device) -> tuple[Refusal, ...]:
    """Returns why a table cannot hold a configuration for a case; nothing where it can."""
    family = family_of(config, case.direction)
    if family is None:
        kinds = ", ".join(each.kind for each in families_of(case.direction))
        return (Refusal(f"no kernel of {case.direction}, which has {kinds}"),)
    return tuple(each for each in family.refusals(case, device, config) if each.in_key)


def config_types() -> dict[str, type[Any]]:
    """Returns the classes of all configurations, by kind."""
    return {family.kind: family.config_type for family in FAMILIES}
