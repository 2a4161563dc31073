"""The filter of merged groups, and plans that use it; ``merged_groups.py`` has the idea."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_ext.ops.conv_fprop import TRITON_DTYPES
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueOperands
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_run import DgradRun
from triton_ext.ops.families.depthwise import Sampling
from triton_ext.ops.kernels.merged_groups import merge_filter_kernel, repair_groups_kernel

__all__ = ["MergedDgradPlan", "MergedFilter", "MergedPlan", "merged_filter"]

_BLOCK = 1024
_REPAIR_TILE = (64, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFilter:
    """How the filter of merged groups is written, and outputs are repaired; holds no tensor.

    Attributes:
        shape: Of the merged filter, [rows, channels, *taps], torch's order.
        flags: Numbers that say whether outputs are to be repaired; 0 for integers.
        looks: Whether the kernel that writes the filter looks at the pixels.
        merging: Writes it.
        repairing: Computes outputs again; ``None`` for integers.
    """

    shape: tuple[int, ...]
    flags: int
    looks: bool
    merging: Launcher
    repairing: Launcher | None

    def merge(
        self, pixels: torch.Tensor, w_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the merged filter and the flags.

        Args:
            pixels: x or dy.
            w_rows: The filter [Co, *taps, Ci / groups], dense.
        """
        rows, channels, *taps = self.shape
        merged = torch.empty((rows, *taps, channels), device=w_rows.device, dtype=w_rows.dtype)
        flags = None
        if self.flags:
            flags = torch.empty((self.flags,), device=w_rows.device, dtype=torch.int32)
        looked_at = pixels if self.looks else None
        self.merging.launch((w_rows, merged, looked_at, flags), _alignment(w_rows, looked_at))
        return merged.movedim(-1, 1), flags

    def repair(
        self,
        flags: torch.Tensor | None,
        pixels: torch.Tensor,
        w_rows: torch.Tensor,
        out: torch.Tensor,
        others: tuple[torch.Tensor | None, ...] = (None,) * 5,
    ) -> None:
        """Computes the output again where a flag says so.

        Args:
            flags: As :meth:`merge` returns them; raised by the convolution where it reports.
            pixels: x or dy.
            w_rows: As for :meth:`merge`.
            out: The output, channels-last.
            others: Bias, scale, scale of one number, residual, output scale.
        """
        if self.repairing is not None:
            tensors = (pixels, w_rows, out, *others)
            self.repairing.launch((flags, *tensors), _alignment(*tensors))


def _alignment(*tensors: torch.Tensor | None) -> Hashable:
    """Returns what Triton specializes on."""
    return tuple(None if t is None else (t.dtype, t.data_ptr() % ROW_BYTES == 0) for t in tensors)


def merged_filter(
    case: Case, factor: int, device: Device, *, is_turned: bool, looks: bool
) -> MergedFilter:
    """Returns how the filter of a case is merged, where a gradient of the input may be fprop."""
    problem, is_gradient = case.problem, case.direction == "dgrad"
    groups, taps = problem.groups, problem.taps
    of_x, of_y = problem.in_channels // groups, problem.out_channels // groups
    rows, k = (of_x, of_y) if is_turned else (of_y, of_x)
    elements = rows * groups * taps * k * factor
    is_integer = not case.dtype.is_floating_point
    programs = math.ceil(elements / _BLOCK)
    read = math.prod(problem.y_shape if is_gradient else problem.x_shape)
    blocks = math.ceil(read / _BLOCK) if looks and not is_integer else 0
    lookers = min(math.ceil(blocks / 4), 8 * device.num_sms)
    flags = 0 if is_integer else max(lookers, 1)
    merging = Launcher(
        kernel=merge_filter_kernel,
        grid=(programs + lookers, 1, 1),
        scalars=(elements, programs, blocks, read - (blocks - 1) * _BLOCK),
        constants={
            "TAPS": taps,
            "GROUP_ROWS": rows,
            "GROUP_K": k,
            "FACTOR": factor,
            "IS_TURNED": is_turned,
            "BLOCK": _BLOCK,
        },
        options={"num_warps": 4},
    )
    return MergedFilter(
        shape=(rows * groups, k * factor, *problem.filter_size),
        flags=flags,
        looks=blocks > 0,
        merging=merging,
        repairing=None if is_integer else _repairing(case, flags, device),
    )


def _repairing(case: Case, flags: int, device: Device) -> Launcher:
    problem, sampling, spec = case.problem, Sampling.of(case), case.epilogue
    strides = case.strides_of_dy if sampling.is_flipped else case.strides_of_x
    block_m, block_n = _REPAIR_TILE
    tiles = math.ceil(sampling.pixels / block_m) * math.ceil(sampling.out_channels / block_n)
    steps = (sampling.in_size, sampling.out_size, sampling.step, sampling.up)
    _, r, s = _three(problem.filter_size, 1)
    return Launcher(
        kernel=repair_groups_kernel,
        grid=(min(tiles, 4 * device.num_sms), 1, 1),
        scalars=(
            flags,
            sampling.pixels,
            sampling.out_channels,
            tiles,
            *(_three(each, 1) for each in steps),
            _three(sampling.low, 0),
            _three(sampling.dilation, 1),
            (strides[0], *_three(strides[2:], 0)),
        ),
        constants={
            "FLAGS": 1 << (flags - 1).bit_length(),
            "R": r,
            "S": s,
            "TAPS": problem.taps,
            "GROUP_COLUMNS": sampling.out_channels // problem.groups,
            "GROUP_K": sampling.in_channels // problem.groups,
            "IS_TURNED": sampling.is_flipped,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "DTYPE": TRITON_DTYPES[case.output_dtype],
            "ACTIVATION": spec.activation,
            "RESIDUAL_PER_IMAGE": spec.residual_per_image,
        },
        options={"num_warps": 4},
    )


def _three(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    return (missing,) * (3 - len(values)) + values


@dataclass(frozen=True, slots=True)
class MergedPlan:
    """fprop, or a gradient of the input as fprop, over merged groups.

    Attributes:
        problem: The convolution, as it was asked for.
        inner: The plan of the merged groups.
        filter: How their filter is written.
    """

    problem: ConvProblem
    inner: Any
    filter: MergedFilter

    @property
    def config(self) -> Any:
        """That of the inner plan."""
        return self.inner.config

    @property
    def y_shape(self) -> tuple[int, ...]:
        """[N, Co, *output_size]."""
        return self.inner.y_shape

    @property
    def out_dtype(self) -> torch.dtype:
        """Of y."""
        return self.inner.out_dtype

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        return self.inner.launcher

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        operands: EpilogueOperands = NO_OPERANDS,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launches the kernels; as ``ForwardPlan.run``."""
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, weight, operands, out)
        inner = self.inner
        y: torch.Tensor = inner._output(x.device) if out is None else inner._check_output(out)
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        merged, flags = self.filter.merge(x, w_rows)
        if inner.epilogue.amax:
            assert flags is not None
            amax = flags.view(torch.float32)
            operands = replace(operands, amax=amax, is_amax_zeroed=True)
        # Both read the same copies of operands that are not packed.
        bias, scale, one_scale, described, residual, out_scale, _, _ = (
            ForwardPlan._epilogue_arguments(inner, operands)
        )
        arguments, variant = inner.arguments(x, merged, y, operands)
        inner.launcher.launch(arguments, variant)
        residual = described.base if described is not None else residual
        self.filter.repair(flags, x, w_rows, y, (bias, scale, one_scale, residual, out_scale))
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedDgradPlan(DgradRun):
    """A gradient of the input over merged groups, tap by tap.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        inner: The plan of the merged groups.
        filter: How their filter is written.
    """

    problem: ConvProblem
    dtype: torch.dtype
    inner: Any
    filter: MergedFilter

    @property
    def config(self) -> Any:
        """That of the inner plan."""
        return self.inner.config

    @property
    def launcher(self) -> Launcher:
        """That of the inner plan."""
        return self.inner.launcher

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return self.inner.stores_aligned

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        w_rows = weight.permute(TO_LAST[self.problem.dims]).contiguous()
        merged, flags = self.filter.merge(dy, w_rows)
        self.inner.launch(dy, merged, dx, bias)
        self.filter.repair(flags, dy, w_rows, dx, (bias, None, None, None, None))
