"""Problems for the tests of the gradient of the input, and what torch makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from triton_ext.ops.problem import ConvProblem

__all__ = ["channels_last", "draw", "problem_of", "reference"]

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def problem_of(
    *,
    n: int = 1,
    ci: int = 8,
    co: int = 8,
    size: Sequence[int] = (6, 6),
    taps: Sequence[int] = (3, 3),
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | tuple[int, int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ConvProblem:
    """A problem from numbers or one value per spatial dimension; padding also in pairs."""
    dims = len(size)

    def each(value):
        return (value,) * dims if isinstance(value, int) else tuple(value)

    return ConvProblem(
        batch=n,
        in_channels=ci,
        out_channels=co,
        input_size=tuple(size),
        filter_size=tuple(taps),
        stride=each(stride),
        padding=tuple((p, p) if isinstance(p, int) else p for p in each(padding)),
        dilation=each(dilation),
        groups=groups,
    )


def channels_last(
    shape: Sequence[int], dtype: torch.dtype, seed: int, device: str = "cpu"
) -> torch.Tensor:
    """Standard normal numbers [N, C, *size] whose channels lie next to each other."""
    generator = torch.Generator(device).manual_seed(seed)
    n, c, *size = shape
    numbers = torch.randn((n, *size, c), generator=generator, device=device)
    return numbers.to(dtype).movedim(-1, 1)


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
