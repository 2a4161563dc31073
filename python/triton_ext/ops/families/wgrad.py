"""wgrad as an implicit GEMM through im2col loads, ``@triton.jit``: the family and its plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import (
    ROW_BYTES,
    Layout,
    aligned_copy,
    packed_strides,
    row_stride_of,
)
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.packing import filling_us
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refuse, smem_refusals
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.wgrad_config import (
    WgradChoice,
    WgradTiles,
    expected_us,
    ranked_tiles,
    reduction,
    stores_through_tma,
)
from triton_ext.ops.kernels.gemm_wgrad import conv_wgrad_kernel, wgrad_reduce_kernel
from triton_ext.ops.kernels.row_copy import RowCopies

__all__ = [
    "DTYPES",
    "OUT_DTYPES",
    "WGRAD",
    "FilterGradientPlan",
    "Launches",
    "Operand",
    "PackedWgradPlan",
    "WgradPlan",
    "filling_dy_us",
]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

# WGMMA reads operands whose rows are the reduction for 16-bit types only.
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
OUT_DTYPES = {**DTYPES, torch.float32: tl.float32}

#: Launchers with their tensors, in the order of the launches.
Launches = list[tuple[Launcher, tuple[Any, ...]]]
#: Makes the descriptor of a tensor.
Describe = Callable[[torch.Tensor], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel reads x or dy.

    Attributes:
        channels: Channels of a pixel as it is read.
        missing_channels: How many of them are zeros that a copy adds, so that rows are multiples of
            16 bytes.
        is_copied: Whether the tensor is copied to a dense one.
        pixel_stride: Elements from one pixel to the next; 0 where there is no one such number.
    """

    channels: int
    missing_channels: int = 0
    is_copied: bool = False
    pixel_stride: int = 0

    @classmethod
    def make(
        cls, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, as_matrix: bool
    ) -> Operand:
        """Returns how a tensor [N, C, *spatial] is read, in place or as [pixels, channels]."""
        unit = ROW_BYTES // itemsize
        missing = -shape[1] % unit
        channels = shape[1] + missing
        sizes = (*shape[:1:-1], shape[0])
        stride = row_stride_of(sizes, (*strides[:1:-1], strides[0])) or 0
        if math.prod(sizes) == 1:
            stride = channels
        if missing or stride % unit or stride < channels or (strides[1] != 1 and channels > 1):
            stride = 0
        copied = missing > 0 or (as_matrix and not stride)
        return cls(
            channels=channels,
            missing_channels=missing,
            is_copied=copied,
            pixel_stride=channels if copied else stride,
        )

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernel reads it."""
        rows = tensor.movedim(1, -1)
        if self.missing_channels:
            return torch.nn.functional.pad(rows, (0, self.missing_channels)).contiguous()
        return rows.contiguous() if self.is_copied else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterGradientPlan:
    """A gradient of a filter, of one geometry on one device; holds no tensor.

    Attributes:
        problem: The convolution.
        out_dtype: The dtype of dw.
    """

    problem: ConvProblem
    out_dtype: torch.dtype

    def run(
        self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Launches the kernels.

        Args:
            x: [N, Ci, *input_size], of the layout that the plan was made for.
            dy: [N, Co, *output_size], of the layout that the plan was made for.
            out: Where dw goes, of ``out_dtype``; written in place where it is dense and
                channels-last, else copied into.

        Returns:
            dw [Co, Ci / groups, *filter_size], channels-last; ``out`` if given.

        Raises:
            ValueError: ``out`` has another shape or dtype.
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, dy, out)
        shape = self.problem.w_shape
        if out is not None and (tuple(out.shape) != shape or out.dtype != self.out_dtype):
            raise ValueError(
                f"out: expected {list(shape)} of {self.out_dtype}, got {list(out.shape)} of "
                f"{out.dtype}"
            )
        dw = self._rows(x, dy, out).movedim(-1, 1)
        if out is None:
            return dw
        return out if dw.data_ptr() == out.data_ptr() else out.copy_(dw)

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Returns dw [Co, *filter_size, Ci / groups], in ``out`` if possible, dense without it."""
        raise NotImplementedError

    def _memory(self, device: torch.device, out: torch.Tensor | None) -> torch.Tensor:
        """Returns dense memory [Co, *filter_size, Ci / groups] for dw, that of ``out`` if it is."""
        if out is not None:
            rows = out.movedim(1, -1)
            if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
                return rows
        co, ci, *taps = self.problem.w_shape
        return torch.empty((co, *taps, ci), device=device, dtype=self.out_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradPlan(FilterGradientPlan):
    """A plan of the @triton.jit kernels; that of the Gluon kernels has the same fields.

    Attributes:
        tiles: The tile configuration and the tile schedule.
        x_operand: How x is read.
        dy_operand: How dy is read.
        describe_x: Makes the descriptor of x [N, *input_size, Ci].
        describe_dy: Makes that of dy [N, *output_size, Co], which is [pixels, Co].
        describe_dw: Makes that of dw [Co, taps, Ci]; ``None`` where dw is stored through a pointer.
        workspace_elements: fp32 elements of the workspace for parts.
        launcher: Launches the first kernel.
        reducer: Launches the reduction kernel; ``None`` where there is nothing to add.
    """

    tiles: Any
    x_operand: Operand
    dy_operand: Operand
    describe_x: Describe
    describe_dy: Describe
    describe_dw: Describe | None
    workspace_elements: int
    launcher: Launcher
    reducer: Launcher | None

    @property
    def config(self) -> Any:
        """The tile configuration."""
        return self.tiles.config

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        dw = self._memory(x.device, out)
        if self.problem.batch == 0:
            return dw.zero_()
        for launcher, tensors in self.launches(x, dy, dw):
            launcher.launch(tensors)
        return dw

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> Launches:
        """Returns the launches of a call; dw [Co, *filter_size, Ci / groups] is dense."""
        x_desc, dy_desc = self.described(x, dy)
        dw_desc = None if self.describe_dw is None else self.describe_dw(dw)
        pointer = dw if dw_desc is None else None
        if self.reducer is None:
            return [(self.launcher, (x_desc, dy_desc, dw_desc, pointer, None))]
        parts = torch.empty(self.workspace_elements, device=x.device, dtype=torch.float32)
        first = (self.launcher, (x_desc, dy_desc, dw_desc, pointer, parts))
        return [first, (self.reducer, (parts, dw))]

    def described(self, x: torch.Tensor, dy: torch.Tensor) -> tuple[Any, Any]:
        """Returns the descriptors of x and dy, of copies where the kernel reads copies."""
        dy = self.dy_operand.rows(dy)
        if dy.data_ptr() % ROW_BYTES:
            # The plan was made for these strides: there may be gaps between pixels.
            dy = aligned_copy(dy)
        return self.describe_x(self.x_operand.rows(x)), self.describe_dy(dy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWgradPlan(FilterGradientPlan):
    """A gradient of a filter by partial im2col.

    Attributes:
        packed: The plan of the packed filter's gradient [Co, S * C', ([T, ]R, )1]; with planes,
            [Co, S * C', 1, R, 1].
        copies: How x is packed.
    """

    packed: WgradPlan
    copies: RowCopies

    @property
    def tiles(self) -> WgradTiles:
        """The tile configuration and the tile schedule of the packed plan."""
        return self.packed.tiles

    @property
    def config(self) -> Any:
        """The tile configuration of the packed plan."""
        return self.packed.config

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        packing = self.copies.packing
        packed = self.packed.run(self.copies.pack(x, None)[0].movedim(-1, 1), dy)
        windows = packed.movedim(1, -1).squeeze(-2)[..., : packing.window_channels]
        if packing.planes:
            windows = windows.squeeze(1)
        by_tap = windows.unflatten(-1, (-1, packing.channels))
        ci = self.problem.in_channels
        if packing.columns:
            # [Co, ([T, ])1, S, C'], and C' holds R taps of a column.
            rows = self.problem.filter_size[-2]
            column = by_tap[..., : rows * ci].unflatten(-1, (rows, ci))
            by_tap = column.squeeze(-4).transpose(-2, -3)
        dw = by_tap[..., :ci]
        return dw.contiguous() if out is None else dw


class Wgrad(Family[WgradChoice]):
    """The kernels of ``kernels/gemm_wgrad.py``; a packing gives dw of the packed filter."""

    kind = "wgrad"
    direction = "wgrad"
    config_type = WgradChoice
    is_gemm = True
    tile_fields = ("block_co", "block_ci", "taps")
    reads_packed = True

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        if case.dtype in DTYPES:
            return tap_refusals(case)
        return (
            *tap_refusals(case),
            Refusal(
                f"dtype {case.dtype}: expected float16 or bfloat16, WGMMA transposes 16-bit "
                "operands only"
            ),
        )

    def number_refusals(
        self, config: WgradChoice, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        # The schedule decides whether tiles are stored as a whole, which takes more.
        return config.config.refusals() or smem_refusals(config.config.smem_bytes(), device)

    def candidates(self, case: Case, device: Device) -> Mapping[WgradChoice, Expected]:
        ranked = ranked_tiles(_computed(case), device, case.output_dtype.itemsize)
        if case.packing is None:
            pixels = case.problem.batch * math.prod(case.problem.input_size)
            copies_us = filling_us(pixels, case.problem.in_channels, case.dtype.itemsize)
            copies_us += filling_dy_us(case)
        else:
            # Windows overlap: x comes from DRAM once.  The order is that of the model without it,
            # which has the fastest of the stems first (H200, 2026-11-22; the shipped table).
            packing, copies_us = case.packing, case.packing.copy_us
            elements = math.prod(packing.problem.y_shape) + math.prod(packing.memory_shape)
            mib = elements * packing.element_bytes / 2**20
            ranked = tuple((choice, replace(tiles, operand_mib=mib)) for choice, tiles in ranked)
        return {choice: Expected.of(expected_us(tiles), copies_us) for choice, tiles in ranked}

    def bind(self, config: WgradChoice, case: Case, device: Device) -> FilterGradientPlan:
        refuse(f"wgrad: configuration {config.config}", config.config.refusals())
        plan = _kernel_plan(config, case, device)
        if case.packing is None:
            return plan
        return PackedWgradPlan(
            problem=case.problem,
            out_dtype=plan.out_dtype,
            packed=plan,
            copies=RowCopies(case.packing, case.strides_of_x),
        )


def _computed(case: Case) -> ConvProblem:
    """Returns the problem of the kernel; an empty batch has the tiles of one image."""
    problem = case.problem if case.packing is None else case.packing.padded
    return replace(problem, batch=max(problem.batch, 1))


def filling_dy_us(case: Case) -> float:
    """Returns the time of the copy that adds missing channels to dy."""
    problem = case.problem
    pixels = problem.batch * math.prod(problem.output_size)
    return filling_us(pixels, problem.out_channels, case.dtype.itemsize)


def _kernel_plan(choice: WgradChoice, case: Case, device: Device) -> WgradPlan:
    """Returns the plan of the kernels, over packed pixels where the case has a packing."""
    config, packing, size = choice.config, case.packing, case.dtype.itemsize
    tiles = WgradTiles.make(config, _computed(case), device.num_sms, choice.part_rounds)
    dy = Operand.make(case.problem.y_shape, case.strides_of_dy, size, as_matrix=True)
    if packing is None:
        problem, strides = case.problem, case.strides_of_x
        x = Operand.make(problem.x_shape, strides, size, as_matrix=False)
        x_strides = (strides[0], *strides[2:], strides[1])
    else:
        problem, x_strides = packing.padded, packing.strides
        x = Operand(channels=packing.window_channels)
    pixels = problem.batch * math.prod(problem.output_size)
    is_matrix = problem.is_pointwise and x.pixel_stride > 0
    block = [config.block_pixels, config.block_ci]
    describe_x = _matrix(pixels, x, block)
    if pixels and not is_matrix:
        shape = (problem.batch, *problem.input_size, x.channels)
        describe_x = Im2ColDescriptor.for_conv(
            Layout(shape, packed_strides(shape) if x.is_copied else x_strides, case.dtype),
            problem.filter_size,
            stride=problem.stride,
            padding=problem.padding,
            dilation=problem.dilation,
            block_shape=block,
        ).with_base
    describe_dw = None
    if stores_through_tma(problem, case.output_dtype.itemsize):
        taps, row = problem.taps, problem.in_channels
        describe_dw = partial(
            TensorDescriptor,
            shape=[problem.out_channels, taps, row],
            strides=[taps * row, row, 1],
            block_shape=[config.block_co, 1, config.block_ci // config.store_parts],
        )
    launcher, reducer = _launchers(problem, tiles, case, is_matrix)
    return WgradPlan(
        problem=problem,
        out_dtype=case.output_dtype,
        tiles=tiles,
        x_operand=x,
        dy_operand=dy,
        describe_x=describe_x,
        describe_dy=_matrix(pixels, dy, [config.block_pixels, config.block_co]),
        describe_dw=describe_dw,
        workspace_elements=tiles.workspace_elements,
        launcher=launcher,
        reducer=reducer,
    )


def _matrix(pixels: int, operand: Operand, block: list[int]) -> Describe:
    shape, strides = [pixels, operand.channels], [operand.pixel_stride, 1]
    return partial(TensorDescriptor, shape=shape, strides=strides, block_shape=block)


def _launchers(
    problem: ConvProblem, tiles: WgradTiles, case: Case, is_matrix: bool
) -> tuple[Launcher, Launcher | None]:
    """Returns the launchers of both kernels; no second one where there is nothing to add."""
    config, partition = tiles.config, tiles.partition
    co, groups = problem.out_channels, problem.groups
    channels = (co, co // groups, problem.in_channels // groups, tiles.co_blocks)
    whole_tiles = partition.tiles - partition.split_tiles
    split = (whole_tiles, partition.split_tiles, partition.splits)
    taps = {"TAPS": problem.taps, "GROUPED": groups > 1}
    dtype = OUT_DTYPES[case.output_dtype]
    first = Launcher(
        kernel=conv_wgrad_kernel,
        grid=(partition.programs, 1, 1),
        scalars=(
            *channels,
            partition.steps,
            *split,
            problem.output_size,
            problem.stride,
            tuple(low for low, _ in problem.padding),
            problem.dilation,
        ),
        constants={
            "FILTER": problem.filter_size,
            **taps,
            "IS_MATRIX": is_matrix,
            "HAS_WHOLE": whole_tiles > 0,
            "HAS_PARTS": partition.parts > 0,
            "BLOCK_CO": config.block_co,
            "BLOCK_CI": config.block_ci,
            "BLOCK_PIXELS": config.block_pixels,
            "TAPS_PER_TILE": config.taps,
            "NUM_WARPS": config.num_warps,
            "STORE_PARTS": config.store_parts,
            "DTYPE": dtype,
            # Triton's interpreter multiplies the bits of bf16 operands as integers (3.6 to 3.9).
            "DOT_DTYPE": tl.float32 if IS_INTERPRETED else DTYPES[case.dtype],
        },
        options={"num_stages": config.num_stages, "num_warps": config.num_warps},
    )
    if not partition.parts:
        return first, None
    columns, unroll, num_warps = reduction(tiles)
    second = Launcher(
        kernel=wgrad_reduce_kernel,
        grid=(
            config.block_co // 16 * (config.block_ci // columns),
            config.taps,
            partition.split_tiles,
        ),
        scalars=(*channels, *split),
        constants={
            **taps,
            "BLOCK_CO": config.block_co,
            "BLOCK_CI": config.block_ci,
            "TAPS_PER_TILE": config.taps,
            "NUM_WARPS": config.num_warps,
            "COLUMNS": columns,
            "UNROLL": unroll,
            "WAITS": not IS_INTERPRETED,
            "DTYPE": dtype,
        },
        # It starts while the first kernel's last programs run, and waits for them.
        options={"num_warps": num_warps, **({} if IS_INTERPRETED else {"launch_pdl": True})},
    )
    return first, second


WGRAD: Wgrad = Wgrad()
