"""Random layers of patches and how the gradient of their input is run and compared."""

from __future__ import annotations

import random

import torch
from dgrad_cases import reference
from family_plans import case_of
from problem_cases import channels_last, problem_of
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.patches import PATCHES, has_patches

__all__ = ["check", "draw"]

# Twice the error of rounding the largest value once; the interpreter rounds bf16 towards zero.
TOLERANCE = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-6, torch.float32: 2.0**-9}


def draw(rng: random.Random, *, patches: int) -> ConvProblem:
    """A random problem with patches, some of which are cut off at the end of x.

    Args:
        rng: Draws.
        patches: Most of a dimension.
    """
    while True:
        dims = rng.choice((1, 2, 2, 2, 3))
        taps = tuple(rng.randint(1, 5 if dims < 3 else 3) for _ in range(dims))
        problem = problem_of(
            n=rng.randint(1, 3),
            ci=rng.choice((1, 3, 3, 4, 8, 13, 20)),
            co=rng.choice((1, 7, 16, 72)),
            size=tuple(t * rng.randint(1, patches) + rng.randrange(t) for t in taps),
            taps=taps,
            stride=taps,
        )
        if has_patches(problem):
            return problem


def check(
    problem: ConvProblem,
    dtype: torch.dtype,
    machine: Device,
    device: str = "cpu",
    *,
    bias: bool = False,
    is_slice: bool = False,
) -> torch.Tensor:
    """Compares dx, written over NaN, with torch's in fp64; returns it."""
    dy = channels_last(problem.y_shape, dtype, 1, device)
    if is_slice:
        # More channels lie between pixels.
        more = torch.nn.functional.pad(dy.movedim(1, -1), (0, 16), value=torch.nan)
        dy = more[..., : problem.out_channels].movedim(-1, 1)
    weight = channels_last(problem.w_shape, dtype, 2, device)
    shift = torch.randn(problem.in_channels, device=device).to(dtype) if bias else None
    case = case_of(PATCHES, problem, dtype, dy_strides=dy.stride())
    plan = PATCHES.bind(next(iter(PATCHES.candidates(case, machine))), case, machine)
    out = torch.full_like(channels_last(problem.x_shape, dtype, 0, device), torch.nan)
    dx = plan.run(dy, weight, EpilogueArguments(shift), out)
    assert dx is out
    expected = reference(problem, dy, weight)
    if shift is not None:
        expected = expected + shift.double().view(-1, *(1,) * problem.dims)
    error = (dx.double() - expected).abs().max().item()
    assert error <= TOLERANCE[dtype] * max(1.0, expected.abs().max().item()), problem
    return dx
