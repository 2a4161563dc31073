"""torch's own convolution as a family: cuDNN's kernels, where a caller prefers what is fastest.

Nothing chooses it by default, and no table holds it: ``prefer="fastest"`` lets the planner compare
it with what it would choose.  Its model is a roofline: a launch, and the longer of multiplications
and bytes.  On an H200 (torch 2.11, cuDNN 9.19, fp16, 2026-11-22, docs/performance.md) cuDNN took
0.95 to 2.20 times that, 1.29 in the geometric mean, in 42 layers of two-dimensional convolutions,
forward and dgrad; that is the uncertainty.  Groups, one dimension and few channels took 5 times as
long and more, so they are refused, as is what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import DIRECTIONS, Case, Direction
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.epilogue import PLAIN
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.refusals import Refusal, refused

__all__ = ["TORCH", "TorchConfig"]

# Multiplications and additions per microsecond of 16-bit types on an H200, by 8192^3 matrix
# products of cuBLAS: 704 to 780 TFLOP/s (docs/performance.md, 2026-11-20 to 22).
_FLOPS_PER_US = 700e6
_SMS = 132
# cuDNN's time over the roofline: in the mean, and the largest that was measured.
_MEAN, _LARGEST = 1.29, 2.20
_LEAST_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class TorchConfig:
    """torch chooses how its convolution is compiled."""


class _Torch(Family[TorchConfig]):
    """torch's convolution of a direction."""

    kind = "torch"
    config_type = TorchConfig

    def __init__(self, direction: Direction) -> None:
        self.direction = direction  # type: ignore[misc]

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        problem, found = case.problem, []
        if case.dtype not in (torch.float16, torch.bfloat16) or case.output_dtype != case.dtype:
            found.append(f"no measured rate of {case.dtype} to {case.output_dtype}")
        if problem.dims == 1 or problem.groups > 1:
            found.append("cuDNN's groups and one-dimensional convolutions are far from a roofline")
        if min(problem.in_channels, problem.out_channels) < _LEAST_CHANNELS:
            found.append(f"cuDNN is far from a roofline with less than {_LEAST_CHANNELS} channels")
        if replace(case.epilogue, bias=False, out_dtype=None) != PLAIN:
            found.append("its epilogue would be further kernels")
        if any(low != high for low, high in problem.padding):
            found.append("torch pads both sides alike")
        return refused(*found)

    def number_refusals(
        self, config: TorchConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        return refused("torch's convolution is no choice of a table")

    def candidates(self, case: Case, device: Device) -> Mapping[TorchConfig, Expected]:
        problem = case.problem
        x, weight, y = map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape))
        flops = 2 * y * problem.in_channels * math.prod(problem.filter_size)
        multiply_us = flops / (_FLOPS_PER_US * device.num_sms / _SMS)
        bytes_us = (x + weight + y) * case.dtype.itemsize / H200.copy_bytes_per_us
        roofline_us = H200.launch_us + max(multiply_us, bytes_us)
        return {TorchConfig(): Expected.of(roofline_us * _MEAN, correction=_LARGEST / _MEAN)}

    def passed_over(self, case: Case, device: Device) -> str:
        return 'prefer="fastest" compares its largest expected time'

    def bind(self, config: TorchConfig, case: Case, device: Device) -> NoReturn:
        raise UnsupportedError(f"{case.operator}: torch's convolution is called, it has no plan")


#: By direction.
TORCH: dict[Direction, Family[TorchConfig]] = {each: _Torch(each) for each in DIRECTIONS}
