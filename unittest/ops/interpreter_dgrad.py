"""The gradient of the input in Triton's interpreter; ``test_interpreted.py`` runs this file.

Everything is compared with torch in float64.  Tolerance: twice the error of rounding the largest
value once.
"""

from __future__ import annotations

import os

import pytest
import torch
from host_plan import drawn
from hypothesis import assume, given, settings
from hypothesis import strategies as st

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

from dgrad_cases import reference
from planned import plan_dgrad
from problem_cases import channels_last, problem_of
from triton_ext.ops.families.gemm_config import ConvConfig

ENLARGED = 10 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 1
CPU = torch.device("cpu")
# The interpreter rounds fp32 to bf16 towards zero.  tf32 has the bits of fp16.
EPSILON = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-11}


def check(problem, dtype=torch.float16, config=None):
    dy = channels_last(problem.y_shape, dtype, 1)
    weight = channels_last(problem.w_shape, dtype, 2)
    plan = plan_dgrad(problem, dy.stride(), dtype, CPU, config)
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_fixed(name, dtype):
    check(FIXED[name], dtype)


@pytest.mark.parametrize("name", ["plain", "odd channels", "odd tail in K", "groups, strided"])
def test_fixed_in_fp32(name):
    check(FIXED[name], torch.float32)


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


@settings(max_examples=drawn(40 * ENLARGED), deadline=None, derandomize=True)
@given(problems(), st.sampled_from(list(EPSILON)), small_configs)
def test_drawn(problem, dtype, config):
    check(problem, dtype, config)


@settings(max_examples=10 * ENLARGED, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(list(EPSILON)))
def test_drawn_with_the_chosen_configuration(problem, dtype):
    check(problem, dtype)


# --- values and memory ------------------------------------------------------------------------


def run(problem, dy, weight, **arguments):
    return plan_dgrad(problem, dy.stride(), dy.dtype, CPU).run(dy, weight, **arguments)


def operands(problem, dtype=torch.float16):
    return channels_last(problem.y_shape, dtype, 1), channels_last(problem.w_shape, dtype, 2)


def test_pixels_that_the_forward_did_not_reach_are_zeros():
    # A stride of 3 from 3 taps on 11 pixels reaches pixels 0 to 8.
    problem = problem_of(size=(11, 11), stride=3)
    dx = check(problem)
    assert (dx[:, :, 9:] == 0).all()
    assert (dx[:, :, :, 9:] == 0).all()
    assert (dx[:, :, :9, :9] != 0).all()


def test_classes_without_taps_are_zeros_whatever_the_operands_hold():
    problem = problem_of(size=(7, 7), taps=(1, 1), stride=2)
    dy, weight = operands(problem)
    dy[:] = float("inf")
    weight[:] = float("nan")
    dx = run(problem, dy, weight)
    assert torch.isnan(dx[:, :, ::2, ::2]).all()
    assert (dx[:, :, 1::2] == 0).all()
    assert (dx[:, :, :, 1::2] == 0).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_group_and_channels(value):
    problem = problem_of(groups=2, ci=6, co=96, padding=1)
    dy, weight = operands(problem)
    # The last output channel of the first group: input channels 0 to 2 see it.
    dy[:, 47] = value
    dx = run(problem, dy, weight)
    assert not torch.isfinite(dx[:, :3]).any()
    assert torch.isfinite(dx[:, 3:]).all()


def test_the_same_input_gives_the_same_bits():
    problem = problem_of(co=67, stride=2, size=(9, 9))
    assert torch.equal(check(problem), check(problem))


@pytest.mark.parametrize("problem", [problem_of(ci=24), problem_of(ci=9, stride=2)], ids=str)
def test_a_bias_is_added_everywhere(problem):
    dy, weight = operands(problem)
    bias = torch.randn(2 * problem.in_channels).half()[::2]
    dx = run(problem, dy, weight, bias=bias)
    expected = reference(problem, dy, weight) + bias.double().view(1, -1, 1, 1)
    torch.testing.assert_close(dx.double(), expected, rtol=2e-3, atol=5e-3)


def test_a_bias_with_groups():
    problem = problem_of(groups=2, ci=6, co=32, stride=2)
    dy, weight = operands(problem)
    bias = torch.arange(6.0).half()
    dx = run(problem, dy, weight, bias=bias)
    expected = reference(problem, dy, weight) + bias.double().view(1, -1, 1, 1)
    torch.testing.assert_close(dx.double(), expected, rtol=2e-3, atol=5e-3)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_it_is_a_transposed_convolution(dims):
    # output_padding is but a larger input_size.
    transposed = getattr(torch.nn.functional, f"conv_transpose{dims}d")
    dy = channels_last((2, 16) + (4,) * dims, torch.float16, 1)
    weight = channels_last((16, 8) + (3,) * dims, torch.float16, 2)
    y = transposed(dy.double(), weight.double(), None, 3, 1, output_padding=2)
    problem = problem_of(n=2, ci=8, co=16, size=y.shape[2:], taps=(3,) * dims, stride=3, padding=1)
    assert problem.y_shape == dy.shape
    dx = run(problem, dy, weight)
    torch.testing.assert_close(dx.double(), y, rtol=2e-3, atol=5e-3)


def test_the_output_is_channels_last():
    problem = problem_of(n=2, ci=24)
    dx = run(problem, *operands(problem))
    assert dx.is_contiguous(memory_format=torch.channels_last)


def test_the_weight_may_have_any_memory_format():
    problem = problem_of(n=2, ci=24)
    dy, weight = operands(problem)
    assert not weight.is_contiguous()
    assert torch.equal(run(problem, dy, weight), run(problem, dy, weight.contiguous()))


def test_a_slice_of_channels_is_read_in_place():
    problem = problem_of(n=2, co=16)
    dy, weight = channels_last((2, 32, 4, 4), torch.float16, 1), operands(problem)[1]
    half = dy[:, 16:]
    dx = run(problem, half, weight)
    torch.testing.assert_close(dx.double(), reference(problem, half, weight), rtol=2e-3, atol=5e-3)


def test_out_is_written():
    problem = problem_of(ci=16)
    dy, weight = operands(problem)
    out = channels_last(problem.x_shape, torch.float16, 0)
    assert run(problem, dy, weight, out=out) is out
    assert torch.equal(out, run(problem, dy, weight))


@pytest.mark.parametrize(
    ("out", "match"),
    [
        (torch.zeros(1, 6, 6, 8).half().movedim(-1, 1), r"out: expected \[1, 16, 6, 6\] of"),
        (torch.zeros(1, 6, 6, 16).movedim(-1, 1), "float16, got .* of torch.float32"),
        (torch.zeros(1, 16, 6, 6).half(), "packed channels-last memory on a 16-byte boundary"),
        (
            torch.zeros(577).half()[1:].view(1, 6, 6, 16).movedim(-1, 1),
            "packed channels-last memory on a 16-byte boundary",
        ),
    ],
)
def test_refuses_another_out(out, match):
    problem = problem_of(ci=16)
    with pytest.raises(ValueError, match=match):
        run(problem, *operands(problem), out=out)
