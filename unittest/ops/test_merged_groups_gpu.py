"""Merged groups on a GPU as they are chosen: replays and graphs repair, too."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from gpu_comparison import MARKS, bits, skip_without_gpu
from problem_cases import channels_last, problem_of
from triton_ext import ops

skip_without_gpu()
pytestmark = MARKS

CUDA = torch.device("cuda")
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def _plugin():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


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
