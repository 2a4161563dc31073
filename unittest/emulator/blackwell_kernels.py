"""Gluon kernels for sm_100: a matrix product in one part, and one in three partitions.

Both compute ``c = a @ b.T`` for a [M, K] and b [N, K]; loads go through the TMA unit, products
through tensor memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["descriptors", "matmul", "specialized_matmul"]

STAGES = gl.constexpr(3)


@gluon.jit
def matmul(a_desc, b_desc, c_desc, K):
    """One tile of c for each program, one stage."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    offs_m, offs_n = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(done, count=1)
    layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], layout)
    phase = 0
    for k in range(0, K, BLOCK_K):
        mbarrier.expect(loaded, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [offs_m, k], loaded, a_smem)
        tma.async_load(b_desc, [offs_n, k], loaded, b_smem)
        mbarrier.wait(loaded, phase)
        tcgen05_mma(a_smem, b_smem.permute((1, 0)), acc, use_acc=k > 0)
        tcgen05_commit(done)
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(loaded)
    mbarrier.invalidate(done)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c_smem.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [offs_m, offs_n], c_smem)
    tma.store_wait(0)


@gluon.jit
def _load(a_desc, b_desc, a_ring, b_ring, full_bars, empty_bars, K):
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    offs_m = gl.program_id(0) * a_desc.block_type.shape[0]
    offs_n = gl.program_id(1) * b_desc.block_type.shape[0]
    for step in range(K // BLOCK_K):
        stage = step % STAGES
        full = full_bars.index(stage)
        # The first round finds the stages empty.
        mbarrier.wait(empty_bars.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [offs_m, step * BLOCK_K], full, a_ring.index(stage))
        tma.async_load(b_desc, [offs_n, step * BLOCK_K], full, b_ring.index(stage))


@gluon.jit
def _multiply(a_desc, a_ring, b_ring, full_bars, empty_bars, acc, done, K):
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    for step in range(K // BLOCK_K):
        stage = step % STAGES
        mbarrier.wait(full_bars.index(stage), step // STAGES & 1)
        b = b_ring.index(stage).permute((1, 0))
        tcgen05_mma(a_ring.index(stage), b, acc, use_acc=step > 0)
        tcgen05_commit(empty_bars.index(stage))
    tcgen05_commit(done)


@gluon.jit
def _store(c_desc, acc, done):
    mbarrier.wait(done, 0)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c_smem.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    offs_m = gl.program_id(0) * c_desc.block_type.shape[0]
    tma.async_store(c_desc, [offs_m, gl.program_id(1) * c_desc.block_type.shape[1]], c_smem)
    tma.store_wait(0)


@gluon.jit
def specialized_matmul(a_desc, b_desc, c_desc, K):
    """One tile of c for each program; partitions load, multiply and store."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    bar_layout: gl.constexpr = mbarrier.MBarrierLayout()
    a_ring = gl.allocate_shared_memory(
        a_desc.dtype,
        [STAGES] + a_desc.block_type.shape,  # noqa: RUF005 - Gluon unpacks no lists
        a_desc.layout,
    )
    b_ring = gl.allocate_shared_memory(
        b_desc.dtype,
        [STAGES] + b_desc.block_type.shape,  # noqa: RUF005 - Gluon unpacks no lists
        b_desc.layout,
    )
    full_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar_layout)
    empty_bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar_layout)
    done = gl.allocate_shared_memory(gl.int64, [1], bar_layout)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_bars.index(stage), count=1)
        mbarrier.init(empty_bars.index(stage), count=1)
    mbarrier.init(done, count=1)
    layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], layout)
    gl.warp_specialize(
        [
            (_store, (c_desc, acc, done)),
            (_load, (a_desc, b_desc, a_ring, b_ring, full_bars, empty_bars, K)),
            (_multiply, (a_desc, a_ring, b_ring, full_bars, empty_bars, acc, done, K)),
        ],
        [1, 1],
        [24, 24],
    )


def descriptors(tensors, block):
    """Descriptors of matrices, with one block shape for all."""
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16)
    return [TensorDescriptor.from_tensor(each, block, layout) for each in tensors]
