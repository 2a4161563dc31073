"""Barriers against those of Triton's own pass, over pairs of operations and random programs."""

from __future__ import annotations

import itertools
import random

import pytest
from triton_ext.host.process import find_library
from triton_ext.ir import parse
from triton_ext.tools import opt

BUFFER = "!ttg.memdesc<128x64xf16, #nvmma, #smem, mutable>"
MBARRIER = "!ttg.memdesc<1xi64, #flat, #smem, mutable>"
TRANSPOSED = "!ttg.memdesc<64x128xf16, #nvmmat, #smem, mutable>"
ACCUMULATOR = "!ttg.memdesc<128x128xf32, #tmem, #ttng.tensor_memory, mutable>"
DESC = "!tt.tensordesc<128x64xf16, #nvmma>"
TENSOR = "tensor<128x64xf16, #row>"
OPERATIONS = (
    f"ttng.init_barrier %bar, 1 : {MBARRIER}",
    f"ttng.inval_barrier %bar : {MBARRIER}",
    f"ttng.barrier_expect %bar, 16384, %true : {MBARRIER}",
    f"ttng.wait_barrier %bar, %i deps %buf : {MBARRIER}, {BUFFER}",
    f"ttng.arrive_barrier %bar, 1 : {MBARRIER}",
    f"ttng.async_tma_copy_global_to_local %desc[%i, %i] %buf, %bar, %true : {DESC}, {MBARRIER} -> "
    + BUFFER,
    f"ttng.async_tma_copy_local_to_global %desc[%i, %i] %buf : {DESC}, {BUFFER}",
    "ttng.async_tma_store_wait {pendings = 0 : i32}",
    "%r# = ttg.async_wait {num = 0 : i32}",
    "%r# = ttg.async_copy_global_to_local %p, %buf : tensor<128x64x!tt.ptr<f16>, #row> -> "
    "<128x64xf16, #nvmma, #smem, mutable>",
    f"ttng.tc_gen5_mma %buf, %buft, %acc, %true, %true : {BUFFER}, {TRANSPOSED}, {ACCUMULATOR}",
    f"ttng.tc_gen5_mma %buf, %buft, %acc, %true, %true, %bar[%true] {{is_async}} : {BUFFER}, "
    f"{TRANSPOSED}, {ACCUMULATOR}, {MBARRIER}",
    f"ttng.tc_gen5_commit %bar : {MBARRIER}",
    f"%r# = ttg.local_load %buf : {BUFFER} -> {TENSOR}",
    f"ttg.local_store %d, %buf : {TENSOR} -> {BUFFER}",
    "ttng.fence_async_shared {bCluster = false}",
    "ttg.barrier local",
    "%r# = tt.atomic_rmw add, acquire, gpu, %ptr, %i, %true : (!tt.ptr<i32>, i32, i1) -> i32",
    "%r# = tt.atomic_rmw add, acq_rel, gpu, %ptr, %i, %true : (!tt.ptr<i32>, i32, i1) -> i32",
)
HEAD = f"""
#row = #ttg.blocked<{{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],
                     order = [1, 0]}}>
#nvmma = #ttg.nvmma_shared<{{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}}>
#nvmmat = #ttg.nvmma_shared<{{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}}>
#flat = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
#tmem = #ttng.tensor_memory_encoding<blockM = 128, blockN = 128, colStride = 1>
#smem = #ttg.shared_memory
module attributes {{"ttg.num-warps" = 4 : i32, "ttg.num-ctas" = 1 : i32,
                   "ttg.threads-per-warp" = 32 : i32, ttg.target = "cuda:100"}} {{
  tt.func public @f(%p: tensor<128x64x!tt.ptr<f16>, #row>, %ptr: !tt.ptr<i32>, %i: i32, %c: i1,
                    %d: {TENSOR}, %desc: {DESC}) {{
    %true = arith.constant true
    %buf = ttg.local_alloc : () -> {BUFFER}
    %bar = ttg.local_alloc : () -> {MBARRIER}
    %acc = ttng.tmem_alloc : () -> {ACCUMULATOR}
    %buft = ttg.memdesc_trans %buf {{order = array<i32: 1, 0>}} : {BUFFER} -> {TRANSPOSED}
"""
TAIL = f"""
    ttg.local_dealloc %bar : {MBARRIER}
    ttg.local_dealloc %buf : {BUFFER}
    tt.return
  }}
}}
"""

pytestmark = pytest.mark.skipif(
    find_library().version < "3.9", reason="Triton's bindings have this pass from 3.9 on"
)


def module_of(blocks: list[list[str]], branches: list[str]) -> str:
    """A module of these operations, one list for each block."""
    numbers = itertools.count()
    text = HEAD
    for block, operations in enumerate(blocks):
        text += f"  ^b{block}:\n" if block else ""
        for operation in operations:
            text += f"    {operation.replace('%r#', f'%r{next(numbers)}')}\n"
        text += f"    {branches[block]}\n" if branches[block] else ""
    return text + TAIL


def outputs(texts, tmp_path, capsys, *passes):
    """The text of each module behind these passes."""
    file = tmp_path / "in.mlir"
    file.write_text("// -----\n".join(texts))
    assert opt.main([str(file), "-split-input-file", *passes]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.split("// -----\n")


def compare(texts, tmp_path, capsys):
    """Checks that both put barriers in front of the same operations."""
    place = "--allocate-shared-memory-nv=compute-capability=100"
    tensor = "--triton-tensor-memory-allocation"
    placed = outputs(texts, tmp_path, capsys, "--pass-provider=host", place, tensor)
    membar = "--triton-nvidia-gpu-membar=compute-capability=100"
    theirs = outputs(placed, tmp_path, capsys, "--pass-provider=host", membar)
    ours = outputs(placed, tmp_path, capsys, "-test-print-membar")
    assert len(theirs) == len(ours) == len(texts)
    for text, mine, its in zip(placed, ours, theirs, strict=True):
        names = [[op.name for op in parse(found).walk()] for found in (mine, its)]
        assert names[0] == names[1], text


def test_pairs(tmp_path, capsys):
    """Every operation behind every other one."""
    pairs = itertools.product(OPERATIONS, OPERATIONS)
    compare([module_of([list(pair)], [""]) for pair in pairs], tmp_path, capsys)


def test_random_programs(tmp_path, capsys):
    """Random operations in a branch, a loop, and in front of and behind them."""
    choose = random.Random(7)
    branches = ["cf.cond_br %c, ^b1, ^b2", "cf.br ^b2", "cf.br ^b3", "cf.cond_br %c, ^b3, ^b4", ""]
    texts = []
    for _ in range(80):
        blocks = [choose.choices(OPERATIONS, k=choose.randint(0, 3)) for _ in branches]
        texts.append(module_of(blocks, branches))
    compare(texts, tmp_path, capsys)
