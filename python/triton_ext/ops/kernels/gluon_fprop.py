"""Forward convolution (fprop) on Hopper: a warp-specialised, persistent kernel in Gluon.

1-D, 2-D and 3-D with any stride, dilation and padding come from one kernel text: the rank is the
descriptor's.  fp16, bf16 and fp8 (e4m3, e5m2), stock Triton 3.6 or newer, sm_90.  Sums are fp32;
those of fp8 keep about 14 bits in the tensor cores, as ``tl.dot`` on sm_90 has them.

Symbols
    x           [N, (D, (H,)) W, Ci]             input, channels-last
    w           [Co, (T, (R,)) S, Ci]            filter
    y           [N, (out_d, (out_h,)) out_w, Co] output

GEMM mapping
    M_GEMM = N * out_d * out_h * out_w   output pixels
    N_GEMM = Co                          output channels
    K_GEMM = T * R * S * Ci              blocks of channels outside, taps inside: consecutive taps
                                         read nearly the same pixels, which come from L2

    A TMA load in im2col mode brings [ROWS, BLOCK_K] of the left operand: BLOCK_K channels of one
    filter tap for ROWS consecutive output pixels.  Pixels of the padding, pixels after the last
    image and channels after Ci arrive as zeros, so no tail needs a mask.  The filter's tensor map
    has the taps as a dimension of its own: its channel tail is zero too, and 0 * Inf never happens.

    A 1x1 filter with stride 1 and no padding takes x as a matrix, through tiled loads.  Then the
    product may be turned round (ROWS_FROM_W): M_GEMM counts output channels, N_GEMM pixels, x and w
    change places, and tiles are turned back as they are stored.

Tiles
    BLOCK_N is BLOCK_N_MAIN + BLOCK_N_REST, two accumulators side by side: 256 + 64 or 128 + 32
    divide widths such as 320 or 640 without waste, and powers of two do not.
    A tile has ROW_GROUPS * ROWS pixels.  Every group of rows is one TMA load.
    A small filter stays in shared memory (FILTER_STEPS > 0): its blocks come with the stages of a
    CTA's first tile, and all later tiles of the CTA have the same columns.

Warp roles
    producer    1 warp, the last partition: all loads of all tiles
    consumer i  4 warps each, 1 to 3 of them: WGMMA, then the tile's stores
        cooperative: consumer i owns the rows of group i of every tile
        ping-pong:   consumer i owns every second tile as a whole; while one multiplies, the other
                     stores

Barriers (mbarriers in shared memory)
    name        count    arrives                             waits
    ready[s]    1 + tx   producer's expect and TMA's bytes   consumers, before they read stage s
    empty[s]    readers  each consumer that read stage s     producer, before it refills stage s
    turn[i]     1        the other consumer, all its WGMMA   ping-pong: consumer i, before its first
                         of a tile issued                    WGMMA of a tile

    readers is the number of consumers of a stage: all of them when they cooperate, else 1.
    turn is not only for speed: a wait knows the parity of a phase, not its number, so the two
    consumers may not be more than one round of the ring apart.

Timeline (ping-pong; L: loads, M: WGMMA, S: stores)
    producer    L0 L1 L2 L3 L4 ...
    consumer 0     M0 S0 M2 S2 ...
    consumer 1        M1 S1 M3 ...
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.host.gluon_names import specialize, typed
from triton_ext.ops.kernels.gluon_pipeline import (
    allocate_shared,
    load_step,
    multiply_tile,
    next_stage,
    num_own,
    pixel_starts,
    store_tile,
    tile_counts,
    tile_origin,
)

__all__ = ["FpropProblem", "conv_fprop_kernel"]


# What one prefetch brings (PTX ISA, prefetch): a line of the cache.
LINE_BYTES = gl.constexpr(128)


class FpropProblem(NamedTuple):
    """The convolution, as a runtime argument with named fields."""

    m_gemm: int  # rows of the product: output pixels; with rows_from_w output channels
    co: int  # columns of the product: output channels; with rows_from_w output pixels
    channel_blocks: int  # cdiv(Ci, BLOCK_K)
    filter_size: tuple[int, ...]  # (T, R, S), 1 for missing dimensions
    dilation: tuple[int, ...]  # as filter_size
    output_size: tuple[int, ...]  # per spatial dimension
    stride: tuple[int, ...]  # per spatial dimension
    padding: tuple[int, ...]  # before each spatial dimension


@gluon.jit
def producer(x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG: gl.constexpr):
    """Loads all tiles of this CTA, as far ahead as the ring allows."""
    STAGES: gl.constexpr = CONFIG.stages
    MISSING: gl.constexpr = 5 - len(x_desc.shape)
    taps_d, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    num_m, num_n = tile_counts(problem.m_gemm, problem.co, CONFIG)
    for index in range(num_own(num_m * num_n)):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.co, CONFIG)
        starts = pixel_starts(
            x_desc, row, problem.output_size, problem.stride, problem.padding, CONFIG
        )
        for block in range(problem.channel_blocks):
            tap = gl.to_tensor(0)
            taps = taps_d * taps_h * taps_w
            for t in range(taps_d):
                for r in range(taps_h):
                    for s in range(taps_w):
                        offsets = (t * dilation_d, r * dilation_h, s * dilation_w)
                        load_step(
                            x_desc, w_main_desc, w_rest_desc, shared, stage, phase, index == 0,
                            block * taps + tap, starts, offsets[MISSING:], column, tap,
                            block * CONFIG.block_k, CONFIG, DIRECTION="fprop",
                        )  # fmt: skip
                        tap += 1
                        stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def prefetch_residual(row, column, epilogue, COLUMNS: gl.constexpr, CONFIG: gl.constexpr):
    """Brings the residual of an accumulator into L2 before its sums begin.

    row and column are the first ones of the product; see finish_columns for epilogue.  A hint: rows
    that do not begin with a line miss their last one, a residual per image is small and shared.
    """
    _, _, _, residual_ptr, _, m_gemm, co, image_size = epilogue
    if residual_ptr is not None and image_size is None:
        PIXELS: gl.constexpr = COLUMNS if CONFIG.rows_from_w else CONFIG.rows
        CHANNELS: gl.constexpr = CONFIG.rows if CONFIG.rows_from_w else COLUMNS
        if CONFIG.rows_from_w:
            pixel, channel = column, row
        else:
            pixel, channel = row, column
        LINE: gl.constexpr = LINE_BYTES * 8 // residual_ptr.dtype.element_ty.primitive_bitwidth
        LINES: gl.constexpr = max(CHANNELS // LINE, 1)
        layout: gl.constexpr = gl.BlockedLayout([1, 1], [32 // LINES, LINES], [4, 1], [1, 0])
        rows = pixel.to(gl.int64) + gl.arange(0, PIXELS, layout=gl.SliceLayout(1, layout))
        columns = channel + gl.arange(0, LINES, layout=gl.SliceLayout(0, layout)) * LINE
        offsets = gl.minimum(rows, m_gemm - 1)[:, None] * co + gl.minimum(columns, co - 1)[None, :]
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l",
            [residual_ptr + offsets], gl.int32, False, 1,
        )  # fmt: skip


@gluon.jit
def consumer(
    ME: gl.constexpr, y_desc, shared, problem, epilogue, CONFIG: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiplies and stores: every tile's rows of group ME, or every second tile."""
    FIRST_TILE: gl.constexpr = ME if CONFIG.ping_pong else 0
    TILE_STEP: gl.constexpr = 2 if CONFIG.ping_pong else 1
    FIRST_ROW: gl.constexpr = CONFIG.row_group(ME) * CONFIG.rows
    taps_d, taps_h, taps_w = problem.filter_size
    num_steps = taps_d * taps_h * taps_w * problem.channel_blocks
    num_m, num_n = tile_counts(problem.m_gemm, problem.co, CONFIG)
    for index in range(FIRST_TILE, num_own(num_m * num_n), TILE_STEP):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.co, CONFIG)
        first = row + FIRST_ROW
        prefetch_residual(first, column, epilogue, CONFIG.block_n_main, CONFIG)
        if CONFIG.block_n_rest > 0:
            rest = column + CONFIG.block_n_main
            prefetch_residual(first, rest, epilogue, CONFIG.block_n_rest, CONFIG)
        accs = multiply_tile(
            shared, index, index * num_steps, num_steps, ME, CONFIG, DIRECTION="fprop"
        )
        store_tile(accs, y_desc, shared.out_smem, first, column, ME, CONFIG, epilogue, ACTIVATION)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["problem"])
def conv_fprop_kernel(
    x_desc,  # im2col: [ROWS, BLOCK_K] of x; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_N_MAIN, 1, BLOCK_K] of w [Co, T * R * S, Ci]
    w_rest_desc,  # tiled: [BLOCK_N_REST, 1, BLOCK_K] of w, None without a second accumulator
    y_desc,  # tiled: [ROWS, STORE_N] of y [M_GEMM, Co]
    bias_ptr,  # [Co] or None
    scale_ptr,  # [Co] or None
    tile_scale_ptr,  # one number for all channels, or None
    residual_ptr,  # [M_GEMM, Co], [N, Co] if RESIDUAL_PER_IMAGE, or None
    out_scale_ptr,  # one number or None
    problem,  # FpropProblem
    CONFIG: gl.constexpr,  # TileConfig
    ACTIVATION: gl.constexpr,  # "none", or a name of ops.epilogue.ACTIVATIONS
    RESIDUAL_PER_IMAGE: gl.constexpr,
):
    """Computes y; a grid of any size works, a multiple of num_n where the filter stays."""
    problem = typed(problem)
    if CONFIG.rows_from_w:
        pixels, channels = problem.co, problem.m_gemm
    else:
        pixels, channels = problem.m_gemm, problem.co
    epilogue = typed((
        bias_ptr, scale_ptr, tile_scale_ptr, residual_ptr, out_scale_ptr, pixels, channels,
        problem.output_size if RESIDUAL_PER_IMAGE else None,
    ))  # fmt: skip
    shared = allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG, DIRECTION="fprop")
    specialize(
        consumer, (y_desc, shared, problem, epilogue, CONFIG, ACTIVATION),
        producer, (x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG),
        CONFIG,
    )  # fmt: skip
