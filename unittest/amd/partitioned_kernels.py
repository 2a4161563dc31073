"""Gluon kernels with partitioned values."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd.gfx1250 import PartitionedSharedLayout

_REGISTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
_HALVES = gl.constexpr(PartitionedSharedLayout(2, 1, 0, gl.SwizzledSharedLayout(1, 1, 1, [1, 0])))
_PADDED = gl.constexpr(
    PartitionedSharedLayout(
        2, 16, 0, gl.PaddedSharedLayout.with_identity_for([[64, 4]], [16, 64], [1, 0])
    )
)


@gluon.jit
def short_values(x_ptr, y_ptr):
    """Two values whose padding Triton's own division by 32 pieces cuts off."""
    rows = gl.arange(0, 512, gl.SliceLayout(1, _REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, _REGISTERS))[None, :]
    offsets = rows * 64 + columns
    one = gl.allocate_shared_memory(gl.float16, [512, 64], _PADDED)
    two = gl.allocate_shared_memory(gl.float16, [512, 64], _PADDED)
    one.store(gl.load(x_ptr + offsets))
    two.store(gl.load(y_ptr + offsets))
    gl.store(x_ptr + offsets, one.load(_REGISTERS) + two.load(_REGISTERS))


@gluon.jit
def two_values(x_ptr, y_ptr):
    """Two values of 48 KiB in each of two partitions, which no two of them can share."""
    rows = gl.arange(0, 512, gl.SliceLayout(1, _REGISTERS))[:, None]
    columns = gl.arange(0, 32, gl.SliceLayout(0, _REGISTERS))[None, :]
    offsets = rows * 32 + columns
    one = gl.allocate_shared_memory(gl.float16, [3, 512, 32], _HALVES)
    two = gl.allocate_shared_memory(gl.float16, [3, 512, 32], _HALVES)
    one.index(0).store(gl.load(x_ptr + offsets))
    two.index(1).store(gl.load(y_ptr + offsets))
    total = one.index(0).load(_REGISTERS) + two.index(1).load(_REGISTERS)
    gl.store(x_ptr + offsets, total)
