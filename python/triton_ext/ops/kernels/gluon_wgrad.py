"""Gradient of a convolution's filter (wgrad) on Hopper: warp-specialised, persistent, in Gluon.

1-D, 2-D and 3-D with any stride, dilation and padding, fp16 and bf16, fp32 accumulation; results
have the same bits in every run.  Stock Triton 3.6 or newer, sm_90.

Symbols
    x           [N, (D, (H,)) W, Ci]              input, channels-last
    dy          [N, (out_d, (out_h,)) out_w, Co]  gradient of the output
    dw          [Co, (T, (R,)) S, Ci]             gradient of the filter
    block       64 channels: of dy, or of x seen through one of the taps, T * R * S

GEMM mapping
    rows        Co                                a tile has ROW_BLOCKS blocks of them
    columns     taps * Ci                         a tile has COLUMN_BLOCKS blocks of them
    reduction   N * out_d * out_h * out_w         a k iteration has STEP_PIXELS of them

    or with rows and columns exchanged (ROWS_FROM_X), where that divides better.  Blocks of x are
    numbered taps first: consecutive ones are the same channels through consecutive taps, so that a
    block of dy is loaded once for several taps.

    Both operands lie as [pixels, 64] in shared memory, one TMA load each: tiled for dy, im2col for
    x.  WGMMA reads both transposed ("MN-major"), which it does for 16-bit types only.  Pixels past
    the last and channels past Ci or Co arrive as zeros, so no tail needs a mask.  A 1x1 filter with
    stride 1 and no padding takes x as a matrix, through tiled loads: those are faster.

Split-K (``kernels/gemm_wgrad.Partition``)
    Parts of the tiles that remain after the full rounds are added in the order of their pixels:
        in place            the CTA with the last part waits for the others, reads their sums from
                            the workspace, adds its own and stores dw; for up to 5 parts
        by a second kernel  all parts go to the workspace (``reduce_kernel``)

Warp roles
    producer    1 warp, the last partition: all loads
    consumer i  4 warps each, 1 to 3 of them: WGMMA, then the stores.  They share
        "columns"   a block of rows each, all columns
        "rows"      one block of rows, some columns each
        "tile"      everything, some pixels each: each consumer has a part of its own

Barriers
    ready[s] and empty[s] as in fprop (gluon_conv.py); all consumers read every stage.
    flag[c, i], in global memory, where parts are added in place: set by consumer i of CTA c
    (release) once its part is in the workspace; consumer i of the CTA with the last part waits for
    it (acquire) and resets it.  It waits only for CTAs with lower numbers, which started earlier.

Timeline of two CTAs that split a tile (L: loads, M: WGMMA, P: part to the workspace, W: waits,
A: adds, S: stores)
    producers  L L L L
    CTA 0        M M M M P
    CTA 1        M M M M W A S
"""

# mypy: disable-error-code="call-arg, no-redef"
# ruff: noqa: RUF005  # Gluon traces these bodies, and has no starred expressions

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_wait

from triton_ext.gluon import nvidia as xnv
from triton_ext.host.gluon_names import async_load, async_store, barrier, specialize, typed
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.kernels import gemm_wgrad
from triton_ext.ops.kernels import gluon_pipeline as ring
from triton_ext.ops.kernels.gemm_wgrad import WgradTiles

BLOCK_C = gl.constexpr(gemm_wgrad.BLOCK_C)


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
    def make(cls, tiles: WgradTiles, problem: ConvProblem) -> WgradProblem:
        """Returns the argument for a convolution and its tiles."""
        partition = tiles.partition
        return cls(
            co=problem.out_channels,
            ci=problem.in_channels,
            dy_tiles=tiles.co_tiles,
            steps=partition.steps,
            waves=partition.waves,
            rest=max(partition.rest, 1),
            first_split=partition.waves * partition.programs,
            splits=partition.splits,
            parts=partition.slots,
            add_in_place=int(tiles.add_in_place),
            **ring.conv_fields(problem),
        )


@gluon.jit
def allocate_columns(
    dtype: gl.constexpr, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, CONFIG: gl.constexpr
):
    """Allocates the ring of an operand: [STAGES * GROUPS, PIXELS, 64 * BLOCKS].

    Blocks lie side by side, each as a TMA load writes it.
    """
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    shape: gl.constexpr = [CONFIG.stages * GROUPS, CONFIG.pixels, BLOCK_C * BLOCKS]
    return gl.allocate_shared_memory(dtype, shape, layout)


@gluon.jit
def allocate_shared(dy_desc, dw_desc, CONFIG: gl.constexpr):
    """Allocates shared memory and initialises the barriers."""
    MAIN: gl.constexpr = CONFIG.column_groups[0]
    REST: gl.constexpr = CONFIG.column_groups[1]
    rows_smem = allocate_columns(dy_desc.dtype, CONFIG.row_groups, 1, CONFIG)
    main_smem = allocate_columns(dy_desc.dtype, MAIN, CONFIG.main_blocks, CONFIG)
    rest_smem = main_smem
    if CONFIG.rest_blocks > 0:
        rest_smem = allocate_columns(dy_desc.dtype, REST, CONFIG.rest_blocks, CONFIG)
    out_smem = ring.allocate_blocks(dw_desc, CONFIG.consumers * CONFIG.store_buffers)
    ready_bars, empty_bars = ring.allocate_barriers(CONFIG.stages, CONFIG.consumers)
    # Consumers take no turns.
    return ring.Shared(
        rows_smem, main_smem, rest_smem, out_smem, ready_bars, empty_bars, empty_bars
    )


@gluon.jit
def load_target(
    shared, stage, IS_ROW: gl.constexpr, BLOCK: gl.constexpr, GROUP: gl.constexpr,
    CONFIG: gl.constexpr,
):  # fmt: skip
    """Returns the memory of a block of rows, or of columns, for a group of pixels in a stage."""
    if IS_ROW:
        return shared.rows_smem.index(stage * CONFIG.row_groups + BLOCK + GROUP)
    else:
        MAINS: gl.constexpr = CONFIG.column_groups[0] // CONFIG.pixel_groups * CONFIG.main_blocks
        IS_MAIN: gl.constexpr = BLOCK < MAINS
        WIDTH: gl.constexpr = CONFIG.main_blocks if IS_MAIN else CONFIG.rest_blocks
        GROUPS: gl.constexpr = CONFIG.column_groups[0 if IS_MAIN else 1]
        COLUMN: gl.constexpr = BLOCK if IS_MAIN else BLOCK - MAINS
        smem = shared.main_smem if IS_MAIN else shared.rest_smem
        buffer = smem.index(stage * GROUPS + COLUMN // WIDTH + GROUP)
        return buffer.slice(COLUMN % WIDTH * BLOCK_C, BLOCK_C, dim=1)


@gluon.jit
def num_segments(problem):
    """Returns the segments of this CTA: whole tiles, and at most one part of a tile."""
    return problem.waves + (gl.program_id(0) < problem.parts).to(gl.int32)


@gluon.jit
def segment(index, problem):
    """Returns a segment's tile, first k iteration and the one after the last; see Partition."""
    program = gl.program_id(0)
    tile = index * gl.num_programs(0) + program
    first = gl.to_tensor(0)
    last = gl.to_tensor(problem.steps)
    if index == problem.waves:
        tile = problem.first_split + program % problem.rest
        number = program // problem.rest
        base = problem.steps // problem.splits
        longer = problem.steps % problem.splits
        first = number * base + min(number, longer)
        last = (number + 1) * base + min(number + 1, longer)
    return tile, first, last


@gluon.jit
def block_position(tile, row, column, problem, CONFIG: gl.constexpr):
    """Returns the tap, first channel of x, and block of dy at a row and column of a tile.

    Tiles of consecutive blocks of dy come one after the other.
    """
    taps_d, taps_h, taps_w = problem.filter_size
    taps = taps_d * taps_h * taps_w
    x_block = tile // problem.dy_tiles * CONFIG.x_blocks
    x_block += row if CONFIG.rows_from_x else column
    dy_block = tile % problem.dy_tiles * CONFIG.dy_blocks
    dy_block += column if CONFIG.rows_from_x else row
    return x_block % taps, x_block // taps * BLOCK_C, dy_block


@gluon.jit
def next_x_block(position, problem):
    """Returns the block of x after one: the next tap, or the first tap of the next channels."""
    t, r, s, channel = position
    taps_d, taps_h, taps_w = problem.filter_size
    s += 1
    wraps = s == taps_w
    s = gl.where(wraps, 0, s)
    r = gl.where(wraps, r + 1, r)
    wraps = r == taps_h
    r = gl.where(wraps, 0, r)
    t = gl.where(wraps, t + 1, t)
    wraps = t == taps_d
    t = gl.where(wraps, 0, t)
    channel = gl.where(wraps, channel + BLOCK_C, channel)
    return t, r, s, channel


@gluon.jit
def producer(x_desc, dy_desc, shared, problem, CONFIG: gl.constexpr):
    """Loads all segments of this CTA, as far ahead as the ring allows."""
    GROUPS: gl.constexpr = CONFIG.pixel_groups
    X_BLOCKS: gl.constexpr = CONFIG.x_blocks
    DY_BLOCKS: gl.constexpr = CONFIG.dy_blocks
    FIRST_DIM: gl.constexpr = 5 - len(x_desc.shape)
    _, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    for index in range(num_segments(problem)):
        tile, first, last = segment(index, problem)
        tap, first_channel, dy_block = block_position(tile, 0, 0, problem, CONFIG)
        first_position = (
            tap // taps_w // taps_h, tap // taps_w % taps_h, tap % taps_w, first_channel,
        )  # fmt: skip
        for step in range(first, last):
            mbarrier.wait(shared.empty_bars.index(stage), phase)
            ready = shared.ready_bars.index(stage)
            mbarrier.expect(ready, CONFIG.stage_bytes)
            for group in gl.static_range(GROUPS):
                pixel = step * CONFIG.step_pixels + group * CONFIG.pixels
                for block in gl.static_range(DY_BLOCKS):
                    target = load_target(
                        shared, stage, not CONFIG.rows_from_x, block, group, CONFIG
                    )
                    async_load(dy_desc, [pixel, (dy_block + block) * BLOCK_C], ready, target)
                if not ring.is_matrix(x_desc):
                    start = xnv.im2col_start(
                        pixel, problem.output_size, problem.stride, problem.padding
                    )
                position = first_position
                for block in gl.static_range(X_BLOCKS):
                    target = load_target(shared, stage, CONFIG.rows_from_x, block, group, CONFIG)
                    t, r, s, channel = position
                    # Past the last block of x the channels are past Ci: zeros.
                    if ring.is_matrix(x_desc):
                        async_load(x_desc, [pixel, channel], ready, target)
                    else:
                        offsets = (t * dilation_d, r * dilation_h, s * dilation_w)
                        coord = start + (channel,)
                        xnv.async_load_im2col(x_desc, coord, offsets[FIRST_DIM:], ready, target)
                    position = next_x_block(position, problem)
            stage, phase = ring.next_stage(stage, phase, CONFIG.stages)


@gluon.constexpr_function
def columns_of(config, consumer):
    """Returns the column blocks of a consumer within a tile, in the order of its accumulators."""
    return tuple(chain(*config.accumulators(consumer)))


@gluon.jit
def consumer(ME: gl.constexpr, outputs, flag_ptr, shared, problem, CONFIG: gl.constexpr):
    """Multiplies and stores all segments of this CTA."""
    # Consumers that share a tile have a part of it each.
    SHARED: gl.constexpr = CONFIG.pixel_groups > 1
    done = gl.to_tensor(0)
    for index in range(num_segments(problem)):
        tile, first, last = segment(index, problem)
        accs = ring.multiply_tile(shared, index, done, last - first, ME, CONFIG, "wgrad")
        done += last - first
        is_part = (last < problem.steps) | ((first > 0) & (problem.add_in_place == 0)) | SHARED
        others = gl.to_tensor(0)
        if (first > 0) & (last == problem.steps) & (problem.add_in_place == 1):
            others += problem.splits - 1
            for other in range(others):
                slot = gl.program_id(0) % problem.rest + other * problem.rest
                flag = flag_ptr + slot * CONFIG.consumers + ME
                # The flag is reset as it is seen.
                seen = gl.atomic_cas(flag, 1, 0, sem="acquire", scope="gpu")
                while seen != 1:
                    seen = gl.atomic_cas(flag, 1, 0, sem="acquire", scope="gpu")
        blocks = ring.split_columns(accs, CONFIG)
        for number in gl.static_range(len(blocks)):
            store_block(
                blocks[number], number, outputs, shared, tile, others, is_part, problem, ME, CONFIG
            )
        if is_part & (problem.add_in_place == 1):
            barrier()
            flag = flag_ptr + gl.program_id(0) * CONFIG.consumers + ME
            gl.atomic_xchg(flag, 1, sem="release", scope="gpu")
    tma.store_wait(0)


@gluon.jit
def store_part(values, partial_ptr, slot, offsets, CONFIG: gl.constexpr):
    """Stores a block of a part to a slot of the workspace, 16 bytes per thread.

    The line is [j, warp, group, pair, half, element], the order of threads and registers, so that
    nothing moves: a row is 16 * warp + 8 * half + group, a column 8 * j + 2 * pair + element.
    """
    line = values.reshape([4, 2, 8, 8, 4, 2]).permute(3, 0, 2, 4, 1, 5).reshape([BLOCK_C * BLOCK_C])
    line = gl.convert_layout(line, offsets.type.layout, assert_trivial=True)
    gl.store(partial_ptr + slot.to(gl.int64) * CONFIG.tile_elements + offsets, line)


@gluon.jit
def store_block(
    values, NUMBER: gl.constexpr, outputs, shared, tile, others, is_part, problem,
    ME: gl.constexpr, CONFIG: gl.constexpr,
):  # fmt: skip
    """Stores a block [64, 64]: of a part to the workspace, else to dw, after adding others' parts.

    NUMBER counts the column blocks of consumer ME.  The others' parts are those of the CTAs that
    have the tile's earlier k iterations, in this order.
    """
    partial_ptr, dw_desc = outputs
    ROW: gl.constexpr = ME if CONFIG.share == "columns" else 0
    COLUMNS: gl.constexpr = columns_of(CONFIG, ME)
    COLUMN: gl.constexpr = COLUMNS[NUMBER]
    BLOCK: gl.constexpr = (ROW * CONFIG.column_blocks + COLUMN) * BLOCK_C * BLOCK_C
    line_layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    offsets = BLOCK + gl.arange(0, BLOCK_C * BLOCK_C, layout=line_layout)
    if CONFIG.pixel_groups > 1:
        slot = gl.program_id(0) + ME * problem.parts
        store_part(values, partial_ptr, slot, offsets, CONFIG)
    elif is_part:
        store_part(values, partial_ptr, gl.program_id(0), offsets, CONFIG)
    else:
        for other in range(others):
            slot = gl.program_id(0) % problem.rest + other * problem.rest
            slot = slot.to(gl.int64) * CONFIG.tile_elements
            line = gl.load(partial_ptr + slot + offsets, cache_modifier=".cg")
            part = line.reshape([8, 4, 8, 4, 2, 2]).permute(1, 4, 2, 0, 3, 5)
            part = part.reshape([BLOCK_C, BLOCK_C])
            values += gl.convert_layout(part, ring.accumulator_layout(BLOCK_C), assert_trivial=True)
        # TMA does not store what is past Co or Ci.
        tap, channel, dy_block = block_position(tile, ROW, COLUMN, problem, CONFIG)
        buffer = shared.out_smem.index(ME * CONFIG.store_buffers + NUMBER % CONFIG.store_buffers)
        target = buffer.reshape([BLOCK_C, BLOCK_C])
        if CONFIG.rows_from_x:
            target = target.permute((1, 0))
        tma.store_wait(ring.stores_in_flight(CONFIG.store_buffers, len(COLUMNS), NUMBER))
        target.store(values.to(dw_desc.dtype))
        fence_async_shared()
        async_store(dw_desc, [dy_block * BLOCK_C, tap, channel], buffer)


@gluon.jit(do_not_specialize=["problem"])
def conv_wgrad_kernel(
    x_desc,  # im2col: [PIXELS, 64] of x
    dy_desc,  # tiled: [PIXELS, 64] of dy [M_GEMM, Co]
    dw_desc,  # tiled: [64, 1, 64] of dw [Co, T * R * S, Ci]
    partial_ptr,  # workspace [slots, ROW_BLOCKS, COLUMN_BLOCKS, 64 * 64] of fp32
    flag_ptr,  # [slots, CONSUMERS] of int32, zeros before and after
    problem,  # WgradProblem
    CONFIG: gl.constexpr,  # WgradTileConfig
):
    """Reduces over pixels: whole tiles to dw, parts of tiles to the workspace."""
    problem = typed(problem)
    shared = allocate_shared(dy_desc, dw_desc, CONFIG)
    specialize(
        consumer, ((partial_ptr, dw_desc), flag_ptr, shared, problem, CONFIG),
        producer, (x_desc, dy_desc, shared, problem, CONFIG),
        CONFIG,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["problem"])
def reduce_kernel(
    partial_ptr,  # as in conv_wgrad_kernel
    dw_ptr,  # dw
    problem,  # WgradProblem
    CONFIG: gl.constexpr,  # WgradTileConfig
    COLUMNS: gl.constexpr,  # columns of a block per program, beside 16 rows
    PARTS: gl.constexpr,  # parts that are read at a time
):
    """Adds a tile's parts in a fixed order.

    The grid is (blocks of a tile * 4 * 64 // COLUMNS, tiles that are split).
    """
    problem = typed(problem)
    WARPS: gl.constexpr = gl.num_warps()
    EIGHTHS: gl.constexpr = COLUMNS // 8
    PIECES: gl.constexpr = BLOCK_C // COLUMNS
    block = gl.program_id(0) // (4 * PIECES)
    warp = gl.program_id(0) // PIECES % 4
    piece = gl.program_id(0) % PIECES
    layout: gl.constexpr = gl.BlockedLayout(
        [PARTS // WARPS, EIGHTHS, 4], [1, 1, 32], [WARPS, 1, 1], [2, 1, 0]
    )
    parts_layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, layout))
    eighths_layout: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, layout))
    line: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, layout))
    offs_part = gl.arange(0, PARTS, layout=parts_layout)[:, None][:, :, None]
    offs_eighth = gl.arange(0, EIGHTHS, layout=eighths_layout)[None, :][:, :, None]
    offs_line = gl.arange(0, 128, layout=line)[None, :][:, None, :]
    inside = (piece * EIGHTHS + offs_eighth) * 512 + warp * 128 + offs_line
    base = partial_ptr + block * BLOCK_C * BLOCK_C
    acc = gl.zeros((PARTS, EIGHTHS, 128), gl.float32, layout=layout)
    gdc_wait()
    num_parts = problem.splits * CONFIG.pixel_groups
    for part in range(0, num_parts, PARTS):
        slots = gl.program_id(1) + (part + offs_part) * problem.rest
        slots = slots.to(gl.int64) * CONFIG.tile_elements
        acc += gl.load(base + slots + inside, mask=part + offs_part < num_parts, other=0.0)
    total = gl.sum(acc, axis=0)
    # See store_part.
    values = total.reshape([EIGHTHS, 8, 4, 2, 2]).permute(3, 1, 0, 2, 4).reshape([16, COLUMNS])
    # Input channels side by side.
    x_rows: gl.constexpr = gl.BlockedLayout([4, 1], [4, 8], [1, WARPS], [0, 1])
    x_columns: gl.constexpr = gl.BlockedLayout(
        [1, 4], [128 // COLUMNS, COLUMNS // 4], [WARPS, 1], [1, 0]
    )
    out: gl.constexpr = x_rows if CONFIG.rows_from_x else x_columns
    tile = problem.first_split + gl.program_id(1)
    row = block // CONFIG.column_blocks
    column = block % CONFIG.column_blocks
    tap, channel, dy_block = block_position(tile, row, column, problem, CONFIG)
    values = gl.convert_layout(values, out)
    offs_row = warp * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, out))[:, None]
    offs_column = piece * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, out))[None, :]
    taps_d, taps_h, taps_w = problem.filter_size
    offs_ci = channel + (offs_row if CONFIG.rows_from_x else offs_column)
    offs_co = dy_block * BLOCK_C + (offs_column if CONFIG.rows_from_x else offs_row)
    # Ci is a multiple of 8, written so that Triton's axis analysis follows: wide stores.
    eighths = problem.ci // 8
    mask = (offs_ci // 8 < eighths) & (offs_co < problem.co)
    offsets = (offs_co.to(gl.int64) * (taps_d * taps_h * taps_w) + tap) * eighths * 8 + offs_ci
    gl.store(dw_ptr + offsets, values.to(dw_ptr.dtype.element_ty), mask=mask)
