"""Plans of the Gluon kernel of the gradient of the filter: which problems it takes, its launches.

Pure arithmetic and torch until a plan is made: only then is the kernel imported, which not every
host's Gluon can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.descriptors import Layout
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.launcher import Launcher, zeroed_flags
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gluon_config import DTYPES, Tiled, common_refusals
from triton_ext.ops.hopper import wgrad_tiles
from triton_ext.ops.hopper.wgrad_tiles import (
    BLOCK_C,
    Reduction,
    WgradTileChoice,
    WgradTileConfig,
    WgradWork,
)
from triton_ext.ops.wgrad_launch import FilterGradientPlan, Launches, Operand

__all__ = ["HopperWgradPlan", "load_kernels", "make_plan", "ranking", "reasons", "work_of"]

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")


def reasons(
    problem: ConvProblem,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    choice: WgradTileChoice | None = None,
) -> tuple[str, ...]:
    """Returns why this kernel does not take a problem; nothing if it does.

    Args:
        problem: The convolution; its geometry is one that TMA can express.
        dtype: Of x and dy.
        out_dtype: Of dw.
        device: The device.
        choice: What is to be done, where that is given.
    """
    found = common_refusals(problem, dtype, device)
    if problem.batch == 0:
        found.append("the batch is empty")
    if out_dtype not in DTYPES:
        found.append(f"out_dtype is {out_dtype}, tiles of dw are staged as float16 or bfloat16")
    if choice is not None:
        wrong = choice.config.problems()
        # What is wrong with a configuration may keep its tiles from being counted.
        wrong = wrong or (work_of(problem, choice, device.num_sms).problems() if not found else [])
        found += wrong
    return tuple(found)


def ranking(problem: ConvProblem, num_sms: int) -> tuple[tuple[WgradWork, float], ...]:
    """Returns what can be done, in the order of the microseconds that the model expects.

    Args:
        problem: One without :func:`reasons`.
        num_sms: Multiprocessors of the GPU.
    """
    return wgrad_tiles.ranking(
        problem.batch * math.prod(problem.output_size),
        problem.out_channels,
        problem.in_channels,
        problem.taps,
        num_sms,
        input_pixels=problem.pixels_read,
    )


def work_of(problem: ConvProblem, choice: WgradTileChoice, num_sms: int) -> WgradWork:
    """Returns the tiles of a choice, and who computes them.

    Args:
        problem: With at least one output pixel.
        choice: A configuration without problems, and where parts are added.
        num_sms: Multiprocessors of the GPU.
    """
    pixels = problem.batch * math.prod(problem.output_size)
    x_blocks = problem.taps * math.ceil(problem.in_channels / BLOCK_C)
    return WgradWork.make(
        choice.config,
        pixels,
        problem.out_channels,
        x_blocks,
        num_sms,
        add_in_place=choice.add_in_place,
    )


@cache
def load_kernels() -> tuple[Any, Any]:
    """Returns both kernels; hosts without im2col in Gluon cannot import them."""
    from triton_ext.ops.hopper.wgrad import conv_wgrad_kernel
    from triton_ext.ops.hopper.wgrad_parts import reduce_kernel

    return conv_wgrad_kernel, reduce_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperWgradPlan(FilterGradientPlan):
    """A plan of the Gluon kernels.

    Descriptors are Gluon's, without memory.

    Attributes:
        tiles: The tiles, and who computes them.
        x_desc: im2col descriptor of x [N, *input_size, Ci].
        x_matrix: That of x as a matrix; None where im2col is not the identity.
        dy_matrix: That of dy [pixels, Co].
        dw_tiles: That of dw [Co, taps, Ci].
        launcher: The first kernel with all that is fixed.
        reducer: The second one; None where nothing is left to add.
    """

    tiles: WgradWork
    x_desc: Any
    x_matrix: Tiled | None
    dy_matrix: Tiled
    dw_tiles: Tiled
    launcher: Launcher
    reducer: Launcher | None

    @property
    def config(self) -> WgradTileConfig:
        """The tile configuration."""
        return self.tiles.config

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> Launches:
        """As :meth:`FilterGradientPlan.launches`."""
        x, dy = self._rows(x, dy)
        # Also where it is not used: it checks the address.
        x_desc = with_base(self.x_desc, x)
        if self.x_matrix is not None:
            x_desc = self.x_matrix.at(x)
        work = self.tiles
        parts = torch.empty(work.workspace_elements, device=x.device, dtype=torch.float32)
        # Without CTAs that wait for others nothing looks at flags.
        flags = parts.view(torch.int32)
        if work.add_in_place:
            flags = zeroed_flags(x.device, work.flags)
        tensors = (x_desc, self.dy_matrix.at(dy), parts, flags, self.dw_tiles.at(dw))
        found: Launches = [(self.launcher, tensors)]
        if self.reducer is not None:
            found.append((self.reducer, (parts, dw)))
        return found


def make_plan(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    device: Device,
    choice: WgradTileChoice,
) -> HopperWgradPlan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        strides: Of x [N, Ci, *input_size] and of dy [N, Co, *output_size], in elements; x is
            channels-last, dy is copied at every run where it is no matrix of pixels.
        dtype: Of x and dy.
        out_dtype: Of dw.
        device: The device.
        choice: The configuration, and where parts are added.

    Raises:
        UnsupportedError: The problem, or what is to be done, has :func:`reasons`.
    """
    found = reasons(problem, dtype, out_dtype, device, choice)
    if found:
        raise UnsupportedError("wgrad: the Gluon kernel does not take it: " + "; ".join(found))
    from triton_ext.ops.hopper.wgrad import wgrad_problem

    co, ci, taps = problem.out_channels, problem.in_channels, problem.taps
    x_strides, dy_strides = strides
    x = Operand.make(problem.x_shape, x_strides, dtype.itemsize, as_matrix=False)
    dy = Operand.make(problem.y_shape, dy_strides, dtype.itemsize, as_matrix=True)
    work = work_of(problem, choice, device.num_sms)
    config = work.config
    block = [config.pixels, BLOCK_C]
    pixels = problem.batch * math.prod(problem.output_size)
    x_desc = TensorDescriptorIm2Col.for_conv(
        Layout(
            (problem.batch, *problem.input_size, ci),
            (x_strides[0], *x_strides[2:], x_strides[1]),
            dtype,
        ),
        problem.filter_size,
        problem.stride,
        problem.padding,
        problem.dilation,
        block_shape=block,
    )
    x_matrix = None
    if problem.is_pointwise and x.pixel_stride:
        x_matrix = Tiled.of(dtype, [pixels, ci], x.pixel_stride, block)
    walk = (problem.output_size, problem.stride, [low for low, _ in problem.padding])
    told = wgrad_problem(work, (co, ci), problem.filter_size, problem.dilation, walk)
    first, second = load_kernels()
    adding, reducer = Reduction.of(work), None
    if adding is not None:
        made, grid = adding
        reducer = Launcher(
            kernel=second,
            grid=(*grid, 1),
            scalars=(told,),
            constants={"CONFIG": config, "COLUMNS": made.columns, "PARTS": made.parts},
            # It starts while the first kernel's last programs run, and waits for them.
            options={"num_warps": made.num_warps, "launch_pdl": True},
        )
    return HopperWgradPlan(
        problem=problem,
        out_dtype=out_dtype,
        x_operand=x,
        dy_operand=dy,
        tiles=work,
        x_desc=x_desc,
        x_matrix=x_matrix,
        dy_matrix=Tiled.of(dtype, [pixels, co], dy.pixel_stride, block),
        dw_tiles=Tiled.of(out_dtype, [co, taps, ci], ci, [BLOCK_C, 1, BLOCK_C]),
        launcher=Launcher(
            kernel=first,
            grid=(work.partition.ctas, 1, 1),
            scalars=(told,),
            constants={"CONFIG": config},
            options={"num_warps": 4},
        ),
        reducer=reducer,
    )
