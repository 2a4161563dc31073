"""Tile configurations of the implicit GEMM, fprop and dgrad, and the model that ranks them.

The model is the time of the busiest multiprocessor, which works on ceil(tiles / multiprocessors)
tiles one after another.  Its three numbers per configuration were fitted to 41 shapes of fprop on
an H200 (Triton 3.9.0, fp16, 2026-11-20; docs/performance.md): its choice is as fast as the best of
the table within 1.2 % in the geometric mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from triton_ext.ops.core import loads, refusals
from triton_ext.ops.core.descriptors import ELEMENT_BYTES
from triton_ext.ops.core.device import H200, RESERVED_BYTES, SMEM_BYTES, Device, Expected
from triton_ext.ops.core.loads import Rows, Step
from triton_ext.ops.core.refusals import Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTile:
    """Shared memory that the store of an output tile needs."""

    element_bytes: int = 2  # of y; of an accumulator where they go through shared memory
    residual_bytes: int = 0  # of an element of the residual that TMA loads; 0 without one
    # Whether the output tile lies in shared memory as a whole, whatever ``store_parts`` says:
    # where y is not stored by TMA, and on sm_100.
    whole: bool = False
    element_ns: float = 0.0  # time in which an element is stored through pointers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvConfig:
    """Tile configuration of fprop and dgrad; rows and columns are those of the output's matrix."""

    block_m: int  # pixels per tile
    block_n: int  # output channels per tile; of dgrad, channels of dx
    block_k: int = 64  # channels per step; 64 16-bit channels are one 128-byte swizzle row
    num_stages: int  # depth of the pipeline of loads
    num_warps: int  # warps per CTA; 4 is one warp group, 8 are two that split the rows
    store_parts: int = 1  # parts in which the output tile goes through shared memory
    group_size_m: int = 8  # neighbouring rows of tiles that go before the next columns
    taps_inner: bool = True  # whether filter taps are the inner loop, blocks of channels the outer

    # As in a TileConfig.
    rows_from_w: ClassVar[bool] = False
    filter_steps: ClassVar[int] = 0

    def refusals(self, element_bytes: int) -> Refusals:
        """Returns why kernels of operands of a size cannot be compiled so."""
        # Numbers are compared below.
        if wrong := refusals.field_refusals(self):
            return wrong
        found = refusals.power_refusals(
            self, block_m=(16, 1024), block_n=(8, 1024), num_warps=(4, 8)
        )
        found += refusals.depth_refusals(self, element_bytes, "block_k") or refusals.power_refusals(
            self, block_k=(8, 256)
        )
        return found + refusals.range_refusals(
            self, num_stages=(1, 64), store_parts=(1, 2), group_size_m=(1, 1 << 16)
        )

    def smem_bytes(self, element_bytes: int, output: OutputTile | None = None) -> int:
        """Returns the bytes of shared memory for the pipeline and the output tile.

        Elements of the operands have ``element_bytes``; by default those of an output tile in
        parts, too.
        """
        tile = output or OutputTile(element_bytes=element_bytes)
        stage = (self.block_m + self.block_n) * self.block_k * element_bytes
        parts = 1 if tile.whole else self.store_parts
        # Triton gives the residual's tile and y's memory of their own.
        tile_bytes = tile.element_bytes + tile.residual_bytes
        return self.num_stages * stage + self.block_m * self.block_n * tile_bytes // parts

    def fits(
        self, element_bytes: int, output: OutputTile | None = None, available: int = SMEM_BYTES
    ) -> bool:
        """Tells whether the configuration fits the shared memory that a CTA can use."""
        return self.smem_bytes(element_bytes, output) + RESERVED_BYTES <= available

    @property
    def store_block(self) -> list[int]:
        """Rows and columns of the boxes that TMA stores."""
        return [self.block_m, self.block_n // self.store_parts]


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a configuration on one multiprocessor, in microseconds."""

    step_us: float  # one step of the K loop: block_k channels of one tap
    # A tile besides its steps: filling the pipeline, the part of the store that does not overlap.
    tile_us: float
    more_launch_us: float = 0.0  # the kernel besides its tiles, over a launch without work
    # ``step_us`` and ``tile_us`` where WGMMAs are joined; ``None`` where they never are.
    joined: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The matrix product of fprop, or of dgrad in one stride phase."""

    pixels: int  # of the output; of dgrad, of a phase
    columns: int  # channels of the output, of a group
    channels: int  # channels that are summed over, of a tap and a group
    taps: tuple[float, ...]  # filter taps of each phase; fprop has one phase
    repeats: int = 1  # how often there are these phases
    groups: int = 1
    element_bytes: int = ELEMENT_BYTES  # of the operands
    out_bytes: int = ELEMENT_BYTES  # of an element of the output
    is_matrix: bool = False  # whether x is read as a matrix: fprop may turn the product round
    is_dgrad: bool = False
    pitch_bytes: int = 0  # from a pixel, or its group, to the next one; by default all channels
    outside: float = 0.0  # share of the pixels that a step loads from the padding

    def steps(self, block_k: int) -> int:
        """Returns the steps of a reduction whose filter can stay; 0 with several phases."""
        is_one = len(self.taps) * self.repeats == 1
        return round(self.taps[0]) * math.ceil(self.channels / block_k) if is_one else 0

    def tiles(self, config: Any) -> tuple[int, int]:
        """Returns the tiles of a phase and a group along the product's rows and its columns."""
        rows, columns = self.pixels, self.columns
        if config.rows_from_w:
            rows, columns = columns, rows
        return math.ceil(rows / config.block_m), math.ceil(columns / config.block_n)

    def programs(self, config: Any, num_sms: int) -> int:
        """Returns the CTAs; where the filter stays, a multiple of the tiles along the columns."""
        num_m, num_n = self.tiles(config)
        tiles = num_m * num_n * len(self.taps) * self.repeats * self.groups
        return min(tiles, num_sms // num_n * num_n if config.filter_steps else num_sms)

    def expected(
        self,
        config: Any,  # of ``gemm_config`` or ``gluon_config``
        cost: Cost,
        num_sms: int,
        *,
        counts_part: bool,  # whether a step of less than 128 bytes counts as its part of one
        dram_us: float = 0.0,  # time in which operands and output come from and go to DRAM
        store_us: float = 0.0,  # what a tile takes longer to store
        less_launch_us: float = 0.0,
    ) -> Expected:
        """Returns the time of a kernel, whose tiles are dealt out phase by phase."""
        (num_m, num_n), programs = self.tiles(config), num_sms
        tiles = num_m * num_n * self.groups * self.repeats
        busy = min(1.0, tiles * len(self.taps) / num_sms)
        if config.filter_steps:
            tiles, programs = num_m, num_sms // num_n
        part = config.block_k * self.element_bytes / loads.LINE_BYTES if counts_part else 1.0
        blocks = math.ceil(self.channels / config.block_k)
        # The model counts multiplications alone for other types.
        step, tile_us, is_fitted = Step(cost.step_us), cost.tile_us, False
        if self.element_bytes == ELEMENT_BYTES:
            step, is_fitted = loads.step_of(cost.step_us * part, self._rows(config), busy), True
            tile_us = tile_us * loads.FITTED.tile + store_us
        steps = [taps * blocks * (1.0 if is_fitted else part) for taps in self.taps]
        busiest_us = busiest(tiles, [count * step.us + tile_us for count in steps], programs)
        mean = tiles / programs
        work = step.parts(mean * sum(steps)) | {"tiles": mean * len(steps) * tile_us}
        launch_us = H200.launch_us + cost.more_launch_us - less_launch_us
        dram_us *= is_fitted
        return Expected.of_kernel(launch_us, busiest_us, work, dram_us, loads.FITTED.hidden)

    def _rows(self, config: Any) -> Rows:
        """Returns the rows of boxes that a step loads."""
        pixels, block_n, block_k = config.block_m, config.block_n, config.block_k
        if config.rows_from_w:
            pixels, block_n = block_n, pixels
        depth, columns, size = self.channels, self.columns, ELEMENT_BYTES
        blocks = math.ceil(depth / block_k)
        pixel = loads.row_shares(depth, block_k, blocks, self.pitch_bytes or depth * size, size)
        rows = pixel.times(pixels * (1 - self.outside)).plus(Rows(outside=pixels * self.outside))
        if config.filter_steps:  # the filter is not loaded again
            return rows
        tiles = math.ceil(columns / block_n)
        if not self.is_dgrad:
            inside = columns / tiles
            of_filter = loads.row_shares(depth, block_k, blocks, depth * size, size).times(inside)
            return rows.plus(of_filter).plus(Rows(outside=block_n - inside))
        # Rows of the filter are columns of the output.
        width = min(loads.LINE_BYTES // size, block_n)
        boxes, inside = math.ceil(block_n / width), depth / blocks
        of_filter = loads.row_shares(columns, width, tiles * boxes, columns * size, size)
        rows = rows.plus(of_filter.times(boxes * inside))
        return rows.plus(Rows(outside=boxes * (block_k - inside)))


def _row(m: int, n: int, stages: int, warps: int, **others: Any) -> ConvConfig:
    """Returns a row of the tables below."""
    return ConvConfig(block_m=m, block_n=n, num_stages=stages, num_warps=warps, **others)


# Fitted as `python -m benchmarks zoo fit ROWS --costs` does.
COSTS: dict[ConvConfig, Cost] = {
    _row(256, 64, 5, 4, store_parts=2): Cost(0.421, 1.18, 4.06),
    _row(256, 64, 3, 4): Cost(0.501, 0.91, 5.82),
    _row(128, 64, 5, 4): Cost(0.240, 0.64, 4.40),
    _row(64, 64, 7, 4): Cost(0.222, 0.41, 2.98),
    _row(128, 128, 6, 4): Cost(0.327, 1.11, 3.36),
    _row(128, 128, 6, 4, taps_inner=False): Cost(0.329, 1.10, 3.11),
    _row(128, 128, 5, 4, group_size_m=1): Cost(0.324, 1.11, 3.49),
    _row(64, 128, 6, 4, group_size_m=4, taps_inner=False): Cost(0.205, 0.69, 3.12),
    _row(64, 256, 5, 4, store_parts=2): Cost(0.336, 1.26, 2.27),
    _row(256, 128, 4, 8, store_parts=2, group_size_m=4, taps_inner=False): Cost(0.658, 2.27, 3.06),
    _row(128, 256, 4, 8, store_parts=2): Cost(0.609, 2.32, 2.53),
    _row(128, 256, 4, 8, store_parts=2, group_size_m=4, taps_inner=False): Cost(0.616, 2.34, 2.12),
}
CONFIGS: tuple[ConvConfig, ...] = tuple(COSTS)

# dgrad, whose steps load and multiply the same.  To be fitted to its kernel's own times by
# `python -m benchmarks zoo fit ROWS --costs`.
DGRAD_COSTS: dict[ConvConfig, Cost] = {
    replace(config, store_parts=2) if config.block_m == 256 else config: cost
    for config, cost in COSTS.items()
}
DGRAD_CONFIGS: tuple[ConvConfig, ...] = tuple(DGRAD_COSTS)

# Narrow tiles for few columns, of a group or of all, which a wider tile would waste.  Not
# measured: the time of a step is that of the table's, by the bytes of its loads.
NARROW_COSTS: dict[ConvConfig, Cost] = {
    _row(128, 32, 6, 4): Cost(0.205, 0.50, 3.50),
    _row(128, 16, 6, 4): Cost(0.190, 0.45, 3.50),
    _row(64, 32, 8, 4): Cost(0.170, 0.35, 3.00),
    _row(64, 16, 8, 4): Cost(0.150, 0.30, 3.00),
}

# The widest of the narrow tiles.
NARROW_COLUMNS = 32

# A store through a pointer, of up to 16 bytes.
_POINTER_NS = 0.55


def pointer_store_ns(row_elements: int, element_bytes: int) -> float:
    """Returns what an element takes to be stored through pointers, to rows of so many elements.

    Elements that no row has, where a tile is wider, take as long.
    """
    return _POINTER_NS / math.gcd(row_elements, 16 // element_bytes)


# Where channels of the next group are masked, pixels go through registers.  So much more a step
# costs then, with 128 bytes in the registers of a thread, and a tile.  Fitted to the times of 98
# configurations, groups of 4 to 112 channels (H100, Triton 3.9.0, bf16, 2026-11-27): 11 % of error
# (root mean square).  448 channels in 8 groups, 28x28: 90 us measured, 96 modelled, 41 before.
_MASK_STEP_US, _MASK_BYTES_US, _MASK_TILE_US = 0.09, 0.35, 0.6


def expected_times(
    product: Product,
    device: Device,
    block_k: int = 0,  # channels per step; by default as in the table
    *,
    output: OutputTile | None = None,  # by default as for :meth:`ConvConfig.smem_bytes`
    # Likewise where it reaches into the next group; ``None`` where it may not.
    crossing: OutputTile | None = None,
    dram_us: float = 0.0,  # time in which operands and output come from and go to DRAM
) -> dict[ConvConfig, Expected]:
    """Returns the configurations that fit, with the expected times.

    They are those of ``CONFIGS`` or ``DGRAD_CONFIGS``; narrower ones for few columns; in fprop
    with fewer stages where a residual or 32-bit outputs need their memory.
    """
    size, groups, is_dgrad = product.element_bytes, product.groups, product.is_dgrad
    inside = output or OutputTile(element_bytes=size)
    table = DGRAD_COSTS if is_dgrad else COSTS
    if product.columns <= NARROW_COLUMNS or (groups > 1 and not is_dgrad):
        table = table | NARROW_COSTS
    # Up to two stages less for a residual or 32-bit outputs; what that costs was not measured.
    needs_more = not is_dgrad and inside.element_bytes + inside.residual_bytes > 2
    times = {}
    for less, (shipped, cost) in itertools.product(range(3 if needs_more else 1), table.items()):
        crosses = groups > 1 and product.columns % shipped.block_n
        tile, stages = crossing if crosses else inside, shipped.num_stages - less
        config = replace(shipped, block_k=block_k or shipped.block_k, num_stages=stages)
        is_masked = groups > 1 and product.channels % config.block_k
        # The cost of both is measured with all stages.
        if tile is None or stages < 2 or (less and (crosses or is_masked)):
            continue
        if config.fits(size, tile, device.smem_bytes):
            # Several short steps take as long as whole ones: 0.34 us each over 72 channels, 16 a
            # step.
            counts_part = is_dgrad if size != ELEMENT_BYTES else product.channels <= config.block_k
            times[config] = product.expected(
                config,
                _masked(cost, config, size) if is_masked else cost,
                device.num_sms,
                counts_part=counts_part,
                dram_us=dram_us,
                store_us=_store_us(config, tile.element_ns),
            )
    return times


def _store_us(config: ConvConfig, element_ns: float) -> float:
    """Returns the time of a tile's stores through pointers, whose addresses take registers."""
    elements = config.block_m * config.block_n
    return elements * element_ns / 1e3 * (1 + elements / (32 * config.num_warps) / 128)


def _masked(cost: Cost, config: ConvConfig, element_bytes: int) -> Cost:
    """Returns the cost of a configuration whose steps reach into the next group."""
    thread_bytes = config.block_m * config.block_k * element_bytes / (32 * config.num_warps)
    step_us = cost.step_us + _MASK_STEP_US + _MASK_BYTES_US * (thread_bytes / 128) ** 1.5
    return replace(cost, step_us=step_us, tile_us=cost.tile_us + _MASK_TILE_US)


def busiest(tiles: int, costs: Sequence[float], programs: int) -> float:
    """Returns the largest sum of costs of a program; program p has the tiles p, p + programs, ...

    There are ``tiles`` of each phase, one phase after another; ``costs`` are of a tile, by phase.
    """
    every, rest = divmod(tiles, programs)
    if len(costs) == 1:
        return (every + (rest > 0)) * costs[0]
    # By how much more a program has to do than the one before it.
    steps = [0.0] * (programs + 1)
    for number, cost in enumerate(costs):
        first = number * tiles % programs
        end = first + rest
        steps[first] += cost
        steps[min(end, programs)] -= cost
        if end > programs:
            steps[0] += cost
            steps[end - programs] -= cost
    return every * sum(costs) + max(itertools.accumulate(steps[:programs]))
