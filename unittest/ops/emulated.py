"""Runs the kernels of plans in the emulator: stands in for a kernel and for a GPU."""

from __future__ import annotations

import functools
from typing import Any

from triton_ext.gluon import nvidia as xnv
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.refusals import refused
from triton_ext.ops.families import depthwise, direct, few_channels, gemm, wgrad
from triton_ext.ops.families.gluon import GluonFprop
from triton_ext.ops.kernels import row_copy

# With its module; a test may patch one several times.
_KERNELS = [
    (module, name, getattr(module, name))
    for module, name in (
        (gemm, "conv_fprop_kernel"),
        (direct, "conv_direct_kernel"),
        (few_channels, "conv_col2im_kernel"),
        (few_channels, "conv_gather_kernel"),
        (depthwise, "conv_depthwise_kernel"),
        (row_copy, "row_copy_kernel"),
        (wgrad, "conv_wgrad_kernel"),
        (wgrad, "wgrad_reduce_kernel"),
    )
]


@functools.cache
def _gluon_kernel() -> Any:
    """The Gluon kernel, which not every host can import, as the emulator runs it."""
    from triton_ext.ops.kernels.gluon_conv import conv_fprop_kernel

    return xnv.emulated(conv_fprop_kernel)


def without_gluon(monkeypatch: Any) -> None:
    """Lets forward plans think that the Gluon kernel takes nothing."""
    monkeypatch.setattr(GluonFprop, "refusals", lambda *arguments: refused("the test has none"))


def emulate(monkeypatch: Any, num_sms: int = 3, *, gluon: bool = False) -> None:
    """Lets plans run in the emulator, on CPU tensors, as on a GPU of ``num_sms``.

    Args:
        monkeypatch: pytest's.
        num_sms: Multiprocessors.
        gluon: Whether there is the Gluon kernel.
    """
    for module, name, kernel in _KERNELS:
        monkeypatch.setattr(module, name, xnv.emulated(kernel))
    if gluon:
        kernel = _gluon_kernel()  # before the patch
        monkeypatch.setattr("triton_ext.ops.kernels.gluon_conv.conv_fprop_kernel", kernel)
    else:
        without_gluon(monkeypatch)
    machine = Device(num_sms, (9, 0), SMEM_BYTES)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    planner.make_plan.cache_clear()
