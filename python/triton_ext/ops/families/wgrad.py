"""wgrad as an implicit GEMM through im2col loads: the kernels of ``kernels/gemm_wgrad.py``.

The model's numbers were fitted to a sweep over the 38 layers of ResNet-50 at two batch sizes (H200,
Triton 3.9.0, fp16, 2026-11-20; docs/performance.md); its median error is 2 %.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from triton_ext import backends
from triton_ext.ops.core import descriptors, loads
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ELEMENT_BYTES, ROW_BYTES, Describe, Layout, Operand
from triton_ext.ops.core.device import H200, IS_INTERPRETED, Device, Expected
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launched, Launcher, zeroed_flags
from triton_ext.ops.core.packing import RowPacking, filling_us
from triton_ext.ops.core.plan import ConvSizes, Out, Plan, Tensor
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES, Refusals, refused, smem_refusals
from triton_ext.ops.families import gemm
from triton_ext.ops.families.gemm_config import Cost
from triton_ext.ops.kernels.gemm_wgrad import (
    WgradConfig,
    WgradSizes,
    WgradTiles,
    conv_wgrad_kernel,
    wgrad_reduce_kernel,
)
from triton_ext.ops.kernels.row_copy import RowCopies

Im2ColDescriptor = backends.load("nvidia", "Im2ColDescriptor")


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradChoice:
    """A configuration of the family."""

    config: WgradConfig  # how the kernel is compiled
    part_rounds: int = 1  # parts of tiles that the busiest program computes

    def tiles(self, problem: ConvProblem, num_sms: int) -> WgradTiles:
        """Returns the tiles of a problem on so many multiprocessors."""
        return WgradTiles.make(self.config, problem, num_sms, part_rounds=self.part_rounds)


def _config(co: int, ci: int, taps: int, stages: int, warps: int, **others: int) -> WgradConfig:
    """Returns a row of the table below."""
    sizes = {"block_co": co, "block_ci": ci, "taps": taps, **others}
    return WgradConfig(**sizes, num_stages=stages, num_warps=warps)


_COSTS: dict[WgradConfig, Cost] = {
    _config(64, 16, 7, 10, 4): Cost(1.067, 8.44),
    _config(64, 16, 7, 5, 4): Cost(1.115, 3.67),
    _config(64, 16, 3, 8, 4): Cost(0.532, 3.02),
    _config(64, 32, 5, 5, 4): Cost(1.030, 10.64),
    _config(64, 32, 3, 8, 4): Cost(0.612, 12.37),
    _config(64, 64, 1, 10, 4): Cost(0.341, 0.00),
    _config(64, 64, 1, 6, 4): Cost(0.335, 0.00),
    _config(64, 64, 3, 6, 4): Cost(0.652, 1.98),
    _config(64, 128, 1, 8, 4): Cost(0.304, 3.46),
    _config(64, 256, 1, 4, 4): Cost(0.425, 5.94),
    _config(128, 64, 1, 8, 4): Cost(0.270, 4.21),
    _config(128, 64, 3, 5, 4): Cost(0.668, 8.53),
    _config(128, 64, 3, 5, 8): Cost(0.821, 8.28),
    _config(128, 128, 1, 6, 4): Cost(0.411, 5.84),
    _config(128, 128, 1, 6, 8): Cost(0.539, 5.16),
    _config(128, 128, 2, 4, 8): Cost(0.779, 10.05),
    _config(128, 256, 1, 4, 8, store_parts=2): Cost(0.592, 11.35),
    _config(256, 128, 1, 4, 8, store_parts=2): Cost(0.652, 10.94),
    # The seven rows of a stem's filter under partial im2col.
    _config(64, 32, 7, 5, 4): Cost(1.482, 11.96),
}
CONFIGS: tuple[WgradConfig, ...] = tuple(_COSTS)

# The reduction kernel has enough loads in flight from this many programs on.
_REDUCE_PROGRAMS = 1024
# Channels of a box: one swizzle row.
_BOX_CHANNELS = ROW_BYTES * 8 // ELEMENT_BYTES

# More leave less than a tenth of the multiprocessors' time unused, and too many parts.
MOST_PART_ROUNDS = 4


# Beside the steps, fitted as those of ``core/loads.py``: microseconds over a launch without work, a
# factor on what a tile or a part of one takes besides its steps, microseconds of the reduction
# kernel, the share of the DRAM rate at which it reads parts.
_LAUNCH_US, _SEGMENT = H200.launch_us + 4.2, 0.11
_REDUCE_US, _REDUCE_SHARE = 0.8, 0.65536
# By which ways to pack are compared, of the sweep above: the reduction kernel, and the share of the
# DRAM rate of what is only read (245 to 768 MiB take 0.25 to 0.30 us each; H200, 2026-11-22).
_PLAIN_REDUCE_US, _READ_SHARE = 1.25, 0.93623


def _rows(tiles: WgradTiles, problem: ConvProblem) -> loads.Rows:
    """Returns the rows of boxes that a k iteration loads."""
    config, pixels, outside = tiles.config, tiles.config.block_pixels, loads.outside_share(problem)
    ci, co, groups = problem.in_channels, problem.out_channels, problem.groups
    width, dy_width = (min(_BOX_CHANNELS, each) for each in (config.block_ci, config.block_co))
    boxes = math.ceil((ci if groups == 1 else width) / config.block_ci)
    boxes, dy_boxes = boxes * (config.block_ci // width), config.block_co // dy_width
    # A block of another group's channels is loaded, too; rows of a group begin where it does.
    x = loads.row_shares(ci, width, boxes, ci // groups * ELEMENT_BYTES, ELEMENT_BYTES)
    x = x.times(config.block_ci // width * config.taps * pixels)
    dy = loads.row_shares(
        co, dy_width, tiles.co_tiles * dy_boxes, co * ELEMENT_BYTES, ELEMENT_BYTES
    )
    dy = dy.times(dy_boxes * pixels)
    return x.times(1 - outside).plus(loads.Rows(outside=x.inside * outside)).plus(dy)


def expected_time(
    tiles: WgradTiles, problem: ConvProblem, device: Device, read_us: float
) -> Expected:
    """Returns the time of a shipped configuration that the model expects.

    ``read_us`` is the time in which x and dy come from DRAM.
    """
    partition, cost = tiles.partition, _COSTS[tiles.config]
    busy = partition.programs / device.num_sms
    step = loads.step_of(cost.step_us, _rows(tiles, problem), busy)
    work = step.parts(partition.tiles * partition.steps / device.num_sms)
    work["tiles"] = partition.rounds * cost.tile_us * _SEGMENT
    busiest_us = partition.most_steps * step.us + work["tiles"]
    time = Expected.of_kernel(_LAUNCH_US, busiest_us, work, read_us, loads.FITTED.hidden)
    if not tiles.slots:
        return time
    parts_us = H200.dram_us(tiles.workspace_elements * 4, _REDUCE_SHARE)
    return time.plus("split-K", _REDUCE_US + parts_us)


def packing_us(packing: RowPacking, case: Case, device: Device) -> float:
    """Returns the time by which packings of a case are compared: copies, and steps or reads.

    It leaves out loads: no layer was measured with several packings.
    """
    # Windows overlap, and x comes from DRAM once.
    elements = math.prod(packing.problem.y_shape) + math.prod(packing.memory_shape)
    read_us = H200.dram_us(elements * packing.element_bytes, _READ_SHARE)
    times = [math.inf]
    for tiles in fitting_tiles(packing.padded, device, case.output_dtype.itemsize):
        cost, partition = _COSTS[tiles.config], tiles.partition
        us = max(partition.most_steps * cost.step_us, read_us)
        us += _PLAIN_REDUCE_US * (tiles.slots > 0)
        times.append(us + partition.rounds * cost.tile_us)
    return packing.copy_us + min(times)


def stores_through_tma(problem: ConvProblem, out_bytes: int) -> bool:
    """Tells whether whole tiles of dw, of elements of so many bytes, are stored by TMA."""
    return problem.groups == 1 and problem.in_channels * out_bytes % ROW_BYTES == 0


# The planner asks for several families and several packings.
@lru_cache(maxsize=256)
def fitting_tiles(
    problem: ConvProblem, device: Device, out_bytes: int = ELEMENT_BYTES
) -> Mapping[WgradTiles, WgradChoice]:
    """Returns the shipped configurations that fit, by their tiles.

    The problem has at least one output pixel, dw elements of ``out_bytes``.
    """
    in_pieces = stores_through_tma(problem, out_bytes)
    found: dict[WgradTiles, WgradChoice] = {}
    for config, part_rounds in itertools.product(CONFIGS, range(1, MOST_PART_ROUNDS + 1)):
        choice = WgradChoice(config=config, part_rounds=part_rounds)
        tiles = choice.tiles(problem, device.num_sms)
        is_whole = tiles.split_tiles < tiles.partition.tiles
        if not smem_refusals(config.smem_bytes(out_bytes * is_whole, in_pieces=in_pieces), device):
            # More rounds may give the same parts.
            found.setdefault(tiles, choice)
    return found


def filling_dy_us(case: Case) -> float:
    """Returns the time of the copy that adds missing channels to dy."""
    problem = case.problem
    pixels = problem.batch * math.prod(problem.output_size)
    return filling_us(pixels, problem.out_channels, case.dtype.itemsize)


@dataclass(slots=True, kw_only=True)
class FilterGradientPlan(Plan):
    """A gradient of a filter.

    ``out`` is written in place where it is dense and channels-last, else copied into.
    """

    def _run(self, first: Tensor, second: Tensor, given: EpilogueArguments, out: Out) -> Tensor:
        shape = self.problem.w_shape
        if out is not None and (tuple(out.shape) != shape or out.dtype != self.out_dtype):
            raise ValueError(
                f"out: expected {list(shape)} of {self.out_dtype}, got {list(out.shape)} of "
                f"{out.dtype}"
            )
        dw = self._rows(first, second, out).movedim(-1, 1)
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


@dataclass(slots=True, kw_only=True)
class WgradPlan(FilterGradientPlan):
    """A plan of the @triton.jit kernels or of the Gluon kernels."""

    computed: ConvProblem  # what the kernels compute: ``problem``, or the packed one
    tiles: Any  # the tile configuration and the tile schedule
    x_operand: Operand
    dy_operand: Operand
    describe_x: Describe  # of x [N, *input_size, Ci]
    describe_dy: Describe  # of dy [N, *output_size, Co], which is [pixels, Co]
    # Describes dw [Co, taps, Ci]; None where dw is stored through a pointer.
    describe_dw: Describe | None
    launcher: Launcher  # launches the first kernel
    workspace_elements: int  # of fp32, where parts of tiles go; 0 for none
    # Flags of CTAs that wait for others, int32 zeros; None where the kernel takes none.
    flags: int | None = None
    reducer: Launcher | None  # launches the reduction kernel; None where there is nothing to add
    copies: RowCopies | None = None  # packs x and unpacks dw, in partial im2col
    is_swapped: bool = False  # whether x is dy to the kernels, and dy x

    @property
    def config(self) -> Any:
        """The tile configuration."""
        return self.tiles.config

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        rows = dw = self._memory(x.device, out)
        if self.problem.batch == 0:
            return dw.zero_()
        if self.copies is not None:
            co, ci, *taps = self.computed.w_shape
            dw = dw.new_empty((co, *taps, ci))
            x, dy = (dy, x) if self.is_swapped else (x, dy)
            x = self.copies.pack(x, None)[0].movedim(-1, 1)
        for launcher, tensors in self.launches(x, dy, dw):
            launcher.launch(tensors)
        if self.copies is not None:
            self.copies.unpack(dw, rows, is_swapped=self.is_swapped)
        return rows

    def launches(self, x: torch.Tensor, dy: torch.Tensor, dw: torch.Tensor) -> list[Launched]:
        """Returns the launches of a call; dw [Co, *filter_size, Ci / groups] is dense."""
        dy = self.dy_operand.rows(dy)
        if dy.data_ptr() % ROW_BYTES:
            # The plan was made for these strides: there may be gaps between pixels.
            dy = descriptors.aligned_copy(dy)
        inputs = (self.describe_x(self.x_operand.rows(x)), self.describe_dy(dy))
        described = dw if self.describe_dw is None else self.describe_dw(dw)
        parts: Any = None
        flags: tuple[torch.Tensor, ...] = ()
        if self.workspace_elements:
            parts = torch.empty(self.workspace_elements, device=x.device, dtype=torch.float32)
        if self.flags is not None:
            # Where no CTA waits, the kernel does not read them.
            flags = (zeroed_flags(x.device, self.flags) if self.flags else parts.view(torch.int32),)
        first = (self.launcher, (*inputs, described, parts, *flags))
        return [first] if self.reducer is None else [first, (self.reducer, (parts, dw))]


class Wgrad(Family[WgradChoice]):
    """The kernels of ``kernels/gemm_wgrad.py``; a packing gives dw of the packed filter."""

    kind = "wgrad"
    direction = "wgrad"
    config_type = WgradChoice
    is_gemm = True
    tile_fields = ("block_co", "block_ci", "taps")
    has_stages = is_wrapped = True
    reads_packed = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        found = gemm.tap_refusals(case)
        if case.dtype not in DTYPES["wgrad"]:
            found += refused(
                f"dtype {case.dtype}: expected float16 or bfloat16, WGMMA transposes 16-bit "
                "operands only"
            )
        return found

    def number_refusals(self, config: WgradChoice, case: Case, device: Device) -> Refusals:
        # The schedule decides whether tiles are stored as a whole, which takes more.
        return config.config.refusals() or smem_refusals(config.config.smem_bytes(), device)

    def candidates(self, case: Case, device: Device) -> Mapping[WgradChoice, Expected]:
        computed, read_us, size = _computed(case), loads.dram_us(case, device), case.dtype.itemsize
        if case.packing is None:
            pixels = case.problem.batch * math.prod(case.problem.input_size)
            copies_us = filling_us(pixels, case.problem.in_channels, size) + filling_dy_us(case)
        else:
            copies_us = case.packing.copy_us
        fitting, times = fitting_tiles(computed, device, case.output_dtype.itemsize), {}
        for tiles, choice in fitting.items():
            expected = expected_time(tiles, computed, device, read_us)
            times[choice] = expected.plus("copies", copies_us)
        return ranked(times)

    def bind(self, config: WgradChoice, case: Case, device: Device) -> WgradPlan:
        return _kernel_plan(config, case, device)


def _computed(case: Case) -> ConvProblem:
    """Returns the problem of the kernel; an empty batch has the tiles of one image."""
    problem = case.problem if case.packing is None else case.packing.padded
    return replace(problem, batch=max(problem.batch, 1))


def _kernel_plan(choice: WgradChoice, case: Case, device: Device) -> WgradPlan:
    """Returns the plan of the kernels, over packed pixels where the case has a packing."""
    config, packing, size = choice.config, case.packing, case.dtype.itemsize
    tiles = choice.tiles(_computed(case), device.num_sms)
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
    describe_x = gemm.tiled([pixels, x.channels], x.pixel_stride, block)
    if pixels and not is_matrix:
        shape = (problem.batch, *problem.input_size, x.channels)
        strides = descriptors.packed_strides(shape) if x.is_copied else x_strides
        layout = Layout(shape, strides, case.dtype)
        describe_x = gemm.im2col_of(Im2ColDescriptor, problem, layout, block).with_base
    describe_dw = None
    if stores_through_tma(problem, case.output_dtype.itemsize):
        dw_shape = [problem.out_channels, problem.taps, problem.in_channels]
        dw_block = [config.block_co, 1, config.block_ci // config.store_parts]
        describe_dw = gemm.tiled(dw_shape, problem.in_channels, dw_block)
    launcher, reducer = _launchers(problem, tiles, is_matrix)
    return WgradPlan(
        problem=case.problem,
        computed=problem,
        copies=None if packing is None else RowCopies(packing),
        out_dtype=case.output_dtype,
        tiles=tiles,
        x_operand=x,
        dy_operand=dy,
        describe_x=describe_x,
        describe_dy=gemm.tiled(
            [pixels, dy.channels], dy.pixel_stride, [config.block_pixels, config.block_co]
        ),
        describe_dw=describe_dw,
        launcher=launcher,
        workspace_elements=tiles.workspace_elements,
        reducer=reducer,
    )


def _launchers(
    problem: ConvProblem, tiles: WgradTiles, is_matrix: bool
) -> tuple[Launcher, Launcher | None]:
    """Returns the launchers of both kernels; no second one where there is nothing to add."""
    config, partition, split = tiles.config, tiles.partition, tiles.split_tiles
    co, groups, whole = problem.out_channels, problem.groups, partition.tiles - split
    sizes = WgradSizes(
        co=co, group_co=co // groups, group_ci=problem.in_channels // groups,
        co_tiles=tiles.co_tiles, whole_tiles=whole, split_tiles=split, splits=partition.splits,
    )  # fmt: skip
    shared = {"FILTER": problem.filter_size, "GROUPED": groups > 1}
    first = Launcher(
        kernel=conv_wgrad_kernel,
        grid=(partition.programs, 1, 1),
        scalars=(sizes, partition.steps, ConvSizes.of(problem)),
        constants={
            **shared,
            "IS_MATRIX": is_matrix,
            "HAS_WHOLE": whole > 0,
            "HAS_PARTS": split > 0,
            "CONFIG": config,
        },
        options={"num_stages": config.num_stages, "num_warps": config.num_warps},
    )
    if not split:
        return first, None
    columns, unroll, num_warps = reduction_of(tiles)
    second = Launcher(
        kernel=wgrad_reduce_kernel,
        grid=(config.block_co // 16 * (config.block_ci // columns), config.taps, split),
        scalars=(sizes,),
        constants={
            **shared,
            "CONFIG": config,
            "COLUMNS": columns,
            "UNROLL": unroll,
            "WAITS": not IS_INTERPRETED,
        },
        # It starts while the first kernel's last programs run, and waits for them.
        options={"num_warps": num_warps, **({} if IS_INTERPRETED else {"launch_pdl": True})},
    )
    return first, second


def reduction_of(tiles: WgradTiles) -> tuple[int, int, int]:
    """Returns columns, unroll and warps of the reduction kernel, fewer for fewer elements.

    A program has 8 to 64 input channels, the columns, of 16 output channels, and the loads of
    ``unroll`` parts in flight together.
    """
    elements = tiles.split_tiles * tiles.config.tile_elements
    columns = min(64, tiles.config.block_ci)
    while columns > 8 and elements // (16 * columns) < _REDUCE_PROGRAMS:
        columns //= 2
    # Each thread has 16 bytes of a part, or twice as many, and at most 64 registers of parts.
    num_warps = max(1, columns // 16)
    per_thread = 16 * columns // (32 * num_warps)
    return columns, min(64 // per_thread, 1 << (tiles.parts - 1).bit_length()), num_warps


WGRAD: Wgrad = Wgrad()
