"""The Gluon kernels of the gradient of the filter on a GPU, as plans launch them.

Results are written over NaN and computed twice, with the tolerance of ``gpu_comparison.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from dgrad_cases import CONV
from gpu_comparison import (
    MARKS,
    assert_as_exact_as_torch,
    bits,
    cudnn_in_full_precision,
    poison,
    poisoned,
    skip_without_gpu,
    twice,
)
from planned import plan_wgrad
from problem_cases import channels_last, problem_of
from triton_ext import ops
from triton_ext.host import capabilities
from triton_ext.ops import tuning
from triton_ext.ops.core import launcher, planner
from triton_ext.ops.families.gluon import DTYPES
from triton_ext.ops.families.gluon_wgrad import CONFIGS, WgradTileChoice, WgradTileConfig

skip_without_gpu()
GLUON = capabilities()["im2col-gluon"]
SM_90 = torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    *MARKS,
    pytest.mark.skipif(not GLUON.available, reason=GLUON.reason),
    pytest.mark.skipif(not SM_90, reason="the kernel is for sm_90 alone"),
]

# Tails of every kind; few tiles, all of them split.
TAILS = problem_of(n=2, ci=72, co=200, size=(37, 41), padding=((1, 2), (0, 1)))
# More tiles than multiprocessors, of which some are left after the last round.
ROUNDS = replace(TAILS, in_channels=584, out_channels=1096)
STRIDED = problem_of(n=4, ci=64, co=128, size=(29, 31), stride=(2, 3), dilation=(2, 1), padding=2)
POINTWISE = problem_of(n=4, ci=136, co=72, size=(29, 31), taps=(1, 1))
VOLUME = problem_of(n=2, ci=64, co=72, size=(5, 9, 11), taps=(3, 3, 3), padding=1)
LINE = problem_of(n=8, ci=128, co=384, size=(202,), taps=(3,), padding=1)
CASES = (TAILS, ROUNDS, STRIDED, POINTWISE, VOLUME, LINE)


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """The plugin, which another test may have taken out, and an fp32 reference."""
    triton_ext.install()
    with cudnn_in_full_precision():
        yield


@pytest.fixture
def choose(monkeypatch):
    """A function that has operators compute in one way, whatever tables and models say."""

    def chosen(choice):
        monkeypatch.setattr(planner, "find", lambda case, machine: choice)
        tuning.reload()

    yield chosen
    monkeypatch.undo()
    tuning.reload()


def reference(problem, x, dy, dtype):
    weight = torch.zeros(problem.w_shape, dtype=dtype, device=x.device, requires_grad=True)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x.to(dtype), sides)
    y = CONV[problem.dims](padded, weight, None, problem.stride, 0, problem.dilation)
    (dw,) = torch.autograd.grad(y, weight, dy.to(dtype))
    return dw


def operands(problem, dtype):
    shapes = (problem.x_shape, problem.y_shape)
    return [channels_last(shape, dtype, i, "cuda") for i, shape in enumerate(shapes)]


def plan_of(problem, x, dy, choice=None, **options):
    strides = (x.stride(), dy.stride())
    return plan_wgrad(problem, *strides, x.dtype, x.device, choice, **options)


def check(problem, dtype, choice, out_dtype=None):
    x, dy = operands(problem, dtype)
    plan = plan_of(problem, x, dy, choice, out_dtype=out_dtype)
    assert isinstance(plan.config, WgradTileConfig)

    def once():
        poison(4 * plan.tiles.workspace_elements)
        return plan.run(x, dy, out=poisoned(problem.w_shape, out_dtype or dtype))

    dw = twice(once)
    torchs = reference(problem, x, dy, dtype).to(out_dtype or dtype)
    assert_as_exact_as_torch(dw, torchs, reference(problem, x, dy, torch.float64))
    return dw


@pytest.mark.parametrize("in_place", [False, True], ids=["second kernel", "in place"])
@pytest.mark.parametrize("problem", CASES, ids=["tails", "rounds", "strided", "1x1", "3d", "1d"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_configuration(config, problem, in_place):
    if config.share == "tile" and (in_place or problem is ROUNDS):
        pytest.skip("consumers that share a tile have parts, which the second kernel adds")
    check(problem, torch.float16, WgradTileChoice(config=config, add_in_place=in_place))


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype, out_dtype):
    check(STRIDED, dtype, WgradTileChoice(config=CONFIGS[0]), out_dtype)
    check(ROUNDS, dtype, WgradTileChoice(config=CONFIGS[0]), out_dtype)


def test_a_hundred_runs_give_identical_bits():
    x, dy = operands(ROUNDS, torch.float16)
    for in_place in (False, True):
        plan = plan_of(ROUNDS, x, dy, WgradTileChoice(config=CONFIGS[0], add_in_place=in_place))
        assert plan.tiles.split_tiles
        first = plan.run(x, dy)
        for _ in range(100):
            assert torch.equal(bits(plan.run(x, dy)), bits(first))


def test_streams_do_not_share_flags():
    x, dy = operands(STRIDED, torch.float16)
    plan = plan_of(STRIDED, x, dy, WgradTileChoice(config=CONFIGS[0], add_in_place=True))
    expected = plan.run(x, dy)
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(plan.run(x, dy))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("in_place", [False, True], ids=["second kernel", "in place"])
def test_a_cuda_graph_replays_with_other_inputs(in_place):
    x, dy = operands(STRIDED, torch.float16)
    plan = plan_of(STRIDED, x, dy, WgradTileChoice(config=CONFIGS[0], add_in_place=in_place))
    plan.run(x, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dw = plan.run(x, dy)
    x.copy_(channels_last(STRIDED.x_shape, torch.float16, 3, "cuda"))
    for _ in range(3):
        dw.fill_(torch.nan)
        graph.replay()
        assert torch.equal(dw, plan.run(x, dy))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_go_where_torch_has_them(bad):
    for which in (0, 1):
        tensors = operands(TAILS, torch.float16)
        tensors[which][-1, 2, 5, 7] = bad
        ours = plan_of(TAILS, *tensors, WgradTileChoice(config=CONFIGS[0])).run(*tensors).cpu()
        expected = reference(TAILS, *(t.cpu() for t in tensors), torch.float64)
        assert torch.equal(ours.isnan(), expected.isnan())
        assert torch.equal(ours.isinf(), expected.isinf())


def test_operators_and_autograd_take_it(choose):
    problem = problem_of(n=8, ci=320, co=320, size=(64, 64), padding=1)
    choose(WgradTileChoice(config=CONFIGS[0]))
    x, dy = operands(problem, torch.float16)
    assert isinstance(plan_of(problem, x, dy).config, WgradTileConfig)
    dw = ops.conv2d_weight(x, problem.w_shape, dy, padding=1)
    weight = channels_last(problem.w_shape, torch.float16, 5, "cuda").requires_grad_()
    ops.conv2d(x, weight, padding=1).backward(dy)
    assert torch.equal(weight.grad, dw)
    torchs, exact = (reference(problem, x, dy, dtype) for dtype in (torch.float16, torch.float32))
    assert_as_exact_as_torch(dw, torchs, exact)


def test_torch_compile_with_graphs_keeps_no_memory_of_theirs(choose):
    # Tiles in three parts, which the CTAs with the last ones add.
    problem = problem_of(n=32, ci=256, co=256, size=(14, 14), padding=1)
    choose(WgradTileChoice(config=CONFIGS[0], add_in_place=True))
    x, dy = operands(problem, torch.float16)
    plan = plan_of(problem, x, dy)
    assert isinstance(plan.config, WgradTileConfig)
    assert plan.tiles.add_in_place
    assert plan.tiles.split_tiles
    launcher._stream_flags.cache_clear()

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def weight_gradient(x, dy):
        return ops.conv2d_weight(x, problem.w_shape, dy, padding=1)

    results = [weight_gradient(x, dy).clone() for _ in range(4)]
    expected = ops.conv2d_weight(x, problem.w_shape, dy, padding=1)
    assert all(torch.equal(result, expected) for result in results)
