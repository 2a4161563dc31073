"""What becomes of wgrad's accumulators: stores to dw, parts in the workspace, adding them up.

wgrad.py has the symbols and the table of barriers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_wait

from triton_ext.host.gluon_names import async_store, typed
from triton_ext.ops.families.gluon_wgrad_config import BLOCK_C as _BLOCK_C
from triton_ext.ops.hopper.wgrad_pipeline import tile_blocks
from triton_ext.ops.kernels.gluon_pipeline import accumulator_layout, stores_in_flight

__all__ = ["reduce_kernel", "store_accumulator", "wait_for"]

BLOCK_C = gl.constexpr(_BLOCK_C)


@gluon.constexpr_function
def line_layout():
    """Returns the layout of a block as a line: 16 bytes per thread, in the order of threads."""
    return gl.BlockedLayout([4], [32], [4], [0])


@gluon.jit
def block_to_line(block):
    """An accumulator's [64, 64] in the order of threads and registers, which moves nothing.

    A row is 16 * warp + 8 * half + group, a column 8 * j + 2 * pair + element; the line is
    [j, warp, group, pair, half, element].
    """
    line = block.reshape([4, 2, 8, 8, 4, 2]).permute(3, 0, 2, 4, 1, 5).reshape([BLOCK_C * BLOCK_C])
    return gl.convert_layout(line, line_layout(), assert_trivial=True)


@gluon.jit
def line_to_block(line):
    """The inverse of block_to_line."""
    block = line.reshape([8, 4, 8, 4, 2, 2]).permute(1, 4, 2, 0, 3, 5).reshape([BLOCK_C, BLOCK_C])
    return gl.convert_layout(block, accumulator_layout(BLOCK_C), assert_trivial=True)


@gluon.constexpr_function
def staging_order(config, consumer):
    """Returns the staging buffers of a consumer's stores of a tile, of its own, in order."""
    first, rest = config.first_column(consumer), config.first_rest_column(consumer)
    columns = [*range(first, first + config.main_blocks)]
    if config.has_rest(consumer):
        columns += range(rest, rest + config.rest_blocks)
    return tuple(column % config.store_buffers for column in columns)


@gluon.constexpr_function
def store_number(config, consumer, column):
    """Returns which of a consumer's stores of a tile a column block is."""
    number = column - config.first_column(consumer)
    if 0 <= number < config.main_blocks:
        return number
    return config.main_blocks + column - config.first_rest_column(consumer)


@gluon.jit
def store_staged(
    block, dw_desc, dw_smem, row, column, problem, ME: gl.constexpr, COLUMN: gl.constexpr,
    CONFIG: gl.constexpr,
):  # fmt: skip
    """Converts a block and starts its TMA store; what is behind Co or Ci is not stored.

    ME is the consumer, COLUMN the block's column within the tile.
    """
    taps_d, taps_h, taps_w = problem.filter_size
    taps = taps_d * taps_h * taps_w
    x_block = row if CONFIG.rows_from_x else column
    co_block = column if CONFIG.rows_from_x else row
    buffer = dw_smem.index(ME * CONFIG.store_buffers + COLUMN % CONFIG.store_buffers)
    target = buffer.reshape([BLOCK_C, BLOCK_C])
    if CONFIG.rows_from_x:
        target = target.permute((1, 0))
    ORDER: gl.constexpr = staging_order(CONFIG, ME)
    tma.store_wait(stores_in_flight(ORDER, store_number(CONFIG, ME, COLUMN)))
    target.store(block.to(dw_desc.dtype))
    fence_async_shared()
    async_store(dw_desc, [co_block * BLOCK_C, x_block % taps, x_block // taps * BLOCK_C], buffer)


@gluon.jit
def store_part(values, partial_ptr, slot, offsets, CONFIG: gl.constexpr):
    """Stores a block of a part to a slot of the workspace."""
    first = slot.to(gl.int64) * CONFIG.tile_elements
    gl.store(partial_ptr + first + offsets, block_to_line(values))


@gluon.jit
def store_accumulator(
    acc, outputs, dw_smem, tile, others, is_part, problem, ROW: gl.constexpr, COLUMN: gl.constexpr,
    ME: gl.constexpr, CONFIG: gl.constexpr,
):  # fmt: skip
    """Stores an accumulator: a part to the workspace, else to dw, after adding others' parts.

    ROW and COLUMN are its first block within the tile, ME is the consumer.  The others' parts are
    those of the CTAs that have the tile's earlier steps, in this order.
    """
    if acc.shape[1] > BLOCK_C:
        HALF: gl.constexpr = acc.shape[1] // 2
        BLOCKS: gl.constexpr = HALF // BLOCK_C
        # The columns of a WGMMA accumulator are registers: halving it moves nothing.
        left, right = acc.reshape([acc.shape[0], 2, HALF]).permute(0, 2, 1).split()
        store_accumulator(
            left, outputs, dw_smem, tile, others, is_part, problem, ROW, COLUMN, ME, CONFIG
        )
        store_accumulator(
            right, outputs, dw_smem, tile, others, is_part, problem, ROW, COLUMN + BLOCKS, ME,
            CONFIG,
        )  # fmt: skip
    else:
        partial_ptr, dw_desc = outputs
        layout: gl.constexpr = accumulator_layout(BLOCK_C)
        BLOCK: gl.constexpr = (ROW * CONFIG.column_blocks + COLUMN) * BLOCK_C * BLOCK_C
        values = gl.convert_layout(acc, layout, assert_trivial=True)
        offsets = BLOCK + gl.arange(0, BLOCK_C * BLOCK_C, layout=line_layout())
        if CONFIG.pixel_groups > 1:
            # Consumers that share a tile have a part of it each, always.
            slot = gl.program_id(0) + ME * problem.parts
            store_part(values, partial_ptr, slot, offsets, CONFIG)
        elif is_part:
            store_part(values, partial_ptr, gl.program_id(0), offsets, CONFIG)
        else:
            for other in range(others):
                slot = gl.program_id(0) % problem.rest + other * problem.rest
                slot = slot.to(gl.int64) * CONFIG.tile_elements
                part = gl.load(partial_ptr + slot + offsets, cache_modifier=".cg")
                values += line_to_block(part)
            row, column = tile_blocks(tile, problem, CONFIG)
            store_staged(
                values, dw_desc, dw_smem, row + ROW, column + COLUMN, problem, ME, COLUMN,
                CONFIG,
            )  # fmt: skip


@gluon.jit
def wait_for(flag_ptr):
    """Waits until a flag is 1, and resets it."""
    seen = gl.atomic_cas(flag_ptr, 1, 0, sem="acquire", scope="gpu")
    while seen != 1:
        seen = gl.atomic_cas(flag_ptr, 1, 0, sem="acquire", scope="gpu")


# ---- Second kernel -----------------------------------------------------------------------------


@gluon.jit
def store_filter(block, dw_ptr, row, column, offs_row, offs_column, problem, X_ROWS: gl.constexpr):
    """Writes a block of a tile, or some rows of it, to dw.

    ``row`` and ``column`` are the block's among all of dw, ``offs_row`` and ``offs_column`` lie
    within it.
    """
    taps_d, taps_h, taps_w = problem.filter_size
    taps = taps_d * taps_h * taps_w
    x_block = row if X_ROWS else column
    tap = x_block % taps
    channel = x_block // taps * BLOCK_C
    # Ci is a multiple of 8, said in a way that Triton's axis analysis follows: wide stores.
    eighths = problem.ci // 8
    if X_ROWS:
        offs_ci = channel + offs_row
        offs_co = column * BLOCK_C + offs_column
        mask = (offs_ci // 8 < eighths)[:, None] & (offs_co < problem.co)[None, :]
        base = (offs_co.to(gl.int64) * taps + tap) * eighths * 8
        offsets = base[None, :] + offs_ci[:, None]
    else:
        offs_co = row * BLOCK_C + offs_row
        offs_ci = channel + offs_column
        mask = (offs_co < problem.co)[:, None] & (offs_ci // 8 < eighths)[None, :]
        base = (offs_co.to(gl.int64) * taps + tap) * eighths * 8
        offsets = base[:, None] + offs_ci[None, :]
    gl.store(dw_ptr + offsets, block.to(dw_ptr.dtype.element_ty), mask=mask)


@gluon.constexpr_function
def filter_layout(columns, x_rows, warps):
    """Returns the layout in which [16, columns] of dw are written: input channels side by side."""
    if x_rows:
        return gl.BlockedLayout([4, 1], [4, 8], [1, warps], [0, 1])
    return gl.BlockedLayout([1, 4], [128 // columns, columns // 4], [warps, 1], [1, 0])


@gluon.jit(do_not_specialize=["problem"])
def reduce_kernel(
    partial_ptr,  # as in conv_wgrad_kernel
    dw_ptr,  # dw
    problem,  # WgradProblem
    CONFIG: gl.constexpr,  # WgradConfig
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
    # See block_to_line.
    values = total.reshape([EIGHTHS, 8, 4, 2, 2]).permute(3, 1, 0, 2, 4).reshape([16, COLUMNS])
    out: gl.constexpr = filter_layout(COLUMNS, CONFIG.rows_from_x, WARPS)
    row, column = tile_blocks(problem.first_split + gl.program_id(1), problem, CONFIG)
    store_filter(
        gl.convert_layout(values, out), dw_ptr, row + block // CONFIG.column_blocks,
        column + block % CONFIG.column_blocks,
        warp * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, out)),
        piece * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, out)), problem,
        CONFIG.rows_from_x,
    )  # fmt: skip
