"""Merged groups: when they are chosen, refusals, tables, launches; kernels in the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from problem_cases import problem_of
from triton_ext.errors import UnsupportedError
from triton_ext.host import capabilities
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import KNOWN, assumed_device
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.launcher import Launcher, _MemoryRecorder
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.tables import decode, encode, kind_of
from triton_ext.ops.families.direct import DIRECT
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.merged_groups import (
    MERGED,
    MERGED_DGRAD,
    MergedConfig,
    MergedPlan,
    merge_factors,
)
from triton_ext.ops.tuning.measure import make_tensors
from triton_ext.ops.tuning.runs import candidates

from benchmarks.suites import select_layers

IM2COL = capabilities()["im2col"]
NEEDS_IM2COL = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)

HALF = torch.float16
H200 = KNOWN["h200"]
META = torch.device("meta")

# The first stages of a ResNeXt-50 32x4d and of a ResNeXt-101 32x8d.
FOUR = problem_of(n=32, ci=128, co=128, size=(56, 56), padding=1, groups=32)
EIGHT = problem_of(n=32, ci=256, co=256, size=(56, 56), padding=1, groups=32)
STRIDED = replace(EIGHT, stride=(2, 2))


def case_of(problem, direction="fprop", dtype=HALF, **others):
    return Case(direction=direction, problem=problem, dtype=dtype, **others)


# --- which groups -------------------------------------------------------------------------------


def test_factors_divide_the_groups_and_make_whole_instructions():
    assert merge_factors(FOUR) == [4, 8, 16, 32]
    assert merge_factors(EIGHT) == [2, 4, 8, 16, 32]
    # Multiples of 16 channels only, and at most 256.
    assert merge_factors(problem_of(ci=24 * 6, co=24 * 6, groups=6)) == [2, 6]
    assert merge_factors(problem_of(ci=8 * 96, co=8 * 192, groups=8)) == []
    assert merge_factors(problem_of(ci=64 * 32, co=64 * 32, groups=32)) == [2, 4]


@pytest.mark.parametrize(
    "problem",
    [problem_of(ci=64, co=64), problem_of(ci=64, co=64, groups=64), problem_of(ci=9, groups=1)],
    ids=["one group", "depthwise", "odd channels"],
)
def test_other_convolutions_are_refused(problem):
    for family, direction in ((MERGED, "fprop"), (MERGED_DGRAD, "dgrad")):
        (reason,) = map(str, family.refusals(case_of(problem, direction), H200))
        assert "no number of groups together has a multiple of 16" in reason


# --- choices ------------------------------------------------------------------------------------

LAYERS = [layer for layer in select_layers("groups") if layer.problem.groups == 32]
FEW = [layer for layer in LAYERS if layer.problem.in_channels // 32 <= 8]


def test_the_suite_has_the_networks_with_few_channels_in_a_group():
    channels = {layer.problem.in_channels // layer.problem.groups for layer in LAYERS}
    assert channels == {4, 8, 16, 32, 64}


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
@pytest.mark.parametrize("layer", FEW, ids=lambda layer: layer.name)
def test_groups_of_4_and_8_channels_are_merged(layer, direction):
    choice = planner.cheapest(case_of(layer.problem, direction), H200)
    assert choice.family.kind == "merged"
    channels = layer.problem.in_channels // 32
    # Rows of x of 128 bytes, as TMA likes them best.
    assert choice.config.factor * channels >= 64


# RegNetY-8GF, RegNets with groups of 112 channels, the positions of wav2vec 2.0.
MIDDLE = [
    layer
    for layer in select_layers("groups")
    if layer.problem.in_channels // layer.problem.groups in {48, 56, 112}
]


@pytest.mark.parametrize("layer", MIDDLE, ids=lambda layer: layer.name)
def test_groups_that_fill_tiles_are_not_merged_and_have_wide_ones(layer):
    case = case_of(layer.problem, dtype=torch.bfloat16)
    choice = planner.cheapest(case, H200)
    if layer.problem.dims == 1:
        # 128 taps: 343 us not merged (H100, bf16, 2026-11-27); merged, nobody measured it.
        for family in (GEMM, MERGED):
            expected = min(each.counted_us for each in family.candidates(case, H200).values())
            assert expected == pytest.approx(343, rel=0.05)
        return
    assert choice.family.kind == "gemm"
    assert choice.config.block_n >= 64
    assert choice.config.block_k == 64  # steps are few: the last one is masked


# The fastest configuration of a kind in microseconds (H100, bf16, 2026-11-27).
MEASURED_US = {
    "32x128x56x56_128_k3x3_g32": ("merged", 52.4),
    "32x256x28x28_256_k3x3_g32": ("merged", 33.9),
    "32x256x56x56_256_k3x3_s2x2_g32": ("merged", 42.8),
    "32x512x56x56_512_k3x3_s2x2_g32": ("merged", 66.8),
    "32x256x56x56_256_k3x3_g32": ("merged", 89.1),
    "32x512x28x28_512_k3x3_g32": ("merged", 52.6),
    "32x1024x14x14_1024_k3x3_g32": ("gemm", 33.8),
    "32x224x56x56_224_k3x3_g4": ("gemm", 170.0),
    "32x448x28x28_448_k3x3_g8": ("gemm", 90.2),
    "32x2016x7x7_2016_k3x3_g36": ("gemm", 36.7),
    "32x224x56x56_224_k3x3_g2": ("gemm", 172.7),
    "32x1232x14x14_1232_k3x3_g11": ("gemm", 78.0),
    "32x3024x14x14_3024_k3x3_s2x2_g27": ("gemm", 55.1),
}


@pytest.mark.parametrize("name", MEASURED_US)
def test_expected_times_are_those_measured(name):
    (layer,) = (layer for layer in select_layers("groups") if layer.name == name)
    case, (kind, us) = case_of(layer.problem, dtype=torch.bfloat16), MEASURED_US[name]
    choice = planner.cheapest(case, H200)
    assert choice.family.kind == kind
    expected = choice.family.candidates(case, H200)[choice.config]
    assert expected.counted_us == pytest.approx(us, rel=0.15)


def test_a_small_convolution_is_left_to_the_kernel_without_tensor_cores():
    small = case_of(problem_of(n=1, ci=16, co=16, size=(8, 8), padding=1, groups=4))
    assert planner.cheapest(small, H200).family.kind == "direct"
    (expected,) = DIRECT.candidates(small, H200).values()
    assert 3.0 < expected.us < 3.1
    assert not MERGED.passed_over(small, H200)


def test_depthwise_convolutions_and_single_groups_are_what_they_were():
    for problem in (problem_of(n=32, ci=128, co=128, size=(56, 56), groups=128, padding=1),
                    problem_of(n=32, ci=128, co=128, size=(56, 56), padding=1)):  # fmt: skip
        for direction in ("fprop", "dgrad", "wgrad"):
            assert planner.cheapest(case_of(problem, direction), H200).family.kind != "merged"


def test_tuning_tries_merged_groups_beside_the_others():
    found = candidates(EIGHT, "fprop", HALF, H200)
    assert {type(config) for config in found} >= {MergedConfig}


# --- refusals of configurations and of epilogues ------------------------------------------------


def first_of(family, case):
    return next(iter(family.candidates(case, H200)))


def test_what_may_hide_nan_is_refused():
    case = case_of(EIGHT, epilogue=EpilogueSpec(amax=True))
    assert [*map(str, MERGED.refusals(case, H200))] == [
        "an epilogue with a function or with amax may hide NaN of other groups"
    ]
    assert planner.cheapest(case, H200).family.kind == "gemm"


def test_a_factor_that_does_not_divide_is_refused():
    config = replace(first_of(MERGED, case_of(EIGHT)), factor=3)
    message = "merged: factor is 3: expected one of 2, 4, 8, 16, 32"
    with pytest.raises(UnsupportedError, match=message):
        planner.plan(case_of(EIGHT), H200, config)


def test_gaps_between_pixels_of_a_strided_gradient_are_refused():
    case = case_of(STRIDED, "dgrad")
    config = first_of(MERGED_DGRAD, case)
    assert not MERGED_DGRAD.refusals(case, H200, config)
    n, _, h, w = case.strides_of_dy
    apart = replace(case, dy_strides=(2 * n, 1, 2 * h, 2 * w))
    (reason,) = map(str, MERGED_DGRAD.refusals(apart, H200, config))
    assert "does not take merged groups of these operands" in reason
    assert planner.cheapest(apart, H200).family.kind == "gemm"
    # With stride 1 the convolution itself reports NaN.
    case = case_of(EIGHT, "dgrad")
    n, _, h, w = case.strides_of_dy
    assert planner.cheapest(
        replace(case, dy_strides=(2 * n, 1, 2 * h, 2 * w)), H200
    ).family.kind == ("merged")


def test_a_table_holds_it():
    case = case_of(EIGHT)
    config = first_of(MERGED, case)
    assert kind_of(config) == "merged"
    assert decode("merged", encode(config)) == config
    assert not MERGED.refusals(case, H200, config)
    for wrong in (1, 5):
        (reason,) = map(str, MERGED.refusals(case, H200, replace(config, factor=wrong)))
        assert reason == f"factor is {wrong}: expected one of 2, 4, 8, 16, 32"


# --- plans --------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """What is launched; nothing is."""
    launches = []
    monkeypatch.setattr(Launcher, "launch", lambda self, tensors: launches.append((self, tensors)))
    return launches


def run(case):
    """Plans a case and runs it; returns the plan, and what torch did meanwhile."""
    with assumed_device(H200):
        plan, tensors = make_plan(case, META), make_tensors(case, META)
        with _MemoryRecorder() as recorder:
            plan.run(*tensors)
    return plan, recorder


@NEEDS_IM2COL
@pytest.mark.parametrize(
    ("problem", "direction", "kernel", "looks"),
    [
        (EIGHT, "fprop", "conv_fprop_kernel", False),
        (STRIDED, "fprop", "conv_fprop_kernel", False),
        (EIGHT, "dgrad", "conv_fprop_kernel", False),
        (STRIDED, "dgrad", "conv_dgrad_kernel", True),
    ],
    ids=["fprop", "strided fprop", "dgrad", "strided dgrad"],
)
def test_three_launches(launched, problem, direction, kernel, looks):
    plan, _ = run(case_of(problem, direction))
    inner = getattr(plan, "plain", plan)
    assert isinstance(inner, MergedPlan)
    names = [launcher.kernel.__name__ for launcher, _ in launched]
    assert names == ["merge_filter_kernel", kernel, "conv_direct_kernel"]
    (_, (_, merged, looked_at, flags)), _, (_, (_, _, read, *_)) = launched
    assert merged.shape == (problem.in_channels, 3, 3, 64)
    assert (looked_at is not None) == looks
    assert flags is read
    assert flags.numel() == (8 * 132 if looks else 1)


@NEEDS_IM2COL
@pytest.mark.parametrize("problem", [EIGHT, STRIDED], ids=["stride 1", "strided"])
@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_a_call_makes_memory_and_launches_only_so_that_it_can_be_replayed(
    launched, problem, direction
):
    _, recorder = run(case_of(problem, direction))
    assert recorder.is_pure
    # The output, the merged filter and the flags.
    assert len(recorder.made) == 3
