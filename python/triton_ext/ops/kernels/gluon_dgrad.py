"""Gradient of a convolution's input (dgrad) on Hopper: a warp-specialised, persistent kernel.

1-D, 2-D and 3-D with any stride, dilation and padding, in one launch, without atomics and without
zeros written between pixels.  fp16 and bf16, fp32 accumulation, stock Triton 3.6 or newer, sm_90.

Symbols
    dy          [N, (out_d, (out_h,)) out_w, Co]  gradient of the output, channels-last
    w           [Co, (T, (R,)) S, Ci]             filter
    dx          [N, (D, (H,)) W, Ci]              gradient of the input
    s, d, p     stride, dilation and padding in front, per spatial dimension
    a           residue: a pixel's position mod s

Stride phases (core/stride_phases.py)
    The pixels of dx whose position is a mod s are a class: a convolution of dy with stride 1 and
    the taps r0, r0 + s/g, ..., with g = gcd(d, s).  From tap to tap the position in dy falls by
    d/g.  A class without taps is a tile without steps: its zeros are stored like any other result.

    All classes share one tensor map.  Its box starts at lower, the least position of all classes,
    and is ceil(D/s), ceil(H/s), ceil(W/s) large; im2col offsets are relative to lower, never
    negative.  Classes with one pixel less compute it and do not store it.

GEMM mapping of a class
    M_GEMM = N * ceil(D/s) * ceil(H/s) * ceil(W/s)
    N_GEMM = Ci
    K_GEMM = taps of the class x Co

    The filter's blocks are [BLOCK_K, BLOCK_N] as they lie in memory: WGMMA reads them transposed.
    A 1x1 filter with stride 1 and no padding takes dy as a matrix, through tiled loads.
    With a single class, that is stride 1, a small filter stays in shared memory as in fprop.

Warp roles, barriers, timeline
    As in fprop (gluon_fprop.py).  Tiles differ in their number of steps, so a consumer counts
    those of the other consumer's tiles too, to know where in the ring its own begin.

Stores
    With stride 1 through TMA, as in fprop.  Else a class's pixels are s apart, which no tile of
    a tensor map is: its rows go through the staging buffer and are written 16 bytes per thread.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from triton_ext.host.gluon_names import specialize, typed
from triton_ext.ops.core.stride_phases import StridePhases, three_dims
from triton_ext.ops.kernels.gluon_pipeline import (
    allocate_shared,
    finish_columns,
    load_step,
    multiply_tile,
    next_stage,
    num_own,
    pixel_starts,
    split_columns,
    store_tile,
    tile_counts,
    tile_origin,
)

__all__ = ["Classes", "DgradProblem", "conv_dgrad_kernel", "dgrad_problem", "residue_classes"]


@dataclass(frozen=True, slots=True)
class Classes:
    """The stride phases; constants of the kernel, because it divides by them for every tile.

    Tuples are (d, h, w), with 1 for missing dimensions.
    """

    stride: tuple[int, ...]
    divisor: tuple[int, ...]  # gcd of dilation and stride
    tap_step: tuple[int, ...]  # from one tap of a class to its next
    inverse: tuple[int, ...]  # for the first tap of a class

    @property
    def count(self) -> int:
        """Number of classes."""
        return math.prod(self.stride)


class DgradProblem(NamedTuple):
    """The convolution, as a runtime argument with named fields.

    Tuples are (d, h, w), with 1 (or 0 where 0 means nothing) for missing dimensions.
    """

    m_gemm: int  # pixels of a class, of all images
    ci: int
    channel_blocks: int  # cdiv(Co, BLOCK_K)
    size: tuple[int, ...]  # pixels of dx
    filter_size: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]  # before the first pixel
    lower: tuple[int, ...]  # lower corner of the pixel box
    walk_size: tuple[int, ...]  # pixels of a class, of one image


def residue_classes(dims: Sequence[StridePhases]) -> Classes:
    """Returns the constants of the kernel for some spatial dimensions."""
    return Classes(*_three(dims, "stride", "divisor", "tap_step", "inverse"))


def dgrad_problem(
    dims: Sequence[StridePhases], n: int, ci: int, channel_blocks: int
) -> DgradProblem:
    """Returns the runtime argument of the kernel for some spatial dimensions and n images."""
    m_gemm = n * math.prod(dim.walk_size for dim in dims)
    fields = _three(dims, "size", "taps", "dilation", "low", "lower", "walk_size")
    return DgradProblem(m_gemm, ci, channel_blocks, *fields)


def _three(dims: Sequence[StridePhases], *names: str) -> Iterator[tuple[int, ...]]:
    """Returns fields of spatial dimensions, each as (d, h, w)."""
    padded = three_dims(dims)
    return (tuple(getattr(dim, name) for dim in padded) for name in names)


@gluon.jit
def split_tile(tile, problem, CONFIG: gl.constexpr, CLASSES: gl.constexpr):
    """First row and column of a tile within its class, and the residues of the class."""
    STRIDE_H: gl.constexpr = CLASSES.stride[1]
    STRIDE_W: gl.constexpr = CLASSES.stride[2]
    if CLASSES.count == 1:
        row, column = tile_origin(tile, problem.m_gemm, problem.ci, CONFIG)
        return row, column, (0, 0, 0)
    num_m, num_n = tile_counts(problem.m_gemm, problem.ci, CONFIG)
    tiles = num_m * num_n
    row, column = tile_origin(tile % tiles, problem.m_gemm, problem.ci, CONFIG)
    number = tile // tiles
    rest = number // STRIDE_W
    return row, column, (rest // STRIDE_H, rest % STRIDE_H, number % STRIDE_W)


@gluon.jit
def num_tiles(problem, CONFIG: gl.constexpr, CLASSES: gl.constexpr):
    """Tiles of all classes."""
    num_m, num_n = tile_counts(problem.m_gemm, problem.ci, CONFIG)
    return num_m * num_n * CLASSES.count


@gluon.jit
def class_taps(residues, problem, DIM: gl.constexpr, CLASSES: gl.constexpr):
    """First tap of a class, number of its taps, im2col offset of the first."""
    DIVISOR: gl.constexpr = CLASSES.divisor[DIM]
    STEP: gl.constexpr = CLASSES.tap_step[DIM]
    position = residues[DIM] + problem.padding[DIM]
    taps = problem.filter_size[DIM]
    first = (position // DIVISOR) * CLASSES.inverse[DIM] % STEP
    is_reached = (position % DIVISOR == 0) & (first < taps)
    count = gl.where(is_reached, (taps - 1 - first) // STEP + 1, 0)
    shift = (position - first * problem.dilation[DIM]) // CLASSES.stride[DIM]
    return first, count, shift - problem.lower[DIM]


@gluon.jit
def num_steps_of(index, problem, CONFIG: gl.constexpr, CLASSES: gl.constexpr):
    """Steps of a tile of this CTA."""
    tile = gl.program_id(0) + index * gl.num_programs(0)
    _, _, residues = split_tile(tile, problem, CONFIG, CLASSES)
    _, count_d, _ = class_taps(residues, problem, 0, CLASSES)
    _, count_h, _ = class_taps(residues, problem, 1, CLASSES)
    _, count_w, _ = class_taps(residues, problem, 2, CLASSES)
    return count_d * count_h * count_w * problem.channel_blocks


@gluon.jit
def producer(
    dy_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG: gl.constexpr, CLASSES: gl.constexpr
):
    """Loads all tiles of this CTA, as far ahead as the ring allows."""
    STAGES: gl.constexpr = CONFIG.stages
    MISSING: gl.constexpr = 5 - len(dy_desc.shape)
    _, taps_h, taps_w = problem.filter_size
    # By which the position in dy falls from one tap of a class to its next.
    fall_d = problem.dilation[0] // CLASSES.divisor[0]
    fall_h = problem.dilation[1] // CLASSES.divisor[1]
    fall_w = problem.dilation[2] // CLASSES.divisor[2]
    lower_d, lower_h, lower_w = problem.lower
    ones = (1, 1, 1)
    front = (-lower_d, -lower_h, -lower_w)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)  # a fresh barrier counts as one whose odd phase is over
    for index in range(num_own(num_tiles(problem, CONFIG, CLASSES))):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column, residues = split_tile(tile, problem, CONFIG, CLASSES)
        first_d, count_d, offset_d = class_taps(residues, problem, 0, CLASSES)
        first_h, count_h, offset_h = class_taps(residues, problem, 1, CLASSES)
        first_w, count_w, offset_w = class_taps(residues, problem, 2, CLASSES)
        starts = pixel_starts(
            dy_desc, row, problem.walk_size[MISSING:], ones[MISSING:], front[MISSING:], CONFIG
        )
        for block in range(problem.channel_blocks):
            for t in range(count_d):
                for r in range(count_h):
                    for s in range(count_w):
                        tap = (first_d + t * CLASSES.tap_step[0]) * taps_h + first_h
                        tap = (tap + r * CLASSES.tap_step[1]) * taps_w + first_w
                        tap += s * CLASSES.tap_step[2]
                        offsets = (
                            offset_d - t * fall_d, offset_h - r * fall_h, offset_w - s * fall_w,
                        )  # fmt: skip
                        step = ((block * count_d + t) * count_h + r) * count_w + s
                        load_step(
                            dy_desc, w_main_desc, w_rest_desc, shared, stage, phase, index == 0,
                            step, starts, offsets[MISSING:], column, tap, block * CONFIG.block_k,
                            CONFIG, DIRECTION="dgrad",
                        )  # fmt: skip
                        stage, phase = next_stage(stage, phase, STAGES)


@gluon.constexpr_function
def rows_layout(columns):
    """Returns the layout in which rows are written, 8 channels per thread."""
    threads = columns // 8
    return gl.BlockedLayout([1, 8], [32 // threads, threads], [4, 1], [1, 0])


@gluon.jit
def store_rows(
    values, dx_ptr, buffer, row, column, residues, problem, epilogue, CLASSES: gl.constexpr
):
    """Finishes some columns and writes their rows where they belong, through a staging buffer."""
    rows: gl.constexpr = rows_layout(values.shape[1])
    values = finish_columns(values, row, column, epilogue, "none")
    buffer.store(values.to(dx_ptr.dtype.element_ty))
    offs_m = row + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, rows))
    offs_n = column + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, rows))
    size_d, size_h, size_w = problem.size
    walk_d, walk_h, walk_w = problem.walk_size
    rest = offs_m // walk_w
    pixel_w = residues[2] + offs_m % walk_w * CLASSES.stride[2]
    pixel_h = residues[1] + rest % walk_h * CLASSES.stride[1]
    rest = rest // walk_h
    pixel_d = residues[0] + rest % walk_d * CLASSES.stride[0]
    pixel = ((rest // walk_d * size_d + pixel_d) * size_h + pixel_h) * size_w + pixel_w
    mask_m = (offs_m < problem.m_gemm) & (pixel_d < size_d)
    mask_m = mask_m & (pixel_h < size_h) & (pixel_w < size_w)
    # Ci is a multiple of 8, written so that Triton's axis analysis follows: 16-byte stores.
    eighths = problem.ci // 8
    mask = mask_m[:, None] & (offs_n // 8 < eighths)[None, :]
    offsets = (pixel.to(gl.int64) * eighths * 8)[:, None] + offs_n[None, :]
    gl.store(dx_ptr + offsets, buffer.load(rows), mask=mask)


@gluon.jit
def consumer(
    ME: gl.constexpr, dx_desc, dx_ptr, shared, problem, epilogue, CONFIG: gl.constexpr,
    CLASSES: gl.constexpr,
):  # fmt: skip
    """Multiplies and stores: every tile's rows of group ME, or every second tile."""
    FIRST_TILE: gl.constexpr = ME if CONFIG.ping_pong else 0
    TILE_STEP: gl.constexpr = 2 if CONFIG.ping_pong else 1
    FIRST_ROW: gl.constexpr = CONFIG.row_group(ME) * CONFIG.rows
    first_step = gl.to_tensor(0)
    if FIRST_TILE == 1:
        first_step += num_steps_of(0, problem, CONFIG, CLASSES)
    for index in range(FIRST_TILE, num_own(num_tiles(problem, CONFIG, CLASSES)), TILE_STEP):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        row, column, residues = split_tile(tile, problem, CONFIG, CLASSES)
        num_steps = num_steps_of(index, problem, CONFIG, CLASSES)
        accs = multiply_tile(shared, index, first_step, num_steps, ME, CONFIG, DIRECTION="dgrad")
        first_step += num_steps
        if TILE_STEP == 2:
            first_step += num_steps_of(index + 1, problem, CONFIG, CLASSES)
        row += FIRST_ROW
        if CLASSES.count > 1:
            parts = split_columns(accs, CONFIG)
            buffer = shared.out_smem.index(ME * CONFIG.store_buffers)
            for part in gl.static_range(len(parts)):
                store_rows(
                    parts[part], dx_ptr, buffer, row, column + part * CONFIG.store_n, residues,
                    problem, epilogue, CLASSES,
                )  # fmt: skip
        else:
            store_tile(accs, dx_desc, shared.out_smem, row, column, ME, CONFIG, epilogue, "none")
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["problem"])
def conv_dgrad_kernel(
    dy_desc,  # im2col: [ROWS, BLOCK_K] of dy; tiled for a 1x1 filter
    w_main_desc,  # tiled: [BLOCK_K, 1, BLOCK_N_MAIN] of w [Co, T * R * S, Ci]
    w_rest_desc,  # tiled: [BLOCK_K, 1, BLOCK_N_REST] of w, None without a second accumulator
    dx_desc,  # tiled: [ROWS, STORE_N] of dx [pixels, Ci]; without stores if there are classes
    dx_ptr,  # dx
    bias_ptr,  # [Ci] or None
    problem,  # DgradProblem
    CONFIG: gl.constexpr,  # TileConfig
    CLASSES: gl.constexpr,  # Classes
):
    """Computes dx; a grid of any size works, a multiple of num_n where the filter stays."""
    problem = typed(problem)
    epilogue = typed((bias_ptr, None, None, None, None, problem.m_gemm, problem.ci, None))
    shared = allocate_shared(dy_desc, w_main_desc, w_rest_desc, dx_desc, CONFIG, DIRECTION="dgrad")
    specialize(
        consumer, (dx_desc, dx_ptr, shared, problem, epilogue, CONFIG, CLASSES),
        producer, (dy_desc, w_main_desc, w_rest_desc, shared, problem, CONFIG, CLASSES),
        CONFIG,
    )  # fmt: skip
