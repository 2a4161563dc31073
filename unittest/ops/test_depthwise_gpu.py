"""Depthwise convolutions and gradients of small groups on a GPU, against float64."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from family_plans import configs_of
from fprop_cases import convolve
from gpu_comparison import (
    MARKS,
    NIGHTLY,
    assert_as_exact_as_torch,
    bits,
    compile_ahead,
    pairwise_floor,
    poison,
    poisoned,
    skip_without_gpu,
    twice,
)
from planned import plan_dgrad, plan_fprop, plan_wgrad, refusals_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise import DEPTHWISE, DEPTHWISE_DGRAD, DEPTHWISE_WGRAD

skip_without_gpu()
pytestmark = MARKS

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
NUMBERS = range(500 if NIGHTLY else 40)
CASES = [(dtype, number) for number in NUMBERS for dtype in DTYPES]


def drawn(dtype: torch.dtype, number: int) -> ConvProblem:
    """The same problem at every call; every fourth has groups of a few channels."""
    rng = random.Random(f"depthwise {dtype} {number}")
    while True:
        dims = rng.randint(1, 3)

        def several(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        groups = rng.choice((2, 3, 16, 24, 70, 96, 256))
        group_ci = group_co = 1
        if number % 4 == 0:
            group_ci, group_co = rng.choice((1, 2, 3, 5)), rng.choice((1, 2, 3, 7, 9, 20))
        problem = ConvProblem(
            batch=rng.randint(1, 4),
            in_channels=groups * group_ci,
            out_channels=groups * group_co,
            input_size=several(1, (200, 40, 12)[dims - 1]),
            filter_size=several(1, (31, 7, 3)[dims - 1]),
            stride=several(1, 3),
            padding=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(dims)),
            dilation=several(1, 3),
            groups=groups,
        )
        if min(problem.output_size) > 0:
            return problem


def draw_rows(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A tensor [N, C, *size], channels-last."""
    generator = torch.Generator("cuda").manual_seed(seed)
    size = (shape[0], *shape[2:], shape[1])
    return torch.randn(size, generator=generator, device="cuda").to(dtype).movedim(-1, 1)


def gradients(
    problem: ConvProblem, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, dx and dw, as torch computes them in the dtype of the arguments."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.backends.cudnn.flags(enabled=x.dtype != torch.float64, allow_tf32=False):
        y = convolve(problem, x, weight)
        return (y.detach(), *torch.autograd.grad(y, (x, weight), dy))


def floors_of(
    problem: ConvProblem, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor
) -> list[tuple[float, torch.Tensor] | tuple[float] | tuple[()]]:
    """What comparisons of y, dx and dw need: a floor, and what it is relative to."""
    if x.dtype != torch.float32:
        return [()] * 3
    if not problem.groups == problem.in_channels == problem.out_channels:
        # Tensor cores have TF32 for groups of more channels.
        return [(2e-3,)] * 3
    # Torch may add in any order.  All three are linear in both of their factors: of the squares of
    # these they are the sums of the products' squares.
    squares = gradients(problem, *(tensor.double().square() for tensor in (x, weight, dy)))
    products = (problem.taps, problem.taps, problem.batch * math.prod(problem.output_size))
    return [
        (pairwise_floor(count), square.sqrt())
        for count, square in zip(products, squares, strict=True)
    ]


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, len(CASES), timeout_s=900 if NIGHTLY else 150)


@pytest.mark.parametrize(("dtype", "number"), CASES, ids=str)
def test_random_geometry(dtype, number):
    problem = drawn(dtype, number)
    x, weight = draw_rows(problem.x_shape, dtype, 0), draw_rows(problem.w_shape, dtype, 1)
    dy = draw_rows(problem.y_shape, dtype, 2)
    references = gradients(problem, x.double(), weight.double(), dy.double())
    torchs = gradients(problem, x, weight, dy)
    device = x.device
    floors = floors_of(problem, x, weight, dy)

    def check(ours: torch.Tensor, which: int) -> None:
        assert_as_exact_as_torch(ours, torchs[which], references[which], *floors[which])

    plan = plan_fprop(problem, x.stride(), dtype, device)
    check(twice(lambda: plan.run(x, weight, out=poisoned(problem.y_shape, dtype))), 0)
    plan = plan_dgrad(problem, dy.stride(), dtype, device)
    check(twice(lambda: plan.run(dy, weight, poisoned(problem.x_shape, dtype))), 1)
    if not refusals_of("wgrad", problem, dtype):
        plan = plan_wgrad(problem, x.stride(), dy.stride(), dtype, device)
        poison(4 * problem.taps * problem.in_channels)
        check(twice(lambda: plan.run(x, dy)), 2)


LAYERS = {
    "convnext": ((8, 96, 56, 56), 7, 1),
    "mobilenet": ((8, 96, 56, 56), 3, 2),
    "1-D": ((4, 512, 2000), 31, 1),
    "last": ((8, 768, 7, 7), 7, 1),
}


def layer(name: str) -> ConvProblem:
    (n, channels, *size), taps, stride = LAYERS[name]
    dims = len(size)
    return ConvProblem(
        batch=n,
        in_channels=channels,
        out_channels=channels,
        input_size=tuple(size),
        filter_size=(taps,) * dims,
        stride=(stride,) * dims,
        padding=((taps // 2,) * 2,) * dims,
        dilation=(1,) * dims,
        groups=channels,
    )


@pytest.mark.parametrize("name", LAYERS)
def test_common_layers_with_several_configurations(name):
    problem, dtype = layer(name), torch.float16
    x, weight = draw_rows(problem.x_shape, dtype, 0), draw_rows(problem.w_shape, dtype, 1)
    dy = draw_rows(problem.y_shape, dtype, 2)
    references = gradients(problem, x.double(), weight.double(), dy.double())
    torchs = gradients(problem, x, weight, dy)
    for config in configs_of(DEPTHWISE, problem)[:40:10]:
        plan = plan_fprop(problem, x.stride(), dtype, x.device, config=config)
        assert_as_exact_as_torch(plan.run(x, weight), torchs[0], references[0])
    for config in configs_of(DEPTHWISE_DGRAD, problem)[:20:10]:
        plan = plan_dgrad(problem, dy.stride(), dtype, x.device, config)
        assert_as_exact_as_torch(plan.run(dy, weight), torchs[1], references[1])
    for config in configs_of(DEPTHWISE_WGRAD, problem)[:20:10]:
        plan = plan_wgrad(problem, x.stride(), dy.stride(), dtype, x.device, config)
        assert_as_exact_as_torch(plan.run(x, dy), torchs[2], references[2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_channel_does_not_see_its_neighbours(bad):
    problem = replace(layer("convnext"), batch=1)
    x, weight = (draw_rows(s, torch.float16, 0) for s in (problem.x_shape, problem.w_shape))
    dy = draw_rows(problem.y_shape, torch.float16, 2)
    x[:, 17, 20, 20] = bad
    dy[:, 40, 20, 20] = bad
    references = gradients(problem, x.double(), weight.double(), dy.double())
    device = x.device
    ours = (
        plan_fprop(problem, x.stride(), x.dtype, device).run(x, weight),
        plan_dgrad(problem, dy.stride(), x.dtype, device).run(dy, weight),
        plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, device).run(x, dy),
    )
    for found, expected in zip(ours, references, strict=True):
        assert torch.equal(found.isfinite(), expected.isfinite())


def test_autograd_and_a_graph():
    problem = layer("mobilenet")
    x, weight = (draw_rows(s, torch.float16, 0) for s in (problem.x_shape, problem.w_shape))
    x.requires_grad_()
    weight.requires_grad_()
    dy = draw_rows(problem.y_shape, torch.float16, 2)
    y = triton_ext.ops.conv2d(x, weight, stride=2, padding=1, groups=96)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    references = gradients(problem, x.double(), weight.double(), dy.double())
    torchs = gradients(problem, x, weight, dy)
    for found, other, expected in zip((y.detach(), dx, dw), torchs, references, strict=True):
        assert_as_exact_as_torch(found, other, expected)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, x.device)
    given = x.detach().clone(memory_format=torch.channels_last)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = plan.run(given, dy)
    given.mul_(0.5)
    graph.replay()
    assert torch.equal(bits(recorded), bits(plan.run(given, dy)))


def compile_part(index: int, count: int) -> None:
    """Runs every ``count``-th random case once; errors are for the tests to find."""
    for dtype, number in CASES[index::count]:
        with contextlib.suppress(Exception):
            test_random_geometry(dtype, number)


if __name__ == "__main__":
    compile_part(int(sys.argv[1]), int(sys.argv[2]))
