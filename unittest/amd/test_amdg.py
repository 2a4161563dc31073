"""Views of amdg operations in the forms of all hosts."""

from __future__ import annotations

import re

import pytest
from ir_helpers import CORPUS, NO_CORPUS, check_fields
from triton_ext.backends.amd.dialect import amdg
from triton_ext.ir import parse
from triton_ext.ir.dialects import View

VIEWS: dict[str, type[View]] = {
    getattr(amdg, name).NAME: getattr(amdg, name) for name in amdg.__all__ if name != "TdmCopy"
}
VIEWS[amdg.TdmWaitOp.INTRINSIC] = amdg.TdmWaitOp

CASES = [
    # 3.8 and newer, 3.7, 3.6.
    (
        "%r = amdg.async_tdm_copy_global_to_local %a into %b {warp_used_hint = 3 : i32} : "
        "i32 -> i32",
        {
            "desc": "%a",
            "indices": (),
            "buffer": "%b",
            "pred": None,
            "barrier": None,
            "token": "%r",
            "warp_used_hint": 3,
        },
    ),
    (
        "%r = amdg.async_tdm_copy_global_to_local %a[%b, %c] into %d, %e : i32 -> i32",
        {"indices": ("%b", "%c"), "buffer": "%d", "pred": "%e", "warp_used_hint": None},
    ),
    (
        "%r = amdg.async_tdm_copy_global_to_local %a[%b, %c] into %d, %e, barrier = %f : "
        "i32, i32 -> i32",
        {"buffer": "%d", "pred": "%e", "barrier": "%f"},
    ),
    (
        "amdg.async_tdm_copy_local_to_global %a[%b, %c] from %d : i32 -> i32",
        {"indices": ("%b", "%c"), "buffer": "%d", "token": None},
    ),
    (
        "%r = amdg.async_tdm_copy_local_to_global %a from %b : i32 -> i32",
        {"desc": "%a", "buffer": "%b", "token": "%r"},
    ),
    (
        "%r = amdg.async_tdm_fused_copy_global_to_local %a, %b into %c, %d "
        "{warp_used_hints = array<i32: 3, 12>} : i32, i32 -> i32, i32",
        {"descs": ("%a", "%b"), "buffers": ("%c", "%d"), "warp_used_hints": (3, 12)},
    ),
    (
        "%r = amdg.async_tdm_gather %a[%b] to %c : i32, i32 -> i32",
        {"row_indices": "%b", "column": None, "buffer": "%c", "token": "%r"},
    ),
    (
        "%r = amdg.async_tdm_gather %a[%b, %c] to %d : i32, i32 -> i32",
        {"row_indices": "%b", "column": "%c", "buffer": "%d"},
    ),
    (
        "%r = amdg.async_tdm_scatter %a[%b] from %c : i32, i32 -> i32",
        {"row_indices": "%b", "buffer": "%c"},
    ),
    (
        "%r = amdg.update_tensor_descriptor %a add_offsets = [%b, %c] pred = %d {clamp_bounds} "
        ": i32",
        {
            "desc": "%a",
            "add_offsets": ("%b", "%c"),
            "set_bounds": (),
            "pred": "%d",
            "clamp_bounds": True,
            "result": "%r",
        },
    ),
    (
        "%r = amdg.update_tensor_descriptor %a set_bounds = [%b, %c] : i32",
        {"add_offsets": (), "set_bounds": ("%b", "%c"), "pred": None, "clamp_bounds": False},
    ),
    ("%r = amdg.update_tensor_descriptor %a pred = %b : i32", {"add_offsets": (), "pred": "%b"}),
    (
        "%r = amdg.async_tdm_wait  {num = 2 : i32}",
        {"tokens": (), "num": 2, "counts_instructions": False},
    ),
    (
        "%r = amdg.async_tdm_intrinsic_wait %a, %b {count = 3 : i32}",
        {"tokens": ("%a", "%b"), "num": 3, "counts_instructions": True},
    ),
    ("%r = amdg.async_wait %a {num_inst = 3 : i32}", {"tokens": ("%a",), "num_inst": 3}),
    (
        "%r = amdg.buffer_load %a[%b], %c, %d stride = %e {contiguity = 4 : i32} : i32",
        {"ptr": "%a", "offsets": "%b", "mask": "%c", "other": "%d", "stride": "%e"},
    ),
    (
        "%r = amdg.buffer_load %a[%b] stride = %c : i32",
        {"mask": None, "other": None, "stride": "%c", "contiguity": 1},
    ),
    (
        "amdg.buffer_store %a, %b[%c], %d : !tt.ptr<i32> -> i32",
        {"value": "%a", "ptr": "%b", "offsets": "%c", "mask": "%d", "stride": None},
    ),
    (
        "%r = amdg.buffer_atomic_rmw add, acq_rel, gpu, %a, %b[%c] : i32",
        {"kind": "add", "value": "%a", "ptr": "%b", "offsets": "%c", "mask": None},
    ),
    (
        "%r = amdg.buffer_load_to_local %a[%b] mask = %c other = %d stride = %e into %f "
        "{contiguity = 8 : i32} : <i32>[i32] i32 -> i32",
        {
            "ptr": "%a",
            "offsets": "%b",
            "mask": "%c",
            "other": "%d",
            "stride": "%e",
            "dst": "%f",
            "contiguity": 8,
        },
    ),
    (
        "%r = amdg.buffer_load_to_local %a[%b] into %c  : <i32>[i32] -> i32",
        {"mask": None, "other": None, "stride": None, "dst": "%c", "token": "%r"},
    ),
    (
        "%r = amdg.async_copy_local_to_global %a, %b mask %c : i32 -> i32",
        {"src": "%a", "dst": "%b", "mask": "%c", "contiguity": 1},
    ),
]


@pytest.mark.parametrize(("text", "fields"), CASES, ids=[text for text, _ in CASES])
def test_fields(text, fields):
    arguments = ", ".join(f"%{name}: i32" for name in "abcdef")
    module = parse(f"tt.func @f({arguments}) {{\n  {text}\n  tt.return\n}}\n")
    check_fields(VIEWS, module, fields)


def test_every_view_has_a_case():
    assert {name for text, _ in CASES for name in VIEWS if f"{name} " in text} == set(VIEWS)


#: Operations whose result type is printed nowhere, or only as that of an operand.
TYPED = [
    (
        "%r = amdg.async_tdm_fused_copy_global_to_local %d, %d into %m, %m "
        "{warp_used_hints = array<i32: 3, 12>} : D, D -> M, M",
        "!ttg.async.token",
    ),
    ("%r = amdg.async_tdm_copy_local_to_global %d from %m : M -> D", "!ttg.async.token"),
    ("%r = amdg.async_tdm_intrinsic_wait {count = 0 : i32}", "!ttg.async.token"),
    ("%r = amdg.async_tdm_wait  {num = 0 : i32}", "!ttg.async.token"),
    # 3.8 and older; 3.9 and newer.
    ("%r = amdg.buffer_atomic_cas acq_rel, gpu, %x, %x, %p[%x] : T", "T"),
    ("%r = amdg.buffer_atomic_cas acq_rel, gpu, %x, %x, %p[%x] : !tt.ptr<i32> -> T", "T"),
]


@pytest.mark.parametrize(("text", "type_"), TYPED, ids=[text for text, _ in TYPED])
def test_types_of_results(text, type_):
    types = {
        "D": "!tt.tensordesc<8x32xf32, #s>",
        "M": "!ttg.memdesc<8x32xf32, #s, #ttg.shared_memory, mutable>",
        "T": "tensor<128xi32, #b>",
    }
    for name, full in types.items():
        text = re.sub(rf"\b{name}\b", full, text)
    module = parse(
        "tt.func @f(%d: {D}, %m: {M}, %x: {T}, %p: !tt.ptr<i32>) {{\n".format(**types)
        + f"  {text}\n  tt.return\n}}\n"
    )
    op = next(op for op in module.walk() if op.name.startswith("amdg."))
    assert op.results[0].type == types.get(type_, type_)


def test_a_fused_load_without_a_name_for_its_token_has_no_result():
    """The types behind its arrow are those of the buffers."""
    text = TYPED[0][0].removeprefix("%r = ")
    module = parse(f"tt.func @f(%d: i32, %m: i32) {{\n  {text}\n  tt.return\n}}\n")
    fused = next(op for op in module.walk() if op.name in VIEWS)
    assert fused.results == ()


def test_corpus():
    files = sorted(CORPUS.glob("*/hip-*/*.ttgir"))
    if not files:
        pytest.skip(NO_CORPUS)
    found = set()
    for path in files:
        for op in parse(path.read_text(), path.name).walk():
            if op.name.startswith("amdg."):
                found.add(op.name)
                view = VIEWS[op.name].match(op)
                assert view is not None
                op._touch()
                assert VIEWS[op.name].match(op) == view
    assert len(found) >= 9
