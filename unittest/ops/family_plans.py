"""Plans of one family, and their kernels compiled without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.driver import driver
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import KNOWN, Device, assumed_device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.launcher import compiling
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.tuning.measure import (
    TargetOnlyDriver,
    make_tensors,
    target_only,
)

__all__ = ["H200", "META", "case_of", "compiled", "compiling_for", "configs_of", "plan_of"]

H200 = KNOWN["h200"]
META = torch.device("meta")


def case_of(
    family: Any, problem: ConvProblem, dtype: torch.dtype = torch.float16, **fields: Any
) -> Case:
    """A case of a family's direction; dense tensors unless fields say otherwise."""
    return Case(direction=family.direction, problem=problem, dtype=dtype, **fields)


def configs_of(
    family: Any, problem: ConvProblem, dtype: torch.dtype = torch.float16, device: Device = H200
) -> list[Any]:
    """A family's candidates, the best guess first; none where it refuses the case."""
    case = case_of(family, problem, dtype)
    return [] if family.refusals(case, device) else list(family.candidates(case, device))


def plan_of(
    family: Any,
    problem: ConvProblem,
    x: torch.Tensor,
    device: Device,
    config: Any = None,
    spec: EpilogueSpec = PLAIN,
) -> Any:
    """The plan of a family of fprop; by default of its best guess."""
    case = case_of(family, problem, x.dtype, x_strides=x.stride(), epilogue=spec)
    config = config or next(iter(family.candidates(case, device)))
    return family.bind(config, case, device)


class _Target(TargetOnlyDriver):
    def get_current_device(self) -> int:
        """A device per target: Triton keeps what it compiled by device."""
        return self._target.arch


@contextlib.contextmanager
def compiling_for(device: Device) -> Iterator[list[Any]]:
    """Within, launches on ``meta`` tensors compile their kernels, which the list collects."""
    before = driver._active
    target_only(device.capability)
    driver.set_active(_Target(driver.active.get_current_target()))
    try:
        with assumed_device(device), compiling() as kernels:
            yield kernels
    finally:
        driver.set_active(before)


def compiled(
    family: Any,
    config: Any,
    problem: ConvProblem,
    dtype: torch.dtype = torch.float16,
    device: Device = H200,
    *,
    bias: torch.Tensor | None = None,
    **fields: Any,
) -> list[Any]:
    """The kernels of a plan, compiled; their ``asm`` has TTGIR, PTX and cubin.

    Args:
        family: The family.
        config: A configuration of it.
        problem: What is computed, of dense tensors.
        dtype: Of the operands.
        device: Whose kernels.
        bias: Of dgrad.
        fields: Further ones of the case.
    """
    case = case_of(family, problem, dtype, **fields)
    with compiling_for(device) as kernels:
        plan, tensors = family.bind(config, case, device), make_tensors(case, META)
        if bias is None:
            plan.run(*tensors)
        else:
            plan.run(*tensors[:2], EpilogueArguments(bias))
    return kernels
