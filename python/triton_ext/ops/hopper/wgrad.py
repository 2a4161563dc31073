"""Gradient of a convolution's filter (wgrad) on Hopper: warp-specialised, persistent, in Gluon.

1-D, 2-D and 3-D with any stride, dilation and padding.  fp16 and bf16, fp32 accumulation, the same
bits in every run; stock Triton 3.6 or newer, sm_90.

Symbols
    x           [N, (D, (H,)) W, Ci]              input, channels-last
    dy          [N, (out_d, (out_h,)) out_w, Co]  gradient of the output
    dw          [Co, (T, (R,)) S, Ci]             gradient of the filter
    taps        T * R * S
    block       64 channels: of dy, or of x seen through one tap

GEMM mapping
    rows        Co                                a tile has ROW_BLOCKS blocks of them
    columns     taps * Ci                         a tile has COLUMN_BLOCKS blocks of them
    reduction   N * out_d * out_h * out_w         a step has STEP_PIXELS of them

    or with rows and columns exchanged (ROWS_FROM_X), where that divides better.  Blocks of x are
    numbered taps first: consecutive ones are the same channels through consecutive taps, so that a
    block of dy is loaded once for several taps.

    Both operands lie as [pixels, 64] in shared memory, a TMA load each: tiled for dy, im2col for x.
    WGMMA reads both transposed ("MN-major"), which it does for 16-bit types only.  What is behind
    the last pixel, behind Ci or behind Co arrives as zeros, so no tail needs a mask.  A 1x1 filter
    with stride 1 and no padding takes x as a matrix, through tiled loads: those are faster.

Who reduces what
    A round of CTAs computes one whole tile each.  The tiles that are left after the last full round
    are split over pixels, evenly, into as many parts as there are CTAs for.  In either case CTAs
    with neighbouring numbers have the same pixels and different tiles: what one loads another one
    loads at the same time (``wgrad_tiles.Partition``).

    Parts of a tile are added in the order of their pixels, never by atomics:
        in place            the CTA with the last part waits for the others, reads their sums from
                            the workspace, adds its own and stores dw; for up to 5 parts
        by a second kernel  all parts go to the workspace (``wgrad_parts.reduce_kernel``)

Warp roles
    producer    1 warp, the last partition: all loads
    consumer i  4 warps each, 1 to 3 of them: WGMMA, then the stores.  They share
        "columns"   a block of rows each, all columns
        "rows"      one block of rows, some columns each
        "tile"      everything, some pixels each: each consumer has a part of its own

Barriers (mbarriers in shared memory)
    name        count      arrives                            waits
    ready[s]    1 + tx     producer's expect and TMA's bytes  consumers, before they read stage s
    empty[s]    CONSUMERS  each consumer, after its WGMMA     producer, before it refills stage s

    and between CTAs, in global memory, where parts are added in place
    flag[c, i]  -          consumer i of CTA c, release, once consumer i of the CTA with the last
                           its part is in the workspace       part, acquire; it resets the flag

    A CTA waits only for CTAs with lower numbers, which started earlier: none waits for one that
    cannot start.

Timeline (two CTAs that split a tile; L: loads, M: WGMMA, P: part to the workspace, W: waits,
A: adds, S: stores)
    CTA 0  producer    L L L L
           consumers     M M M M P
    CTA 1  producer    L L L L
           consumers     M M M M W A S
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton_ext.gluon import nvidia as xnv
from triton_ext.host.gluon_names import async_load, barrier, typed
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families.gluon_wgrad_config import BLOCK_C as _BLOCK_C
from triton_ext.ops.families.gluon_wgrad_config import WgradWork
from triton_ext.ops.hopper.wgrad_parts import store_accumulator, wait_for
from triton_ext.ops.hopper.wgrad_pipeline import (
    allocate_ring,
    column_target,
    next_x_block,
    num_segments,
    row_target,
    segment,
    tile_blocks,
)
from triton_ext.ops.kernels.gluon_pipeline import accumulator_layout, next_stage

__all__ = ["WgradProblem", "conv_wgrad_kernel", "wgrad_problem"]

BLOCK_C = gl.constexpr(_BLOCK_C)


class WgradProblem(NamedTuple):
    """What the kernels are told about the convolution; a runtime argument with named fields.

    Attributes:
        co: Output channels.
        ci: Input channels.
        dy_tiles: Tiles along the blocks of dy.
        steps: Steps of a tile.
        waves: Rounds of whole tiles; see Partition.
        rest: Tiles that are left after these, at least 1 here.
        first_split: Number of the first of these, waves * CTAs.
        splits: Parts of each tile that is left.
        parts: rest * splits, 0 if no tile is left.
        add_in_place: 1 if the CTA with a tile's last part adds the others', else 0.
        filter_size: (T, R, S), 1 for missing dimensions.
        dilation: As filter_size.
        output_size: Per spatial dimension.
        stride: Per spatial dimension.
        padding: In front of each spatial dimension.
    """

    co: int
    ci: int
    dy_tiles: int
    steps: int
    waves: int
    rest: int
    first_split: int
    splits: int
    parts: int
    add_in_place: int
    filter_size: tuple[int, int, int]
    dilation: tuple[int, int, int]
    output_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]


def wgrad_problem(work: WgradWork, problem: ConvProblem) -> WgradProblem:
    """Returns the runtime argument of both kernels for a convolution and its tiles."""
    partition = work.partition
    return WgradProblem(
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
        filter_size=_three(problem.filter_size),
        dilation=_three(problem.dilation),
        output_size=problem.output_size,
        stride=problem.stride,
        padding=tuple(low for low, _ in problem.padding),
    )


def _three(values: tuple[int, ...]) -> tuple[int, int, int]:
    d, h, w = (1,) * (3 - len(values)) + values
    return d, h, w


# ---- Device helpers ----------------------------------------------------------------------------


@gluon.jit
def producer(x_desc, dy_desc, ring, problem, CONFIG: gl.constexpr):
    """Loads all segments of this CTA, as far ahead as the ring allows."""
    STAGES: gl.constexpr = CONFIG.stages
    X_BLOCKS: gl.constexpr = CONFIG.x_blocks
    DY_BLOCKS: gl.constexpr = CONFIG.dy_blocks
    GROUPS: gl.constexpr = CONFIG.pixel_groups
    IS_MATRIX: gl.constexpr = len(x_desc.shape) == 2
    FIRST_DIM: gl.constexpr = 5 - len(x_desc.shape)
    taps_d, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    for index in range(num_segments(problem)):
        tile, first, last = segment(index, problem)
        row, column = tile_blocks(tile, problem, CONFIG)
        number = row if CONFIG.rows_from_x else column
        dy_block = column if CONFIG.rows_from_x else row
        tap = number % (taps_d * taps_h * taps_w)
        first_channel = number // (taps_d * taps_h * taps_w) * BLOCK_C
        first_position = (
            tap // taps_w // taps_h, tap // taps_w % taps_h, tap % taps_w, first_channel,
        )  # fmt: skip
        for step in range(first, last):
            mbarrier.wait(ring.empty_bars.index(stage), phase)
            ready = ring.ready_bars.index(stage)
            mbarrier.expect(ready, CONFIG.stage_bytes)
            for group in gl.static_range(GROUPS):
                pixel = step * CONFIG.step_pixels + group * CONFIG.pixels
                for block in gl.static_range(DY_BLOCKS):
                    if CONFIG.rows_from_x:
                        target = column_target(ring, stage, block, group, CONFIG)
                    else:
                        target = row_target(ring, stage, block, group, CONFIG)
                    async_load(dy_desc, [pixel, (dy_block + block) * BLOCK_C], ready, target)
                if not IS_MATRIX:
                    start = xnv.im2col_start(
                        pixel, problem.output_size, problem.stride, problem.padding
                    )
                position = first_position
                for block in gl.static_range(X_BLOCKS):
                    if CONFIG.rows_from_x:
                        target = row_target(ring, stage, block, group, CONFIG)
                    else:
                        target = column_target(ring, stage, block, group, CONFIG)
                    t, r, s, channel = position
                    # Behind the last block of x the channels are behind Ci: zeros.
                    if IS_MATRIX:
                        async_load(x_desc, [pixel, channel], ready, target)
                    else:
                        offsets = (t * dilation_d, r * dilation_h, s * dilation_w)
                        coord = start + (channel,)  # noqa: RUF005  # no starred expressions
                        xnv.async_load_im2col(x_desc, coord, offsets[FIRST_DIM:], ready, target)
                    position = next_x_block(position, problem)
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def multiply_segment(ring, done, num_steps, ME: gl.constexpr, CONFIG: gl.constexpr):
    """Returns a segment's accumulators; the second is of no use where the consumer has none.

    ``done`` steps of earlier segments tell where the producer put this one.
    """
    STAGES: gl.constexpr = CONFIG.stages
    HAS_REST: gl.constexpr = CONFIG.has_rest(ME)
    ROW: gl.constexpr = 0 if CONFIG.share == "rows" else ME
    COLUMN: gl.constexpr = 0 if CONFIG.share == "columns" else ME
    N_MAIN: gl.constexpr = CONFIG.main_blocks * BLOCK_C
    N_REST: gl.constexpr = CONFIG.rest_blocks * BLOCK_C if HAS_REST else 16
    stage = done % STAGES
    phase = (done // STAGES) & 1
    # Its own value on purpose: `previous = stage` would not be carried by the loop.
    previous = done - (done // STAGES) * STAGES
    acc_main = gl.zeros((BLOCK_C, N_MAIN), gl.float32, layout=accumulator_layout(N_MAIN))
    acc_rest = gl.zeros((BLOCK_C, N_REST), gl.float32, layout=accumulator_layout(N_REST))
    for step in range(num_steps):
        mbarrier.wait(ring.ready_bars.index(stage), phase)
        rows = ring.rows_smem.index(stage * CONFIG.row_buffers + ROW).permute((1, 0))
        main = ring.main_smem.index(stage * CONFIG.main_buffers + COLUMN)
        acc_main = warpgroup_mma(rows, main, acc_main, is_async=True)
        if HAS_REST:
            rest = ring.rest_smem.index(stage * CONFIG.rest_buffers + COLUMN)
            acc_rest = warpgroup_mma(rows, rest, acc_rest, is_async=True)
            acc_main, acc_rest = warpgroup_mma_wait(2, deps=(acc_main, acc_rest))
        else:
            acc_main = warpgroup_mma_wait(1, deps=(acc_main,))
        mbarrier.arrive(ring.empty_bars.index(previous), pred=step > 0)
        previous = stage
        stage, phase = next_stage(stage, phase, STAGES)
    if HAS_REST:
        acc_main, acc_rest = warpgroup_mma_wait(0, deps=(acc_main, acc_rest))
    else:
        acc_main = warpgroup_mma_wait(0, deps=(acc_main,))
    mbarrier.arrive(ring.empty_bars.index(previous))
    return acc_main, acc_rest


@gluon.jit
def consumer(outputs, flag_ptr, ring, problem, ME: gl.constexpr, CONFIG: gl.constexpr):
    """Multiplies and stores all segments of this CTA."""
    CONSUMERS: gl.constexpr = CONFIG.consumers
    HAS_REST: gl.constexpr = CONFIG.has_rest(ME)
    ROW: gl.constexpr = ME if CONFIG.share == "columns" else 0
    MAIN: gl.constexpr = CONFIG.first_column(ME)
    REST: gl.constexpr = CONFIG.first_rest_column(ME)
    # Consumers that share a tile have a part of it each.
    SHARED: gl.constexpr = CONFIG.pixel_groups > 1
    done = gl.to_tensor(0)
    for index in range(num_segments(problem)):
        tile, first, last = segment(index, problem)
        acc_main, acc_rest = multiply_segment(ring, done, last - first, ME, CONFIG)
        done += last - first
        is_part = (last < problem.steps) | ((first > 0) & (problem.add_in_place == 0)) | SHARED
        others = gl.to_tensor(0)
        if (first > 0) & (last == problem.steps) & (problem.add_in_place == 1):
            others += problem.splits - 1
            for other in range(others):
                slot = gl.program_id(0) % problem.rest + other * problem.rest
                wait_for(flag_ptr + slot * CONSUMERS + ME)
        store_accumulator(
            acc_main, outputs, ring.dw_smem, tile, others, is_part, problem, ROW, MAIN, ME, CONFIG
        )
        if HAS_REST:
            store_accumulator(
                acc_rest, outputs, ring.dw_smem, tile, others, is_part, problem, ROW, REST, ME,
                CONFIG,
            )  # fmt: skip
        if is_part & (problem.add_in_place == 1):
            barrier()
            flag = flag_ptr + gl.program_id(0) * CONSUMERS + ME
            gl.atomic_xchg(flag, 1, sem="release", scope="gpu")
    tma.store_wait(0)


# ---- Kernels -----------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["problem"])
def conv_wgrad_kernel(
    x_desc,  # im2col: [PIXELS, 64] of x
    dy_desc,  # tiled: [PIXELS, 64] of dy [M_GEMM, Co]
    partial_ptr,  # workspace [slots, ROW_BLOCKS, COLUMN_BLOCKS, 64 * 64] of fp32
    flag_ptr,  # [slots, CONSUMERS] of int32, zeros before and after
    dw_desc,  # tiled: [64, 1, 64] of dw [Co, T * R * S, Ci]
    problem,  # WgradProblem
    CONFIG: gl.constexpr,  # WgradTileConfig
):
    """Reduces over pixels: whole tiles to dw, parts of tiles to the workspace."""
    problem = typed(problem)
    outputs = (partial_ptr, dw_desc)
    ring = allocate_ring(dy_desc, dw_desc, CONFIG)
    CONSUMER_REGISTERS: gl.constexpr = CONFIG.consumer_registers
    PRODUCER_REGISTERS: gl.constexpr = CONFIG.producer_registers
    # The first function runs in the CTA's own warps, consumer 0; the others get warps of their own.
    if CONFIG.consumers == 1:
        gl.warp_specialize(
            [
                (consumer, (outputs, flag_ptr, ring, problem, 0, CONFIG)),
                (producer, (x_desc, dy_desc, ring, problem, CONFIG)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif CONFIG.consumers == 2:
        gl.warp_specialize(
            [
                (consumer, (outputs, flag_ptr, ring, problem, 0, CONFIG)),
                (consumer, (outputs, flag_ptr, ring, problem, 1, CONFIG)),
                (producer, (x_desc, dy_desc, ring, problem, CONFIG)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (outputs, flag_ptr, ring, problem, 0, CONFIG)),
                (consumer, (outputs, flag_ptr, ring, problem, 1, CONFIG)),
                (consumer, (outputs, flag_ptr, ring, problem, 2, CONFIG)),
                (producer, (x_desc, dy_desc, ring, problem, CONFIG)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
