"""All of a wgrad's launches that does not depend on addresses, made once per geometry and kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.conv_wgrad import (
    conv_wgrad_kernel,
    kernel_constants,
    reduce_constants,
    wgrad_reduce_kernel,
)
from triton_ext.ops.depthwise_config import DepthwiseWgradConfig, Walk, is_depthwise, rank_wgrad
from triton_ext.ops.depthwise_wgrad import DepthwiseWgradPlan
from triton_ext.ops.depthwise_wgrad import wgrad_plan as depthwise_plan
from triton_ext.ops.descriptors import ROW_BYTES, Layout, packed_strides
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.machine import IS_INTERPRETED, Machine, machine_of
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.row_copy import RowCopies
from triton_ext.ops.row_packing import MARGIN, PackedConfig, RowPacking
from triton_ext.ops.tuning_store.cases import Case
from triton_ext.ops.tuning_store.lookup import find
from triton_ext.ops.wgrad_config import (
    CONFIGS,
    Reduction,
    Store,
    WgradChoice,
    WgradConfig,
    WgradTiles,
    expected_us,
    rank_tiles,
)

__all__ = [
    "DTYPES",
    "PackedWgradPlan",
    "WgradPlan",
    "fastest_packing",
    "make_plan",
    "packing_pays",
    "ranking",
    "reasons",
]

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")
conv_violations = backends.load("nvidia", "conv_violations")
descriptor_error = backends.load("nvidia", "descriptor_error")

# WGMMA reads operands whose rows are the reduction for 16-bit types only.
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
OUT_DTYPES = {**DTYPES, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """How the kernel reads x or dy.

    Attributes:
        missing_channels: Zeros to add so that rows are multiples of 16 bytes.
        is_copied: Whether the tensor is copied to a dense one, which adding channels does as well.
        pixel_stride: Elements from one pixel to the next; 0 where there is no one such number.
        channels: With the missing ones.
    """

    missing_channels: int
    is_copied: bool
    pixel_stride: int
    channels: int

    @classmethod
    def make(
        cls, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, as_matrix: bool
    ) -> _Operand:
        """Looks at a tensor in torch's order.

        Args:
            shape: [N, C, *spatial].
            strides: In elements.
            itemsize: Bytes of an element.
            as_matrix: Whether it has to be [pixels, channels]; it is copied where it is not.
        """
        unit = ROW_BYTES // itemsize
        missing = -shape[1] % unit
        channels = shape[1] + missing
        if missing:
            return cls(
                missing_channels=missing, is_copied=True, pixel_stride=channels, channels=channels
            )
        stride = _pixel_stride(shape, strides)
        if stride % unit or stride < channels or (strides[1] != 1 and channels > 1):
            stride = 0
        copied = as_matrix and not stride
        return cls(
            missing_channels=0,
            is_copied=copied,
            pixel_stride=channels if copied else stride,
            channels=channels,
        )

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor [N, C, *spatial] as [N, *spatial, C], as the kernel reads it."""
        rows = tensor.movedim(1, -1)
        if self.missing_channels:
            return torch.nn.functional.pad(rows, (0, self.missing_channels)).contiguous()
        return rows.contiguous() if self.is_copied else rows


def _pixel_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from one pixel to the next over all images; 0 where that differs."""
    pixel_stride = expected = None
    for dim in (*range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 1:
            continue
        if pixel_stride is None:
            pixel_stride = expected = strides[dim]
        if strides[dim] != expected:
            return 0
        expected *= shape[dim]
    return shape[1] if pixel_stride is None else pixel_stride


def reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Machine | None = None
) -> tuple[str, ...]:
    """Returns why the kernel does not take a problem; nothing where it does.

    Args:
        problem: The convolution.
        dtype: Of x and dy.
        machine: Where it is to run; ``None`` asks for what no machine changes.
    """
    found = list(_other_reasons(problem, dtype, machine))
    return (*_geometry_reasons(problem), *found)


def _geometry_reasons(problem: ConvProblem) -> tuple[str, ...]:
    """What TMA cannot express."""
    if not 1 <= problem.dims <= 3:
        return (f"{problem.dims} spatial dimensions: expected 1 to 3",)
    # An empty batch has a geometry as well: that of one image.
    return tuple(conv_violations(replace(problem, batch=max(problem.batch, 1)).geometry))


def _other_reasons(
    problem: ConvProblem, dtype: torch.dtype, machine: Machine | None
) -> tuple[str, ...]:
    found = []
    if dtype not in (OUT_DTYPES if is_depthwise(problem) else DTYPES):
        found.append(
            f"dtype {dtype}: wgrad needs float16 or bfloat16, WGMMA transposes 16-bit operands only"
        )
    if machine is not None:
        if machine.capability < (9, 0):
            found.append(f"compute capability {machine.capability}: TMA im2col needs (9, 0)")
        smallest = min(config.smem_bytes(Store(in_pieces=False)) for config in CONFIGS) + 1024
        if smallest > machine.smem_bytes:
            found.append(
                f"{machine.smem_bytes} bytes of shared memory per CTA: the smallest tile "
                f"configuration needs {smallest}"
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradPlan:
    """A gradient of a filter, of one geometry on one device.

    Attributes:
        problem: The convolution.
        tiles: The tile configuration and who computes which tile.
        out_dtype: Of dw.
    """

    problem: ConvProblem
    tiles: WgradTiles
    out_dtype: torch.dtype
    _pixels: int  # of dy
    _part_elements: int  # of the workspace
    _x: _Operand
    _dy: _Operand
    _x_desc: Any  # without memory; None where x is read as a matrix, or not at all
    _store_through_tma: bool
    _launcher: Launcher
    _reducer: Launcher | None

    @property
    def config(self) -> WgradConfig:
        """The tile configuration."""
        return self.tiles.config

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
        """
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, dy, out)
        problem = self.problem
        dw_rows = self._output(x.device, out)
        if problem.batch == 0:
            dw_rows.zero_()
        else:
            for launcher, tensors in self.launches(x, dy, dw_rows):
                launcher.launch(tensors)
        dw = dw_rows.movedim(-1, 1)
        if out is None:
            return dw
        if dw.data_ptr() != out.data_ptr():
            out.copy_(dw)
        return out

    def _output(self, device: torch.device, out: torch.Tensor | None) -> torch.Tensor:
        """Returns memory [Co, *filter_size, Ci / groups] for dw, that of ``out`` if possible."""
        shape = self.problem.w_shape
        if out is not None:
            _check_out(self.problem, self.out_dtype, out)
            rows = out.movedim(1, -1)
            if rows.is_contiguous() and rows.data_ptr() % ROW_BYTES == 0:
                return rows
        return torch.empty((shape[0], *shape[2:], shape[1]), device=device, dtype=self.out_dtype)

    def launches(
        self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor
    ) -> list[tuple[Launcher, tuple[Any, ...]]]:
        """Returns what is launched, in this order, with which tensors.

        Args:
            x: As for :meth:`run`.
            dy: As for :meth:`run`.
            dw: [Co, *filter_size, Ci / groups], dense.
        """
        config, problem = self.config, self.problem
        x, dy = self._x.rows(x), self._dy.rows(dy)
        if dy.data_ptr() % ROW_BYTES:
            dy = dy.clone(memory_format=torch.contiguous_format)
        pixels = self._pixels
        if self._x_desc is None:
            shape = [pixels, self._x.channels]
            block = [config.block_pixels, config.block_ci]
            x_desc = TensorDescriptor(x, shape, [self._x.pixel_stride, 1], block)
        else:
            x_desc = self._x_desc.with_base(x)
        dy_desc = TensorDescriptor(
            dy,
            [pixels, self._dy.channels],
            [self._dy.pixel_stride, 1],
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
class PackedWgradPlan:
    """A gradient of a filter whose rows are packed into channels.

    Attributes:
        problem: The convolution.
        packed: The plan of the gradient of the packed filter, [Co, S * C', ([T, ]R, )1].
        copies: How x is packed.
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
        """Packs x, launches the kernels and unpacks dw; as :meth:`WgradPlan.run`."""
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.run(x, dy, out)
        if out is not None:
            _check_out(self.problem, self.out_dtype, out)
        packing = self.copies.packing
        packed = self.packed.run(self.copies.x(x).movedim(-1, 1), dy)
        windows = packed.movedim(1, -1).squeeze(-2)[..., : packing.window_channels]
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


def _check_out(problem: ConvProblem, dtype: torch.dtype, out: torch.Tensor) -> None:
    if tuple(out.shape) != problem.w_shape or out.dtype != dtype:
        raise ValueError(
            f"out: expected {list(problem.w_shape)} of {dtype}, got {list(out.shape)} of "
            f"{out.dtype}"
        )


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: WgradConfig | WgradChoice | PackedConfig | DepthwiseWgradConfig | None = None,
    out_dtype: torch.dtype | None = None,
    num_sms: int | None = None,
    part_rounds: int = 1,
    pack_rows: bool | RowPacking | None = None,
) -> WgradPlan | PackedWgradPlan | DepthwiseWgradPlan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        x_strides: Of x [N, Ci, *input_size], in elements; channels contiguous.
        dy_strides: Of dy [N, Co, *output_size], in elements; what is not channels-last is copied at
            every run, because gradients come as autograd makes them.
        dtype: Of x and dy: float16 or bfloat16.
        device: Where they are.
        config: The tile configuration, with or without the parts of tiles; ``None``: the choice
            that was measured, else the model's.
        out_dtype: Of dw: float16, bfloat16 or float32; ``None`` for ``dtype``.
        num_sms: Programs that run at a time; ``None`` for one per multiprocessor.
        part_rounds: With a configuration: parts of tiles that the busiest program has.
        pack_rows: Whether rows of the filter become channels (``row_packing.py``) if they can, or
            in which way; ``None``: as a model expects, and not where a configuration is given.

    Raises:
        DescriptorError: TMA cannot express the geometry; every violation is listed.
        UnsupportedError: No GPU, too old a GPU or too old a Triton; another dtype.
    """
    machine = machine_of(device, "wgrad")
    violations = _geometry_reasons(problem)
    if violations:
        raise descriptor_error(violations)
    others = _other_reasons(problem, dtype, machine)
    out_dtype = dtype if out_dtype is None else out_dtype
    if out_dtype not in OUT_DTYPES:
        others = (*others, f"out_dtype {out_dtype}: expected float16, bfloat16 or float32")
    if others:
        raise UnsupportedError("wgrad: " + "; ".join(others))
    if config is None and num_sms is None and pack_rows is None:
        case = Case(direction="wgrad", problem=problem, dtype=dtype, out_dtype=out_dtype)
        config = find(case, machine)
    if num_sms is not None:
        machine = replace(machine, num_sms=num_sms)
    if isinstance(config, DepthwiseWgradConfig) or (
        is_depthwise(problem) and config is None and not isinstance(pack_rows, RowPacking)
    ):
        return depthwise_plan(problem, x_strides, dy_strides, out_dtype, machine, config)
    if isinstance(config, PackedConfig):
        inner: WgradConfig | WgradChoice = config.config
        config, pack_rows = inner, True
    asked, packing = problem, pack_rows if isinstance(pack_rows, RowPacking) else None
    if pack_rows is True or (pack_rows is None and config is None):
        ways = RowPacking.ways(problem, x_strides, dtype.itemsize) if problem.batch else []
        packing = fastest_packing(ways, out_dtype, machine)
        if packing and not (pack_rows or packing_pays(packing, out_dtype, machine)):
            packing = None
    if packing is not None:
        problem = packing.padded
    if isinstance(config, WgradChoice):
        config, part_rounds = config.config, config.part_rounds
    tiles = _tiles(problem, config, out_dtype, machine, part_rounds)
    config = tiles.config
    unpadded = all(side == (0, 0) for side in problem.padding)
    is_plain = problem.taps == 1 and set(problem.stride) == {1} and unpadded
    if packing is None:
        rows = x_strides
        x = _Operand.make(problem.x_shape, x_strides, dtype.itemsize, as_matrix=False)
    else:
        channels, view = packing.window_channels, packing.strides
        x = _Operand(missing_channels=0, is_copied=False, pixel_stride=0, channels=channels)
        rows = (view[0], view[-1], *view[1:-1])
    dy = _Operand.make(problem.y_shape, dy_strides, dtype.itemsize, as_matrix=True)
    is_matrix = is_plain and x.pixel_stride > 0
    # Of an empty batch nothing is read, however it lies.
    is_described = problem.batch > 0 and not is_matrix
    through_tma = _stores_through_tma(problem, out_dtype)
    plan = WgradPlan(
        problem=problem,
        tiles=tiles,
        out_dtype=out_dtype,
        _pixels=problem.batch * math.prod(problem.output_size),
        _part_elements=tiles.workspace_elements,
        _x=x,
        _dy=dy,
        _x_desc=_describe_x(problem, x, rows, dtype, config) if is_described else None,
        _store_through_tma=through_tma,
        _launcher=_launcher(problem, tiles, dtype, out_dtype, is_matrix),
        _reducer=_reducer(problem, tiles, out_dtype) if tiles.partition.parts else None,
    )
    if packing is None:
        return plan
    return PackedWgradPlan(problem=asked, packed=plan, copies=RowCopies(packing, x_strides))


def _packed_us(packing: RowPacking, out_dtype: torch.dtype, machine: Machine) -> float:
    """Expected time of the gradient of a packed filter."""
    # Windows overlap: x comes from DRAM once.
    elements = math.prod(packing.problem.y_shape) + math.prod(packing.memory_shape)
    every = (
        replace(tiles, operand_mib=elements * packing.element_bytes / 2**20)
        for _, tiles in _ranked_tiles(packing.padded, out_dtype, machine)
    )
    return min(map(expected_us, every), default=math.inf) + packing.copy_us


def fastest_packing(
    ways: list[RowPacking], out_dtype: torch.dtype, machine: Machine
) -> RowPacking | None:
    """Returns the way to pack rows in which the gradient is expected first."""
    return min(ways, key=lambda way: _packed_us(way, out_dtype, machine), default=None)


def packing_pays(packing: RowPacking, out_dtype: torch.dtype, machine: Machine) -> bool:
    """Whether the gradient of a packed filter is expected clearly sooner than tap by tap."""
    ranked = _ranked_tiles(packing.problem, out_dtype, machine)
    plain_us = expected_us(ranked[0][1]) + packing.unpacked_copy_us if ranked else 0.0
    return _packed_us(packing, out_dtype, machine) < MARGIN * plain_us


def ranking(
    problem: ConvProblem,
    dtype: torch.dtype,
    machine: Machine,
    out_dtype: torch.dtype | None = None,
) -> list[WgradChoice | DepthwiseWgradConfig]:
    """Returns the choices that fit, in the order of the times that the model expects."""
    problem = replace(problem, batch=max(problem.batch, 1))
    if is_depthwise(problem):
        return [*rank_wgrad(Walk.forward(problem), machine.num_sms)]
    return [choice for choice, _ in _ranked_tiles(problem, out_dtype or dtype, machine)]


def _ranked_tiles(
    problem: ConvProblem, out_dtype: torch.dtype, machine: Machine
) -> list[tuple[WgradChoice, WgradTiles]]:
    in_pieces = _stores_through_tma(problem, out_dtype)
    store = Store(element_bytes=out_dtype.itemsize, in_pieces=in_pieces)
    return rank_tiles(problem, machine.num_sms, store=store, available_bytes=machine.smem_bytes)


def _stores_through_tma(problem: ConvProblem, out_dtype: torch.dtype) -> bool:
    return problem.groups == 1 and problem.in_channels * out_dtype.itemsize % ROW_BYTES == 0


def _tiles(
    problem: ConvProblem,
    config: WgradConfig | None,
    out_dtype: torch.dtype,
    machine: Machine,
    part_rounds: int,
) -> WgradTiles:
    problem = replace(problem, batch=max(problem.batch, 1))
    if config is None:
        ranked = _ranked_tiles(problem, out_dtype, machine)
        if not ranked:
            raise UnsupportedError(
                f"wgrad: a CTA has {machine.smem_bytes} bytes of shared memory, the smallest tile "
                "configuration needs more"
            )
        return ranked[0][1]
    if config.problems():
        raise UnsupportedError(f"wgrad: configuration {config}: " + "; ".join(config.problems()))
    return WgradTiles.make(config, problem, machine.num_sms, part_rounds)


def _describe_x(
    problem: ConvProblem,
    x: _Operand,
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
