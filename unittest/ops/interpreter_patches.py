"""Gradients of inputs of patches in Triton's interpreter; ``test_patches.py`` runs this file."""

from __future__ import annotations

import os
import random

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

from family_plans import case_of
from patch_cases import check, draw
from problem_cases import channels_last, problem_of
from triton_ext.ops import conv_transpose2d
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.families.patches import PATCHES

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
MACHINE = Device(3, (9, 0), SMEM_BYTES)


def plan_of(problem, dy):
    case = case_of(PATCHES, problem, dy.dtype, dy_strides=dy.stride())
    return PATCHES.bind(next(iter(PATCHES.candidates(case, MACHINE))), case, MACHINE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("number", range(200 if NIGHTLY else 20))
def test_drawn(number, dtype):
    rng = random.Random(f"{number} {dtype}")
    check(draw(rng, patches=6), dtype, MACHINE, bias=number % 2 == 1, is_slice=number % 3 == 0)


def test_many_tiles():
    check(problem_of(n=2, ci=3, co=40, size=(66, 129), taps=(4, 4), stride=4), torch.half, MACHINE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["dy", "weight"])
def test_what_is_not_finite_stays_in_its_patches(place, bad):
    # Pixels of no patch are zeros, as torch has them.
    shape = (1, 3, 11, 14)
    dy = channels_last((1, 16, 2, 3), torch.half, 1)
    weight = channels_last((16, 3, 4, 4), torch.half, 2)
    plan = plan_of(problem_of(n=1, ci=3, co=16, size=(11, 14), taps=(4, 4), stride=4), dy)
    weight = torch.where(weight == 0, torch.ones_like(weight), weight)
    (dy if place == "dy" else weight)[0, 1, 1, 2] = bad
    found = plan.run(dy, weight)
    expected = torch.nn.grad.conv2d_input(shape, weight.double(), dy.double(), stride=4)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert torch.equal(found.isnan(), expected.isnan())
    assert (found[:, :, 8:] == 0).all()
    assert (found[..., 12:] == 0).all()


def test_a_transposed_convolution_with_output_padding():
    torch.manual_seed(0)
    x = torch.randn(2, 16, 5, 6).half().to(memory_format=torch.channels_last)
    weight, bias = torch.randn(16, 3, 4, 4).half(), torch.randn(3).half()
    y = conv_transpose2d(x, weight, bias, stride=4, output_padding=3)
    expected = torch.nn.functional.conv_transpose2d(
        x.double(), weight.double(), bias.double(), stride=4, output_padding=3
    )
    assert y.shape == expected.shape
    assert (y.double() - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_outputs_and_biases_of_other_shapes_are_refused():
    dy = channels_last((1, 16, 2, 3), torch.half, 1)
    weight = channels_last((16, 3, 4, 4), torch.half, 2)
    plan = plan_of(problem_of(n=1, ci=3, co=16, size=(8, 12), taps=(4, 4), stride=4), dy)
    with pytest.raises(ValueError, match=r"out: expected \[1, 3, 8, 12\]"):
        plan.run(dy, weight, dy)
    with pytest.raises(ValueError, match=r"bias: expected \[3\], got \[4\]"):
        plan.run(dy, weight, bias=torch.zeros(4))
