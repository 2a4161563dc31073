"""What the plans of the Gluon kernels share: what they do not take, descriptors without memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.host import capabilities
from triton_ext.ops.core.descriptors import Layout
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.hopper.tiles import SMEM_BYTES, TileConfig

__all__ = [
    "DTYPES",
    "FP8_DTYPES",
    "Tiled",
    "common_reasons",
    "most_expected",
    "problem_reasons",
]

#: Types that all Gluon kernels take.
DTYPES = (torch.float16, torch.bfloat16)

#: Types that fprop takes as well: WGMMA reads 8-bit operands with channels inside only, as there.
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

# Measured on 42 shapes (fprop and dgrad; H200, fp16, 2026-11-22; docs/gluon-conv.md): those above
# were slower with Gluon, by 1 to 5 %, and those between 1 and this no slower.
_MOST_EXPECTED = 1.025
# The model counts steps of less than 128 bytes of channels as those of 128.
_MOST_EXPECTED_NARROW = 1.08


def most_expected(config: TileConfig) -> float:
    """A Gluon kernel may be expected to take so many times the @triton.jit one's time.

    Args:
        config: What the Gluon kernel is compiled for.
    """
    is_narrow = config.block_k * config.element_bytes < 128
    return _MOST_EXPECTED_NARROW if is_narrow else _MOST_EXPECTED


def common_reasons(
    problem: ConvProblem, dtype: torch.dtype, device: Device, *, takes_fp8: bool = False
) -> list[str]:
    """Returns why no Gluon kernel takes a problem; nothing if they do.

    Args:
        problem: What is computed.
        dtype: Of the operands.
        device: The device.
        takes_fp8: Whether the kernel takes fp8.
    """
    found: list[str] = []
    gluon = capabilities()["im2col-gluon"]
    if IS_INTERPRETED:
        found.append("Triton's interpreter does not run Gluon kernels")
    elif not gluon.available:
        found.append(gluon.reason)
    if device.capability != (9, 0):
        major, minor = device.capability
        found.append(f"WGMMA is an instruction of sm_90 alone, the GPU is sm_{major}{minor}")
    if device.smem_bytes < SMEM_BYTES:
        found.append(
            f"a CTA needs {SMEM_BYTES} bytes of shared memory, the GPU has {device.smem_bytes}"
        )
    return found + problem_reasons(problem, dtype, takes_fp8=takes_fp8)


def problem_reasons(
    problem: ConvProblem, dtype: torch.dtype, *, takes_fp8: bool = False
) -> list[str]:
    """Returns why no Gluon kernel takes a problem, on whatever host and GPU.

    Arguments as for :func:`common_reasons`.
    """
    found: list[str] = []
    is_fp8 = takes_fp8 and dtype in FP8_DTYPES
    if dtype not in DTYPES and not is_fp8:
        expected = "float16, bfloat16 or fp8" if takes_fp8 else "float16 or bfloat16"
        found.append(f"dtype is {dtype}, expected {expected}")
    if problem.groups != 1:
        found.append(f"groups={problem.groups}, expected 1")
    channels = (("Ci", problem.in_channels, 16 if is_fp8 else 8), ("Co", problem.out_channels, 8))
    for name, count, unit in channels:
        if count % unit:
            found.append(f"{name} is {count}, TMA needs rows of a multiple of {unit} channels")
    return found


@dataclass(frozen=True, slots=True)
class Tiled:
    """A tiled descriptor of Gluon's without memory.

    Attributes:
        kind: Its class.
        fields: All but the tensor, checked.
    """

    kind: Any
    fields: dict[str, Any]

    @classmethod
    def of(cls, dtype: torch.dtype, shape: list[int], row: int, block: list[int]) -> Tiled:
        """Checks and returns a descriptor.

        Args:
            dtype: Of the tensor.
            shape: Its sizes.
            row: Distance of two entries of the last but one dimension.
            block: Of a load or a store.
        """
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        from triton_ext.ops.hopper.pipeline import smem_layout

        strides = [*(row * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)), 1]
        stand_in = Layout(tuple(shape), tuple(strides), dtype)
        layout = smem_layout(block, dtype.itemsize)
        checked = TensorDescriptor(stand_in, shape, strides, block, layout)
        fields = {name: value for name, value in vars(checked).items() if name != "base"}
        return cls(TensorDescriptor, fields)

    def at(self, base: torch.Tensor) -> Any:
        """Returns the descriptor of a tensor; checking all again would take longer than a launch.

        Args:
            base: Begins at a multiple of 16 bytes.
        """
        made = self.kind.__new__(self.kind)
        made.__dict__.update(self.fields, base=base)
        return made
