"""Row packing in Triton's interpreter; ``test_row_packing.py`` runs this file."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("set TRITON_INTERPRET=1 before pytest starts", allow_module_level=True)

import interpreter_wgrad as wgrad
from fprop_cases import ACTIVATIONS, check, convolve
from packing_cases import (
    PackedCase,
    dgrad_plan_of,
    draw,
    draw_patches,
    draw_problem,
    finite_where_torch_is,
)
from planned import plan_wgrad
from problem_cases import channels_last
from triton_ext.ops import conv2d, conv2d_input, conv2d_weight
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.families.wgrad import PackedWgradPlan
from triton_ext.ops.kernels.row_copy import FilledChannels, RowCopies

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that nothing was written to is not a number."""
    empty = torch.empty

    def poisoned_empty(*arguments, **keywords):
        made = empty(*arguments, **keywords)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned_empty)


@pytest.fixture
def launches(monkeypatch):
    """The kernels that are launched, by name."""
    names = []
    launch = Launcher.launch

    def counted(launcher, *arguments):
        names.append(launcher.kernel.__name__)
        launch(launcher, *arguments)

    monkeypatch.setattr(Launcher, "launch", counted)
    return names


@pytest.mark.parametrize("number", range(400 if NIGHTLY else 60))
def test_drawn(number):
    check(draw(random.Random(number), DTYPES["fprop"], activations=tuple(ACTIVATIONS)))


@pytest.mark.parametrize("number", range(400 if NIGHTLY else 40))
def test_drawn_patches(number):
    rng = random.Random(number)
    case = draw(rng, DTYPES["fprop"], activations=tuple(ACTIVATIONS))
    check(replace(case, problem=draw_patches(rng, pixels=16), planes=True))


@pytest.mark.parametrize("stride", [(9, 3), (3, 12), (16, 16), (14, 14)])
@pytest.mark.parametrize("kernel", [3, 14])
def test_any_stride_is_taken(stride, kernel, launches):
    torch.manual_seed(0)
    size = (kernel + 2 * stride[0], kernel + 3 * stride[1] + 1)
    x = torch.randn(2, *size, 3).half().movedim(-1, 1)
    weight = torch.randn(24, 3, kernel, kernel).half()
    for padding in (0, 1):
        y = conv2d(x, weight, stride=stride, padding=padding)
        expected = torch.nn.functional.conv2d(
            x.double(), weight.double(), stride=stride, padding=padding
        )
        assert y.shape == expected.shape
        assert (y.double() - expected).abs().max() <= 1e-3 * expected.abs().max()
    # Few taps are gathered.
    assert sum(name.startswith("conv_") for name in launches) == 2
    assert len(launches) <= 4


def test_gradients_with_any_stride(launches):
    torch.manual_seed(0)
    x = torch.randn(2, 32, 34, 8, dtype=torch.float16).movedim(-1, 1).requires_grad_()
    weight = torch.randn(16, 8, 16, 16, dtype=torch.float16, requires_grad=True)
    dy = torch.randn(2, 16, 2, 2, dtype=torch.float16)
    found = torch.autograd.grad(conv2d(x, weight, stride=16), (x, weight), dy)
    assert "conv_wgrad_kernel" in launches
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    y = torch.nn.functional.conv2d(*wide, stride=16)
    for gradient, expected in zip(found, torch.autograd.grad(y, wide, dy.double()), strict=True):
        assert (gradient.double() - expected).abs().max() <= 2e-3 * expected.abs().max()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 12))
def test_a_window_sees_its_own_pixels_only(number, bad):
    rng = random.Random(number)
    case = PackedCase(
        problem=draw_problem(rng, pixels=8) if number % 3 else draw_patches(rng, pixels=16),
        dtype=torch.float16,
        spec=EpilogueSpec(out_dtype=torch.float32),
        columns=number % 2 == 1,
        planes=number % 3 == 0,
    )
    finite_where_torch_is(case, bad, "cpu", rng)


def draw_wgrad(rng: random.Random) -> wgrad.Case:
    problem = draw_problem(rng, pixels=8)
    return wgrad.Case(
        n=problem.batch,
        ci=problem.in_channels,
        co=problem.out_channels,
        size=problem.input_size,
        taps=problem.filter_size,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        dtype=rng.choice((torch.float16, torch.bfloat16)),
        out_dtype=rng.choice((None, torch.float32)),
        config=rng.choice((None, wgrad.SMALL)),
    )


@pytest.mark.parametrize("number", range(100 if NIGHTLY else 20))
def test_drawn_gradients_of_filters_of_patches(number):
    rng = random.Random(number)
    problem = draw_patches(rng, pixels=16)
    x, dy = (channels_last(s, torch.float16, 1) for s in (problem.x_shape, problem.y_shape))
    ways = RowPacking.ways(problem, x.stride(), x.itemsize)
    way = next(way for way in ways if way.planes)
    dw = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, x.device, pack_rows=way).run(x, dy)
    expected = wgrad.reference(problem, x, dy)
    assert dw.shape == expected.shape
    assert (dw.double() - expected).abs().max() <= 2e-3 * max(1.0, expected.abs().max())


def packed_plan(case: wgrad.Case, x: torch.Tensor, dy: torch.Tensor) -> PackedWgradPlan:
    ways = RowPacking.ways(case.problem, x.stride(), x.itemsize)
    # As good as random: both ways.
    way = ways[-1 if case.co % 16 else 0]
    plan = plan_wgrad(
        case.problem, x.stride(), dy.stride(), x.dtype, x.device, case.config, case.out_dtype,
        case.programs, pack_rows=way,
    )  # fmt: skip
    assert isinstance(plan, PackedWgradPlan)
    assert plan.copies.packing == way
    return plan


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 40))
def test_drawn_gradients_of_filters(number):
    case = draw_wgrad(random.Random(number))
    x, dy = case.tensors()
    plan = packed_plan(case, x, dy)
    dw = plan.run(x, dy)
    wgrad.check(case, dw, x, dy)
    out = torch.full_like(dw, torch.nan)
    assert plan.run(x, dy, out) is out
    assert torch.equal(out, dw)
    contiguous = torch.full(dw.shape, torch.nan, dtype=dw.dtype)
    assert torch.equal(plan.run(x, dy, contiguous), dw)


def test_an_out_of_another_shape_is_refused():
    case = draw_wgrad(random.Random(0))
    x, dy = case.tensors()
    with pytest.raises(ValueError, match=r"out: expected .* got \[1\]"):
        packed_plan(case, x, dy).run(x, dy, torch.empty(1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", range(100 if NIGHTLY else 10))
def test_a_gradient_sees_the_pixels_of_its_taps_only(number, bad):
    rng = random.Random(number)
    case = draw_wgrad(rng)
    x, dy = case.tensors()
    x[tuple(rng.randrange(extent) for extent in x.shape)] = bad
    dy = torch.where(dy == 0, torch.ones_like(dy), dy)
    dw = packed_plan(case, x, dy).run(x, dy)
    expected = wgrad.reference(case.problem, x, dy)
    assert torch.equal(dw.isfinite(), expected.isfinite())


# --- gradients of inputs ------------------------------------------------------------------------


def draw_dgrad(rng: random.Random) -> ConvProblem:
    """A problem of stride 1 whose dy has few channels."""
    while True:
        drawn = draw_problem(rng, pixels=8)
        problem = replace(
            drawn,
            stride=(1,) * drawn.dims,
            in_channels=drawn.out_channels,
            out_channels=drawn.in_channels,
        )
        if 0 not in problem.output_size:
            return problem


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 40))
def test_drawn_gradients_of_inputs(number):
    rng = random.Random(number)
    problem = draw_dgrad(rng)
    dtype = rng.choice((torch.float16, torch.bfloat16, torch.float32))
    dy = channels_last(problem.y_shape, dtype, 1)
    weight = channels_last(problem.w_shape, dtype, 2)
    bias = torch.randn(problem.in_channels).to(dtype) if number % 3 == 0 else None
    way = rng.choice(RowPacking.ways(as_forward(problem), dy.stride(), dtype.itemsize))
    plan = dgrad_plan_of(problem, dy, way)
    dx = plan.run(dy, weight, bias=bias)
    x = torch.zeros(problem.x_shape, dtype=torch.float64, requires_grad=True)
    convolve(problem, x, weight.double()).backward(dy.double())
    expected = x.grad
    if bias is not None:
        expected = expected + bias.double().view(-1, *(1,) * problem.dims)
    assert dx.shape == expected.shape
    assert dx.movedim(1, -1).is_contiguous()
    error = (dx.double() - expected).abs().max()
    assert error <= 8e-3 * expected.abs().max() + 1e-6
    out = torch.full_like(dx, torch.nan)
    assert plan.run(dy, weight, out, bias) is out
    assert torch.equal(out, dx)


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("number", range(200 if NIGHTLY else 40))
def test_both_copies_of_one_launch_are_those_of_two(number, launches):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=8)
    dtype = rng.choice((torch.float16, torch.float32))
    x = channels_last(problem.x_shape, dtype, 1)
    weight = channels_last(problem.w_shape, dtype, 2)
    if number % 2:
        weight = weight.contiguous()
    way = rng.choice(RowPacking.ways(problem, x.stride(), dtype.itemsize))
    way = replace(way, is_turned=number % 3 == 0)
    copies = RowCopies(way, x.stride())
    both = copies.pack(x, weight)
    assert len(launches) <= 1
    for found, expected in zip(
        both, (copies.pack(x, None)[0], copies.pack(None, weight)[1]), strict=True
    ):
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    if way.is_turned:
        turned = weight.flip(tuple(range(2, weight.dim())))
        expected = RowCopies(replace(way, is_turned=False), x.stride()).pack(None, turned)[1]
        assert torch.equal(both[1], expected)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("missing", [(4, 4), (2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_filled_with_zeros(dims, missing, launches):
    size = (3, 2, 5)[-dims:]
    tensors = [
        torch.randn(n, 16 - more, *size[:taps]).movedim(1, -1).half()
        for n, more, taps in ((2, missing[0], dims), (7, missing[1], 1))
    ]
    filled = FilledChannels(*missing).fill(*tensors)
    assert launches == ["row_copy_kernel"] * (missing != (0, 0))
    for found, tensor, more in zip(filled, tensors, missing, strict=True):
        assert torch.equal(found, torch.nn.functional.pad(tensor, (0, more)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_slice", [False, True])
def test_a_convolution_that_fills_channels_copies_once(groups, is_slice, launches):
    torch.manual_seed(0)
    whole = torch.randn(2, 5, 6, 44).half()
    rows = whole[..., 8:]
    x = (rows if is_slice else rows.contiguous()).movedim(-1, 1)
    weight = torch.randn(32, 36 // groups, 1, 1).half()
    y = conv2d(x, weight, groups=groups)
    assert launches == ["row_copy_kernel", "conv_fprop_kernel"]
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), groups=groups)
    assert (y.double() - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.usefixtures("poisoned")
def test_a_gradient_that_fills_channels_copies_once(launches):
    torch.manual_seed(0)
    weight = torch.randn(20, 12, 3, 3).half()
    dy = torch.randn(2, 6, 7, 20).half().movedim(-1, 1)
    shape, walk = (2, 12, 11, 13), {"stride": 2, "padding": 1}
    dx = conv2d_input(shape, weight, dy, **walk)
    assert launches == ["row_copy_kernel", "conv_dgrad_kernel"]
    expected = torch.nn.grad.conv2d_input(shape, weight.double(), dy.double(), **walk)
    assert (dx.double() - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_a_gradient_over_few_channels_is_two_kernels(launches):
    torch.manual_seed(0)
    weight = torch.randn(3, 64, 3, 3).half()
    dy = torch.randn(1, 64, 64, 3).half().movedim(-1, 1)
    dx = conv2d_input((1, 64, 64, 64), weight, dy, padding=1)
    assert launches == ["row_copy_kernel", "conv_fprop_kernel"]
    expected = torch.nn.grad.conv2d_input((1, 64, 64, 64), weight.double(), dy.double(), padding=1)
    assert (dx.double() - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("dilation", [9, 10, 12])
def test_windows_that_reach_over_the_next_one(dilation):
    # Rows of a window further apart than windows: no planes, whose descriptor is in memory's order.
    x = channels_last((2, 8, 45, 40), torch.half, 1)
    weight = channels_last((16, 8, 3, 3), torch.half, 2)
    y = conv2d(x, weight, stride=(9, 1), dilation=(dilation, 1))
    expected = torch.nn.functional.conv2d(
        x.double(), weight.double(), stride=(9, 1), dilation=(dilation, 1)
    )
    assert (y.double() - expected).abs().max() <= 1e-3 * expected.abs().max()
    dw = conv2d_weight(x, weight.shape, y, stride=(9, 1), dilation=(dilation, 1))
    exact = torch.nn.grad.conv2d_weight(
        x.double(), weight.shape, y.double(), stride=(9, 1), dilation=(dilation, 1)
    )
    assert (dw.double() - exact).abs().max() <= 1e-3 * exact.abs().max()
