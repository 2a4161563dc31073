"""Gradient of a convolution's filter (wgrad): ``@triton.jit`` kernels, 1-D to 3-D, deterministic.

Symbols: x [N, ([D, [H,]] W), Ci], dy [N, (out_d, (out_h,)) out_w, Co], dw [Co, taps, Ci / groups],
all channels-last; taps = T * R * S.

GEMM mapping: the rows of dw are output channels, its columns (tap, input channel) pairs, and the
reduction runs over the output pixels of all images, BLOCK_PIXELS of them in a k iteration.  Both
operands lie as [pixels, channels] in shared memory, one TMA load each, tiled for dy and im2col for
x; dy is read transposed, which WGMMA does for 16-bit types only.

    dw[co, tap, ci] = sum over pixels of dy[pixel, co] * x[im2col(pixel, tap), ci]

A tile is [BLOCK_CO, BLOCK_CI] of some consecutive taps: a block of dy is loaded once for
all of them, and the blocks of x are nearly the same pixels, which then come from L2.  A 1x1 filter
with stride 1 and no padding reads x as a matrix, through tiled loads.

Tails need no masks in the reduction: pixels past the last image and channels past the last read as
zero.

Groups: a block of dy meets the blocks of x from the first channel of its first group on.  Its
products with channels of other groups are not stored.  So small groups, down to one channel, share
a block, and its loads.

Split-K (:class:`Partition`): full rounds of tiles, one per program, go to dw.  The k iterations of
the remaining tiles are split; their parts go to a workspace in fp32, and ``wgrad_reduce_kernel``
adds them in the order of the pixels.  Nothing is added atomically: results have the same bits in
every run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import triton
import triton.language as tl

import triton_ext.language as tle
from triton_ext.ops.core import refusals
from triton_ext.ops.core.descriptors import ELEMENT_BYTES
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusals, refused
from triton_ext.ops.kernels import epilogue
from triton_ext.ops.kernels.gemm import tap_offsets

#: Channels of a block of the Gluon kernel: one 128-byte swizzle row, and the rows of a consumer.
BLOCK_C = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WgradConfig:
    """Tile sizes and launch options of the kernel."""

    block_co: int  # output channels per tile
    block_ci: int  # input channels per tile
    taps: int = 1  # filter taps per tile, 1 to 9: a block of dy is loaded once for all of them
    block_pixels: int = 64  # output pixels per k iteration
    num_stages: int  # depth of the pipeline of loads
    num_warps: int  # warps per CTA; 4 is one warp group, 8 are two that split the output channels
    store_parts: int = 1  # pieces in which TMA stores a block of a whole tile, 1 or 2

    pixel_groups: ClassVar[int] = 1  # as in a WgradTileConfig

    def extents(self, problem: ConvProblem) -> tuple[int, int, int]:
        """Returns the tiles along the output channels, all tiles, and the k iterations of each."""
        co_tiles = math.ceil(problem.out_channels / self.block_co)
        tiles = co_tiles * _ci_blocks(self, problem) * math.ceil(problem.taps / self.taps)
        pixels = problem.batch * math.prod(problem.output_size)
        return co_tiles, tiles, math.ceil(pixels / self.block_pixels)

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
        staging = (
            self.block_co * self.block_ci * out_bytes // (self.store_parts if in_pieces else 1)
        )
        return self.num_stages * rows * self.block_pixels * ELEMENT_BYTES + staging

    def refusals(self) -> Refusals:
        """Returns why the kernel cannot be compiled for it; nothing where it can."""
        found = refusals.field_refusals(self)
        if found:
            return found
        tile = {"block_co": (16, 256), "block_ci": (16, 256), "block_pixels": (16, 256)}
        found += refusals.power_refusals(self, **tile, num_warps=(4, 8))
        found += refusals.range_refusals(self, taps=(1, 9), store_parts=(1, 2))
        if self.block_co < 16 * self.num_warps:
            found += refused(
                f"block_co is {self.block_co}: {self.num_warps} warps of 16 rows need "
                f"{16 * self.num_warps}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Partition:
    """Tile schedule of a persistent wgrad kernel with split-K.

    Full rounds of tiles are computed whole: program p has the tiles p, p + programs, ...  The tiles
    that remain would leave most multiprocessors idle, so their k iterations are split: slot s has
    part s // rest of remaining tile s % rest, and program p has the slots p, p + programs, ...
    Neighbouring programs thus load the same pixels for different tiles at the same time, which L2
    rewards.
    """

    tiles: int  # tiles of dw
    steps: int  # k iterations of a tile
    programs: int  # programs, at most one per multiprocessor
    rest: int  # tiles that remain after the full rounds
    splits: int  # parts of each remaining tile

    @classmethod
    def make(
        cls,
        tiles: int,
        steps: int,
        num_sms: int,
        # Slots of the busiest program: more of them leave fewer multiprocessors idle, and more
        # parts to add.
        part_rounds: int = 1,
        most_splits: int = 1 << 30,  # limit of parts of a tile
    ) -> Partition:
        """Returns the schedule for a number of multiprocessors."""
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

    def part(self, number: int) -> range:
        """Returns the k iterations of a part."""
        base, longer = divmod(self.steps, self.splits)
        first = number * base + min(number, longer)
        return range(first, first + base + (number < longer))

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
    """The tiles of a problem with output pixels."""

    config: Any  # WgradConfig, or WgradTileConfig of the Gluon kernel
    co_tiles: int  # tiles along the output channels
    partition: Partition
    add_in_place: bool = False  # whether the program with a tile's last part adds the others

    @classmethod
    def make(
        cls, config: Any, problem: ConvProblem, num_sms: int, in_place: bool = False, **limits: int
    ) -> WgradTiles:
        """Returns the tiles of a problem; ``limits`` are those of :meth:`Partition.make`."""
        co_tiles, tiles, steps = config.extents(problem)
        return cls(config, co_tiles, Partition.make(tiles, steps, num_sms, **limits), in_place)

    @property
    def parts(self) -> int:
        """Parts of a tile that is split."""
        return self.partition.splits * int(self.config.pixel_groups)

    @property
    def split_tiles(self) -> int:
        """Tiles that are computed in several parts, the last ones."""
        return self.partition.rest if self.parts > 1 else 0

    @property
    def slots(self) -> int:
        """Parts of all split tiles, in the workspace."""
        return self.split_tiles * self.parts

    @property
    def workspace_elements(self) -> int:
        """fp32 elements of the workspace for parts."""
        return self.slots * int(self.config.tile_elements)

    def __str__(self) -> str:
        added = ("_a" if self.add_in_place else "_k") + str(self.parts) if self.split_tiles else ""
        return f"{self.config}{added}"


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


@triton.jit
def _reduce_pixels(
    x_desc, dy_desc, position, first, last, conv, FILTER: tl.constexpr, IS_MATRIX: tl.constexpr,
    CONFIG: tl.constexpr,
):  # fmt: skip
    """Returns the accumulators of a tile, one per tap, over k iterations from first to last."""
    BLOCK_CO: tl.constexpr = CONFIG.block_co
    BLOCK_CI: tl.constexpr = CONFIG.block_ci
    TAPS_PER_TILE: tl.constexpr = CONFIG.taps
    co, ci, tap = position
    accumulators = ()
    for _ in tl.static_range(TAPS_PER_TILE):
        accumulators += (tl.zeros((BLOCK_CO, BLOCK_CI), tl.float32),)  # type: ignore[assignment]
    for step in range(first, last):
        pixel = step * CONFIG.block_pixels
        dy = dy_desc.load([pixel, co]).T
        start = tle.im2col_start(pixel, conv.output_size, conv.stride, conv.padding)
        added = ()
        for i in tl.static_range(TAPS_PER_TILE):
            if IS_MATRIX:
                x = x_desc.load([pixel, ci])
            else:
                # Taps past the last are the last.
                offsets = tap_offsets(
                    min(tap + i, epilogue.tap_count(FILTER) - 1), conv.dilation, FILTER
                )
                x = tle.load_im2col(x_desc, start + (ci,), offsets)  # noqa: RUF005
            acc = epilogue.multiply(dy, x, accumulators[i])
            added += (acc,)  # type: ignore[assignment]
        accumulators = added
    return accumulators


class WgradSizes(NamedTuple):
    """Runtime arguments of both kernels."""

    co: int
    group_co: int  # Co / groups
    group_ci: int  # Ci / groups
    co_tiles: int  # tiles along the output channels
    whole_tiles: int  # tiles that are not split, the first ones
    split_tiles: int  # the others
    splits: int  # parts of each of them


@triton.jit
def _filter_pointers(
    dw_ptr, offs_co, offs_ci, tap, tiles, FILTER: tl.constexpr, GROUPED: tl.constexpr
):
    """Returns pointers to elements of dw [Co, taps, Ci / groups], and which exist."""
    group_ci = tiles.group_ci
    TAPS: tl.constexpr = epilogue.tap_count(FILTER)
    # Taps past the last have no rows.
    mask_co = offs_co < tl.where(tap < TAPS, tiles.co, 0)
    rows = (offs_co.to(tl.int64) * TAPS + tap) * group_ci
    if GROUPED:
        group = offs_co // tiles.group_co
        rows = rows - group * group_ci
        mask = mask_co[:, None] & (group[:, None] == (offs_ci // group_ci)[None, :])
    else:
        mask = mask_co[:, None] & (offs_ci < group_ci)[None, :]
    return dw_ptr + rows[:, None] + offs_ci[None, :], mask


@triton.jit
def _tile_position(tile, tiles, FILTER: tl.constexpr, CONFIG: tl.constexpr, GROUPED: tl.constexpr):
    """Returns a tile's first output channel, the fastest to change, input channel and tap."""
    TAP_GROUPS: tl.constexpr = (epilogue.tap_count(FILTER) - 1) // CONFIG.taps + 1
    first_co = tile % tiles.co_tiles * CONFIG.block_co
    rest = tile // tiles.co_tiles
    first_ci = rest // TAP_GROUPS * CONFIG.block_ci
    if GROUPED:
        # Rounded down to 8 channels, 16 bytes, on which TMA loads begin.
        first_ci += first_co // tiles.group_co * tiles.group_ci // 8 * 8
    return first_co, first_ci, rest % TAP_GROUPS * CONFIG.taps


@triton.jit
def conv_wgrad_kernel(
    x_desc,  # im2col: [BLOCK_PIXELS, BLOCK_CI] of x; tiled where IS_MATRIX
    dy_desc,  # tiled: [BLOCK_PIXELS, BLOCK_CO] of dy [pixels, Co]
    dw,  # tiled: [BLOCK_CO, 1, BLOCK_CI // store_parts] of dw [Co, taps, Ci]; or its pointer
    part_ptr,  # workspace [parts, config.taps, BLOCK_CO * BLOCK_CI] of fp32; None: no parts
    tiles,  # WgradSizes
    steps,  # of a tile
    conv,  # ConvSizes
    FILTER: tl.constexpr,  # taps per spatial dimension
    GROUPED: tl.constexpr,  # whether there is more than one group
    IS_MATRIX: tl.constexpr,  # whether x is read as a matrix
    HAS_WHOLE: tl.constexpr,  # whether whole_tiles is not 0
    HAS_PARTS: tl.constexpr,  # whether split_tiles is not 0
    CONFIG: tl.constexpr,  # WgradConfig
):
    # Assigning a tuple makes its type anew, as in gemm.py.
    conv = conv
    BLOCK_CO: tl.constexpr = CONFIG.block_co
    BLOCK_CI: tl.constexpr = CONFIG.block_ci
    BLOCK: tl.constexpr = BLOCK_CO * BLOCK_CI
    PARTS: tl.constexpr = CONFIG.store_parts
    NUM_WARPS: tl.constexpr = CONFIG.num_warps
    TAPS_PER_TILE: tl.constexpr = CONFIG.taps
    program = tl.program_id(0)
    if HAS_WHOLE:
        # One flattened loop over tiles and k iterations: the loads of the next tile overlap the
        # stores of this one.
        for tile in tl.range(program, tiles.whole_tiles, tl.num_programs(0), flatten=True):
            position = _tile_position(tile, tiles, FILTER, CONFIG, GROUPED)
            accumulators = _reduce_pixels(
                x_desc, dy_desc, position, 0, steps, conv, FILTER, IS_MATRIX, CONFIG
            )
            first_co, first_ci, first_tap = position
            for i in tl.static_range(TAPS_PER_TILE):
                acc = accumulators[i]
                tap = first_tap + i
                # TMA does not store what is past the last channel or tap.
                if epilogue.is_descriptor(dw):
                    parts = epilogue.column_parts(acc, PARTS)
                    for part in tl.static_range(PARTS):
                        block = (
                            parts[part]
                            .to(epilogue.element_type(dw))
                            .reshape(BLOCK_CO, 1, BLOCK_CI // PARTS)
                        )
                        dw.store([first_co, tap, first_ci + part * block.shape[2]], block)
                else:
                    offs_co = first_co + tl.arange(0, BLOCK_CO)
                    offs_ci = first_ci + tl.arange(0, BLOCK_CI)
                    pointers, mask = _filter_pointers(
                        dw, offs_co, offs_ci, tap, tiles, FILTER, GROUPED
                    )
                    tl.store(pointers, acc.to(epilogue.element_type(dw)), mask=mask)
    if HAS_PARTS:
        # Neighbouring programs have the same pixels of different tiles: L2 answers both at once.
        for slot in tl.range(program, tiles.split_tiles * tiles.splits, tl.num_programs(0)):
            part = slot // tiles.split_tiles
            position = _tile_position(
                tiles.whole_tiles + slot % tiles.split_tiles, tiles, FILTER, CONFIG, GROUPED
            )
            # The first steps % splits parts have one iteration more.
            first = part * (steps // tiles.splits) + min(part, steps % tiles.splits)
            last = (part + 1) * (steps // tiles.splits) + min(part + 1, steps % tiles.splits)
            accumulators = _reduce_pixels(
                x_desc, dy_desc, position, first, last, conv, FILTER, IS_MATRIX, CONFIG
            )
            # A block is stored in the order of a WGMMA accumulator's threads and registers.  A row
            # is [repetition, warp, half, group of 4 lanes], a column [j, pair, element]; the line
            # is [repetition, j, warp, group, pair, half, element], of which a thread has the last
            # two: 16 bytes each, side by side, and nothing goes through shared memory.
            ROWS: tl.constexpr = BLOCK_CO // (16 * NUM_WARPS)
            blocks = part_ptr + tl.cast(slot, tl.int64) * (TAPS_PER_TILE * BLOCK)
            for i in tl.static_range(TAPS_PER_TILE):
                split = accumulators[i].reshape(ROWS, NUM_WARPS, 2, 8, BLOCK_CI // 8, 4, 2)
                line = split.permute(0, 4, 1, 3, 5, 2, 6).reshape(BLOCK)
                tl.store(blocks + i * BLOCK + tl.arange(0, BLOCK), line)


@triton.jit
def wgrad_reduce_kernel(
    part_ptr,  # as in conv_wgrad_kernel
    dw_ptr,  # dw [Co, taps, Ci / groups]
    tiles,  # WgradSizes
    FILTER: tl.constexpr,
    GROUPED: tl.constexpr,
    CONFIG: tl.constexpr,  # WgradConfig
    COLUMNS: tl.constexpr,  # columns per program, beside 16 rows
    UNROLL: tl.constexpr,  # parts whose loads are in flight together
    WAITS: tl.constexpr,  # whether it is launched before conv_wgrad_kernel ends
):
    """Adds a tile's parts in their order.

    The grid is (16-row slices of a block times pieces of COLUMNS, config.taps, tiles that are
    split).
    """
    BLOCK_CI: tl.constexpr = CONFIG.block_ci
    BLOCK: tl.constexpr = CONFIG.block_co * BLOCK_CI
    NUM_WARPS: tl.constexpr = CONFIG.num_warps
    EIGHTHS: tl.constexpr = COLUMNS // 8
    PIECES: tl.constexpr = BLOCK_CI // COLUMNS
    rows = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    turn = tl.program_id(1)
    tile = tl.program_id(2)
    first_co, first_ci, first_tap = _tile_position(
        tiles.whole_tiles + tile, tiles, FILTER, CONFIG, GROUPED
    )
    # conv_wgrad_kernel has the order: [repetition, j, warp] and 128 elements for each.
    repetition = rows // NUM_WARPS
    j = piece * EIGHTHS + tl.arange(0, EIGHTHS)
    lines = (repetition * (BLOCK_CI // 8) + j) * NUM_WARPS + rows % NUM_WARPS
    offsets = lines[:, None] * 128 + tl.arange(0, 128)[None, :]
    if WAITS:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((EIGHTHS, 128), dtype=tl.float32)
    for part in range(0, tiles.splits, UNROLL):
        for ahead in tl.static_range(UNROLL):
            slot = ((part + ahead) * tiles.split_tiles + tile).to(tl.int64)
            source = part_ptr + (slot * CONFIG.taps + turn) * BLOCK + offsets
            mask = tl.full((EIGHTHS, 128), part + ahead, tl.int32) < tiles.splits
            total += tl.load(source, mask=mask, other=0.0)
    values = total.reshape(EIGHTHS, 8, 4, 2, 2).permute(3, 1, 0, 2, 4).reshape(16, COLUMNS)
    offs_co = first_co + rows * 16 + tl.arange(0, 16)
    offs_ci = first_ci + piece * COLUMNS + tl.arange(0, COLUMNS)
    pointers, mask = _filter_pointers(
        dw_ptr, offs_co, offs_ci, first_tap + turn, tiles, FILTER, GROUPED
    )
    tl.store(pointers, values.to(dw_ptr.dtype.element_ty), mask=mask)
