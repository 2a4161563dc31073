"""One convolution, written in every way in which a marker can reach its load.

Each kernel computes y = conv(x, w) for x [N, H, W, Ci], w [Co, R, S, Ci]; they differ only in where
the start pixel is made and how it travels.  The raw markers are private to triton_ext: user code
writes ``load_im2col``; Triton's passes then produce these shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
import triton_ext.language as tle
from triton.language import core
from triton_ext.backends.nvidia.language.im2col import _marker
from triton_ext.markers import CHANNEL, PIXEL


@core.builtin
def pixel_marker(n, h, w, _semantic=None):
    return _marker(PIXEL, [_semantic.to_tensor(x) for x in (n, h, w)], _semantic)


@core.builtin
def channel_marker(c, r, s, _semantic=None):
    return _marker(CHANNEL, [_semantic.to_tensor(x) for x in (c, r, s)], _semantic)


@triton.jit
def conv_tile(  # one tile per program; the start pixel travels as MODE says
    x_desc, w_desc, y_desc, out_h, out_w, stride, pad, zero, m_gemm, co,
    R: tl.constexpr, S: tl.constexpr, CHANNEL_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    MODE: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    n, h, w = tle.im2col_start(row, (out_h, out_w), (stride, stride), (pad, pad))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    px = pixel_marker(n, h, w)
    other = pixel_marker(n, h + zero, w + zero)  # equal, but the compiler does not know
    for k in tl.range(CHANNEL_BLOCKS * R * S, warp_specialize=WARP_SPECIALIZE):
        tap = k % (R * S)
        channel = (k // (R * S)) * BLOCK_K
        r = tap // S
        s = tap % S
        if MODE == "direct":
            x = tle.load_im2col(x_desc, [n, h, w, channel], [r, s])
        elif MODE == "outside":
            x = x_desc.load([px, channel_marker(channel, r, s)])
        elif MODE == "carried":
            x = x_desc.load([px, channel_marker(channel, r, s)])
            px = pixel_marker(n + zero, h, w + zero * k)
        elif MODE == "if":
            if (k + zero) % 2 == 0:
                chosen = pixel_marker(n, h + zero * k, w)
            else:
                chosen = pixel_marker(n, h, w + zero * k)
            x = x_desc.load([chosen, channel_marker(channel, r, s)])
        elif MODE == "select":
            chosen = tl.where((k + zero) % 2 == 0, px, other)
            x = x_desc.load([chosen, channel_marker(channel, r, s)])
        weight = w_desc.load([column, tap * CHANNEL_BLOCKS * BLOCK_K + channel])
        acc = tl.dot(x, weight.T, acc)
    y_desc.store([row, column], acc.to(tl.float16))


@triton.jit
def conv_persistent(  # a loop over tiles; the start pixel is made at the load or outside of K
    x_desc, w_desc, y_desc, out_h, out_w, stride, pad, zero, m_gemm, co,
    R: tl.constexpr, S: tl.constexpr, CHANNEL_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    MODE: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(co, BLOCK_N)
    tiles = tl.cdiv(m_gemm, BLOCK_M) * tiles_n
    for tile in tl.range(
        tl.program_id(0),
        tiles,
        tl.num_programs(0),
        flatten=FLATTEN,
        warp_specialize=WARP_SPECIALIZE,
    ):
        row = (tile // tiles_n) * BLOCK_M
        column = (tile % tiles_n) * BLOCK_N
        n, h, w = tle.im2col_start(row, (out_h, out_w), (stride, stride), (pad, pad))
        px = pixel_marker(n, h, w)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(CHANNEL_BLOCKS * R * S):
            tap = k % (R * S)
            channel = (k // (R * S)) * BLOCK_K
            if MODE == "direct":
                x = tle.load_im2col(x_desc, [n, h, w, channel], [tap // S, tap % S])
            else:
                x = x_desc.load([px, channel_marker(channel, tap // S, tap % S)])
            weight = w_desc.load([column, tap * CHANNEL_BLOCKS * BLOCK_K + channel])
            acc = tl.dot(x, weight.T, acc)
        y_desc.store([row, column], acc.to(tl.float16))


@dataclass(frozen=True)
class Case:
    """A row of the table of ways.

    Attributes:
        name: Shown by pytest.
        kernel: ``conv_tile`` or ``conv_persistent``.
        constants: Constexpr arguments that make the way.
        num_stages: Depth of the pipeline.
        num_warps: Warps per CTA; 4 with BLOCK_M 64 where sm_90 is to specialize warps.
        block_m: Pixels per tile.
        archs: Targets.  Triton's own warp specialization on sm_90 splits the rows of a tile of 128
            over two partitions of 4 warps and then fails on the undivided descriptor block, so
            those cases have 64 rows there.
        fails_on_3_6: Whether Triton 3.6 fails in its own warp specialization for sm_100.
    """

    name: str
    kernel: object
    constants: dict
    num_stages: int = 3
    num_warps: int = 4
    block_m: int = 128
    archs: tuple[int, ...] = (90, 100)
    fails_on_3_6: bool = False


def _tile(name, mode, warp_specialize=False, **kwargs):
    return Case(name, conv_tile, {"MODE": mode, "WARP_SPECIALIZE": warp_specialize}, **kwargs)


def _persistent(name, mode, flatten=False, warp_specialize=False, **kwargs):
    constants = {"MODE": mode, "FLATTEN": flatten, "WARP_SPECIALIZE": warp_specialize}
    nested = warp_specialize and not flatten
    return Case(name, conv_persistent, constants, fails_on_3_6=nested, **kwargs)


CASES = (
    _tile("direct", "direct", num_stages=1),
    _tile("pipelined", "direct"),
    _tile("outside-the-loop", "outside"),
    _tile("carried", "carried"),
    _tile("scf.if", "if"),
    _tile("select", "select"),
    _tile("warp-specialized-loop", "direct", True, archs=(100,)),
    _tile("warp-specialized-loop-m64", "direct", True, block_m=64),
    _tile("warp-specialized-outside", "outside", True, archs=(100,)),
    _tile("warp-specialized-outside-m64", "outside", True, block_m=64),
    _persistent("persistent", "direct"),
    _persistent("persistent-outside", "outside"),
    _persistent("flattened", "direct", flatten=True),
    _persistent("flattened-outside", "outside", flatten=True),
    _persistent("persistent-warp-specialized", "direct", warp_specialize=True, archs=(100,)),
    _persistent("persistent-warp-specialized-m64", "direct", warp_specialize=True, block_m=64),
    _persistent(
        "persistent-warp-specialized-outside", "outside", warp_specialize=True, archs=(100,)
    ),
    _persistent(
        "persistent-warp-specialized-outside-m64", "outside", warp_specialize=True, block_m=64
    ),
    _persistent(
        "flattened-warp-specialized-outside", "outside", flatten=True, warp_specialize=True
    ),
)

BLOCK_N = 64
BLOCK_K = 64


def constants(case, channel_blocks=2):
    """All constexpr arguments of a case, for 3x3 filters."""
    return {
        "R": 3,
        "S": 3,
        "CHANNEL_BLOCKS": channel_blocks,
        "BLOCK_M": case.block_m,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        **case.constants,
    }
