"""The gradient of the filter on a GPU, against cuDNN.

Tolerance: that of ``gpu_comparison.py``, against torch in fp32 (TF32 off).  Every result is written
over NaN, with a workspace of NaN, and computed a second time: same bits.

Kernels are compiled ahead by other processes, because compiling takes most of the time.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from gpu_comparison import (
    MARKS,
    NIGHTLY,
    assert_as_exact_as_torch,
    compile_ahead,
    cudnn_in_full_precision,
    poison,
    poisoned,
    skip_without_gpu,
    twice,
)
from planned import plan_wgrad, refusals_of
from problem_cases import channels_last, misaligned_slice, problem_of
from swapped_cases import draw_swapped
from triton_ext.errors import DescriptorError
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.depthwise import DepthwiseWgradPlan
from triton_ext.ops.families.partial_im2col import SwappedConfig, SwappedWgradPlan, ways
from triton_ext.ops.families.wgrad import CONFIGS, MOST_PART_ROUNDS

skip_without_gpu()
pytestmark = MARKS

CASES = 500 if NIGHTLY else 40
MAX_FLOPS = 2e10
MAX_ELEMENTS = 1 << 24


def draw(rng: random.Random) -> ConvProblem:
    """Draws a convolution that is small enough for a test and that TMA can express."""

    def channels() -> int:
        # Even on a logarithmic scale; half are multiples of 8, which need no padding.
        count = round(2 ** rng.uniform(0, 9.3))
        return max(8, count // 8 * 8) if rng.random() < 0.5 else count

    while True:
        dims = rng.choice((1, 2, 2, 2, 3))
        longest = {1: 3000, 2: 60, 3: 16}[dims]

        def numbers(low: int, high: int, dims: int = dims) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(dims))

        groups = rng.choice((1, 1, 1, 2, 4))
        depthwise = rng.random() < 0.05
        ci = channels()
        problem = problem_of(
            n=rng.choice((1, 1, 2, 3, 8, 32)),
            ci=ci if depthwise else ci * groups,
            co=ci if depthwise else channels() * groups,
            size=numbers(1, longest),
            taps=numbers(1, 5 if dims < 3 else 3),
            stride=numbers(1, 3),
            padding=tuple(zip(numbers(0, 3), numbers(0, 3), strict=True)),
            dilation=numbers(1, 3),
            groups=ci if depthwise else groups,
        )
        if min(problem.output_size) < 1 or problem.flops > MAX_FLOPS:
            continue
        elements = max(math.prod(problem.x_shape), math.prod(problem.y_shape))
        if elements <= MAX_ELEMENTS and not refusals_of("wgrad", problem, torch.float16):
            return problem


def draw_all() -> list[tuple[ConvProblem, torch.dtype]]:
    """The same cases at every call and on every machine: CASES per dtype."""
    rng = random.Random(2026)
    problems = [draw(rng) for _ in range(CASES)]
    return [(problem, dtype) for problem in problems for dtype in DTYPES["wgrad"]]


RANDOM_CASES = draw_all()

FIXED_CASES = [
    problem_of(n=32, ci=64, co=64, size=(56, 56), padding=1),
    problem_of(n=32, ci=256, co=64, size=(56, 56), taps=(1, 1)),
    problem_of(n=8, ci=128, co=256, size=(56, 56), stride=2, padding=1),
    problem_of(n=8, ci=256, co=512, size=(28, 28), taps=(1, 1), stride=2),
    problem_of(n=32, ci=512, co=512, size=(7, 7), padding=1),
    problem_of(n=8, ci=3, co=64, size=(112, 112), taps=(7, 7), stride=2, padding=3),
    problem_of(n=2, ci=1280, co=1280, size=(16, 16), padding=1),
    problem_of(n=8, ci=128, co=384, size=(202,), taps=(3,), padding=1),
    problem_of(n=2, ci=64, co=128, size=(16, 28, 28), taps=(3, 3, 3), stride=(1, 2, 2), padding=1),
    problem_of(n=8, ci=256, co=256, size=(28, 28), padding=1, groups=4),
    problem_of(n=8, ci=96, co=96, size=(28, 28), taps=(7, 7), padding=3, groups=96),
]

# Tails of every kind, for any tile.
TAILS = problem_of(n=2, ci=72, co=200, size=(37, 41), padding=((1, 2), (0, 1)))


def name_of(value: object) -> str:
    """A short name of a case."""
    if not isinstance(value, ConvProblem):
        return str(value).removeprefix("torch.")
    p = value
    sizes = ("x".join(map(str, v)) for v in (p.input_size, p.filter_size, p.stride, p.dilation))
    size, taps, stride, dilation = sizes
    channels = f"{p.batch}x{p.in_channels}x{size}-{p.out_channels}"
    return f"{channels}-{taps}-s{stride}-d{dilation}-g{p.groups}"


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Standard normal, [N, C, *size] in channels-last memory."""
    return channels_last(shape, dtype, seed, "cuda")


def reference(problem, x, dy, dtype):
    """What torch gives; it knows equal sides only, so all padding is done in front."""
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.to(dtype), sides)
    weight = torch.empty((), dtype=dtype, device=x.device).expand(problem.w_shape)
    zeros = [0] * problem.dims
    return torch.ops.aten.convolution_backward(
        dy.to(dtype), padded, weight, None, problem.stride, zeros, problem.dilation, False, zeros,
        problem.groups, [False, True, False],
    )[1]  # fmt: skip


def run(problem, x, dy, **options):
    """dw of the kernels, twice: where nothing but NaN was before."""
    plan = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, x.device, **options)
    if isinstance(plan, DepthwiseWgradPlan):
        workspace = plan.parts * math.prod(problem.w_shape)
    else:
        workspace = plan.tiles.workspace_elements

    def once():
        dw = poisoned(problem.w_shape, plan.out_dtype)
        poison(4 * workspace)
        return plan.run(x, dy, dw)

    return twice(once)


def check(problem, dtype, **options):
    x, dy = normal(problem.x_shape, dtype, 1), normal(problem.y_shape, dtype, 2)
    dw = run(problem, x, dy, **options)
    expected = reference(problem, x, dy, torch.float32)
    assert_as_exact_as_torch(dw, reference(problem, x, dy, dtype), expected)
    return dw


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    """The plugin, which another test may have taken out, kernels, and an fp32 reference."""
    triton_ext.install()
    compile_ahead(request, len(RANDOM_CASES), timeout_s=400 if NIGHTLY else 100)
    with cudnn_in_full_precision():
        yield


@pytest.mark.parametrize(("problem", "dtype"), RANDOM_CASES, ids=name_of)
def test_random_geometry(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize("dtype", DTYPES["wgrad"], ids=name_of)
@pytest.mark.parametrize("problem", FIXED_CASES, ids=name_of)
def test_layers_of_networks(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("num_sms", [1, 20], ids=["whole", "split"])
def test_every_configuration(config, num_sms):
    check(TAILS, torch.float16, config=config, num_sms=num_sms)


@pytest.mark.parametrize("part_rounds", range(1, MOST_PART_ROUNDS + 1))
def test_rounds_of_parts(part_rounds):
    check(TAILS, torch.bfloat16, config=CONFIGS[4], part_rounds=part_rounds)


@pytest.mark.parametrize("num_sms", [None, 1], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", DTYPES["wgrad"], ids=name_of)
def test_fp32_out_is_as_exact_as_torchs_fp32(dtype, num_sms):
    x, dy = normal(TAILS.x_shape, dtype, 1), normal(TAILS.y_shape, dtype, 2)
    dw = run(TAILS, x, dy, out_dtype=torch.float32, num_sms=num_sms)
    assert dw.dtype == torch.float32
    expected = reference(TAILS, x, dy, torch.float64)
    torchs = reference(TAILS, x, dy, torch.float32)
    assert_as_exact_as_torch(dw, torchs, expected, relative_floor=1e-6)


def test_a_hundred_runs_give_identical_bits():
    problem = FIXED_CASES[0]
    dtype = torch.float16
    x, dy = normal(problem.x_shape, dtype, 1), normal(problem.y_shape, dtype, 2)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), dtype, x.device)
    assert plan.tiles.workspace_elements > 4
    first = plan.run(x, dy)
    for _ in range(100):
        assert torch.equal(plan.run(x, dy).view(torch.int16), first.view(torch.int16))


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("problem", [TAILS, replace(TAILS, groups=2)], ids=name_of)
def test_not_a_number_goes_where_torch_has_it(problem, value):
    for which in (0, 1):
        tensors = [
            normal(problem.x_shape, torch.float16, 1),
            normal(problem.y_shape, torch.float16, 2),
        ]
        tensors[which][-1, 2, 5, 7] = value
        plan = plan_wgrad(problem, *(t.stride() for t in tensors), torch.float16, tensors[0].device)
        ours = plan.run(*tensors).cpu()
        expected = reference(problem, *(t.cpu() for t in tensors), torch.float64)
        assert torch.equal(ours.isnan(), expected.isnan())
        assert torch.equal(ours.isinf(), expected.isinf())


@pytest.mark.parametrize("out", [None, torch.float32], ids=["same dtype", "fp32"])
def test_a_cuda_graph_replays_with_other_inputs(out):
    dtype = torch.float16
    x, dy = normal(TAILS.x_shape, dtype, 1), normal(TAILS.y_shape, dtype, 2)
    plan = plan_wgrad(TAILS, x.stride(), dy.stride(), dtype, x.device, out_dtype=out)
    plan.run(x, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dw = plan.run(x, dy)
    x.copy_(normal(TAILS.x_shape, dtype, 3))
    dy.copy_(normal(TAILS.y_shape, dtype, 4))
    dw.fill_(torch.nan)
    graph.replay()
    assert torch.equal(dw, plan.run(x, dy))


def test_another_stream():
    dtype = torch.float16
    x, dy = normal(TAILS.x_shape, dtype, 1), normal(TAILS.y_shape, dtype, 2)
    plan = plan_wgrad(TAILS, x.stride(), dy.stride(), dtype, x.device)
    expected = plan.run(x, dy)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(20):
            assert torch.equal(plan.run(x, dy), expected)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """One number everywhere, as the gradient of a sum is."""
    return tensor.new_ones(()).expand(tensor.shape)


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers at an address that TMA cannot read."""
    rows = tensor.movedim(1, -1)
    return rows.new_empty(rows.numel() + 1)[1:].view(rows.shape).copy_(rows).movedim(-1, 1)


LAYOUTS = (torch.Tensor.contiguous, expanded, misaligned, misaligned_slice)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dy_may_lie_in_any_way(layout):
    x, dy = normal(TAILS.x_shape, torch.float16, 1), normal(TAILS.y_shape, torch.float16, 2)
    dy = layout(dy)
    dw = run(TAILS, x, dy)
    dense = dy.contiguous(memory_format=torch.channels_last)
    assert torch.equal(dw, run(TAILS, x, dense))


def test_x_that_begins_at_any_address_with_gaps_between_pixels():
    # Channels are filled up by a copy.
    odd = replace(TAILS, in_channels=70)
    x, dy = normal(odd.x_shape, torch.float16, 1), normal(odd.y_shape, torch.float16, 2)
    apart = misaligned_slice(x)
    assert apart.data_ptr() % 16 == 8
    assert torch.equal(run(odd, apart, dy), run(odd, x, dy))
    # Whole units of channels are read where they are.
    x = misaligned_slice(normal(TAILS.x_shape, torch.float16, 1))
    with pytest.raises(DescriptorError, match="must be 16-byte aligned, is off by 8"):
        run(TAILS, x, dy)


# ---- Few output channels: x and dy swapped ------------------------------------------------------

FEW = problem_of(n=2, ci=72, co=3, size=(37, 41), padding=((1, 0), (0, 1)))
SWAPPED = SwappedConfig(CONFIGS[5])


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 16))
def test_random_geometry_of_few_output_channels(number):
    rng = random.Random(number)
    while True:
        problem = draw_swapped(rng, pixels=60, channels=256)
        if math.prod(problem.x_shape) > MAX_ELEMENTS // 8:
            continue
        x, dy = (channels_last(s, torch.float16, 0) for s in (problem.x_shape, problem.y_shape))
        case = Case(
            direction="wgrad", problem=problem, dtype=x.dtype, x_strides=x.stride(),
            dy_strides=dy.stride(),
        )  # fmt: skip
        if ways(case):
            break
    config = SwappedConfig(rng.choice(CONFIGS))
    out_dtype = rng.choice((None, torch.float32))
    check(problem, rng.choice(list(DTYPES["wgrad"])), config=config, out_dtype=out_dtype)


@pytest.mark.parametrize("dtype", DTYPES["wgrad"], ids=name_of)
@pytest.mark.parametrize(
    "problem",
    [
        problem_of(n=1, ci=128, co=3, size=(512, 512), padding=1),
        problem_of(n=8, ci=320, co=4, size=(64, 64), padding=1),
    ],
    ids=name_of,
)
def test_layers_of_few_output_channels_are_swapped(problem, dtype):
    x, dy = normal(problem.x_shape, dtype, 1), normal(problem.y_shape, dtype, 2)
    # With a number of multiprocessors no table is asked.
    plan = plan_wgrad(problem, x.stride(), dy.stride(), dtype, x.device, num_sms=132)
    assert isinstance(plan, SwappedWgradPlan)
    check(problem, dtype, num_sms=132)


def test_a_swapped_gradient_in_fp32_is_as_exact_as_torchs():
    x, dy = normal(FEW.x_shape, torch.float16, 1), normal(FEW.y_shape, torch.float16, 2)
    dw = run(FEW, x, dy, config=SWAPPED, out_dtype=torch.float32)
    expected = reference(FEW, x, dy, torch.float64)
    torchs = reference(FEW, x, dy, torch.float32)
    assert_as_exact_as_torch(dw, torchs, expected, relative_floor=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dy_of_few_channels_may_lie_in_any_way(layout):
    x, dy = normal(FEW.x_shape, torch.float16, 1), normal(FEW.y_shape, torch.float16, 2)
    dy = layout(dy)
    dw = run(FEW, x, dy, config=SWAPPED)
    dense = dy.contiguous(memory_format=torch.channels_last)
    assert torch.equal(dw, run(FEW, x, dense, config=SWAPPED))
    out = torch.full(dw.shape, torch.nan, dtype=dw.dtype, device="cuda")
    plan = plan_wgrad(FEW, x.stride(), dy.stride(), x.dtype, x.device, SWAPPED)
    assert torch.equal(plan.run(x, dy, out), dw)


def test_x_of_a_swapped_gradient_may_begin_at_any_address_with_gaps_between_pixels():
    x, dy = normal(FEW.x_shape, torch.float16, 1), normal(FEW.y_shape, torch.float16, 2)
    apart = misaligned_slice(x)
    assert apart.data_ptr() % 16 == 8
    assert torch.equal(run(FEW, apart, dy, config=SWAPPED), run(FEW, x, dy, config=SWAPPED))


def test_a_cuda_graph_of_a_swapped_gradient_replays_with_other_inputs():
    x, dy = normal(FEW.x_shape, torch.float16, 1), normal(FEW.y_shape, torch.float16, 2)
    plan = plan_wgrad(FEW, x.stride(), dy.stride(), x.dtype, x.device, SWAPPED)
    plan.run(x, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dw = plan.run(x, dy)
    x.copy_(normal(FEW.x_shape, torch.float16, 3))
    dy.copy_(normal(FEW.y_shape, torch.float16, 4))
    dw.fill_(torch.nan)
    graph.replay()
    assert torch.equal(dw, plan.run(x, dy))


if __name__ == "__main__":
    # What compiled_ahead starts: every processes-th case, from index on.
    index, processes = (int(word) for word in sys.argv[1:])
    for problem, dtype in RANDOM_CASES[index::processes]:
        x, dy = normal(problem.x_shape, dtype, 1), normal(problem.y_shape, dtype, 2)
        plan_wgrad(problem, x.stride(), dy.stride(), dtype, x.device).run(x, dy)
