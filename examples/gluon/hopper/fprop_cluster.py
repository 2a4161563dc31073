"""Forward convolution (fprop) on Hopper in clusters of two CTAs that share the filter by multicast.

``fprop.py`` with one difference: two CTAs of a cluster compute two neighbouring tiles along M_GEMM.
Both multiply by the same block of the filter, which is read from L2 once and written into the
shared memory of both.  It is chosen explicitly, ``conv_fprop(..., config=in_cluster(config))``, and
is there to be copied from: it was slower wherever it was measured (docs/gluon-conv.md).

Symbols, GEMM mapping and tiles are those of ``triton_ext.ops.kernels.gluon_conv``, with
    tile        what a cluster computes: 2 * ROW_GROUPS * ROWS pixels, BLOCK_N output channels
    group g     2 * ROWS consecutive pixels of a tile: the first ROWS belong to CTA 0, the others
                to CTA 1
    program_id  counts clusters

    A filter that stays in shared memory is loaded once anyway; such a configuration is refused.

Layouts over the cluster (one basis for the one bit of a CTA's rank)
    x_smem, y_smem, accumulators    [[1, 0]]     the rows are split
    w_smem                          [[0, 0, 0]]  both CTAs hold the same
    ready, empty                    [[1]]        each CTA has its own
    pair                            [[0]]        CTA 0 has it, for both

Warp roles
    As in fprop.py, in each CTA.  Only CTA 0's producer issues the loads of the filter; they write
    to the same address in both CTAs and count their bytes on the ready barrier of each.

Barriers
    name        count         arrives                            waits
    ready[s]    1 + tx        own producer's expect, own pixels' own consumers, before they read
                              bytes and the filter's             stage s
    empty[s]    readers       each own consumer that read        own producer, before it expects and
                              stage s                            refills the pixels of stage s
    pair[s]     2 * readers   each consumer of both CTAs that    CTA 0's producer, before it refills
                              read stage s                       the filter of stage s in both
    turn[i]     1             as in fprop.py, within the CTA     as in fprop.py

    A filter's bytes may reach CTA 1 before its producer has expected them: a phase does not end
    while its one arrival, that of the expect, is missing.  They cannot be a phase early: CTA 0
    sends them after CTA 1's consumers arrived on pair[s], for which they waited for ready[s].

    No CTA may touch the other's shared memory before that has initialised its barriers, or after
    that has ended.  Behind the initialisation stands a cluster barrier.  At the end CTA 0's
    producer waits for pair[s] of all stages: then nothing of CTA 1 is on its way to CTA 0, and
    what CTA 0 sent to CTA 1 was waited for there.

Timeline (X: a CTA's own pixels, W: the filter for both, M: WGMMA)
    CTA 0  producer   W0 X0 W1 X1 W2 X2 ...
           consumers        M0    M1 ...
    CTA 1  producer   X0 X1 X2 ...
           consumers        M0    M1 ...
"""

# mypy: disable-error-code="assignment,call-arg"
# ruff: noqa: RUF005  # Gluon traces the kernel's bodies, and has no starred expressions

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton_ext.errors import LaunchError, UnsupportedError
from triton_ext.gluon import nvidia as xnv
from triton_ext.host.gluon_names import (
    aggregate,
    allocate_mbarrier,
    async_load,
    async_store,
    typed,
)
from triton_ext.ops.core.refusals import Refusal, refused
from triton_ext.ops.families.gluon_config import CONFIGS, TileConfig
from triton_ext.ops.kernels.gluon_conv import FpropProblem
from triton_ext.ops.kernels.gluon_pipeline import (
    is_matrix,
    next_stage,
    num_own,
    stores_in_flight,
    tile_origin,
)

from .arguments import check_compile
from .launch import (
    compile_kernel,
    filter_descriptor,
    im2col_descriptor,
    matrix_descriptor,
    pixels_type,
    tiled_type,
)

__all__ = [
    "CLUSTER_CONFIGS",
    "NUM_CTAS",
    "ClusterConfig",
    "compile_conv_fprop_cluster",
    "conv_fprop_cluster_kernel",
    "descriptors",
    "in_cluster",
]

NUM_CTAS = 2
# How the CTAs of a cluster hold a block: each its half of the rows; all of a block of the filter.
SPLIT = ((1, 0),)
SHARED = ((0, 0, 0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(TileConfig):
    """A configuration of a cluster of two CTAs; rows, stages and memory are those of one CTA."""

    @property
    def block_m(self) -> int:
        """Pixels of a tile: those of both CTAs."""
        return NUM_CTAS * self.rows * self.row_groups

    @property
    def x_bytes(self) -> int:
        """Bytes of x that a stage loads into one CTA."""
        return TileConfig.x_bytes.fget(self) // NUM_CTAS

    @property
    def smem_bytes(self) -> int:
        """Shared memory of one CTA: the barriers of the pair come on top."""
        return TileConfig.smem_bytes.fget(self) + 8 * self.stages

    def refusals(self) -> tuple[Refusal, ...]:
        """Returns why the configuration cannot run; nothing where it can."""
        found = TileConfig.refusals(self)
        if self.consumers not in (2, 3):
            found += refused(f"consumers is {self.consumers}: a CTA of a cluster has 2 or 3")
        if self.filter_steps:
            found += refused(
                "a filter that stays in shared memory is loaded once: nothing to share"
            )
        return found

    def __str__(self) -> str:
        return f"c{NUM_CTAS}_{TileConfig.__str__(self)}"


def in_cluster(config: TileConfig) -> ClusterConfig:
    """Returns a configuration whose CTAs do what those of another do, and share the filter."""
    if not isinstance(config, TileConfig):
        raise LaunchError(f"config is a {type(config).__name__}: expected a TileConfig")
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return ClusterConfig(**values)


CLUSTER_CONFIGS: tuple[ClusterConfig, ...] = tuple(map(in_cluster, CONFIGS))


# ---- Device helpers ----------------------------------------------------------------------------


@aggregate
class Shared:
    """Shared memory of the cluster; each CTA has its rows of x and y, and all of w."""

    x_smem: gl.shared_memory_descriptor  # [STAGES * ROW_GROUPS, 2 * ROWS, BLOCK_K]
    w_main_smem: gl.shared_memory_descriptor  # [STAGES, BLOCK_N_MAIN, 1, BLOCK_K]
    w_rest_smem: gl.shared_memory_descriptor  # [STAGES, BLOCK_N_REST, 1, BLOCK_K]
    y_smem: gl.shared_memory_descriptor  # [CONSUMERS * STORE_BUFFERS, 2 * ROWS, STORE_N]
    ready_bars: gl.shared_memory_descriptor  # [STAGES, 2]
    empty_bars: gl.shared_memory_descriptor  # [STAGES, 2]
    pair_bars: gl.shared_memory_descriptor  # [STAGES, 1]
    turn_bars: gl.shared_memory_descriptor  # [2, 2]


@gluon.jit
def allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG: gl.constexpr):
    """Allocates shared memory and initialises the barriers.

    Triton lets no CTA go on before both have initialised theirs: it puts a cluster barrier here.
    """
    STAGES: gl.constexpr = CONFIG.stages
    BLOCKS: gl.constexpr = STAGES * CONFIG.row_groups
    BUFFERS: gl.constexpr = CONFIG.consumers * CONFIG.store_buffers
    READERS: gl.constexpr = CONFIG.row_groups
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [BLOCKS] + x_desc.block_shape, x_desc.layout)
    w_main_smem = gl.allocate_shared_memory(
        w_main_desc.dtype, [STAGES] + w_main_desc.block_shape, w_main_desc.layout
    )
    w_rest_smem = w_main_smem
    if CONFIG.block_n_rest > 0:
        w_rest_smem = gl.allocate_shared_memory(
            w_rest_desc.dtype, [STAGES] + w_rest_desc.block_shape, w_rest_desc.layout
        )
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [BUFFERS] + y_desc.block_shape, y_desc.layout)
    ready_bars = allocate_mbarrier(batch=STAGES)
    empty_bars = allocate_mbarrier(batch=STAGES)
    pair_bars = allocate_mbarrier(batch=STAGES, two_ctas=True)
    turn_bars = allocate_mbarrier(batch=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready_bars.index(i), count=1)
        mbarrier.init(empty_bars.index(i), count=READERS)
        # Triton doubles the count of a barrier that two CTAs share.
        mbarrier.init(pair_bars.index(i), count=READERS)
    for i in gl.static_range(2):
        mbarrier.init(turn_bars.index(i), count=1)
    return Shared(
        x_smem, w_main_smem, w_rest_smem, y_smem, ready_bars, empty_bars, pair_bars, turn_bars
    )


@gluon.jit
def load_filter(w_main_desc, w_rest_desc, shared, ready, stage, coord, CONFIG: gl.constexpr):
    """Starts the loads of a step's block of the filter into both CTAs; CTA 1 issues nothing."""
    column, tap, channel = coord
    async_load(
        w_main_desc, [column, tap, channel], ready, shared.w_main_smem.index(stage), multicast=True
    )
    if CONFIG.block_n_rest > 0:
        async_load(
            w_rest_desc, [column + CONFIG.block_n_main, tap, channel], ready,
            shared.w_rest_smem.index(stage), multicast=True,
        )  # fmt: skip


@gluon.jit
def own_start(x_desc, first, problem, CONFIG: gl.constexpr):
    """Where this CTA's loads of a group of rows start that begins with pixel first.

    Triton takes a split block for consecutive coordinates and adds ROWS in CTA 1: to the row of a
    matrix, which is right, and to w of a pixel, which is not how output pixels follow each other.
    xnv.async_load_im2col(walk=...) mends that at the load, with divisions in every step; here it is
    once per tile.
    """
    if is_matrix(x_desc):
        start = (first,)
    else:
        shift = CONFIG.rows * gl.inline_asm_elementwise(
            "mov.u32 $0, %cluster_ctarank;", "=r", [], dtype=gl.int32, is_pure=True, pack=1
        )
        pixel = xnv.im2col_start(
            first + shift, problem.output_size, problem.stride, problem.padding
        )
        start = pixel[:-1] + (pixel[-1] - shift,)
    return start


@gluon.jit
def load_pixels(x_desc, shared, ready, stage, starts, channel, offsets, CONFIG: gl.constexpr):
    """Starts the loads of a step's pixels, one for each group of rows, each CTA its own."""
    GROUPS: gl.constexpr = CONFIG.row_groups
    for group in gl.static_range(GROUPS):
        target = shared.x_smem.index(stage * GROUPS + group)
        if is_matrix(x_desc):
            async_load(x_desc, starts[group] + (channel,), ready, target)
        else:
            tma.async_load_im2col(x_desc, starts[group] + (channel,), offsets, ready, target)


@gluon.jit
def producer(x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG: gl.constexpr):
    """Loads all tiles of this cluster, as far ahead as the ring allows."""
    STAGES: gl.constexpr = CONFIG.stages
    GROUPS: gl.constexpr = CONFIG.row_groups
    GROUP_ROWS: gl.constexpr = x_desc.block_shape[0]
    BYTES: gl.constexpr = CONFIG.x_bytes + CONFIG.w_bytes
    MISSING: gl.constexpr = 5 - len(x_desc.shape)
    taps_d, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    for index in range(num_own(problem.m_gemm, problem.n_gemm, CONFIG)):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.n_gemm, CONFIG)
        starts = ()
        for group in gl.static_range(GROUPS):
            start = own_start(x_desc, row + group * GROUP_ROWS, problem, CONFIG)
            starts = starts + (start,)
        for block in range(problem.channel_blocks):
            channel = block * CONFIG.block_k
            tap = gl.to_tensor(0)
            for t in range(taps_d):
                for r in range(taps_h):
                    for s in range(taps_w):
                        offsets = (
                            (t * dilation_d).to(gl.int16),
                            (r * dilation_h).to(gl.int16),
                            (s * dilation_w).to(gl.int16),
                        )
                        ready = shared.ready_bars.index(stage)
                        mbarrier.wait(shared.empty_bars.index(stage), phase)
                        mbarrier.expect(ready, BYTES)
                        load_pixels(
                            x_desc, shared, ready, stage, starts, channel, offsets[MISSING:],
                            CONFIG,
                        )  # fmt: skip
                        mbarrier.wait(shared.pair_bars.index(stage), phase)
                        load_filter(
                            w_main_desc, w_rest_desc, shared, ready, stage, (column, tap, channel),
                            CONFIG,
                        )  # fmt: skip
                        tap += 1
                        stage, phase = next_stage(stage, phase, STAGES)
    # CTA 0 must not end before the last arrivals of CTA 1 have come.
    for _ in range(STAGES):
        mbarrier.wait(shared.pair_bars.index(stage), phase)
        stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def release(shared, stage, pred):
    """Says that a stage was read: to the own producer, and to CTA 0's."""
    mbarrier.arrive(shared.empty_bars.index(stage), pred=pred)
    mbarrier.arrive(shared.pair_bars.index(stage), pred=pred)


@gluon.jit
def as_kn(w_smem):
    """A block of the filter, [BLOCK_N, 1, BLOCK_K], as WGMMA's right operand."""
    return w_smem.reshape([w_smem.shape[0], w_smem.shape[2]]).permute((1, 0))


@gluon.jit
def multiply_tile(shared, index, first_step, num_steps, ME: gl.constexpr, CONFIG: gl.constexpr):
    """Returns a tile's accumulators; the second is of no use without BLOCK_N_REST.

    Args:
        shared: The ring.
        index: Number of the tile within the cluster.
        first_step: Steps of all earlier tiles of the cluster.
        num_steps: Steps of this tile, at least 1.
        ME: Number of the consumer.
        CONFIG: The configuration.
    """
    STAGES: gl.constexpr = CONFIG.stages
    ROWS: gl.constexpr = shared.x_smem.shape[1]
    GROUPS: gl.constexpr = CONFIG.row_groups
    GROUP: gl.constexpr = 0 if CONFIG.ping_pong else ME
    N_MAIN: gl.constexpr = CONFIG.block_n_main
    N_REST: gl.constexpr = CONFIG.block_n_rest if CONFIG.block_n_rest > 0 else 16
    stage = first_step % STAGES
    phase = (first_step // STAGES) & 1
    # Its own value on purpose: `previous = stage` would not be carried by the loop.
    previous = first_step - (first_step // STAGES) * STAGES
    acc_main = gl.zeros((ROWS, N_MAIN), gl.float32, layout=accumulator_layout(N_MAIN))
    acc_rest = gl.zeros((ROWS, N_REST), gl.float32, layout=accumulator_layout(N_REST))
    if CONFIG.ping_pong:
        mbarrier.wait(shared.turn_bars.index(ME), ((index // 2) & 1) ^ (1 - ME))
    for step in range(num_steps):
        mbarrier.wait(shared.ready_bars.index(stage), phase)
        x = shared.x_smem.index(stage * GROUPS + GROUP)
        w_main = as_kn(shared.w_main_smem.index(stage))
        acc_main = warpgroup_mma(x, w_main, acc_main, is_async=True)
        if CONFIG.block_n_rest > 0:
            w_rest = as_kn(shared.w_rest_smem.index(stage))
            acc_rest = warpgroup_mma(x, w_rest, acc_rest, is_async=True)
            acc_main, acc_rest = warpgroup_mma_wait(2, deps=(acc_main, acc_rest))
        else:
            acc_main = warpgroup_mma_wait(1, deps=(acc_main,))
        release(shared, previous, step > 0)
        previous = stage
        stage, phase = next_stage(stage, phase, STAGES)
    if CONFIG.ping_pong:
        mbarrier.arrive(shared.turn_bars.index(1 - ME))
    if CONFIG.block_n_rest > 0:
        acc_main, acc_rest = warpgroup_mma_wait(0, deps=(acc_main, acc_rest))
    else:
        acc_main = warpgroup_mma_wait(0, deps=(acc_main,))
    release(shared, previous, num_steps > 0)
    return acc_main, acc_rest


@gluon.jit
def store_columns(
    acc, y_desc, y_smem, row, column, FIRST: gl.constexpr, PART: gl.constexpr, CONFIG: gl.constexpr
):  # fmt: skip
    """Converts an accumulator, STORE_N columns at a time, and starts their TMA stores.

    FIRST is the consumer's first staging buffer, PART counts its stores of this tile.
    """
    if acc.shape[1] > CONFIG.store_n:
        HALF: gl.constexpr = acc.shape[1] // 2
        PARTS: gl.constexpr = HALF // CONFIG.store_n
        # The columns of a WGMMA accumulator are registers: halving it moves nothing.
        left, right = acc.reshape([acc.shape[0], 2, HALF]).permute(0, 2, 1).split()
        store_columns(left, y_desc, y_smem, row, column, FIRST, PART, CONFIG)
        store_columns(right, y_desc, y_smem, row, column + HALF, FIRST, PART + PARTS, CONFIG)
    else:
        COUNT: gl.constexpr = CONFIG.block_n // CONFIG.store_n
        layout: gl.constexpr = accumulator_layout(acc.shape[1])
        values = gl.convert_layout(acc, layout, assert_trivial=True)
        buffer = y_smem.index(FIRST + PART % CONFIG.store_buffers)
        tma.store_wait(stores_in_flight(CONFIG.store_buffers, COUNT, PART))
        buffer.store(values.to(y_desc.dtype))
        fence_async_shared()
        async_store(y_desc, [row, column], buffer)


@gluon.jit
def consumer(y_desc, shared, problem, ME: gl.constexpr, CONFIG: gl.constexpr):
    """Multiplies and stores: every tile's rows of group ME, or every second tile."""
    FIRST_TILE: gl.constexpr = ME if CONFIG.ping_pong else 0
    TILE_STEP: gl.constexpr = 2 if CONFIG.ping_pong else 1
    FIRST_ROW: gl.constexpr = 0 if CONFIG.ping_pong else ME * y_desc.block_shape[0]
    FIRST_BUFFER: gl.constexpr = ME * CONFIG.store_buffers
    taps_d, taps_h, taps_w = problem.filter_size
    num_steps = taps_d * taps_h * taps_w * problem.channel_blocks
    for index in range(FIRST_TILE, num_own(problem.m_gemm, problem.n_gemm, CONFIG), TILE_STEP):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.n_gemm, CONFIG)
        row += FIRST_ROW
        acc_main, acc_rest = multiply_tile(shared, index, index * num_steps, num_steps, ME, CONFIG)
        store_columns(acc_main, y_desc, shared.y_smem, row, column, FIRST_BUFFER, 0, CONFIG)
        if CONFIG.block_n_rest > 0:
            N_MAIN: gl.constexpr = CONFIG.block_n_main
            PARTS: gl.constexpr = N_MAIN // CONFIG.store_n
            store_columns(
                acc_rest, y_desc, shared.y_smem, row, column + N_MAIN, FIRST_BUFFER, PARTS, CONFIG
            )
    tma.store_wait(0)


@gluon.constexpr_function
def accumulator_layout(columns):
    """Returns the layout of the accumulators of a warp group in each CTA."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16], cga_layout=[[1, 0]]
    )


# ---- Kernel ------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["problem"])
def conv_fprop_cluster_kernel(
    x_desc,  # im2col: [2 * ROWS, BLOCK_K] of x, rows split; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_N_MAIN, 1, BLOCK_K] of w [Co, T * R * S, Ci], in both CTAs
    w_rest_desc,  # tiled: [BLOCK_N_REST, 1, BLOCK_K] of w, None without a second accumulator
    y_desc,  # tiled: [2 * ROWS, STORE_N] of y [M_GEMM, Co], rows split
    problem,  # FpropProblem
    CONFIG: gl.constexpr,  # ClusterConfig
):
    """Computes y; launched with num_ctas=2, a grid of any number of clusters works."""
    problem = typed(problem)
    shared = allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG)
    CONSUMER_REGISTERS: gl.constexpr = CONFIG.consumer_registers
    PRODUCER_REGISTERS: gl.constexpr = CONFIG.producer_registers
    if CONFIG.consumers == 2:
        gl.warp_specialize(
            [
                (consumer, (y_desc, shared, problem, 0, CONFIG)),
                (consumer, (y_desc, shared, problem, 1, CONFIG)),
                (producer, (x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (y_desc, shared, problem, 0, CONFIG)),
                (consumer, (y_desc, shared, problem, 1, CONFIG)),
                (consumer, (y_desc, shared, problem, 2, CONFIG)),
                (producer, (x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


# ---- Launcher ----------------------------------------------------------------------------------


def check_host() -> None:
    """Refuses a host that cannot compile the kernel.

    Raises:
        UnsupportedError: Triton is older than 3.8.
    """
    if not hasattr(tma, "async_load"):
        raise UnsupportedError(
            "convolutions in clusters need Triton 3.8 or newer: 3.6 has no multicast, and 3.7 does "
            "not read back what it prints for a block of the filter that both CTAs hold"
        )


def descriptors(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, geometry: Any, config: ClusterConfig
) -> tuple[Any, ...]:
    """Returns the descriptors that the kernel takes, of x, w (twice) and y.

    Args:
        x: [N, (D, (H,)) W, Ci].
        w: [Co, (T, (R,)) S, Ci], contiguous.
        y: [N, (out_d, (out_h,)) out_w, Co], contiguous.
        geometry: Filter size, stride, padding and dilation; ``None`` to read x as a matrix.
        config: How the kernel is compiled.

    Raises:
        UnsupportedError: Triton is older than 3.8.
    """
    check_host()
    rows = NUM_CTAS * config.rows

    def pixels(tensor: torch.Tensor, columns: int) -> Any:
        block = [rows, columns]
        return matrix_descriptor(tensor, block, cluster_layout(block, SPLIT))

    def filter_of(columns: int) -> Any:
        block = [columns, 1, config.block_k]
        return filter_descriptor(w, block, cluster_layout(block, SHARED))

    block = [rows, config.block_k]
    return (
        im2col_descriptor(x, *geometry, block, cluster_layout(block, SPLIT))
        if geometry is not None
        else pixels(x, config.block_k),
        filter_of(config.block_n_main),
        filter_of(config.block_n_rest) if config.block_n_rest else None,
        pixels(y, config.store_n),
    )


def cluster_layout(block: Sequence[int], cga_layout: tuple[tuple[int, ...], ...]) -> Any:
    """Returns the layout in the cluster's shared memory of a block of 16-bit elements."""
    return _cluster_layout(tuple(block), cga_layout)


@functools.cache
def _cluster_layout(block: tuple[int, ...], cga_layout: tuple[tuple[int, ...], ...]) -> Any:
    return gl.NVMMASharedLayout.get_default_for(
        list(block), gl.float16, cga_layout=[list(basis) for basis in cga_layout]
    )


def compile_conv_fprop_cluster(
    config: ClusterConfig, *, rank: int = 4, dtype: Any = gl.float16, capability: int = 90
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: How to compile.
        rank: Rank of x: 3, 4 or 5; 2 for a 1x1 filter, with which x is a matrix.
        dtype: Of x, w and y.
        capability: Compute capability times ten.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.

    Raises:
        LaunchError: All that is wrong with the arguments.
    """
    check_host()
    check_compile(ClusterConfig, config, rank, dtype, capability)
    spatial = ("i32",) * max(rank - 2, 1)

    def pixels(columns: int, rank: int) -> str:
        block = [NUM_CTAS * config.rows, columns]
        return pixels_type(dtype, block, rank, cluster_layout(block, SPLIT))

    def filter_of(columns: int) -> str:
        block = [columns, 1, config.block_k]
        return tiled_type(dtype, block, cluster_layout(block, SHARED))

    signature: dict[str, Any] = {
        "x_desc": pixels(config.block_k, rank),
        "w_main_desc": filter_of(config.block_n_main),
        "y_desc": pixels(config.store_n, 2),
        "problem": FpropProblem(*("i32",) * 3, *(("i32",) * 3,) * 2, *(spatial,) * 3),
    }
    constants: dict[str, Any] = {"CONFIG": config}
    if config.block_n_rest:
        signature["w_rest_desc"] = filter_of(config.block_n_rest)
    else:
        constants["w_rest_desc"] = None
    return compile_kernel(
        conv_fprop_cluster_kernel, signature, constants, capability, num_ctas=NUM_CTAS
    )
