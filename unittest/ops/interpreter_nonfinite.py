"""NaN and infinity in Triton's interpreter, in every kernel; run by ``test_interpreted.py``.

A value that is not finite, in x or in the filter, shows in exactly those outputs in which torch's
convolution of a padded x has one: padding takes part as zeros, and zeros that our plans add do not.
"""

from __future__ import annotations

import os
import random

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

from fprop_cases import convolve
from planned import plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext.ops.core.packing import RowPacking

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
BAD = (torch.nan, torch.inf, -torch.inf) * 10 if NIGHTLY else (torch.nan, -torch.inf)

KINDS = {
    "taps": problem_of(n=2, ci=16, co=24, size=(7, 8), padding=1),
    "dilated": problem_of(ci=16, co=24, size=(9, 8), padding=2, dilation=2, stride=2),
    "a matrix": problem_of(n=2, ci=24, co=24, size=(7, 8), taps=(1, 1)),
    "a tail of channels": problem_of(ci=72, co=20, size=(6, 5), padding=1),
    "filled channels": problem_of(ci=20, co=17, size=(6, 5), taps=(3, 1), padding=1),
    "1-D": problem_of(n=2, ci=16, size=(19,), taps=(3,), padding=1),
    "3-D": problem_of(ci=16, size=(4, 5, 6), taps=(2, 3, 2), padding=1),
    "groups": problem_of(ci=48, co=48, size=(6, 7), padding=1, groups=2),
    "groups that share a block": problem_of(ci=24, co=32, size=(6, 7), padding=1, groups=2),
    "groups of filled channels": problem_of(ci=40, co=32, size=(6, 7), padding=1, groups=2),
    "small groups": problem_of(n=2, ci=16, co=32, size=(6, 7), padding=1, groups=4),
    "small groups, strided": problem_of(
        ci=6, co=6, size=(9, 10), taps=(3, 2), stride=2, padding=1, groups=2
    ),
    "depthwise": problem_of(n=2, ci=24, co=24, size=(8, 9), padding=1, groups=24),
    "depthwise of 7x7": problem_of(ci=16, co=16, size=(9, 20), taps=(7, 7), padding=3, groups=16),
    "depthwise, strided": problem_of(
        ci=16, co=16, size=(9, 11), taps=(3, 5), padding=((1, 0), (2, 3)), stride=2, groups=16
    ),
    "depthwise, dilated": problem_of(ci=16, co=16, size=(9, 11), padding=2, dilation=2, groups=16),
    "depthwise 1-D": problem_of(ci=16, co=16, size=(40,), taps=(5,), padding=2, groups=16),
    "depthwise 3-D": problem_of(ci=8, co=8, size=(4, 5, 6), taps=(3, 3, 3), padding=1, groups=8),
}
FEW_CHANNELS = {
    "copied": problem_of(n=2, ci=3, co=16, size=(9, 9), padding=1, stride=2),
    "in place": problem_of(n=2, ci=8, co=16, size=(9, 9)),
    "rows in padding": problem_of(n=2, ci=8, co=16, size=(9, 9), padding=((1, 1), (0, 0))),
}


def check(problem, pack_rows, place, rng):
    for bad in BAD:
        tensors = {"x": channels_last(problem.x_shape, torch.float16, 1)}
        tensors["filter"] = channels_last(problem.w_shape, torch.float16, 2)
        # Infinity times zero is NaN: the only zeros here are those of the padding.
        x, weight = (torch.where(t == 0, torch.ones_like(t), t) for t in tensors.values())
        changed = x if place == "x" else weight
        changed[tuple(rng.randrange(extent) for extent in changed.shape)] = bad
        plan = plan_fprop(problem, x.stride(), x.dtype, x.device, pack_rows=pack_rows)
        y = plan.run(x, weight)
        expected = convolve(problem, x.double(), weight.double())
        assert torch.equal(y.isnan(), expected.isnan()), bad
        assert torch.equal(y.isfinite(), expected.isfinite()), bad


@pytest.mark.parametrize("place", ["x", "filter"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds(name, place):
    problem = KINDS[name]
    check(problem, False if problem.groups == 1 else None, place, random.Random(name))


@pytest.mark.parametrize("place", ["x", "filter"])
@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_packed_rows(name, place):
    problem = FEW_CHANNELS[name]
    strides = channels_last(problem.x_shape, torch.float16, 1).stride()
    for way in RowPacking.ways(problem, strides, 2):
        check(problem, way, place, random.Random(way.kind))
