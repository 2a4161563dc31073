"""fprop as an implicit GEMM through im2col loads: the kernel of ``kernels/gemm_fprop.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    Layout,
    aligned_rows,
    matrix_row_stride,
    packed_strides,
    rounding,
)
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, TRITON_DTYPES, ForwardPlan, three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refuse, refused, smem_refusals
from triton_ext.ops.families.gemm_config import (
    ConvConfig,
    OutputTile,
    channel_block,
    expected_times,
)
from triton_ext.ops.kernels.gemm_fprop import conv_fprop_kernel, kernel_constants
from triton_ext.ops.kernels.row_copy import FilledChannels, RowCopies

__all__ = ["GEMM", "gemm_refusals", "tap_refusals"]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")

# Shape, strides and block of a descriptor: lists that nobody changes, made once because making them
# takes as long as a descriptor.
_Tiled = tuple[list[int], list[int], list[int]]


def tap_refusals(case: Case) -> tuple[Refusal, ...]:
    """Returns why im2col does not walk x tap by tap; nothing where it does, or rows are packed."""
    if case.packing is not None or not conv_violations(case.problem.geometry):
        return ()
    return refused("im2col cannot walk x tap by tap: expected a configuration of packed rows")


def gemm_refusals(config: ConvConfig, element_bytes: int, device: Device) -> tuple[Refusal, ...]:
    """Returns why the kernels cannot be compiled so, with y in parts and of x's element size."""
    wrong = config.refusals(element_bytes)
    return wrong or smem_refusals(config.smem_bytes(element_bytes), device)


class Gemm(Family[ConvConfig]):
    """fprop."""

    kind = "gemm"
    direction = "fprop"
    config_type = ConvConfig
    is_gemm = True
    tile_fields = ("block_m", "block_n")
    reads_packed = True

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        return tap_refusals(case)

    def number_refusals(
        self, config: ConvConfig, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        return gemm_refusals(config, case.dtype.itemsize, device)

    def candidates(self, case: Case, device: Device) -> Mapping[ConvConfig, Expected]:
        walked = _Walked.of(case)
        problem, size = walked.problem, case.dtype.itemsize
        # Steps that end where the group does, or few long ones whose last one is masked.
        steps = {walked.block_k}
        if problem.groups > 1:
            steps.add(channel_block(walked.group_ci, size, 1))
        times = {
            config: us
            for block_k in sorted(steps)
            for config, us in expected_times(
                problem.geometry.m_gemm,
                problem.out_channels // problem.groups,
                walked.group_ci,
                problem.taps,
                device.num_sms,
                element_bytes=size,
                groups=problem.groups,
                block_k=block_k,
                output=_output_tile(case, device, _stores_through_tma(case, 16)),
                crossing=_output_tile(case, device, False),
                available_bytes=device.smem_bytes,
            ).items()
        }
        copies_us = case.packing.copy_us if case.packing is not None else 0.0
        if walked.missing:
            copies_us = H200.launch_us
        return ranked({config: Expected.of(us, copies_us) for config, us in times.items()})

    def bind(self, config: ConvConfig, case: Case, device: Device) -> ForwardPlan:
        wrong = config.refusals(case.dtype.itemsize)
        refuse(f"{case.operator}: configuration {config}", wrong)
        walked = _Walked.of(case)
        problem, conv = walked.problem, walked.problem.geometry
        x_block = [config.block_m, config.block_k]
        x_desc = Im2ColDescriptor.for_conv(
            Layout(walked.shape, walked.strides, case.dtype),
            conv.filter_size,
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            block_shape=x_block,
            round_f32_to_tf32=case.dtype == torch.float32,
        )
        row_stride = matrix_row_stride(x_desc)
        co, groups, taps = problem.out_channels, problem.groups, problem.taps
        ci = walked.group_ci
        if case.packing is not None:
            _, *rows, ci = case.packing.weight_shape
            taps = math.prod(rows)
        tiles = math.ceil(conv.m_gemm / config.block_m) * math.ceil(co // groups / config.block_n)
        x_tiles = None
        if row_stride is not None:
            x_tiles = ([conv.m_gemm, walked.shape[-1]], [row_stride, 1], x_block)
        operands = _Operands(
            problem=case.problem,
            x_desc=x_desc,
            x_tiles=x_tiles,
            w_tiles=([co, taps, ci], [taps * ci, ci, 1], [config.block_n, 1, config.block_k]),
            rounding=rounding(case.dtype),
            fill=FilledChannels(walked.missing, walked.missing) if walked.missing else None,
            is_packed=case.packing is not None,
        )
        # TMA does not stop at the end of a group: its tiles have to.
        through_tma = _stores_through_tma(case, config.block_n)
        return ForwardPlan.make(
            case,
            config,
            operands,
            Launcher(
                kernel=conv_fprop_kernel,
                grid=(min(tiles * groups, device.num_sms), 1, 1),
                scalars=(
                    conv.m_gemm,
                    co,
                    *three(conv.output_size),
                    *three(conv.stride),
                    *three([low for low, _ in conv.padding]),
                    *three(conv.dilation),
                ),
                constants=kernel_constants(
                    config,
                    conv.filter_size,
                    walked.group_ci,
                    TRITON_DTYPES[case.dtype],
                    case.epilogue,
                    groups=groups,
                    x_is_matrix=row_stride is not None,
                ),
                options={"num_stages": config.num_stages, "num_warps": config.num_warps},
            ),
            y_block=config.store_block if through_tma else None,
            row_copies=None if case.packing is None else RowCopies(case.packing, case.strides_of_x),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """Descriptors of x and w, without memory."""

    problem: ConvProblem
    x_desc: Im2ColDescriptor  # im2col descriptor of x [N, *input_size, Ci], channels padded
    x_tiles: _Tiled | None  # of the descriptor of x as a matrix; None where it is not read so
    w_tiles: _Tiled  # of the descriptor of w [Co, taps, Ci / groups]
    rounding: dict[str, bool]  # options of both tiled descriptors
    # Adds zeros to the channels of each group, of x and of the weight; None where TMA takes
    # them.  It wants rows of multiples of 16 bytes, and an im2col copy that begins at a channel
    # between two such multiples is an illegal instruction (measured on an H200).
    fill: FilledChannels | None
    is_packed: bool  # whether both are packed, channels-last rows already

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, Any]:
        """Returns the kernel's x and w."""
        if not self.is_packed:
            to_last = TO_LAST[self.problem.dims]
            x, weight = x.permute(to_last), weight.permute(to_last)
            if self.fill is not None:
                x, weight = self._filled(self.fill, x, weight)
            weight = aligned_rows(weight)
        # Also where it is not used: it checks the address.
        x_desc = self.x_desc.with_base(x)
        if self.x_tiles is not None:
            x_desc = TensorDescriptor(x, *self.x_tiles, **self.rounding)
        return x_desc, TensorDescriptor(weight, *self.w_tiles, **self.rounding)

    def _filled(
        self, fill: FilledChannels, x_rows: torch.Tensor, w_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        groups = self.problem.groups
        if groups == 1:
            x_rows, w_rows = fill.fill(x_rows, w_rows)
            return x_rows, w_rows
        # Groups are further pixels of a row, where pixels lie side by side.
        *pixels, channels = x_rows.shape
        if x_rows.stride(-2) != channels or x_rows.stride(-1) != 1:
            x_rows = x_rows.contiguous()
        rows = x_rows.unflatten(-1, (groups, -1)).flatten(-3, -2)
        rows, w_rows = fill.fill(rows, w_rows)
        return rows.view(*pixels, -1), w_rows


class _Walked(NamedTuple):
    """The convolution that the kernel computes: x with more channels, or with packed pixels."""

    problem: ConvProblem  # its output is that of the problem asked for
    group_ci: int  # input channels of a group, as they lie in memory
    missing: int  # zeros among them
    shape: tuple[int, ...]  # of x, channels last
    strides: tuple[int, ...]
    block_k: int

    @classmethod
    def of(cls, case: Case) -> _Walked:
        if (packing := case.packing) is not None:
            channels, block_k = packing.window_channels, packing.block_k
            return cls(packing.packed, channels, 0, packing.x_shape, packing.strides, block_k)
        problem, size = case.problem, case.dtype.itemsize
        group_ci = problem.in_channels // problem.groups
        missing = -group_ci % (ROW_BYTES // size)
        group_ci += missing
        shape = (problem.batch, *problem.input_size, problem.groups * group_ci)
        strides = tuple(case.strides_of_x[i] for i in TO_LAST[problem.dims])
        block_k = channel_block(group_ci, size, problem.groups)
        strides = packed_strides(shape) if missing else strides
        return cls(problem, group_ci, missing, shape, strides, block_k)


def _stores_through_tma(case: Case, column_unit: int) -> bool:
    """Whether tiles of y are boxes of TMA: of rows of 16 bytes, inside of their group."""
    co, groups = case.problem.out_channels, case.problem.groups
    if co * case.output_dtype.itemsize % ROW_BYTES:
        return False
    return groups == 1 or co // groups % column_unit == 0


def _output_tile(case: Case, device: Device, through_tma: bool) -> OutputTile:
    """Returns the shared memory that the end of a tile needs, measured at compiled kernels."""
    epilogue, size = case.epilogue, case.output_dtype.itemsize
    if not through_tma:
        # Where pointers are more than one, accumulators take their order in fp32.
        more = epilogue.residual or epilogue.amax or epilogue.function is not None
        return OutputTile(element_bytes=4 if more else size, through_pointers=True, whole=True)
    residual_bytes = max(size, 2) if epilogue.residual else 0
    if epilogue.residual_per_image:
        # It comes through pointers, and meets the accumulators in the order of either, in fp32.
        residual_bytes = 4
    whole = device.capability >= (10, 0)
    return OutputTile(element_bytes=size, residual_bytes=residual_bytes, whole=whole)


GEMM: Gemm = Gemm()
