"""A case as a call: its candidates, its plan, tensors for it, and running it."""

from __future__ import annotations

from typing import Any

import torch

from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import PLAIN, EpilogueOperands, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem

__all__ = ["MOST_CANDIDATES", "candidates", "make_plan", "make_tensors", "run_plan"]

#: Compiling one takes 1.5 s of a core, which is most of what tuning costs.
MOST_CANDIDATES = 6

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
    return planner.candidates(case, machine, count)


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
