"""Tile configurations of wgrad, who computes which part of a tile, and the choice of both.

The choice is a model, not a measurement.  Its numbers were fitted to a sweep over the 38 layers of
ResNet-50 at two batch sizes (H200, Triton 3.9.0, fp16, 2026-11-20; docs/performance.md), whose
times it gives with a median error of 2 %.

Pure arithmetic: no tensors, no GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton_ext.ops.core.device import H200
from triton_ext.ops.core.problem import ConvProblem

__all__ = [
    "CONFIGS",
    "MOST_PART_ROUNDS",
    "PLAIN_STORE",
    "SMEM_BYTES",
    "Partition",
    "Reduction",
    "Store",
    "WgradChoice",
    "WgradConfig",
    "WgradTiles",
    "choose_tiles",
    "expected_us",
    "memory_us",
    "rank_tiles",
]

# Shared memory that a CTA can use on sm_90 and sm_100: 227 KiB.
SMEM_BYTES = 232448

# Of the operands; WGMMA transposes 16-bit types only.
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """How whole tiles are stored, as far as shared memory is concerned.

    Attributes:
        element_bytes: Size of an element of dw.
        in_pieces: Whether a block goes through shared memory in ``store_parts`` pieces; where dw is
            not stored by TMA it does as a whole.
    """

    element_bytes: int = ELEMENT_BYTES
    in_pieces: bool = True


PLAIN_STORE = Store()


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradConfig:
    """One way to compile the kernel.

    Attributes:
        block_co: Output channels per tile.
        block_ci: Input channels per tile.
        taps: Filter taps per tile, 1 to 9: a block of dy is loaded once for all of them.
        block_pixels: Output pixels per step.
        num_stages: Depth of the pipeline of loads.
        num_warps: Warps per CTA; 4 is one warp group, 8 are two that split the output channels.
        store_parts: Pieces in which a block of a whole tile goes through shared memory, 1 or 2.
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

    def smem_bytes(self, store: Store | None) -> int:
        """Shared memory that a CTA takes, in bytes.

        Args:
            store: How whole tiles are stored; ``None`` where there are only parts, which are stored
                from registers, or through what the pipeline has left.
        """
        rows = self.block_co + self.taps * self.block_ci
        size = self.num_stages * rows * self.block_pixels * ELEMENT_BYTES
        if store is not None:
            block = self.block_co * self.block_ci * store.element_bytes
            size += block // self.store_parts if store.in_pieces else block
        return size

    def fits(self, store: Store | None, available_bytes: int = SMEM_BYTES) -> bool:
        """Whether the configuration fits the shared memory that a CTA can use."""
        # 1 KiB for mbarriers and alignment.
        return self.smem_bytes(store) + 1024 <= available_bytes

    def problems(self) -> tuple[str, ...]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        found = []
        for name in ("block_co", "block_ci", "block_pixels"):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                found.append(f"{name} is {value}: expected a power of two from 16 on")
        if self.num_warps not in (4, 8):
            found.append(f"num_warps is {self.num_warps}: expected 4 or 8")
        elif self.block_co < 16 * self.num_warps:
            found.append(
                f"block_co is {self.block_co}: {self.num_warps} warps of 16 rows need "
                f"{16 * self.num_warps}"
            )
        if not 1 <= self.taps <= 9:
            found.append(f"taps is {self.taps}: expected 1 to 9")
        if self.num_stages < 1:
            found.append(f"num_stages is {self.num_stages}: expected at least 1")
        if self.store_parts not in (1, 2):
            found.append(f"store_parts is {self.store_parts}: expected 1 or 2")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradChoice:
    """All that is chosen for a problem.

    Attributes:
        config: How the kernel is compiled.
        part_rounds: Parts of tiles that the busiest program has.
    """

    config: WgradConfig
    part_rounds: int = 1


@dataclass(frozen=True, slots=True)
class Partition:
    """Who reduces what.

    The first ``whole_tiles`` are computed as a whole, by program p those numbered p,
    p + programs, ...  Those that would leave most multiprocessors idle in a last round, the
    ``split_tiles``, are split over pixels: slot s has the steps of part s // split_tiles of tile
    s % split_tiles of them, and program p computes the slots p, p + programs, ...  So neighbours
    have the same steps of different tiles, and load the same pixels at the same time.

    Attributes:
        steps: Steps of a tile, the whole reduction.
        programs: Programs.
        whole_tiles: Tiles that are computed as a whole.
        split_tiles: The others.
        splits: Parts of each of them, 1 where there are none.
    """

    steps: int
    programs: int
    whole_tiles: int
    split_tiles: int
    splits: int

    @classmethod
    def make(cls, tiles: int, steps: int, num_sms: int, part_rounds: int = 1) -> Partition:
        """Returns the partition for a number of multiprocessors.

        Args:
            tiles: Tiles.
            steps: Steps of a tile.
            num_sms: Multiprocessors, one program on each.
            part_rounds: Slots of the busiest program: more of them leave fewer multiprocessors
                idle, and more parts to add.
        """
        rest = tiles % num_sms
        splits = min(part_rounds * num_sms // rest, steps) if rest else 1
        if splits <= 1:
            return cls(steps, min(tiles, num_sms), tiles, 0, 1)
        whole = tiles - rest
        return cls(steps, num_sms if whole else min(rest * splits, num_sms), whole, rest, splits)

    def part(self, number: int) -> range:
        """Returns the steps of a part."""
        base, longer = divmod(self.steps, self.splits)
        first = number * base + min(number, longer)
        return range(first, first + base + (number < longer))

    def segments(self, program: int) -> Iterator[tuple[int, range]]:
        """Yields what a program computes, in its order: tiles, and which of their steps."""
        for tile in range(program, self.whole_tiles, self.programs):
            yield tile, range(self.steps)
        for slot in range(program, self.parts, self.programs):
            number, tile = divmod(slot, self.split_tiles)
            yield self.whole_tiles + tile, self.part(number)

    @property
    def parts(self) -> int:
        """Parts of all tiles that are split: slots of the workspace."""
        return self.split_tiles * self.splits

    @property
    def rounds(self) -> int:
        """Segments of the busiest program, the first one."""
        return math.ceil(self.whole_tiles / self.programs) + math.ceil(self.parts / self.programs)

    @property
    def most_steps(self) -> int:
        """Steps of the busiest program, the first one."""
        slots = range(0, self.parts, self.programs)
        parts = sum(len(self.part(slot // self.split_tiles)) for slot in slots)
        return math.ceil(self.whole_tiles / self.programs) * self.steps + parts


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradTiles:
    """The tiles of one problem, and who computes them.

    Attributes:
        config: The tile configuration.
        co_blocks: Blocks of output channels.
        partition: Who computes what.
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
        """Returns the tiles of a problem.

        Args:
            config: The tile configuration.
            problem: With at least one output pixel.
            num_sms: Multiprocessors.
            part_rounds: Parts of tiles that the busiest program has.
        """
        co_blocks = math.ceil(problem.out_channels / config.block_co)
        tap_groups = math.ceil(problem.taps / config.taps)
        pixels = problem.batch * math.prod(problem.output_size)
        operands = pixels * problem.out_channels + problem.pixels_read * problem.in_channels
        return cls(
            config=config,
            co_blocks=co_blocks,
            partition=Partition.make(
                co_blocks * _ci_blocks(config, problem) * tap_groups,
                math.ceil(pixels / config.block_pixels),
                num_sms,
                part_rounds,
            ),
            operand_mib=operands * ELEMENT_BYTES / 2**20,
        )

    def fits(self, store: Store, available_bytes: int = SMEM_BYTES) -> bool:
        """Whether a CTA has the shared memory for it."""
        whole = store if self.partition.whole_tiles else None
        return self.config.fits(whole, available_bytes)

    @property
    def workspace_elements(self) -> int:
        """Elements of fp32 that the parts take."""
        return self.partition.parts * self.config.tile_elements


def _ci_blocks(config: WgradConfig, problem: ConvProblem) -> int:
    """Blocks of input channels that a block of output channels meets, at most."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How the second kernel is compiled.

    Attributes:
        columns: Input channels per program, beside 16 output channels; 8 to 64.
        unroll: Parts whose loads are in flight together.
        num_warps: Warps per program.
    """

    columns: int
    unroll: int
    num_warps: int

    @classmethod
    def choose(cls, tiles: WgradTiles) -> Reduction:
        """Returns a reduction: the fewer elements there are, the smaller its programs."""
        partition, config = tiles.partition, tiles.config
        elements = partition.split_tiles * config.tile_elements
        columns = min(64, config.block_ci)
        while columns > 8 and elements // (16 * columns) < _REDUCE_PROGRAMS:
            columns //= 2
        # Each thread has 16 bytes of a part, or twice as many, and at most 64 registers of parts.
        num_warps = max(1, columns // 16)
        per_thread = 16 * columns // (32 * num_warps)
        unroll = min(64 // per_thread, 1 << (partition.splits - 1).bit_length())
        return cls(columns=columns, unroll=unroll, num_warps=num_warps)


# Programs from which on the second kernel has enough loads in flight.
_REDUCE_PROGRAMS = 1024


def _config(
    block_co: int, block_ci: int, taps: int, num_stages: int, num_warps: int, *, parts: int = 1
) -> WgradConfig:
    """A row of the table below, short enough to be read as one."""
    return WgradConfig(
        block_co=block_co,
        block_ci=block_ci,
        taps=taps,
        num_stages=num_stages,
        num_warps=num_warps,
        store_parts=parts,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a configuration costs on one multiprocessor, in microseconds.

    Attributes:
        step_us: One step: block_pixels pixels of a tile.
        segment_us: A tile or a part of one besides its steps: filling the pipeline, the stores.
    """

    step_us: float
    segment_us: float


# What a thread has for accumulators beside some 35 registers for the rest, of 255.
MAX_ACCUMULATORS = 192

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
    # The seven rows of a stem's filter, packed (rewrites/packing.py).
    _config(64, 32, 7, 5, 4): Cost(1.482, 11.96),
}

CONFIGS: tuple[WgradConfig, ...] = tuple(_COSTS)

# More leave less than a tenth of the multiprocessors' time unused, and too many parts.
MOST_PART_ROUNDS = 4

# The fit's launch of the first kernel is that much shorter than other kernels'; the second kernel
# besides what it reads; a MiB of parts that it reads.
_LAUNCH_US = H200.launch_us - 0.45
_REDUCE_US = 1.25
_REDUCE_US_PER_MIB = 0.0


def memory_us(tiles: WgradTiles) -> float:
    """Returns the time in which x and dy come from DRAM, about which no configuration is faster."""
    return tiles.operand_mib * H200.read_us_per_mib


def expected_us(tiles: WgradTiles) -> float:
    """Returns the time that a model of the machine expects, in microseconds."""
    partition, cost = tiles.partition, _COSTS[tiles.config]
    steps_us = partition.most_steps * cost.step_us
    time = _LAUNCH_US + max(steps_us, memory_us(tiles)) + partition.rounds * cost.segment_us
    if partition.parts:
        time += _REDUCE_US + tiles.workspace_elements * 4 / 2**20 * _REDUCE_US_PER_MIB
    return time


def choose_tiles(problem: ConvProblem, num_sms: int, **options: Any) -> WgradTiles | None:
    """Returns the tiles that the model expects to be fastest; ``None`` if none of them fits.

    Arguments as for :func:`rank_tiles`.
    """
    ranked = rank_tiles(problem, num_sms, **options)
    return next((tiles for _, tiles in ranked), None)


def rank_tiles(
    problem: ConvProblem,
    num_sms: int,
    *,
    store: Store = PLAIN_STORE,
    available_bytes: int = SMEM_BYTES,
) -> list[tuple[WgradChoice, WgradTiles]]:
    """Returns the choices that fit, in the order of the times that the model expects.

    Args:
        problem: With at least one output pixel.
        num_sms: Multiprocessors of the GPU.
        store: How whole tiles are stored.
        available_bytes: Shared memory that a CTA can use.

    Returns:
        Of ``CONFIGS``, each with the tiles that it makes.
    """
    every: dict[WgradTiles, WgradChoice] = {}
    for config in CONFIGS:
        for part_rounds in range(1, MOST_PART_ROUNDS + 1):
            tiles = WgradTiles.make(config, problem, num_sms, part_rounds)
            if tiles.fits(store, available_bytes):
                # More rounds may give the same parts.
                every.setdefault(tiles, WgradChoice(config=config, part_rounds=part_rounds))
    return sorted(((choice, tiles) for tiles, choice in every.items()), key=_expected_us)


def _expected_us(ranked: tuple[WgradChoice, WgradTiles]) -> float:
    return expected_us(ranked[1])
