"""Kernels of the tests, all but one Gluon ones; Triton reads their source from this file."""

import triton
import triton.language as tl
import triton_ext.language as tle
from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_ext.gluon import nvidia as xnv

# Triton's own, of a tile; it has had its name since 3.8.
ASYNC_LOAD = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
WALK = ttgl.constexpr(((8, 8), (1, 1), (1, 1)))


# From 3.7 on the type of a barrier has an element for each CTA of a cluster.
PER_CTA = ttgl.constexpr(hasattr(mbarrier.MBarrierLayout, "multicta"))
ONE_CTA = ttgl.constexpr(mbarrier.MBarrierLayout())
TWO_CTAS = ttgl.constexpr(mbarrier.MBarrierLayout([[1 if PER_CTA.value else 0]]))


@gluon.jit
def make_barrier(CTAS: ttgl.constexpr):
    SIZE: ttgl.constexpr = CTAS if PER_CTA else 1
    LAYOUT: ttgl.constexpr = ONE_CTA if CTAS == 1 else TWO_CTAS
    bar = ttgl.allocate_shared_memory(ttgl.int64, [SIZE], LAYOUT)
    mbarrier.init(bar, count=1)
    return bar


@gluon.jit
def load_tile(x, y, c, MODE: ttgl.constexpr, CTAS: ttgl.constexpr):
    ROWS: ttgl.constexpr = 32 if MODE == "result" else 64
    smem = ttgl.allocate_shared_memory(x.dtype, [ROWS, 64], x.layout)
    bar = make_barrier(CTAS)
    mbarrier.expect(bar, x.nbytes_per_cta)
    n, h, w = xnv.im2col_start(ttgl.program_id(0) * 64, (8, 8), (1, 1), (1, 1))
    if MODE == "rank 3":
        xnv.async_load_im2col(x, [n, w, c], [c], bar, smem)
    elif MODE == "rank 4":
        xnv.async_load_im2col(x, [n, h, w, c], [c, 2], bar, smem)
    elif MODE == "rank 5":
        xnv.async_load_im2col(x, [n, h, h, w, c], [31, c, 2], bar, smem, pred=c > 0)
    elif MODE == "constants" or MODE == "result":
        xnv.async_load_im2col(x, [1, -2, 3, 64], [7, 255], bar, smem)
    elif MODE == "largest":
        xnv.async_load_im2col(x, [1, 2, 0], [65535], bar, smem)
    elif MODE == "negative":
        xnv.async_load_im2col(x, [n, h, w, c], [-1, 0], bar, smem)
    elif MODE == "large":
        xnv.async_load_im2col(x, [n, h, w, c], [0, 256], bar, smem)
    elif MODE == "float offset":
        xnv.async_load_im2col(x, [n, h, w, c], [1.5, 0], bar, smem)
    elif MODE == "coordinates":
        xnv.async_load_im2col(x, [n, h, c], [0], bar, smem)
    elif MODE == "offsets":
        xnv.async_load_im2col(x, [n, h, w, c], [0], bar, smem)
    elif MODE == "channel":
        xnv.async_load_im2col(x, [n, h, w, 4], [0, 0], bar, smem)
    elif MODE == "int64":
        xnv.async_load_im2col(x, [n, h, w, c.to(ttgl.int64)], [0, 0], bar, smem)
    elif MODE == "not a descriptor":
        xnv.async_load_im2col(c, [n, h, w, c], [0, 0], bar, smem)
    elif MODE == "multicast":
        xnv.async_load_im2col(x, [n, h, w, c], [0, 0], bar, smem, multicast=True)
    elif MODE == "tiled":
        ASYNC_LOAD(x, [n, c], bar, smem)
    elif MODE == "walk":
        xnv.async_load_im2col(x, [n, h, w, c], [0, 0], bar, smem, walk=WALK)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)


@gluon.jit
def sizes_tile(x, y, c, IS_READ: ttgl.constexpr):
    """Loads a tile whose channel comes from the descriptor's sizes and strides."""
    if IS_READ:
        smem = ttgl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
        bar = make_barrier(1)
        mbarrier.expect(bar, x.nbytes_per_cta)
        stride = x.strides[0].to(ttgl.int32) // x.strides[2].to(ttgl.int32)
        xnv.async_load_im2col(x, [0, 0, 0, x.shape[3] + stride * x.shape[0]], [0, 1], bar, smem)
        mbarrier.wait(bar, 0)
        mbarrier.invalidate(bar)


@gluon.jit
def refused_tile(x, y, c, MODE: ttgl.constexpr, CTAS: ttgl.constexpr):
    smem = ttgl.allocate_shared_memory(x.dtype, [64, 64], x.layout)
    bar = make_barrier(CTAS)
    if MODE == "pred i32":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, pred=c)
    elif MODE == "pred 2.5":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, pred=2.5)
    elif MODE == "pred x":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, pred="x")
    elif MODE == "barrier":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], c, smem)
    elif MODE == "swapped":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], smem, bar)
    elif MODE == "result":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, None)
    elif MODE == "multicast i32":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, multicast=c)
    elif MODE == "multicast yes":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, multicast="yes")
    elif MODE == "scalar":
        xnv.async_load_im2col(x, c, [0, 1], bar, smem)
    elif MODE == "no offsets":
        xnv.async_load_im2col(x, [c, c, c, c], None, bar, smem)
    elif MODE == "offset a":
        xnv.async_load_im2col(x, [c, c, c, c], ["a", 1], bar, smem)
    elif MODE == "coordinate a":
        xnv.async_load_im2col(x, [c, c, "a", c], [0, 1], bar, smem)
    elif MODE == "walk 3":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=3)
    elif MODE == "walk of two":
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=((8, 8), (1, 1)))
    elif MODE == "walk size 0":
        WALK_0: ttgl.constexpr = ((0, 8), (1, 1), (1, 1))
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=WALK_0)
    elif MODE == "walk of 3 dims":
        WALK_3: ttgl.constexpr = ((8, 8, 8), (1, 1, 1), (1, 1, 1))
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=WALK_3)
    elif MODE == "walk lengths":
        WALK_1: ttgl.constexpr = ((8, 8), (1,), (1, 1))
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=WALK_1)
    elif MODE == "walk stride 9":
        WALK_9: ttgl.constexpr = ((8, 8), (1, 9), (1, 1))
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=WALK_9)
    elif MODE == "walk of floats":
        WALK_F: ttgl.constexpr = ((8, 8), (1, 1), (1, 0.5))
        xnv.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem, walk=WALK_F)
    elif MODE == "start stride 9":
        n, h, w = xnv.im2col_start(c, (8, 8), (9, 1), (1, 1))
        xnv.async_load_im2col(x, [n, h, w, c], [0, 1], bar, smem)
    elif MODE == "start":
        n, h, w = xnv.im2col_start(c, 8, 1, 1)
        xnv.async_load_im2col(x, [n, h, w, c], [0, 1], bar, smem)
    mbarrier.invalidate(bar)


@triton.jit
def copy_tile(x, y):
    tile = tle.load_im2col(x, [0, 0, 0, 0], [0, 0])
    tl.store(y + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], tile)


@gluon.jit
def stock_tile(x, y, c, CTAS: ttgl.constexpr):
    smem = ttgl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    bar = make_barrier(CTAS)
    mbarrier.expect(bar, x.nbytes_per_cta)
    tma.async_load_im2col(x, [c, c, c, c], [0, 1], bar, smem)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
