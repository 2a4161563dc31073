"""What a wgrad plan launches, seen by kernels that only look, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from looking_kernel import LookingKernel
from planned import plan_wgrad, refusals_of
from triton_ext.errors import DescriptorError, UnsupportedError
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families import wgrad
from triton_ext.ops.families.wgrad import WgradConfig
from triton_ext.ops.kernels.gemm_wgrad import WgradSizes

H200 = Device(132, (9, 0), SMEM_BYTES)
CONFIG = WgradConfig(block_co=64, block_ci=64, num_stages=3, num_warps=4)
PROBLEM = ConvProblem(
    batch=2,
    in_channels=64,
    out_channels=16,
    input_size=(9, 9),
    filter_size=(3, 3),
    stride=(2, 1),
    padding=((1, 0), (2, 3)),
    dilation=(1, 2),
)


@pytest.fixture
def launches(monkeypatch):
    found = []
    for name in ("conv_wgrad_kernel", "wgrad_reduce_kernel"):
        arg_names = getattr(wgrad, name).arg_names
        monkeypatch.setattr(wgrad, name, LookingKernel(arg_names, launches=found))
    monkeypatch.setattr(planner, "device_of", lambda device, operator: H200)
    planner.make_plan.cache_clear()
    yield found
    planner.make_plan.cache_clear()


def tensors(problem=PROBLEM, dtype=torch.float16):
    x = torch.zeros(problem.batch, *problem.input_size, problem.in_channels, dtype=dtype)
    dy = torch.zeros(problem.batch, *problem.output_size, problem.out_channels, dtype=dtype)
    return x.movedim(-1, 1), dy.movedim(-1, 1)


def make(problem=PROBLEM, dtype=torch.float16, **options):
    x, dy = tensors(problem, dtype)
    return plan_wgrad(problem, x.stride(), dy.stride(), dtype, x.device, **options)


def test_the_second_run_goes_around_with_the_same_arguments(launches):
    plan = make(config=CONFIG)
    plan.run(*tensors())
    plan.run(*tensors())
    assert [door for door, _, _ in launches] == ["front", "front", "around", "around"]
    for (_, grid, front), (_, again, around) in zip(launches[:2], launches[2:], strict=True):
        assert grid == again
        for name, value in around.items():
            is_tensor = isinstance(value, torch.Tensor) or name == "dw"
            if not is_tensor and not name.endswith("_desc"):
                assert front[name] == value, name


def test_arguments_are_what_their_names_say(launches):
    make(config=CONFIG).run(*tensors())
    (_, grid, first), (_, second_grid, second) = launches
    # 2 * 4 * 10 pixels are 2 steps; 9 tiles, one for each tap, in 2 parts each.
    assert grid == (18, 1, 1)
    for name, value in {
        "tiles": WgradSizes(
            co=16, group_co=16, group_ci=64, co_tiles=1, whole_tiles=0, split_tiles=9, splits=2
        ),
        "steps": 2,
        "conv": ((4, 10), (2, 1), (1, 2), (1, 2)),
        "FILTER": (3, 3),
        "GROUPED": False,
        "IS_MATRIX": False,
        "HAS_WHOLE": False,
        "HAS_PARTS": True,
        "num_stages": 3,
        "num_warps": 4,
    }.items():
        assert first[name] == value, name
    assert list(first["x_desc"].block_shape) == [64, 64]
    assert list(first["dy_desc"].shape) == [80, 16]
    assert list(first["dw"].shape) == [16, 9, 64]
    assert first["part_ptr"].shape == (18 * 64 * 64,)
    assert second["part_ptr"] is first["part_ptr"]
    assert second["dw_ptr"].data_ptr() == first["dw"].base.data_ptr()
    assert second_grid == (4 * (64 // second["COLUMNS"]), 1, 9)
    assert second["launch_pdl"]


def test_a_1x1_filter_reads_a_matrix(launches):
    plain = replace(
        PROBLEM, filter_size=(1, 1), stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1)
    )
    make(plain).run(*tensors(plain))
    assert launches[-1][2]["tiles"].group_ci == 64
    assert launches[0][2]["IS_MATRIX"]
    assert list(launches[0][2]["x_desc"].shape) == [162, 64]
    strided = replace(plain, stride=(2, 2))
    make(strided, config=CONFIG).run(*tensors(strided))
    assert not launches[2][2]["IS_MATRIX"]


def test_whole_tiles_are_launched_alone(launches):
    make(config=CONFIG, num_sms=9).run(*tensors())
    ((_, grid, first),) = launches
    assert grid == (9, 1, 1)
    assert first["HAS_WHOLE"]
    assert not first["HAS_PARTS"]
    assert first["part_ptr"] is None


@pytest.mark.parametrize(
    "problem",
    [replace(PROBLEM, in_channels=63), replace(PROBLEM, groups=2)],
    ids=["odd channels", "groups"],
)
def test_what_tma_cannot_store_goes_through_pointers(launches, problem):
    make(problem).run(*tensors(problem))
    first = launches[0][2]
    assert isinstance(first["dw"], torch.Tensor)


def test_hooks_of_the_kernel_run_at_every_launch(launches):
    plan = make()
    plan.run(*tensors())
    for launcher, _ in plan.launches(*tensors(), torch.zeros(1)):
        launcher.kernel.pre_run_hooks = (print,)
    plan.run(*tensors())
    assert {door for door, _, _ in launches} == {"front"}


def test_plans_of_equal_geometries_are_one(launches):
    assert make() is make()
    assert make() is not make(out_dtype=torch.float32)


# ---- What is refused ---------------------------------------------------------------------------


def test_reasons():
    assert refusals_of("wgrad", PROBLEM, torch.bfloat16, H200) == ()
    (dtype,) = refusals_of("wgrad", PROBLEM, torch.float32, H200)
    assert dtype == (
        "dtype torch.float32: wgrad needs float16 or bfloat16, WGMMA transposes 16-bit operands "
        "only"
    )
    (old,) = refusals_of("wgrad", PROBLEM, torch.float16, Device(108, (8, 0), SMEM_BYTES))
    assert old == "TMA im2col needs sm_90 or newer, the GPU is sm_80"
    (small,) = refusals_of("wgrad", PROBLEM, torch.float16, Device(20, (12, 0), 65536))
    assert small.startswith("a CTA has 65536 bytes of shared memory, the smallest tile")
    assert refusals_of("wgrad", replace(PROBLEM, stride=(9, 1)), torch.float16, H200) == (
        "conv stride 9 in H: TMA supports 1..8",
        "larger strides need taps of a row that are read as channels; dilation 2 in W: taps are "
        "not neighbours",
    )
    both = refusals_of("wgrad", replace(PROBLEM, stride=(9, 9)), torch.float32, H200)
    assert len(both) == 4


def test_make_plan_raises_what_reasons_tells(launches):
    with pytest.raises(DescriptorError, match="conv stride 9 in H"):
        make(replace(PROBLEM, stride=(9, 1)))
    with pytest.raises(UnsupportedError, match=r"dtype torch.float32: wgrad needs"):
        make(dtype=torch.float32)
    with pytest.raises(UnsupportedError, match=r"out_dtype torch.int8: expected"):
        make(out_dtype=torch.int8)
    with pytest.raises(UnsupportedError, match="num_stages is 0"):
        make(config=replace(CONFIG, num_stages=0))


def test_a_gpu_with_little_shared_memory_is_refused_by_name(launches, monkeypatch):
    machine = Device(20, (12, 0), 65536)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    with pytest.raises(UnsupportedError, match="65536 bytes of shared memory"):
        make()
