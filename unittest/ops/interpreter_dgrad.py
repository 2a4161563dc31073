"""The gradient of the input in Triton's interpreter; ``test_dgrad.py`` runs this file.

Everything is compared with torch in float64.  Tolerance: the largest error is at most that of
rounding the result once, twice over, plus what fp32 sums of this length cost.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.dgrad_plan import make_plan
from triton_ext.ops.problem import ConvProblem

ENLARGED = 10 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 1
CPU = torch.device("cpu")
# The interpreter rounds fp32 to bf16 towards zero.
EPSILON = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-7}


def problem_of(
    n=1, ci=8, co=8, size=(6, 6), taps=(3, 3), stride=1, padding=0, dilation=1, groups=1
) -> ConvProblem:
    """A problem from numbers or one value per spatial dimension; padding also in pairs."""
    dims = len(size)

    def each(value):
        return (value,) * dims if isinstance(value, int) else tuple(value)

    return ConvProblem(
        batch=n,
        in_channels=ci,
        out_channels=co,
        input_size=tuple(size),
        filter_size=tuple(taps),
        stride=each(stride),
        padding=tuple((p, p) if isinstance(p, int) else p for p in each(padding)),
        dilation=each(dilation),
        groups=groups,
    )


def channels_last(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    n, c, *size = shape
    return torch.randn((n, *size, c), generator=generator).to(dtype).movedim(-1, 1)


def reference(problem, dy, weight):
    """The gradient as autograd gives it, in float64; padding is done in front of it."""
    x = torch.zeros(problem.x_shape, dtype=torch.float64, requires_grad=True)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x, sides)
    conv = getattr(torch.nn.functional, f"conv{problem.dims}d")
    y = conv(padded, weight.double(), None, problem.stride, 0, problem.dilation, problem.groups)
    (dx,) = torch.autograd.grad(y, x, dy.double())
    return dx


def check(problem, dtype=torch.float16, config=None):
    dy = channels_last(problem.y_shape, dtype, 1)
    weight = channels_last(problem.w_shape, dtype, 2)
    plan = make_plan(problem, dy.stride(), dtype, CPU, config)
    out = torch.full_like(channels_last(problem.x_shape, dtype, 0), float("nan"))
    dx = plan.run(dy, weight, out)
    expected = reference(problem, dy, weight)
    assert dx.shape == expected.shape
    assert dx.dtype == dtype
    error = (dx.double() - expected).abs().max().item()
    assert error <= 2 * EPSILON[dtype] * max(expected.abs().max().item(), 1.0)
    return dx


FIXED = {
    "plain": problem_of(),
    "same": problem_of(padding=1),
    "several tiles": problem_of(n=2, size=(9, 9), ci=136, co=16),
    "stride": problem_of(size=(9, 9), stride=2, padding=1),
    "unequal strides": problem_of(size=(11, 10), stride=(3, 2), n=2),
    "classes without taps": problem_of(size=(8, 8), taps=(1, 1), stride=2),
    "rows behind the last tap": problem_of(size=(9, 10), taps=(2, 2), stride=(4, 3)),
    "common divisor": problem_of(size=(12, 13), stride=(4, 2), dilation=(2, 4), padding=4),
    "stride above TMA's own": problem_of(size=(23, 20), taps=(9, 10), stride=(9, 10)),
    "image smaller than the stride": problem_of(size=(2, 3), taps=(2, 1), stride=(4, 3)),
    "dilation": problem_of(size=(9, 11), dilation=(2, 3)),
    "unequal padding": problem_of(padding=((3, 0), (0, 2)), stride=(2, 1)),
    "1-D": problem_of(size=(19,), taps=(3,), stride=2, padding=1),
    "3-D": problem_of(size=(4, 5, 6), taps=(2, 3, 2), padding=1),
    "3-D, strided": problem_of(size=(5, 5, 6), taps=(2, 3, 3), stride=(1, 2, 3), padding=1),
    "odd channels": problem_of(ci=13, co=7, stride=(2, 1)),
    "one channel": problem_of(ci=1, co=1),
    "tail in K": problem_of(co=72, size=(4, 4), stride=(1, 2)),
    "odd tail in K": problem_of(co=67, size=(4, 4)),
    "tail in N": problem_of(ci=80, stride=2),
    "odd tail in N": problem_of(ci=75),
    "tail in M": problem_of(n=4, size=(5, 5), taps=(1, 1)),
    "groups": problem_of(groups=2, ci=16, co=32),
    "groups, strided": problem_of(groups=3, ci=15, co=144, stride=2, padding=1),
    "groups, several tiles": problem_of(groups=2, ci=160, co=128, n=3),
}


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_fixed(name, dtype):
    check(FIXED[name], dtype)


@st.composite
def problems(draw):
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    largest = {1: 24, 2: 9, 3: 5}[dims]

    def each(values):
        return draw(st.tuples(*[values] * dims))

    channels = st.integers(1, 20) | st.integers(60, 70)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    co = draw(channels) if groups == 1 else groups * draw(st.sampled_from([16, 32, 48, 64]))
    problem = problem_of(
        n=draw(st.integers(1, 3)),
        ci=draw(channels) if groups == 1 else groups * draw(st.integers(1, 20)),
        co=co,
        size=each(st.integers(1, largest)),
        taps=each(st.integers(1, 5 if dims < 3 else 3)),
        stride=each(st.integers(1, 4)),
        padding=each(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        dilation=each(st.integers(1, 3)),
        groups=groups,
    )
    assume(min(problem.output_size) >= 1)
    return problem


# Smaller tiles than a GPU multiplies: several in every direction, even of tiny problems.
small_configs = st.builds(
    ConvConfig,
    block_m=st.sampled_from([16, 32]),
    block_n=st.sampled_from([16, 32]),
    block_k=st.just(16),
    num_stages=st.just(2),
    num_warps=st.just(4),
    store_parts=st.sampled_from([1, 2]),
    group_size_m=st.sampled_from([1, 2, 8]),
    taps_inner=st.booleans(),
)


@settings(max_examples=40 * ENLARGED, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(list(EPSILON)), small_configs)
def test_drawn(problem, dtype, config):
    check(problem, dtype, config)


@settings(max_examples=10 * ENLARGED, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(list(EPSILON)))
def test_drawn_with_the_chosen_configuration(problem, dtype):
    check(problem, dtype)
