"""torch's own convolution as a family: cuDNN's kernels, where a caller prefers what is fastest.

It is never chosen by default, and no table holds it: ``prefer="fastest"`` compares it with the
planner's choice, and measures both where the models are not sure.  Its model is that of a
matrix product: a launch, and the longer of the tiles of all multiprocessors and DRAM, mixed.
Factors stand for the kinds of layers that take longer, fitted by direction to the zoo's rows (H100,
cuDNN 9.19, bf16, 2026-11-27; ``python -m benchmarks zoo fit``).  Half of the layers predict the
other half within 21 to 29 % (standard deviation).  Groups of several channels, and channels that
are not multiples of 8, have no model.  Kinds of layers that cuDNN computes several times slower are
refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.epilogue import PLAIN
from triton_ext.ops.core.family import Family
from triton_ext.ops.core.refusals import Refusals, refused

# Multiplications and additions per microsecond of 16-bit types: 8192^3 matrix products of cuBLAS
# reach 704 to 780 TFLOP/s (docs/performance.md, 2026-11-20 to 22).
_FLOPS_PER_US = 700e6
# Rows and columns of tiles, with the share of that rate that they reach; what a tile takes besides.
_TILES = ((128, 128, 0.9), (256, 128, 1.0), (128, 64, 0.75), (64, 64, 0.6))
_TILE_US = 1.0
# K is split into parts of at least so many where tiles are few; adding the parts.
_LEAST_K, _ADD_US = 256, 1.5
_LEAST_CHANNELS = 16
# dgrad to fewer channels than this is taken to pad the filter and to cut dx, by two more kernels.
# Not measured: it keeps the suites' layer of 4 channels.  The 6 rows of 3 channels, of 157 us and
# more, cannot tell (measured over expected 0.32 to 1.22 without it, 0.32 to 1.18 with it).
_PADDED_CHANNELS = 8
# Depthwise kernels: a launch, and multiplications per microsecond.
_DEPTHWISE_US, _DEPTHWISE_PER_US = H200.launch_us + 3.3, 5.3e6
# The filters that cuDNN has them for, in fprop.
_DEPTHWISE_FILTERS = ((3, 3), (5, 5), (7, 7))
# Torch is chosen where it is expected to be faster by more than this.
_MARGIN = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Numbers of a direction, logarithms; from ``taps`` on factors of the multiplications."""

    launch: float  # factor of a launch without work
    multiply: float  # factor of the multiplications of all layers
    dram: float  # factor of DRAM's time
    taps: float  # of several filter taps
    in_channels: float  # of input channels that are not multiples of 64
    out_channels: float  # likewise of output channels
    stride: float  # of a stride
    few: float  # of fewer than 16 channels
    volume: float  # of several taps in three dimensions
    narrow: float  # of several taps over up to 32 channels


FITTED: dict[Direction, Fitted] = {
    "fprop": Fitted(
        launch=0.9214, multiply=-0.36, dram=0.06, taps=0.30, in_channels=0.35, out_channels=-0.06,
        stride=0.22, few=0.76, volume=0.32, narrow=-0.56,
    ),
    "dgrad": Fitted(
        launch=0.9214, multiply=-0.12, dram=0.06, taps=0.01, in_channels=0.04, out_channels=0.04,
        stride=0.20, few=0.22, volume=-0.04, narrow=-0.22,
    ),
    "wgrad": Fitted(
        launch=1.3014, multiply=-0.28, dram=0.29, taps=0.26, in_channels=0.37, out_channels=-0.11,
        stride=0.33, few=1.22, volume=-0.07, narrow=0.20,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TorchConfig:
    """torch chooses how its convolution is compiled."""


def _tiles_us(case: Case, num_sms: int) -> float:
    """Returns the time of the best tiles of the matrix product, which are dealt out evenly."""
    problem, taps = case.problem, case.problem.taps
    ci, co = problem.in_channels, problem.out_channels
    pixels = problem.batch * math.prod(problem.output_size)
    rows, columns, depth = float(pixels), co, float(taps * math.ceil(ci / 32) * 32)
    if case.direction == "wgrad":
        rows, columns, depth = co, ci * taps, pixels
    elif case.direction == "dgrad":
        rows, columns = problem.batch * math.prod(problem.input_size), ci
        seen = taps / math.prod(problem.stride)
        depth = (max(1.0, seen) if taps > 1 else seen) * math.ceil(co / 32) * 32
    times = []
    for height, width, share in _TILES:
        tiles = math.ceil(rows / height) * math.ceil(columns / width)
        us = depth * height * width * 2 / (_FLOPS_PER_US / H200.num_sms * share) + _TILE_US
        parts = max(1.0, min(depth / _LEAST_K, num_sms / tiles))
        adding_us = _ADD_US if parts > 1.5 else 0.0
        times.append(max(1.0, tiles * parts / num_sms) * us / parts + adding_us)
    return min(times)


def _expected(case: Case, device: Device) -> Expected:
    problem, fitted, has_taps = case.problem, FITTED[case.direction], case.problem.taps > 1
    x, w, y = map(math.prod, (problem.x_shape, problem.w_shape, problem.y_shape))
    if not has_taps and case.direction != "dgrad":
        x = problem.batch * problem.in_channels * math.prod(problem.output_size)
    dram_us = (x + w + y) * case.dtype.itemsize / device.dram_bytes_per_us
    # Not fitted: one dimension, where cuDNN is mostly several times slower; groups of several
    # channels; channels that cuDNN pads.
    ci, co = problem.in_channels, problem.out_channels
    if problem.dims == 1 or problem.groups not in (1, ci) or (ci % 8 and ci > 4) or co % 8:
        return Expected.of(math.nan)
    if problem.groups > 1:
        parts = {"launch": _DEPTHWISE_US, "instructions": y * problem.taps / _DEPTHWISE_PER_US}
        return Expected.of({**parts, "DRAM": dram_us})
    factors = (
        (fitted.taps, has_taps),
        (fitted.in_channels, ci % 64 > 0),
        (fitted.out_channels, co % 64 > 0),
        (fitted.stride, max(problem.stride) > 1),
        (fitted.few, min(ci, co) < _LEAST_CHANNELS),
        (fitted.volume, has_taps and problem.dims == 3),
        (fitted.narrow, has_taps and min(ci, co) <= 32),
    )
    log = fitted.multiply + sum(value for value, applies in factors if applies)
    multiply_us = _tiles_us(case, device.num_sms) * math.exp(log)
    dram_us *= math.exp(fitted.dram)
    padding_us = 2 * device.launch_us * (case.direction == "dgrad" and ci < _PADDED_CHANNELS)
    launch_us = device.launch_us * math.exp(fitted.launch) + padding_us
    # The shorter one shows in part.
    mixed_us = (multiply_us**3 + dram_us**3) ** (1 / 3)
    if multiply_us > dram_us:
        dram_us = mixed_us - multiply_us
    else:
        multiply_us = mixed_us - dram_us
    return Expected.of({"launch": launch_us, "tensor cores": multiply_us, "DRAM": dram_us})


class Torch(Family[TorchConfig]):
    """torch's convolution of a direction."""

    kind = "torch"
    config_type = TorchConfig

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        problem, found = case.problem, []
        if case.dtype not in (torch.float16, torch.bfloat16) or case.output_dtype != case.dtype:
            found.append(f"no measured rate of {case.dtype} to {case.output_dtype}")
        ci, co = problem.in_channels, problem.out_channels
        is_fast = problem.groups == ci == co and problem.filter_size in _DEPTHWISE_FILTERS
        if not problem.batch:
            found.append("an empty batch takes no time")
        if problem.groups == ci > 1 and not (is_fast and case.direction == "fprop"):
            found.append("cuDNN is several times slower with groups of one channel")
        if replace(case.epilogue, bias=False, out_dtype=None) != PLAIN:
            found.append("its epilogue would be further kernels")
        if any(low != high for low, high in problem.padding):
            found.append("torch pads both sides alike")
        return refused(*found)

    def number_refusals(self, config: TorchConfig, case: Case, device: Device) -> Refusals:
        return refused("torch's convolution is no choice of a table")

    def candidates(self, case: Case, device: Device) -> Mapping[TorchConfig, Expected]:
        return {TorchConfig(): _expected(case, device).corrected(_MARGIN)}

    def passed_over(self, case: Case, device: Device) -> str:
        return 'prefer="fastest" compares it'

    def bind(self, config: TorchConfig, case: Case, device: Device) -> NoReturn:
        raise UnsupportedError(f"{case.operator}: torch's convolution is called, it has no plan")
