"""Device functions of the Gluon convolutions: the ring of stages, WGMMA over a stage, stores.

The kernels' docstrings have the symbols, the warp roles and the table of barriers.  The arithmetic
of epilogues is that of the ``@triton.jit`` kernels (``epilogue.py``), traced for tensors with a
layout.  DIRECTION is "fprop", "dgrad" or "wgrad"; blocks of the filter are [BLOCK_N, 1, BLOCK_K] in
fprop and [BLOCK_K, 1, BLOCK_N] in dgrad, and both operands of wgrad are [pixels, channels].
"""

# mypy: disable-error-code="call-arg,assignment"
# ruff: noqa: RUF005  # Gluon traces these bodies, and has no starred expressions

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from triton_ext.gluon import nvidia as xnv
from triton_ext.host import gluon_names as names
from triton_ext.ops.core.plan import ConvSizes, three
from triton_ext.ops.kernels.epilogue import activate, product, scale_and_shift, tile_position


@names.aggregate
class Shared:
    """Shared memory of the CTA: the ring, the staging buffers, the barriers; here of fprop."""

    rows_smem: gl.shared_memory_descriptor  # [STAGES * ROW_GROUPS, ROWS, BLOCK_K]
    main_smem: gl.shared_memory_descriptor  # [STAGES or FILTER_STEPS, BLOCK_N_MAIN, 1, BLOCK_K]
    # [STAGES, BLOCK_N_REST, 1, BLOCK_K].  Where WGMMAs are joined, all pieces of all stages, one
    # after the other: [W_PIECES, BLOCK_N_REST, 1, BLOCK_K]; main_smem are the same in twos,
    # [W_PIECES // 2, 2 * BLOCK_N_REST, 1, BLOCK_K].
    rest_smem: gl.shared_memory_descriptor
    out_smem: gl.shared_memory_descriptor  # [CONSUMERS * STORE_BUFFERS, ROWS, STORE_N]
    ready_bars: gl.shared_memory_descriptor  # [STAGES]
    empty_bars: gl.shared_memory_descriptor  # [STAGES]
    turn_bars: gl.shared_memory_descriptor  # [2]


@gluon.constexpr_function
def is_joined(config, direction):
    """Tells whether one WGMMA goes over the columns of all accumulators."""
    return direction == "fprop" and config.joins


@gluon.constexpr_function
def accumulator_widths(config, direction, me):
    """Returns the columns of each of a consumer's accumulators; of each piece, where joined."""
    if is_joined(config, direction):
        return (config.block_n_rest,) * (config.block_n // config.block_n_rest)
    if direction == "wgrad":
        return tuple(config.store_n * len(blocks) for blocks in config.accumulators(me))
    return config.widths


@gluon.constexpr_function
def accumulator_layout(columns, element_bytes=2):
    """Returns the layout of a warp group's accumulator; operands are 32 bytes deep."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32 // element_bytes]
    )


def smem_layout(block: Sequence[int], element_bytes: int = 2) -> Any:
    """Returns the layout in shared memory of a block, on the host; dtypes of a size have one."""
    dtype = {1: gl.float8e5, 2: gl.float16, 4: gl.float32}[element_bytes]
    return gl.NVMMASharedLayout.get_default_for(list(block), dtype)


def conv_fields(conv: Any) -> dict[str, tuple[int, ...]]:
    """Returns the last fields of a kernel's problem, for a convolution or its geometry."""
    taps, dilation = three(conv.filter_size, 1), three(conv.dilation, 1)
    return {**ConvSizes.of(conv)._asdict(), "filter_size": taps, "dilation": dilation}


@gluon.jit
def allocate_blocks(desc, COUNT: gl.constexpr):
    """Allocates shared memory for a number of a descriptor's blocks."""
    return gl.allocate_shared_memory(desc.dtype, [COUNT] + desc.block_shape, desc.layout)


@gluon.jit
def allocate_barriers(STAGES: gl.constexpr, READERS: gl.constexpr):
    """Allocates and initialises the barriers of the ring: ready and empty ones."""
    ready_bars = names.allocate_mbarrier(batch=STAGES)
    empty_bars = names.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready_bars.index(i), count=1)
        mbarrier.init(empty_bars.index(i), count=READERS)
    return ready_bars, empty_bars


@gluon.jit
def allocate_shared(
    x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG: gl.constexpr, DIRECTION: gl.constexpr
):
    """Allocates shared memory of fprop or dgrad and initialises the barriers."""
    rows_smem = allocate_blocks(x_desc, CONFIG.stages * CONFIG.row_groups)
    if is_joined(CONFIG, DIRECTION):
        rest_smem = allocate_blocks(w_rest_desc, CONFIG.w_pieces)
        pairs: gl.constexpr = [CONFIG.w_pieces // 2] + w_main_desc.block_shape
        main_smem = names.reinterpret(rest_smem, w_main_desc.dtype, pairs, w_main_desc.layout)
    else:
        main_smem = allocate_blocks(w_main_desc, CONFIG.w_blocks)
        rest_smem = main_smem
        if CONFIG.block_n_rest > 0:
            rest_smem = allocate_blocks(w_rest_desc, CONFIG.stages)
    out_smem = allocate_blocks(y_desc, CONFIG.consumers * CONFIG.store_buffers)
    ready_bars, empty_bars = allocate_barriers(CONFIG.stages, CONFIG.row_groups)
    turn_bars = names.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=1)
    return Shared(rows_smem, main_smem, rest_smem, out_smem, ready_bars, empty_bars, turn_bars)


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
    num_m, num_n = tile_counts(m_gemm, n_gemm, CONFIG)
    if CONFIG.filter_steps > 0:
        # The number of CTAs is a multiple of num_n: each stays in its columns.
        return (tile // num_n) * CONFIG.block_m, (tile % num_n) * CONFIG.block_n
    tile_m, tile_n = tile_position(tile, num_m, num_n, CONFIG.group_m)
    return tile_m * CONFIG.block_m, tile_n * CONFIG.block_n


@gluon.jit
def num_own(m_gemm, n_gemm, CONFIG: gl.constexpr, PHASES: gl.constexpr = 1):
    """Tiles of this CTA, of all stride phases: program_id, program_id + num_programs, ..."""
    num_m, num_n = tile_counts(m_gemm, n_gemm, CONFIG)
    tiles = num_m * num_n * PHASES
    return (tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The stage after this one, and the parity of its phase."""
    stage += 1
    wraps = stage == STAGES
    return gl.where(wraps, 0, stage), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def pixel_starts(x_desc, row, size, stride, padding, CONFIG: gl.constexpr):
    """Coordinates of the first pixel of each group of rows, a tuple; see xnv.im2col_start."""
    GROUPS: gl.constexpr = CONFIG.row_groups
    starts = ()
    for group in gl.static_range(GROUPS):
        first = row + group * CONFIG.rows
        if is_matrix(x_desc):
            starts = starts + ((first,),)
        else:
            starts = starts + (xnv.im2col_start(first, size, stride, padding),)
    return starts


@gluon.jit
def load_step(
    x_desc, w_main_desc, w_rest_desc, shared, stage, phase, is_first_tile, step, starts, offsets,
    column, tap, channel, CONFIG: gl.constexpr, DIRECTION: gl.constexpr,
):  # fmt: skip
    """Starts the loads of a step into a stage, as soon as it is empty.

    A filter that stays is loaded for the first tile only, block by block: step counts within the
    tile.  starts are those of pixel_starts, offsets the im2col offsets of the tap, column and
    channel the first ones of the step.
    """
    ready = shared.ready_bars.index(stage)
    mbarrier.wait(shared.empty_bars.index(stage), phase)
    if CONFIG.filter_steps == 0 or is_first_tile:
        mbarrier.expect(ready, CONFIG.x_bytes + CONFIG.w_bytes)
        block = step if CONFIG.filter_steps > 0 else stage
        if is_joined(CONFIG, DIRECTION):
            # Pieces go in twos, from even ones on; the one that is left is the first of a block
            # that begins at an odd one, or the last.
            PIECES: gl.constexpr = CONFIG.block_n // CONFIG.block_n_rest
            first = block * PIECES
            odd = first & 1
            single = (1 - odd) * (PIECES - 1)
            at = [column + single * CONFIG.block_n_rest, tap, channel]
            names.async_load(w_rest_desc, at, ready, shared.rest_smem.index(first + single))
            for pair in gl.static_range(PIECES // 2):
                at = [column + (odd + 2 * pair) * CONFIG.block_n_rest, tap, channel]
                place = ((first + odd) >> 1) + pair
                names.async_load(w_main_desc, at, ready, shared.main_smem.index(place))
        else:
            at = [column, tap, channel] if DIRECTION == "fprop" else [channel, tap, column]
            names.async_load(w_main_desc, at, ready, shared.main_smem.index(block))
            if CONFIG.block_n_rest > 0:
                column += CONFIG.block_n_main
                at = [column, tap, channel] if DIRECTION == "fprop" else [channel, tap, column]
                names.async_load(w_rest_desc, at, ready, shared.rest_smem.index(block))
    else:
        mbarrier.expect(ready, CONFIG.x_bytes)
    GROUPS: gl.constexpr = CONFIG.row_groups
    for group in gl.static_range(GROUPS):
        target = shared.rows_smem.index(stage * GROUPS + group)
        if is_matrix(x_desc):
            names.async_load(x_desc, starts[group] + (channel,), ready, target)
        else:
            xnv.async_load_im2col(x_desc, starts[group] + (channel,), offsets, ready, target)


@gluon.jit
def column_operand(
    shared, block, NUMBER: gl.constexpr, ME: gl.constexpr, CONFIG: gl.constexpr,
    DIRECTION: gl.constexpr,
):  # fmt: skip
    """The right operand of a step for accumulator NUMBER, or for piece NUMBER, of consumer ME."""
    if is_joined(CONFIG, DIRECTION):
        PIECES: gl.constexpr = CONFIG.block_n // CONFIG.block_n_rest
        smem = shared.rest_smem.index(block * PIECES + NUMBER)
    else:
        if DIRECTION == "wgrad":
            block = block * CONFIG.column_groups[NUMBER] + ME % CONFIG.column_groups[0]
        smem = shared.main_smem.index(block) if NUMBER == 0 else shared.rest_smem.index(block)
    if DIRECTION != "wgrad":
        smem = smem.reshape([smem.shape[0], smem.shape[2]])
    if DIRECTION == "fprop":
        smem = smem.permute((1, 0))
    return smem


@gluon.jit
def multiply_stage(
    shared, stage, step, accs, ME: gl.constexpr, CONFIG: gl.constexpr, DIRECTION: gl.constexpr
):
    """Starts the WGMMAs of a stage, and waits for those of the stage before."""
    rows = shared.rows_smem.index(stage * CONFIG.row_groups + ME % CONFIG.row_groups)
    if DIRECTION == "wgrad":
        rows = rows.permute((1, 0))
    block = step if CONFIG.filter_steps > 0 else stage
    COUNT: gl.constexpr = len(accumulator_widths(CONFIG, DIRECTION, ME))
    if is_joined(CONFIG, DIRECTION):
        pieces = ()
        for i in gl.static_range(COUNT):
            pieces = pieces + (column_operand(shared, block, i, ME, CONFIG, DIRECTION),)
        return wait_for_all(1, xnv.warpgroup_mma_joined(rows, pieces, accs))
    started = ()
    for i in gl.static_range(COUNT):
        columns = column_operand(shared, block, i, ME, CONFIG, DIRECTION)
        started = started + (hopper.warpgroup_mma(rows, columns, accs[i], is_async=True),)
    return wait_for_all(COUNT, started)


@gluon.jit
def wait_for_all(IN_FLIGHT: gl.constexpr, accs):
    """The accumulators, as soon as no more than the newest IN_FLIGHT WGMMAs are in flight."""
    if len(accs) == 1:
        return (hopper.warpgroup_mma_wait(IN_FLIGHT, deps=accs),)
    else:
        return hopper.warpgroup_mma_wait(IN_FLIGHT, deps=accs)


@gluon.jit
def zeros(COLUMNS: gl.constexpr, CONFIG: gl.constexpr):
    """A fresh accumulator."""
    ROWS: gl.constexpr = CONFIG.rows
    layout: gl.constexpr = accumulator_layout(COLUMNS, CONFIG.element_bytes)
    return gl.zeros((ROWS, COLUMNS), gl.float32, layout=layout)


@gluon.jit
def multiply_tile(
    shared, index, first_step, num_steps, ME: gl.constexpr, CONFIG: gl.constexpr,
    DIRECTION: gl.constexpr,
):  # fmt: skip
    """Returns the accumulators of consumer ME, of the columns that accumulator_widths gives.

    index is the number of the tile within the CTA, num_steps are its steps, in dgrad 0 for a tile
    of zeros.  The producer put it after first_step steps of the CTA's earlier tiles.
    """
    STAGES: gl.constexpr = CONFIG.stages
    WIDTHS: gl.constexpr = accumulator_widths(CONFIG, DIRECTION, ME)
    stage = first_step % STAGES
    phase = (first_step // STAGES) & 1
    # Its own value on purpose: `previous = stage` would not be carried by the loop.
    previous = first_step - (first_step // STAGES) * STAGES
    accs = ()
    for i in gl.static_range(len(WIDTHS)):
        accs = accs + (zeros(WIDTHS[i], CONFIG),)
    if CONFIG.ping_pong:
        mbarrier.wait(shared.turn_bars.index(ME), ((index // 2) & 1) ^ (1 - ME))
    for step in range(num_steps):
        mbarrier.wait(shared.ready_bars.index(stage), phase)
        accs = multiply_stage(shared, stage, step, accs, ME, CONFIG, DIRECTION)
        mbarrier.arrive(shared.empty_bars.index(previous), pred=step > 0)
        previous = stage
        stage, phase = next_stage(stage, phase, STAGES)
    if CONFIG.ping_pong:
        mbarrier.arrive(shared.turn_bars.index(1 - ME))
    accs = wait_for_all(0, accs)
    mbarrier.arrive(
        shared.empty_bars.index(previous), pred=True if DIRECTION == "wgrad" else num_steps > 0
    )
    return accs


@gluon.jit
def finish_columns(values, row, column, epilogue, ACTIVATION: gl.constexpr):
    """Returns ``activation(values * scale + bias + residual) * out_scale``, in fp32.

    values [ROWS, STORE_N] are fp32, of a consumer's rows; row is their first output pixel, column
    their first channel.  epilogue has Operands, pixels and channels of the output, co a multiple
    of 8, and image_size.  Where image_size, output pixels per dimension, is not
    None, the residual is [N, Co].  ACTIVATION is one of ``kernels.epilogue.activate``, or "none".

    A thread has pairs of neighbouring columns, so a residual is read 4 bytes at a time; the other
    half of each sector comes from L1.
    """
    operands, m_gemm, co, image_size = epilogue
    layout: gl.constexpr = values.type.layout
    # Tells the compiler what the host has checked: TMA stores rows of multiples of 16 bytes.
    co = co // 8 * 8
    offs_n = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout))
    values = scale_and_shift(values, offs_n, co, operands)
    if operands.residual is not None:
        rows = gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, layout))
        offs_m = row.to(gl.int64) + rows
        if image_size is not None:
            # Rows whose number overflows are beyond the output.
            offs_m = ((row + rows) // product(image_size)).to(gl.int64)
        offsets = offs_m[:, None] * co + offs_n[None, :]
        mask = (rows < m_gemm - row)[:, None] & (offs_n < co)[None, :]
        values = values + gl.load(operands.residual + offsets, mask=mask, other=0.0).to(gl.float32)
    if ACTIVATION != "none":
        values = activate(values, ACTIVATION)
    if operands.out_scale is not None:
        values = values * gl.load(operands.out_scale).to(gl.float32)
    return values


@gluon.constexpr_function
def stores_in_flight(buffers, count, store):
    """Returns how many of its newest stores a consumer may have in flight as it refills a buffer.

    The ``count`` stores of a tile take the consumer's staging buffers in turn.  These are the ones
    after the last store from the same buffer, which may be of the tile before.
    """
    turns = [number % buffers for number in range(count)]
    return next(n for n in range(1, count + 1) if turns[store - n] == turns[store]) - 1


@gluon.jit
def split_columns(accs, CONFIG: gl.constexpr):
    """The columns of accumulators, in tensors of STORE_N columns."""
    parts = ()
    for i in gl.static_range(len(accs)):
        acc = accs[i]
        if acc.shape[1] > CONFIG.store_n:
            # The columns of a WGMMA accumulator are registers: halving it moves nothing.
            halves = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute(0, 2, 1).split()
            parts = parts + split_columns(halves, CONFIG)
        else:
            parts = parts + (
                gl.convert_layout(
                    acc, accumulator_layout(acc.shape[1], CONFIG.element_bytes), assert_trivial=True
                ),
            )
    return parts


@gluon.jit
def store_tile(
    accs, y_desc, out_smem, row, column, ME: gl.constexpr, CONFIG: gl.constexpr, epilogue,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Finishes a tile's accumulators and stores them through TMA, STORE_N columns at a time.

    row and column are the first ones of consumer ME.  With rows_from_w rows of the accumulators are
    columns of y: they are turned round on their way to shared memory.  See finish_columns for
    epilogue and ACTIVATION.
    """
    parts = split_columns(accs, CONFIG)
    for part in gl.static_range(len(parts)):
        values = parts[part]
        first = column + part * CONFIG.store_n
        if CONFIG.rows_from_w:
            values = values.permute((1, 0))
            pixel, channel = first, row
        else:
            pixel, channel = row, first
        values = finish_columns(values, pixel, channel, epilogue, ACTIVATION)
        buffer = out_smem.index(ME * CONFIG.store_buffers + part % CONFIG.store_buffers)
        tma.store_wait(stores_in_flight(CONFIG.store_buffers, len(parts), part))
        buffer.store(values.to(y_desc.dtype))
        hopper.fence_async_shared()
        names.async_store(y_desc, [pixel, channel], buffer)
