"""Gluon kernels of the selftest for gfx1250: the tensor data mover, and partitions of LDS."""

from __future__ import annotations

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from triton_ext.gluon import amd as xamd
from triton_ext.selftest.kernels import target

__all__ = ["compile_block", "compile_partitioned", "compile_rows", "copy_over_numpy"]

_SHAPE = [16, 32]


@gluon.jit
def copy_block(x_ptr, y_ptr, size, row, LAYOUT: gl.constexpr):
    """Copies a block of a matrix, through LDS."""
    x_desc = xamd.make_tensor_descriptor(x_ptr, [size, size], [size, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [size, size], [size, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [16, 32], LAYOUT)
    xamd.async_load(x_desc, [row, 2], smem)
    xamd.async_wait(0)
    xamd.async_store(y_desc, [row, 2], smem)
    xamd.async_wait(0)


@gluon.jit
def copy_rows(x_ptr, y_ptr, rows_ptr, size, LAYOUT: gl.constexpr, ROWS: gl.constexpr):
    """Gathers rows and scatters them to where they came from."""
    x_desc = xamd.make_tensor_descriptor(x_ptr, [size, size], [size, 1], [16, 32], LAYOUT)
    y_desc = xamd.make_tensor_descriptor(y_ptr, [size, size], [size, 1], [16, 32], LAYOUT)
    smem = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [16, 32], LAYOUT)
    rows = gl.load(rows_ptr + gl.arange(0, 16, layout=ROWS))
    xamd.async_gather(x_desc, rows, 0, smem)
    xamd.async_wait(0)
    xamd.async_scatter(y_desc, rows, 0, smem)
    xamd.async_wait(0)


@gluon.jit
def add_halves(x_ptr, y_ptr, LAYOUT: gl.constexpr, REGISTERS: gl.constexpr):
    """Two values, each in two physical partitions of LDS."""
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 32, gl.SliceLayout(0, REGISTERS))[None, :]
    offs = rows * 32 + columns
    one = gl.allocate_shared_memory(gl.float16, [64, 32], LAYOUT)
    two = gl.allocate_shared_memory(gl.float16, [64, 32], LAYOUT)
    one.store(gl.load(x_ptr + offs))
    two.store(gl.load(y_ptr + offs))
    gl.store(x_ptr + offs, one.load(REGISTERS) + two.load(REGISTERS))


def _compile(kernel: Any, signature: dict[str, str], values: dict[str, Any], arch: str) -> Any:
    names = list(signature)
    signature = signature | dict.fromkeys(values, "constexpr")
    constants = {(len(names) + i,): value for i, value in enumerate(values.values())}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*"
    }
    source = GluonASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=target(arch))


def compile_block(arch: str) -> dict[str, Any]:
    """Compiles the copy of a block; returns what each stage left behind."""
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "size": "i32", "row": "i32"}
    # Stores of 3.6 take no padding.
    layout = {"LAYOUT": xamd.smem_layout(_SHAPE, 16, False)}
    return dict(_compile(copy_block, signature, layout, arch).asm)


def compile_rows(arch: str) -> dict[str, Any]:
    """Compiles the gather and scatter; returns what each stage left behind."""
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "rows_ptr": "*i32", "size": "i32"}
    layouts = {"LAYOUT": xamd.smem_layout(_SHAPE, 16, False), "ROWS": xamd.index_layout(16, 4)}
    return dict(_compile(copy_rows, signature, layouts, arch).asm)


def compile_partitioned(arch: str) -> tuple[dict[str, Any], int]:
    """Compiles the sum of partitioned values; returns its stages and its bytes of LDS."""
    layouts = {
        "LAYOUT": xamd.partitioned_layout([64, 32], 16, 0),
        "REGISTERS": gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]),
    }
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16"}
    compiled = _compile(add_halves, signature, layouts, arch)
    return dict(compiled.asm), int(compiled.metadata.shared)


def copy_over_numpy() -> int:
    """Runs the copy of a block in the emulator; returns how many elements came out wrong."""
    import numpy as np

    x: Any = np.arange(2500, dtype=np.float32).reshape(50, 50)
    y = np.zeros_like(x)
    xamd.emulated(copy_block)[1,](x, y, 50, 1, xamd.smem_layout(_SHAPE, 32, False))
    wanted = np.zeros_like(x)
    wanted[1:17, 2:34] = x[1:17, 2:34]
    return int((y != wanted).sum())
