"""The table of memory effects: rows of each kind, and the safe direction for what is in no row."""

from __future__ import annotations

import pytest
from triton_ext.analysis.memory_effects import (
    Access,
    Barrier,
    Effects,
    Kind,
    Memory,
    effects_of,
    known_names,
    row_of,
)
from triton_ext.host import capabilities
from triton_ext.ir import Operation, parse

HEAD = """
#smem = #ttg.shared_memory
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#flat = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#nvmma = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 16}>
#tmem = #ttng.tensor_memory_encoding<blockM = 128, blockN = 32, colStride = 1>
#blocked = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1],
                         order = [1, 0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = WARPS : i32} {
  tt.func @f(%buf: !ttg.memdesc<128x32xf16, #nvmma, #smem, mutable>,
             %t: tensor<128x32xf16, #blocked>, %offs: tensor<128x32xi32, #blocked>,
             %ptrs: tensor<128x32x!tt.ptr<f16>, #blocked>, %ptr: !tt.ptr<f32>, %x: f32, %p: i1,
             %bar: !ttg.memdesc<1xi64, #flat, #smem, mutable>, %i: i32,
             %desc: !tt.tensordesc<128x32xf16, #nvmma>,
             %acc: !ttg.memdesc<128x32xf32, #tmem, #ttng.tensor_memory, mutable>) {
    BODY
    tt.return
  }
}
"""
BUF = "!ttg.memdesc<128x32xf16, #nvmma, #smem, mutable>"
BAR = "!ttg.memdesc<1xi64, #flat, #smem, mutable>"
ACC = "!ttg.memdesc<128x32xf32, #tmem, #ttng.tensor_memory, mutable>"
TENSOR = "tensor<128x32xf16, #blocked>"
DESC = "!tt.tensordesc<128x32xf16, #nvmma>"


def operation(text: str, warps: int = 4) -> Operation:
    """The first operation of a function's body."""
    module = parse(HEAD.replace("BODY", text).replace("WARPS", str(warps)))
    return next(op for op in module.walk() if op.name == "tt.func").regions[0].blocks[0].ops[0]


def said(effects: Effects) -> list[str]:
    """The effects in words."""
    words = []
    for effect in effects.effects:
        names = [each.name.lower() for each in Access if each in effect.access]
        kind = "" if effect.kind is Kind.GENERIC else f" {effect.kind.value}"
        words.append(f"{'+'.join(names)} {effect.memory.value} {effect.value.name}{kind}")
    return words


CASES = {
    f"%r = ttg.local_load %buf : {BUF} -> {TENSOR}": ["read shared %buf"],
    f"ttg.local_store %t, %buf : {TENSOR} -> {BUF}": ["write shared %buf"],
    f"%r = ttg.local_alloc %t : ({TENSOR}) -> {BUF}": ["write+allocate shared %r"],
    f"%r = ttg.local_alloc : () -> {BUF}": ["allocate shared %r"],
    f"ttg.local_dealloc %buf : {BUF}": ["free shared %buf"],
    "%r = ttg.async_copy_global_to_local %ptrs, %buf : tensor<128x32x!tt.ptr<f16>, #blocked>"
    " -> <128x32xf16, #nvmma, #smem, mutable>": ["read global %ptrs", "write shared %buf"],
    "%r = amdg.buffer_load_to_local %ptr[%offs] into %buf : <f32>[tensor<128x32xi32, #blocked>]"
    " -> <128x32xf16, #nvmma, #smem, mutable>": ["read global %ptr", "write shared %buf"],
    f"amdg.buffer_store %t, %ptr[%offs] : {TENSOR}": ["write global %ptr"],
    f"%r = amdg.async_tdm_copy_global_to_local %desc into %buf, barrier = %bar : {DESC}, {BAR}"
    f" -> {BUF}": ["read global %desc", "write shared %buf", "write shared %bar barrier"],
    f"ttng.async_tma_copy_global_to_local %desc[%i, %i] %buf, %bar, %p : {DESC}, {BAR} -> {BUF}": [
        "read global %desc",
        "write shared %buf async",
        "write shared %bar barrier",
    ],
    f"ttng.async_tma_copy_local_to_global %desc[%i, %i] %buf : {DESC}, {BUF}": [
        "read+write global %desc",
        "read shared %buf async",
    ],
    f"ttng.init_barrier %bar, 1 : {BAR}": ["write shared %bar"],
    f"ttng.wait_barrier %bar, %i deps %buf : {BAR}, {BUF}": [
        "read+write shared %bar barrier",
        "hold shared %buf",
    ],
    f"ttng.tc_gen5_mma %buf, %buf, %acc, %p, %p, %bar[%p] : {BUF}, {BUF}, {ACC}, {BAR}": [
        "read shared %buf async",
        "read shared %buf async",
        "read+write tensor %acc",
        "write shared %bar barrier",
    ],
    "tt.store %ptr, %x : !tt.ptr<f32>": ["write global %ptr"],
    "%r = arith.addi %i, %i : i32": [],
    f"foreign.operation %buf, %i : {BUF}, i32": ["read+write shared %buf"],
    '%r = "tt.extern_elementwise"(%x) <{libname = "", libpath = "", pure = true, '
    'symbol = "f"}> : (f32) -> f32': [],
    f'%r = "ttg.inline_asm"(%buf) <{{asm_string = "", constraints = "", pure = false}}> : '
    f"({BUF}) -> i32": ["read+write shared %buf"],
    # The generic form has the mbarrier in front of the buffer.
    '"ttng.async_tma_copy_global_to_local"(%desc, %i, %i, %bar, %buf, %p) '
    f"<{{operandSegmentSizes = array<i32: 1, 2, 0, 1, 1, 1>}}> : ({DESC}, i32, i32, {BAR}, {BUF}, "
    "i1) -> ()": ["read global %desc", "read+write shared %bar", "read+write shared %buf"],
}


@pytest.mark.parametrize("text", CASES)
def test_effects_on_values(text):
    """Each case's operation has the effects that the case says, in their order."""
    assert said(effects_of(operation(text))) == CASES[text]


@pytest.mark.parametrize(
    ("text", "warps", "barrier"),
    [
        ("ttg.barrier local", 4, Barrier.BEFORE),
        ("ttg.barrier local|global_read", 4, Barrier.BEFORE),
        ("ttg.barrier all", 4, Barrier.BEFORE),
        ("ttg.barrier global_read|global_write", 4, Barrier(0)),
        ('"ttg.barrier"() <{addrSpace = 3 : i32}> : () -> ()', 4, Barrier.BEFORE),
        ('"ttg.barrier"() <{addrSpace = 6 : i32}> : () -> ()', 4, Barrier(0)),
        ("gpu.barrier", 4, Barrier.BEFORE),
        ("ttng.cluster_barrier {relaxed = true}", 4, Barrier.BEFORE | Barrier.CLUSTER),
        (
            "%r = tt.atomic_rmw fadd, acq_rel, gpu, %ptr, %x, %p : (!tt.ptr<f32>, f32, i1) -> f32",
            4,
            Barrier.BEFORE | Barrier.AFTER,
        ),
        (
            "%r = tt.atomic_rmw fadd, acquire, gpu, %ptr, %x, %p : (!tt.ptr<f32>, f32, i1) -> f32",
            4,
            Barrier.AFTER,
        ),
        (
            "%r = tt.atomic_rmw fadd, relaxed, gpu, %ptr, %x, %p : (!tt.ptr<f32>, f32, i1) -> f32",
            4,
            Barrier(0),
        ),
        (
            '%r = "tt.atomic_rmw"(%ptr, %x, %p) <{atomic_rmw_op = 5 : i32, scope = 1 : i32, '
            "sem = 3 : i32}> : (!tt.ptr<f32>, f32, i1) -> f32",
            4,
            Barrier.BEFORE,
        ),
        (f"ttng.warp_group_dot_wait %t {{pendings = 0 : i32}} : {TENSOR}", 4, Barrier(0)),
        (f"ttng.warp_group_dot_wait %t {{pendings = 0 : i32}} : {TENSOR}", 8, Barrier.BEFORE),
        (
            f"ttng.warp_group_dot_wait %t {{pendings = 0 : i32, warpGroupLocal}} : {TENSOR}",
            8,
            Barrier(0),
        ),
    ],
)
def test_barriers(text, warps, barrier):
    """Threads meet where the operation says it, and nowhere for other address spaces."""
    assert effects_of(operation(text, warps)).barrier == barrier


def test_waits_and_views():
    """Waits are marked, and views have no effects."""
    assert effects_of(operation("%r = ttg.async_wait {num = 0 : i32}")).waits
    assert effects_of(operation("ttng.async_tma_store_wait {pendings = 0 : i32}")).waits
    view = effects_of(
        operation(f"%r = ttg.memdesc_trans %buf {{order = array<i32: 1, 0>}} : {BUF} -> {BUF}")
    )
    assert view.is_view
    assert view.effects == ()


def test_an_unknown_operation_is_only_marked_where_it_names_memory():
    """Arithmetic needs no row."""
    assert effects_of(operation("%r = arith.addi %i, %i : i32")).is_known
    assert not effects_of(operation(f"foreign.operation %buf : {BUF}")).is_known


def test_hosts_have_the_features_that_barriers_need():
    rows = [row for name in known_names() if (row := row_of(name)) is not None]
    needed = {row.barrier_needs for row in rows if row.barrier_needs}
    assert needed == {"arrival-barriers", "ordering-barriers"}
    assert needed <= capabilities().keys()


def test_names():
    """Rows of the core and of both vendors are there."""
    assert {"ttg.local_load", "ttng.wait_barrier", "amdg.wait_barrier", "tt.load"} <= known_names()
    assert (
        effects_of(operation("tt.store %ptr, %x : !tt.ptr<f32>")).effects[0].memory is Memory.GLOBAL
    )
