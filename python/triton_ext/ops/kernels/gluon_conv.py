"""fprop and dgrad on Hopper: warp-specialised, persistent kernels in Gluon.

1-D, 2-D and 3-D with any stride, dilation and padding come from one kernel text: the rank is the
descriptor's.  fp16 and bf16, fprop also fp8 (e4m3, e5m2); stock Triton 3.6 or newer, sm_90.  Sums
are fp32; those of fp8 keep about 14 bits in the tensor cores, as ``tl.dot`` on sm_90 has them.

Symbols
    x, dx       [N, (D, (H,)) W, Ci]             input and its gradient, channels-last
    w           [Co, (T, (R,)) S, Ci]            filter
    y, dy       [N, (out_d, (out_h,)) out_w, Co] output and its gradient

GEMM mapping of fprop
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

GEMM mapping of dgrad, by stride phases, without atomics, in one launch
    That of ``gemm.py``, with the steps of a phase in the order of fprop's.  All phases share one
    tensor map.  Its box starts at lower, the least position of all phases; im2col offsets are
    relative to lower, never negative.  A phase without taps is a tile without steps: its zeros are
    stored like any other result.  A 1x1 filter takes dy as a matrix, as in fprop.

Tiles
    BLOCK_N is BLOCK_N_MAIN + BLOCK_N_REST, two accumulators side by side: 256 + 64 or 128 + 32
    divide widths such as 320 or 640 without waste, and powers of two do not.
    A tile has ROW_GROUPS * ROWS pixels.  Every group of rows is one TMA load.
    A small filter stays in shared memory (FILTER_STEPS > 0): its blocks come with the stages of a
    CTA's first tile, and all later tiles of the CTA have the same columns.  dgrad needs stride 1.

Warp roles
    producer    1 warp, the last partition: all loads of all tiles
    consumer i  4 warps each, 1 to 3 of them: WGMMA, then the tile's stores
        cooperative: consumer i owns the rows of group i of every tile
        ping-pong:   consumer i owns every second tile as a whole; while one multiplies, the other
                     stores.  Tiles of dgrad differ in their steps, so a consumer counts those of
                     the other's tiles too, to know where in the ring its own begin.

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

Stores
    Through TMA.  The pixels of a phase of dgrad are s apart, which no tile of a tensor map is: with
    a stride its rows go through the staging buffer and are written 16 bytes per thread.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.host.gluon_names import specialize, typed
from triton_ext.ops.kernels import gluon_pipeline as ring
from triton_ext.ops.kernels.gemm import phase_pixels


class FpropProblem(NamedTuple):
    """The convolution, as a runtime argument with named fields."""

    m_gemm: int  # rows of the product: output pixels; with rows_from_w output channels
    n_gemm: int  # columns of the product: output channels; with rows_from_w output pixels
    channel_blocks: int  # cdiv(Ci, BLOCK_K)
    filter_size: tuple[int, ...]  # (T, R, S), 1 for missing dimensions
    dilation: tuple[int, ...]  # as filter_size
    output_size: tuple[int, ...]  # per spatial dimension
    stride: tuple[int, ...]  # per spatial dimension
    padding: tuple[int, ...]  # before each spatial dimension

    @classmethod
    def of(cls, conv: Any, m_gemm: int, n_gemm: int, channel_blocks: int) -> FpropProblem:
        """Returns the argument for the geometry of a convolution."""
        return cls(m_gemm, n_gemm, channel_blocks, **ring.conv_fields(conv))


@gluon.jit
def num_tiles(problem, CONFIG: gl.constexpr, PHASES: gl.constexpr):
    """Tiles of this CTA, of all stride phases; PHASES is None in fprop."""
    COUNT: gl.constexpr = 1 if PHASES is None else PHASES.count
    return ring.num_own(problem.m_gemm, problem.n_gemm, CONFIG, COUNT)


@gluon.jit
def split_tile(index, problem, CONFIG: gl.constexpr, PHASES: gl.constexpr):
    """First row and column of a tile of this CTA in its phase, and the residues of the phase."""
    tile = gl.program_id(0) + index * gl.num_programs(0)
    COUNT: gl.constexpr = 1 if PHASES is None else PHASES.count
    if COUNT == 1:
        row, column = ring.tile_origin(tile, problem.m_gemm, problem.n_gemm, CONFIG)
        return row, column, (0, 0, 0)
    else:
        STRIDE_H: gl.constexpr = PHASES.stride[1]
        STRIDE_W: gl.constexpr = PHASES.stride[2]
        num_m, num_n = ring.tile_counts(problem.m_gemm, problem.n_gemm, CONFIG)
        tiles = num_m * num_n
        row, column = ring.tile_origin(tile % tiles, problem.m_gemm, problem.n_gemm, CONFIG)
        number = tile // tiles
        rest = number // STRIDE_W
        return row, column, (rest // STRIDE_H, rest % STRIDE_H, number % STRIDE_W)


@gluon.jit
def phase_taps(residues, problem, DIM: gl.constexpr, PHASES: gl.constexpr):
    """First tap of a phase, number of its taps, im2col offset of the first."""
    taps = problem.filter_size[DIM]
    if PHASES is None:
        return 0, taps, 0
    else:
        DIVISOR: gl.constexpr = PHASES.divisor[DIM]
        STEP: gl.constexpr = PHASES.tap_step[DIM]
        position = residues[DIM] + problem.padding[DIM]
        first = (position // DIVISOR) * PHASES.inverse[DIM] % STEP
        is_reached = (position % DIVISOR == 0) & (first < taps)
        count = gl.where(is_reached, (taps - 1 - first) // STEP + 1, 0)
        shift = (position - first * problem.dilation[DIM]) // PHASES.stride[DIM]
        return first, count, shift - problem.lower[DIM]


@gluon.jit
def num_steps_of(index, problem, CONFIG: gl.constexpr, PHASES: gl.constexpr):
    """Steps of a tile of this CTA."""
    _, _, residues = split_tile(index, problem, CONFIG, PHASES)
    _, count_d, _ = phase_taps(residues, problem, 0, PHASES)
    _, count_h, _ = phase_taps(residues, problem, 1, PHASES)
    _, count_w, _ = phase_taps(residues, problem, 2, PHASES)
    return count_d * count_h * count_w * problem.channel_blocks


@gluon.jit
def producer(
    x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG: gl.constexpr, PHASES: gl.constexpr
):
    """Loads all tiles of this CTA, as far ahead as the ring allows."""
    DIRECTION: gl.constexpr = "fprop" if PHASES is None else "dgrad"
    MISSING: gl.constexpr = 5 - len(x_desc.shape)
    _, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    if PHASES is None:
        box = (problem.output_size, problem.stride, problem.padding)
    else:
        # By which the position in dy falls from one tap of a phase to its next.
        fall_d = dilation_d // PHASES.divisor[0]
        fall_h = dilation_h // PHASES.divisor[1]
        fall_w = dilation_w // PHASES.divisor[2]
        lower_d, lower_h, lower_w = problem.lower
        ones = (1, 1, 1)
        front = (-lower_d, -lower_h, -lower_w)
        box = (problem.phase_size[MISSING:], ones[MISSING:], front[MISSING:])
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    for index in range(num_tiles(problem, CONFIG, PHASES)):
        row, column, residues = split_tile(index, problem, CONFIG, PHASES)
        first_d, count_d, offset_d = phase_taps(residues, problem, 0, PHASES)
        first_h, count_h, offset_h = phase_taps(residues, problem, 1, PHASES)
        first_w, count_w, offset_w = phase_taps(residues, problem, 2, PHASES)
        starts = ring.pixel_starts(x_desc, row, box[0], box[1], box[2], CONFIG)
        step = gl.to_tensor(0)
        for block in range(problem.channel_blocks):
            tap = gl.to_tensor(0)
            for t in range(count_d):
                for r in range(count_h):
                    for s in range(count_w):
                        if PHASES is None:
                            offsets = (t * dilation_d, r * dilation_h, s * dilation_w)
                        else:
                            tap = (first_d + t * PHASES.tap_step[0]) * taps_h + first_h
                            tap = (tap + r * PHASES.tap_step[1]) * taps_w + first_w
                            tap += s * PHASES.tap_step[2]
                            offsets = (
                                offset_d - t * fall_d, offset_h - r * fall_h, offset_w - s * fall_w,
                            )  # fmt: skip
                        ring.load_step(
                            x_desc, w_main_desc, w_rest_desc, shared, stage, phase, index == 0,
                            step, starts, offsets[MISSING:], column, tap, block * CONFIG.block_k,
                            CONFIG, DIRECTION,
                        )  # fmt: skip
                        tap += 1
                        step += 1
                        stage, phase = ring.next_stage(stage, phase, CONFIG.stages)


@gluon.jit
def prefetch_residual(row, column, epilogue, COLUMNS: gl.constexpr, CONFIG: gl.constexpr):
    """Brings the residual of an accumulator of the product into L2 before its sums begin.

    A hint: rows that do not begin with a line of the cache, 128 bytes (PTX ISA, prefetch), miss
    their last one; a residual per image is small and shared.  See finish_columns for epilogue.
    """
    operands, m_gemm, co, image_size = epilogue
    if operands.residual is not None and image_size is None:
        PIXELS: gl.constexpr = COLUMNS if CONFIG.rows_from_w else CONFIG.rows
        CHANNELS: gl.constexpr = CONFIG.rows if CONFIG.rows_from_w else COLUMNS
        pixel = column if CONFIG.rows_from_w else row
        channel = row if CONFIG.rows_from_w else column
        LINE: gl.constexpr = 1024 // operands.residual.dtype.element_ty.primitive_bitwidth
        LINES: gl.constexpr = max(CHANNELS // LINE, 1)
        layout: gl.constexpr = gl.BlockedLayout([1, 1], [32 // LINES, LINES], [4, 1], [1, 0])
        rows = pixel.to(gl.int64) + gl.arange(0, PIXELS, layout=gl.SliceLayout(1, layout))
        columns = channel + gl.arange(0, LINES, layout=gl.SliceLayout(0, layout)) * LINE
        offsets = gl.minimum(rows, m_gemm - 1)[:, None] * co + gl.minimum(columns, co - 1)[None, :]
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l",
            [operands.residual + offsets], gl.int32, False, 1,
        )  # fmt: skip


@gluon.jit
def store_rows(
    values, dx_ptr, buffer, row, column, residues, problem, epilogue, PHASES: gl.constexpr
):
    """Finishes some columns and writes their rows where they belong, through a staging buffer."""
    THREADS: gl.constexpr = values.shape[1] // 8  # each has 8 channels of a row
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [32 // THREADS, THREADS], [4, 1], [1, 0])
    values = ring.finish_columns(values, row, column, epilogue, "none")
    buffer.store(values.to(dx_ptr.dtype.element_ty))
    offs_m = row + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, rows))
    offs_n = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, rows))
    mask_m = offs_m < problem.m_gemm
    pixel, mask_m = phase_pixels(offs_m, mask_m, residues, problem, PHASES)
    # Ci is a multiple of 8, written so that Triton's axis analysis follows: 16-byte stores.
    eighths = problem.n_gemm // 8
    mask = mask_m[:, None] & (offs_n // 8 < eighths)[None, :]
    offsets = (pixel.to(gl.int64) * eighths * 8)[:, None] + offs_n[None, :]
    gl.store(dx_ptr + offsets, buffer.load(rows), mask=mask)


@gluon.jit
def consumer(
    ME: gl.constexpr, y_desc, y_ptr, shared, problem, epilogue, CONFIG: gl.constexpr,
    ACTIVATION: gl.constexpr, PHASES: gl.constexpr,
):  # fmt: skip
    """Multiplies and stores: every tile's rows of group ME, or every second tile."""
    DIRECTION: gl.constexpr = "fprop" if PHASES is None else "dgrad"
    FIRST_TILE: gl.constexpr = ME if CONFIG.ping_pong else 0
    TILE_STEP: gl.constexpr = 2 if CONFIG.ping_pong else 1
    FIRST_ROW: gl.constexpr = ME % CONFIG.row_groups * CONFIG.rows
    first_step = gl.to_tensor(0)
    if FIRST_TILE == 1:
        first_step += num_steps_of(0, problem, CONFIG, PHASES)
    for index in range(FIRST_TILE, num_tiles(problem, CONFIG, PHASES), TILE_STEP):
        row, column, residues = split_tile(index, problem, CONFIG, PHASES)
        num_steps = num_steps_of(index, problem, CONFIG, PHASES)
        row += FIRST_ROW
        if PHASES is None:
            first_step = index * num_steps
            for i in gl.static_range(len(CONFIG.widths)):
                begin = column + i * CONFIG.block_n_main
                prefetch_residual(row, begin, epilogue, CONFIG.widths[i], CONFIG)
        accs = ring.multiply_tile(shared, index, first_step, num_steps, ME, CONFIG, DIRECTION)
        if PHASES is not None:
            first_step += num_steps
            if TILE_STEP == 2:
                first_step += num_steps_of(index + 1, problem, CONFIG, PHASES)
        IS_STRIDED: gl.constexpr = PHASES is not None and PHASES.count > 1
        if IS_STRIDED:
            parts = ring.split_columns(accs, CONFIG)
            buffer = shared.out_smem.index(ME * CONFIG.store_buffers)
            for part in gl.static_range(len(parts)):
                store_rows(
                    parts[part], y_ptr, buffer, row, column + part * CONFIG.store_n, residues,
                    problem, epilogue, PHASES,
                )  # fmt: skip
        else:
            ring.store_tile(
                accs, y_desc, shared.out_smem, row, column, ME, CONFIG, epilogue, ACTIVATION
            )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["problem"])
def conv_fprop_kernel(
    x_desc,  # im2col: [ROWS, BLOCK_K] of x; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_N_MAIN, 1, BLOCK_K] of w [Co, T * R * S, Ci]
    w_rest_desc,  # tiled: [BLOCK_N_REST, 1, BLOCK_K] of w, None without a second accumulator
    y_desc,  # tiled: [ROWS, STORE_N] of y [M_GEMM, Co]
    operands,  # Operands of the epilogue
    problem,  # FpropProblem
    CONFIG: gl.constexpr,  # TileConfig
    FINISH: gl.constexpr,  # Finish
):
    """Computes y; a grid of any size works, a multiple of num_n where the filter stays."""
    problem = typed(problem)
    pixels = problem.n_gemm if CONFIG.rows_from_w else problem.m_gemm
    channels = problem.m_gemm if CONFIG.rows_from_w else problem.n_gemm
    ACTIVATION: gl.constexpr = FINISH.activation
    epilogue = typed(
        (operands, pixels, channels, problem.output_size if FINISH.residual_per_image else None)
    )
    shared = ring.allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG, "fprop")
    specialize(
        consumer, (y_desc, None, shared, problem, epilogue, CONFIG, ACTIVATION, None),
        producer, (x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG, None),
        CONFIG,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["problem"])
def conv_dgrad_kernel(
    dy_desc,  # im2col: [ROWS, BLOCK_K] of dy; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_K, 1, BLOCK_N_MAIN] of w [Co, T * R * S, Ci]
    w_rest_desc,  # tiled: [BLOCK_K, 1, BLOCK_N_REST] of w, None without a second accumulator
    dx_desc,  # tiled: [ROWS, STORE_N] of dx [pixels, Ci]; without stores if there are phases
    dx_ptr,  # dx
    operands,  # Operands of the epilogue: the bias [Ci] alone
    problem,  # DgradProblem
    CONFIG: gl.constexpr,  # TileConfig
    PHASES: gl.constexpr,  # Phases
):
    """Computes dx; a grid of any size works, a multiple of num_n where the filter stays."""
    problem = typed(problem)
    epilogue = typed((operands, problem.m_gemm, problem.n_gemm, None))
    shared = ring.allocate_shared(dy_desc, w_main_desc, w_rest_desc, dx_desc, CONFIG, "dgrad")
    specialize(
        consumer, (dx_desc, dx_ptr, shared, problem, epilogue, CONFIG, "none", PHASES),
        producer, (dy_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG, PHASES),
        CONFIG,
    )  # fmt: skip
