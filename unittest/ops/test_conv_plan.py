"""What a plan launches, seen by a kernel that only looks.  Runs anywhere torch is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from emulated import without_gluon
from looking_kernel import LookingKernel
from planned import plan_fprop
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.epilogue import EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.problem import ConvParameters
from triton_ext.ops.families import gemm
from triton_ext.ops.kernels.gemm import conv_fprop_kernel


@pytest.fixture
def kernel(monkeypatch):
    looking = LookingKernel(conv_fprop_kernel.arg_names, optional=["operands"])
    machine = Device(132, (9, 0), SMEM_BYTES)
    monkeypatch.setattr(gemm, "conv_fprop_kernel", looking)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    without_gluon(monkeypatch)
    planner.make_plan.cache_clear()
    yield looking
    planner.make_plan.cache_clear()


def tensors(co=16):
    x = torch.zeros(2, 9, 9, 64, dtype=torch.float16).permute(0, 3, 1, 2)
    weight = torch.zeros(co, 3, 3, 64, dtype=torch.float16).permute(0, 3, 1, 2)
    return x, weight


def launch(x, weight, bias=None):
    parameters = ConvParameters((2, 1), (1, 0, 2, 3), (1, 2), 1)
    problem = parameters.problem(tuple(x.shape), tuple(weight.shape))
    epilogue = EpilogueSpec(bias=bias is not None)
    plan = plan_fprop(problem, x.stride(), x.dtype, x.device, epilogue)
    plan.run(x, weight, EpilogueArguments(bias).operands())


def test_the_second_launch_goes_around_with_the_same_arguments(kernel):
    launch(*tensors())
    launch(*tensors())
    (first, _, front), (second, _, around) = kernel.launches
    assert (first, second) == ("front", "around")
    assert list(around) == list(conv_fprop_kernel.arg_names)
    for name, value in around.items():
        if name != "y" and not name.endswith("_desc"):
            assert front[name] == value, name


def test_arguments_are_what_their_names_say(kernel):
    launch(*tensors())
    launch(*tensors())
    for *_, named in kernel.launches:
        picked = {name: named[name] for name in ("m_gemm", "co", "conv", "FILTER", "GROUP_CI")}
        assert picked == {
            "m_gemm": 2 * 4 * 10,
            "co": 16,
            "conv": ((4, 10), (2, 1), (1, 2), (1, 2)),
            "FILTER": (3, 3),
            "GROUP_CI": 64,
        }


def test_a_kernel_without_bias_is_never_given_one(kernel):
    x, weight = tensors()
    bias = torch.zeros(32, dtype=torch.float16)
    aligned, unaligned = bias[:16], bias[1:17]
    for one in (None, aligned, unaligned, None, aligned, unaligned):
        launch(x, weight, one)
    doors = [door for door, *_ in kernel.launches]
    assert doors == ["front"] * 3 + ["around"] * 3
    for (*_, named), given in zip(kernel.launches, (None, aligned, unaligned) * 2, strict=True):
        assert (named["operands"].bias is None) == (given is None)


def test_hooks_of_the_kernel_run_at_every_launch(kernel):
    kernel.pre_run_hooks = (print,)
    launch(*tensors())
    launch(*tensors())
    assert [door for door, *_ in kernel.launches] == ["front", "front"]


def test_a_gpu_with_little_shared_memory_is_refused_by_name(kernel, monkeypatch):
    machine = Device(20, (12, 0), 32 * 1024)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    with pytest.raises(UnsupportedError, match="32768 bytes of shared memory"):
        launch(*tensors())
