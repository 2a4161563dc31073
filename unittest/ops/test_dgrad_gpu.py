"""The gradient of the input on a GPU, against cuDNN.

Tolerance: that of ``gpu_comparison.py``, against torch in fp32 (TF32 off).  Every result is written
over NaN, and computed a second time: same bits.

Kernels are compiled ahead by other processes, because compiling takes most of the time.
"""

from __future__ import annotations

import random
import sys

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from dgrad_cases import HALVES, draw, reference
from gpu_comparison import (
    MARKS,
    NIGHTLY,
    assert_as_exact_as_torch,
    compile_ahead,
    cudnn_in_full_precision,
    poisoned,
    skip_without_gpu,
    twice,
)
from planned import plan_dgrad, ranking_of, refusals_of
from problem_cases import channels_last, problem_of
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.gemm_config import DGRAD_CONFIGS, NARROW_CONFIGS
from triton_ext.ops.families.gluon import GLUON_DGRAD
from triton_ext.ops.families.gluon_config import CONFIGS as GLUON_CONFIGS
from triton_ext.ops.families.gluon_config import narrow_configs

skip_without_gpu()
pytestmark = MARKS

CASES = 500 if NIGHTLY else 40
MAX_FLOPS = 2e10


def draw_all():
    """The same cases at every call and on every machine: CASES per dtype."""
    rng = random.Random(2026)
    problems = []
    while len(problems) < CASES:
        problem = draw(rng, MAX_FLOPS)
        if all(not refusals_of("dgrad", problem, dtype) for dtype in DTYPES["dgrad"]):
            problems.append(problem)
    return [(problem, dtype) for problem in problems for dtype in DTYPES["dgrad"]]


RANDOM_CASES = draw_all()

FIXED_CASES = [
    problem_of(n=32, ci=64, co=64, size=(56, 56), padding=1),
    problem_of(n=8, ci=128, co=256, size=(56, 56), stride=2, padding=1),
    problem_of(n=8, ci=256, co=512, size=(28, 28), taps=(1, 1), stride=2),
    problem_of(n=16, ci=512, co=512, size=(7, 7), padding=1),
    problem_of(n=8, ci=3, co=64, size=(112, 112), taps=(7, 7), stride=2, padding=3),
    problem_of(n=4, ci=192, co=64, size=(64, 64), taps=(4, 4), stride=2, padding=1),
    problem_of(n=8, ci=128, co=384, size=(202,), taps=(3,), padding=1),
    problem_of(n=2, ci=64, co=128, size=(16, 28, 28), taps=(3, 3, 3), stride=(1, 2, 2), padding=1),
    problem_of(n=8, ci=256, co=256, size=(28, 28), padding=1, groups=4),
    problem_of(n=2, ci=16, co=768, size=(112, 112), taps=(16, 16), stride=16),
    *HALVES,
]


def operands(problem, dtype):
    return (
        channels_last(problem.y_shape, dtype, 1, "cuda"),
        channels_last(problem.w_shape, dtype, 2, "cuda"),
    )


def run(problem, dy, weight, config=None, bias=None):
    """dx of the kernel, twice: where nothing but NaN was before."""
    plan = plan_dgrad(problem, dy.stride(), dy.dtype, dy.device, config)
    return twice(lambda: plan.run(dy, weight, poisoned(problem.x_shape, dy.dtype), bias))


def check(problem, dtype, config=None):
    dy, weight = operands(problem, dtype)
    dx = run(problem, dy, weight, config)
    expected = reference(problem, dy, weight, torch.float32)
    # Ours rounds to TF32, torch's yardstick here does not.
    floor = 1e-3 if dtype == torch.float32 else None
    assert_as_exact_as_torch(dx, reference(problem, dy, weight, dtype), expected, floor)


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, kernels, and an fp32 reference."""
    triton_ext.install()
    compile_ahead(request, len(RANDOM_CASES), timeout_s=400 if NIGHTLY else 100)
    with cudnn_in_full_precision():
        yield


def test_the_cases_cover_what_they_are_meant_to():
    problems = [problem for problem, _ in RANDOM_CASES]
    assert {problem.dims for problem in problems} == {1, 2, 3}
    assert {stride for problem in problems for stride in problem.stride} == {1, 2, 3, 4}
    assert {step for problem in problems for step in problem.dilation} == {1, 2, 3}
    assert {taps for problem in problems for taps in problem.filter_size} == {1, 2, 3, 4, 5}
    assert any(problem.groups > 1 for problem in problems)
    assert any(low != high for problem in problems for low, high in problem.padding)
    assert sum(problem.in_channels % 8 > 0 for problem in problems) >= len(problems) // 8
    assert sum(problem.out_channels % 8 > 0 for problem in problems) >= len(problems) // 8


def other_configs(problem, dtype):
    """The best configuration of every kernel that takes the problem and was not chosen."""
    machine = device_of(torch.device("cuda"), "test")
    ranked = ranking_of("dgrad", problem, dtype, machine)
    best = {type(config): config for config in reversed(ranked)}
    return [config for config in best.values() if config != ranked[0]]


@pytest.mark.parametrize(("problem", "dtype"), RANDOM_CASES, ids=str)
def test_random_geometry(problem, dtype):
    check(problem, dtype)
    for config in other_configs(problem, dtype):
        check(problem, dtype, config)


@pytest.mark.parametrize("dtype", DTYPES["dgrad"], ids=str)
@pytest.mark.parametrize("problem", FIXED_CASES, ids=str)
def test_layers_of_networks(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("ci", [8, 16, 24, 32])
def test_narrow_tiles(ci, stride):
    for size, co in ((37, 72), (64, 128)):
        problem = problem_of(n=5, ci=ci, co=co, size=(size, 41), stride=stride, padding=1)
        steps = 9 * -(-co // 64) if stride == 1 else 0
        for config in narrow_configs(ci, 64, steps):
            for dtype in (torch.float16, torch.bfloat16):
                check(problem, dtype, config)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("config", [*DGRAD_CONFIGS, *NARROW_CONFIGS, *GLUON_CONFIGS], ids=str)
def test_every_configuration(config, stride):
    # Tails in M, N (200 columns) and K (72 channels) of every tile.
    problem = problem_of(n=5, ci=200, co=72, size=(37, 41), stride=stride, padding=1)
    case = Case(direction="dgrad", problem=problem, dtype=torch.float16)
    refusals = GLUON_DGRAD.refusals(case, device_of(torch.device("cuda"), "test"))
    if config in GLUON_CONFIGS and refusals:
        pytest.skip("; ".join(map(str, refusals)))
    check(problem, torch.float16, config)


@pytest.mark.parametrize("problem", [FIXED_CASES[0], FIXED_CASES[4]], ids=str)
def test_a_bias_is_added_in_fp32(problem):
    dy, weight = operands(problem, torch.float16)
    bias = torch.randn(problem.in_channels, device="cuda").half()
    dx = run(problem, dy, weight, bias=bias)
    dims = (1,) * problem.dims
    expected = reference(problem, dy, weight, torch.float32) + bias.float().view(1, -1, *dims)
    torch.testing.assert_close(dx.float(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("problem", FIXED_CASES[:3], ids=str)
def test_what_is_not_finite_shows_where_torch_shows_it(problem, value):
    dy, weight = operands(problem, torch.float16)
    pixel = tuple(size // 2 for size in problem.output_size)
    dy[(0, 5, *pixel)] = value
    dx = run(problem, dy, weight)
    # On the CPU, whose convolutions multiply no zeros that padding or strides insert.
    expected = reference(problem, dy.cpu(), weight.cpu()).cuda()
    assert torch.equal(torch.isnan(dx), torch.isnan(expected))
    assert torch.equal(torch.isinf(dx), torch.isinf(expected))


def test_a_captured_graph_reads_what_is_in_the_inputs_then():
    problem = FIXED_CASES[1]
    dy, weight = operands(problem, torch.float16)
    plan = plan_dgrad(problem, dy.stride(), dy.dtype, dy.device)
    out = plan.run(dy, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(dy, weight, out)
    dy.copy_(channels_last(problem.y_shape, dy.dtype, 3, "cuda"))
    graph.replay()
    assert torch.equal(out, plan.run(dy, weight))


def compile_slice(index: int, count: int) -> None:
    """Runs every count-th random case, whatever comes of it."""
    for problem, dtype in RANDOM_CASES[index::count]:
        run(problem, *operands(problem, dtype))


if __name__ == "__main__":
    compile_slice(int(sys.argv[1]), int(sys.argv[2]))
