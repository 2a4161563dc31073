"""Merged groups in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from interpreted import why_not_interpreted

if reason := why_not_interpreted(im2col=True):
    pytest.skip(reason, allow_module_level=True)

from dgrad_cases import reference
from fprop_cases import ACTIVATIONS, Case, convolve
from planned import plan_dgrad, plan_fprop
from problem_cases import channels_last, problem_of
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.launcher import recording
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.merged_groups import MergedConfig

# Infinities and what they become are part of the tests.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that nothing was written to is not a number."""
    empty = torch.empty

    def poisoned_empty(*arguments, **keywords):
        made = empty(*arguments, **keywords)
        if made.is_floating_point():
            return made.fill_(torch.nan)
        # Bits of a flag that nobody has set.
        return made.fill_(0x7FFFFFFF) if made.dtype == torch.int32 else made

    monkeypatch.setattr(torch, "empty", poisoned_empty)


# --- what is not finite ---------------------------------------------------------------------------


def assert_alike(result, expected):
    """NaN and infinities in the same places, other numbers nearly the same."""
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    finite = expected.isfinite()
    scale = max(1.0, expected[finite].abs().max().item() if finite.any() else 1.0)
    assert ((result.double() - expected)[finite].abs() <= 2e-2 * scale).all()


GROUPS = problem_of(n=2, ci=32, co=64, size=(6, 7), padding=1, groups=8)
STRIDED = replace(GROUPS, stride=(2, 2))
CONFIG = MergedConfig(4, ConvConfig(block_m=32, block_n=16, block_k=16, num_stages=2, num_warps=4))


def operands(problem=GROUPS, dtype=torch.float16):
    shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
    return [channels_last(shape, dtype, seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_activation_hides_what_is_not_finite(activation):
    x, weight, _ = operands()
    x[1, 3, 2, 2] = -torch.inf
    spec = EpilogueSpec(activation=activation)
    y = plan_fprop(GROUPS, x.stride(), x.dtype, CPU, spec, CONFIG).run(x, weight)
    own = ACTIVATIONS[activation](convolve(GROUPS, x.double(), weight.double()))
    assert torch.equal(y[:, 8:].isfinite(), own[:, 8:].isfinite())
    assert y[:, 8:].isfinite().all()


def test_a_repair_has_the_whole_epilogue():
    x, weight, _ = operands()
    x[0, 9, 3, 3] = torch.nan
    case = Case(
        problem=GROUPS,
        dtype=torch.float16,
        spec=EpilogueSpec(
            bias=True,
            scale=True,
            residual=True,
            activation="relu",
            out_scale=True,
            out_dtype=torch.float32,
        ),
        one_scale=False,
    )
    _, _, given = case.tensors()
    y = case.plan(x, CONFIG).run(x, weight, given)
    expected, _ = case.reference(x, weight, given)
    assert_alike(y, expected)
    assert y.isnan().any()


@pytest.mark.parametrize("problem", [GROUPS, STRIDED], ids=["stride 1", "strided"])
def test_a_transposed_convolution_has_a_bias_in_its_repair_too(problem):
    _, weight, dy = operands(problem)
    bias = torch.randn(problem.in_channels).half()
    plan = plan_dgrad(problem, dy.stride(), dy.dtype, CPU, CONFIG)
    for bad in (0.5, torch.nan):
        dy[0, 9, 1, 1] = bad
        expected = reference(problem, dy, weight) + bias.double().view(1, -1, 1, 1)
        assert_alike(plan.run(dy, weight, EpilogueArguments(bias)), expected)


# --- memory ---------------------------------------------------------------------------------------


def test_integers_need_no_repair():
    config = replace(CONFIG, config=replace(CONFIG.config, block_k=32))
    x, weight, _ = (t.to(torch.int8) for t in operands(dtype=torch.float32))
    plan = plan_fprop(GROUPS, x.stride(), x.dtype, CPU, config=config)
    with recording() as launches:
        y = plan.run(x, weight)
    names = [made.kernel.__name__ for made, _ in launches]
    assert names == ["merge_filter_kernel", "conv_fprop_kernel"]
    assert torch.equal(y, convolve(GROUPS, x.double(), weight.double()).int())


def test_x_may_have_gaps_between_pixels():
    x, weight, _ = operands()
    larger = torch.full((2, 6, 7, 48), torch.nan, dtype=x.dtype)
    larger[..., :32] = x.movedim(1, -1)
    apart = larger[..., :32].movedim(-1, 1)
    apart[0, 3, 2, 2] = torch.inf
    x[0, 3, 2, 2] = torch.inf
    plan = plan_fprop(GROUPS, apart.stride(), x.dtype, CPU, config=CONFIG)
    assert_alike(plan.run(apart, weight), convolve(GROUPS, x.double(), weight.double()))
