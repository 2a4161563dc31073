"""wgrad as an implicit GEMM in Gluon for Hopper: the family and its plan.

The kernels are imported when a plan is made: not every host's Gluon can import them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import Layout
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family, ranked
from triton_ext.ops.core.launcher import Launcher, zeroed_flags
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, refuse, refused
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gluon_config import DTYPES, Tiled, common_refusals
from triton_ext.ops.families.gluon_wgrad_config import (
    BLOCK_C,
    WgradTileChoice,
    WgradWork,
    ranked_work,
)
from triton_ext.ops.families.wgrad import Launches, Operand, WgradPlan
from triton_ext.ops.families.wgrad_config import ranked_tiles

__all__ = ["GLUON_WGRAD", "MOST_EXPECTED", "GluonWgradPlan", "WgradProblem"]

TensorDescriptorIm2Col = backends.load("nvidia", "gluon.TensorDescriptorIm2Col")
with_base = backends.load("nvidia", "gluon.with_base")

#: The wgrad kernel's time counts 1 / MOST_EXPECTED times.  Its model and that of the @triton.jit
#: kernel were fitted on the same GPU.  Of the 36 layers whose @triton.jit time is measured
#: (docs/wgrad.md; H200, fp16, 2026-11-20), 12 would be the Gluon kernel's, one of them by 0.3 %
#: wrongly; with 1.0 there would be 15, two by 8 % wrongly.
MOST_EXPECTED = 0.96


class WgradProblem(NamedTuple):
    """The convolution as both kernels get it: a runtime argument with named fields."""

    co: int
    ci: int
    dy_tiles: int  # tiles along the blocks of dy
    steps: int  # k iterations of a tile
    waves: int  # full rounds of whole tiles
    rest: int  # tiles that remain after these, at least 1 here
    first_split: int  # number of the first of these
    splits: int  # parts of each of these
    parts: int  # of all of these, 0 if no tile remains
    add_in_place: int  # 1 if the CTA with a tile's last part adds the others, else 0
    filter_size: tuple[int, ...]  # (T, R, S), 1 for missing dimensions
    dilation: tuple[int, ...]  # as filter_size
    output_size: tuple[int, ...]  # per spatial dimension, as all that follows
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # in front

    @classmethod
    def make(cls, work: WgradWork, problem: ConvProblem) -> WgradProblem:
        """Returns the argument for a convolution and its tiles."""
        partition, ones = work.partition, (1,) * (3 - problem.dims)
        return cls(
            co=problem.out_channels,
            ci=problem.in_channels,
            dy_tiles=work.dy_tiles,
            steps=partition.steps,
            waves=partition.waves,
            rest=max(partition.rest, 1),
            first_split=partition.waves * partition.programs,
            splits=partition.splits,
            parts=partition.slots,
            add_in_place=int(work.add_in_place),
            filter_size=(*ones, *problem.filter_size),
            dilation=(*ones, *problem.dilation),
            output_size=problem.output_size,
            stride=problem.stride,
            padding=tuple(low for low, _ in problem.padding),
        )


@cache
def load_kernels() -> tuple[Any, Any]:
    """Returns both kernels; hosts without im2col in Gluon cannot import them."""
    from triton_ext.ops.kernels.gluon_wgrad import conv_wgrad_kernel, reduce_kernel

    return conv_wgrad_kernel, reduce_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonWgradPlan(WgradPlan):
    """A plan of the Gluon kernels.

    Attributes:
        x_matrix: The descriptor of x as a matrix, without memory; ``None`` where x is read through
            im2col.
    """

    x_matrix: Tiled | None

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> Launches:
        x_desc, dy_desc = self.described(x, dy)
        if self.x_matrix is not None:
            # The other descriptor has checked the address.
            x_desc = self.x_matrix.at(x.movedim(1, -1))
        parts = torch.empty(self.workspace_elements, device=x.device, dtype=torch.float32)
        # The kernel reads flags only where CTAs wait for others.
        flags = parts.view(torch.int32)
        if self.tiles.add_in_place:
            flags = zeroed_flags(x.device, self.tiles.flags)
        assert self.describe_dw is not None
        first = (self.launcher, (x_desc, dy_desc, parts, flags, self.describe_dw(dw)))
        return [first] if self.reducer is None else [first, (self.reducer, (parts, dw))]


class GluonWgrad(Family[WgradTileChoice]):
    """The kernels of ``kernels/gluon_wgrad.py``."""

    kind = "gluon_wgrad"
    direction = "wgrad"
    config_type = WgradTileChoice
    is_gemm = True
    tile_fields = (*("rows_from_x", "consumers", "main_blocks", "rest_blocks"),)

    def case_refusals(self, case: Case, device: Device) -> tuple[Refusal, ...]:
        found = (*tap_refusals(case), *common_refusals(case.problem, case.dtype, device))
        if case.problem.batch == 0:
            found += refused("the batch is empty", in_key=False)
        if case.output_dtype not in DTYPES:
            out = case.output_dtype
            found += refused(f"out_dtype is {out}, tiles of dw are staged as float16 or bfloat16")
        return found

    def number_refusals(
        self, config: WgradTileChoice, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        return config.config.refusals()

    def fit_refusals(
        self, config: WgradTileChoice, case: Case, device: Device
    ) -> tuple[Refusal, ...]:
        if case.problem.batch == 0:
            return ()
        return WgradWork.make(config, case.problem, device.num_sms).refusals()

    def candidates(self, case: Case, device: Device) -> Mapping[WgradTileChoice, Expected]:
        problem = case.problem
        jit = ranked_tiles(problem, device, case.output_dtype.itemsize)
        least = problem.out_channels * problem.taps * problem.in_channels
        if jit:
            best = jit[0][1]
            least = max(least, best.partition.tiles * best.config.tile_elements)
        found = {}
        for work, us in ranked_work(problem, device.num_sms):
            # The model was fitted to channels in whole blocks.  Elements beside dw, more than the
            # tiles of the @triton.jit kernel have, count once more.
            computed = work.partition.tiles * work.config.tile_elements
            waste = max(1.0, computed / least)
            found[work.choice] = Expected.of(us, correction=waste / MOST_EXPECTED)
        return ranked(found)

    def bind(self, config: WgradTileChoice, case: Case, device: Device) -> GluonWgradPlan:
        found = self.refusals(case, device, config)
        refuse("wgrad: the Gluon kernel does not take it", found)
        problem, dtype, size = case.problem, case.dtype, case.dtype.itemsize
        co, ci, strides = problem.out_channels, problem.in_channels, case.strides_of_x
        x = Operand.make(problem.x_shape, strides, size, as_matrix=False)
        dy = Operand.make(problem.y_shape, case.strides_of_dy, size, as_matrix=True)
        work = WgradWork.make(config, problem, device.num_sms)
        block = [work.config.pixels, BLOCK_C]
        pixels = problem.batch * math.prod(problem.output_size)
        x_desc = TensorDescriptorIm2Col.for_conv(
            Layout(
                (problem.batch, *problem.input_size, ci),
                (strides[0], *strides[2:], strides[1]),
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
        told = WgradProblem.make(work, problem)
        first, second = load_kernels()
        reducer = None
        if work.reduction is not None:
            grid, parts, columns, num_warps = work.reduction
            reducer = Launcher(
                kernel=second,
                grid=(*grid, 1),
                scalars=(told,),
                constants={"CONFIG": work.config, "COLUMNS": columns, "PARTS": parts},
                # It starts while the first kernel's last programs run, and waits for them.
                options={"num_warps": num_warps, "launch_pdl": True},
            )
        return GluonWgradPlan(
            problem=problem,
            out_dtype=case.output_dtype,
            tiles=work,
            x_operand=x,
            dy_operand=dy,
            describe_x=lambda rows: with_base(x_desc, rows),
            x_matrix=x_matrix,
            describe_dy=Tiled.of(dtype, [pixels, co], dy.pixel_stride, block).at,
            describe_dw=Tiled.of(
                case.output_dtype, [co, problem.taps, ci], ci, [BLOCK_C, 1, BLOCK_C]
            ).at,
            workspace_elements=work.workspace_elements,
            launcher=Launcher(
                kernel=first,
                grid=(work.partition.programs, 1, 1),
                scalars=(told,),
                constants={"CONFIG": work.config},
                options={"num_warps": 4},
            ),
            reducer=reducer,
        )


GLUON_WGRAD: GluonWgrad = GluonWgrad()
