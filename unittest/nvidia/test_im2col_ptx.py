"""The PTX of an im2col load: one instruction with the right operands, on every Triton.

From 3.8 on Triton lowers the copy itself; before, the markers are resolved in LLVM IR.  The same is
asserted of both, so that they agree.
"""

from __future__ import annotations

import re

import pytest
import triton
import triton.language as tl
import triton_ext.language as tle
from ptx_machine import Copy, Expected, run
from ptx_values import evaluate, im2col_copies
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from triton_ext.backends.nvidia.backend import im2col_model
from triton_ext.backends.nvidia.backend.geometry import ConvGeometry, Im2ColGeometry
from triton_ext.host import capabilities

pytestmark = pytest.mark.skipif(
    not capabilities()["im2col"].available, reason=capabilities()["im2col"].reason
)


@triton.jit
def one_load(
    x_desc, y_ptr, n, d, h, w, c, i, j, k,
    RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    if RANK == 3:
        tile = tle.load_im2col(x_desc, [n, w, c], [k])
    elif RANK == 4:
        tile = tle.load_im2col(x_desc, [n, h, w, c], [j, k])
    else:
        tile = tle.load_im2col(x_desc, [n, d, h, w, c], [i, j, k])
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(y_ptr + rows[:, None] * COLUMNS + columns[None, :], tile)


NAMES = ("n", "d", "h", "w", "c", "i", "j", "k")
#: One number for each argument that no other one has; the names' order is that of the signature.
VALUES = dict(zip(NAMES, (3, -2, -1, 5, 64, 2, 7, 4), strict=True))


def compile_one_load(rank, block=(64, 64), arch=90, dtype="fp16", num_warps=4):
    signature = {
        "x_desc": f"tensordesc<{dtype}[{block[0]}, {block[1]}]>",
        "y_ptr": f"*{dtype}",
        **dict.fromkeys(NAMES, "i32"),
        **dict.fromkeys(("RANK", "ROWS", "COLUMNS"), "constexpr"),
    }
    constants = {"RANK": rank, "ROWS": block[0], "COLUMNS": block[1]}
    source = ASTSource(one_load, signature, constexprs=constants)
    options = {"num_warps": num_warps}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def given(values=VALUES, tid=0):
    """The map, its shape and strides, and the pointer are the parameters 0 to 5."""
    parameters = {f"param_{6 + i}": values[name] for i, name in enumerate(NAMES)}
    return {**parameters, "%tid.x": tid}


def signature_of(rank):
    """The instruction with its operands, registers numbered by first use."""
    coordinates = ", ".join(f"%r{i}" for i in range(1, rank + 1))
    offsets = ", ".join(f"%rs{i}" for i in range(rank - 2))
    return (
        f"cp.async.bulk.tensor.{rank}d.shared::SPACE.global.im2col.mbarrier::complete_tx::bytes "
        f"[%r0], [%rd0, {{{coordinates}}}], [%r{rank + 1}], {{{offsets}}}"
    )


def renumbered(one):
    """An instruction with its registers numbered by first use.

    Both spaces mean the CTA's own memory where a cluster has one CTA; which is written is the
    host's choice for all of its copies.
    """
    numbers = {}

    def number(match):
        kind = match[0].rstrip("0123456789")
        names = numbers.setdefault(kind, [])
        if match[0] not in names:
            names.append(match[0])
        return f"{kind}{names.index(match[0])}"

    text = f"{one.name} {', '.join(one.operands)}"
    text = re.sub(r"shared::(cta|cluster)", "shared::SPACE", text)
    return re.sub(r"%[a-z]+\d+", number, text)


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_each_operand_is_where_it_belongs(rank, arch, fresh_triton_cache):
    ptx = compile_one_load(rank, arch=arch).asm["ptx"]
    (copy,) = im2col_copies(ptx)
    assert renumbered(copy) == signature_of(rank)
    assert copy.guard
    coordinates, offsets = copy.lists
    # Innermost first: c, w, [h, [d]], n and w, [h, [d]].
    wanted = ["c", *reversed(("d", "h", "w")[5 - rank :]), "n"]
    taps = list(reversed(("i", "j", "k")[5 - rank :]))
    assert [evaluate(ptx, one, given()) for one in coordinates] == [VALUES[x] for x in wanted]
    assert [evaluate(ptx, one, given()) for one in offsets] == [VALUES[x] for x in taps]


def test_an_offset_keeps_its_16_bits(fresh_triton_cache):
    ptx = compile_one_load(3).asm["ptx"]
    (copy,) = im2col_copies(ptx)
    (offset,) = copy.lists[1]
    assert evaluate(ptx, offset, given({**VALUES, "k": 0xFFFF})) & 0xFFFF == 0xFFFF


@pytest.mark.parametrize(
    ("dtype", "channels", "box"), [("fp16", 128, 64), ("fp16", 256, 64), ("fp32", 128, 32)]
)
def test_each_box_has_its_channel(dtype, channels, box, fresh_triton_cache):
    """Boxes of one load are copied by one warp each: only the channel differs."""
    kernel = compile_one_load(4, (64, channels), dtype=dtype)
    ptx = kernel.asm["ptx"]
    assert kernel.metadata.tensordesc_meta[0]["block_size"] == [64, box]
    copies = im2col_copies(ptx)
    found = set()
    for copy in copies:
        for warp in range(4):
            values = [evaluate(ptx, one, given(tid=32 * warp)) for one in copy.lists[0]]
            assert values[1:] == [VALUES["w"], VALUES["h"], VALUES["n"]]
            found.add(values[0] - VALUES["c"])
    assert found == set(range(0, channels, box))


@pytest.mark.parametrize(
    ("block", "warps"), [((512, 64), 4), ((1024, 32), 8), ((512, 128), 4), ((512, 128), 2)]
)
def test_a_block_of_many_pixels_is_one_copy_of_each_channel_box(block, warps, fresh_triton_cache):
    """Triton before 3.8 cuts it at 256 rows; only the first of these copies is issued then."""
    kernel = compile_one_load(4, block, num_warps=warps)
    rows, channels = kernel.metadata.tensordesc_meta[0]["block_size"]
    assert rows == block[0]
    parameters = {name: value for name, value in given().items() if name != "%tid.x"}
    events = run(kernel.asm["ptx"], parameters)
    (told,) = (event for event in events if isinstance(event, Expected))
    assert told.size == 2 * block[0] * block[1]
    copies = [event for event in events if isinstance(event, Copy)]
    base = min(copy.target for copy in copies)
    w, h, n = VALUES["w"], VALUES["h"], VALUES["n"]
    assert sorted((copy.coordinates, copy.target - base) for copy in copies) == [
        ((VALUES["c"] + first, w, h, n), 2 * first * rows) for first in range(0, block[1], channels)
    ]
    assert {copy.barrier for copy in copies} == {told.barrier}


@triton.jit
def two_ranks(x_desc, z_desc, y_ptr, n, h, w, c):
    tile = tle.load_im2col(x_desc, [n, h, w, c], [1, 2]).to(tl.float32)
    tile += libdevice.acos(tle.load_im2col(z_desc, [n, w, c], [3]).to(tl.float32))
    tl.device_assert(n >= 0, "n")
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    tl.store(y_ptr + rows[:, None] * 64 + columns[None, :], tile)


@pytest.mark.parametrize("line_info", [True, False])
def test_two_ranks_beside_other_functions(line_info, fresh_triton_cache, monkeypatch):
    """A function of LLVM IR has one type, and libdevice is linked where functions are undefined."""
    monkeypatch.setattr(knobs.compilation, "disable_line_info", not line_info)
    signature = {
        **dict.fromkeys(("x_desc", "z_desc"), "tensordesc<fp16[64, 64]>"),
        "y_ptr": "*fp32",
        **dict.fromkeys(("n", "h", "w", "c"), "i32"),
    }
    source = ASTSource(two_ranks, signature)
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"debug": True})
    found = [one.name.split(".")[4] for one in im2col_copies(kernel.asm["ptx"])]
    assert found == ["4d", "3d"]
    ranks = [entry["triton_ext"]["rank"] for entry in kernel.metadata.tensordesc_meta]
    assert ranks == [4, 3]
    assert kernel.asm["cubin"]


def test_from_a_file_of_ttgir(fresh_triton_cache, tmp_path):
    """Triton leaves out the stage with the file's extension; the next one finds the markers."""
    path = tmp_path / "kernel.ttgir"
    first = compile_one_load(4)
    path.write_text(first.asm["ttgir"])
    again = triton.compile(str(path), target=GPUTarget("cuda", 90, 32))
    texts = [[renumbered(one) for one in im2col_copies(k.asm["ptx"])] for k in (first, again)]
    assert texts[0] == texts[1] == [signature_of(4)]


@triton.jit
def tile_of_a_cluster(
    x_desc, y_desc, m, out_h, out_w, stride, pad, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    walk = ((out_h, out_w), (stride, stride), (pad, pad))
    n, h, w = tle.im2col_start(m, *walk)
    y_desc.store([m, 0], tle.load_im2col(x_desc, [n, h, w, 0], [1, 2], walk=walk))


@pytest.mark.parametrize("num_ctas", [2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_each_cta_starts_at_its_own_pixel(num_ctas, stride, fresh_triton_cache):
    pytest.importorskip("numpy")
    rows = 64 * num_ctas
    signature = {
        **dict.fromkeys(("x_desc", "y_desc"), f"tensordesc<fp16[{rows}, 64]>"),
        **dict.fromkeys(("m", "out_h", "out_w", "stride", "pad"), "i32"),
        **dict.fromkeys(("ROWS", "COLUMNS"), "constexpr"),
    }
    source = ASTSource(tile_of_a_cluster, signature, constexprs={"ROWS": rows, "COLUMNS": 64})
    kernel = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_ctas": num_ctas}
    )
    ptx = kernel.asm["ptx"]
    conv = ConvGeometry.make((3, 13, 11, 64), (3, 3), stride, 1)
    out_h, out_w = conv.output_size
    m = 37
    coords, _ = im2col_model.walk(geometry_of(conv), conv.start(m), (0, 0), pixels=rows)
    (copy,) = im2col_copies(ptx)
    for rank in range(num_ctas):
        numbers = dict(zip(range(10, 15), (m, out_h, out_w, stride, 1), strict=True))
        values = {f"param_{i}": value for i, value in numbers.items()}
        values |= {"%cluster_ctarank": rank, "%cluster_ctaid.x": rank, "%tid.x": 0}
        c, w, h, n = (evaluate(ptx, one, values) for one in copy.lists[0])
        assert [n, h, w] == list(coords[64 * rank]), rank
        assert c == 0


def geometry_of(conv):
    strides = [1]
    for size in reversed(conv.input_shape[1:]):
        strides.insert(0, strides[0] * size)
    return Im2ColGeometry(
        shape=conv.input_shape,
        strides=tuple(strides),
        element_bytes=2,
        dtype="fp16",
        pixel_box_lower_corner=conv.pixel_box_lower_corner,
        pixel_box_upper_corner=conv.pixel_box_upper_corner,
        element_strides=conv.element_strides,
        pixels_per_column=64,
        channels_per_pixel=64,
    )
