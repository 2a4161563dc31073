"""fprop of one geometry: its plan, which the planner chooses and binds.

A plan is all of a launch that does not depend on addresses; it holds no tensor.  Building
descriptors, checking a geometry and choosing a configuration take longer than a small kernel runs,
so they are done once per geometry and kept.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from triton_ext.ops.conv_refusals import (
    DTYPES,
    INPUT_DTYPES,
    OUT_DTYPES,
    check_problem,
    reasons,
)
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.plan import ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.rewrites.packing import RowPacking
from triton_ext.ops.rewrites.partial_im2col import PARTIAL_IM2COL

__all__ = [
    "DTYPES",
    "INPUT_DTYPES",
    "OUT_DTYPES",
    "make_plan",
    "ranking",
    "reasons",
]

# Kinds to choose from where the caller says whether rows are packed.
_TAP_BY_TAP = ("gluon", "gemm", "depthwise", "direct")


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    epilogue: EpilogueSpec = PLAIN,
    config: Any = None,
    pack_rows: bool | RowPacking | None = None,
) -> ForwardPlan:
    """Returns the plan of a convolution.

    Args:
        problem: What is computed; its batch is not empty.
        x_strides: Of x [N, Ci, *input_size], in elements; channels-last.
        dtype: Of x and weight.
        device: Where x is.
        epilogue: What is done to the output before it is stored.
        config: A configuration of a family of fprop; ``None`` lets the planner choose.
        pack_rows: Whether rows of the filter become channels (``packing.py``) if they can, or
            in which way; ``None``: as the planner chooses, and not where a configuration is given.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No GPU, too old a GPU or too old a Triton, or a problem with
            :func:`reasons`; a configuration that cannot be compiled.
    """
    name = f"conv{problem.dims}d"
    found = device_of(device, name)
    check_problem(problem, dtype, device, epilogue, name)
    case = Case(
        direction="fprop", problem=problem, dtype=dtype, epilogue=epilogue, x_strides=x_strides
    )
    if pack_rows is None:
        return planner.plan(case, found, config)
    packing = pack_rows if isinstance(pack_rows, RowPacking) else None
    if pack_rows is True:
        packing = PARTIAL_IM2COL.packing(case, found)
    return planner.plan(replace(case, packing=packing), found, config, among=_TAP_BY_TAP)


def ranking(
    problem: ConvProblem,
    dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec = PLAIN,
) -> list[Any]:
    """Returns the configurations that fit, in the order of the times that the models expect."""
    case = Case(direction="fprop", problem=problem, dtype=dtype, epilogue=epilogue)
    return planner.ranking(case, device)
