"""The @triton.jit gradients of triton_ext.ops, as their plans launch them, in the emulator."""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

from planned import plan_dgrad, plan_wgrad  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402
from triton_ext.ops.core import planner  # noqa: E402

# Where TTGIR has no such copies, the loads become calls, and that later.
IM2COL = capabilities()["im2col-copies"]
if not IM2COL.available:
    pytest.skip(IM2COL.reason, allow_module_level=True)

from conv_cases import assert_close, draw  # noqa: E402
from problem_cases import problem_of_case  # noqa: E402
from triton_ext.gluon import nvidia as xnv  # noqa: E402
from triton_ext.ops.core.device import Device  # noqa: E402
from triton_ext.ops.core.launcher import Launcher  # noqa: E402

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def hopper_with_three_multiprocessors(fresh_triton_cache, monkeypatch):
    """Plans are made for a small Hopper, and launched in the emulator."""

    def launch(self, tensors, variant=None):
        kernel = xnv.emulated(self.kernel)[self.grid]
        kernel(*self.arguments(tensors), **self.constants, **self.options)

    def device_of(device, operator):
        return Device(3, (9, 0), 227 * 1024)

    monkeypatch.setattr(Launcher, "launch", launch)
    monkeypatch.setattr(planner, "device_of", device_of)
    planner.make_plan.cache_clear()
    yield
    planner.make_plan.cache_clear()


@pytest.mark.parametrize("number", range(20 if NIGHTLY else 2))
@pytest.mark.parametrize("kernel", ["dgrad", "wgrad"])
def test_random_geometries(kernel, number):
    case = draw(random.Random(f"{kernel} {number}"), 2)
    x, w, dy = case.tensors()
    dx, dw = case.gradients(x, w, dy)
    problem = problem_of_case(case)
    x, w, dy = (tensor.movedim(-1, 1) for tensor in (x, w, dy))
    if kernel == "dgrad":
        plan = plan_dgrad(problem, dy.stride(), dy.dtype, CPU)
        found, expected = plan.run(dy, w), dx
    else:
        plan = plan_wgrad(problem, x.stride(), dy.stride(), x.dtype, CPU)
        found, expected = plan.run(x, dy), dw
    assert_close(found.movedim(1, -1), expected)
