"""Single kernels in Triton's interpreter, where each differs.

``test_conformance.py`` has what all of them pass.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted():
    pytest.skip(reason, allow_module_level=True)

from fprop_cases import convolve
from planned import plan_dgrad, plan_fprop, plan_wgrad
from problem_cases import channels_last, problem_of
from triton_ext.errors import UnsupportedError
from triton_ext.ops import conv2d, conv_transpose2d
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import device_of
from triton_ext.ops.core.epilogue import PLAIN
from triton_ext.ops.core.launcher import recording
from triton_ext.ops.families.depthwise import DepthwiseWgradConfig
from triton_ext.ops.families.few_channels import FEW_CHANNELS, KN2ROW, Col2ImConfig, GatherConfig
from triton_ext.ops.families.partial_im2col import SwappedConfig
from triton_ext.ops.families.wgrad import WgradConfig

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU, HALF = torch.device("cpu"), torch.float16
DEVICE = device_of(CPU, "test")
INF, NAN = float("inf"), float("nan")
SMALL = WgradConfig(block_co=64, block_ci=16, block_pixels=16, num_stages=2, num_warps=4)


def gradient_operands(problem):
    return channels_last(problem.y_shape, HALF, 1), channels_last(problem.w_shape, HALF, 2)


def run_dgrad(problem, dy, weight):
    return plan_dgrad(problem, dy.stride(), HALF, CPU).run(dy, weight)


# --- dgrad --------------------------------------------------------------------------------------


def test_pixels_that_the_forward_did_not_reach_are_zeros():
    # A stride of 3 from 3 taps on 11 pixels reaches pixels 0 to 8.
    problem = problem_of(size=(11, 11), stride=3)
    dx = run_dgrad(problem, *gradient_operands(problem))
    assert (dx[:, :, 9:] == 0).all()
    assert (dx[:, :, :, 9:] == 0).all()
    assert (dx[:, :, :9, :9] != 0).all()


def test_pixels_without_taps_are_zeros_whatever_the_operands_hold():
    problem = problem_of(size=(7, 7), taps=(1, 1), stride=2)
    dy, weight = gradient_operands(problem)
    dy[:] = INF
    weight[:] = NAN
    dx = run_dgrad(problem, dy, weight)
    assert torch.isnan(dx[:, :, ::2, ::2]).all()
    assert (dx[:, :, 1::2] == 0).all()
    assert (dx[:, :, :, 1::2] == 0).all()


@pytest.mark.parametrize("value", [INF, NAN])
def test_what_is_not_finite_stays_in_its_group_and_channels(value):
    problem = problem_of(groups=2, ci=6, co=96, padding=1)
    dy, weight = gradient_operands(problem)
    # The last output channel of the first group: input channels 0 to 2 see it.
    dy[:, 47] = value
    dx = run_dgrad(problem, dy, weight)
    assert not torch.isfinite(dx[:, :3]).any()
    assert torch.isfinite(dx[:, 3:]).all()


def test_a_transposed_convolution_of_patches_with_output_padding():
    torch.manual_seed(0)
    x = torch.randn(2, 16, 5, 6).half().to(memory_format=torch.channels_last)
    weight, bias = torch.randn(16, 3, 4, 4).half(), torch.randn(3).half()
    y = conv_transpose2d(x, weight, bias, stride=4, output_padding=3)
    expected = torch.nn.functional.conv_transpose2d(
        x.double(), weight.double(), bias.double(), stride=4, output_padding=3
    )
    assert y.shape == expected.shape
    assert (y.double() - expected).abs().max() <= 1e-3 * expected.abs().max()


# --- wgrad --------------------------------------------------------------------------------------


def test_parts_are_added_in_the_order_of_their_pixels():
    # In fp32, 2^26 + 1 is 2^26: only in their order do these add up to 4.
    problem = problem_of(ci=8, co=8, size=(64,), taps=(1,))
    x, dy = torch.zeros(1, 64, 8), torch.zeros(1, 64, 8)
    # Parts of 16 pixels: 2^26, -2^26, 1 and 3.
    x[0, ::16], dy[0, ::16] = 2.0**13, torch.tensor([2.0**13, -(2.0**13), 0, 0])[:, None]
    x[0, 1::16], dy[0, 1::16] = 1.0, torch.tensor([0, 0, 1.0, 3.0])[:, None]
    x, dy = (t.half().movedim(-1, 1) for t in (x, dy))
    plan = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, SMALL, torch.float32, 4)
    assert plan.tiles.partition.splits == 4
    assert torch.equal(plan.run(x, dy), torch.full((8, 8, 1), 4.0))


@pytest.mark.parametrize("groups", [1, 2])
def test_whole_tiles_and_parts_write_every_element(groups, monkeypatch):
    problem = problem_of(n=2, ci=20, co=70, size=(5, 6), padding=((1, 1), (2, 0)), groups=groups)
    x, dy = channels_last(problem.x_shape, HALF, 1), channels_last(problem.y_shape, HALF, 2)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(NAN))
    config = replace(SMALL, taps=2)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, config, num_sms=16)
    partition = plan.tiles.partition
    assert partition.splits > 1
    assert groups > 1 or partition.waves > 0
    weight = torch.zeros(problem.w_shape, dtype=torch.float64, requires_grad=True)
    convolve(problem, x.double(), weight).backward(dy.double())
    dw = plan.run(x, dy).double()
    assert (dw - weight.grad).abs().max() <= 1e-3 * weight.grad.abs().max()


def test_an_empty_batch_gives_zeros(monkeypatch):
    problem = problem_of(n=0, size=(6, 7))
    x, dy = torch.zeros(0, 8, 6, 7).half(), torch.zeros(0, 8, 4, 5).half()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(NAN))
    plan = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, SMALL)
    assert torch.equal(plan.run(x, dy), torch.zeros(8, 8, 3, 3).half())


def test_a_depthwise_filter_does_not_see_pixels_behind_a_row():
    """The last position of a row of 5 reaches over its end; x has what would show it."""
    problem = problem_of(ci=16, co=16, size=(7,), taps=(3,), groups=16)
    x, dy = channels_last(problem.x_shape, HALF, 0), channels_last(problem.y_shape, HALF, 2)
    x[:, :, 6] = INF
    config = DepthwiseWgradConfig(qw=4, lines=1, taps=3, block_p=8, block_c=16)
    dw = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, config).run(x, dy)
    assert dw[..., :2].isfinite().all()
    assert not dw[..., 2].isfinite().any()


def test_an_operand_swap_makes_two_copies():
    problem = problem_of(n=2, ci=16, co=3, size=(7, 9), padding=1)
    x, dy = channels_last(problem.x_shape, HALF, 1), channels_last(problem.y_shape, HALF, 2)
    plan = plan_wgrad(problem, x.stride(), dy.stride(), HALF, CPU, SwappedConfig(SMALL))
    adding = ["wgrad_reduce_kernel"] if plan.tiles.slots else []
    with recording() as launches:
        plan.run(x, dy)
    names = [made.kernel.__name__ for made, _ in launches]
    assert names == ["row_copy_kernel", "conv_wgrad_kernel", *adding, "row_copy_kernel"]


# --- few channels, few outputs ------------------------------------------------------------------

STEM = problem_of(n=2, ci=3, co=24, size=(10, 12), stride=2, padding=1)
LAST = problem_of(n=2, ci=16, co=3, size=(10, 12), padding=1)
GATHER = GatherConfig(block_m=64, block_n=16, block_k=16, programs_per_sm=1)
SHIFT = Col2ImConfig(block_m=64, rows=3)


@pytest.mark.parametrize(
    ("family", "problem", "kernel"),
    [(FEW_CHANNELS, STEM, "conv_gather_kernel"), (KN2ROW, LAST, "conv_col2im_kernel")],
    ids=["few channels", "kn2row"],
)
def test_one_launch_by_default(family, problem, kernel, monkeypatch):
    case = Case(direction="fprop", problem=problem, dtype=HALF)
    choice = planner.Choice(family, next(iter(family.candidates(case, DEVICE))))
    monkeypatch.setattr(planner, "cheapest", lambda *_: choice)
    planner.make_plan.cache_clear()
    x, weight = (channels_last(shape, HALF, 1) for shape in (problem.x_shape, problem.w_shape))
    with recording() as launches:
        y = conv2d(x, weight, stride=problem.stride, padding=1)
    planner.make_plan.cache_clear()
    assert [made.kernel.__name__ for made, _ in launches] == [kernel]
    expected = convolve(problem, x.double(), weight.double())
    assert (y - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_pixels_beside_a_window_are_not_read():
    # Vectors of 4 elements, windows of 6 that begin at multiples of 12.
    problem = problem_of(ci=2, co=16, size=(4, 24), taps=(1, 3), stride=(1, 6))
    x, weight = (channels_last(shape, HALF, 1) for shape in (problem.x_shape, problem.w_shape))
    x[..., 3] = NAN
    plan = plan_fprop(problem, x.stride(), HALF, CPU, PLAIN, GATHER)
    assert plan.launcher.constants["WINDOW"].row > 6
    assert plan.run(x, weight).isfinite().all()


WIDE = replace(LAST, filter_size=(3, 16), dilation=(1, 5), padding=((1, 1), (40, 40)))


@pytest.mark.parametrize(
    ("problem", "config", "text"),
    [
        (STEM, replace(GATHER, block_k=24), "block_k is 24: expected a power of two from 16 to"),
        (STEM, replace(GATHER, block_m=256, block_n=256), "shared memory, a CTA has"),
        (replace(STEM, dilation=(1, 2)), GATHER, "dilation 2 in W: taps are not neighbours"),
        (replace(STEM, in_channels=8), GATHER, "8 channels: from 16 bytes of channels on"),
        (LAST, replace(SHIFT, block_m=96), "block_m is 96: expected a power of two from 64 to"),
        (LAST, replace(SHIFT, rows=0), "rows is 0: expected 1 to 65536"),
        (WIDE, SHIFT, "block_m is 64: expected more pixels than the 75 that taps of a row reach"),
        (replace(LAST, in_channels=2048), SHIFT, "shared memory, a CTA has"),
        (replace(LAST, stride=(1, 2)), SHIFT, "expected 1, as every pixel meets every tap"),
        (replace(LAST, out_channels=17), SHIFT, "4 x 32 columns"),
        (replace(LAST, out_channels=4, groups=2), SHIFT, "groups=2"),
        (replace(LAST, filter_size=(17, 1), padding=((9, 9), (0, 0))), SHIFT, "17 rows of the"),
    ],
)
def test_what_is_not_taken(problem, config, text):
    strides = channels_last(problem.x_shape, HALF, 1).stride()
    with pytest.raises(UnsupportedError, match=text):
        plan_fprop(problem, strides, HALF, CPU, PLAIN, config)
