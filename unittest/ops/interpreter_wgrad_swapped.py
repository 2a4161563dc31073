"""Gradients of filters with x and dy swapped, interpreted; ``test_wgrad_swapped.py`` runs this."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import interpreter_wgrad as wgrad
from planned import plan_wgrad
from problem_cases import channels_last, misaligned_slice
from swapped_cases import draw_swapped, swapped_of, turned
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.families.partial_im2col import SwappedConfig, SwappedWgradPlan, ways

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that nothing was written to is not a number."""
    empty = torch.empty

    def poisoned_empty(*arguments, **keywords):
        made = empty(*arguments, **keywords)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned_empty)


def plan_of(problem, x, dy, kind=None, out_dtype=None, monkeypatch=None):
    """A plan that swaps; of a kind of packing, where it is named."""
    if kind is not None:
        monkeypatch.setattr(
            "triton_ext.ops.families.partial_im2col.ways",
            lambda case: tuple(way for way in ways(case) if way.kind == kind),
        )
    planner.make_plan.cache_clear()
    plan = plan_wgrad(
        problem, x.stride(), dy.stride(), x.dtype, x.device, SwappedConfig(wgrad.SMALL), out_dtype
    )
    assert isinstance(plan, SwappedWgradPlan)
    assert plan.problem is problem
    return plan


LAYOUTS = (lambda dy: dy, *wgrad.LAYOUTS)


@pytest.mark.parametrize("number", range(300 if NIGHTLY else 40))
def test_drawn(number, monkeypatch):
    rng = random.Random(number)
    problem = draw_swapped(rng, pixels=8)
    dtype = rng.choice((torch.float16, torch.bfloat16))
    out_dtype = rng.choice((None, torch.float32))
    x, dy = (channels_last(s, dtype, i) for i, s in enumerate((problem.x_shape, problem.y_shape)))
    dy = LAYOUTS[number % len(LAYOUTS)](dy)
    case = Case(
        direction="wgrad", problem=problem, dtype=x.dtype, x_strides=x.stride(),
        dy_strides=dy.stride(),
    )  # fmt: skip
    kinds = [way.kind for way in ways(case)]
    if not kinds:
        # Windows of dy itself, and a filter of one row.
        assert problem.out_channels == 8
        return
    plan = plan_of(problem, x, dy, rng.choice(kinds), out_dtype, monkeypatch)
    dw = plan.run(x, dy)
    expected = wgrad.reference(problem, x, dy)
    assert dw.shape == expected.shape
    assert dw.dtype == (out_dtype or dtype)
    assert dw.movedim(1, -1).is_contiguous()
    error = (dw.double() - expected).abs().max().item()
    assert error <= wgrad.LIMITS[dw.dtype] * max(expected.abs().max().item(), 1.0)
    out = torch.full_like(dw, torch.nan)
    assert plan.run(x, dy, out) is out
    assert torch.equal(out, dw)
    contiguous = torch.full(dw.shape, torch.nan, dtype=dw.dtype)
    assert torch.equal(plan.run(x, dy, contiguous), dw)


END = wgrad.Case(ci=16, co=3, size=(7, 9), padding=((1, 1), (1, 1))).problem


def tensors(problem=END):
    return channels_last(problem.x_shape, torch.float16, 1), channels_last(
        problem.y_shape, torch.float16, 2
    )


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_two_copies_and_the_kernels(kind, monkeypatch):
    names = []
    launch = Launcher.launch

    def counted(launcher, *arguments):
        names.append(launcher.kernel.__name__)
        launch(launcher, *arguments)

    monkeypatch.setattr(Launcher, "launch", counted)
    x, dy = tensors()
    plan = plan_of(END, x, dy, kind, monkeypatch=monkeypatch)
    plan.run(x, dy)
    adding = ["wgrad_reduce_kernel"] if plan.tiles.partition.parts else []
    assert names == ["row_copy_kernel", "conv_wgrad_kernel", *adding, "row_copy_kernel"]


def test_an_out_of_another_shape_is_refused():
    x, dy = tensors()
    with pytest.raises(ValueError, match=r"out: expected \[3, 16, 3, 3\] of .* got \[1\]"):
        plan_of(END, x, dy).run(x, dy, torch.empty(1))


def test_x_may_have_gaps_between_pixels():
    x, dy = tensors()
    larger = torch.full((*x.shape[:1], *x.shape[2:], 24), torch.nan, dtype=x.dtype)
    larger[..., :16] = x.movedim(1, -1)
    apart = larger[..., :16].movedim(-1, 1)
    assert apart.stride() != x.stride()
    expected = plan_of(END, x, dy).run(x, dy)
    assert torch.equal(plan_of(END, apart, dy).run(apart, dy), expected)


def test_x_may_begin_at_any_address_with_gaps_between_pixels():
    x, dy = tensors()
    apart = misaligned_slice(x)
    assert apart.data_ptr() % 16 == 8
    assert apart.stride() != x.stride()
    expected = plan_of(END, x, dy).run(x, dy)
    assert torch.equal(plan_of(END, apart, dy).run(apart, dy), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", range(60 if NIGHTLY else 8))
def test_what_is_not_finite_shows_where_the_swapped_gradient_has_it(number, bad):
    rng = random.Random(number)
    problem = replace(draw_swapped(rng, pixels=8), out_channels=rng.randint(1, 7))
    x, dy = (torch.where(t == 0, torch.ones_like(t), t) for t in tensors(problem))
    changed = (x, dy)[number % 2]
    changed[tuple(rng.randrange(extent) for extent in changed.shape)] = bad
    dw = plan_of(problem, x, dy).run(x, dy)
    expected = turned(wgrad.reference(swapped_of(problem), dy, x))
    assert torch.equal(dw.isnan(), expected.isnan())
    assert torch.equal(dw.isfinite(), expected.isfinite())
