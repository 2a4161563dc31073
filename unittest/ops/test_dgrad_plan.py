"""What a plan of the gradient of the input launches, refuses and chooses.  Runs where torch is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from hypothesis import given
from hypothesis import strategies as st
from looking_kernel import LookingKernel
from planned import plan_dgrad, ranking_of, refusals_of
from problem_cases import channels_last, problem_of
from triton_ext.errors import DescriptorError
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.refusals import refused
from triton_ext.ops.families import gemm
from triton_ext.ops.families.gemm_config import DGRAD_CONFIGS, NARROW_COSTS, OutputTile
from triton_ext.ops.families.gluon import GluonDgrad
from triton_ext.ops.kernels import row_copy
from triton_ext.ops.kernels.gemm import Phases, conv_dgrad_kernel

from benchmarks.suites import select_layers

H200 = Device(132, (9, 0), SMEM_BYTES)


@pytest.fixture
def kernel(monkeypatch):
    looking = LookingKernel(conv_dgrad_kernel.arg_names, optional=["bias_ptr"])
    monkeypatch.setattr(gemm, "conv_dgrad_kernel", looking)
    copy = LookingKernel(row_copy.row_copy_kernel.arg_names)
    monkeypatch.setattr(row_copy, "row_copy_kernel", copy)
    monkeypatch.setattr(GluonDgrad, "refusals", lambda *arguments: refused("the test has none"))
    monkeypatch.setattr(planner, "device_of", lambda device, operator: H200)
    planner.make_plan.cache_clear()
    yield looking
    planner.make_plan.cache_clear()


def launch(problem, dtype=torch.float16, config=None, **operands):
    dy, weight = channels_last(problem.y_shape, dtype, 1), channels_last(problem.w_shape, dtype, 2)
    plan = plan_dgrad(problem, dy.stride(), dtype, torch.device("cpu"), config)
    return plan, plan.run(dy, weight, EpilogueArguments(**operands))


STRIDED = problem_of(
    n=2, ci=24, co=72, size=(11, 13), taps=(3, 2), stride=(2, 3), padding=((1, 0), (0, 2)),
    dilation=(1, 2),
)  # fmt: skip


@pytest.mark.parametrize("problem", [problem_of(n=2, ci=64, padding=1), STRIDED], ids=str)
def test_the_second_launch_goes_around_with_the_same_arguments(kernel, problem):
    launch(problem)
    launch(problem)
    (first, _, front), (second, _, around) = kernel.launches
    assert (first, second) == ("front", "around")
    assert list(around) == list(conv_dgrad_kernel.arg_names)
    for name, value in around.items():
        if name != "dx" and not name.endswith(("_desc", "_ptr")):
            assert front[name] == value, name


def test_arguments_are_what_their_names_say(kernel):
    launch(STRIDED)
    ((*_, named),) = kernel.launches
    assert named["dx"].shape == (2, 24, 11, 13)
    assert named["problem"]._asdict() == {
        # ceil(11 / 2) x ceil(13 / 3) pixels of two images.
        "m_gemm": 2 * 6 * 5,
        "n_gemm": 24,
        "channel_blocks": 2,
        "size": (1, 11, 13),
        "phase_size": (1, 6, 5),
        "filter_size": (1, 3, 2),
        "padding": (0, 1, 0),
        "dilation": (1, 1, 2),
        # Rows: (a + 1 - r) / 2 is 0 or 1.  Columns: (b - 2 * s) / 3 is 0 for s = 0 and b = 0 or
        # for s = 1 and b = 2.
        "lower": (0, 0, 0),
    }
    assert named["FILTER"] == (1, 3, 2)
    assert named["PHASES"] == Phases(
        stride=(1, 2, 3),
        divisor=(1, 1, 1),
        tap_step=(1, 2, 3),
        # Of 1 modulo 1, 1 modulo 2, 2 modulo 3.
        inverse=(0, 1, 2),
    )
    assert named["dy_desc"].geometry.pixel_box_lower_corner == (0, 0)
    # A walk of 6 x 5 pixels in a dy of 5 x 5.
    assert STRIDED.output_size == (5, 5)
    assert named["dy_desc"].geometry.walk_size == (6, 5)


def test_rows_go_through_tma_where_they_are_neighbours(kernel):
    for problem, through_tma in (
        (problem_of(ci=16), True),
        (problem_of(ci=12), False),
        (problem_of(ci=16, stride=(1, 2)), False),
        (problem_of(ci=256, co=128, groups=2), True),
        (problem_of(ci=48, co=128, groups=2), False),
    ):
        launch(problem)
        named = kernel.launches[-1][2]
        assert isinstance(named["dx"], torch.Tensor) != through_tma, problem


def test_a_kernel_is_compiled_for_each_kind_of_bias(kernel):
    bias = torch.zeros(32, dtype=torch.float16)
    kinds = (None, bias[:16], bias[1:17])
    for one in kinds * 2:
        launch(problem_of(ci=16), bias=one)
    assert [door for door, *_ in kernel.launches] == ["front"] * 3 + ["around"] * 3


def test_hooks_of_the_kernel_run_at_every_launch(kernel):
    kernel.pre_run_hooks = (print,)
    launch(problem_of())
    launch(problem_of())
    assert [door for door, *_ in kernel.launches] == ["front", "front"]


def test_image_sizes_and_channels_share_a_kernel(kernel):
    # All that may differ between two with a configuration is told at run time.
    one = problem_of(n=2, ci=64, co=64, size=(14, 14), padding=1)
    other = problem_of(n=3, ci=64, co=128, size=(15, 13), padding=2)
    first, _ = launch(one)
    second, _ = launch(other, config=first.config)
    assert first.launcher.constants == second.launcher.constants


# ---- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (problem_of(taps=(7, 3)), "filter larger than the padded input in H: empty output"),
        (problem_of(stride=0), r"stride \(0, 0\): must be at least 1"),
        (problem_of(padding=((-1, 0), (0, 0))), r"padding \(-1, 0\): must not be negative"),
        (
            problem_of(size=(300, 6), taps=(3, 1), dilation=(140, 1)),
            "in H reach over 280 pixels of dy: im2col offsets go to 255",
        ),
        (
            problem_of(size=(6, 6), padding=130),
            r"lower corner 128 of the pixel box in H: must be -128 to 127",
        ),
        (
            problem_of(size=(40, 5, 5), taps=(18, 1, 1)),
            r"lower corner -17 of the pixel box in D: must be -16 to 15",
        ),
        (problem_of(n=1 << 20, size=(64, 64)), "dx has 4294967296 pixels, int32 pixel index"),
        (
            problem_of(size=(65535,), taps=(2,), stride=65535, dilation=65534),
            "stride 65535 in W: must be at most 46340 with a padding of 0, int32",
        ),
        (
            problem_of(ci=512, size=(32768, 32767), taps=(1, 1), stride=(32768, 32767)),
            "1073709056 stride phases of 512 channels have up to 68717379584 tiles: must be at",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_what_tma_cannot_express(kernel, problem, match):
    with pytest.raises(DescriptorError, match=match):
        plan_dgrad(problem, (1,) * 4, torch.float16, torch.device("cpu"))
    assert any(reason for reason in refusals_of("dgrad", problem, torch.float16))


def test_refuses_other_dtypes_by_name(kernel):
    depthwise = problem_of(ci=32, co=32, groups=32)
    assert refusals_of("dgrad", depthwise, torch.float16) == ()
    (reason,) = refusals_of("dgrad", problem_of(), torch.float64)
    assert reason == "dtype torch.float64: expected float16, bfloat16, float32"


def test_a_machine_with_little_shared_memory_is_refused(kernel):
    small = Device(20, (12, 0), 32 * 1024)
    (reason,) = refusals_of("dgrad", problem_of(), torch.float16, small)
    assert "32768 bytes of shared memory" in reason
    assert refusals_of("dgrad", problem_of(), torch.float16, H200) == ()


def test_a_stride_that_the_forward_has_not_is_taken():
    # Strides are no element strides here: patches of 16 x 16 pixels, say.
    patches = problem_of(ci=8, co=768, size=(224, 224), taps=(16, 16), stride=16)
    assert refusals_of("dgrad", patches, torch.float16, H200) == ()


# ---- Choice ------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    groups = draw(st.integers(1, 8))
    return problem_of(
        n=draw(st.integers(1, 300)),
        ci=draw(st.integers(1, 600)) * groups,
        co=draw(st.integers(1, 600)) * groups,
        size=[draw(st.integers(8, 300)) for _ in range(2)],
        taps=[draw(st.integers(1, 8)) for _ in range(2)],
        stride=draw(st.integers(1, 5)),
        groups=groups,
    )


def choose_config(problem, dtype=torch.float16, device=H200):
    """The configuration that the model expects to be fastest."""
    case = Case(direction="dgrad", problem=problem, dtype=dtype)
    return next(iter(gemm.GEMM_DGRAD.candidates(case, device)))


@given(problems(), st.sampled_from([torch.float16, torch.float32]), st.integers(1, 256))
def test_the_choice_fits_and_stays_in_its_group(problem, dtype, num_sms):
    size, groups = dtype.itemsize, problem.groups
    for capability in ((9, 0), (10, 0)):
        device = Device(num_sms, capability, SMEM_BYTES)
        config = choose_config(problem, dtype, device)
        assert config == choose_config(problem, dtype, device)
        whole = capability == (10, 0) and groups == 1 and set(problem.stride) == {1}
        whole = whole and problem.in_channels * size % 16 == 0
        assert config.fits(size, OutputTile(element_bytes=size, whole=whole))
        # A row of the 128-byte swizzle.
        assert config.block_k * size <= 128
        if groups == 1:
            assert config.block_k * size == 128
        else:
            assert config.block_k >= 8
            assert gemm.group_channels(problem.out_channels, groups) % config.block_k == 0


def test_a_small_problem_gets_a_small_tile():
    config = choose_config(problem_of(ci=64, co=64, size=(7, 7), padding=1))
    assert (config.block_m, config.block_n) == (64, 64)


def test_many_classes_fill_the_machine_with_large_tiles():
    # 3136 pixels are 25 tiles of 128 x 256 in a class, too few; those of 16 classes are not.
    one = choose_config(problem_of(ci=256, co=512, size=(56, 56), padding=1))
    many = choose_config(
        problem_of(ci=256, co=512, size=(224, 224), taps=(12, 12), stride=4, padding=4)
    )
    assert one.block_m * one.block_n < many.block_m * many.block_n


# Measured on an H200 (fp16, Triton 3.9.0, 2026-11-23), where the mean of the taps instead of the
# busiest multiprocessor chose other tiles, which took 1.13 to 1.39 of these ones' times.
@pytest.mark.parametrize(
    ("layer", "fastest"),
    [
        ("32x512x14x14_512_k3x3_s2x2", "64x128_pp_s8_e32x2_g2"),
        ("64x384x14x14_768_k2x2_s2x2_p0x0", "128x128_pp_s6_e32x2_g2"),
        ("8x640x32x32_640_k3x3_s2x2", "128x128_pp_s6_e32x2_g2"),
        ("8x1280x16x16_1280_k3x3_s2x2", "64x128_pp_s8_e32x2_g2"),
        ("32x512x28x28_1024_k1x1_s2x2", "192x128_co3_s5_e64x1_g2"),
    ],
)
def test_strided_layers_get_what_was_fastest(layer, fastest):
    (found,) = select_layers("all", [layer])
    assert str(ranking_of("dgrad", found.problem, torch.float16, H200)[0]) == fastest


def test_few_input_channels_have_narrow_tiles():
    for ci, groups in ((3, 1), (16, 1), (24, 1), (32, 1), (16, 8)):
        for stride in (1, 4):
            sizes = {"ci": ci * groups, "co": 64 * groups, "groups": groups, "size": (200, 200)}
            chosen = choose_config(problem_of(**sizes, stride=stride, padding=1))
            assert chosen.block_n == (16 if ci <= 16 else 32)
    assert choose_config(problem_of(ci=40, co=64, size=(200, 200), padding=1)).block_n == 64


@pytest.mark.parametrize("config", [*DGRAD_CONFIGS, *NARROW_COSTS], ids=str)
def test_shipped_configurations_are_possible(config):
    assert config.fits(2)
    assert config.block_m % 64 == 0
    assert config.num_warps in (4, 8)
    # More than 128 accumulators per thread do not fit beside the rest of 255 registers.
    assert config.block_m * config.block_n // (32 * config.num_warps) <= 128


@pytest.mark.parametrize("stride", [0, 1 << 40])
def test_strides_that_no_plan_divides_by(stride):
    problem = problem_of(stride=stride)
    reasons = refusals_of("dgrad", problem, torch.float16, H200)
    expected = (
        f"stride {stride} in H: must be at most 46340" if stride else "stride (0, 0): must be"
    )
    assert reasons[0].startswith(expected)
