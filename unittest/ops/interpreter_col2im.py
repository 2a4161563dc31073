"""Shifted products in Triton's interpreter; ``test_col2im.py`` runs this file."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch
from host_plan import drawn

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import family_plans
from col2im_cases import draw, draw_config, draw_problem
from fprop_cases import ACTIVATIONS, Case, check, convolve
from planned import plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext.errors import UnsupportedError
from triton_ext.ops import conv2d
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import PLAIN
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.families.kn2row import KN2ROW, Col2ImConfig

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
CPU, HALF = torch.device("cpu"), torch.float16
MACHINE = device_of(CPU, "test")
SMALL = Col2ImConfig(block_m=64, rows=3)


def plan_of(problem, x, config=None, epilogue=PLAIN):
    return family_plans.plan_of(KN2ROW, problem, x, MACHINE, config, epilogue)


@pytest.mark.parametrize("number", range(400 if NIGHTLY else drawn(32)))
def test_drawn(number):
    rng = random.Random(number)
    # Rows of several segments as well.
    case = draw(rng, pixels=rng.choice((8, 8, 150)), activations=tuple(ACTIVATIONS))
    check(case, config=draw_config(rng))


def test_what_a_model_chooses():
    problem = problem_of(n=2, ci=64, co=3, size=(9, 130), padding=1)
    x, weight = (channels_last(shape, HALF, 1) for shape in (problem.x_shape, problem.w_shape))
    assert_is_torchs(plan_of(problem, x).run(x, weight), problem, x, weight)


def assert_is_torchs(y, problem, x, weight):
    expected = convolve(problem, x.double(), weight.double())
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isfinite(), expected.isfinite())
    difference, values = (t.nan_to_num(0, 0, 0).abs().max() for t in (y - expected, expected))
    assert difference <= 1e-3 * values


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 12))
def test_what_is_not_finite_shows_where_torch_has_it(number):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=10)
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


LAST = problem_of(n=2, ci=16, co=3, size=(10, 12), padding=1)


def test_any_memory_is_read():
    big = channels_last((3, 32, 14, 16), HALF, 0)
    weight = channels_last(LAST.w_shape, HALF, 1)
    packed = big[:2, :16, :10, :12].contiguous(memory_format=torch.channels_last)
    moved = torch.empty(packed.numel() + 1, dtype=HALF)[1:].as_strided(
        packed.shape, packed.stride()
    )
    moved.copy_(packed)
    for x, vector in (
        (packed, 8),
        (moved, 8),
        (big[:2, 4:20, 1:11, 2:14], 8),  # pixels apart, at an odd place
        (packed[:1].expand(2, -1, -1, -1), 1),
        (moved[:1].expand(2, -1, -1, -1), 1),
    ):
        plan = plan_of(LAST, x, SMALL)
        assert plan.launcher.constants["VECTOR"] == vector
        assert_is_torchs(plan.run(x, weight), LAST, x, weight)


def test_one_launch_by_default(monkeypatch):
    names = []
    launch = Launcher.launch

    def counted(launcher, *arguments):
        names.append(launcher.kernel.__name__)
        launch(launcher, *arguments)

    monkeypatch.setattr(Launcher, "launch", counted)
    config = family_plans.configs_of(KN2ROW, LAST, HALF, MACHINE)[0]
    choice = planner.Choice(KN2ROW, config)
    monkeypatch.setattr(planner, "cheapest", lambda *_: choice)
    x, weight = (channels_last(shape, HALF, 1) for shape in (LAST.x_shape, LAST.w_shape))
    # Plans are kept by their arguments: no other test has this bias.
    y = conv2d(x, weight, torch.zeros(3, dtype=HALF), padding=1)
    assert names == ["conv_col2im_kernel"]
    assert_is_torchs(y, LAST, x, weight)


def test_what_is_not_taken():
    x = channels_last(LAST.x_shape, HALF, 1)
    wide = replace(LAST, filter_size=(3, 16), dilation=(1, 5), padding=((1, 1), (40, 40)))
    wrong = [
        (LAST, replace(SMALL, block_m=96), "block_m is 96: expected a power of two from 64 to 256"),
        (LAST, replace(SMALL, rows=0), "rows is 0: expected 1 to 65536"),
        (wide, SMALL, "block_m is 64: expected more pixels than the 75 that taps of a row reach"),
        (replace(LAST, in_channels=2048), SMALL, "shared memory, a CTA has"),
        (replace(LAST, stride=(1, 2)), SMALL, "expected 1, as every pixel meets every tap"),
        (replace(LAST, groups=1, out_channels=17), SMALL, "4 x 32 columns"),
        (replace(LAST, out_channels=4, groups=2), SMALL, "groups=2"),
        (replace(LAST, filter_size=(17, 1), padding=((9, 9), (0, 0))), SMALL, "17 rows of the"),
    ]
    for problem, config, text in wrong:
        with pytest.raises(UnsupportedError, match=text):
            plan_fprop(problem, x.stride(), HALF, CPU, PLAIN, config)
    with pytest.raises(UnsupportedError, match="expected float16 or bfloat16"):
        plan_fprop(LAST, x.stride(), torch.float32, CPU, PLAIN, SMALL)
    assert plan_fprop(LAST, x.stride(), HALF, CPU, PLAIN, SMALL).config == SMALL
    assert Case(problem=LAST, dtype=HALF).plan(x, SMALL).config == SMALL
