"""Device helpers of the convolutions: the ring of stages, WGMMA over a stage, stores.

The kernels' docstrings have the symbols, the warp roles and the table of barriers.
"""

# mypy: disable-error-code="call-arg"
# ruff: noqa: RUF005  # Gluon traces these bodies, and has no starred expressions

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton_ext.gluon import nvidia as xnv
from triton_ext.ops.hopper.epilogue import finish_columns
from triton_ext.ops.hopper.names import aggregate, allocate_mbarrier, async_load, async_store
from triton_ext.ops.hopper.tiles import Barrier

__all__ = [
    "Shared",
    "accumulator_layout",
    "allocate_shared",
    "arrivals",
    "is_matrix",
    "load_filter",
    "load_pixels",
    "multiply_tile",
    "next_stage",
    "num_own",
    "smem_layout",
    "staging_order",
    "store_tile",
    "stores_in_flight",
    "tile_counts",
    "tile_origin",
]

READY = gl.constexpr(Barrier.READY)
EMPTY = gl.constexpr(Barrier.EMPTY)
TURN = gl.constexpr(Barrier.TURN)


@gluon.constexpr_function
def arrivals(config, barrier):
    """Returns the count with which a barrier is initialised."""
    return config.row_groups if barrier == Barrier.EMPTY else 1


@aggregate
class Shared:
    """Shared memory of the CTA: the ring, the staging buffers, the barriers."""

    x_smem: gl.shared_memory_descriptor  # [STAGES * ROW_GROUPS, ROWS, BLOCK_K]
    w_main_smem: gl.shared_memory_descriptor  # [STAGES or FILTER_STEPS, BLOCK_N_MAIN, 1, BLOCK_K]
    w_rest_smem: gl.shared_memory_descriptor  # [STAGES, BLOCK_N_REST, 1, BLOCK_K]
    y_smem: gl.shared_memory_descriptor  # [CONSUMERS * STORE_BUFFERS, ROWS, STORE_N]
    ready_bars: gl.shared_memory_descriptor  # [STAGES]
    empty_bars: gl.shared_memory_descriptor  # [STAGES]
    turn_bars: gl.shared_memory_descriptor  # [2]


@gluon.jit
def allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG: gl.constexpr):
    """Allocates shared memory and initialises the barriers."""
    STAGES: gl.constexpr = CONFIG.stages
    BLOCKS: gl.constexpr = STAGES * CONFIG.row_groups
    BUFFERS: gl.constexpr = CONFIG.consumers * CONFIG.store_buffers
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [BLOCKS] + x_desc.block_shape, x_desc.layout)
    W_BLOCKS: gl.constexpr = CONFIG.w_blocks
    w_main_smem = gl.allocate_shared_memory(
        w_main_desc.dtype, [W_BLOCKS] + w_main_desc.block_shape, w_main_desc.layout
    )
    w_rest_smem = w_main_smem
    if CONFIG.block_n_rest > 0:
        w_rest_smem = gl.allocate_shared_memory(
            w_rest_desc.dtype, [STAGES] + w_rest_desc.block_shape, w_rest_desc.layout
        )
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [BUFFERS] + y_desc.block_shape, y_desc.layout)
    ready_bars = allocate_mbarrier(batch=STAGES)
    empty_bars = allocate_mbarrier(batch=STAGES)
    turn_bars = allocate_mbarrier(batch=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready_bars.index(i), count=arrivals(CONFIG, READY))
        mbarrier.init(empty_bars.index(i), count=arrivals(CONFIG, EMPTY))
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=arrivals(CONFIG, TURN))
    return Shared(x_smem, w_main_smem, w_rest_smem, y_smem, ready_bars, empty_bars, turn_bars)


@gluon.constexpr_function
def is_matrix(desc):
    """Tells whether pixels are read as rows of a matrix: a 1x1 filter's, stride 1, no padding."""
    return len(desc.shape) == 2


@gluon.jit
def tile_counts(m_gemm, n_gemm, CONFIG: gl.constexpr):
    """Tiles along M_GEMM and N_GEMM; cdiv would overflow for pixels near 2^31."""
    num_m = (m_gemm - 1) // CONFIG.block_m + 1
    if CONFIG.rows_from_w:
        num_n = (n_gemm - 1) // CONFIG.block_n + 1
    else:
        # For few columns on purpose: with the other form the widest tiles spill registers.
        num_n = gl.cdiv(n_gemm, CONFIG.block_n)
    return num_m, num_n


@gluon.jit
def tile_origin(tile, m_gemm, n_gemm, CONFIG: gl.constexpr):
    """First row and first column of a tile: GROUP_M rows of tiles, column by column."""
    GROUP_M: gl.constexpr = CONFIG.group_m
    num_m, num_n = tile_counts(m_gemm, n_gemm, CONFIG)
    if CONFIG.filter_steps > 0:
        # The number of CTAs is a multiple of num_n: each stays in its columns.
        return (tile // num_n) * CONFIG.block_m, (tile % num_n) * CONFIG.block_n
    width = GROUP_M * num_n
    first_m = (tile // width) * GROUP_M
    group_m = min(num_m - first_m, GROUP_M)
    rest = tile % width
    return (first_m + rest % group_m) * CONFIG.block_m, (rest // group_m) * CONFIG.block_n


@gluon.jit
def num_own(tiles):
    """Tiles of this CTA: program_id, program_id + num_programs, ..."""
    return (tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The stage after this one, and the parity of its phase."""
    stage += 1
    wraps = stage == STAGES
    return gl.where(wraps, 0, stage), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def load_filter(w_main_desc, w_rest_desc, shared, ready, block, coord, CONFIG: gl.constexpr):
    """Starts the loads of a step's block of the filter."""
    column, tap, channel = coord
    async_load(w_main_desc, [column, tap, channel], ready, shared.w_main_smem.index(block))
    if CONFIG.block_n_rest > 0:
        async_load(
            w_rest_desc, [column + CONFIG.block_n_main, tap, channel], ready,
            shared.w_rest_smem.index(block),
        )  # fmt: skip


@gluon.jit
def load_pixels(x_desc, shared, ready, stage, starts, channel, offsets, CONFIG: gl.constexpr):
    """Starts the loads of a step's pixels, one for each group of rows."""
    GROUPS: gl.constexpr = CONFIG.row_groups
    for group in gl.static_range(GROUPS):
        target = shared.x_smem.index(stage * GROUPS + group)
        if is_matrix(x_desc):
            async_load(x_desc, starts[group] + (channel,), ready, target)
        else:
            xnv.async_load_im2col(x_desc, starts[group] + (channel,), offsets, ready, target)


@gluon.jit
def as_kn(w_smem, W_IS_NK: gl.constexpr):
    """A block of the filter as WGMMA's right operand."""
    matrix = w_smem.reshape([w_smem.shape[0], w_smem.shape[2]])
    if W_IS_NK:
        matrix = matrix.permute((1, 0))
    return matrix


@gluon.jit
def multiply_stage(
    shared, stage, step, acc_main, acc_rest, GROUP: gl.constexpr, CONFIG: gl.constexpr,
    W_IS_NK: gl.constexpr,
):  # fmt: skip
    """Starts the WGMMAs of a stage, and waits for those of the stage before.

    The filter's blocks are [BLOCK_N, 1, BLOCK_K] if W_IS_NK, else [BLOCK_K, 1, BLOCK_N].
    """
    x = shared.x_smem.index(stage * CONFIG.row_groups + GROUP)
    block = step if CONFIG.filter_steps > 0 else stage
    w_main = as_kn(shared.w_main_smem.index(block), W_IS_NK)
    acc_main = warpgroup_mma(x, w_main, acc_main, is_async=True)
    if CONFIG.block_n_rest > 0:
        w_rest = as_kn(shared.w_rest_smem.index(block), W_IS_NK)
        acc_rest = warpgroup_mma(x, w_rest, acc_rest, is_async=True)
        acc_main, acc_rest = warpgroup_mma_wait(2, deps=(acc_main, acc_rest))
    else:
        acc_main = warpgroup_mma_wait(1, deps=(acc_main,))
    return acc_main, acc_rest


@gluon.jit
def multiply_tile(
    shared, index, first_step, num_steps, ME: gl.constexpr, CONFIG: gl.constexpr,
    W_IS_NK: gl.constexpr,
):  # fmt: skip
    """Returns a tile's accumulators; the second is of no use without BLOCK_N_REST.

    Args:
        shared: The ring.
        index: Number of the tile within the CTA.
        first_step: Steps of all earlier tiles of the CTA; tells where the producer put this one.
        num_steps: Steps of this tile, 0 for a tile of zeros.
        ME: Number of the consumer.
        CONFIG: The configuration.
        W_IS_NK: See multiply_stage.
    """
    STAGES: gl.constexpr = CONFIG.stages
    ROWS: gl.constexpr = CONFIG.rows
    GROUP: gl.constexpr = 0 if CONFIG.ping_pong else ME
    N_MAIN: gl.constexpr = CONFIG.block_n_main
    N_REST: gl.constexpr = CONFIG.block_n_rest if CONFIG.block_n_rest > 0 else 16
    stage = first_step % STAGES
    phase = (first_step // STAGES) & 1
    # Its own value on purpose: `previous = stage` would not be carried by the loop.
    previous = first_step - (first_step // STAGES) * STAGES
    BYTES: gl.constexpr = CONFIG.element_bytes
    acc_main = gl.zeros((ROWS, N_MAIN), gl.float32, layout=accumulator_layout(N_MAIN, BYTES))
    acc_rest = gl.zeros((ROWS, N_REST), gl.float32, layout=accumulator_layout(N_REST, BYTES))
    if CONFIG.ping_pong:
        mbarrier.wait(shared.turn_bars.index(ME), ((index // 2) & 1) ^ (1 - ME))
    for step in range(num_steps):
        mbarrier.wait(shared.ready_bars.index(stage), phase)
        acc_main, acc_rest = multiply_stage(
            shared, stage, step, acc_main, acc_rest, GROUP, CONFIG, W_IS_NK
        )
        mbarrier.arrive(shared.empty_bars.index(previous), pred=step > 0)
        previous = stage
        stage, phase = next_stage(stage, phase, STAGES)
    if CONFIG.ping_pong:
        mbarrier.arrive(shared.turn_bars.index(1 - ME))
    if CONFIG.block_n_rest > 0:
        acc_main, acc_rest = warpgroup_mma_wait(0, deps=(acc_main, acc_rest))
    else:
        acc_main = warpgroup_mma_wait(0, deps=(acc_main,))
    mbarrier.arrive(shared.empty_bars.index(previous), pred=num_steps > 0)
    return acc_main, acc_rest


@gluon.constexpr_function
def stores_in_flight(buffers, store):
    """Returns how many of its newest stores a consumer may have in flight as it refills a buffer.

    These are the ones behind the last store from the same buffer, which may be of the tile before.

    Args:
        buffers: The staging buffers of a tile's stores, in order; every tile has the same.
        store: Number of the store within its tile.
    """
    behind = range(1, len(buffers) + 1)
    return next(n for n in behind if buffers[store - n] == buffers[store]) - 1


@gluon.constexpr_function
def staging_order(config):
    """Returns the staging buffers of a tile's stores, of those of a consumer, in order."""
    return tuple(n % config.store_buffers for n in range(config.block_n // config.store_n))


@gluon.jit
def store_tile(
    acc_main, acc_rest, y_desc, y_smem, row, column, ME: gl.constexpr, CONFIG: gl.constexpr,
    epilogue=None, ACTIVATION: gl.constexpr = None,
):  # fmt: skip
    """Stores a tile's accumulators through TMA; row and column are the consumer's first.

    With rows_from_w rows of the accumulators are columns of y: they are turned round on their way
    to shared memory.
    epilogue and ACTIVATION are those of finish_columns; both None for neither.
    """
    N_MAIN: gl.constexpr = CONFIG.block_n_main
    FIRST: gl.constexpr = ME * CONFIG.store_buffers
    store_columns(
        acc_main, y_desc, y_smem, row, column, FIRST, 0, CONFIG, epilogue, ACTIVATION
    )  # fmt: skip
    if CONFIG.block_n_rest > 0:
        PARTS: gl.constexpr = N_MAIN // CONFIG.store_n
        store_columns(
            acc_rest, y_desc, y_smem, row, column + N_MAIN, FIRST, PARTS, CONFIG, epilogue,
            ACTIVATION,
        )  # fmt: skip


@gluon.jit
def store_columns(
    acc, y_desc, y_smem, row, column, FIRST: gl.constexpr, PART: gl.constexpr, CONFIG: gl.constexpr,
    epilogue, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Converts an accumulator, STORE_N columns at a time, and starts their TMA stores.

    FIRST is the consumer's first staging buffer, PART counts its stores of this tile.
    """
    if acc.shape[1] > CONFIG.store_n:
        HALF: gl.constexpr = acc.shape[1] // 2
        PARTS: gl.constexpr = HALF // CONFIG.store_n
        # The columns of a WGMMA accumulator are registers: halving it moves nothing.
        left, right = acc.reshape([acc.shape[0], 2, HALF]).permute(0, 2, 1).split()
        store_columns(
            left, y_desc, y_smem, row, column, FIRST, PART, CONFIG, epilogue, ACTIVATION
        )  # fmt: skip
        store_columns(
            right, y_desc, y_smem, row, column + HALF, FIRST, PART + PARTS, CONFIG, epilogue,
            ACTIVATION,
        )  # fmt: skip
    else:
        layout: gl.constexpr = accumulator_layout(acc.shape[1], CONFIG.element_bytes)
        values = gl.convert_layout(acc, layout, assert_trivial=True)
        if CONFIG.rows_from_w:
            values = values.permute((1, 0))
            pixel, channel = column, row
        else:
            pixel, channel = row, column
        if ACTIVATION is not None:
            values = finish_columns(values, pixel, channel, epilogue, ACTIVATION)
        buffer = y_smem.index(FIRST + PART % CONFIG.store_buffers)
        tma.store_wait(stores_in_flight(staging_order(CONFIG), PART))
        buffer.store(values.to(y_desc.dtype))
        fence_async_shared()
        async_store(y_desc, [pixel, channel], buffer)


@gluon.constexpr_function
def accumulator_layout(columns, element_bytes=2):
    """Returns the layout of a warp group's accumulator; operands are 32 bytes deep."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32 // element_bytes]
    )


def smem_layout(block: Sequence[int], element_bytes: int = 2) -> Any:
    """Returns the layout in shared memory of a block, on the host."""
    return _smem_layout(tuple(block), element_bytes)


@functools.cache
def _smem_layout(block, element_bytes):
    # Types of one size have one layout.
    dtype = {1: gl.float8e5, 2: gl.float16, 4: gl.float32}[element_bytes]
    return gl.NVMMASharedLayout.get_default_for(list(block), dtype)
