"""Gradients of inputs of patches on a GPU, against torch in fp64; computed twice."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="needs torch, which is not installed")

import torch
import triton_ext
from gpu_comparison import MARKS, NIGHTLY, skip_without_gpu
from patch_cases import check, draw
from planned import plan_dgrad
from problem_cases import channels_last, problem_of
from triton_ext.ops import conv2d, conv_transpose2d
from triton_ext.ops.core.device import device_of
from triton_ext.ops.kernels.patches import patch_dgrad_kernel

skip_without_gpu()
pytestmark = MARKS

LAYERS = {
    "convnext": problem_of(n=4, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4),
    "vit": problem_of(n=4, ci=3, co=768, size=(224, 224), taps=(16, 16), stride=16),
    "vit of 14": problem_of(n=2, ci=3, co=256, size=(224, 230), taps=(14, 14), stride=14),
    "tubelets": problem_of(
        n=2, ci=3, co=128, size=(16, 224, 224), taps=(2, 16, 16), stride=(2, 16, 16)
    ),
}


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The plugin, which another test may have taken out."""
    triton_ext.install()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 8))
def test_drawn(number, dtype):
    problem = draw(random.Random(f"{number} {dtype}"), patches=20)
    machine = device_of(torch.device("cuda"), "conv_dgrad")
    first = check(problem, dtype, machine, "cuda", is_slice=number % 3 == 0)
    # The second launch goes around Triton's front door.
    second = check(problem, dtype, machine, "cuda", is_slice=number % 3 == 0)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    problem = LAYERS[name]
    dy = channels_last(problem.y_shape, torch.float16, 1, "cuda")
    plan = plan_dgrad(problem, dy.stride(), dy.dtype, dy.device)
    assert plan.launcher.kernel is patch_dgrad_kernel
    check(problem, torch.float16, device_of(dy.device, "conv_dgrad"), "cuda")


@pytest.mark.parametrize("size", [14, 16])
def test_a_layer_of_patches_and_back(size):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 224, 224, device="cuda").half().to(memory_format=torch.channels_last)
    weight = torch.randn(384, 3, size, size, device="cuda").half() / (3 * size * size) ** 0.5
    y = conv2d(x, weight, stride=size)
    expected = torch.nn.functional.conv2d(x.float(), weight.float(), stride=size)
    assert (y.float() - expected).abs().max() <= 4e-3 * expected.abs().max()
    back = conv_transpose2d(y, weight, stride=size)
    expected = torch.nn.functional.conv_transpose2d(y.float(), weight.float(), stride=size)
    assert (back.float() - expected).abs().max() <= 4e-3 * expected.abs().max()
