"""Problems for the tests of the gradient of the input, and what torch makes of them."""

from __future__ import annotations

import random

import torch
from problem_cases import problem_of
from triton_ext.ops.core.problem import ConvProblem

__all__ = ["HALVES", "draw", "reference"]

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}

# dx was wrong on Hopper: LLVM put two small numbers of a class into one register, and what ptxas
# 12.9 makes of adding a constant to such halves adds nothing to some (triton-lang/triton#11581).
HALVES = [
    problem_of(ci=66, co=8, size=(46,), taps=(2,), stride=4, padding=((3, 3),), dilation=3),
    problem_of(n=3, ci=8, co=8, size=(123,), taps=(3,), stride=4, padding=((3, 0),), dilation=3),
    problem_of(
        ci=37,
        co=36,
        size=(20, 19),
        taps=(3, 4),
        stride=4,
        padding=((1, 1), (2, 1)),
        dilation=(3, 2),
    ),
    problem_of(
        n=2,
        ci=16,
        co=48,
        size=(18, 5),
        taps=(1, 3),
        stride=(1, 4),
        padding=((3, 0), (3, 1)),
        dilation=3,
    ),
    problem_of(
        n=3,
        ci=352,
        co=18,
        size=(19, 12),
        taps=(5, 2),
        stride=(4, 2),
        padding=((3, 2), (1, 0)),
        dilation=3,
    ),
    problem_of(
        n=5,
        ci=128,
        co=3,
        size=(17, 12),
        taps=(2, 4),
        stride=(4, 3),
        padding=((0, 1), (2, 3)),
        dilation=(3, 1),
    ),
    problem_of(
        n=2,
        ci=64,
        co=32,
        size=(15, 2),
        taps=(5, 2),
        stride=(4, 3),
        padding=((1, 3), (2, 1)),
        dilation=3,
        groups=2,
    ),
    problem_of(
        n=2,
        ci=144,
        co=32,
        size=(18, 16),
        taps=(2, 5),
        stride=4,
        padding=((2, 3), (3, 3)),
        dilation=(2, 3),
        groups=2,
    ),
    problem_of(
        n=2,
        ci=912,
        co=48,
        size=(6, 7, 5),
        taps=(1, 3, 1),
        stride=4,
        padding=((1, 3), (2, 3), (1, 1)),
        dilation=(1, 3, 3),
        groups=3,
    ),
]


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
