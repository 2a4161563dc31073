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
from triton_ext.ops.descriptors import ROW_BYTES, Layout, packed_strides
from triton_ext.ops.launcher import Launcher
from triton_ext.ops.machine import IS_INTERPRETED, Machine, machine_of
from triton_ext.ops.problem import ConvProblem
from triton_ext.ops.wgrad_config import (
    CONFIGS,
    Reduction,
    Store,
    WgradConfig,
    WgradTiles,
    choose_tiles,
)

__all__ = ["DTYPES", "WgradPlan", "make_plan", "reasons"]

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
    if dtype not in DTYPES:
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
            if tuple(out.shape) != shape or out.dtype != self.out_dtype:
                raise ValueError(
                    f"out: expected {list(shape)} of {self.out_dtype}, got {list(out.shape)} of "
                    f"{out.dtype}"
                )
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


@lru_cache(maxsize=4096)
def make_plan(
    problem: ConvProblem,
    x_strides: tuple[int, ...],
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    config: WgradConfig | None = None,
    out_dtype: torch.dtype | None = None,
    num_sms: int | None = None,
    part_rounds: int = 1,
) -> WgradPlan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        x_strides: Of x [N, Ci, *input_size], in elements; channels contiguous.
        dy_strides: Of dy [N, Co, *output_size], in elements; what is not channels-last is copied at
            every run, because gradients come as autograd makes them.
        dtype: Of x and dy: float16 or bfloat16.
        device: Where they are.
        config: The tile configuration; ``None`` lets ``choose_tiles`` choose.
        out_dtype: Of dw: float16, bfloat16 or float32; ``None`` for ``dtype``.
        num_sms: Programs that run at a time; ``None`` for one per multiprocessor.
        part_rounds: With a configuration: parts of tiles that the busiest program has.

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
    through_tma = problem.groups == 1 and problem.in_channels * out_dtype.itemsize % ROW_BYTES == 0
    store = Store(element_bytes=out_dtype.itemsize, in_pieces=through_tma)
    if num_sms is not None:
        machine = replace(machine, num_sms=num_sms)
    tiles = _tiles(problem, config, store, machine, part_rounds)
    config = tiles.config
    unpadded = all(side == (0, 0) for side in problem.padding)
    is_plain = problem.taps == 1 and set(problem.stride) == {1} and unpadded
    x = _Operand.make(problem.x_shape, x_strides, dtype.itemsize, as_matrix=False)
    dy = _Operand.make(problem.y_shape, dy_strides, dtype.itemsize, as_matrix=True)
    is_matrix = is_plain and x.pixel_stride > 0
    # Of an empty batch nothing is read, however it lies.
    is_described = problem.batch > 0 and not is_matrix
    through_tma = problem.groups == 1 and problem.in_channels * out_dtype.itemsize % ROW_BYTES == 0
    return WgradPlan(
        problem=problem,
        tiles=tiles,
        out_dtype=out_dtype,
        _pixels=problem.batch * math.prod(problem.output_size),
        _part_elements=tiles.workspace_elements,
        _x=x,
        _dy=dy,
        _x_desc=_describe_x(problem, x, x_strides, dtype, config) if is_described else None,
        _store_through_tma=through_tma,
        _launcher=_launcher(problem, tiles, dtype, out_dtype, is_matrix),
        _reducer=_reducer(problem, tiles, out_dtype) if tiles.partition.parts else None,
    )


def _tiles(
    problem: ConvProblem,
    config: WgradConfig | None,
    store: Store,
    machine: Machine,
    part_rounds: int,
) -> WgradTiles:
    problem = replace(problem, batch=max(problem.batch, 1))
    if config is None:
        tiles = choose_tiles(
            problem, machine.num_sms, store=store, available_bytes=machine.smem_bytes
        )
        if tiles is None:
            raise UnsupportedError(
                f"wgrad: a CTA has {machine.smem_bytes} bytes of shared memory, the smallest tile "
                "configuration needs more"
            )
        return tiles
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
