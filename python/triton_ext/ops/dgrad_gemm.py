"""dgrad as an implicit GEMM per stride phase: the plan of ``conv_dgrad.py``'s kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops import conv_dgrad
from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.conv_dgrad import DgradProblem, kernel_constants
from triton_ext.ops.core.descriptors import ROUNDS_TO_TF32, ROW_BYTES, Layout, packed_strides
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.dgrad_config import group_channels, problems_of
from triton_ext.ops.dgrad_run import DgradRun
from triton_ext.ops.kernels.row_copy import FilledChannels
from triton_ext.ops.residues import Residues, class_problems, three_dims

__all__ = [
    "DTYPES",
    "DgradPlan",
    "PaddedDgradPlan",
    "geometry_refusals",
    "is_packed",
    "make_plan",
    "padded_problem",
    "residues_of",
]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

# fp32 is multiplied as tf32.
DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}

_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(slots=True, kw_only=True)
class DgradPlan(DgradRun):
    """The gradient of the input of one geometry on one device.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        config: The tile configuration.
        dy_desc: im2col descriptor of dy [N, *output_size, Co], channels padded, without memory.
        launcher: The kernel with all that is fixed.
        missing_co: Zeros to add to dy's channels so that rows are multiples of 16 bytes.
        missing_ci: The same for the weight's channels.
        store_through_tma: Whether tiles of dx are boxes of rows of a multiple of 16 bytes.
    """

    problem: ConvProblem
    dtype: torch.dtype
    config: ConvConfig
    dy_desc: Im2ColDescriptor
    launcher: Launcher
    missing_co: int
    missing_ci: int
    store_through_tma: bool
    _fill: FilledChannels = field(init=False)

    def __post_init__(self) -> None:
        missing_of_w = self.missing_co if self.dtype == torch.float32 else self.missing_ci
        self._fill = FilledChannels(self.missing_co, missing_of_w)

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return self.store_through_tma

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        problem, config = self.problem, self.config
        dy_rows, w_rows = self._fill.fill(dy.permute(TO_LAST[problem.dims]), self._rows_of(weight))
        dx_desc = None
        if self.store_through_tma:
            rows, columns = dx.numel() // problem.in_channels, problem.in_channels
            dx_block = [config.block_m, config.block_n // config.store_parts]
            dx_desc = TensorDescriptor(dx, [rows, columns], [columns, 1], dx_block)
        tensors = (
            self.dy_desc.with_base(dy_rows),
            self._filter_descriptor(w_rows),
            dx_desc,
            None if self.store_through_tma else dx,
            bias,
        )
        variant = (
            self.store_through_tma or dx.data_ptr() % 16 == 0,
            None if bias is None else (bias.dtype, bias.data_ptr() % 16 == 0),
        )
        self.launcher.launch(tensors, variant)

    def _rows_of(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the filter [Ci / groups, *taps, Co] for fp32, [Co, *taps, Ci / groups] else."""
        if self.dtype == torch.float32:
            return weight.movedim(0, -1)
        return weight.permute(TO_LAST[self.problem.dims])

    def _filter_descriptor(self, rows: torch.Tensor) -> TensorDescriptor:
        """Returns the descriptor of the filter's rows, which are copied where they are apart."""
        config = self.config
        block = [config.block_k, 1, config.block_n]
        if self.dtype == torch.float32:
            block = [config.block_n, 1, config.block_k]
        rows = rows.contiguous()
        if rows.data_ptr() % ROW_BYTES:
            rows = rows.clone()
        taps, columns = self.problem.taps, rows.shape[-1]
        rounding = (
            {"round_f32_to_tf32": True} if ROUNDS_TO_TF32 and self.dtype == torch.float32 else {}
        )
        shape, strides = [rows.shape[0], taps, columns], [taps * columns, columns, 1]
        return TensorDescriptor(rows, shape, strides, block, **rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedDgradPlan:
    """A gradient of the input whose groups get zeros as further output channels.

    Attributes:
        problem: The convolution.
        padded: The plan with them.
    """

    problem: ConvProblem
    padded: DgradPlan

    @property
    def config(self) -> ConvConfig:
        """The tile configuration."""
        return self.padded.config

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of dy, weight and dx."""
        return self.padded.dtype

    @property
    def launcher(self) -> Launcher:
        """The launcher of the padded plan."""
        return self.padded.launcher

    def run(
        self,
        dy: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copies dy and the weight, and launches the kernel; as :meth:`DgradPlan.run`."""
        groups = self.problem.groups
        missing = (self.padded.problem.out_channels - self.problem.out_channels) // groups
        rows = dy.permute(TO_LAST[self.problem.dims]).unflatten(-1, (groups, -1))
        dy = _pad(rows, missing).flatten(-2).movedim(-1, 1)
        more = (0, 0) * (weight.dim() - 1) + (0, missing)
        by_group = weight.unflatten(0, (groups, -1))
        weight = torch.nn.functional.pad(by_group, more).flatten(0, 1)
        return self.padded.run(dy, weight, out, bias)


def residues_of(problem: ConvProblem) -> list[Residues]:
    """Returns the residue classes of each spatial dimension."""
    return [
        Residues(size=size, taps=taps, stride=stride, dilation=dilation, low=low)
        for size, taps, stride, dilation, (low, _) in zip(
            problem.input_size,
            problem.filter_size,
            problem.stride,
            problem.dilation,
            problem.padding,
            strict=True,
        )
    ]


def _corners(dims: Sequence[Residues], output_size: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (lower, upper) corner of the pixel box of dy per spatial dimension."""
    return [
        (dim.lower, dim.lower + dim.walk_size - out)
        for dim, out in zip(dims, output_size, strict=True)
    ]


def geometry_refusals(problem: ConvProblem) -> list[str]:
    """Returns what TMA cannot express, in the convolution's words."""
    names = ("filter size", "stride", "dilation", "input size")
    values = (problem.filter_size, problem.stride, problem.dilation, problem.input_size)
    found = [
        f"{name} {value}: must be at least 1"
        for name, value in zip(names, values, strict=True)
        if min(value) < 1
    ]
    found += [f"padding {pair}: must not be negative" for pair in problem.padding if min(pair) < 0]
    if found:
        return found
    letters, dims = _LETTERS[problem.dims], residues_of(problem)
    empty = [name for name, out in zip(letters, problem.output_size, strict=True) if out < 1]
    if empty:
        return [f"filter larger than the padded input in {name}: empty output" for name in empty]
    size, channels = problem.output_size, problem.in_channels
    return class_problems(dims, size, problem.batch, channels, problem.groups)


def is_packed(problem: ConvProblem, dtype: torch.dtype) -> bool:
    """Tells whether rows of a tile are neighbours in dx, of a multiple of 16 bytes."""
    packed = all(stride == 1 for stride in problem.stride)
    return packed and problem.in_channels * dtype.itemsize % ROW_BYTES == 0


def padded_problem(problem: ConvProblem) -> ConvProblem:
    """Returns the problem whose groups have as many output channels as a block needs."""
    if problem.groups == 1:
        return problem
    group_co = group_channels(problem.out_channels, problem.groups)
    return replace(problem, out_channels=problem.groups * group_co)


def make_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    config: ConvConfig,
) -> DgradPlan | PaddedDgradPlan:
    """Returns the plan of a gradient of the input.

    Args:
        problem: The convolution.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx.
        device: Where they are.
        config: The tile configuration.

    Raises:
        UnsupportedError: The kernel does not compute the problem so.
    """
    wrong = problems_of(config, problem.out_channels, problem.groups, dtype.itemsize)
    if wrong:
        raise UnsupportedError(f"conv_dgrad: configuration {config}: " + "; ".join(wrong))
    padded = padded_problem(problem)
    if padded == problem:
        return _gemm_plan(problem, dy_strides, dtype, device, config)
    pixels = (problem.batch, *problem.output_size, padded.out_channels)
    outer, *inner, innermost = packed_strides(pixels)
    strides = (outer, innermost, *inner)
    return PaddedDgradPlan(
        problem=problem, padded=_gemm_plan(padded, strides, dtype, device, config)
    )


def _gemm_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    config: ConvConfig,
) -> DgradPlan:
    groups = problem.groups
    ci, co = problem.in_channels // groups, problem.out_channels // groups
    unit = ROW_BYTES // dtype.itemsize
    missing_co = -problem.out_channels % unit
    padded_co = problem.out_channels + missing_co
    n, size = problem.batch, problem.output_size
    strides = (dy_strides[0], *dy_strides[2:], dy_strides[1])
    if missing_co:
        strides = packed_strides((n, *size, padded_co))
    dims = residues_of(problem)
    corners = _corners(dims, size)
    through_tma = is_packed(problem, dtype) and (groups == 1 or ci % config.block_n == 0)
    dy_desc = Im2ColDescriptor(
        Layout((n, *size, padded_co), strides, dtype),
        (n, *size, padded_co),
        strides,
        [config.block_m, config.block_k],
        pixel_box_lower_corner=[lower for lower, _ in corners],
        pixel_box_upper_corner=[upper for _, upper in corners],
        round_f32_to_tf32=dtype == torch.float32,
    )
    m_gemm = n * math.prod(dim.walk_size for dim in dims)
    padded = three_dims(dims)
    scalars = DgradProblem(
        m_gemm=m_gemm,
        channel_blocks=math.ceil(co / config.block_k),
        size=tuple(dim.size for dim in padded),
        walk_size=tuple(dim.walk_size for dim in padded),
        padding=tuple(dim.low for dim in padded),
        dilation=tuple(dim.dilation for dim in padded),
        lower=tuple(dim.lower for dim in padded),
    )
    tiles = triton.cdiv(m_gemm, config.block_m) * triton.cdiv(ci, config.block_n)
    tiles *= groups * math.prod(problem.stride)
    return DgradPlan(
        problem=problem,
        dtype=dtype,
        config=config,
        dy_desc=dy_desc,
        launcher=Launcher(
            kernel=conv_dgrad.conv_dgrad_kernel,
            grid=(min(tiles, device.num_sms), 1, 1),
            scalars=(ci, scalars),
            constants=kernel_constants(config, dims, ci, groups, DTYPES[dtype]),
            options={"num_stages": config.num_stages, "num_warps": config.num_warps},
        ),
        missing_co=missing_co,
        missing_ci=-ci % unit,
        store_through_tma=through_tma,
    )


def _pad(rows: torch.Tensor, missing: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows
