"""Gluon kernels of the tests of triton_ext.gluon.amd; Triton reads their source from this file."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_ext.gluon import amd as xamd


@gluon.jit
def copy_block(x_ptr, y_ptr, height, width, row, column, LAYOUT: gl.constexpr):
    """Copies one block, a load and a store."""
    x_desc = xamd.make_tensor_descriptor(x_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [16, 32], LAYOUT)
    xamd.async_load(x_desc, [row, column], smem)
    xamd.async_wait()
    xamd.async_store(y_desc, [row, column], smem)
    xamd.async_wait(0)


@gluon.jit
def copy_rows(
    x_ptr, y_ptr, rows_ptr, height, width, column,
    LAYOUT: gl.constexpr, IDX_LAYOUT: gl.constexpr, SHORT: gl.constexpr,
):  # fmt: skip
    """Gathers rows and scatters them to where they came from."""
    x_desc = xamd.make_tensor_descriptor(x_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [16, 32], LAYOUT)
    rows = gl.load(rows_ptr + gl.arange(0, 16, layout=IDX_LAYOUT))
    if SHORT:
        rows = rows.to(gl.int16)
    xamd.async_gather(x_desc, rows, column, smem)
    xamd.async_wait(0)
    xamd.async_scatter(y_desc, rows, column, smem)
    xamd.async_wait(0)


@gluon.jit
def move(x_ptr, y_ptr, height, width, on, LAYOUT: gl.constexpr):
    """Loads through a descriptor that is moved and switched, and one that is bounded.

    Arguments that are ``None`` are as if they were left out.
    """
    x_desc = xamd.make_tensor_descriptor(x_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [2, 16, 32], LAYOUT)
    moved = xamd.update_tensor_descriptor(x_desc, [2, 4], None, on, clamp_bounds=True)
    bounded = xamd.update_tensor_descriptor(x_desc, None, [5, 6], None)
    xamd.async_load(moved, [0, 0], smem.index(0))
    xamd.async_load(bounded, [0, 0], smem.index(1), warp_used_hint=3)
    xamd.async_wait(1)
    if on:
        xamd.async_store(y_desc, [0, 0], smem.index(0))
    xamd.async_wait(0)
    xamd.async_store(y_desc, [16, 0], smem.index(1))
    xamd.async_wait(0)


@gluon.jit
def fused(x_ptr, y_ptr, height, width, LAYOUT: gl.constexpr):
    """Two loads of one instruction."""
    x_desc = xamd.make_tensor_descriptor(x_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [height, width], [width, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [2, 16, 32], LAYOUT)
    second = xamd.update_tensor_descriptor(x_desc, add_offsets=[16, 0], clamp_bounds=True)
    xamd.async_load_fused([(x_desc, smem.index(0), 3), (second, smem.index(1), 12)])
    xamd.async_wait(0)
    xamd.async_store(y_desc, [0, 0], smem.index(0))
    xamd.async_store(y_desc, [16, 0], smem.index(1))
    xamd.async_wait(0)


@gluon.jit
def copy_any(
    p, i,
    SHAPE: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr, IDX_LAYOUT: gl.constexpr,
    ROWS: gl.constexpr, TYPE: gl.constexpr, KIND: gl.constexpr, COLUMN: gl.constexpr,
):  # fmt: skip
    """One copy, of whatever it is given."""
    desc = xamd.make_tensor_descriptor(p, [1000, 1000], [1000, 1], BLOCK, LAYOUT)
    smem = gl.allocate_shared_memory(p.dtype.element_ty, SHAPE, LAYOUT)
    if KIND == "load":
        xamd.async_load(desc, [0, COLUMN], smem)
    elif KIND == "store":
        xamd.async_store(desc, [0, COLUMN], smem)
    else:
        rows = gl.load(i + gl.arange(0, ROWS, layout=IDX_LAYOUT)).to(TYPE)
        if KIND == "gather":
            xamd.async_gather(desc, rows, COLUMN, smem)
        else:
            xamd.async_scatter(desc, rows, COLUMN, smem)
    xamd.async_wait(0)


@gluon.jit
def refused(p, n, LAYOUT: gl.constexpr, KIND: gl.constexpr, STAGE: gl.constexpr):
    """Arguments of the wrong kind."""
    desc = xamd.make_tensor_descriptor(p, [100, 100], [100, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(p.dtype.element_ty, [16, 32], LAYOUT)
    other = gl.allocate_shared_memory(p.dtype.element_ty, [2, 16, 32], LAYOUT)
    if KIND == "base":
        xamd.make_tensor_descriptor(n, [100, 100], [100, 1], [16, 32], LAYOUT)
    elif KIND == "sizes":
        xamd.make_tensor_descriptor(p, [100], [100, 1], [16, 32], LAYOUT)
    elif KIND == "stride":
        xamd.make_tensor_descriptor(p, [100, 100], [1, 100], [16, 32], LAYOUT)
    elif KIND == "no descriptor":
        xamd.async_load(p, [0, 0], smem)
    elif KIND == "offsets":
        xamd.async_load(desc, [0], smem)
    elif KIND == "no offsets":
        xamd.async_store(desc, n, smem)
    elif KIND == "no smem":
        xamd.async_load(desc, [0, 0], p)
    elif KIND == "shape":
        xamd.async_load(desc, [0, 0], other)
    elif KIND == "swapped":
        xamd.async_store(smem, [0, 0], desc)
    elif KIND == "rows":
        xamd.async_gather(desc, n, 0, smem)
    elif KIND == "wait":
        xamd.async_wait(n)
    elif KIND == "wait -1":
        xamd.async_wait(-1)
    elif KIND == "wait 64":
        xamd.async_wait(64)
    elif KIND == "stage":
        xamd.async_wait_stage(3)
    elif KIND == "behind":
        xamd.async_wait_stage(STAGE, behind=8)
    elif KIND == "instructions":
        xamd.async_wait_instructions(64, STAGE)
    elif KIND == "bounds":
        xamd.update_tensor_descriptor(desc, set_bounds=[1])
    elif KIND == "nothing":
        xamd.update_tensor_descriptor(desc)
    elif KIND == "clamp":
        xamd.update_tensor_descriptor(desc, pred=True, clamp_bounds=True)
    xamd.async_wait(0)
