"""Problems for the tests of the gradient of the input, and what torch makes of them."""

from __future__ import annotations

import random

import torch
from problem_cases import problem_of
from triton_ext.ops.problem import ConvProblem

__all__ = ["draw", "reference"]

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def reference(
    problem: ConvProblem, dy: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """The gradient as autograd gives it, computed in a dtype; padding is done in front of it."""
    x = torch.zeros(problem.x_shape, dtype=dtype, device=dy.device, requires_grad=True)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x, sides)
    conv = CONV[problem.dims]
    walk = (problem.stride, 0, problem.dilation, problem.groups)
    y = conv(padded, weight.to(dtype), None, *walk)
    (dx,) = torch.autograd.grad(y, x, dy.to(dtype))
    return dx


def draw(rng: random.Random, most_flops: float) -> ConvProblem:
    """Draws a problem that the kernel takes, of limited size."""
    while True:
        dims = rng.choice((1, 2, 2, 2, 3))
        longest = {1: 200, 2: 20, 3: 7}[dims]

        def numbers(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        groups = rng.choice((1, 1, 1, 2, 3))
        # Even on a logarithmic scale.
        ci, co = (max(1, round(2 ** rng.uniform(0, 8.5))) for _ in range(2))
        if rng.random() < 0.5:
            ci, co = (max(8, count // 8 * 8) for count in (ci, co))
        if groups > 1:
            co = max(16, co // 16 * 16)
        problem = problem_of(
            n=rng.choice((1, 2, 3, 5)),
            ci=ci * groups,
            co=co * groups,
            size=numbers(1, longest),
            taps=numbers(1, 5 if dims < 3 else 3),
            stride=numbers(1, 4) if rng.random() < 0.6 else 1,
            padding=tuple(zip(numbers(0, 3), numbers(0, 3), strict=True)),
            dilation=numbers(1, 3),
            groups=groups,
        )
        if min(problem.output_size) >= 1 and problem.flops <= most_flops:
            return problem
