"""Kernels of the GPU tests; Triton reads their source from this file."""

import triton
import triton.language as tl
import triton_ext.language as tle
from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_ext.gluon import nvidia as xnv

SCALARS = ("n", "d", "h", "w", "c", "t", "r", "s")
# Triton's own; it has had its name since 3.8.
ASYNC_STORE = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
# Triton's own, since 3.8; before, only ours is called.
STOCK_LOAD = getattr(tma, "async_load_im2col", xnv.async_load_im2col)
# From 3.7 on the type of a barrier has an element for each CTA of a cluster.
CTAS = ttgl.constexpr(2 if hasattr(mbarrier.MBarrierLayout, "multicta") else 1)
CLUSTER = ttgl.constexpr(mbarrier.MBarrierLayout([[CTAS.value - 1]]))


# Not specialized: one kernel per layout and rank, whatever the coordinates are.
@gluon.jit(do_not_specialize=SCALARS)
def fetch(x, y, n, d, h, w, c, t, r, s, RANK: ttgl.constexpr):
    """Loads one block by im2col and writes it row by row; operands beyond the rank are unused."""
    PIXELS: ttgl.constexpr = x.block_shape[0]
    CHANNELS: ttgl.constexpr = x.block_shape[1]
    smem = ttgl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    bar = ttgl.allocate_shared_memory(ttgl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, x.nbytes_per_cta)
    if RANK == 3:
        xnv.async_load_im2col(x, [n, w, c], [s], bar, smem)
    elif RANK == 4:
        xnv.async_load_im2col(x, [n, h, w, c], [r, s], bar, smem)
    else:
        xnv.async_load_im2col(x, [n, d, h, w, c], [t, r, s], bar, smem)
    mbarrier.wait(bar, 0)
    LAYOUT: ttgl.constexpr = ttgl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    tile = smem.load(LAYOUT)
    mbarrier.invalidate(bar)
    rows = ttgl.arange(0, PIXELS, layout=ttgl.SliceLayout(1, LAYOUT))
    columns = ttgl.arange(0, CHANNELS, layout=ttgl.SliceLayout(0, LAYOUT))
    ttgl.store(y + rows[:, None] * CHANNELS + columns[None, :], tile)


@gluon.jit
def _load(x, smem, bar, start, channel, offsets):
    mbarrier.expect(bar, x.nbytes_per_cta)
    FIRST_DIM: ttgl.constexpr = 5 - len(x.shape)
    coord = (start[0],) + start[FIRST_DIM + 1 :] + (channel,)  # noqa: RUF005
    xnv.async_load_im2col(x, coord, offsets[FIRST_DIM:], bar, smem)


@gluon.jit
def _write(smem, bar, y, PIXELS: ttgl.constexpr, CHANNELS: ttgl.constexpr):
    LAYOUT: ttgl.constexpr = ttgl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    # A part at a time: blocks may have more elements than there are registers.
    PART: ttgl.constexpr = min(PIXELS, 64)
    rows = ttgl.arange(0, PART, layout=ttgl.SliceLayout(1, LAYOUT))
    columns = ttgl.arange(0, CHANNELS, layout=ttgl.SliceLayout(0, LAYOUT))
    mbarrier.wait(bar, 0)
    for part in ttgl.static_range(PIXELS // PART):
        tile = smem.slice(part * PART, PART).load(LAYOUT)
        first = y + part * PART * CHANNELS
        ttgl.store(first + rows[:, None] * CHANNELS + columns[None, :], tile)


@gluon.jit(do_not_specialize=SCALARS)
def fetch_in_partition(x, y, n, d, h, w, c, t, r, s, WARPS: ttgl.constexpr):
    """The same of blocks of any size; a partition loads, the CTA's own warps write."""
    smem = ttgl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    bar = ttgl.allocate_shared_memory(ttgl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    PIXELS: ttgl.constexpr = x.block_shape[0]
    CHANNELS: ttgl.constexpr = x.block_shape[1]
    ttgl.warp_specialize(
        [
            (_write, (smem, bar, y, PIXELS, CHANNELS)),
            (_load, (x, smem, bar, (n, d, h, w), c, (t, r, s))),
        ],
        [WARPS],
        [64],
    )


@triton.jit(do_not_specialize=SCALARS)
def fetch_jit(
    x, y, n, d, h, w, c, t, r, s,
    RANK: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The same in Triton."""
    if RANK == 3:
        tile = tle.load_im2col(x, [n, w, c], [s])
    elif RANK == 4:
        tile = tle.load_im2col(x, [n, h, w, c], [r, s])
    else:
        tile = tle.load_im2col(x, [n, d, h, w, c], [t, r, s])
    rows, columns = tl.arange(0, PIXELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    tl.store(y + rows * CHANNELS + columns, tile)


@gluon.jit
def _copy_out(smem, y_desc):
    ASYNC_STORE(y_desc, [ttgl.program_id(0) * y_desc.block_shape[0], 0], smem)
    tma.store_wait(0)


@gluon.jit
def share(x, y_desc, OURS: ttgl.constexpr, MULTICAST: ttgl.constexpr, WALK: ttgl.constexpr):
    """A cluster of two CTAs loads one block per program, as the layout of x splits it."""
    smem = ttgl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    bar = ttgl.allocate_shared_memory(ttgl.int64, [CTAS], CLUSTER)
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, x.nbytes_per_cta)
    n, h, w = xnv.im2col_start(ttgl.program_id(0) * x.block_shape[0], WALK[0], WALK[1], WALK[2])
    if OURS:
        xnv.async_load_im2col(x, [n, h, w, 0], [1, 2], bar, smem, multicast=MULTICAST, walk=WALK)
    else:
        STOCK_LOAD(x, [n, h, w, 0], [1, 2], bar, smem, multicast=MULTICAST)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    _copy_out(smem, y_desc)


@triton.jit
def share_jit(x_desc, y_desc, PIXELS: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):
    """The same in Triton; which CTA holds which pixels is the compiler's choice."""
    m0 = tl.program_id(0) * PIXELS
    n, h, w = tle.im2col_start(m0, (P, Q), (1, 1), (1, 1))
    walk = ((P, Q), (1, 1), (1, 1))
    tile = tle.load_im2col(x_desc, [n, h, w, 0], [1, 2], walk=walk)
    y_desc.store([m0, 0], tile)


@triton.jit
def copy_tile(x_desc, y_ptr, n, h, w, c, r, s):
    rows = tl.arange(0, 64)[:, None]
    tile = tle.load_im2col(x_desc, [n, h, w, c], [r, s])
    tl.store(y_ptr + rows * 64 + tl.arange(0, 64)[None, :], tile)
