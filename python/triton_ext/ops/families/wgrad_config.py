"""Tile configurations of the @triton.jit wgrad kernels, split-K, and the model that ranks them.

The model's numbers were fitted to a sweep over the 38 layers of ResNet-50 at two batch sizes (H200,
Triton 3.9.0, fp16, 2026-11-20; docs/performance.md); its median error is 2 %.  Pure arithmetic: no
tensors, no GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from triton_ext.ops.core.descriptors import ROW_BYTES
from triton_ext.ops.core.device import H200, Device
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import (
    Refusal,
    field_refusals,
    power_refusals,
    range_refusals,
    refused,
    smem_refusals,
)

__all__ = [
    "CONFIGS",
    "MOST_PART_ROUNDS",
    "Partition",
    "WgradChoice",
    "WgradConfig",
    "WgradTiles",
    "expected_us",
    "memory_us",
    "ranked_tiles",
    "reduction",
    "stores_through_tma",
]

# Bytes of an element of x and dy: WGMMA transposes 16-bit types only.
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradConfig:
    """Tile sizes and launch options of the kernel.

    Attributes:
        block_co: Output channels per tile.
        block_ci: Input channels per tile.
        taps: Filter taps per tile, 1 to 9: a block of dy is loaded once for all of them.
        block_pixels: Output pixels per k iteration.
        num_stages: Depth of the pipeline of loads.
        num_warps: Warps per CTA; 4 is one warp group, 8 are two that split the output channels.
        store_parts: Pieces in which TMA stores a block of a whole tile, 1 or 2.
    """

    block_co: int
    block_ci: int
    taps: int = 1
    block_pixels: int = 64
    num_stages: int
    num_warps: int
    store_parts: int = 1

    @property
    def tile_elements(self) -> int:
        """Elements of a tile."""
        return self.block_co * self.block_ci * self.taps

    @property
    def accumulators(self) -> int:
        """fp32 accumulators per thread."""
        return self.tile_elements // (32 * self.num_warps)

    def smem_bytes(self, out_bytes: int = 0, *, in_pieces: bool = True) -> int:
        """Returns the shared memory of a CTA in bytes.

        Args:
            out_bytes: Bytes of an element of dw; 0 where no tile is computed as a whole: parts are
                stored from registers, or through what the pipeline has left.
            in_pieces: Whether a block goes through shared memory in ``store_parts`` pieces, as TMA
                stores it, or at once.
        """
        rows = self.block_co + self.taps * self.block_ci
        block = self.block_co * self.block_ci * out_bytes
        staging = block // self.store_parts if in_pieces else block
        return self.num_stages * rows * self.block_pixels * ELEMENT_BYTES + staging

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the kernel cannot be compiled for it; nothing where it can."""
        found = field_refusals(self)
        if found:
            return found
        found += power_refusals(self, 16, 256, "block_co", "block_ci", "block_pixels")
        found += power_refusals(self, 4, 8, "num_warps")
        found += range_refusals(self, 1, 9, "taps") + range_refusals(self, 1, 2, "store_parts")
        if self.block_co < 16 * self.num_warps:
            found += refused(
                f"block_co is {self.block_co}: {self.num_warps} warps of 16 rows need "
                f"{16 * self.num_warps}"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradChoice:
    """A configuration of the family.

    Attributes:
        config: How the kernel is compiled.
        part_rounds: Parts of tiles that the busiest program computes.
    """

    config: WgradConfig
    part_rounds: int = 1


@dataclass(frozen=True, slots=True)
class Partition:
    """Tile schedule of a persistent wgrad kernel with split-K.

    Full rounds of tiles are computed whole: program p has the tiles p, p + programs, ...  The tiles
    that remain would leave most multiprocessors idle, so their k iterations are split: slot s has
    part s // rest of remaining tile s % rest, and program p has the slots p, p + programs, ...
    Neighbouring programs thus load the same pixels for different tiles at the same time, which L2
    rewards.

    Attributes:
        tiles: Tiles of dw.
        steps: k iterations of a tile.
        programs: Programs, at most one per multiprocessor.
        rest: Tiles that remain after the full rounds.
        splits: Parts of each remaining tile.
    """

    tiles: int
    steps: int
    programs: int
    rest: int
    splits: int

    @classmethod
    def make(
        cls, tiles: int, steps: int, num_sms: int, part_rounds: int = 1, most_splits: int = 1 << 30
    ) -> Partition:
        """Returns the schedule for a number of multiprocessors.

        Args:
            tiles: Tiles of dw.
            steps: k iterations of a tile.
            num_sms: Multiprocessors.
            part_rounds: Slots of the busiest program: more of them leave fewer multiprocessors
                idle, and more parts to add.
            most_splits: Limit of parts of a tile.
        """
        rest = tiles % num_sms
        splits = min(part_rounds * num_sms // rest, steps, most_splits) if rest else 1
        programs = num_sms if tiles > rest else min(rest * splits, num_sms)
        return cls(tiles, steps, programs, rest, splits)

    @property
    def waves(self) -> int:
        """Full rounds of whole tiles."""
        return (self.tiles - self.rest) // self.programs

    @property
    def slots(self) -> int:
        """Parts of all remaining tiles; where ``splits`` is 1, each is a whole tile."""
        return self.rest * self.splits

    @property
    def split_tiles(self) -> int:
        """Tiles that are computed in several parts, the last ones."""
        return self.rest if self.splits > 1 else 0

    @property
    def parts(self) -> int:
        """Parts of split tiles: slots of the workspace."""
        return self.split_tiles * self.splits

    def part(self, number: int) -> range:
        """Returns the k iterations of a part."""
        base, longer = divmod(self.steps, self.splits)
        first = number * base + min(number, longer)
        return range(first, first + base + (number < longer))

    def segments(self, program: int) -> Iterator[tuple[int, range]]:
        """Yields the tiles of a program in its order, with the k iterations it computes of each."""
        for wave in range(self.waves):
            yield wave * self.programs + program, range(self.steps)
        for slot in range(program, self.slots, self.programs):
            number, tile = divmod(slot, self.rest)
            yield self.tiles - self.rest + tile, self.part(number)

    @property
    def rounds(self) -> int:
        """Segments of the busiest program, the first one."""
        return self.waves + math.ceil(self.slots / self.programs)

    @property
    def most_steps(self) -> int:
        """k iterations of the busiest program, the first one."""
        slots = range(0, self.slots, self.programs)
        return self.waves * self.steps + sum(len(self.part(slot // self.rest)) for slot in slots)


@dataclass(frozen=True, slots=True)
class WgradTiles:
    """The tiles of one problem.

    Attributes:
        config: The tile configuration.
        co_blocks: Blocks of output channels.
        partition: The tile schedule.
        operand_mib: MiB of x and dy, which come from DRAM once.
    """

    config: WgradConfig
    co_blocks: int
    partition: Partition
    operand_mib: float = 0.0

    @classmethod
    def make(
        cls, config: WgradConfig, problem: ConvProblem, num_sms: int, part_rounds: int = 1
    ) -> WgradTiles:
        """Returns the tiles of a problem with at least one output pixel."""
        co_blocks = math.ceil(problem.out_channels / config.block_co)
        pixels = problem.batch * math.prod(problem.output_size)
        operands = pixels * problem.out_channels + problem.pixels_read * problem.in_channels
        partition = Partition.make(
            co_blocks * _ci_blocks(config, problem) * math.ceil(problem.taps / config.taps),
            math.ceil(pixels / config.block_pixels),
            num_sms,
            part_rounds,
        )
        return cls(config, co_blocks, partition, operands * ELEMENT_BYTES / 2**20)

    @property
    def workspace_elements(self) -> int:
        """fp32 elements of the workspace for parts."""
        return self.partition.parts * self.config.tile_elements


def _ci_blocks(config: WgradConfig, problem: ConvProblem) -> int:
    """Returns the blocks of input channels that a block of output channels meets, at most."""
    co, ci = problem.out_channels, problem.in_channels
    group_co, group_ci = co // problem.groups, ci // problem.groups
    most = 0
    for first_co in range(0, co, config.block_co):
        last_co = min(first_co + config.block_co, co) - 1
        # The kernel begins at a multiple of 8 channels.
        first = first_co // group_co * group_ci // 8 * 8
        end = (last_co // group_co + 1) * group_ci
        most = max(most, math.ceil((end - first) / config.block_ci))
    return most


# The reduction kernel has enough loads in flight from this many programs on.
_REDUCE_PROGRAMS = 1024


def reduction(tiles: WgradTiles) -> tuple[int, int, int]:
    """Returns columns, unroll and warps of the reduction kernel, fewer for fewer elements.

    A program has 8 to 64 input channels, the columns, of 16 output channels, and the loads of
    ``unroll`` parts in flight together.
    """
    partition, config = tiles.partition, tiles.config
    elements = partition.split_tiles * config.tile_elements
    columns = min(64, config.block_ci)
    while columns > 8 and elements // (16 * columns) < _REDUCE_PROGRAMS:
        columns //= 2
    # Each thread has 16 bytes of a part, or twice as many, and at most 64 registers of parts.
    num_warps = max(1, columns // 16)
    per_thread = 16 * columns // (32 * num_warps)
    unroll = min(64 // per_thread, 1 << (partition.splits - 1).bit_length())
    return columns, unroll, num_warps


class Cost(NamedTuple):
    """Microseconds on one multiprocessor: a k iteration; a tile or a part of one besides these."""

    step_us: float
    segment_us: float


def _config(*sizes: int, parts: int = 1) -> WgradConfig:
    """A row of the table below, short enough to be read as one."""
    names = ("block_co", "block_ci", "taps", "num_stages", "num_warps")
    return WgradConfig(**dict(zip(names, sizes, strict=True)), store_parts=parts)


# Fitted by `python -m benchmarks.fit_wgrad SWEEP.json --fit`.
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
    _config(128, 256, 1, 4, 8, parts=2): Cost(0.592, 11.35),
    _config(256, 128, 1, 4, 8, parts=2): Cost(0.652, 10.94),
    # The seven rows of a stem's filter under partial im2col.
    _config(64, 32, 7, 5, 4): Cost(1.482, 11.96),
}

CONFIGS: tuple[WgradConfig, ...] = tuple(_COSTS)

# More leave less than a tenth of the multiprocessors' time unused, and too many parts.
MOST_PART_ROUNDS = 4

# The first kernel's launch; the reduction kernel beside its reads; a MiB of parts that it reads.
_LAUNCH_US = H200.launch_us - 0.45
_REDUCE_US = 1.25
_REDUCE_US_PER_MIB = 0.0


def memory_us(tiles: WgradTiles) -> float:
    """Returns the time in which x and dy come from DRAM, a lower bound for all configurations."""
    return tiles.operand_mib * H200.read_us_per_mib


def expected_us(tiles: WgradTiles) -> float:
    """Returns the time of a shipped configuration that the model expects, in microseconds."""
    partition, cost = tiles.partition, _COSTS[tiles.config]
    steps_us = partition.most_steps * cost.step_us
    time = _LAUNCH_US + max(steps_us, memory_us(tiles)) + partition.rounds * cost.segment_us
    if partition.parts:
        time += _REDUCE_US + tiles.workspace_elements * 4 / 2**20 * _REDUCE_US_PER_MIB
    return time


def stores_through_tma(problem: ConvProblem, out_bytes: int) -> bool:
    """Tells whether whole tiles of dw, of elements of so many bytes, are stored by TMA."""
    return problem.groups == 1 and problem.in_channels * out_bytes % ROW_BYTES == 0


# The planner asks for several families, and for several ways to pack rows.
@lru_cache(maxsize=256)
def ranked_tiles(
    problem: ConvProblem, device: Device, out_bytes: int = ELEMENT_BYTES
) -> tuple[tuple[WgradChoice, WgradTiles], ...]:
    """Returns the shipped configurations that fit, in the order of :func:`expected_us`.

    Args:
        problem: With at least one output pixel.
        device: The device.
        out_bytes: Bytes of an element of dw.
    """
    in_pieces = stores_through_tma(problem, out_bytes)
    found: dict[WgradTiles, WgradChoice] = {}
    for config in CONFIGS:
        for part_rounds in range(1, MOST_PART_ROUNDS + 1):
            tiles = WgradTiles.make(config, problem, device.num_sms, part_rounds)
            has_whole = tiles.partition.tiles > tiles.partition.split_tiles
            needed = config.smem_bytes(out_bytes if has_whole else 0, in_pieces=in_pieces)
            if not smem_refusals(needed, device):
                # More rounds may give the same parts.
                found.setdefault(tiles, WgradChoice(config=config, part_rounds=part_rounds))
    ordered = sorted(found, key=expected_us)
    return tuple((found[tiles], tiles) for tiles in ordered)
