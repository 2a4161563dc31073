"""Plans of the @triton.jit kernels of wgrad: their launches, and those of packed rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.ops.conv_wgrad import (
    conv_wgrad_kernel,
    kernel_constants,
    reduce_constants,
    wgrad_reduce_kernel,
)
from triton_ext.ops.core.descriptors import ROW_BYTES, Layout, packed_strides
from triton_ext.ops.core.device import IS_INTERPRETED, Device
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.kernels.row_copy import RowCopies
from triton_ext.ops.rewrites.packing import RowPacking
from triton_ext.ops.wgrad_config import (
    Reduction,
    Store,
    WgradChoice,
    WgradConfig,
    WgradTiles,
    rank_tiles,
)
from triton_ext.ops.wgrad_launch import (
    FilterGradientPlan,
    Launches,
    Operand,
    check_out,
)

__all__ = [
    "DTYPES",
    "OUT_DTYPES",
    "PackedWgradPlan",
    "PackingPlan",
    "WgradPlan",
    "make_plan",
    "ranked_tiles",
]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")

# WGMMA reads operands whose rows are the reduction for 16-bit types only.
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
OUT_DTYPES = {**DTYPES, torch.float32: tl.float32}


# The planner asks for several families, and of several ways to pack rows.
@lru_cache(maxsize=256)
def ranked_tiles(
    problem: ConvProblem, out_dtype: torch.dtype, device: Device
) -> tuple[tuple[WgradChoice, WgradTiles], ...]:
    """Returns the choices that fit, in the order of the times that the model expects.

    Args:
        problem: With at least one output pixel.
        out_dtype: Of dw.
        device: The device.
    """
    in_pieces = _stores_through_tma(problem, out_dtype)
    store = Store(element_bytes=out_dtype.itemsize, in_pieces=in_pieces)
    ranked = rank_tiles(problem, device.num_sms, store=store, available_bytes=device.smem_bytes)
    return tuple(ranked)


def _stores_through_tma(problem: ConvProblem, out_dtype: torch.dtype) -> bool:
    return problem.groups == 1 and problem.in_channels * out_dtype.itemsize % ROW_BYTES == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradPlan(FilterGradientPlan):
    """A plan of the @triton.jit kernels.

    Attributes:
        tiles: The tile configuration and who computes which tile.
    """

    tiles: WgradTiles
    _pixels: int  # of dy
    _part_elements: int  # of the workspace
    _x_desc: Any  # without memory; None where x is read as a matrix, or not at all
    _store_through_tma: bool
    _launcher: Launcher
    _reducer: Launcher | None

    @property
    def config(self) -> WgradConfig:
        """The tile configuration."""
        return self.tiles.config

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> Launches:
        """As :meth:`FilterGradientPlan.launches`."""
        config, problem = self.config, self.problem
        x, dy = self._rows(x, dy)
        pixels = self._pixels
        if self._x_desc is None:
            shape = [pixels, self.x_operand.channels]
            block = [config.block_pixels, config.block_ci]
            x_desc = TensorDescriptor(x, shape, [self.x_operand.pixel_stride, 1], block)
        else:
            x_desc = self._x_desc.with_base(x)
        dy_desc = TensorDescriptor(
            dy,
            [pixels, self.dy_operand.channels],
            [self.dy_operand.pixel_stride, 1],
            [config.block_pixels, config.block_co],
        )
        dw_desc = None
        if self._store_through_tma:
            taps, row = problem.taps, problem.in_channels
            block = [config.block_co, 1, config.block_ci // config.store_parts]
            strides = [taps * row, row, 1]
            dw_desc = TensorDescriptor(dw, [problem.out_channels, taps, row], strides, block)
        parts = None
        if self._reducer is not None:
            parts = torch.empty(self._part_elements, device=x.device, dtype=torch.float32)
        tensors = (x_desc, dy_desc, dw_desc, dw if dw_desc is None else None, parts)
        if self._reducer is None:
            return [(self._launcher, tensors)]
        return [(self._launcher, tensors), (self._reducer, (parts, dw))]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """A gradient of a filter by way of that of a packed one.

    Attributes:
        problem: The convolution, as it was asked for.
        packed: The plan of the gradient of the packed filter.
        copies: How rows are packed.
    """

    problem: ConvProblem
    packed: WgradPlan
    copies: RowCopies

    @property
    def tiles(self) -> WgradTiles:
        """Those of the packed plan."""
        return self.packed.tiles

    @property
    def config(self) -> WgradConfig:
        """That of the packed plan."""
        return self.packed.config

    @property
    def out_dtype(self) -> torch.dtype:
        """Of dw."""
        return self.packed.out_dtype

    def run(
        self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Packs, launches the kernels and puts dw in order; as :meth:`WgradPlan.run`."""
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self._run(x, dy, out)
        return self._run(x, dy, out)

    def _run(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWgradPlan(PackingPlan):
    """A gradient of a filter whose rows are packed into channels.

    Attributes:
        packed: Its dw is [Co, S * C', ([T, ]R, )1]; of planes, [Co, S * C', 1, R, 1].
        copies: How x is packed.
    """

    def _run(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Packs x, launches the kernels and unpacks dw."""
        if out is not None:
            check_out(self.problem, self.out_dtype, out)
        packing = self.copies.packing
        packed = self.packed.run(self.copies.x(x).movedim(-1, 1), dy)
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
        if out is not None:
            return out.copy_(dw.movedim(-1, 1))
        return dw.contiguous().movedim(-1, 1)


def make_plan(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    tiles: WgradTiles,
    packing: RowPacking | None = None,
) -> WgradPlan | PackedWgradPlan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution, as it was asked for.
        strides: Of x [N, Ci, *input_size] and of dy [N, Co, *output_size], in elements.
        dtype: Of x and dy.
        out_dtype: Of dw.
        tiles: The tile configuration and who computes which tile; those of the packed problem
            where rows are packed.
        packing: How rows of the filter become channels; ``None`` where they do not.
    """
    asked, (x_strides, dy_strides) = problem, strides
    if packing is not None:
        problem = packing.padded
        channels, view = packing.window_channels, packing.strides
        x = Operand(missing_channels=0, is_copied=False, pixel_stride=0, channels=channels)
        rows = (view[0], view[-1], *view[1:-1])
    else:
        rows = x_strides
        x = Operand.make(problem.x_shape, x_strides, dtype.itemsize, as_matrix=False)
    dy = Operand.make(asked.y_shape, dy_strides, dtype.itemsize, as_matrix=True)
    is_matrix = problem.is_pointwise and x.pixel_stride > 0
    # Of an empty batch nothing is read, however it lies.
    is_described = problem.batch > 0 and not is_matrix
    plan = WgradPlan(
        problem=problem,
        tiles=tiles,
        out_dtype=out_dtype,
        x_operand=x,
        dy_operand=dy,
        _pixels=problem.batch * math.prod(problem.output_size),
        _part_elements=tiles.workspace_elements,
        _x_desc=_describe_x(problem, x, rows, dtype, tiles.config) if is_described else None,
        _store_through_tma=_stores_through_tma(problem, out_dtype),
        _launcher=_launcher(problem, tiles, dtype, out_dtype, is_matrix),
        _reducer=_reducer(problem, tiles, out_dtype) if tiles.partition.parts else None,
    )
    if packing is None:
        return plan
    return PackedWgradPlan(problem=asked, packed=plan, copies=RowCopies(packing, x_strides))


def _describe_x(
    problem: ConvProblem,
    x: Operand,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    config: WgradConfig,
) -> Any:
    """Returns the im2col descriptor of x, without memory."""
    shape = (problem.batch, *problem.input_size, x.channels)
    rows = packed_strides(shape) if x.is_copied else (strides[0], *strides[2:], strides[1])
    return Im2ColDescriptor.for_conv(
        Layout(shape, rows, dtype),
        problem.filter_size,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        block_shape=[config.block_pixels, config.block_ci],
    )


def _launcher(
    problem: ConvProblem,
    tiles: WgradTiles,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    is_matrix: bool,
) -> Launcher:
    config, partition = tiles.config, tiles.partition
    return Launcher(
        kernel=conv_wgrad_kernel,
        grid=(partition.programs, 1, 1),
        scalars=(
            problem.out_channels,
            problem.out_channels // problem.groups,
            problem.in_channels // problem.groups,
            tiles.co_blocks,
            partition.steps,
            partition.whole_tiles,
            partition.split_tiles,
            partition.splits,
            problem.output_size,
            problem.stride,
            tuple(low for low, _ in problem.padding),
            problem.dilation,
        ),
        constants=kernel_constants(
            tiles,
            problem.filter_size,
            DTYPES[dtype],
            OUT_DTYPES[out_dtype],
            is_grouped=problem.groups > 1,
            is_matrix=is_matrix,
        ),
        options={"num_stages": config.num_stages, "num_warps": config.num_warps},
    )


def _reducer(problem: ConvProblem, tiles: WgradTiles, out_dtype: torch.dtype) -> Launcher:
    config, partition = tiles.config, tiles.partition
    reduction = Reduction.choose(tiles)
    slices = config.block_co // 16 * (config.block_ci // reduction.columns)
    options: dict[str, Any] = {"num_warps": reduction.num_warps}
    if not IS_INTERPRETED:
        # It starts while the first kernel's last programs run, and waits for them.
        options["launch_pdl"] = True
    return Launcher(
        kernel=wgrad_reduce_kernel,
        grid=(slices, config.taps, partition.split_tiles),
        scalars=(
            problem.out_channels,
            problem.out_channels // problem.groups,
            problem.in_channels // problem.groups,
            tiles.co_blocks,
            partition.whole_tiles,
            partition.split_tiles,
            partition.splits,
        ),
        constants=reduce_constants(
            tiles, reduction, problem.taps, OUT_DTYPES[out_dtype], is_grouped=problem.groups > 1
        ),
        options=options,
    )
