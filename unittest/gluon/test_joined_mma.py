"""``warpgroup_mma_joined`` in small kernels: what becomes one WGMMA, and what is refused where."""

from __future__ import annotations

import inspect
import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton_ext import plugin
from triton_ext.errors import PassError
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

JOIN = capabilities()["wgmma-join"]
if not JOIN.available:
    pytest.skip(JOIN.reason, allow_module_level=True)

from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS, COLUMNS, DEPTH = 64, 32, 64


@gluon.jit
def store(acc, out, NUMBER: gl.constexpr):
    LAYOUT: gl.constexpr = acc.type.layout
    row = gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out + NUMBER * 4096 + row[:, None] * acc.shape[1] + column[None, :], acc)


@gluon.jit
def kernel(out, steps, CASE: gl.constexpr, N: gl.constexpr):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x = gl.allocate_shared_memory(gl.float16, [4, 64, 64], SHARED)
    w = gl.allocate_shared_memory(gl.float16, [8, N, 64], SHARED)
    acc = gl.zeros((64, N), gl.float32, LAYOUT)
    accs = (acc, acc)
    first = x.index(0)
    w0, w1 = w.index(0).permute((1, 0)), w.index(1).permute((1, 0))
    w2, w3 = w.index(2).permute((1, 0)), w.index(3).permute((1, 0))
    if CASE == "constant":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), accs)
        accs = xnv.warpgroup_mma_joined(x.index(1), (w2, w3), accs)
    elif CASE == "chosen":
        for step in range(steps):
            if step & 1 == 0:
                accs = xnv.warpgroup_mma_joined(first, (w0, w1), accs)
                accs = warpgroup_mma_wait(0, deps=accs)
            else:
                accs = xnv.warpgroup_mma_joined(x.index(1), (w2, w3), accs)
                accs = warpgroup_mma_wait(0, deps=accs)
    elif CASE == "reset":
        for step in range(steps):
            if step & 3 == 0:
                accs = (acc, acc)
            accs = xnv.warpgroup_mma_joined(first, (w0, w1), accs)
            accs = warpgroup_mma_wait(0, deps=accs)
    elif CASE == "a gap":
        accs = xnv.warpgroup_mma_joined(first, (w0, w2), accs)
    elif CASE == "one":
        accs = xnv.warpgroup_mma_joined(first, (w0,), (acc,))
    elif CASE == "fewer accumulators":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), (acc,))
    elif CASE == "no tuple of operands":
        accs = xnv.warpgroup_mma_joined(first, w0, accs)
    elif CASE == "no tuple of accumulators":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), acc)
    elif CASE == "registers":
        accs = xnv.warpgroup_mma_joined(acc, (w0, w1), accs)
    elif CASE == "all stages":
        accs = xnv.warpgroup_mma_joined(first, (w, w), accs)
    elif CASE == "no accumulator":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), (acc, w0))
    elif CASE == "a scalar":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), (acc, steps))
    elif CASE == "not transposed":
        accs = xnv.warpgroup_mma_joined(first, (w.index(0), w1), accs)
    elif CASE == "not permuted":
        square = gl.allocate_shared_memory(gl.float16, [2, 64, N], gl.NVMMASharedLayout(64, 16, 2))
        accs = xnv.warpgroup_mma_joined(first, (square.index(0), square.index(1)), accs)
    elif CASE == "twice":
        accs = xnv.warpgroup_mma_joined(first, (w0, w0), accs)
    elif CASE == "twice, indexed":
        accs = xnv.warpgroup_mma_joined(first, (w0, w.index(0).permute((1, 0))), accs)
    elif CASE == "unused":
        xnv.warpgroup_mma_joined(first, (w0, w1), accs)
    elif CASE == "unused, before others":
        xnv.warpgroup_mma_joined(first, (w0, w1), accs)
        one = warpgroup_mma(x.index(1), w0, acc, is_async=True)
        other = warpgroup_mma(x.index(1), w1, acc, is_async=True)
        accs = warpgroup_mma_wait(1, deps=(one,)), warpgroup_mma_wait(0, deps=(other,))
    elif CASE == "half":
        half = gl.zeros((64, N), gl.float16, LAYOUT)
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), (acc, half))
    elif CASE == "of another size":
        accs = xnv.warpgroup_mma_joined(first, (w0, w1), accs)
    if CASE != "unused":
        accs = warpgroup_mma_wait(0, deps=accs)
    store(accs[0], out, 0)
    store(accs[1], out, 1)


def compiled(case, columns=COLUMNS, target=90):
    types = {"out": "*fp32", "steps": "i32", "CASE": "constexpr", "N": "constexpr"}
    source = GluonASTSource(kernel, types, {"CASE": case, "N": columns}, {})
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 4})


@pytest.mark.parametrize(("case", "count"), [("constant", 2), ("chosen", 2), ("reset", 1)])
def test_pieces_at_constant_places_are_joined(case, count, fresh_triton_cache):
    # 2 * 32 columns, 64 channels in 16s.
    ptx = compiled(case).asm["ptx"]
    found = re.findall(r"wgmma\.mma_async\S*m64n(\d+)k16", ptx)
    assert found == [str(2 * COLUMNS)] * (count * DEPTH // 16)
    assert ptx.count("wgmma.commit_group") == ptx.count("wgmma.fence") == count


def refused(error, case, columns=COLUMNS, target=90):
    with pytest.raises(error) as caught:
        compiled(case, columns, target)
    lines, start = inspect.getsourcelines(kernel.fn)
    branch = next(at for at, line in enumerate(lines) if f'"{case}"' in line)
    call = next(at for at in range(branch, len(lines)) if "warpgroup_mma_joined" in lines[at])
    place = rf"{re.escape(__file__)}:{start + call}:\d+: error: "
    message = str(caught.value)
    assert re.search(place, message), message
    return message


PERMUTE = "of a buffer [N, K], give .permute((1, 0))"
REFUSED = {
    "one": "two or more right operands and as many accumulators, got 1 and 1",
    "fewer accumulators": "two or more right operands and as many accumulators, got 2 and 1",
    "no tuple of operands": "expected a tuple of right operands, got shared_memory_descriptor",
    "no tuple of accumulators": "expected a tuple of accumulators, got a tensor",
    "registers": "expected shared memory, got a tensor",
    "all stages": f"expected a matrix, got the shape [8, {COLUMNS}, {DEPTH}]",
    "no accumulator": "expected an accumulator, got shared_memory_descriptor",
    "a scalar": "expected an accumulator, got a scalar int32",
    "not transposed": f"expected a right operand of {DEPTH} rows, got {COLUMNS}; {PERMUTE}",
    "not permuted": f"whose columns lie together in shared memory: {PERMUTE}",
    "twice": "expected right operands that lie behind each other, got one of them twice",
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_operands_are_refused_at_the_call(case, fresh_triton_cache):
    assert REFUSED[case] in refused(CompilationError, case)


def test_what_else_is_refused_at_the_call(fresh_triton_cache):
    half = f"expected an accumulator of fp32 [{ROWS}, {COLUMNS}], got fp16 [{ROWS}, {COLUMNS}]"
    assert half in refused(CompilationError, "half")
    other = "of another size"
    narrow = "expected at least 16 columns in each right operand, got [8, 8]"
    assert narrow in refused(CompilationError, other, columns=8)
    wide = "expected at most 256 columns together, got 512"
    assert wide in refused(CompilationError, other, columns=256)
    assert "need sm_90, the target is sm100" in refused(CompilationError, other, target=100)
    plugin.uninstall()
    try:
        assert "call triton_ext.install()" in refused(CompilationError, "constant")
    finally:
        plugin.install()
    gap = refused(PassError, "a gap")
    assert "lies 8192 bytes behind the one before: 4096 is right" in gap
    equal = refused(PassError, "twice, indexed")
    assert "1 of 2 products are left in front of a wait: equal ones" in equal
    unused = refused(PassError, "unused")
    assert "found none: is the result unused, or not waited for?" in unused
    # Those are waited for one by one.
    others = refused(PassError, "unused, before others")
    assert "the next ones are of the call at" in others


@gluon.jit
def product(
    out,
    A: gl.constexpr,
    B: gl.constexpr,
    SHARED: gl.constexpr,
    RIGHT: gl.constexpr,
    LAYOUT: gl.constexpr,
    M: gl.constexpr,
    K: gl.constexpr,
    TURNED: gl.constexpr,
):
    x = gl.allocate_shared_memory(A, [M, K], SHARED)
    w = gl.allocate_shared_memory(B, [2, 32, K], RIGHT)
    acc = gl.zeros((M, 32), gl.float32, LAYOUT)
    if TURNED:
        x = x.permute((1, 0))
    b = w.index(0).permute((1, 0)), w.index(1).permute((1, 0))
    accs = xnv.warpgroup_mma_joined(x, b, (acc, acc))
    accs = warpgroup_mma_wait(0, deps=accs)
    store(accs[0], out, 0)
    store(accs[1], out, 1)


def product_of(a, b, depth=64, rows=64, shared=None, layout=None, instr_depth=None, turned=False):
    bits = a.primitive_bitwidth
    swizzle = min(128, depth * bits // 8) if depth * bits >= 256 else 0
    acc = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, instr_depth or 256 // bits])
    constants = {
        "A": a,
        "B": b,
        "SHARED": shared or gl.NVMMASharedLayout(swizzle, bits, 2),
        "RIGHT": gl.NVMMASharedLayout(swizzle, b.primitive_bitwidth, 2),
        "LAYOUT": layout or acc,
        "M": rows,
        "K": depth,
        "TURNED": turned,
    }
    types = {"out": "*fp32"} | dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(product, types, constants, {})
    options = {"num_warps": 4}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (gl.bfloat16, gl.bfloat16, "k16.f32.bf16.bf16"),
        (gl.float8e4nv, gl.float8e5, "k32.f32.e4m3.e5m2"),
        (gl.float32, gl.float32, "k8.f32.tf32.tf32"),
    ],
)
def test_operands_of_other_dtypes_are_joined(a, b, kind, fresh_triton_cache):
    # A row of 128 bytes, as wide as the swizzle.
    depth = 1024 // a.primitive_bitwidth
    found = re.findall(r"wgmma\.mma_async\S*m64n64(k\S+)", product_of(a, b, depth))
    assert found == [kind] * (depth * a.primitive_bitwidth // 256)


BLOCKED = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
SWIZZLED = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
NO_PRODUCT = {
    "blocked": (
        {"layout": BLOCKED},
        "expected an accumulator in NVMMADistributedLayout of version [3, 0] and instr_shape "
        "[16, 32, 16] for operands of fp16, got BlockedLayout",
    ),
    "swizzled": (
        {"shared": SWIZZLED},
        "expected operands in NVMMASharedLayout of 16 bits, got SwizzledSharedLayout",
    ),
    "two dtypes": (
        {"b": gl.bfloat16},
        "expected right operands of one dtype, fp16 as the left one is fp16, got bf16, bf16",
    ),
    "int8": (
        {"a": gl.int8, "b": gl.int8},
        "expected operands of fp16, bf16, fp32, fp8e4nv, fp8e5, got int8",
    ),
    "fp8": (
        {"a": gl.float8e5, "b": gl.float8e5, "instr_depth": 16},
        "instr_shape [16, 32, 32] for operands of fp8e5, got NVMMADistributedLayout",
    ),
    "tf32": (
        {"a": gl.float32, "b": gl.float32, "instr_depth": 16},
        "instr_shape [16, 32, 8] for operands of fp32, got NVMMADistributedLayout",
    ),
    "K of 8": ({"depth": 8}, "expected a multiple of 16 as K of operands of fp16, got 8"),
    "warps": (
        {"layout": gl.NVMMADistributedLayout([3, 0], [2, 2], [16, 32, 16])},
        "expected a multiple of 4 as the first of warps_per_cta, for a WGMMA's rows are those of a "
        "warp group, got [2, 2]",
    ),
    "few rows": ({"rows": 32}, "expected 64 rows of the left operand or more, got 32"),
    "turned": (
        {"a": gl.float32, "b": gl.float32, "turned": True},
        "expected a left operand [M, K] that is not permuted, as it is fp32",
    ),
}


@pytest.mark.parametrize("case", NO_PRODUCT)
def test_what_no_wgmma_multiplies_is_refused_at_the_call(case, fresh_triton_cache):
    arguments, expected = NO_PRODUCT[case]
    with pytest.raises(CompilationError) as caught:
        product_of(**{"a": gl.float16, "b": gl.float16} | arguments)
    message = str(caught.value)
    assert expected in message
    lines, start = inspect.getsourcelines(product.fn)
    call = next(at for at, line in enumerate(lines) if "warpgroup_mma_joined" in line)
    assert re.search(rf"{re.escape(__file__)}:{start + call}:\d+: error: ", message), message
