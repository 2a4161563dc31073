"""wgrad of one geometry: what it refuses, and its plan, which the planner chooses and binds.

A plan is all of the launches that does not depend on addresses, made once per geometry and kept.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device, device_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise.config import is_depthwise
from triton_ext.ops.families.wgrad import DTYPES, OUT_DTYPES, PackedWgradPlan, WgradPlan
from triton_ext.ops.families.wgrad_config import CONFIGS, WgradChoice, WgradConfig
from triton_ext.ops.rewrites.operand_swap import SwappedWgradPlan
from triton_ext.ops.rewrites.packing import RowPacking, violations
from triton_ext.ops.rewrites.partial_im2col import PARTIAL_IM2COL_WGRAD

__all__ = [
    "DTYPES",
    "PackedWgradPlan",
    "SwappedWgradPlan",
    "WgradPlan",
    "make_plan",
    "ranking",
    "reasons",
]

descriptor_error = backends.load("nvidia", "descriptor_error")

# Kinds to choose from where the caller says whether rows are packed, and all.
_TAP_BY_TAP = ("wgrad", "gluon_wgrad", "depthwise_wgrad")
_ALL = (*_TAP_BY_TAP, "packed", "swapped")


def reasons(
    problem: ConvProblem, dtype: torch.dtype, device: Device | None = None
) -> tuple[str, ...]:
    """Returns why the kernel does not take a problem; nothing where it does.

    Args:
        problem: The convolution.
        dtype: Of x and dy.
        device: Where it is to run; ``None`` asks for what no device changes.
    """
    found = list(_other_reasons(problem, dtype, device))
    return (*_geometry_reasons(problem), *found)


def _geometry_reasons(problem: ConvProblem) -> tuple[str, ...]:
    """What TMA cannot express."""
    if not 1 <= problem.dims <= 3:
        return (f"{problem.dims} spatial dimensions: expected 1 to 3",)
    return tuple(violations(problem))


def _other_reasons(
    problem: ConvProblem, dtype: torch.dtype, device: Device | None
) -> tuple[str, ...]:
    found = []
    if dtype not in (OUT_DTYPES if is_depthwise(problem) else DTYPES):
        found.append(
            f"dtype {dtype}: wgrad needs float16 or bfloat16, WGMMA transposes 16-bit operands only"
        )
    if device is not None:
        if device.capability < (9, 0):
            found.append(f"compute capability {device.capability}: TMA im2col needs (9, 0)")
        smallest = min(config.smem_bytes(2, in_pieces=False) for config in CONFIGS) + 1024
        if smallest > device.smem_bytes:
            found.append(
                f"{device.smem_bytes} bytes of shared memory per CTA: the smallest tile "
                f"configuration needs {smallest}"
            )
    return tuple(found)


def ranking(
    problem: ConvProblem,
    dtype: torch.dtype,
    device: Device,
    out_dtype: torch.dtype | None = None,
) -> list[Any]:
    """Returns the choices that fit tap by tap, in the order of ``planner.in_order``.

    Args:
        problem: The convolution.
        dtype: Of x and dy.
        device: Where it is to run.
        out_dtype: Of dw; ``None`` for ``dtype``.
    """
    problem = replace(problem, batch=max(problem.batch, 1))
    case = Case(direction="wgrad", problem=problem, dtype=dtype, out_dtype=out_dtype)
    return planner.ranking(case, device, _TAP_BY_TAP)


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: Any = None,
    out_dtype: torch.dtype | None = None,
    num_sms: int | None = None,
    part_rounds: int = 1,
    pack_rows: bool | RowPacking | None = None,
) -> Any:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        x_strides: Of x [N, Ci, *input_size], in elements; channels contiguous.
        dy_strides: Of dy [N, Co, *output_size], in elements; what is not channels-last is copied at
            every run, because gradients come as autograd makes them.
        dtype: Of x and dy: float16 or bfloat16.
        device: Where they are.
        config: A configuration of a family of wgrad, or tiles without the parts of tiles; ``None``
            lets the planner choose.
        out_dtype: Of dw: float16, bfloat16 or float32; ``None`` for ``dtype``.
        num_sms: Programs that run at a time; ``None`` for one per multiprocessor.
        part_rounds: With tiles: parts of tiles that the busiest program has.
        pack_rows: Whether rows of the filter become channels (``packing.py``) if they can, or
            in which way; ``None``: as the planner chooses, and not where a configuration is given.

    Raises:
        DescriptorError: TMA cannot express the geometry; every violation is listed.
        UnsupportedError: No GPU, too old a GPU or too old a Triton; another dtype.
    """
    found = device_of(device, "wgrad")
    wrong = _geometry_reasons(problem)
    if wrong:
        raise descriptor_error(wrong)
    others = _other_reasons(problem, dtype, found)
    out_dtype = dtype if out_dtype is None else out_dtype
    if out_dtype not in OUT_DTYPES:
        others = (*others, f"out_dtype {out_dtype}: expected float16, bfloat16 or float32")
    if others:
        raise UnsupportedError("wgrad: " + "; ".join(others))
    if num_sms is not None:
        found = replace(found, num_sms=num_sms)
    case = Case(
        direction="wgrad",
        problem=problem,
        dtype=dtype,
        out_dtype=out_dtype,
        x_strides=x_strides,
        dy_strides=dy_strides,
    )
    config = _with_rounds(config, part_rounds)
    if pack_rows is None:
        return planner.plan(case, found, config, among=None if num_sms is None else _ALL)
    packing = pack_rows if isinstance(pack_rows, RowPacking) else None
    if pack_rows is True:
        packing = PARTIAL_IM2COL_WGRAD.packing(case, found)
    return planner.plan(replace(case, packing=packing), found, config, among=_TAP_BY_TAP)


def _with_rounds(config: Any, part_rounds: int) -> Any:
    """Returns a configuration of a family; what holds no parts of tiles gets them."""
    if type(config) is WgradConfig:
        return WgradChoice(config=config, part_rounds=part_rounds)
    if type(getattr(config, "config", None)) is WgradConfig and type(config) is not WgradChoice:
        return replace(config, config=WgradChoice(config=config.config, part_rounds=part_rounds))
    return config
