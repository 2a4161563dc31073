"""Views of ttng operations, field by field, and over the corpus."""

from __future__ import annotations

import pytest
from ir_helpers import CORPUS, NO_CORPUS, check_fields
from triton_ext.backends.nvidia.dialect import mbarrier, mma, tma
from triton_ext.backends.nvidia.dialect.ttng import cga_bases
from triton_ext.ir import parse
from triton_ext.ir.dialects import View

VIEWS: dict[str, type[View]] = {
    getattr(module, name).NAME: getattr(module, name)
    for module in (mbarrier, mma, tma)
    for name in module.__all__
}

CASES = [
    (
        "ttng.async_tma_copy_global_to_local %a[%b, %c] %d, %e, %f {multicast} : i32, i32 -> i32",
        {
            "desc": "%a",
            "coord": ("%b", "%c"),
            "offsets": (),
            "result": "%d",
            "barrier": "%e",
            "pred": "%f",
            "multicast": True,
        },
    ),
    (
        "ttng.async_tma_copy_global_to_local %a[%b, %c, %b] offsets = [%h] %d, %e, %f : "
        "i32, i32 -> i32",
        {"coord": ("%b", "%c", "%b"), "offsets": ("%h",), "result": "%d", "pred": "%f"},
    ),
    (
        "ttng.async_tma_copy_local_to_global %a[%b, %c] %d : i32, i32",
        {"desc": "%a", "coord": ("%b", "%c"), "src": "%d"},
    ),
    (
        "ttng.async_tma_reduce add, %a[%b, %c] %d : i32, i32",
        {"kind": "add", "desc": "%a", "coord": ("%b", "%c"), "src": "%d"},
    ),
    (
        "ttng.async_tma_gather %a[%b, %c] %d, %e, %f : i32, i32, i32, i32, i32, i32",
        {"x_offsets": "%b", "y_offset": "%c", "result": "%d", "barrier": "%e", "pred": "%f"},
    ),
    (
        "ttng.async_tma_scatter %a[%b, %c] %d : i32, i32, i32, i32",
        {"x_offsets": "%b", "y_offset": "%c", "src": "%d"},
    ),
    (
        "ttng.async_tma_store_wait {pendings = 1 : i32, read_only}",
        {"pendings": 1, "read_only": True},
    ),
    ("ttng.init_barrier %a, 128 : i32", {"barrier": "%a", "count": 128}),
    ("ttng.inval_barrier %a : i32", {"barrier": "%a"}),
    ("ttng.barrier_expect %a, 32768, %b : i32", {"barrier": "%a", "size": 32768, "pred": "%b"}),
    (
        "ttng.barrier_expect %a, 8192 {x = 1 : i32}, %b : i32",
        {"barrier": "%a", "size": 8192, "pred": "%b"},
    ),
    ("ttng.wait_barrier %a, %b : i32", {"phase": "%b", "pred": None, "deps": ()}),
    ("ttng.wait_barrier %a, %b, %c : i32", {"phase": "%b", "pred": "%c", "deps": ()}),
    (
        "ttng.wait_barrier %a, %b deps %c, %d : i32, i32, i32",
        {"phase": "%b", "pred": None, "deps": ("%c", "%d")},
    ),
    ("ttng.arrive_barrier %a, 2, %b : i32", {"barrier": "%a", "count": 2, "pred": "%b"}),
    ("ttng.arrive_barrier %a, 2 {x} : i32", {"count": 2, "pred": None}),
    ("ttng.async_copy_mbarrier_arrive %a {noIncrement} : i32", {"no_increment": True}),
    ("ttng.fence_async_shared {bCluster = false}", {"cluster": False}),
    (
        "%r = ttng.warp_group_dot %a, %b, %c, %d {isAsync = true} : i32 * i32 -> i32",
        {"a": "%a", "b": "%b", "c": "%c", "use_c": "%d", "is_async": True, "result": "%r"},
    ),
    (
        "%r = ttng.warp_group_dot %a, %b, %c {inputPrecision = 0 : i32} : i32 * i32 -> i32",
        {"use_c": None, "is_async": False},
    ),
    (
        "%r:2 = ttng.warp_group_dot_wait %a, %b {pendings = 1 : i32} : i32, i32",
        {"inputs": ("%a", "%b"), "pendings": 1, "results": ("%r#0", "%r#1")},
    ),
    (
        "ttng.tc_gen5_mma %a, %b, %c, %d, %e, %f[%g] {is_async} : i32, i32, i32, i32",
        {
            "a": "%a",
            "b": "%b",
            "d": "%c",
            "acc_dep": None,
            "use_d": "%d",
            "pred": "%e",
            "barriers": ("%f",),
            "barrier_preds": ("%g",),
            "is_async": True,
            "token": None,
        },
    ),
    (
        "%r = ttng.tc_gen5_mma %a, %b, %c[%d], %e, %f : i32, i32, i32",
        {"acc_dep": "%d", "use_d": "%e", "pred": "%f", "barriers": (), "token": "%r"},
    ),
    (
        "%r = ttng.tc_gen5_mma %a, %b, %c[], %d, %e, %f[%g], %h[%g] : i32, i32, i32, i32, i32",
        {"acc_dep": None, "use_d": "%d", "barriers": ("%f", "%h"), "barrier_preds": ("%g", "%g")},
    ),
    (
        "ttng.tc_gen5_mma_scaled %a, %b, %c, %d, %e, %f, %g lhs = e4m3 rhs = e4m3, %h[%g] : "
        "i32, i32, i32, i32, i32, i32",
        {
            "d": "%c",
            "a_scale": "%d",
            "b_scale": "%e",
            "use_d": "%f",
            "pred": "%g",
            "barriers": ("%h",),
            "barrier_preds": ("%g",),
        },
    ),
    ("ttng.tc_gen5_commit %a, %b : i32", {"barrier": "%a", "pred": "%b", "descs": ()}),
    (
        "ttng.tc_gen5_commit %a descs %b, %c : i32, i32, i32",
        {"pred": None, "descs": ("%b", "%c")},
    ),
    ("%r = ttng.tmem_alloc : () -> i32", {"src": None, "result": "%r", "token": None}),
    (
        "%r, %t = ttng.tmem_alloc %a : (i32) -> (i32, !ttg.async.token)",
        {"src": "%a", "result": "%r", "token": "%t"},
    ),
    ("%r = ttng.tmem_load %a : i32 -> i32", {"src": "%a", "dep": None, "others": ()}),
    ("%r, %t = ttng.tmem_load %a[%b] : i32 -> i32", {"dep": "%b", "others": ("%t",)}),
    (
        "ttng.tmem_store %a, %b, %c : i32 -> i32",
        {"src": "%a", "dst": "%b", "dep": None, "pred": "%c", "token": None},
    ),
    (
        "%r = ttng.tmem_store %a, %b[%c], %d : i32 -> i32",
        {"dst": "%b", "dep": "%c", "pred": "%d", "token": "%r"},
    ),
]


@pytest.mark.parametrize(("text", "fields"), CASES, ids=[text for text, _ in CASES])
def test_fields(text, fields):
    arguments = ", ".join(f"%{name}: i32" for name in "abcdefgh")
    module = parse(f"tt.func @f({arguments}) {{\n  {text}\n  tt.return\n}}\n")
    check_fields(VIEWS, module, fields)
    assert {name for text, _ in CASES for name in VIEWS if f"{name} " in text} == set(VIEWS)


def test_corpus():
    files = sorted(CORPUS.glob("*/cuda-*/*.ttgir"))
    if not files:
        pytest.skip(NO_CORPUS)
    found = set()
    for path in files[::3]:
        for op in parse(path.read_text(), path.name).walk():
            if op.name in VIEWS:
                found.add(op.name)
                view = VIEWS[op.name].match(op)
                assert view is not None
                op._touch()
                assert VIEWS[op.name].match(op) == view
    assert len(found) > 15


def test_cga_bases():
    module = parse(
        "#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, "
        "elementBitWidth = 16, CGALayout = [[1, 0], [0, 1]]}>\nmodule {\n}\n"
    )
    type_ = "!ttg.memdesc<128x64xf16, {}, #ttg.shared_memory, mutable>"
    assert cga_bases(type_.format("#shared"), module) == [[1, 0], [0, 1]]
    plain = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    assert cga_bases(type_.format(plain), module) == []
    split = plain.replace("}>", ", CTAsPerCGA = [2, 1], CTASplitNum = [2, 1], CTAOrder = [1, 0]}>")
    assert cga_bases(type_.format(split), module) == [[1, 0]]
