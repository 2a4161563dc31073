"""The kernel of ``small_copies``: out = sum over steps of tile * side input, copied ahead."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

__all__ = ["scaled_tiles"]

# The name since 3.8, and the one before.
_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def _copy(x_smem, x_ptrs, side_smem, side_ptrs, COPIED: gl.constexpr):
    _async_load(x_smem, x_ptrs)
    if COPIED:
        _async_load(side_smem, side_ptrs)
    async_copy.commit_group()


@gluon.jit
def scaled_tiles(
    x_ptr,
    side_ptr,
    out_ptr,
    steps,
    R: gl.constexpr,
    C: gl.constexpr,
    AXIS: gl.constexpr,
    STAGES: gl.constexpr,
    COPIED: gl.constexpr,
):
    """Adds up [R, C] tiles, each row (AXIS 0) or column (AXIS 1) scaled by the step's side input.

    Args:
        x_ptr: [steps, R, C] in fp16; all programs read the same.
        side_ptr: [steps, R or C].
        out_ptr: [programs, R, C] in fp32.
        steps: At least STAGES.
        R: Rows.
        C: Columns.
        AXIS: Which of them the side input belongs to.
        STAGES: Buffers.
        COPIED: Whether the side input is copied to shared memory, or loaded into registers.
    """
    tile_layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 // (C // 8), C // 8], [gl.num_warps(), 1], [1, 0]
    )
    side_layout: gl.constexpr = gl.SliceLayout(1 - AXIS, tile_layout)
    SIZE: gl.constexpr = R if AXIS == 0 else C
    x_smem = gl.allocate_shared_memory(
        gl.float16, [STAGES, R, C], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    side_smem = gl.allocate_shared_memory(
        side_ptr.dtype.element_ty, [STAGES, SIZE], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    offs_r = gl.arange(0, R, layout=gl.SliceLayout(1, tile_layout))
    offs_c = gl.arange(0, C, layout=gl.SliceLayout(0, tile_layout))
    offs = offs_r[:, None] * C + offs_c[None, :]
    side_offs = gl.arange(0, SIZE, layout=side_layout)
    program = gl.program_id(0)
    x_ptrs = x_ptr + offs
    acc = gl.zeros([R, C], gl.float32, layout=tile_layout)
    for step in gl.static_range(STAGES - 1):
        x_now, side_now = x_ptrs + step * (R * C), side_ptr + step * SIZE + side_offs
        _copy(x_smem.index(step), x_now, side_smem.index(step), side_now, COPIED)
    for step in range(steps):
        # The last steps copy the last tile again, into a buffer that nobody reads any more.
        ahead = gl.minimum(step + STAGES - 1, steps - 1)
        slot = (step + STAGES - 1) % STAGES
        x_now, side_now = x_ptrs + ahead * (R * C), side_ptr + ahead * SIZE + side_offs
        _copy(x_smem.index(slot), x_now, side_smem.index(slot), side_now, COPIED)
        async_copy.wait_group(STAGES - 1)
        x = x_smem.index(step % STAGES).load(tile_layout).to(gl.float32)
        if COPIED:
            side = side_smem.index(step % STAGES).load(side_layout).to(gl.float32)
        else:
            side = gl.load(side_ptr + step * SIZE + side_offs).to(gl.float32)
        if AXIS == 0:
            acc += x * side[:, None]
        else:
            acc += x * side[None, :]
    gl.store(out_ptr + program * (R * C) + offs, acc)
