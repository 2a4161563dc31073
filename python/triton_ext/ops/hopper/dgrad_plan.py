"""Plans of the Gluon kernel of the gradient of the input: which problems it takes, its launch.

Pure arithmetic and torch until a plan is made: only then is the kernel imported, which not every
host's Gluon can do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import ROW_BYTES, Layout, pixel_stride
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.plan import TO_LAST, DgradRun
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.stride_phases import StridePhases
from triton_ext.ops.families.gemm_config import channel_block
from triton_ext.ops.families.gluon_config import (
    TileConfig,
    Tiled,
    common_refusals,
    launch_refusals,
    num_programs,
)
from triton_ext.ops.families.gluon_cost import dgrad_times

__all__ = ["HopperDgradPlan", "load_kernel", "make_plan", "ranking", "reasons"]

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")


def reasons(
    problem: ConvProblem,
    dims: Sequence[StridePhases],
    dtype: torch.dtype,
    device: Device,
    config: TileConfig | None = None,
) -> tuple[str, ...]:
    """Returns why this kernel does not take a problem; nothing if it does.

    Args:
        problem: The convolution; its gradient is one that TMA can express.
        dims: Its residue classes.
        dtype: Of dy, weight and dx.
        device: The device.
        config: A configuration, where that is given.
    """
    found = common_refusals(problem, dtype, device)
    if config is not None:
        steps = 0
        if all(dim.stride == 1 for dim in dims):
            steps = problem.taps * math.ceil(problem.out_channels / config.block_k)
        found += launch_refusals(config, steps, problem.in_channels, device.num_sms)
    return tuple(found)


def ranking(
    problem: ConvProblem, dims: Sequence[StridePhases], num_sms: int
) -> dict[TileConfig, float]:
    """Returns the configurations that can run, by the microseconds that the model expects.

    Args:
        problem: One without :func:`reasons`.
        dims: Its residue classes.
        num_sms: Multiprocessors of the GPU.
    """
    ci, co = problem.in_channels, problem.out_channels
    block_k = channel_block(co, 2, problem.groups)
    times = dgrad_times(dims, problem.batch, ci, co, num_sms, block_k=block_k)
    return dict(sorted(times.items(), key=lambda item: item[1]))


@cache
def load_kernel() -> Any:
    """Returns the kernel; hosts without im2col in Gluon cannot import it."""
    from triton_ext.ops.kernels.gluon_dgrad import conv_dgrad_kernel

    return conv_dgrad_kernel


@dataclass(slots=True, kw_only=True)
class HopperDgradPlan(DgradRun):
    """The gradient of the input of one geometry on one device, by the Gluon kernel.

    Descriptors are Gluon's, without memory.

    Attributes:
        problem: The convolution.
        dtype: Of dy, weight and dx.
        config: The tile configuration.
        dy_desc: im2col descriptor of dy [N, *output_size, Co].
        dy_matrix: That of dy as a matrix; None where a tap is not the identity.
        w_tiles: Those of the weight [Co, taps, Ci], for each accumulator.
        dx_tiles: That of dx [pixels, Ci].
        launcher: The kernel with all that is fixed.
    """

    problem: ConvProblem
    dtype: torch.dtype
    config: TileConfig
    dy_desc: Any
    dy_matrix: Tiled | None
    w_tiles: tuple[Tiled, ...]
    dx_tiles: Tiled
    launcher: Launcher

    @property
    def stores_aligned(self) -> bool:
        """Whether dx has to begin at a multiple of 16 bytes."""
        return True

    def launch(
        self, dy: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        to_last = TO_LAST[self.problem.dims]
        dy_rows, w_rows = dy.permute(to_last), weight.permute(to_last).contiguous()
        if w_rows.data_ptr() % ROW_BYTES:
            w_rows = w_rows.clone()
        # Also where it is not used: it checks the address.
        dy_desc = with_base(self.dy_desc, dy_rows)
        if self.dy_matrix is not None:
            dy_desc = self.dy_matrix.at(dy_rows)
        filters = [tiles.at(w_rows) for tiles in self.w_tiles]
        rest = filters[1] if len(filters) == 2 else None
        variant = None if bias is None else (bias.dtype, bias.data_ptr() % ROW_BYTES == 0)
        self.launcher.launch((dy_desc, filters[0], rest, self.dx_tiles.at(dx), dx, bias), variant)


def make_plan(
    problem: ConvProblem,
    dims: Sequence[StridePhases],
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: Device,
    config: TileConfig,
) -> HopperDgradPlan:
    """Returns the plan of a gradient of the input.

    Args:
        problem: The convolution.
        dims: Its residue classes.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx.
        device: The device.
        config: The tile configuration.

    Raises:
        UnsupportedError: The problem, or the configuration, has :func:`reasons`.
    """
    found = reasons(problem, dims, dtype, device, config)
    if found:
        text = "; ".join(found)
        raise UnsupportedError(f"conv_dgrad: the Gluon kernel does not take it: {text}")
    from triton_ext.ops.kernels.gluon_dgrad import dgrad_problem, residue_classes

    n, ci, co = problem.batch, problem.in_channels, problem.out_channels
    classes = math.prod(problem.stride)
    m_gemm = n * math.prod(dim.walk_size for dim in dims)
    shape = (n, *problem.output_size, co)
    strides = tuple(dy_strides[i] for i in TO_LAST[problem.dims])
    block = [config.rows, config.block_k]
    dy_desc = TensorDescriptorIm2Col(
        Layout(shape, strides, dtype),
        shape,
        strides,
        block,
        pixel_box_lower_corner=[dim.lower for dim in dims],
        pixel_box_upper_corner=[
            dim.lower + dim.walk_size - out
            for dim, out in zip(dims, problem.output_size, strict=True)
        ],
    )
    row = None
    same_pixels = problem.output_size == problem.input_size and not any(dim.low for dim in dims)
    if problem.taps == classes == 1 and same_pixels:
        row = pixel_stride(dy_desc.geometry)
    widths = (config.block_n_main, config.block_n_rest)
    pixels = n * math.prod(problem.input_size)
    tiles = math.ceil(m_gemm / config.block_m) * math.ceil(ci / config.block_n) * classes
    return HopperDgradPlan(
        problem=problem,
        dtype=dtype,
        config=config,
        dy_desc=dy_desc,
        dy_matrix=None if row is None else Tiled.of(dtype, [m_gemm, co], row, block),
        w_tiles=tuple(
            Tiled.of(dtype, [co, problem.taps, ci], ci, [config.block_k, 1, width])
            for width in widths
            if width
        ),
        dx_tiles=Tiled.of(dtype, [pixels, ci], ci, [config.rows, config.store_n]),
        launcher=Launcher(
            kernel=load_kernel(),
            grid=(num_programs(config, tiles, ci, device.num_sms), 1, 1),
            scalars=(dgrad_problem(dims, n, ci, math.ceil(co / config.block_k)),),
            constants={"CONFIG": config, "CLASSES": residue_classes(dims)},
            options={"num_warps": 4},
        ),
    )
