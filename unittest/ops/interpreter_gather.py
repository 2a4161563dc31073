"""Gathered few channels in Triton's interpreter; ``test_gather.py`` runs this file."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import family_plans
from fprop_cases import ACTIVATIONS, Case, check, convolve
from gather_cases import draw, draw_config, draw_problem
from planned import plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops import conv2d
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import PLAIN
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.families.few_channels import FEW_CHANNELS, GatherConfig

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
CPU, HALF = torch.device("cpu"), torch.float16
MACHINE = device_of(CPU, "test")
SMALL = GatherConfig(block_m=64, block_n=16, block_k=16, programs_per_sm=1)


def plan_of(problem, x, config=None, epilogue=PLAIN):
    return family_plans.plan_of(FEW_CHANNELS, problem, x, MACHINE, config, epilogue)


@pytest.mark.parametrize("number", range(400 if NIGHTLY else 24))
def test_drawn(number):
    rng = random.Random(number)
    case = draw(rng, pixels=8, activations=tuple(ACTIVATIONS))
    config = draw_config(rng)
    if config is None:
        x, _, _ = case.tensors()
        config = plan_of(case.problem, x, epilogue=case.spec).config
    check(case, config=config)


def assert_is_torchs(y, problem, x, weight):
    expected = convolve(problem, x.double(), weight.double())
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isfinite(), expected.isfinite())
    difference, values = (t.nan_to_num(0, 0, 0).abs().max() for t in (y - expected, expected))
    assert difference <= 1e-3 * values


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 12))
def test_what_is_not_finite_shows_where_torch_has_it(number):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=8)
    x, weight = (
        channels_last(shape, HALF, seed)
        for seed, shape in enumerate((problem.x_shape, problem.w_shape))
    )
    # Infinity times zero is NaN: the only zeros are those of the padding.
    x, weight = (torch.where(t == 0, torch.ones_like(t), t) for t in (x, weight))
    changed = (x, weight)[number % 2]
    changed[tuple(rng.randrange(extent) for extent in changed.shape)] = rng.choice(
        (torch.nan, torch.inf, -torch.inf)
    )
    assert_is_torchs(plan_of(problem, x, SMALL).run(x, weight), problem, x, weight)


STEM = problem_of(n=2, ci=3, co=24, size=(10, 12), stride=2, padding=1)


def test_any_memory_is_read():
    big = channels_last((3, 8, 14, 16), HALF, 0)
    weight = channels_last(STEM.w_shape, HALF, 1)
    packed = big[:2, :3, :10, :12].contiguous(memory_format=torch.channels_last)
    moved = torch.empty(packed.numel() + 1, dtype=HALF)[1:].as_strided(
        packed.shape, packed.stride()
    )
    moved.copy_(packed)
    for x, vector in (
        (packed, 2),
        (moved, 2),
        (big[:2, :3, 1:11, 2:14], 1),  # pixels apart
        (packed[:1].expand(2, -1, -1, -1), 1),
        (moved[:1].expand(2, -1, -1, -1), 1),
    ):
        plan = plan_of(STEM, x, SMALL)
        assert plan.launcher.constants["VECTOR"] == vector
        assert_is_torchs(plan.run(x, weight), STEM, x, weight)


def test_pixels_beside_a_window_are_not_read():
    # Vectors of 4 elements, windows of 6 that begin at multiples of 12.
    problem = problem_of(ci=2, co=16, size=(4, 24), taps=(1, 3), stride=(1, 6))
    x, weight = (channels_last(shape, HALF, 1) for shape in (problem.x_shape, problem.w_shape))
    x[..., 3] = torch.nan
    plan = plan_of(problem, x, SMALL)
    assert plan.launcher.constants["ROW"] > 6
    assert plan.run(x, weight).isfinite().all()


def test_one_launch_by_default(monkeypatch):
    names = []
    launch = Launcher.launch

    def counted(launcher, *arguments):
        names.append(launcher.kernel.__name__)
        launch(launcher, *arguments)

    monkeypatch.setattr(Launcher, "launch", counted)
    config = family_plans.configs_of(FEW_CHANNELS, STEM, HALF, MACHINE)[0]
    choice = planner.Choice(FEW_CHANNELS, config)
    monkeypatch.setattr(planner, "cheapest", lambda *_: choice)
    x, weight = (channels_last(shape, HALF, 1) for shape in (STEM.x_shape, STEM.w_shape))
    # Plans are kept by their arguments: no other test has this bias.
    y = conv2d(x, weight, torch.zeros(24, dtype=HALF), stride=2, padding=1)
    assert names == ["conv_gather_kernel"]
    assert_is_torchs(y, STEM, x, weight)


def test_what_is_not_taken():
    x = channels_last(STEM.x_shape, HALF, 1)
    wrong = [
        (STEM, replace(SMALL, block_k=24), "block_k is 24: expected a power of two from 16 to 128"),
        (STEM, replace(SMALL, block_m=256, block_n=256), "shared memory, a CTA has"),
        (replace(STEM, dilation=(1, 2)), SMALL, "dilation 2 in W: taps are not neighbours"),
        (replace(STEM, in_channels=8), SMALL, "8 channels: from 16 bytes of channels on"),
    ]
    for problem, config, text in wrong:
        with pytest.raises(UnsupportedError, match=text):
            plan_fprop(problem, x.stride(), HALF, CPU, PLAIN, config)
    assert plan_fprop(STEM, x.stride(), HALF, CPU, PLAIN, SMALL).config == SMALL
    empty = replace(STEM, input_size=(0, 12), padding=((0, 0), (0, 0)))
    with pytest.raises(DescriptorError, match="empty output"):
        Case(problem=empty, dtype=HALF).plan(x, SMALL)
