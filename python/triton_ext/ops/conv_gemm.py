"""The plan of the forward implicit GEMM: what is walked over, descriptors, the launch.

The kernel is that of ``conv_fprop.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.conv_config import ConvConfig, channel_block
from triton_ext.ops.conv_fprop import TRITON_DTYPES, conv_fprop_kernel, kernel_constants
from triton_ext.ops.core.descriptors import (
    ROUNDS_TO_TF32,
    ROW_BYTES,
    Layout,
    matrix_row_stride,
    packed_strides,
)
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, ForwardPlan, three
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.kernels.row_copy import FilledChannels, RowCopies
from triton_ext.ops.rewrites.packing import RowPacking

__all__ = ["ConvPlan", "Walked", "gemm_plan"]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")


@dataclass(slots=True, kw_only=True)
class ConvPlan(ForwardPlan):
    """A plan of the implicit GEMM.

    Attributes:
        config: The tile configuration.
        x_desc: im2col descriptor of x [N, *input_size, Ci], channels padded, without memory.
        x_row_stride: Distance of two pixels in elements where x is read as a matrix, else None.
        missing_channels: Zeros to add to the channels of each group, of x and of the weight.
            TMA wants rows of multiples of 16 bytes, and an im2col copy that begins at a channel
            between two such multiples is an illegal instruction (measured on an H200).
        row_copies: Packs rows of the filter, where x_desc describes packed pixels; else None.
    """

    config: ConvConfig
    x_desc: Im2ColDescriptor
    x_row_stride: int | None
    missing_channels: int
    row_copies: RowCopies | None = None

    # shape, strides and block of the descriptors of w and of x as a matrix: lists that nobody
    # changes, made once because making them takes as long as a descriptor.
    _w_layout: tuple[list[int], list[int], list[int]] = field(init=False)
    _x_layout: tuple[list[int], list[int], list[int]] | None = field(init=False)
    _options: dict[str, bool] = field(init=False)
    _fill: FilledChannels = field(init=False)

    def __post_init__(self) -> None:
        ForwardPlan.__post_init__(self)
        problem, config = self.problem, self.config
        co, taps = problem.out_channels, problem.taps
        ci = problem.in_channels // problem.groups + self.missing_channels
        if self.row_copies is not None:
            _, *rows, ci = self.row_copies.packing.weight_shape
            taps = math.prod(rows)
        block = [config.block_n, 1, config.block_k]
        self._w_layout = ([co, taps, ci], [taps * ci, ci, 1], block)
        self._fill = FilledChannels(self.missing_channels, self.missing_channels)
        self._x_layout = None
        if self.x_row_stride is not None:
            shape = [problem.geometry.m_gemm, self.x_desc.input_shape[-1]]
            self._x_layout = (shape, [self.x_row_stride, 1], [config.block_m, config.block_k])
        # fp32 is rounded to tf32 where Triton can (from 3.7 on); tensor cores cut off what tf32
        # has not, which is an error of twice the size, in one direction.
        rounds = self.x_desc.round_f32_to_tf32 and ROUNDS_TO_TF32
        self._options = {"round_f32_to_tf32": True} if rounds else {}

    def _inputs(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[tuple[Any, Any], None]:
        if self.row_copies is not None:
            return self._described(*self.row_copies.both(x, weight)), None
        to_last = TO_LAST[self.problem.dims]
        x_rows, w_rows = x.permute(to_last), weight.permute(to_last)
        if self.missing_channels:
            x_rows, w_rows = self._filled(x_rows, w_rows)
        w_rows = w_rows.contiguous()
        if w_rows.data_ptr() % ROW_BYTES:
            w_rows = w_rows.clone()
        return self._described(x_rows, w_rows), None

    def _filled(
        self, x_rows: torch.Tensor, w_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns x and the weight with the missing channels."""
        if self.problem.groups == 1:
            x_rows, w_rows = self._fill.fill(x_rows, w_rows)
            return x_rows, w_rows
        # Groups are further pixels of a row, where pixels lie side by side.
        *pixels, channels = x_rows.shape
        if x_rows.stride(-2) != channels or x_rows.stride(-1) != 1:
            x_rows = x_rows.contiguous()
        groups = self.problem.groups
        rows = x_rows.unflatten(-1, (groups, -1)).flatten(-3, -2)
        rows, w_rows = self._fill.fill(rows, w_rows)
        return rows.view(*pixels, -1), w_rows

    def _described(self, x_rows: torch.Tensor, w_rows: torch.Tensor) -> tuple[Any, Any]:
        """Returns the descriptors of x and of the weight, channels-last."""
        # Also where it is not used: it checks the address.
        x_desc = self.x_desc.with_base(x_rows)
        if self._x_layout is not None:
            x_desc = TensorDescriptor(x_rows, *self._x_layout, **self._options)
        return x_desc, TensorDescriptor(w_rows, *self._w_layout, **self._options)

    def _tile_shape(self) -> list[int]:
        return [self.config.block_m, self.config.block_n // self.config.store_parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What the implicit GEMM walks over, which is not always x as it was given.

    Attributes:
        problem: What the kernel computes; its output is that of the problem asked for.
        group_ci: Input channels of a group, as they lie in memory.
        missing: Zeros among them.
        shape: Of x, channels last.
        strides: Of that, in elements.
        block_k: Channels of a step.
        copies: How x and the weight are packed, if they are.
    """

    problem: ConvProblem
    group_ci: int
    missing: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_k: int
    copies: RowCopies | None = None

    @classmethod
    def make(
        cls,
        problem: ConvProblem,
        x_strides: tuple[int, ...],
        dtype: torch.dtype,
        packing: RowPacking | None,
    ) -> Walked:
        """Looks at x.

        Args:
            problem: What is computed.
            x_strides: Of x [N, Ci, *input_size], in elements.
            dtype: Of x and weight.
            packing: How rows of the filter become channels; ``None`` where they do not.
        """
        if packing is not None:
            return cls(
                problem=packing.packed,
                group_ci=packing.window_channels,
                missing=0,
                shape=packing.x_shape,
                strides=packing.strides,
                block_k=packing.block_k,
                copies=RowCopies(packing, x_strides),
            )
        group_ci = problem.in_channels // problem.groups
        missing = -group_ci % (ROW_BYTES // dtype.itemsize)
        group_ci += missing
        shape = (problem.batch, *problem.input_size, problem.groups * group_ci)
        strides = tuple(x_strides[i] for i in TO_LAST[problem.dims])
        return cls(
            problem=problem,
            group_ci=group_ci,
            missing=missing,
            shape=shape,
            strides=packed_strides(shape) if missing else strides,
            block_k=channel_block(group_ci, dtype.itemsize, problem.groups),
        )


def gemm_plan(
    asked: ConvProblem,
    walked: Walked,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    epilogue: EpilogueSpec,
    config: ConvConfig,
    through_tma: bool,
) -> ConvPlan:
    """Returns the plan of an implicit GEMM.

    Args:
        asked: The convolution, as it was asked for.
        walked: What is walked over.
        dtype: Of x and weight.
        out_dtype: Of y.
        device: The device.
        epilogue: What is done to the output before it is stored.
        config: The tile configuration.
        through_tma: Whether y is stored by TMA, otherwise through a pointer.

    Raises:
        DescriptorError: TMA cannot describe x.
    """
    problem, conv = walked.problem, walked.problem.geometry
    x_desc = Im2ColDescriptor.for_conv(
        Layout(walked.shape, walked.strides, dtype),
        conv.filter_size,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        block_shape=[config.block_m, config.block_k],
        round_f32_to_tf32=dtype == torch.float32,
    )
    row_stride = matrix_row_stride(x_desc)
    group_co = problem.out_channels // problem.groups
    tiles = math.ceil(conv.m_gemm / config.block_m) * math.ceil(group_co / config.block_n)
    return ConvPlan(
        problem=asked,
        config=config,
        epilogue=epilogue,
        x_desc=x_desc,
        x_row_stride=row_stride,
        y_shape=asked.y_shape,
        out_dtype=out_dtype,
        missing_channels=walked.missing,
        row_copies=walked.copies,
        store_through_tma=through_tma,
        launcher=Launcher(
            kernel=conv_fprop_kernel,
            grid=(min(tiles * problem.groups, device.num_sms), 1, 1),
            scalars=(
                conv.m_gemm,
                problem.out_channels,
                *three(conv.output_size),
                *three(conv.stride),
                *three([low for low, _ in conv.padding]),
                *three(conv.dilation),
            ),
            constants=kernel_constants(
                config,
                conv.filter_size,
                walked.group_ci,
                TRITON_DTYPES[dtype],
                epilogue,
                groups=problem.groups,
                x_is_matrix=row_stride is not None,
            ),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
    )
