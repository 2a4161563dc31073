"""dgrad of one geometry: what it refuses, and its plan, which the planner chooses and binds.

A plan is made once per geometry and holds no tensor.  A transposed convolution is such a launch:
its input is dy, its output dx.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_gemm import DTYPES, geometry_refusals

__all__ = ["DTYPES", "make_plan", "ranking", "reasons"]

descriptor_error = backends.load("nvidia", "descriptor_error")


def reasons(
    problem: ConvProblem, dtype: torch.dtype, device: Device | None = None
) -> tuple[str, ...]:
    """Returns why no kernel takes a problem; nothing if one does.

    Args:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        device: Where it is to run; ``None`` asks about no device.
    """
    wrong = geometry_refusals(problem)
    # Models rank what has a geometry.
    return tuple(wrong or _other_reasons(problem, dtype, device))


def _other_reasons(problem: ConvProblem, dtype: torch.dtype, device: Device | None) -> list[str]:
    """Returns what has nothing to do with TMA's rules for pixels."""
    if dtype not in DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        return [f"dtype {dtype}: expected {names}"]
    if device is None:
        return []
    return planner.refusals(Case(direction="dgrad", problem=problem, dtype=dtype), device)


def ranking(problem: ConvProblem, dtype: torch.dtype, device: Device) -> list[Any]:
    """Returns the configurations that fit, in the order of the times that the models expect."""
    return planner.ranking(Case(direction="dgrad", problem=problem, dtype=dtype), device)


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: Any = None,
) -> Any:
    """Returns the plan of a gradient of the input.

    Args:
        problem: The convolution.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx.
        device: Where dy is.
        config: A configuration of a family of dgrad; ``None`` lets the planner choose.

    Raises:
        DescriptorError: TMA cannot express the geometry.
        UnsupportedError: No kernel takes the problem or the configuration, or the device cannot
            run it.
    """
    found = device_of(device, "conv_dgrad")
    wrong = geometry_refusals(problem)
    if wrong:
        raise descriptor_error(wrong)
    case = Case(direction="dgrad", problem=problem, dtype=dtype, dy_strides=dy_strides)
    wrong = _other_reasons(problem, dtype, None)
    if wrong:
        raise UnsupportedError("conv_dgrad: " + "; ".join(wrong))
    return planner.plan(case, found, config)
