"""Forward plans in Triton's interpreter.

The interpreter casts to fp8 wrongly (3.6 to 3.9), so fp8 outputs are for the GPU's tests, and it
truncates where it casts to bf16.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted(im2col=True):
    pytest.skip(reason, allow_module_level=True)

from fprop_cases import ACTIVATIONS, Case, check, clamp_and_tilt
from planned import plan_fprop
from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.depthwise import DepthwiseConfig
from triton_ext.ops.families.direct import DirectConfig

# Infinities and what they become are part of the tests.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def conv(**changes: object) -> ConvProblem:
    """3x3, 8 channels to 8."""
    values = {
        "batch": 1,
        "in_channels": 8,
        "out_channels": 8,
        "input_size": (5, 5),
        "filter_size": (3, 3),
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    return ConvProblem(**{**values, **changes})


def tile_of(values: torch.Tensor, activation: str) -> torch.Tensor:
    """An activation of a row of numbers: a 1x1 convolution with the filter 1."""
    problem = conv(
        in_channels=1, out_channels=1, input_size=(1, values.numel()), filter_size=(1, 1),
        padding=((0, 0), (0, 0)),
    )  # fmt: skip
    x = values.view(1, 1, 1, -1)
    spec = EpilogueSpec(activation=activation, out_dtype=torch.float32)
    plan = plan_fprop(problem, x.stride(), x.dtype, x.device, spec)
    return plan.run(x, torch.ones(1, 1, 1, 1, dtype=x.dtype)).flatten()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_exact_near_zero_and_far_from_it(activation):
    # All powers of two of bf16, and numbers around the patch_point of tanh.
    values = torch.cat([2.0 ** torch.arange(-60.0, 12.0), torch.linspace(0.2, 0.3, 50)])
    values = torch.cat([values, -values]).bfloat16()
    expected = ACTIVATIONS[activation](values.double())
    found = tile_of(values, activation).double()
    # gelu's 1 + erf cancels, here and in torch, and torch's 1 + tanh; what is left is small beside
    # the input.
    floor = 2e-7 * values.double().abs() if activation.startswith("gelu") else 1e-30
    assert ((found - expected).abs() <= 4e-6 * expected.abs() + floor).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_nan_and_infinity_are_torchs(activation):
    values = torch.tensor([torch.inf, -torch.inf, torch.nan]).bfloat16()
    # In float64, because torch's gelu of infinity is NaN in vectorised fp32.
    expected = ACTIVATIONS[activation](values.double()).float()
    torch.testing.assert_close(tile_of(values, activation), expected, equal_nan=True)


def test_amax_of_what_is_no_number():
    x = torch.zeros(1, 1, 1, 8).half()
    spec = EpilogueSpec(amax=True)
    problem = conv(
        in_channels=1, out_channels=1, input_size=(1, 8), filter_size=(1, 1),
        padding=((0, 0), (0, 0)),
    )  # fmt: skip
    plan = plan_fprop(problem, x.stride(), x.dtype, x.device, spec)
    weight = torch.ones(1, 1, 1, 1).half()
    amax = torch.zeros(1)
    for value, largest in ((-3.5, 3.5), (torch.inf, torch.inf), (torch.nan, torch.nan), (0, 0)):
        x[..., 5] = value
        plan.run(x, weight, EpilogueArguments(amax=amax))
        assert torch.equal(amax, torch.tensor([largest])) or amax.isnan().item() == (
            largest != largest
        )


# --- residuals per image ------------------------------------------------------------------------

ONE = {"filter_size": (1,), "stride": (1,), "padding": ((0, 0),), "dilation": (1,)}


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 3},
        {"batch": 3, "out_channels": 7},
        {"batch": 3, "groups": 8},  # depthwise
        {"batch": 3, "in_channels": 12, "groups": 4, "out_channels": 8},  # direct
        {"batch": 40, "input_size": (2, 2)},  # tens of images in a tile
        {"batch": 5, "input_size": (1, 1)},
        {"batch": 3, "input_size": (70,), **ONE},
    ],
    ids=str,
)
def test_a_residual_per_image(changes):
    spec = EpilogueSpec(bias=True, residual=True, residual_per_image=True, activation="silu")
    check(Case(problem=conv(**changes), dtype=torch.float16, spec=spec))
    # In torch's order, with the mask that a function and amax need.
    spec = replace(spec, amax=True, function=clamp_and_tilt, out_dtype=torch.float32)
    check(Case(problem=conv(**changes), dtype=torch.bfloat16, spec=spec, plain_order=True))


# --- groups -------------------------------------------------------------------------------------


def test_few_channels_of_a_group_go_without_tensor_cores():
    for group_ci, is_direct in ((1, True), (7, True), (8, False), (16, False)):
        problem = conv(in_channels=4 * group_ci, out_channels=8, groups=4)
        x = Case(problem=problem, dtype=torch.float16).tensors()[0]
        plan = plan_fprop(problem, x.stride(), x.dtype, x.device)
        assert isinstance(plan.config, DirectConfig) == is_direct
    problem = conv(in_channels=4, out_channels=4, groups=4)
    x = Case(problem=problem, dtype=torch.float16).tensors()[0]
    assert isinstance(plan_fprop(problem, x.stride(), x.dtype, x.device).config, DepthwiseConfig)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("group_ci", [16, 20, 66])
def test_a_copy_never_begins_between_multiples_of_16_bytes(dtype, group_ci):
    problem = conv(in_channels=4 * group_ci, out_channels=32, groups=4)
    case = Case(problem=problem, dtype=dtype)
    plan = case.plan(case.tensors()[0])
    begin = plan.launcher.constants["GROUP_CI"]
    assert begin * dtype.itemsize % 16 == 0
    assert plan.inputs.keywords["pixels"].__self__.geometry.shape[-1] == 4 * begin
    assert begin - group_ci < 16 // dtype.itemsize
    check(case)


# --- refusals -----------------------------------------------------------------------------------


def test_a_residual_per_image_is_one():
    with pytest.raises(ValueError, match=r"residual_per_image says .* expected residual=True"):
        EpilogueSpec(residual_per_image=True)


@pytest.mark.parametrize(
    ("changes", "dtype", "spec", "match"),
    [
        ({"groups": 3}, torch.float16, {}, "groups=3 must divide both 8 input channels and 8"),
        ({}, torch.float64, {}, "dtype torch.float64: expected float16"),
        ({}, torch.int8, {"bias": True}, "int8 needs an out_dtype of floating point"),
        ({}, torch.float16, {"out_dtype": torch.float64}, "out_dtype torch.float64 is not"),
    ],
)
def test_refuses_what_no_kernel_takes(changes, dtype, spec, match):
    with pytest.raises(UnsupportedError, match=match):
        plan_fprop(
            conv(**changes), (200, 1, 40, 8), dtype, torch.device("cpu"), EpilogueSpec(**spec)
        )


def test_geometry_is_refused_with_every_violation():
    with pytest.raises(DescriptorError, match=r"(?s)conv stride 9.*padding 200"):
        plan_fprop(
            conv(stride=(9, 1), padding=((0, 0), (200, 0))), (200, 1, 40, 8), torch.float16,
            torch.device("cpu"),
        )  # fmt: skip


def test_a_function_that_is_not_compiled_is_refused():
    with pytest.raises(TypeError, match=r"expected a @triton.jit function .* got function .*jit$"):
        EpilogueSpec(function=lambda tile, rows, columns: tile)
    EpilogueSpec(function=clamp_and_tilt)
