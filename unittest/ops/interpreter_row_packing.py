"""Row packing in Triton's interpreter."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted(im2col=True):
    pytest.skip(reason, allow_module_level=True)

from packing_cases import draw_problem
from problem_cases import channels_last
from triton_ext.ops import conv2d, conv2d_input, conv2d_weight
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.packing import RowPacking
from triton_ext.ops.kernels.row_copy import RowCopies, fill_channels

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


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("number", range(200 if NIGHTLY else 40))
def test_both_copies_of_one_launch_are_those_of_two(number, launches):
    rng = random.Random(number)
    problem = draw_problem(rng, pixels=8)
    dtype = rng.choice((torch.float16, torch.float32))
    x = channels_last(problem.x_shape, dtype, 1)
    co, ci, *taps = problem.w_shape
    is_turned = number % 3 == 0
    weight = channels_last((ci, co, *taps) if is_turned else problem.w_shape, dtype, 2)
    if number % 2:
        weight = weight.contiguous()
    way = rng.choice(RowPacking.candidates(problem, x.stride(), dtype.itemsize))
    way = replace(way, is_turned=is_turned)
    copies = RowCopies(way)
    both = copies.pack(x, weight)
    assert len(launches) <= 1
    for found, expected in zip(
        both, (copies.pack(x, None)[0], copies.pack(None, weight)[1]), strict=True
    ):
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    if way.is_turned:
        weight = weight.transpose(0, 1)
        turned = weight.flip(tuple(range(2, weight.dim())))
        expected = RowCopies(replace(way, is_turned=False)).pack(None, turned)[1]
        assert torch.equal(both[1], expected)
    # The gradient of the packed filter is unpacked; turned and of swapped channels for dy's rows.
    packed = both[1]
    rows = (weight.flip(tuple(range(2, weight.dim()))) if way.is_turned else weight).movedim(1, -1)
    dw = torch.empty(rows.shape, dtype=dtype)
    copies.unpack(packed, dw, is_swapped=False)
    assert torch.equal(dw, rows)
    swapped = rows.flip(tuple(range(1, rows.dim() - 1))).transpose(0, -1)
    dw = torch.empty(swapped.shape, dtype=dtype)
    copies.unpack(packed, dw, is_swapped=True)
    assert torch.equal(dw, swapped)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("missing", [(4, 4), (2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_filled_with_zeros(dims, missing, launches):
    size = (3, 2, 5)[-dims:]
    tensors = [
        torch.randn(n, 16 - more, *size[:taps]).movedim(1, -1).half()
        for n, more, taps in ((2, missing[0], dims), (7, missing[1], 1))
    ]
    filled = fill_channels(*zip(tensors, missing, strict=True))
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
