"""Small TTGIR kernels for Hopper: a source and a target of 64 x 64, and one line an operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from triton_ext.emulator import EmulationError, Program

__all__ = ["ACC", "BAR", "BLOCKED", "BUFFER", "DESC", "Descriptor", "kernel", "message", "run"]

BUFFER = "!ttg.memdesc<64x64xf16, #s, #smem, mutable>"
BAR = "!ttg.memdesc<1xi64, #b, #smem, mutable>"
DESC = "!tt.tensordesc<64x64xf16, #s>"
ACC = "tensor<64x64xf32, #mma>"
BLOCKED = "tensor<64x64xf32, #blocked>"
HEAD = """#blocked = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#line = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#s = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#f = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 32}>
#b = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = CTAS : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
"""  # noqa: E501 - TTGIR

# One line each; `$load a bar` stands for `load` with `a` and `bar`.
MACROS = {
    "alloc": f"%{{0}} = ttg.local_alloc : () -> {BUFFER}",
    "bar": f"%{{0}} = ttg.local_alloc : () -> {BAR}\nttng.init_barrier %{{0}}, {{1}} : {BAR}",
    "raw": f"%{{0}} = ttg.local_alloc : () -> {BAR}",
    "expect": f"ttng.barrier_expect %{{0}}, {{1}}, %true : {BAR}",
    "arrive": f"ttng.arrive_barrier %{{0}}, {{1}} : {BAR}",
    "wait": f"ttng.wait_barrier %{{0}}, %c{{1}} : {BAR}",
    "inval": f"ttng.inval_barrier %{{0}} : {BAR}",
    "load": (
        "ttng.async_tma_copy_global_to_local %x[%{2}, %c0] %{0}, %{1}, %true : "
        f"{DESC}, {BAR} -> {BUFFER}"
    ),
    "store": f"ttng.async_tma_copy_local_to_global %y[%{{1}}, %c0] %{{0}} : {DESC}, {BUFFER}",
    "stores": "ttng.async_tma_store_wait {{pendings = {0} : i32{1}}}",
    "read": f"%{{0}} = ttg.local_load %{{1}} : {BUFFER} -> tensor<64x64xf16, #blocked>",
    "write": f"ttg.local_store %{{1}}, %{{0}} : tensor<64x64xf16, #blocked> -> {BUFFER}",
    "fence": "ttng.fence_async_shared {{bCluster = false}}",
    "dot": (
        "%{0} = ttng.warp_group_dot %{1}, %{2}, %{3} {{inputPrecision = 0 : i32, isAsync = true}} "
        f": {BUFFER} * {BUFFER} -> {ACC}"
    ),
    "dots": f"%{{0}} = ttng.warp_group_dot_wait %{{1}} {{{{pendings = {{2}} : i32}}}} : {ACC}",
    "half": f"%{{0}} = arith.truncf %{{1}} : {ACC} to tensor<64x64xf16, #mma>",
    "put": f"ttg.local_store %{{1}}, %{{0}} : tensor<64x64xf16, #mma> -> {BUFFER}",
}


def kernel(body, ctas=1, pointer=False):
    """A kernel over a source %x and a target %y of 64 x 64; %p is the address of the source."""
    lines = ["%true = arith.constant true", f"%zero = arith.constant dense<0.0> : {ACC}"]
    lines.append("%ones = arith.constant dense<1.0> : tensor<64x64xf16, #blocked>")
    lines += [f"%c{n} = arith.constant {n} : i32" for n in (0, 1, 32, 64)]
    lines += ["%before = arith.constant -32 : i32"]
    for line in body.strip().splitlines():
        line = line.strip()
        if line.startswith("$"):
            name, *words = line[1:].split()
            line = MACROS[name].format(*words, *[""] * 4)
        lines.append(line)
    parameters = ", ".join(
        f"%{name}: {DESC}, %{name}.shape.0: i32, %{name}.shape.1: i32, "
        f"%{name}.stride.0: i64, %{name}.stride.1: i64"
        for name in ("x", "y")
    )
    if pointer:
        parameters += ", %p: !tt.ptr<f16>"
    text = "\n".join(lines)
    head = HEAD.replace("CTAS", str(ctas))
    return f"{head}tt.func public @kernel({parameters}) {{\n{text}\ntt.return\n}}\n}}\n"


@dataclass
class Descriptor:
    """What the emulator asks of a descriptor of the host."""

    base: object
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"


def run(body, x=None, *, padding="zero", seed=0, ctas=1, pointer=False):
    """What a kernel leaves in y, which is 1 everywhere at first; x counts from 0 by default."""
    if x is None:
        x = np.arange(64 * 64, dtype=np.float16).reshape(64, 64) % 61
    y = np.ones((64, 64), np.float16)
    descriptors = [
        Descriptor(array, list(array.shape), [array.shape[1], 1], [64, 64], padding)
        for array in (x, y)
    ]
    arguments = [*descriptors, x] if pointer else descriptors
    Program(kernel(body, ctas, pointer)).run((1,), arguments, seed)
    return x, y


def message(body, **options):
    with pytest.raises(EmulationError) as caught:
        run(body, **options)
    return str(caught.value)
