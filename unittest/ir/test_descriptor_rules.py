"""Which copies the verifier refuses, beside what the installed Triton refuses."""

from __future__ import annotations

import pytest
from ir_helpers import Host
from triton_ext.errors import VerifyError
from triton_ext.ir import parse
from triton_ext.ir.rules import RULES

PREAMBLE = """\
#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#rank3 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, \
rank = 3}>
#transposed = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
#narrow = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 16}>
#bytes = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 8}>
#rows = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", \
"ttg.threads-per-warp" = 32 : i32} {
"""


def copy(
    op: str = "load",
    *,
    mode: str = "tiled",
    block: str = "64x64xf16, #shared",
    coords: int = 2,
    offsets: int = 0,
    coord: str = "i32",
    offset: str = "i16",
    buffer: str = "64x64xf16, #shared, #smem, mutable",
    barrier: str = "1xi64, #bar, #smem, mutable",
    pred: str = "i1",
    as_tensor: bool = False,
) -> str:
    """A module with one copy."""
    name = "!tt.tensordesc" if mode == "tiled" else "!ttng.tensordesc_im2col"
    desc = f"{name}<tensor<{block}>>" if as_tensor else f"{name}<{block}>"
    header = [f"%x: {desc}", f"%buf: !ttg.memdesc<{buffer}>", f"%bar: !ttg.memdesc<{barrier}>"]
    header += [f"%p: {pred}"]
    header += [f"%c{i}: {coord}" for i in range(coords)]
    header += [f"%o{i}: {offset}" for i in range(offsets)]
    at = ", ".join(f"%c{i}" for i in range(coords))
    if offsets:
        at += "] offsets = [" + ", ".join(f"%o{i}" for i in range(offsets))
    types = f"{desc}, !ttg.memdesc<{buffer}>"
    if op == "load":
        body = f"ttng.async_tma_copy_global_to_local %x[{at}] %buf, %bar, %p : {desc}, "
        body += f"!ttg.memdesc<{barrier}> -> !ttg.memdesc<{buffer}>"
    elif op == "store":
        body = f"ttng.async_tma_copy_local_to_global %x[{at}] %buf : {types}"
    else:
        body = f"ttng.async_tma_reduce add, %x[{at}] %buf : {types}"
    function = f"  tt.func @f({', '.join(header)}) {{\n    {body}\n    tt.return\n  }}\n"
    return f"{PREAMBLE}{function}}}\n"


BLOCK3, BUFFER3 = "2x32x64xf16, #rank3", "2x32x64xf16, #rank3, #smem, mutable"
IM2COL = {"mode": "im2col", "coords": 4, "offsets": 2}

VALID = {
    "load": {},
    "store": {"op": "store"},
    "store of what cannot be written": {"op": "store", "buffer": "64x64xf16, #shared, #smem"},
    "reduce": {"op": "reduce"},
    "rank 3": {"block": BLOCK3, "buffer": BUFFER3, "coords": 3},
    "another rank in shared memory": {"buffer": BUFFER3},
    "part of a buffer": {"buffer": "64x64xf16, #shared, #smem, mutable, 2x64x64"},
    "signedness of the block": {
        "block": "64x128xui8, #bytes",
        "buffer": "64x128xi8, #bytes, #smem, mutable",
    },
    "one of many mbarriers": {"barrier": "1xi64, #bar, #smem, mutable, 3x1"},
    "im2col of rank 3": {"mode": "im2col", "coords": 3, "offsets": 1},
    "im2col of rank 4": IM2COL,
    "im2col of rank 5": {"mode": "im2col", "coords": 5, "offsets": 3},
}

#: What the host may know and we do not: no reason to refuse anything.
UNKNOWN = {
    "descriptor": ("!tt.tensordesc<64x64xf16, #shared>", "!new.tensordesc<64x64xf16>"),
    "encoding of the descriptor": ("tensordesc<64x64xf16, #shared>", "tensordesc<64x64xf16, #new>"),
    "encoding of the buffer": ("memdesc<64x64xf16, #shared,", "memdesc<64x64xf16, #new,"),
    "buffer": ("!ttg.memdesc<64x64xf16, #shared, #smem, mutable>", "!new.memdesc<64x64xf16>"),
    "elements of the buffer": ("memdesc<64x64xf16, #shared,", "memdesc<64x64x!new.f16, #shared,"),
    "mbarrier": ("!ttg.memdesc<1xi64, #bar, #smem, mutable>", "!new.barrier<1>"),
    "elements of the mbarrier": ("memdesc<1xi64,", "memdesc<1x!new.i64,"),
    "coordinate": ("i32", "!new.i32"),
    "alias of a coordinate": ("i32", "!int"),
}

#: Name: the copy, and what is said about it.
INVALID = {
    "one coordinate": ({"coords": 1}, "expected 2 coordinates, one for each dimension of"),
    "no coordinate": ({"coords": 0}, "expected 2 coordinates"),
    "three coordinates": ({"coords": 3}, "expected 2 coordinates"),
    "two for rank 3": ({"block": BLOCK3, "buffer": BUFFER3}, "expected 3 coordinates"),
    "tiled offsets": ({"offsets": 1}, "expected no offsets with a tiled descriptor"),
    "i64 coordinate": ({"coord": "i64"}, "expected 'i32' as the type of coordinate 0"),
    "i32 predicate": ({"pred": "i32"}, "expected 'i1' as the type of the predicate"),
    "size of the buffer": (
        {"buffer": "32x64xf16, #shared, #smem, mutable"},
        "expected a buffer of 4096 elements, as many as the block has at .*, found 2048",
    ),
    "elements of the buffer": (
        {"buffer": "64x64xbf16, #shared, #smem, mutable"},
        "expected a buffer of 'f16', the elements of the block at .*, found 'bf16'",
    ),
    "transposed buffer": (
        {"buffer": "64x64xf16, #transposed, #smem, mutable"},
        "expected a descriptor with transposed = true, as the buffer has, at .*, found false",
    ),
    "swizzle of the buffer": (
        {"buffer": "64x64xf16, #narrow, #smem, mutable"},
        "expected a descriptor with swizzlingByteWidth = 64, as the buffer has, at .*, found 128",
    ),
    "no encoding in the descriptor": (
        {"block": "64x64xf16"},
        "expected a descriptor with an encoding of .*, found none",
    ),
    "rows in the buffer": (
        {"buffer": "64x64xf16, #rows, #smem, mutable"},
        "expected a buffer with an encoding of '#ttg.nvmma_shared'",
    ),
    "load into what cannot be written": (
        {"buffer": "64x64xf16, #shared, #smem"},
        "expected a mutable buffer",
    ),
    "mbarrier of i32": (
        {"barrier": "1xi32, #bar, #smem, mutable"},
        "expected a memory descriptor of 1xi64 as the mbarrier",
    ),
    "mbarrier of rank 2": (
        {"barrier": "1x1xi64, #rows, #smem, mutable"},
        "expected a memory descriptor of 1xi64 as the mbarrier",
    ),
    "store with one coordinate": ({"op": "store", "coords": 1}, "expected 2 coordinates"),
    "reduce of other elements": (
        {"op": "reduce", "buffer": "64x64xbf16, #shared, #smem, mutable"},
        "expected a buffer of 'f16'",
    ),
    "im2col of rank 2": ({"mode": "im2col"}, "expected 3 to 5 coordinates with an im2col"),
    "im2col of rank 6": (
        {"mode": "im2col", "coords": 6, "offsets": 4},
        "expected 3 to 5 coordinates",
    ),
    "no offsets": ({**IM2COL, "offsets": 0}, "expected 2 offsets, one for each spatial dimension"),
    "three offsets": ({**IM2COL, "offsets": 3}, "expected 2 offsets"),
    "i32 offsets": ({**IM2COL, "offset": "i32"}, "expected 'i16' as the type of offset 0"),
    "im2col block of rank 3": (
        {**IM2COL, "block": BLOCK3, "buffer": BUFFER3},
        "expected a block of rank 2",
    ),
    "im2col elements": (
        {**IM2COL, "buffer": "64x64xbf16, #shared, #smem, mutable"},
        "expected a buffer of 'f16'",
    ),
    "store through im2col": ({"op": "store", **IM2COL, "offsets": 0}, "expected a tiled tensor"),
}


def accepts(host: Host, text: str) -> bool:
    """Whether the installed Triton reads and verifies a text."""
    try:
        host.text(text)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("name", VALID)
def test_valid(name, as_tensor):
    parse(copy(**VALID[name], as_tensor=as_tensor)).verify()


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("name", INVALID)
def test_invalid(name, as_tensor):
    arguments, message = INVALID[name]
    with pytest.raises(VerifyError, match=message):
        parse(copy(**arguments, as_tensor=as_tensor)).verify()


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_we_do_not_know_is_not_refused(name):
    known, unknown = UNKNOWN[name]
    head, function = copy().split("  tt.func")
    assert known in function
    function = function.replace(known, unknown)
    new = "#new = #new.shared<{bytes = 128}>\n!int = i32\n"
    parse(f"{new}{head}  tt.func{function}").verify()


def test_every_rule_about_copies_is_broken():
    copies = {"ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global"}
    assert any(copies <= (rule.operations or set()) for rule in RULES)


def test_what_is_not_a_copy_we_can_read_is_left_alone():
    quoted = (
        '"ttng.async_tma_copy_global_to_local"(%x) : (!tt.tensordesc<64x64xf16, #shared>) -> ()'
    )
    text = copy().splitlines()
    text[-4] = f"    {quoted}"
    parse("\n".join(text)).verify()


def test_what_we_refuse_the_host_refuses(host):
    """3.6 has no im2col descriptors, and lowers most wrong tiled copies to something else."""
    has_im2col = accepts(host, copy(**IM2COL, as_tensor=True)) or accepts(host, copy(**IM2COL))
    as_tensor = not accepts(host, copy())
    for name, arguments in VALID.items():
        if has_im2col or arguments.get("mode") != "im2col":
            assert accepts(host, copy(**arguments, as_tensor=as_tensor)), name
    refused = [
        name
        for name, (arguments, _) in INVALID.items()
        if not accepts(host, copy(**arguments, as_tensor=as_tensor))
    ]
    if has_im2col:
        assert refused == list(INVALID)
    else:
        assert {"i64 coordinate", "no coordinate", "load into what cannot be written"} <= {*refused}
