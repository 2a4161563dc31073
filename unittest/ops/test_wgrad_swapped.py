"""Gradients of filters with x and dy swapped: the identity, when it is chosen, tables, kernels."""

from __future__ import annotations

import itertools
import json
import os
import random
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")
pytest.importorskip("numpy", reason="Triton's interpreter needs numpy, which is not installed")

import numpy as np
import torch
from emulated import emulate
from fprop_cases import convolve
from planned import plan_wgrad
from problem_cases import channels_last, problem_of
from swapped_cases import draw_swapped, swapped_of
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities
from triton_ext.ops.core import planner
from triton_ext.ops.core import tables as lookups
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import packed_strides
from triton_ext.ops.core.device import SMEM_BYTES, Device, assumed_device
from triton_ext.ops.core.family import config_refusals
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.problem import as_forward
from triton_ext.ops.core.tables import decode, encode, kind_of
from triton_ext.ops.families import partial_im2col
from triton_ext.ops.families.partial_im2col import (
    PackedConfig,
    SwappedConfig,
    swap_refusals,
)
from triton_ext.ops.families.wgrad import CONFIGS, WgradChoice
from triton_ext.ops.tuning.runs import candidates

COPIES = capabilities()["im2col-copies"]
emulates = pytest.mark.skipif(not COPIES.available, reason=COPIES.reason)

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"

H200 = Device(132, (9, 0), SMEM_BYTES, "A GPU of these tests")
META = torch.device("meta")
END = problem_of(n=1, ci=128, co=3, size=(512, 512), padding=1)
CHOICE = WgradChoice(config=CONFIGS[5])


def is_swapped(plan):
    return getattr(plan, "is_swapped", False)


def dense(shape):
    """Strides of a dense channels-last tensor [N, C, *size]."""
    outer, *inner, _ = packed_strides((shape[0], *shape[2:], shape[1]))
    return (outer, 1, *inner)


def plan_of(problem, x_strides=None, dy_strides=None, **options):
    """The plan for an H200, of dense channels-last tensors where nothing else is said."""
    strides = (x_strides or dense(problem.x_shape), dy_strides or dense(problem.y_shape))
    planner.make_plan.cache_clear()
    with assumed_device(H200):
        return plan_wgrad(problem, *strides, torch.float16, META, **options)


# --- the identity -------------------------------------------------------------------------------


def gradient(problem, x, dy):
    """dw [Co, *taps, Ci] tap by tap, of x [N, *size, Ci] and dy [N, *size, Co]."""
    sides = ((0, 0), *problem.padding, (0, 0))
    padded = np.pad(x, sides)
    dw = np.zeros((problem.out_channels, *problem.filter_size, problem.in_channels))
    for taps in itertools.product(*map(range, problem.filter_size)):
        window = tuple(
            slice(tap * step, tap * step + out)
            for tap, step, out in zip(taps, problem.dilation, problem.output_size, strict=True)
        )
        seen = padded[(slice(None), *window)].reshape(-1, problem.in_channels)
        dw[(slice(None), *taps)] = dy.reshape(-1, problem.out_channels).T @ seen
    return dw


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 30))
def test_the_gradient_of_the_swapped_problem_is_that_of_the_problem_turned(number):
    problem = draw_swapped(random.Random(number), pixels=7)
    swapped = swapped_of(problem)
    assert swapped.y_shape == problem.x_shape
    assert swapped.x_shape == problem.y_shape
    assert as_forward(swapped) == problem
    generator = np.random.default_rng(number)
    x, dy = (
        # Sums of integers are exact in any order.
        generator.integers(-4, 5, (shape[0], *shape[2:], shape[1]))
        for shape in (problem.x_shape, problem.y_shape)
    )
    found = gradient(swapped, dy, x)
    last = found.ndim - 1
    turned = np.flip(np.moveaxis(found, (0, last), (last, 0)), tuple(range(1, last)))
    assert np.array_equal(turned, gradient(problem, x, dy))


# --- the choice ---------------------------------------------------------------------------------

# Batch, input channels, size and output channels; the fastest way to pack rows of dy.
SWAPPED = {
    "decoder, 1024": (problem_of(n=1, ci=128, co=3, size=(1024, 1024), padding=1), "rows"),
    "decoder, 512": (END, "columns"),
    "unet, 128": (problem_of(n=2, ci=320, co=4, size=(128, 128), padding=1), "columns"),
    "unet, 64": (problem_of(n=8, ci=320, co=4, size=(64, 64), padding=1), "columns"),
    "unequal padding": (replace(END, padding=((2, 0), (0, 1))), "columns"),
    "dilated in H": (replace(END, padding=((2, 2), (1, 1)), dilation=(2, 1)), "columns"),
    "1-D": (problem_of(n=8, ci=64, co=1, size=(24000,), taps=(7,), padding=3), "rows"),
}


@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=["same", "fp32"])
@pytest.mark.parametrize("name", SWAPPED)
def test_few_output_channels_are_swapped(name, out_dtype):
    problem, kind = SWAPPED[name]
    plan = plan_of(problem, out_dtype=out_dtype)
    assert is_swapped(plan)
    assert plan.problem is problem
    assert plan.out_dtype == (out_dtype or torch.float16)
    assert plan.copies.packing.kind == kind
    # Gradients come as autograd makes them.
    strides = torch.empty(problem.y_shape, device="meta").stride()
    assert is_swapped(plan_of(problem, dy_strides=strides))


OTHERS = {
    "many output channels": replace(END, out_channels=128),
    "few input channels": replace(END, in_channels=3, out_channels=128),
    "as few of both": replace(END, in_channels=8, out_channels=8),
    "odd input channels": replace(END, in_channels=124),
    "strided": replace(END, stride=(1, 2)),
    "dilated in W": replace(END, dilation=(1, 2)),
    "1x1": replace(END, filter_size=(1, 1), padding=((0, 0), (0, 0))),
    "more padding than taps": replace(END, padding=((3, 0), (0, 0))),
    "grouped": replace(END, in_channels=384, groups=3),
    "empty": replace(END, batch=0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not(name):
    assert not is_swapped(plan_of(OTHERS[name]))


def test_what_is_asked_for_is_done():
    for options in ({"pack_rows": True}, {"pack_rows": False}, {"config": CONFIGS[5]}):
        assert not is_swapped(plan_of(END, **options))
    assert is_swapped(plan_of(END, num_sms=20))
    wide = replace(END, out_channels=64)
    assert not is_swapped(plan_of(wide))
    plan = plan_of(wide, config=SwappedConfig(WgradChoice(config=CONFIGS[3], part_rounds=2)))
    assert is_swapped(plan)
    assert plan.config == CONFIGS[3]


def test_an_x_that_would_be_copied_stays_where_it_is():
    _, c, h, w = END.x_shape
    # Every second pixel of a row: no one distance from pixel to pixel.
    strides = (h * (2 * w + 1) * c, 1, (2 * w + 1) * c, 2 * c)
    assert not is_swapped(plan_of(END, x_strides=strides))
    with pytest.raises(UnsupportedError, match="swapped: its padding, its batch or the"):
        plan_of(END, x_strides=strides, config=SwappedConfig(CHOICE))


def test_reasons():
    assert not swap_refusals(END)
    strided = replace(END, stride=(1, 2), in_channels=124, dilation=(1, 2))
    assert [*map(str, swap_refusals(strided))] == [
        "stride (1, 2): expected 1, dy has no pixels between its own",
        "124 input channels: expected a multiple of 8",
        "dilation 2 in W: taps are not neighbours",
    ]
    with pytest.raises(UnsupportedError, match=r"wgrad: swapped: groups=3: a"):
        plan_of(OTHERS["grouped"], config=SwappedConfig(CHOICE))


# --- tables -------------------------------------------------------------------------------------


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Adds a choice for a case to the tables of these tests."""
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)

    def add(case, config):
        raw = {"kind": kind_of(config), "config": encode(config), "us": 1.0, "model_us": 1.0}
        raw |= {"measured": "2099-01-01", "triton": "3.9.0", "shape": "a shape"}
        lookups.lookup.add(H200.name, {case.key(132): raw}, "a test")

    yield add
    lookups.lookup.forget(added=True)
    planner.make_plan.cache_clear()


def case_of(problem):
    return Case(direction="wgrad", problem=problem, dtype=torch.float16)


def test_configurations_survive_json():
    config = SwappedConfig(CHOICE)
    assert kind_of(config) == "swapped"
    assert decode("swapped", json.loads(json.dumps(encode(config)))) == config


def test_tuning_tries_both_where_swapping_is_expected_to_pay():
    for problem, is_tried in ((END, True), (replace(END, out_channels=128), False)):
        found = candidates(problem, "wgrad", torch.float16, H200)
        assert isinstance(found[0], SwappedConfig) == is_tried
        swapped = [config for config in found if isinstance(config, SwappedConfig)]
        assert (2 <= len(swapped) < len(found)) == is_tried
        for config in found:
            assert not config_refusals(config, case_of(problem), H200)


def test_what_was_measured_goes_before_the_model(table):
    case = case_of(END)
    with assumed_device(H200):
        table(case, CHOICE)
        planner.make_plan.cache_clear()
        assert not is_swapped(make_plan(case, META))
        table(case, SwappedConfig(CHOICE))
        planner.make_plan.cache_clear()
        plan = make_plan(case, META)
    assert is_swapped(plan)
    assert plan.config == CHOICE.config
    # Of the same key, but one that cannot be swapped.
    other = OTHERS["more padding than taps"]
    assert case_of(other).key(132) == case.key(132)
    assert not is_swapped(plan_of(other))


def test_a_table_says_what_cannot_be(table):
    config, strided = SwappedConfig(CHOICE), case_of(OTHERS["strided"])
    (problem,) = map(str, config_refusals(config, strided, H200))
    assert problem.startswith("stride (1, 2): expected 1")
    assert config_refusals(
        SwappedConfig(replace(CHOICE, config=replace(CHOICE.config, taps=0))), strided, H200
    )
    table(case_of(END), SwappedConfig(PackedConfig(CHOICE)))
    with pytest.warns(
        lookups.TuningWarning,
        match="swapped: PackedConfig does not take packed rows, expected one of wgrad",
    ):
        assert lookups.find(case_of(END), H200) is None


# --- kernels ------------------------------------------------------------------------------------


@emulates
@pytest.mark.parametrize("number", range(40 if NIGHTLY else 1))
@pytest.mark.parametrize("kind", ["rows", "columns", "planes"])
def test_drawn_in_the_emulator(kind, number, monkeypatch, fresh_triton_cache):
    emulate(monkeypatch, 3)
    machine = Device(3, (9, 0), SMEM_BYTES)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    planner.make_plan.cache_clear()
    rng = random.Random(f"{kind} {number}")
    found = []
    while not found:
        problem = draw_swapped(rng, pixels=6)
        swapped = swapped_of(problem)
        every = RowPacking.candidates(swapped, dense(swapped.x_shape), 2)
        found = [way for way in every if way.is_copied and way.kind == kind]
    monkeypatch.setattr(RowPacking, "candidates", lambda *arguments: found)
    partial_im2col._packed.cache_clear()
    x, dy = (channels_last(s, torch.float16, 1, "cpu") for s in (problem.x_shape, problem.y_shape))
    config = SwappedConfig(rng.choice(CONFIGS[:3]))
    plan = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, x.device, config)
    assert plan.copies.packing.kind == kind
    weight = torch.zeros(problem.w_shape, dtype=torch.float64, requires_grad=True)
    convolve(problem, x.double(), weight).backward(dy.double())
    dw = plan.run(x, dy)
    assert dw.movedim(1, -1).is_contiguous()
    error = (dw.double() - weight.grad).abs().max()
    assert error <= 1e-3 * max(1.0, weight.grad.abs().max())
