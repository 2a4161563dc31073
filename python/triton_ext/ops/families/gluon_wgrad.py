"""wgrad as an implicit GEMM in Gluon for Hopper: configurations, the model that ranks them, plans.

The kernels are imported when a plan is made: not every host's Gluon can import them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch

from triton_ext.errors import LaunchError
from triton_ext.ops.core import loads, refusals
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ELEMENT_BYTES, Operand
from triton_ext.ops.core.device import H200, Device, Expected
from triton_ext.ops.core.family import Family, ranked
from triton_ext.ops.core.launcher import Launcher
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.families import gluon
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.gluon_config import capacity_refusals
from triton_ext.ops.families.wgrad import WgradPlan
from triton_ext.ops.kernels.gemm_wgrad import BLOCK_C, WgradTiles

# A CTA that adds the other parts of its tile reads them one after another; beyond this many a
# second kernel is faster.
MOST_ADDED_PARTS = 5
Share = Literal["columns", "rows", "tile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradTileConfig:
    """Tile sizes and warp roles of the kernel.

    A block is 64 channels: of dy, or of x seen through one filter tap.
    """

    rows_from_x: bool = False  # whether x gives the rows of a tile and dy its columns
    # The operand that the consumers share.  "columns": each has a block of rows of its own.
    # "rows": one block of rows, and each has columns of its own.  "tile": all of a tile that is one
    # block high, and each has pixels of its own.
    share: Share = "columns"
    consumers: int = 2  # consumer warp groups, 1 to 3
    main_blocks: int  # column blocks of a consumer's first accumulator: 1, 2 or 4
    rest_blocks: int = 0  # column blocks of the second accumulator, 0 for none
    # Consumers that have the second accumulator, for "rows", where it is 0 if there is none; else
    # all have it.
    rest_consumers: int = 0
    pixels: int = 64  # of a load; a k iteration has as many for each consumer with its own
    stages: int  # depth of the ring of loads
    store_buffers: int = 1  # staging buffers of a consumer: with 2 it converts during a store

    # As in a TileConfig.
    rows: ClassVar[int] = BLOCK_C
    store_n: ClassVar[int] = BLOCK_C
    element_bytes: ClassVar[int] = ELEMENT_BYTES
    ping_pong: ClassVar[bool] = False
    filter_steps: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Raises LaunchError for fields of another type and for numbers that are too small."""
        found = refusals.field_refusals(self, may_be_zero=("rest_blocks", "rest_consumers"))
        if self.share not in get_args(Share):
            names = ", ".join(map(repr, get_args(Share)))
            found += refused(f"share is {self.share!r}: expected one of {names}")
        if found:
            raise LaunchError("configuration: " + "; ".join(map(str, found)))

    @property
    def row_blocks(self) -> int:
        """Blocks of rows of a tile."""
        return self.consumers if self.share == "columns" else 1

    @property
    def column_blocks(self) -> int:
        """Blocks of columns of a tile: those of the first accumulators, then the others."""
        if self.share == "rows":
            return self.consumers * self.main_blocks + self.rest_consumers * self.rest_blocks
        return self.main_blocks + self.rest_blocks

    def accumulators(self, consumer: int) -> tuple[range, ...]:
        """Returns the column blocks of a tile that each of a consumer's accumulators has."""
        main, rest, first, second = self.main_blocks, self.rest_blocks, 0, self.main_blocks
        has_rest = rest > 0
        if self.share == "rows":
            first, second = consumer * main, self.consumers * main + consumer * rest
            has_rest = consumer < self.rest_consumers
        return (range(first, first + main), range(second, second + rest))[: 1 + has_rest]

    @property
    def pixel_groups(self) -> int:
        """Loads of different pixels in a k iteration."""
        return self.consumers if self.share == "tile" else 1

    @property
    def row_groups(self) -> int:
        """Blocks of rows in a stage: of all consumers, or of each."""
        return 1 if self.share == "rows" else self.consumers

    @property
    def column_groups(self) -> tuple[int, int]:
        """Columns of first accumulators in a stage, of all consumers or of each; of second ones."""
        main = 1 if self.share == "columns" else self.consumers
        return main, self.rest_consumers if self.share == "rows" else main

    @property
    def step_pixels(self) -> int:
        """Pixels of a k iteration."""
        return self.pixels * self.pixel_groups

    @property
    def x_blocks(self) -> int:
        """Blocks of x in a tile."""
        return self.row_blocks if self.rows_from_x else self.column_blocks

    @property
    def dy_blocks(self) -> int:
        """Blocks of dy in a tile."""
        return self.column_blocks if self.rows_from_x else self.row_blocks

    @property
    def tile_elements(self) -> int:
        """Elements of a tile."""
        return self.row_blocks * self.column_blocks * BLOCK_C * BLOCK_C

    def extents(self, problem: ConvProblem) -> tuple[int, int, int]:
        """Returns the tiles along the channels of dy, all tiles, and the k iterations of each."""
        x_blocks = problem.taps * math.ceil(problem.in_channels / BLOCK_C)
        dy_tiles = math.ceil(math.ceil(problem.out_channels / BLOCK_C) / self.dy_blocks)
        pixels = problem.batch * math.prod(problem.output_size)
        tiles = dy_tiles * math.ceil(x_blocks / self.x_blocks)
        return dy_tiles, tiles, math.ceil(pixels / self.step_pixels)

    @property
    def stage_bytes(self) -> int:
        """Bytes that a k iteration loads."""
        return (self.row_blocks + self.column_blocks) * BLOCK_C * self.step_pixels * ELEMENT_BYTES

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the ring, its barriers and the staging buffers."""
        staging = self.consumers * self.store_buffers * BLOCK_C * BLOCK_C * ELEMENT_BYTES
        return self.stages * (self.stage_bytes + 16) + staging

    @property
    def accumulator_registers(self) -> int:
        """fp32 registers of a consumer's accumulators, per thread: 128 threads have 64 rows."""
        return (self.main_blocks + self.rest_blocks) * BLOCK_C // 2

    @property
    def consumer_registers(self) -> int:
        """Registers per consumer thread; the producer gives up most of its own."""
        if self.consumers == 2 and self.accumulator_registers >= 160:
            return 224 if self.accumulator_registers == 160 else 232
        return {1: 240, 2: 216, 3: 152}[self.consumers]

    @property
    def producer_registers(self) -> int:
        """Registers per producer thread."""
        # A CTA has 512 for one thread of each of its four groups of 128.
        return {240: 56, 232: 40, 224: 56, 216: 72, 152: 56}[self.consumer_registers]

    def refusals(self) -> Refusals:
        """Returns why the configuration cannot run; nothing where it can."""
        found = refusals.range_refusals(self, consumers=(1, 3))
        if found:
            return found
        found += refusals.power_refusals(self, main_blocks=(1, 4), pixels=(16, 128))
        if self.rest_blocks:
            found += refusals.power_refusals(self, rest_blocks=(1, 4))
        if self.share == "rows":
            expected = range(1, self.consumers + 1) if self.rest_blocks else range(1)
            if self.rest_consumers not in expected:
                found += refused(
                    f"rest_consumers is {self.rest_consumers}: expected {expected[0]} to "
                    f"{expected[-1]}, with {self.rest_blocks} rest_blocks of {self.consumers} "
                    "consumers"
                )
        # Some 24 registers hold addresses and counters beside the accumulators.
        return found + capacity_refusals(self, self.accumulator_registers, 24)

    def __str__(self) -> str:
        # Triton's cache key holds this text of a constant: two configurations that compile
        # differently need different texts.
        rows, columns = self.row_blocks * BLOCK_C, self.column_blocks * BLOCK_C
        sides = "xy" if self.rows_from_x else "yx"
        role = {"columns": "r", "rows": "c", "tile": "p"}[self.share]
        rest = f"+{self.rest_blocks * BLOCK_C}" if self.rest_blocks else ""
        return (
            f"{sides}{rows}x{columns}_{role}{self.consumers}_n{self.main_blocks * BLOCK_C}{rest}"
            f"_p{self.pixels}_s{self.stages}_e{self.store_buffers}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradTileChoice:
    """A configuration of the family."""

    config: WgradTileConfig  # how the kernel is compiled
    # Whether the CTA with a tile's last part adds the others; else a second kernel does.
    add_in_place: bool = False

    def refusals(self) -> Refusals:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return self.config.refusals()

    def tiles(self, problem: ConvProblem, num_sms: int) -> WgradTiles:
        """Returns the tiles of a problem with output pixels, for a configuration that can run."""
        most = MOST_ADDED_PARTS if self.add_in_place else num_sms
        return WgradTiles.make(
            self.config, problem, num_sms, in_place=self.add_in_place, most_splits=most
        )


def tile_refusals(tiles: WgradTiles) -> Refusals:
    """Returns why the kernel cannot compute tiles; nothing where it can."""
    found: Refusals = ()
    if tiles.config.share == "tile" and tiles.partition.waves:
        count = tiles.partition.tiles
        found += refused(f"consumers share a tile, and {count} tiles are not split")
    if tiles.config.share == "tile" and tiles.add_in_place:
        found += refused("consumers that share a tile leave adding to the second kernel")
    return found


def reduction_of(parts: int, blocks: int) -> tuple[int, int, int]:
    """Returns parts, columns and warps of a program of the reduction kernel.

    It reads so many of a tile's ``parts`` at a time, of 16 rows and so many columns of a block of
    64 x 64: the fewer ``blocks`` all tiles have that are split, the finer they are cut.
    """
    if parts <= 4:
        return 4, 64, 4
    if parts <= 16:
        return 16, 32, 8
    return 64, 16 if blocks > 8 else 8, 16


# Microseconds of a k iteration, measured over 21 shapes (H200, Triton 3.9.0, fp16, 2026-11-20;
# docs/gluon-conv.md).
_STEP_US: dict[WgradTileConfig, float] = {
    WgradTileConfig(main_blocks=2, stages=6, store_buffers=2): 0.34,
    WgradTileConfig(main_blocks=2, rest_blocks=1, stages=5): 0.52,
    WgradTileConfig(rows_from_x=True, main_blocks=2, rest_blocks=1, stages=5): 0.52,
    WgradTileConfig(main_blocks=4, stages=4, store_buffers=2): 0.665,
    WgradTileConfig(main_blocks=4, rest_blocks=1, pixels=32, stages=7): 0.415,
    WgradTileConfig(rows_from_x=True, main_blocks=4, rest_blocks=1, pixels=32, stages=7): 0.418,
    WgradTileConfig(main_blocks=4, rest_blocks=2, stages=3, store_buffers=2): 0.975,
    WgradTileConfig(consumers=3, main_blocks=2, rest_blocks=1, stages=4): 0.76,
    WgradTileConfig(share="rows", main_blocks=1, stages=8, store_buffers=2): 0.306,
    WgradTileConfig(consumers=1, main_blocks=1, stages=10, store_buffers=2): 0.175,
    WgradTileConfig(share="tile", main_blocks=2, rest_blocks=1, pixels=32, stages=6): 0.365,
    # For layers where tiles of six blocks leave multiprocessors idle, and tiles of four need a
    # second round.  Not measured: a k iteration loads 48 KiB, and other tiles that loads bound have
    # 78 (64x128) to 94 (128x128) KiB per us, which is 0.51 to 0.61 us.  The model has more than the
    # mean, so that tuning tries them while the model chooses them for no layer of the suites.
    **{
        WgradTileConfig(
            rows_from_x=of_x, share="rows", main_blocks=2, rest_blocks=1, rest_consumers=1, stages=4
        ): 0.59
        for of_x in (False, True)
    },
}
# All but the k iterations, of the same runs: microseconds over a launch without work, and of the
# reduction kernel, which reads parts at a share of the DRAM rate.  KiB are those of fp32 tiles.
_LAUNCH_US, _STORE_US_PER_KIB = H200.launch_us + 1.8, 0.0175
_ADD_US, _ADD_US_PER_KIB = 3.3, 0.0126
_REDUCE_US, _REDUCE_SHARE = 3.1, 0.49461

CONFIGS: tuple[WgradTileConfig, ...] = tuple(_STEP_US)


def _rows(tiles: WgradTiles, problem: ConvProblem) -> loads.Rows:
    """Returns the rows of boxes that a k iteration loads."""
    config, ci, co = tiles.config, problem.in_channels, problem.out_channels
    every = problem.taps * math.ceil(ci / BLOCK_C)
    blocks = every / math.ceil(every / config.x_blocks)  # of a tile, in the mean
    of_x = loads.row_shares(ci, BLOCK_C, math.ceil(ci / BLOCK_C), ci * ELEMENT_BYTES, ELEMENT_BYTES)
    outside, x = loads.outside_share(problem), of_x.times(blocks)
    dy_boxes = tiles.co_tiles * config.dy_blocks
    dy = loads.row_shares(co, BLOCK_C, dy_boxes, co * ELEMENT_BYTES, ELEMENT_BYTES)
    x = x.times(1 - outside).plus(loads.Rows(outside=blocks * outside + config.x_blocks - blocks))
    return x.plus(dy.times(config.dy_blocks)).times(config.step_pixels)


def expected_time(
    tiles: WgradTiles, problem: ConvProblem, device: Device, read_us: float
) -> Expected:
    """Returns the expected time, by the model of the ``@triton.jit`` kernels."""
    partition, tile_kib = tiles.partition, tiles.config.tile_elements * 4 / 1024
    busy = partition.programs / device.num_sms
    step = loads.step_of(_STEP_US[tiles.config], _rows(tiles, problem), busy)
    work = step.parts(partition.tiles * partition.steps / device.num_sms)
    busiest_us = partition.most_steps * step.us
    time = Expected.of_kernel(_LAUNCH_US, busiest_us, work, read_us, loads.FITTED.hidden)
    time = time.plus("tiles", partition.rounds * tile_kib * _STORE_US_PER_KIB)
    if not tiles.split_tiles:
        return time
    if tiles.add_in_place:
        return time.plus("split-K", _ADD_US + (tiles.parts - 1) * tile_kib * _ADD_US_PER_KIB)
    parts_us = H200.dram_us(tiles.slots * tile_kib * 1024, _REDUCE_SHARE)
    return time.plus("split-K", _REDUCE_US + parts_us)


def fitting_tiles(problem: ConvProblem, num_sms: int) -> dict[WgradTiles, WgradTileChoice]:
    """Returns the shipped configurations for a problem with output pixels, by their tiles."""
    found = {}
    for config, in_place in itertools.product(CONFIGS, (False, True)):
        choice = WgradTileChoice(config=config, add_in_place=in_place)
        tiles = choice.tiles(problem, num_sms)
        if not tile_refusals(tiles) and (tiles.split_tiles or not in_place):
            found[tiles] = choice
    return found


class GluonWgrad(Family[WgradTileChoice]):
    """The kernels of ``kernels/gluon_wgrad.py``."""

    kind = "gluon_wgrad"
    is_interpreted = False
    direction = "wgrad"
    config_type = WgradTileChoice
    is_gemm = True
    tile_fields = ("rows_from_x", "consumers", "main_blocks", "rest_blocks")
    is_wrapped = True

    def case_refusals(self, case: Case, device: Device) -> Refusals:
        found = (*tap_refusals(case), *gluon.common_refusals(case.problem, case.dtype, device))
        if case.problem.batch == 0:
            found += refused("the batch is empty", in_key=False)
        if case.output_dtype not in gluon.DTYPES:
            out = case.output_dtype
            found += refused(f"out_dtype is {out}, tiles of dw are staged as float16 or bfloat16")
        return found

    def fit_refusals(self, config: WgradTileChoice, case: Case, device: Device) -> Refusals:
        if case.problem.batch == 0:
            return ()
        return tile_refusals(config.tiles(case.problem, device.num_sms))

    def candidates(self, case: Case, device: Device) -> Mapping[WgradTileChoice, Expected]:
        problem, read_us = case.problem, loads.dram_us(case, device)
        return ranked(
            {
                choice: expected_time(tiles, problem, device, read_us)
                for tiles, choice in fitting_tiles(problem, device.num_sms).items()
            }
        )

    def bind(self, config: WgradTileChoice, case: Case, device: Device) -> WgradPlan:
        from triton_ext.ops.kernels import gluon_wgrad as kernels

        problem, dtype, strides = case.problem, case.dtype, case.strides_of_x
        co, ci = problem.out_channels, problem.in_channels
        x = Operand.make(problem.x_shape, strides, ELEMENT_BYTES, as_matrix=False)
        dy = Operand.make(problem.y_shape, case.strides_of_dy, ELEMENT_BYTES, as_matrix=True)
        tiles = config.tiles(problem, device.num_sms)
        programs, block = tiles.partition.programs, [tiles.config.pixels, BLOCK_C]
        pixels = problem.batch * math.prod(problem.output_size)
        x_desc = gluon.im2col_of(problem, ci, strides, dtype, block)
        x_matrix = None
        if problem.is_pointwise and x.pixel_stride:
            x_matrix = gluon.tiled(dtype, [pixels, ci], x.pixel_stride, block)

        def describe_x(rows: torch.Tensor) -> Any:
            # Also where it is not used: it checks the address.
            desc = gluon.with_base(x_desc, rows)
            return desc if x_matrix is None else x_matrix(rows)

        told, reducer = kernels.WgradProblem.make(tiles, problem), None
        if (split := tiles.split_tiles) and not tiles.add_in_place:
            blocks = tiles.config.row_blocks * tiles.config.column_blocks
            parts, columns, num_warps = reduction_of(tiles.parts, blocks * split)
            reducer = Launcher(
                kernel=kernels.reduce_kernel,
                grid=(blocks * 4 * (BLOCK_C // columns), split, 1),
                scalars=(told,),
                constants={"CONFIG": tiles.config, "COLUMNS": columns, "PARTS": parts},
                # It starts while the first kernel's last programs run, and waits for them.
                options={"num_warps": num_warps, "launch_pdl": True},
            )
        dw_shape, dw_block = [co, problem.taps, ci], [BLOCK_C, 1, BLOCK_C]
        return WgradPlan(
            problem=problem,
            computed=problem,
            out_dtype=case.output_dtype,
            tiles=tiles,
            x_operand=x,
            dy_operand=dy,
            describe_x=describe_x,
            describe_dy=gluon.tiled(dtype, [pixels, co], dy.pixel_stride, block),
            describe_dw=gluon.tiled(case.output_dtype, dw_shape, ci, dw_block),
            launcher=gluon.launcher(kernels.conv_wgrad_kernel, programs, told, CONFIG=tiles.config),
            # Never without an address.
            workspace_elements=max(tiles.workspace_elements, 4),
            flags=programs * tiles.config.consumers if config.add_in_place else 0,
            reducer=reducer,
        )


GLUON_WGRAD: GluonWgrad = GluonWgrad()
