"""Convolution and gradient of its input as implicit GEMMs: persistent ``@triton.jit`` kernels.

Symbols: x [N, ([D, ]H, )W, Ci], w [Co, ([T, ]R, )S, Ci / groups], y [N, ([out_d, ]out_h, )out_w,
Co], dx like x and dy like y, all channels-last, with one to three spatial dimensions.

fprop: M_GEMM = N * out_d * out_h * out_w (output pixels), N_GEMM = Co, K_GEMM = T * R * S * Ci.
The left operand [M_GEMM, K_GEMM] is never written down: the TMA unit reads its [BLOCK_M, BLOCK_K]
tiles from x in im2col mode, one filter tap and one block of channels at a time.  A filter of one
tap with stride 1 and no padding makes im2col the identity: x is then read as the matrix that it is.

Loop order: with taps inside and blocks of channels outside, consecutive steps read almost the same
pixels, which then come from L2; with channels inside, they read whole rows of channels.  The number
of channels decides which order is faster, so it is part of the configuration.

Tails need no masks: pixels past the last image, channels past the last and padding read as zero;
the weight tensor map has the taps as a dimension of its own, so the channel tail of one tap does
not read the weights of the next.

Groups: a tile lies in one group; its rows of channels begin where the group's do.  Blocks of
channels should divide a group's channels.  Where they do not, the last block of x would hold
channels of the next group, whose NaN or infinity times the weights' zero is NaN, so they are
masked: the left operand then goes through registers.

dgrad: the pixels of dx whose position modulo the stride is the same are a convolution of dy with
stride 1 and some of the taps (``stride_phases.py``): a phase.  One launch computes all phases from
one im2col tensor map of dy and writes all pixels of dx: a phase without taps is a tile without
steps, and pixels that the forward convolution did not reach read dy outside of its bounds, zeros.
The kernel has three spatial dimensions; those that a problem lacks come first, with one pixel and
one tap.

GEMM mapping of a phase: M_GEMM = N * ceil(D/s) * ceil(H/s) * ceil(W/s), N_GEMM = Ci / groups,
K_GEMM = taps of the phase * Co / groups.  The filter's blocks are [BLOCK_K, BLOCK_N] as they lie in
memory: WGMMA reads them transposed.  It does so for 16-bit types only; fp32 (tf32) wants the filter
copied to [Ci / groups, T * R * S, Co].

Phases are numbered by (residue + padding) modulo the stride, which puts those with the most taps
first: what is left for the end, when multiprocessors run out of tiles, is short.

LLVM narrows divisions to 8 bits where it knows how small numbers of phases, residues and taps are,
and puts two into one register.  ptxas 12.9, which Triton uses for Hopper, adds nothing to some of
such halves (``add.s16x2``; triton-lang/triton#11581): dx was wrong for some geometries.  ``_wide``
keeps them in 32 bits.  With strides of 1 and 2 no such addition was found, and larger tiles have no
registers to spare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl

import triton_ext.language as tle
from triton_ext.ops.core.stride_phases import StridePhases, three_dims
from triton_ext.ops.kernels import epilogue


@triton.jit
def tap_offsets(tap, dilation, FILTER: tl.constexpr):
    """Returns the im2col offsets of a tap of a filter ([T, [R, ]]S); the last is the fastest."""
    if len(dilation) == 1:
        return (tap * dilation[0],)
    elif len(dilation) == 2:
        return (tap // FILTER[1]) * dilation[0], (tap % FILTER[1]) * dilation[1]
    else:
        return (
            (tap // (FILTER[1] * FILTER[2])) * dilation[0],
            ((tap // FILTER[2]) % FILTER[1]) * dilation[1],
            (tap % FILTER[2]) * dilation[2],
        )


@triton.jit
def conv_fprop_kernel(
    x_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of x; tiled where X_IS_MATRIX
    w_desc,  # tiled: [BLOCK_N, 1, BLOCK_K] tiles of w [Co, T * R * S, Ci / GROUPS]
    y,  # tiled: [BLOCK_M, BLOCK_N // store_parts] tiles of y [M_GEMM, Co]; or its pointer
    residual_desc,  # as y, or None
    operands,  # Operands of the epilogue
    m_gemm,
    co,
    conv,  # ConvSizes
    FILTER: tl.constexpr,  # taps per spatial dimension
    GROUPS: tl.constexpr,
    GROUP_CI: tl.constexpr,  # Ci / GROUPS
    X_IS_MATRIX: tl.constexpr,
    CONFIG: tl.constexpr,  # ConvConfig
    FINISH: tl.constexpr,  # Finish
):
    # Assigning a tuple makes its type anew: Triton 3.6 types a parameter before it fills in the 1s
    # of nested tuples, and takes them for None wherever it copies the scope.
    operands = operands
    conv = conv
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_K: tl.constexpr = CONFIG.block_k
    PARTS: tl.constexpr = CONFIG.store_parts if epilogue.is_descriptor(y) else 1
    TAPS: tl.constexpr = epilogue.tap_count(FILTER)
    CHANNEL_BLOCKS: tl.constexpr = (GROUP_CI - 1) // BLOCK_K + 1
    ACC_DTYPE: tl.constexpr = epilogue.sum_dtype(x_desc.dtype)
    # tl.cdiv would overflow for the last few legal pixel counts below 2^31.
    num_m = (m_gemm - 1) // BLOCK_M + 1
    if GROUPS == 1:
        num_n = tl.cdiv(co, BLOCK_N)
    else:
        group_co = co // GROUPS
        group_n = tl.cdiv(group_co, BLOCK_N)
        num_n = GROUPS * group_n
    # One flattened loop over tiles and K: the loads of the next tile overlap this one's epilogue.
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = epilogue.tile_position(tile, num_m, num_n, CONFIG.group_size_m)
        row = tile_m * BLOCK_M
        if GROUPS == 1:
            column = tile_n * BLOCK_N
            column_end = co
            group_channel = 0
        else:
            group = tile_n // group_n
            column = group * group_co + (tile_n % group_n) * BLOCK_N
            column_end = (group + 1) * group_co
            group_channel = group * GROUP_CI
        start = tle.im2col_start(row, conv.output_size, conv.stride, conv.padding)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_DTYPE)
        for k in range(CHANNEL_BLOCKS * TAPS):
            if CONFIG.taps_inner:
                tap = k % TAPS
                channel = (k // TAPS) * BLOCK_K
            else:
                tap = k // CHANNEL_BLOCKS
                channel = (k % CHANNEL_BLOCKS) * BLOCK_K
            x_channel = channel if GROUPS == 1 else group_channel + channel
            if X_IS_MATRIX:
                x = x_desc.load([row, x_channel])
            else:
                offsets = tap_offsets(tap, conv.dilation, FILTER)
                x = tle.load_im2col(x_desc, start + (x_channel,), offsets)  # noqa: RUF005
            if GROUPS > 1 and GROUP_CI % BLOCK_K != 0:
                # A block of channels may reach into the next group.
                own = tl.arange(0, BLOCK_K) < GROUP_CI - channel
                x = tl.where(own[None, :], x, tl.zeros_like(x))
            weight = w_desc.load([column, tap, channel]).reshape(BLOCK_N, BLOCK_K)
            acc = epilogue.multiply(x, weight.T, acc)
        offs_n = column + tl.arange(0, BLOCK_N)
        acc = epilogue.scale_and_shift(acc, offs_n, column_end, operands)
        parts = epilogue.column_parts(acc, PARTS)
        for part in tl.static_range(PARTS):
            epilogue.finish_tile(
                parts[part], row, column + part * (BLOCK_N // PARTS), m_gemm, co, column_end,
                y, residual_desc, operands, conv.output_size, FINISH,
            )  # fmt: skip


class DgradProblem(NamedTuple):
    """Sizes that kernels of dgrad get at run time.

    Triples are (d, h, w), with 1 (or 0 where 0 means nothing) for missing dimensions.
    """

    m_gemm: int  # pixels of a phase, of all images; some may lie outside of dx
    n_gemm: int  # Ci / groups
    channel_blocks: int  # cdiv(Co / groups, BLOCK_K)
    size: tuple[int, ...]  # pixels of dx
    filter_size: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]  # in front
    lower: tuple[int, ...]  # lower corner of the pixel box
    phase_size: tuple[int, ...]  # pixels of a phase, of one image

    @classmethod
    def of(
        cls, dims: Sequence[StridePhases], n: int, n_gemm: int, channel_blocks: int
    ) -> DgradProblem:
        """Returns the sizes for some spatial dimensions and n images."""
        m_gemm = n * math.prod(dim.phase_size for dim in dims)
        names = ("size", "taps", "dilation", "low", "lower", "phase_size")
        return cls(m_gemm, n_gemm, channel_blocks, *_triples(dims, names))


@dataclass(frozen=True, slots=True)
class Phases:
    """The stride phases; constants of kernels, because they divide by them for every tile.

    Triples are (d, h, w), with 1 for missing dimensions; names are those of ``StridePhases``.
    """

    stride: tuple[int, ...]
    divisor: tuple[int, ...]
    tap_step: tuple[int, ...]
    inverse: tuple[int, ...]

    @classmethod
    def of(cls, dims: Sequence[StridePhases]) -> Phases:
        """Returns the constants for some spatial dimensions."""
        return cls(*_triples(dims, cls.__slots__))

    @property
    def count(self) -> int:
        """Number of phases."""
        return math.prod(self.stride)


def _triples(dims: Sequence[StridePhases], names: Sequence[str]) -> list[tuple[int, ...]]:
    return [tuple(getattr(dim, name) for dim in three_dims(dims)) for name in names]


@triton.jit
def _wide(number, LIMIT: tl.constexpr):
    """Adds a zero that LLVM does not know to be one, nor to be small: no grid has a second axis."""
    return number + tl.program_id(1) * 65537 if LIMIT > 2 else number


@triton.jit
def _phase_position(number, PHASES: tl.constexpr):
    """Number of a phase in each dimension: (residue + padding) % stride."""
    STRIDE_H: tl.constexpr = PHASES.stride[1]
    STRIDE_W: tl.constexpr = PHASES.stride[2]
    return (
        _wide(number // (STRIDE_H * STRIDE_W), PHASES.stride[0]),
        _wide(number // STRIDE_W % STRIDE_H, STRIDE_H),
        _wide(number % STRIDE_W, STRIDE_W),
    )


@triton.jit
def _residue(number, problem, DIM: tl.constexpr, PHASES: tl.constexpr):
    """Residue of the pixels of a phase in one dimension."""
    STRIDE: tl.constexpr = PHASES.stride[DIM]
    return _wide((number + STRIDE - problem.padding[DIM] % STRIDE) % STRIDE, STRIDE)


@triton.jit
def _phase_taps(number, DIM: tl.constexpr, FILTER: tl.constexpr, PHASES: tl.constexpr):
    """First tap of a phase in one dimension, and the number of its taps."""
    TAPS: tl.constexpr = FILTER[DIM]
    DIVISOR: tl.constexpr = PHASES.divisor[DIM]
    TAP_STEP: tl.constexpr = PHASES.tap_step[DIM]
    INVERSE: tl.constexpr = PHASES.inverse[DIM]
    first = _wide(number // DIVISOR * INVERSE % TAP_STEP, TAP_STEP)
    is_reached = (number % DIVISOR == 0) & (first < TAPS)
    return first, tl.where(is_reached, (TAPS - 1 - first) // TAP_STEP + 1, 0)


@triton.jit
def _offset(number, first, problem, DIM: tl.constexpr, PHASES: tl.constexpr):
    """im2col offset of the first tap of a phase in one dimension."""
    STRIDE: tl.constexpr = PHASES.stride[DIM]
    position = _residue(number, problem, DIM, PHASES) + problem.padding[DIM]
    shift = (position - first * problem.dilation[DIM]) // STRIDE
    # A phase without taps has no shift, and what it loads does not matter.
    return max(shift - problem.lower[DIM], 0)


@triton.jit
def _phase_steps(number, problem, FILTER: tl.constexpr, PHASES: tl.constexpr):
    """Steps of a tile of a phase; one where there are no taps."""
    number_d, number_h, number_w = _phase_position(number, PHASES)
    _, count_d = _phase_taps(number_d, 0, FILTER, PHASES)
    _, count_h = _phase_taps(number_h, 1, FILTER, PHASES)
    _, count_w = _phase_taps(number_w, 2, FILTER, PHASES)
    return max(count_d * count_h * count_w * problem.channel_blocks, 1)


@triton.jit
def _num_steps(phase_tiles, problem, FILTER: tl.constexpr, PHASES: tl.constexpr):
    """Steps of this program: of every num_programs-th tile, counted over all phases."""
    total = 0
    before = 0
    for number in range(PHASES.count):
        behind = (number + 1) * phase_tiles - tl.program_id(0)
        reached = tl.cdiv(max(behind, 0), tl.num_programs(0))
        total += (reached - before) * _phase_steps(number, problem, FILTER, PHASES)
        before = reached
    return total


@triton.jit
def _tile_start(tile, problem, GROUPS: tl.constexpr, CONFIG: tl.constexpr):
    """Phase and group of a tile, its first row in the phase, its first column in the group."""
    # tl.cdiv would overflow for the last few legal pixel counts below 2^31.
    num_m = (problem.m_gemm - 1) // CONFIG.block_m + 1
    num_n = tl.cdiv(problem.n_gemm, CONFIG.block_n)
    tiles = num_m * num_n
    tile_m, tile_n = epilogue.tile_position(tile % tiles, num_m, num_n, CONFIG.group_size_m)
    number = tile // tiles
    return number // GROUPS, number % GROUPS, tile_m * CONFIG.block_m, tile_n * CONFIG.block_n


@triton.jit
def phase_pixels(rows, mask, residues, problem, PHASES: tl.constexpr):
    """Where rows of a phase lie in dx [N, D, H, W], and whether those of the mask do."""
    phase_d, phase_h, phase_w = problem.phase_size
    size_d, size_h, size_w = problem.size
    w = residues[2] + rows % phase_w * PHASES.stride[2]
    rest = rows // phase_w
    h = residues[1] + rest % phase_h * PHASES.stride[1]
    rest = rest // phase_h
    d = residues[0] + rest % phase_d * PHASES.stride[0]
    pixels = ((rest // phase_d * size_d + d) * size_h + h) * size_w + w
    return pixels, mask & (d < size_d) & (h < size_h) & (w < size_w)


@triton.jit
def _advance(digit, carry, limit):
    """Adds a carry to a digit of a counter; returns the digit and the carry to the next one."""
    digit += carry
    wraps = digit == limit
    return tl.where(wraps, 0, digit), wraps.to(tl.int32)


@triton.jit
def _store(
    acc, dx, bias_ptr, row, column, group, ci, pixels, mask_m, GROUPS: tl.constexpr,
    CHANNEL_UNIT: tl.constexpr,
):  # fmt: skip
    """Stores a tile, or a part of its columns; ``column`` and ``ci`` are of a group."""
    if bias_ptr is not None:
        offs_n = column + tl.arange(0, acc.shape[1])
        bias = tl.load(bias_ptr + group * ci + offs_n, mask=offs_n < ci, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    values = acc.to(epilogue.element_type(dx))
    if epilogue.is_descriptor(dx):
        dx.store([row, group * ci + column], values)
    else:
        offs_n = column + tl.arange(0, acc.shape[1])
        # ci as a multiple of its divisor: Triton sees that whole vectors are in or out.
        units = ci // CHANNEL_UNIT
        mask = mask_m[:, None] & (offs_n // CHANNEL_UNIT < units)[None, :]
        first = (pixels.to(tl.int64) * GROUPS + group) * units * CHANNEL_UNIT
        tl.store(dx + first[:, None] + offs_n[None, :], values, mask=mask)


@triton.jit(do_not_specialize=["problem"])
def conv_dgrad_kernel(
    dy_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of dy
    w_desc,  # tiled: [BLOCK_K, 1, BLOCK_N] tiles of w [Co, T * R * S, Ci / groups], or W_IS_NK
    # Tiled: [BLOCK_M, BLOCK_N // store_parts] tiles of dx [pixels, Ci]; or its pointer, for rows
    # that are apart or not multiples of 16 bytes.
    dx,
    bias_ptr,  # [Ci] or None
    problem,  # DgradProblem
    DIMS: tl.constexpr,  # spatial dimensions of dy_desc
    FILTER: tl.constexpr,  # filter_size of problem
    PHASES: tl.constexpr,  # Phases
    GROUPS: tl.constexpr,
    CHANNEL_UNIT: tl.constexpr,  # a divisor of n_gemm: 1 to 8
    W_IS_NK: tl.constexpr,  # whether w_desc is of [BLOCK_N, 1, BLOCK_K] tiles of w transposed
    CONFIG: tl.constexpr,  # ConvConfig
):
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_K: tl.constexpr = CONFIG.block_k
    PARTS: tl.constexpr = CONFIG.store_parts
    MISSING: tl.constexpr = 3 - DIMS
    TAP_STEP: tl.constexpr = PHASES.tap_step
    DIVISOR: tl.constexpr = PHASES.divisor
    problem = problem  # for Triton 3.6, as in conv_fprop_kernel
    phase_tiles = ((problem.m_gemm - 1) // BLOCK_M + 1) * tl.cdiv(problem.n_gemm, BLOCK_N) * GROUPS
    phase_d, phase_h, phase_w = problem.phase_size
    lower_d, lower_h, lower_w = problem.lower
    # State of the loads: the next tile, whether to go to it, and positions in the one being loaded.
    tile = tl.program_id(0)
    is_new = 1
    n, d, h, w = 0, 0, 0, 0
    column, first_channel, blocks = 0, 0, 1
    first_d, first_h, first_w = 0, 0, 0
    count_d, count_h, count_w = 1, 1, 1
    offset_d, offset_h, offset_w = 0, 0, 0
    t, r, s, block = 0, 0, 0, 0
    # State of the products: the tile, and how many of its k iterations are left.  The loads are
    # ahead of them, and nothing but the tiles' data should have to be kept for so long.
    stored_tile = tl.program_id(0)
    left = _phase_steps(stored_tile // phase_tiles, problem, FILTER, PHASES)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # One loop over the steps of all tiles: the loads of the next tile overlap this one's epilogue.
    # It is written by hand because Triton flattens loops of a constant number of steps only.
    for _ in range(_num_steps(phase_tiles, problem, FILTER, PHASES)):
        if is_new == 1:
            number, group, row, column = _tile_start(tile, problem, GROUPS, CONFIG)
            tile += tl.num_programs(0)
            w = row % phase_w + lower_w
            h = row // phase_w % phase_h + lower_h
            d = row // phase_w // phase_h % phase_d + lower_d
            n = row // phase_w // phase_h // phase_d
            number_d, number_h, number_w = _phase_position(number, PHASES)
            first_d, count_d = _phase_taps(number_d, 0, FILTER, PHASES)
            first_h, count_h = _phase_taps(number_h, 1, FILTER, PHASES)
            first_w, count_w = _phase_taps(number_w, 2, FILTER, PHASES)
            offset_d = _offset(number_d, first_d, problem, 0, PHASES)
            offset_h = _offset(number_h, first_h, problem, 1, PHASES)
            offset_w = _offset(number_w, first_w, problem, 2, PHASES)
            # A phase without taps takes one step behind the last channel, where all is zero.
            is_empty = count_d * count_h * count_w == 0
            blocks = tl.where(is_empty, 1, problem.channel_blocks)
            first_channel = tl.where(is_empty, GROUPS, group) * problem.channel_blocks * BLOCK_K
            count_d = tl.where(is_empty, 1, count_d)
            count_h = tl.where(is_empty, 1, count_h)
            count_w = tl.where(is_empty, 1, count_w)
        tap = first_d + t * TAP_STEP[0]
        tap = tap * FILTER[1] + first_h + r * TAP_STEP[1]
        tap = tap * FILTER[2] + first_w + s * TAP_STEP[2]
        channel = first_channel + block * BLOCK_K
        at_d = offset_d - t * (problem.dilation[0] // DIVISOR[0])
        at_h = offset_h - r * (problem.dilation[1] // DIVISOR[1])
        at_w = offset_w - s * (problem.dilation[2] // DIVISOR[2])
        start = (n,) + (d, h, w)[MISSING:] + (channel,)  # noqa: RUF005
        dy = tle.load_im2col(dy_desc, start, (at_d, at_h, at_w)[MISSING:])
        if W_IS_NK:
            weight = w_desc.load([column, tap, channel]).reshape(BLOCK_N, BLOCK_K).T
        else:
            weight = w_desc.load([channel, tap, column]).reshape(BLOCK_K, BLOCK_N)
        acc = epilogue.multiply(dy, weight, acc)
        if CONFIG.taps_inner:
            s, carry = _advance(s, 1, count_w)
            r, carry = _advance(r, carry, count_h)
            t, carry = _advance(t, carry, count_d)
            block, is_new = _advance(block, carry, blocks)
        else:
            block, carry = _advance(block, 1, blocks)
            s, carry = _advance(s, carry, count_w)
            r, carry = _advance(r, carry, count_h)
            t, is_new = _advance(t, carry, count_d)
        left -= 1
        if left == 0:
            number, group, row, first_n = _tile_start(stored_tile, problem, GROUPS, CONFIG)
            pixels = None
            mask_m = None
            if not epilogue.is_descriptor(dx):
                rows = tl.arange(0, BLOCK_M)
                number_d, number_h, number_w = _phase_position(number, PHASES)
                residues = (
                    _residue(number_d, problem, 0, PHASES),
                    _residue(number_h, problem, 1, PHASES),
                    _residue(number_w, problem, 2, PHASES),
                )
                mask_m = rows < problem.m_gemm - row
                pixels, mask_m = phase_pixels(row + rows, mask_m, residues, problem, PHASES)
            parts = epilogue.column_parts(acc, PARTS)
            for part in tl.static_range(PARTS):
                _store(
                    parts[part], dx, bias_ptr, row, first_n + part * (BLOCK_N // PARTS), group,
                    problem.n_gemm, pixels, mask_m, GROUPS, CHANNEL_UNIT,
                )  # fmt: skip
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            stored_tile += tl.num_programs(0)
            left = _phase_steps(stored_tile // phase_tiles, problem, FILTER, PHASES)
