"""Families: the algorithms of every direction of a convolution, and the list of them.

The planner chooses among them (``core/planner.py``).
"""

from __future__ import annotations

from triton_ext.ops.core.case import DIRECTIONS
from triton_ext.ops.core.family import FAMILIES, TORCH
from triton_ext.ops.families.by_torch import Torch
from triton_ext.ops.families.depthwise import DEPTHWISE, DEPTHWISE_DGRAD, DEPTHWISE_WGRAD
from triton_ext.ops.families.direct import DIRECT, DIRECT_DGRAD
from triton_ext.ops.families.few_channels import FEW_CHANNELS, KN2ROW
from triton_ext.ops.families.gemm import GEMM, GEMM_DGRAD
from triton_ext.ops.families.gluon import GLUON, GLUON_DGRAD
from triton_ext.ops.families.gluon_wgrad import GLUON_WGRAD
from triton_ext.ops.families.merged_groups import MERGED, MERGED_DGRAD
from triton_ext.ops.families.partial_im2col import (
    AS_FPROP,
    OPERAND_SWAP,
    PARTIAL_IM2COL,
    PARTIAL_IM2COL_WGRAD,
)
from triton_ext.ops.families.patches import PATCHES
from triton_ext.ops.families.wgrad import WGRAD

# A kernel that is not here is never launched.  The first of two families of a direction that are
# expected to take the same time is chosen.
FAMILIES += (
    *(GLUON, GEMM, PARTIAL_IM2COL, FEW_CHANNELS, KN2ROW, DEPTHWISE, MERGED, DIRECT),  # fprop
    *(GEMM_DGRAD, GLUON_DGRAD, AS_FPROP, PATCHES, DEPTHWISE_DGRAD, MERGED_DGRAD, DIRECT_DGRAD),
    *(WGRAD, GLUON_WGRAD, PARTIAL_IM2COL_WGRAD, OPERAND_SWAP, DEPTHWISE_WGRAD),
)
# torch's convolution, which only ``prefer="fastest"`` asks for.
TORCH |= {direction: Torch(direction) for direction in DIRECTIONS}
