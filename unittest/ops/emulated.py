"""Runs the kernels of plans in the emulator: stands in for a kernel and for a GPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext.emulator import Program
from triton_ext.gluon import nvidia as xnv
from triton_ext.ops.core import planner
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.core.refusals import refused
from triton_ext.ops.families import depthwise, direct, few_channels, gemm, wgrad
from triton_ext.ops.families.gluon import GluonFprop
from triton_ext.ops.kernels import row_copy

NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
}


@functools.cache
def _gluon_kernel() -> Any:
    """The Gluon kernel, which not every host can import, as the emulator runs it."""
    from triton_ext.ops.kernels.gluon_conv import conv_fprop_kernel

    return xnv.emulated(conv_fprop_kernel)


class EmulatedKernel:
    """A launch through the front door compiles for sm_90 and emulates; there is no other door."""

    pre_run_hooks: tuple[object, ...] = ()

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **keywords: Any) -> None:
            options = {k: v for k, v in keywords.items() if k not in self.arg_names}
            values = dict(zip(self.arg_names, arguments, strict=False))
            constants = {k: v for k, v in keywords.items() if k in self.arg_names}
            constants |= {name: None for name, value in values.items() if value is None}
            signature = {
                name: "constexpr" if name in constants else kind_of(values[name])
                for name in self.arg_names
            }
            named = [values.get(name) for name in self.arg_names]
            compiled = triton.compile(
                ASTSource(self.kernel, signature, constexprs={**constants, **nothing_of(named)}),
                target=GPUTarget("cuda", 90, 32),
                options=options,
            )
            assert compiled.metadata.shared <= SMEM_BYTES
            given = [v for name, v in values.items() if name not in constants]
            Program(compiled.asm["ttgir"]).run(grid, flat(given), 0)

        return launch


def nothing_of(values: Any, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], None]:
    """Where tuples among arguments hold None, which is a constant."""
    found: dict[tuple[int, ...], None] = {}
    for i, value in enumerate(values):
        if isinstance(value, tuple):
            found |= nothing_of(value, (*path, i))
        elif value is None and path:
            found[(*path, i)] = None
    return found


def kind_of(value: Any) -> Any:
    """The type of an argument, as Triton's signatures have it."""
    if isinstance(value, tuple):
        kinds = [kind_of(each) for each in value]
        # Names of fields are part of a type.
        return type(value)(*kinds) if hasattr(value, "_fields") else tuple(kinds)
    if value is None:
        return "constexpr"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{NAMES[value.base.dtype]}{list(value.block_shape)}>"
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def flat(values: Any) -> list[Any]:
    """Arguments one after another, without tuples and what is not there."""
    each = [x for v in values for x in (flat(v) if isinstance(v, tuple) else [v])]
    return [x for x in each if x is not None]


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
    for module, name in (
        (gemm, "conv_fprop_kernel"),
        (direct, "conv_direct_kernel"),
        (few_channels, "conv_col2im_kernel"),
        (few_channels, "conv_gather_kernel"),
        (depthwise, "conv_depthwise_kernel"),
        (row_copy, "row_copy_kernel"),
        (wgrad, "conv_wgrad_kernel"),
        (wgrad, "wgrad_reduce_kernel"),
    ):
        monkeypatch.setattr(module, name, EmulatedKernel(getattr(module, name)))
    if gluon:
        kernel = _gluon_kernel()  # before the patch
        monkeypatch.setattr("triton_ext.ops.kernels.gluon_conv.conv_fprop_kernel", kernel)
    else:
        without_gluon(monkeypatch)
    machine = Device(num_sms, (9, 0), SMEM_BYTES)
    monkeypatch.setattr(planner, "device_of", lambda device, operator: machine)
    planner.make_plan.cache_clear()
