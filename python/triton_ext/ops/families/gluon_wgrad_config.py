"""Tile configurations of the Gluon kernels of wgrad, and the model that ranks them.

Pure arithmetic: no tensors, no GPU.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from triton_ext.errors import LaunchError
from triton_ext.ops.core.device import H200
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import (
    Refusal,
    field_refusals,
    power_refusals,
    range_refusals,
    refused,
)
from triton_ext.ops.families.gluon_config import (
    ELEMENT_BYTES,
    RESERVED_BYTES,
    SMEM_BYTES,
    WARP_GROUP_THREADS,
)
from triton_ext.ops.families.wgrad_config import Partition

__all__ = [
    "BLOCK_C",
    "CONFIGS",
    "MOST_ADDED_PARTS",
    "RATES",
    "WgradTileChoice",
    "WgradTileConfig",
    "WgradWork",
    "expected_us",
    "ranked_work",
    "reduction",
]

# A CTA that adds the other parts of its tile reads them one after another; beyond this many a
# second kernel is faster.
MOST_ADDED_PARTS = 5
# Channels of a block: 64 of 16 bits are one 128-byte swizzle row, and one consumer's rows.
BLOCK_C = 64

Share = Literal["columns", "rows", "tile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradTileConfig:
    """Tile sizes and warp roles of the kernel.

    A block is 64 channels: of dy, or of x seen through one filter tap.

    Attributes:
        rows_from_x: Whether x gives the rows of a tile and dy its columns; else the other way.
        share: Operand that the consumers share.  "columns": each has a block of rows of its own.
            "rows": one block of rows, and each has columns of its own.  "tile": all of a tile that
            is one block high, and each has pixels of its own.
        consumers: Consumer warp groups.
        main_blocks: Column blocks of a consumer's first accumulator: 1, 2 or 4.
        rest_blocks: Column blocks of the second accumulator: 0 for none.
        rest_consumers: Consumers that have the second accumulator, for "rows", where it is 0 if
            there is none; else all have it.
        pixels: Pixels of a load; a k iteration has as many for each consumer with its own.
        stages: Depth of the ring of loads.
        store_buffers: Staging buffers of a consumer: 2 let it convert while the last store reads.
    """

    rows_from_x: bool = False
    share: Share = "columns"
    consumers: int = 2
    main_blocks: int
    rest_blocks: int = 0
    rest_consumers: int = 0
    pixels: int = 64
    stages: int
    store_buffers: int = 1

    def __post_init__(self) -> None:
        """Refuses fields of another type, and numbers that are too small to compute with."""
        found = field_refusals(self, may_be_zero=("rest_blocks", "rest_consumers"))
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

    @property
    def pixel_groups(self) -> int:
        """Loads of different pixels in a k iteration."""
        return self.consumers if self.share == "tile" else 1

    @property
    def row_buffers(self) -> int:
        """Blocks of rows in a stage."""
        return 1 if self.share == "rows" else self.consumers

    @property
    def main_buffers(self) -> int:
        """Columns of first accumulators in a stage."""
        return 1 if self.share == "columns" else self.consumers

    @property
    def rest_buffers(self) -> int:
        """Columns of second accumulators in a stage."""
        return self.rest_consumers if self.share == "rows" else self.main_buffers

    @property
    def step_pixels(self) -> int:
        """Pixels of a k iteration."""
        return self.pixels * self.pixel_groups

    def has_rest(self, consumer: int) -> bool:
        """Returns whether a consumer has the second accumulator."""
        return self.rest_blocks > 0 and (self.share != "rows" or consumer < self.rest_consumers)

    def first_column(self, consumer: int) -> int:
        """Returns the first column block of a consumer's first accumulator."""
        return consumer * self.main_blocks if self.share == "rows" else 0

    def first_rest_column(self, consumer: int) -> int:
        """Returns the first column block of a consumer's second accumulator."""
        if self.share == "rows":
            return self.consumers * self.main_blocks + consumer * self.rest_blocks
        return self.main_blocks

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
        """fp32 registers of a consumer's accumulators, per thread."""
        columns = (self.main_blocks + self.rest_blocks) * BLOCK_C
        return BLOCK_C * columns // WARP_GROUP_THREADS

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

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the configuration cannot run; nothing where it can."""
        found = range_refusals(self, 1, 3, "consumers")
        if found:
            return found
        found += power_refusals(self, 1, 4, "main_blocks")
        if self.rest_blocks:
            found += power_refusals(self, 1, 4, "rest_blocks")
        found += power_refusals(self, 16, 128, "pixels")
        if self.share == "rows":
            expected = range(1, self.consumers + 1) if self.rest_blocks else range(1)
            if self.rest_consumers not in expected:
                found += refused(
                    f"rest_consumers is {self.rest_consumers}: expected {expected[0]} to "
                    f"{expected[-1]}, with {self.rest_blocks} rest_blocks of {self.consumers} "
                    "consumers"
                )
        if self.stages < 2:
            found += refused(f"stages is {self.stages}: the producer needs at least 2")
        if self.smem_bytes + RESERVED_BYTES > SMEM_BYTES:
            found += refused(f"{self.smem_bytes} B of shared memory, a CTA has {SMEM_BYTES}")
        # Some 24 registers hold addresses and counters beside the accumulators.
        if self.accumulator_registers + 24 > self.consumer_registers:
            found += refused(
                f"accumulators take {self.accumulator_registers} registers of a thread's "
                f"{self.consumer_registers}"
            )
        return found

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
    """A configuration of the family.

    Attributes:
        config: How the kernel is compiled.
        add_in_place: Whether the CTA with a tile's last part adds the others; else a second kernel.
    """

    config: WgradTileConfig
    add_in_place: bool = False


@dataclass(frozen=True, slots=True)
class WgradWork:
    """The tiles of one convolution.

    Attributes:
        choice: The configuration.
        partition: The tile schedule, one segment of split tiles per CTA at most.
        dy_tiles: Tiles along the channels of dy.
    """

    choice: WgradTileChoice
    partition: Partition
    dy_tiles: int

    @classmethod
    def make(cls, choice: WgradTileChoice, problem: ConvProblem, num_sms: int) -> WgradWork:
        """Returns the tiles of a problem with output pixels, for a choice without problems."""
        config = choice.config
        pixels = problem.batch * math.prod(problem.output_size)
        x_blocks = problem.taps * math.ceil(problem.in_channels / BLOCK_C)
        dy_tiles = math.ceil(math.ceil(problem.out_channels / BLOCK_C) / config.dy_blocks)
        partition = Partition.make(
            dy_tiles * math.ceil(x_blocks / config.x_blocks),
            math.ceil(pixels / config.step_pixels),
            num_sms,
            most_splits=MOST_ADDED_PARTS if choice.add_in_place else num_sms,
        )
        return cls(choice, partition, dy_tiles)

    @property
    def config(self) -> WgradTileConfig:
        """The tile configuration."""
        return self.choice.config

    @property
    def add_in_place(self) -> bool:
        """Whether the CTA with a tile's last part adds the others; else a second kernel."""
        return self.choice.add_in_place

    @property
    def parts(self) -> int:
        """Parts of a tile that is split."""
        return self.partition.splits * self.config.pixel_groups

    @property
    def is_split(self) -> bool:
        """Whether there are tiles in several parts."""
        return self.partition.rest > 0 and self.parts > 1

    @property
    def slots(self) -> int:
        """Tiles of the workspace."""
        return self.partition.slots * self.config.pixel_groups if self.is_split else 0

    @property
    def workspace_elements(self) -> int:
        """fp32 elements of the workspace; never 0, so that it has an address."""
        return max(self.slots * self.config.tile_elements, 4)

    @property
    def flags(self) -> int:
        """Flags between the CTAs that split a tile."""
        return self.partition.programs * self.config.consumers

    @property
    def reduction(self) -> tuple[tuple[int, int], int, int, int] | None:
        """Grid, parts, columns and warps of the reduction kernel; ``None`` if nothing is to add."""
        if not self.is_split or self.add_in_place:
            return None
        blocks, rest = self.config.row_blocks * self.config.column_blocks, self.partition.rest
        parts, columns, num_warps = reduction(self.parts, blocks * rest)
        return (blocks * 4 * (BLOCK_C // columns), rest), parts, columns, num_warps

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the kernel cannot compute it; nothing where it can."""
        found = self.config.refusals()
        if self.config.share == "tile" and self.partition.waves:
            found += refused(
                f"consumers share a tile, and {self.partition.tiles} tiles are not split"
            )
        if self.config.share == "tile" and self.add_in_place:
            found += refused("consumers that share a tile leave adding to the second kernel")
        return found

    def __str__(self) -> str:
        added = ("_a" if self.add_in_place else "_k") + str(self.parts) if self.is_split else ""
        return f"{self.config}{added}"


def reduction(parts: int, blocks: int) -> tuple[int, int, int]:
    """Returns parts, columns and warps of a program of the reduction kernel.

    It reads so many parts at a time, of 16 rows and so many columns of a block of 64 x 64: blocks
    are cut the finer, the fewer of them there are.

    Args:
        parts: Parts of a tile.
        blocks: Blocks of all tiles that are split.
    """
    if parts <= 4:
        return 4, 64, 4
    if parts <= 16:
        return 16, 32, 8
    return 64, 16 if blocks > 8 else 8, 16


class Rates(NamedTuple):
    """Costs of all but the k iterations, in microseconds; KiB are those of fp32 tiles."""

    launch: float
    store_per_kib: float
    add: float
    add_per_kib: float
    reduce: float
    reduce_per_mib: float


# For layers where tiles of six blocks leave multiprocessors idle, and tiles of four need a second
# round.  Not measured: a k iteration loads 48 KiB, and other tiles that loads bound have 78
# (64x128) to 94 (128x128) KiB per us, which is 0.51 to 0.61 us.  The model has more than the mean,
# so that tuning tries them while the model chooses them for no layer of the suites.
_FIVE_BLOCKS = tuple(
    WgradTileConfig(
        rows_from_x=of_x, share="rows", main_blocks=2, rest_blocks=1, rest_consumers=1, stages=4
    )
    for of_x in (False, True)
)

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
    **dict.fromkeys(_FIVE_BLOCKS, 0.59),
}
# The fitted launch is longer than that of other kernels.
RATES = Rates(H200.launch_us + 1.8, 0.0175, 3.3, 0.0126, 3.1, 0.53)

CONFIGS: tuple[WgradTileConfig, ...] = tuple(_STEP_US)


def expected_us(work: WgradWork, mib: float) -> float:
    """Returns the time that the model expects, in microseconds, for so many MiB of x and dy."""
    partition, rates = work.partition, RATES
    tile_kib = work.config.tile_elements * 4 / 1024
    steps_us = partition.most_steps * _STEP_US[work.config]
    time = rates.launch + max(steps_us, mib * H200.read_us_per_mib)
    time += partition.rounds * tile_kib * rates.store_per_kib
    if work.is_split and work.add_in_place:
        time += rates.add + (work.parts - 1) * tile_kib * rates.add_per_kib
    elif work.is_split:
        time += rates.reduce + work.slots * tile_kib / 1024 * rates.reduce_per_mib
    return time


@functools.lru_cache(maxsize=1024)
def ranked_work(problem: ConvProblem, num_sms: int) -> tuple[tuple[WgradWork, float], ...]:
    """Returns the shipped configurations that can compute a problem, with :func:`expected_us`.

    Args:
        problem: With at least one output pixel.
        num_sms: Multiprocessors.
    """
    pixels = problem.batch * math.prod(problem.output_size)
    elements = pixels * problem.out_channels + problem.pixels_read * problem.in_channels
    mib = ELEMENT_BYTES * elements / 2**20
    every = (
        WgradWork.make(WgradTileChoice(config=config, add_in_place=in_place), problem, num_sms)
        for config in CONFIGS
        for in_place in (False, True)
    )
    timed = (
        (work, expected_us(work, mib))
        for work in every
        if not work.refusals() and (work.is_split or not work.add_in_place)
    )
    return tuple(sorted(timed, key=lambda item: item[1]))
