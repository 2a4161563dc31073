"""Depthwise convolutions in the interpreter; ``test_depthwise.py`` runs this file.

Against float64 torch; for gradients, torch's autograd.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch
from fprop_cases import convolve

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

from planned import plan_dgrad, plan_fprop, plan_wgrad
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise import (
    DEPTHWISE,
    DEPTHWISE_DGRAD,
    DepthwiseConfig,
    DepthwiseWgradConfig,
)
from triton_ext.ops.families.direct import DIRECT_DGRAD, DirectConfig, PixelStrides

CPU = torch.device("cpu")
HALF = torch.float16
MACHINE = device_of(CPU, "test")
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The interpreter truncates to bfloat16.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6}


def draw(rng: random.Random, group_ci: int = 1, group_co: int = 1) -> ConvProblem:
    """A random convolution that gives at least one pixel."""
    while True:
        dims = rng.randint(1, 3)

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        groups = rng.choice((2, 3, 16, 35))
        problem = ConvProblem(
            batch=rng.randint(1, 2),
            in_channels=groups * group_ci,
            out_channels=groups * group_co,
            input_size=several(1, (30, 9, 5)[dims - 1]),
            filter_size=several(1, 5 if dims < 3 else 3),
            stride=several(1, 3),
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=several(1, 3),
            groups=groups,
        )
        if 0 not in problem.output_size and min(problem.output_size) > 0:
            return problem


def rows_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A tensor [N, C, *size], channels-last."""
    drawn = torch.randn(
        (shape[0], *shape[2:], shape[1]), generator=torch.Generator().manual_seed(seed)
    )
    return drawn.to(dtype).movedim(-1, 1)


def gradients(
    problem: ConvProblem, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dw in float64."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    dx, dw = torch.autograd.grad(convolve(problem, x, weight), (x, weight), dy.double())
    return dx, dw


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert found.shape == expected.shape
    limit = TOLERANCE[found.dtype] * expected.abs().max().item() + 1e-9
    error = (found.double() - expected).abs().max().item()
    # "not greater" would let NaN through.
    assert error <= limit, f"{error}, allowed {limit}: {what}"


def bind(family, problem, dtype, config=None, **strides):
    case = Case(direction=family.direction, problem=problem, dtype=dtype, **strides)
    config = config or next(iter(family.candidates(case, MACHINE)))
    return family.bind(config, case, MACHINE)


def small_config(rng: random.Random, up: int) -> DepthwiseConfig:
    return DepthwiseConfig(
        qw=up * rng.randint(1, 3), block_p=rng.choice((8, 32)), block_c=rng.choice((16, 32))
    )


@pytest.mark.parametrize("seed", range(24))
def test_forward_and_gradient_of_the_input(seed):
    rng = random.Random(seed)
    problem, dtype = draw(rng), rng.choice(FLOAT_DTYPES)
    x, weight = rows_of(problem.x_shape, dtype), rows_of(problem.w_shape, dtype, 1)
    dy = rows_of(problem.y_shape, dtype, 2)
    dx, _ = gradients(problem, x, weight, dy)
    y = convolve(problem, x.double(), weight.double())
    config = None if seed % 2 else small_config(rng, 1)
    plan = bind(DEPTHWISE, problem, dtype, config, x_strides=x.stride())
    assert_close(plan.run(x, weight), y, (problem, plan.config))
    config = None if seed % 2 else small_config(rng, problem.stride[-1])
    plan = bind(DEPTHWISE_DGRAD, problem, dtype, config, dy_strides=dy.stride())
    bias = torch.randn(problem.in_channels)
    assert_close(plan.run(dy, weight), dx, (problem, plan.config))
    biased = dx + bias.double().view(-1, *[1] * problem.dims)
    assert_close(plan.run(dy, weight, bias=bias), biased, problem)


@pytest.mark.parametrize("seed", range(16))
def test_gradient_of_the_input_of_small_groups(seed):
    rng = random.Random(seed)
    dtype = rng.choice(FLOAT_DTYPES)
    problem = draw(rng, rng.choice((1, 2, 3, 7)), rng.choice((1, 2, 3, 5)))
    x, weight = rows_of(problem.x_shape, dtype), rows_of(problem.w_shape, dtype, 1)
    dy = rows_of(problem.y_shape, dtype, 2)
    if seed % 3 == 0:
        dy = dy.contiguous()
    dx, _ = gradients(problem, x, weight, dy)
    config = DirectConfig(block_m=64, block_n=32)
    plan = bind(DIRECT_DGRAD, problem, dtype, config, dy_strides=dy.stride())
    assert_close(plan.run(dy, weight), dx, problem)


@pytest.mark.parametrize(("group_ci", "group_co"), [(3, 24), (1, 9), (16, 40), (2, 1), (1, 1)])
def test_every_width_of_groups_has_a_gradient_of_the_input(group_ci, group_co):
    problem = replace(draw(random.Random(5), group_ci, group_co), batch=1)
    x, weight = rows_of(problem.x_shape, HALF), rows_of(problem.w_shape, HALF, 1)
    dy = rows_of(problem.y_shape, HALF, 2)
    dx, _ = gradients(problem, x, weight, dy)
    plan = plan_dgrad(problem, dy.stride(), HALF, CPU)
    bias = torch.randn(problem.in_channels)
    biased = dx + bias.double().view(-1, *[1] * problem.dims)
    assert_close(plan.run(dy, weight), dx, problem)
    assert_close(plan.run(dy, weight, bias=bias), biased, problem)
    out = torch.empty_like(dx, dtype=HALF)
    rows = torch.full((*dx.movedim(1, -1).shape,), torch.nan, dtype=HALF)
    out = plan.run(dy, weight, rows.movedim(-1, 1))
    assert out.data_ptr() == rows.data_ptr()
    assert_close(out, dx, problem)


@pytest.mark.parametrize("seed", range(6))
def test_input_as_it_lies(seed):
    """Slices of channels, of rows and of columns, other orders, one pixel."""
    rng = random.Random(seed)
    problem = replace(draw(rng), in_channels=16, out_channels=16, groups=16)
    big = rows_of((3, 40, *(size + 2 for size in problem.input_size)), HALF)
    x = big[: problem.batch, 8:24]
    for dim, size in enumerate(problem.input_size):
        x = x.narrow(dim + 2, 1, size)
    if seed % 3 == 0:
        x = x.contiguous()
    weight = rows_of(problem.w_shape, HALF, 1)
    expected = convolve(problem, x.double(), weight.double())
    assert PixelStrides.make(x.shape, x.stride()).is_copied == (x.stride(1) != 1)
    plan = bind(DEPTHWISE, problem, HALF, x_strides=x.stride())
    assert_close(plan.run(x, weight), expected, problem)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_channel_does_not_see_its_neighbours(bad):
    problem = replace(draw(random.Random(1)), in_channels=35, out_channels=35, groups=35)
    x, weight = rows_of(problem.x_shape, HALF), rows_of(problem.w_shape, HALF, 1)
    x[:, 17] = bad
    y = plan_fprop(problem, x.stride(), HALF, CPU).run(x, weight)
    expected = convolve(problem, x.double(), weight.double())
    assert torch.equal(y.isfinite(), expected.isfinite())


@pytest.mark.parametrize("seed", range(24))
def test_gradient_of_the_filter(seed):
    rng = random.Random(seed)
    problem, dtype = draw(rng), rng.choice(FLOAT_DTYPES)
    x, weight = rows_of(problem.x_shape, dtype), rows_of(problem.w_shape, dtype, 1)
    dy = rows_of(problem.y_shape, dtype, 2)
    _, dw = gradients(problem, x, weight, dy)
    config = None
    if seed % 2:
        config = DepthwiseWgradConfig(
            qw=rng.randint(1, 4),
            lines=rng.randint(1, 3),
            taps=rng.randint(1, 4),
            block_p=rng.choice((4, 16)),
            block_c=16,
        )
    plan = plan_wgrad(
        problem, x.stride(), dy.stride(), dtype, CPU, config, rng.choice((None, torch.float32))
    )
    assert_close(plan.run(x, dy), dw, (problem, plan.config))
    dw_rows = torch.full(problem.w_shape, torch.nan, dtype=plan.out_dtype)
    if seed % 4 > 1:
        dw_rows = rows_of(problem.w_shape, plan.out_dtype)
    assert plan.run(x, dy, dw_rows) is dw_rows
    assert_close(dw_rows, dw, problem)


def test_a_filter_does_not_see_pixels_behind_a_row():
    """The last position of a row of 5 reaches over its end; x has what would show it."""
    problem = ConvProblem(
        batch=1, in_channels=16, out_channels=16, input_size=(7,), filter_size=(3,), stride=(1,),
        padding=((0, 0),), dilation=(1,), groups=16,
    )  # fmt: skip
    x, dy = rows_of(problem.x_shape, HALF), rows_of(problem.y_shape, HALF, 2)
    x[:, :, 6] = torch.inf
    config = DepthwiseWgradConfig(qw=4, lines=1, taps=3, block_p=8, block_c=16)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, config)
    dw = plan.run(x, dy)
    assert dw[..., :2].isfinite().all()
    assert not dw[..., 2].isfinite().any()
