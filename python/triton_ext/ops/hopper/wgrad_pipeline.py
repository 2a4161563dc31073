"""Device helpers of wgrad: shared memory, where a load goes, which steps of which tile are whose.

wgrad.py has the symbols, the warp roles and the table of barriers.
"""

# mypy: disable-error-code="call-arg, no-redef"
# ruff: noqa: RUF005  # Gluon traces these bodies, and has no starred expressions

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_ext.host.gluon_names import aggregate, allocate_mbarrier
from triton_ext.ops.families.gluon_wgrad_config import BLOCK_C as _BLOCK_C

__all__ = [
    "Ring",
    "allocate_ring",
    "column_target",
    "next_x_block",
    "num_segments",
    "row_target",
    "segment",
    "tile_blocks",
]

BLOCK_C = gl.constexpr(_BLOCK_C)


@aggregate
class Ring:
    """Shared memory of the CTA: the ring of loads and its barriers."""

    rows_smem: gl.shared_memory_descriptor  # [STAGES * ROW_BUFFERS, PIXELS, 64]
    main_smem: gl.shared_memory_descriptor  # [STAGES * MAIN_BUFFERS, PIXELS, 64 * MAIN_BLOCKS]
    rest_smem: gl.shared_memory_descriptor  # [STAGES * REST_BUFFERS, PIXELS, 64 * REST_BLOCKS]
    dw_smem: gl.shared_memory_descriptor  # [CONSUMERS * STORE_BUFFERS, 64, 1, 64]
    ready_bars: gl.shared_memory_descriptor  # [STAGES]
    empty_bars: gl.shared_memory_descriptor  # [STAGES]


@gluon.constexpr_function
def swizzled_layout():
    """Returns the layout of blocks side by side, each as a TMA load writes it."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@gluon.jit
def allocate_ring(dy_desc, dw_desc, CONFIG: gl.constexpr):
    """Allocates shared memory and initialises the barriers."""
    dtype: gl.constexpr = dy_desc.dtype
    STAGES: gl.constexpr = CONFIG.stages
    PIXELS: gl.constexpr = CONFIG.pixels
    BUFFERS: gl.constexpr = CONFIG.consumers * CONFIG.store_buffers
    layout: gl.constexpr = swizzled_layout()
    rows_smem = gl.allocate_shared_memory(
        dtype, [STAGES * CONFIG.row_buffers, PIXELS, BLOCK_C], layout
    )
    main_smem = gl.allocate_shared_memory(
        dtype, [STAGES * CONFIG.main_buffers, PIXELS, BLOCK_C * CONFIG.main_blocks], layout
    )
    rest_smem = main_smem
    if CONFIG.rest_blocks > 0:
        rest_smem = gl.allocate_shared_memory(
            dtype, [STAGES * CONFIG.rest_buffers, PIXELS, BLOCK_C * CONFIG.rest_blocks], layout
        )
    dw_smem = gl.allocate_shared_memory(
        dw_desc.dtype, [BUFFERS] + dw_desc.block_shape, dw_desc.layout
    )
    ready_bars = allocate_mbarrier(batch=STAGES)
    empty_bars = allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready_bars.index(i), count=1)
        mbarrier.init(empty_bars.index(i), count=CONFIG.consumers)
    return Ring(rows_smem, main_smem, rest_smem, dw_smem, ready_bars, empty_bars)


@gluon.jit
def row_target(ring, stage, BLOCK: gl.constexpr, GROUP: gl.constexpr, CONFIG: gl.constexpr):
    """Where a stage has a block of rows for a group of pixels."""
    return ring.rows_smem.index(stage * CONFIG.row_buffers + BLOCK + GROUP)


@gluon.jit
def column_target(ring, stage, BLOCK: gl.constexpr, GROUP: gl.constexpr, CONFIG: gl.constexpr):
    """Where a stage has a block of columns for a group of pixels."""
    MAIN: gl.constexpr = CONFIG.main_blocks
    MAINS: gl.constexpr = CONFIG.main_buffers // CONFIG.pixel_groups * MAIN
    if BLOCK < MAINS:
        BUFFER: gl.constexpr = BLOCK // MAIN + GROUP
        buffer = ring.main_smem.index(stage * CONFIG.main_buffers + BUFFER)
        return buffer.slice(BLOCK % MAIN * BLOCK_C, BLOCK_C, dim=1)
    else:
        REST: gl.constexpr = CONFIG.rest_blocks
        BUFFER: gl.constexpr = (BLOCK - MAINS) // REST + GROUP
        buffer = ring.rest_smem.index(stage * CONFIG.rest_buffers + BUFFER)
        return buffer.slice((BLOCK - MAINS) % REST * BLOCK_C, BLOCK_C, dim=1)


@gluon.jit
def num_segments(problem):
    """Segments of this CTA: whole tiles, and at most one part of a tile."""
    return problem.waves + (gl.program_id(0) < problem.parts).to(gl.int32)


@gluon.jit
def segment(index, problem):
    """Tile, first step and the one after the last; see Partition."""
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
def next_x_block(position, problem):
    """The block of x after this one: the next tap, or the first tap of the next channels."""
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
def tile_blocks(tile, problem, CONFIG: gl.constexpr):
    """A tile's first block of rows and of columns.

    Tiles of the same blocks of x and consecutive ones of dy come one after the other.
    """
    x_tile = tile // problem.dy_tiles
    dy_tile = tile % problem.dy_tiles
    if CONFIG.rows_from_x:
        row = x_tile * CONFIG.row_blocks
        column = dy_tile * CONFIG.column_blocks
    else:
        row = dy_tile * CONFIG.row_blocks
        column = x_tile * CONFIG.column_blocks
    return row, column
