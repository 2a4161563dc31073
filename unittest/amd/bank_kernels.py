"""A Gluon kernel that writes a tile to LDS and reads it."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def through_lds(x, y, SHAPE: gl.constexpr, SHARED: gl.constexpr, REGISTERS: gl.constexpr):
    rows = gl.arange(0, SHAPE[0], layout=gl.SliceLayout(1, REGISTERS))
    columns = gl.arange(0, SHAPE[1], layout=gl.SliceLayout(0, REGISTERS))
    offsets = rows[:, None] * SHAPE[1] + columns[None, :]
    smem = gl.allocate_shared_memory(x.dtype.element_ty, [SHAPE[0], SHAPE[1]], SHARED)
    smem.store(gl.load(x + offsets))
    gl.store(y + offsets, smem.load(REGISTERS))
