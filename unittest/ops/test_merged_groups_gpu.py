"""Merged groups on a GPU: fprop and dgrad against float64, NaN and infinity, choice, replays."""

from __future__ import annotations

import contextlib
import random
import sys

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from dgrad_cases import reference
from fprop_cases import ACTIVATIONS, Case, check, convolve
from gpu_comparison import MARKS, NIGHTLY, bits, compile_ahead, skip_without_gpu
from merged_cases import draw_grouped
from planned import plan_dgrad, plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext import ops
from triton_ext.ops.core import case as cases
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.families.merged_groups import MERGED, MERGED_DGRAD

skip_without_gpu()
pytestmark = MARKS

NUMBERS = range(500 if NIGHTLY else 40)
CUDA = torch.device("cuda")
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
DTYPES = (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)

# Twice the error of rounding the largest value once; tf32 has the bits of fp16.
EPSILON = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-11}


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, and kernels."""
    triton_ext.install()
    compile_ahead(request, 2 * len(NUMBERS), timeout_s=900 if NIGHTLY else 150)


def configs_of(family, problem, dtype, **others):
    """The first configuration of every factor and of every inner family."""
    case = cases.Case(direction=family.direction, problem=problem, dtype=dtype, **others)
    machine = device_of(CUDA, "a test")
    first = {}
    if not family.refusals(case, machine):
        for config in family.candidates(case, machine):
            first.setdefault((config.factor, type(config.config)), config)
    return list(first.values())


def fprop_case(number):
    rng = random.Random(number)
    dtype = DTYPES[number % len(DTYPES)]
    is_int, is_narrow = dtype == torch.int8, dtype.itemsize == 1
    spec = EpilogueSpec(
        bias=rng.random() < 0.5,
        scale=rng.random() < 0.3,
        residual=rng.random() < 0.3,
        activation=rng.choice(tuple(ACTIVATIONS)) if rng.random() < 0.5 else "none",
        out_dtype=torch.float16 if is_narrow else rng.choice((None, torch.float32)),
        out_scale=rng.random() < 0.3,
    )
    problem = draw_grouped(rng, pixels=24)
    return Case(problem=problem, dtype=dtype, spec=EpilogueSpec() if is_int else spec)


@pytest.mark.parametrize("number", NUMBERS)
def test_fprop(number):
    case = fprop_case(number)
    for config in configs_of(MERGED, case.problem, case.dtype, epilogue=case.spec):
        first, second = check(case, "cuda", config), check(case, "cuda", config)
        assert torch.equal(bits(first), bits(second))


@pytest.mark.parametrize("number", NUMBERS)
def test_dgrad(number):
    rng = random.Random(number)
    problem, dtype = draw_grouped(rng, pixels=24), rng.choice(FLOATS)
    dy = channels_last(problem.y_shape, dtype, 1, "cuda")
    weight = channels_last(problem.w_shape, dtype, 2, "cuda")
    expected = reference(problem, dy.cpu(), weight.cpu())
    for config in configs_of(MERGED_DGRAD, problem, dtype):
        plan = plan_dgrad(problem, dy.stride(), dtype, CUDA, config)
        first, second = plan.run(dy, weight), plan.run(dy, weight)
        assert torch.equal(bits(first), bits(second))
        error = (first.double().cpu() - expected).abs().max().item()
        limit = 2 * EPSILON[dtype] + (4 * EPSILON[dtype] if dtype == torch.float32 else 0)
        assert error <= limit * max(expected.abs().max().item(), 1.0), config


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("number", range(60 if NIGHTLY else 6))
def test_what_is_not_finite_stays_in_its_group(number, bad):
    rng = random.Random(number)
    problem, dtype = draw_grouped(rng, pixels=24), rng.choice(FLOATS)
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    x, weight, dy = (channels_last(s, dtype, i, "cuda") for i, s in enumerate(shapes))
    weight = torch.where(weight == 0, torch.ones_like(weight), weight)
    for tensor in (x, dy):
        tensor[tuple(rng.randrange(extent) for extent in tensor.shape)] = bad
    forward = convolve(problem, x.double().cpu(), weight.double().cpu())
    backward = reference(problem, dy.cpu(), weight.cpu())
    for config in configs_of(MERGED, problem, dtype):
        y = plan_fprop(problem, x.stride(), dtype, CUDA, config=config).run(x, weight).cpu()
        assert torch.equal(y.isnan(), forward.isnan())
        assert torch.equal(y.isinf(), forward.isinf())
    for config in configs_of(MERGED_DGRAD, problem, dtype):
        plan = plan_dgrad(problem, dy.stride(), dtype, CUDA, config)
        dx = plan.run(dy, weight).cpu()
        assert torch.equal(dx.isnan(), backward.isnan())
        assert torch.equal(dx.isinf(), backward.isinf())


EIGHT = problem_of(n=32, ci=256, co=256, size=(56, 56), padding=1, groups=32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_layer_of_resnext_as_it_is_chosen(dtype):
    x = channels_last(EIGHT.x_shape, dtype, 1, "cuda")
    weight = channels_last(EIGHT.w_shape, dtype, 2, "cuda")
    # The third call replays the launches of the first ones.
    results = [ops.conv2d(x, weight, padding=1, groups=32) for _ in range(4)]
    theirs = torch.nn.functional.conv2d(x, weight, padding=1, groups=32)
    exact = torch.nn.functional.conv2d(x.float(), weight.float(), padding=1, groups=32)
    limit = 2 * (theirs - exact).abs().max() + torch.finfo(dtype).eps / 2 * exact.abs().max()
    for y in results:
        assert (y - exact).abs().max() <= limit
        assert torch.equal(bits(y), bits(results[0]))
    # A replay repairs, too, and the next one has forgotten it.
    spoiled = x.clone()
    spoiled[3, 17, 5, 5] = torch.nan
    y = ops.conv2d(spoiled, weight, padding=1, groups=32)
    nan = y.isnan()
    assert nan[3, 16:24, 4:7, 4:7].all()
    assert nan.sum() == 8 * 9
    assert torch.equal(bits(ops.conv2d(x, weight, padding=1, groups=32)), bits(results[0]))


def test_launches_can_be_captured_in_a_graph():
    x = channels_last(EIGHT.x_shape, torch.float16, 1, "cuda")
    weight = channels_last(EIGHT.w_shape, torch.float16, 2, "cuda")
    expected = ops.conv2d(x, weight, padding=1, groups=32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.conv2d(x, weight, padding=1, groups=32)
    graph.replay()
    assert torch.equal(bits(y), bits(expected))
    x[0, 0, 0, 0] = torch.nan
    graph.replay()
    assert y.isnan().sum() == 8 * 4
    x[0, 0, 0, 0] = 0.0
    graph.replay()
    assert not y.isnan().any()


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    for some in NUMBERS[first::count]:
        with contextlib.suppress(AssertionError):  # for the tests to find
            test_fprop(some)
            test_dgrad(some)
