"""Gradient of a convolution's input as implicit GEMMs: a persistent ``@triton.jit`` kernel.

Symbols: dy [N, (out_d, (out_h,)) out_w, Co], w [Co, (T, (R,)) S, Ci / groups],
dx [N, (D, (H,)) W, Ci], all channels-last.  Inside the kernel there are always three spatial
dimensions; those that a problem lacks come first, with one pixel and one tap.

The pixels of dx whose position modulo the stride is the same are a convolution of dy with stride 1
and some of the taps (``residues.py``): a class.  All classes are computed in one launch from one
im2col tensor map of dy, and all pixels of dx are written: a class without taps is a tile without
steps, and pixels that the forward convolution did not reach read dy outside of its bounds: zeros.

GEMM mapping of a class: M_GEMM = N * ceil(D/s) * ceil(H/s) * ceil(W/s), N_GEMM = Ci / groups,
K_GEMM = taps of the class * Co / groups.  The filter's blocks are [BLOCK_K, BLOCK_N] as they lie in
memory: WGMMA reads them transposed.

Classes are numbered by (residue + padding) modulo the stride, which puts those with the most taps
first: what is left for the end, when multiprocessors run out of tiles, is short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_ext.language as tle
from triton_ext.ops.conv_config import ConvConfig
from triton_ext.ops.machine import IS_INTERPRETED
from triton_ext.ops.residues import Residues

__all__ = [
    "Classes",
    "DgradProblem",
    "compile_conv_dgrad",
    "conv_dgrad_kernel",
    "kernel_constants",
    "three_dims",
]

_MISSING = Residues(size=1, taps=1, stride=1, dilation=1, low=0)


class DgradProblem(NamedTuple):
    """Sizes that the kernel is told at run time; triples are (d, h, w).

    Attributes:
        m_gemm: Pixels of a class; some may lie outside of dx.
        size: Pixels of dx.
        walk_size: Pixels of a class.
        padding: In front.
        dilation: Distance of two taps.
        lower: Lower corner of the pixel box.
    """

    m_gemm: int
    size: tuple[int, int, int]
    walk_size: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    lower: tuple[int, int, int]


class Classes(NamedTuple):
    """What the kernel is compiled for; triples are (d, h, w), see ``residues.Residues``.

    Attributes:
        taps: Of the filter.
        stride: Of the convolution; its product is the number of classes.
        divisor: gcd of dilation and stride.
        tap_step: From one tap of a class to its next.
        inverse: For the first tap of a class.
    """

    taps: tuple[int, int, int]
    stride: tuple[int, int, int]
    divisor: tuple[int, int, int]
    tap_step: tuple[int, int, int]
    inverse: tuple[int, int, int]


@triton.jit
def _tile_position(tile, num_m, num_n, GROUP_SIZE_M: tl.constexpr):
    """Row and column of a tile, GROUP_SIZE_M rows at a time so that weights stay in L2."""
    width = GROUP_SIZE_M * num_n
    first_m = (tile // width) * GROUP_SIZE_M
    group_m = min(num_m - first_m, GROUP_SIZE_M)
    return first_m + (tile % width) % group_m, (tile % width) // group_m


@triton.jit
def _class_taps(number, padding, dilation, lower, DIM: tl.constexpr, CLASSES: tl.constexpr):
    """A class in one dimension: residue, first tap, taps, im2col offset of the first tap.

    The number is (residue + padding) % stride.
    """
    TAPS: tl.constexpr = CLASSES[0][DIM]
    STRIDE: tl.constexpr = CLASSES[1][DIM]
    DIVISOR: tl.constexpr = CLASSES[2][DIM]
    TAP_STEP: tl.constexpr = CLASSES[3][DIM]
    INVERSE: tl.constexpr = CLASSES[4][DIM]
    residue = (number + STRIDE - padding % STRIDE) % STRIDE
    first = (number // DIVISOR) * INVERSE % TAP_STEP
    count = tl.where(
        (number % DIVISOR == 0) & (first < TAPS), (TAPS - 1 - first) // TAP_STEP + 1, 0
    )
    # Exact for a tap of the class; what it is for others does not matter.
    offset = (residue + padding - first * dilation) // STRIDE - lower
    return residue, first, count, offset


@triton.jit
def _split(k, count, DIM: tl.constexpr, CLASSES: tl.constexpr):
    """k // count and k % count for the number of taps of a class, by constants only."""
    TAPS: tl.constexpr = CLASSES[0][DIM]
    TAP_STEP: tl.constexpr = CLASSES[3][DIM]
    MOST: tl.constexpr = (TAPS + TAP_STEP - 1) // TAP_STEP
    if TAPS % TAP_STEP == 0 or MOST == 1:
        # A class has all of them, or has no steps.
        return k // MOST, k % MOST
    else:
        quotient = tl.where(count == MOST, k // MOST, k // (MOST - 1))
        return quotient, k - quotient * count


@triton.jit(do_not_specialize=["ci", "problem"])
def conv_dgrad_kernel(
    dy_desc,  # im2col: [BLOCK_M, BLOCK_K] tiles of dy
    w_desc,  # tiled: [BLOCK_K, 1, BLOCK_N] tiles of w [Co, T * R * S, Ci / groups]
    dx_desc,  # tiled: [BLOCK_M, BLOCK_N // STORE_PARTS] tiles of dx [pixels, Ci]; None: use dx_ptr
    dx_ptr,  # dx as a pointer, for rows that are apart or not multiples of 16 bytes; or None
    bias_ptr,  # [Ci] or None
    ci,  # of a group
    problem,  # DgradProblem
    DIMS: tl.constexpr,  # spatial dimensions of dy_desc
    CLASSES: tl.constexpr,  # Classes
    GROUPS: tl.constexpr,
    CHANNEL_BLOCKS: tl.constexpr,  # cdiv(Co / groups, BLOCK_K)
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    TAPS_INNER: tl.constexpr,  # whether taps are the inner loop, channels the outer
    STORE_PARTS: tl.constexpr,  # 1 or 2: halves the shared memory of the epilogue
    DTYPE: tl.constexpr,  # of dx
    DOT_DTYPE: tl.constexpr,  # of the operands of tl.dot; DTYPE on every GPU
):
    TAPS_H: tl.constexpr = CLASSES[0][1]
    TAPS_W: tl.constexpr = CLASSES[0][2]
    STRIDE_H: tl.constexpr = CLASSES[1][1]
    STRIDE_W: tl.constexpr = CLASSES[1][2]
    TAP_STEP: tl.constexpr = CLASSES[3]
    NUM_CLASSES: tl.constexpr = CLASSES[1][0] * STRIDE_H * STRIDE_W
    # tl.cdiv would overflow for the last few legal pixel counts below 2^31.
    num_m = (problem.m_gemm - 1) // BLOCK_M + 1
    num_n = tl.cdiv(ci, BLOCK_N)
    group_tiles = num_m * num_n
    class_tiles = group_tiles * GROUPS
    walk_d, walk_h, walk_w = problem.walk_size
    lower_d, lower_h, lower_w = problem.lower
    # From one tap of a class to the next the position in dy falls by dilation / divisor.
    fall_d = problem.dilation[0] // CLASSES[2][0]
    fall_h = problem.dilation[1] // CLASSES[2][1]
    fall_w = problem.dilation[2] // CLASSES[2][2]
    # One flattened loop over tiles and K: the loads of the next tile overlap this one's epilogue.
    for tile in tl.range(
        tl.program_id(0), class_tiles * NUM_CLASSES, tl.num_programs(0), flatten=True
    ):
        number = tile // class_tiles
        group = tile % class_tiles // group_tiles
        tile_m, tile_n = _tile_position(tile % group_tiles, num_m, num_n, GROUP_SIZE_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        number_d = number // (STRIDE_H * STRIDE_W)
        number_h = number // STRIDE_W % STRIDE_H
        number_w = number % STRIDE_W
        residue_d, first_d, count_d, offset_d = _class_taps(
            number_d, problem.padding[0], problem.dilation[0], lower_d, 0, CLASSES
        )
        residue_h, first_h, count_h, offset_h = _class_taps(
            number_h, problem.padding[1], problem.dilation[1], lower_h, 1, CLASSES
        )
        residue_w, first_w, count_w, offset_w = _class_taps(
            number_w, problem.padding[2], problem.dilation[2], lower_w, 2, CLASSES
        )
        w = row % walk_w + lower_w
        h = row // walk_w % walk_h + lower_h
        d = row // walk_w // walk_h % walk_d + lower_d
        n = row // walk_w // walk_h // walk_d
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(count_d * count_h * count_w * CHANNEL_BLOCKS):
            if TAPS_INNER:
                rest, s = _split(k, count_w, 2, CLASSES)
                rest, r = _split(rest, count_h, 1, CLASSES)
                block, t = _split(rest, count_d, 0, CLASSES)
            else:
                block = k % CHANNEL_BLOCKS
                rest, s = _split(k // CHANNEL_BLOCKS, count_w, 2, CLASSES)
                t, r = _split(rest, count_h, 1, CLASSES)
            tap = (first_d + t * TAP_STEP[0]) * TAPS_H + first_h + r * TAP_STEP[1]
            tap = tap * TAPS_W + first_w + s * TAP_STEP[2]
            channel = (group * CHANNEL_BLOCKS + block) * BLOCK_K
            if DIMS == 1:
                start = (n, w, channel)
                offsets = (offset_w - s * fall_w,)
            elif DIMS == 2:
                start = (n, h, w, channel)
                offsets = (offset_h - r * fall_h, offset_w - s * fall_w)
            else:
                start = (n, d, h, w, channel)
                offsets = (offset_d - t * fall_d, offset_h - r * fall_h, offset_w - s * fall_w)
            dy = tle.load_im2col(dy_desc, start, offsets)
            weight = w_desc.load([channel, tap, column]).reshape(BLOCK_K, BLOCK_N)
            acc = tl.dot(dy.to(DOT_DTYPE), weight.to(DOT_DTYPE), acc)
        first_column = group * ci + column
        offs_n = column + tl.arange(0, BLOCK_N)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + group * ci + offs_n, mask=offs_n < ci, other=0.0)
            acc += bias.to(tl.float32)[None, :]
        if dx_desc is None:
            tile_rows = tl.arange(0, BLOCK_M)
            offs_m = row + tile_rows
            pixel_w = residue_w + offs_m % walk_w * STRIDE_W
            pixel_h = residue_h + offs_m // walk_w % walk_h * STRIDE_H
            images = offs_m // walk_w // walk_h
            pixel_d = residue_d + images % walk_d * CLASSES[1][0]
            size_d, size_h, size_w = problem.size
            pixel = (images // walk_d).to(tl.int64) * size_d + pixel_d
            pixel = (pixel * size_h + pixel_h) * size_w + pixel_w
            mask_m = (tile_rows < problem.m_gemm - row) & (pixel_d < size_d)
            mask_m = mask_m & (pixel_h < size_h) & (pixel_w < size_w)
            mask = mask_m[:, None] & (offs_n < ci)[None, :]
            offsets_dx = (pixel * (ci * GROUPS) + group * ci)[:, None] + offs_n[None, :]
            tl.store(dx_ptr + offsets_dx, acc.to(DTYPE), mask=mask)
        elif STORE_PARTS == 1:
            dx_desc.store([row, first_column], acc.to(DTYPE))
        else:
            halves = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1)
            left, right = tl.split(halves)
            dx_desc.store([row, first_column], left.to(DTYPE))
            dx_desc.store([row, first_column + BLOCK_N // 2], right.to(DTYPE))


def three_dims(dims: Sequence[Residues]) -> list[Residues]:
    """Returns three spatial dimensions: what is missing comes first, of one pixel and one tap."""
    return [_MISSING] * (3 - len(dims)) + list(dims)


def kernel_constants(
    config: ConvConfig, dims: Sequence[Residues], co: int, groups: int, dtype: tl.dtype
) -> dict[str, Any]:
    """Returns the kernel's constexpr arguments, in the order of its parameters.

    Args:
        config: The tile configuration.
        dims: The spatial dimensions.
        co: Output channels of a group.
        groups: Into how many parts the channels are divided.
        dtype: Of dy, w and dx.
    """
    padded = three_dims(dims)
    return {
        "DIMS": len(dims),
        "CLASSES": Classes(
            taps=tuple(dim.taps for dim in padded),
            stride=tuple(dim.stride for dim in padded),
            divisor=tuple(dim.divisor for dim in padded),
            tap_step=tuple(dim.tap_step for dim in padded),
            inverse=tuple(dim.inverse for dim in padded),
        ),
        "GROUPS": groups,
        "CHANNEL_BLOCKS": math.ceil(co / config.block_k),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_SIZE_M": config.group_size_m,
        "TAPS_INNER": config.taps_inner,
        "STORE_PARTS": config.store_parts,
        "DTYPE": dtype,
        # Triton's interpreter multiplies the bits of bf16 operands as integers (3.6 to 3.9).
        "DOT_DTYPE": tl.float32 if IS_INTERPRETED else dtype,
    }


def compile_conv_dgrad(
    config: ConvConfig,
    capability: int,
    *,
    filter_size: Sequence[int] = (3, 3),
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    co: int = 128,
    groups: int = 1,
    dtype: tl.dtype = tl.float16,
    has_bias: bool = False,
    store_through_tma: bool = True,
) -> Any:
    """Compiles the kernel ahead of time, without a GPU; its pointers are 16-byte aligned.

    Args:
        config: The tile configuration.
        capability: Compute capability of the target times ten: 90, 100.
        filter_size: Taps per spatial dimension.
        stride: Of the convolution.
        dilation: Distance of neighbouring taps.
        co: Output channels of a group.
        groups: Into how many parts the channels are divided.
        dtype: Of dy, w and dx.
        has_bias: Whether a bias is added.
        store_through_tma: Whether dx is stored by TMA; otherwise through a pointer.

    Returns:
        Triton's compiled kernel; its ``asm`` holds TTGIR, PTX and cubin.
    """
    dims = [
        Residues(size=1, taps=taps, stride=step, dilation=distance, low=0)
        for taps, step, distance in zip(filter_size, stride, dilation, strict=True)
    ]
    m, n, k = config.block_m, config.block_n, config.block_k
    tensors = {
        "dy_desc": f"tensordesc<{dtype}[{m}, {k}]>",
        "w_desc": f"tensordesc<{dtype}[{k}, 1, {n}]>",
        "ci": "i32",
        "problem": DgradProblem("i32", *(("i32",) * 3,) * 5),  # type: ignore[arg-type]
    }
    if store_through_tma:
        tensors["dx_desc"] = f"tensordesc<{dtype}[{m}, {n // config.store_parts}]>"
    else:
        tensors["dx_ptr"] = f"*{dtype}"
    if has_bias:
        tensors["bias_ptr"] = f"*{dtype}"
    constants = kernel_constants(config, dims, co, groups, dtype)
    constants |= {name: None for name in ("dx_desc", "dx_ptr", "bias_ptr") if name not in tensors}
    names = conv_dgrad_kernel.arg_names
    return triton.compile(
        ASTSource(
            conv_dgrad_kernel,
            {name: tensors.get(name, "constexpr") for name in names},
            constexprs=constants,
            attrs={
                (names.index(name),): [["tt.divisibility", 16]]
                for name in ("dx_ptr", "bias_ptr")
                if name in tensors
            },
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
