"""Forward convolution (fprop) on Hopper: warp-specialised, persistent, written in Gluon.

1-D, 2-D and 3-D with any stride, dilation and padding come from one kernel text: the rank is the
descriptor's.  fp16 and bf16, fp32 accumulation, stock Triton 3.6 or newer, sm_90.

Symbols
    x           [N, (D, (H,)) W, Ci]             input, channels-last
    w           [Co, (T, (R,)) S, Ci]            filter
    y           [N, (out_d, (out_h,)) out_w, Co] output

GEMM mapping
    M_GEMM = N * out_d * out_h * out_w   output pixels
    N_GEMM = Co                          output channels
    K_GEMM = T * R * S * Ci              filter taps x input channels

    The left operand [M_GEMM, K_GEMM] is never written down.  A TMA load in im2col mode brings
    [ROWS, BLOCK_K] of it: BLOCK_K channels of one filter tap for ROWS consecutive output pixels.
    Pixels of the padding, behind the last image, and channels behind Ci arrive as zeros, so no
    tail needs a mask.  The filter's tensor map has the taps as a dimension of its own: its channel
    tail is zero too, and 0 * Inf never happens.

    A 1x1 filter with stride 1 and no padding takes x as a matrix, through tiled loads.

    K order: blocks of channels outside, taps inside.  Consecutive taps read nearly the same pixels,
    which come from L2.

Tiles
    BLOCK_N is BLOCK_N_MAIN + BLOCK_N_REST, two accumulators side by side: 256 + 64 or 128 + 32
    divide widths such as 320 or 640 without waste, and powers of two do not.
    A tile has ROW_GROUPS * ROWS pixels.  Every group of rows is one TMA load.

    A small filter stays in shared memory (FILTER_STEPS > 0): its blocks come with the stages of a
    CTA's first tile, and all later tiles of the CTA have the same columns.  With few output
    channels that saves a good part of the traffic between L2 and shared memory, which is the limit.

Warp roles
    producer    1 warp, the last partition: all loads of all tiles
    consumer i  4 warps each, 1 to 3 of them: WGMMA, then the tile's stores
        cooperative: consumer i owns the rows of group i of every tile
        ping-pong:   consumer i owns every second tile as a whole; while one multiplies, the other
                     stores

Barriers (mbarriers in shared memory; tiles.Barrier names them)
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

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_ext.errors import DescriptorError
from triton_ext.gluon import nvidia as xnv

from .launch import (
    Launcher,
    check_config,
    compile_kernel,
    filter_descriptor,
    im2col_descriptor,
    is_plain_product,
    matrix_descriptor,
    multiprocessors,
    num_programs,
    operand_problems,
    pad_dims,
    pixels_type,
    tiled_type,
)
from .names import typed
from .pipeline import (
    allocate_shared,
    is_matrix,
    load_filter,
    load_pixels,
    multiply_tile,
    next_stage,
    num_own,
    store_tile,
    tile_counts,
    tile_origin,
)
from .tiles import Cost, TileConfig, cooperative, keep_filter, ping_pong

__all__ = [
    "CONFIGS",
    "KEEPING_CONFIGS",
    "FpropProblem",
    "choose_config",
    "compile_conv_fprop",
    "conv_fprop",
    "conv_fprop_kernel",
]

# Measured on an H200 (Triton 3.9.0, fp16, 2026-11-20) over 29 shapes; docs/gluon-conv.md.
_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 128, 6, store_n=32, store_buffers=2, group_m=2): Cost(0.323, 0.55, 7.0),
    ping_pong(64, 128, 8, group_m=2): Cost(0.165, 1.10, 6.7),
    ping_pong(64, 64, 10): Cost(0.130, 0.40, 7.1),
    cooperative(64, 3, 128, 5, group_m=2): Cost(0.468, 1.25, 7.8),
    cooperative(64, 2, 256, 4, store_buffers=2): Cost(0.633, 2.06, 7.1),
    cooperative(64, 2, 256, 3, block_n_rest=64, store_buffers=2, group_m=1): Cost(0.824, 2.1, 7.0),
    cooperative(64, 2, 128, 5, block_n_rest=32, store_n=32, store_buffers=2): Cost(0.436, 1.6, 6.7),
    cooperative(64, 2, 128, 6, store_buffers=2, group_m=2): Cost(0.323, 1.14, 6.5),
}

# With the filter kept in shared memory, where it fits; keep_filter sets the stages.
_KEEPING_COSTS: dict[TileConfig, Cost] = {
    ping_pong(128, 64, 4, store_n=32, store_buffers=2): Cost(0.205, 0.70, 7.0),
    ping_pong(128, 128, 4, store_n=32, store_buffers=2): Cost(0.323, 0.50, 7.0),
}

CONFIGS: tuple[TileConfig, ...] = tuple(_COSTS)
KEEPING_CONFIGS: tuple[TileConfig, ...] = tuple(_KEEPING_COSTS)


@functools.lru_cache(maxsize=1024)
def choose_config(
    m_gemm: int, co: int, ci: int, taps: float, num_sms: int, *, may_keep_filter: bool = True
) -> TileConfig:
    """Returns the configuration that a model expects to be fastest.

    The model is the busiest multiprocessor, which computes ceil(tiles / multiprocessors) tiles one
    after another; a filter that stays ties a multiprocessor to its columns.

    Args:
        m_gemm: Output pixels.
        co: Output channels.
        ci: Input channels.
        taps: Filter taps of a tile; an average where tiles differ.
        num_sms: Multiprocessors of the GPU.
        may_keep_filter: Whether the kernel can keep the filter in shared memory.
    """
    times: dict[TileConfig, float] = {}

    def consider(config: TileConfig, cost: Cost, waves: int) -> None:
        steps = taps * math.ceil(ci / config.block_k)
        times[config] = waves * (steps * cost.step_us + cost.tile_us) + cost.launch_us

    for config, cost in _COSTS.items():
        tiles = math.ceil(m_gemm / config.block_m) * math.ceil(co / config.block_n)
        consider(config, cost, math.ceil(tiles / num_sms))
    for config, cost in _KEEPING_COSTS.items() if may_keep_filter else ():
        kept = keep_filter(config, round(taps) * math.ceil(ci / config.block_k))
        num_n = math.ceil(co / config.block_n)
        if kept is not None and num_n <= num_sms:
            consider(kept, cost, math.ceil(math.ceil(m_gemm / kept.block_m) / (num_sms // num_n)))
    return min(times, key=lambda config: times[config])


class FpropProblem(NamedTuple):
    """What the kernel is told about the convolution; a runtime argument with named fields.

    Attributes:
        m_gemm: Output pixels.
        co: Output channels.
        channel_blocks: cdiv(Ci, BLOCK_K).
        filter_size: (T, R, S), 1 for missing dimensions.
        dilation: As filter_size.
        output_size: Per spatial dimension.
        stride: Per spatial dimension.
        padding: In front of each spatial dimension.
    """

    m_gemm: int
    co: int
    channel_blocks: int
    filter_size: tuple[int, int, int]
    dilation: tuple[int, int, int]
    output_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]


# ---- Device helpers ----------------------------------------------------------------------------


@gluon.jit
def producer(x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG: gl.constexpr):
    """Loads all tiles of this CTA, as far ahead as the ring allows."""
    STAGES: gl.constexpr = CONFIG.stages
    GROUPS: gl.constexpr = CONFIG.row_groups
    MISSING: gl.constexpr = 5 - len(x_desc.shape)
    taps_d, taps_h, taps_w = problem.filter_size
    dilation_d, dilation_h, dilation_w = problem.dilation
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    num_m, num_n = tile_counts(problem.m_gemm, problem.co, CONFIG)
    for index in range(num_own(num_m * num_n)):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.co, CONFIG)
        starts = ()
        for group in gl.static_range(GROUPS):
            first = row + group * CONFIG.rows
            if is_matrix(x_desc):
                start = (first,)
            else:
                start = xnv.im2col_start(
                    first, problem.output_size, problem.stride, problem.padding
                )
            starts = starts + (start,)  # noqa: RUF005  # Gluon has no starred expressions
        for block in range(problem.channel_blocks):
            channel = block * CONFIG.block_k
            tap = gl.to_tensor(0)
            taps = taps_d * taps_h * taps_w
            for t in range(taps_d):
                for r in range(taps_h):
                    for s in range(taps_w):
                        offsets = (t * dilation_d, r * dilation_h, s * dilation_w)
                        coord = (column, tap, channel)
                        ready = shared.ready_bars.index(stage)
                        mbarrier.wait(shared.empty_bars.index(stage), phase)
                        if CONFIG.filter_steps == 0:
                            mbarrier.expect(ready, CONFIG.x_bytes + CONFIG.w_bytes)
                            load_filter(
                                w_main_desc, w_rest_desc, shared, ready, stage, coord, CONFIG
                            )
                        elif index == 0:
                            mbarrier.expect(ready, CONFIG.x_bytes + CONFIG.w_bytes)
                            step = block * taps + tap
                            load_filter(
                                w_main_desc, w_rest_desc, shared, ready, step, coord, CONFIG
                            )
                        else:
                            mbarrier.expect(ready, CONFIG.x_bytes)
                        load_pixels(
                            x_desc, shared, ready, stage, starts, channel,
                            offsets[MISSING:], CONFIG,
                        )  # fmt: skip
                        tap += 1
                        stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def consumer(y_desc, shared, problem, ME: gl.constexpr, CONFIG: gl.constexpr):
    """Multiplies and stores: every tile's rows of group ME, or every second tile."""
    FIRST_TILE: gl.constexpr = ME if CONFIG.ping_pong else 0
    TILE_STEP: gl.constexpr = 2 if CONFIG.ping_pong else 1
    FIRST_ROW: gl.constexpr = 0 if CONFIG.ping_pong else ME * CONFIG.rows
    taps_d, taps_h, taps_w = problem.filter_size
    num_steps = taps_d * taps_h * taps_w * problem.channel_blocks
    num_m, num_n = tile_counts(problem.m_gemm, problem.co, CONFIG)
    for index in range(FIRST_TILE, num_own(num_m * num_n), TILE_STEP):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column = tile_origin(tile, problem.m_gemm, problem.co, CONFIG)
        acc_main, acc_rest = multiply_tile(
            shared, index, index * num_steps, num_steps, ME, CONFIG, W_IS_NK=True
        )
        store_tile(acc_main, acc_rest, y_desc, shared.y_smem, row + FIRST_ROW, column, ME, CONFIG)
    tma.store_wait(0)


# ---- Kernel ------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["problem"])
def conv_fprop_kernel(
    x_desc,  # im2col: [ROWS, BLOCK_K] of x; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_N_MAIN, 1, BLOCK_K] of w [Co, T * R * S, Ci]
    w_rest_desc,  # tiled: [BLOCK_N_REST, 1, BLOCK_K] of w, None without a second accumulator
    y_desc,  # tiled: [ROWS, STORE_N] of y [M_GEMM, Co]
    problem,  # FpropProblem
    CONFIG: gl.constexpr,  # TileConfig
):
    """Computes y; a grid of any size works, a multiple of num_n where the filter stays."""
    problem = typed(problem)
    shared = allocate_shared(x_desc, w_main_desc, w_rest_desc, y_desc, CONFIG)
    CONSUMER_REGISTERS: gl.constexpr = CONFIG.consumer_registers
    PRODUCER_REGISTERS: gl.constexpr = CONFIG.producer_registers
    # The first function runs in the CTA's own warps, consumer 0; the others get warps of their own.
    if CONFIG.consumers == 1:
        gl.warp_specialize(
            [
                (consumer, (y_desc, shared, problem, 0, CONFIG)),
                (producer, (x_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif CONFIG.consumers == 2:
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


def _check_arguments(x: torch.Tensor, w: torch.Tensor, launcher: Launcher | None) -> None:
    """Refuses what the descriptors do not.

    Raises:
        DescriptorError: All that is wrong with the tensors.
    """
    channels = {"Ci": x.shape[-1], "Co": w.shape[0]}
    problems = operand_problems({"x": x, "w": w}, ("w",), channels, launcher)
    if not 3 <= x.ndim <= 5 or w.ndim != x.ndim or w.shape[-1] != x.shape[-1]:
        problems.append(
            f"x is {list(x.shape)} and w {list(w.shape)}: expected [N, (D, (H,)) W, Ci] and "
            "[Co, (T, (R,)) S, Ci]"
        )
    if problems:
        raise DescriptorError("; ".join(problems))


def conv_fprop(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    *,
    config: TileConfig | None = None,
    launcher: Launcher | None = None,
) -> torch.Tensor:
    """Convolves.

    Args:
        x: [N, (D, (H,)) W, Ci], fp16 or bf16; Ci a multiple of 8.
        w: [Co, (T, (R,)) S, Ci], contiguous, of x's dtype; Co a multiple of 8.
        stride: 1 to 8; one int, or one per spatial dimension.
        padding: One int, one per spatial dimension, or (low, high) per spatial dimension.
        dilation: One int, or one per spatial dimension.
        config: How to compile; by default :func:`choose_config` chooses.
        launcher: What is launched in place of the kernel: ``xnv.emulated`` runs it on CPU tensors.

    Returns:
        y [N, (out_d, (out_h,)) out_w, Co], contiguous.

    Raises:
        DescriptorError: TMA cannot express the convolution; everything that is wrong is listed.
        LaunchError: The configuration cannot run.
    """
    _check_arguments(x, w, launcher)
    filter_size = tuple(w.shape[1:-1])
    co, ci, taps = w.shape[0], w.shape[-1], math.prod(filter_size)
    num_sms = multiprocessors(x.device)

    def describe(rows: int, block_k: int) -> Any:
        return im2col_descriptor(x, filter_size, stride, padding, dilation, [rows, block_k])

    # Everything but the block is the convolution's, so the geometry is known before the block is.
    x_desc = describe(64, 64)
    conv = x_desc.conv
    if config is None:
        config = choose_config(conv.m_gemm, co, ci, taps, num_sms)
    check_config(config, taps * math.ceil(ci / config.block_k), co, num_sms)
    if is_plain_product(x, taps, conv):
        x_desc = matrix_descriptor(x, [config.rows, config.block_k])
    elif config.rows != 64 or config.block_k != 64:
        x_desc = describe(config.rows, config.block_k)
    y = torch.empty((x.shape[0], *conv.output_size, co), device=x.device, dtype=x.dtype)

    def w_desc(columns: int) -> Any:
        return filter_descriptor(w, [columns, 1, config.block_k])

    problem = FpropProblem(
        m_gemm=conv.m_gemm,
        co=co,
        channel_blocks=math.ceil(ci / config.block_k),
        filter_size=pad_dims(filter_size),
        dilation=pad_dims(conv.dilation),
        output_size=conv.output_size,
        stride=conv.stride,
        padding=tuple(low for low, _ in conv.padding),
    )
    tiles = math.ceil(conv.m_gemm / config.block_m) * math.ceil(co / config.block_n)
    kernel = conv_fprop_kernel if launcher is None else launcher(conv_fprop_kernel)
    kernel[(num_programs(config, tiles, co, num_sms),)](
        x_desc,
        w_desc(config.block_n_main),
        w_desc(config.block_n_rest) if config.block_n_rest else None,
        matrix_descriptor(y, [config.rows, config.store_n]),
        problem,
        config,
        num_warps=4,
    )
    return y


def compile_conv_fprop(
    config: TileConfig, *, rank: int = 4, dtype: Any = gl.float16, capability: int = 90
) -> Any:
    """Compiles the kernel ahead of time, without a GPU.

    Args:
        config: How to compile.
        rank: Rank of x: 3, 4 or 5; 2 for a 1x1 filter, with which x is a matrix.
        dtype: Of x, w and y.
        capability: Compute capability times ten.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """

    block = [config.rows, config.block_k]
    spatial = ("i32",) * max(rank - 2, 1)
    signature: dict[str, Any] = {
        "x_desc": pixels_type(dtype, block, rank),
        "w_main_desc": tiled_type(dtype, [config.block_n_main, 1, config.block_k]),
        "w_rest_desc": tiled_type(dtype, [config.block_n_rest, 1, config.block_k]),
        "y_desc": tiled_type(dtype, [config.rows, config.store_n]),
        "problem": FpropProblem(*("i32",) * 3, *(("i32",) * 3,) * 2, *(spatial,) * 3),
    }
    constants: dict[str, Any] = {"CONFIG": config}
    if not config.block_n_rest:
        del signature["w_rest_desc"]
        constants["w_rest_desc"] = None
    return compile_kernel(conv_fprop_kernel, signature, constants, capability)
