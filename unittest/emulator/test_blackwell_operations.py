"""Block-scaled products, copies into tensor memory, packed arithmetic, cluster launch control."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from triton_ext.backends.nvidia.emulator.block_scales import (  # noqa: E402
    numbers_of,
    scales_of,
    unpacked_scales,
)
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.emulator.elements import element_of  # noqa: E402
from triton_ext.ir import parse_type  # noqa: E402

HEAD = """#b = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#line = #ttg.slice<{dim = 1, parent = #b}>
#row = #ttg.slice<{dim = 0, parent = #b}>
#s8 = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 8}>
#t8 = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = true, elementBitWidth = 8}>
#s32 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 32}>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#p5 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [4, 3, 2, 1, 0]}>
#acc = #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>
#sf = #ttng.tensor_memory_scales_encoding<>
#smem = #ttg.shared_memory
#tmem = #ttng.tensor_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
"""  # noqa: E501 - TTGIR
BAR = "!ttg.memdesc<1xi64, #plain, #smem, mutable>"
ACC = "!ttg.memdesc<128x64xf32, #acc, #tmem, mutable>"
TRUE = "%true = arith.constant true\n%false = arith.constant false\n%c0 = arith.constant 0 : i32\n"
BARRIER = f"%bar = ttg.local_alloc : () -> {BAR}\nttng.init_barrier %bar, 1 : {BAR}\n"
DONE = f"ttng.tc_gen5_commit %bar : {BAR}\nttng.wait_barrier %bar, %c0 : {BAR}\n"


def matrix(name, rows, columns, element):
    """Lines that make %NAME_at, the addresses of a matrix at %NAME."""
    n, shape = name, f"{rows}x{columns}"
    return f"""
    %{n}m = tt.make_range {{end = {rows} : i32, start = 0 : i32}} : tensor<{rows}xi32, #line>
    %{n}n = tt.make_range {{end = {columns} : i32, start = 0 : i32}} : tensor<{columns}xi32, #row>
    %{n}m1 = tt.expand_dims %{n}m {{axis = 1 : i32}} : tensor<{rows}xi32, #line> -> tensor<{rows}x1xi32, #b>
    %{n}n1 = tt.expand_dims %{n}n {{axis = 0 : i32}} : tensor<{columns}xi32, #row> -> tensor<1x{columns}xi32, #b>
    %{n}w = arith.constant dense<{columns}> : tensor<{rows}x1xi32, #b>
    %{n}m2 = arith.muli %{n}m1, %{n}w : tensor<{rows}x1xi32, #b>
    %{n}m3 = tt.broadcast %{n}m2 : tensor<{rows}x1xi32, #b> -> tensor<{shape}xi32, #b>
    %{n}n3 = tt.broadcast %{n}n1 : tensor<1x{columns}xi32, #b> -> tensor<{shape}xi32, #b>
    %{n}o = arith.addi %{n}m3, %{n}n3 : tensor<{shape}xi32, #b>
    %{n}s = tt.splat %{n} : !tt.ptr<{element}> -> tensor<{shape}x!tt.ptr<{element}>, #b>
    %{n}_at = tt.addptr %{n}s, %{n}o : tensor<{shape}x!tt.ptr<{element}>, #b>, tensor<{shape}xi32, #b>
"""  # noqa: E501 - TTGIR


def load(name, rows, columns, element):
    """The same, and the matrix in %NAME_v."""
    type_ = f"tensor<{rows}x{columns}x!tt.ptr<{element}>, #b>"
    return matrix(name, rows, columns, element) + f"%{name}_v = tt.load %{name}_at : {type_}\n"


def run(body, parameters, arguments, grid=(1,)):
    listed = ", ".join(f"%{name}: !tt.ptr<{element}>" for name, element in parameters)
    text = f"{HEAD}tt.func public @kernel({listed}) {{\n{TRUE}{body}\ntt.return\n}}\n}}\n"
    Program(text).run(grid, arguments)


# ---- numbers


def test_fp4_comes_in_pairs_the_lower_half_first():
    i8 = element_of(parse_type("i8", {}))
    codes = np.array([[0x21, 0xFE], [0x07, 0x80]], np.uint8).view(np.int8)
    along_rows = numbers_of(codes, i8, "e2m1", 4, 1)
    assert along_rows.tolist() == [[0.5, 1, -4, -6], [6, 0, 0, -0.0]]
    down = numbers_of(codes, i8, "e2m1", 4, 0)
    assert down.tolist() == [[0.5, -4], [1, -6], [6, 0], [0, -0.0]]
    with pytest.raises(ValueError, match="in pairs along the reduced dimension only"):
        numbers_of(codes, i8, "e2m1", 2, 1)
    with pytest.raises(ValueError, match="no operands of e3m2"):
        numbers_of(codes, i8, "e3m2", 2, 1)


def test_bytes_are_fp8_where_the_product_says_so():
    i8 = element_of(parse_type("i8", {}))
    codes = np.array([[0x38, 0xC0]], np.uint8).view(np.int8)
    assert numbers_of(codes, i8, "e4m3", 2, 1).tolist() == [[1, -2]]
    assert numbers_of(codes, i8, "e5m2", 2, 1).tolist() == [[0.5, -2]]


def test_scales_are_powers_of_two():
    i8 = element_of(parse_type("i8", {}))
    codes = np.array([127, 130, 0, 255], np.uint8).view(np.int8)
    found = scales_of(codes, i8)
    assert found[:3].tolist() == [1, 8, 2.0**-127]
    assert np.isnan(found[3])


def test_blocks_of_scales_become_rows_and_columns():
    scales = np.arange(256 * 8).reshape(256, 8)
    blocks = scales.reshape(2, 4, 32, 2, 4).transpose(0, 3, 2, 1, 4)
    assert (unpacked_scales(blocks, (256, 8)) == scales).all()
    assert (unpacked_scales(scales, (256, 8)) == scales).all()
    with pytest.raises(ValueError, match="cannot read scales"):
        unpacked_scales(scales, (128, 8))


# ---- products

A8 = "!ttg.memdesc<128x64xi8, #s8, #smem, mutable>"
B8 = "!ttg.memdesc<64x64xi8, #s8, #smem, mutable>"
BT = "!ttg.memdesc<64x64xi8, #t8, #smem, mutable>"
SA = "!ttg.memdesc<128xNxi8, #sf, #tmem, mutable>"
SB = "!ttg.memdesc<64xNxi8, #sf, #tmem, mutable>"


def scaled(kind, count):
    """A product of a [128, 64] and b [64, 64], bytes, with scales for each 32 numbers."""
    sa, sb = (text.replace("N", str(count)) for text in (SA, SB))
    return (
        load("a", 128, 64, "i8")
        + load("b", 64, 64, "i8")
        + load("p", 128, count, "i8")
        + load("q", 64, count, "i8")
        + matrix("y", 128, 64, "f32")
        + BARRIER
        + f"""
    %sa = ttg.local_alloc %a_v : (tensor<128x64xi8, #b>) -> {A8}
    %sb = ttg.local_alloc %b_v : (tensor<64x64xi8, #b>) -> {B8}
    ttng.fence_async_shared {{bCluster = false}}
    %bt = ttg.memdesc_trans %sb {{order = array<i32: 1, 0>}} : {B8} -> {BT}
    %ta = ttng.tmem_alloc %p_v : (tensor<128x{count}xi8, #b>) -> {sa}
    %tb = ttng.tmem_alloc %q_v : (tensor<64x{count}xi8, #b>) -> {sb}
    %acc = ttng.tmem_alloc : () -> {ACC}
    ttng.tc_gen5_mma_scaled %sa, %bt, %acc, %ta, %tb, %false, %true lhs = {kind} rhs = {kind} : {A8}, {BT}, {ACC}, {sa}, {sb}
    {DONE}
    %r = ttng.tmem_load %acc : {ACC} -> tensor<128x64xf32, #b>
    tt.store %y_at, %r : tensor<128x64x!tt.ptr<f32>, #b>
"""  # noqa: E501 - TTGIR
    )


@pytest.mark.parametrize("kind", ["e2m1", "e4m3", "e5m2"])
def test_products_take_scales_of_both_sides(kind):
    rng = np.random.default_rng(0)
    # Finite numbers of every type.
    a, b = (rng.integers(0, 0x7B, (rows, 64)).astype(np.int8) for rows in (128, 64))
    count = 4 if kind == "e2m1" else 2
    p, q = (rng.integers(120, 128, (rows, count)).astype(np.uint8) for rows in (128, 64))
    y = np.zeros((128, 64), np.float32)
    parameters = [("a", "i8"), ("b", "i8"), ("p", "i8"), ("q", "i8"), ("y", "f32")]
    run(scaled(kind, count), parameters, [a, b, p.view(np.int8), q.view(np.int8), y])
    i8 = element_of(parse_type("i8", {}))
    left, right = (
        numbers_of(x, i8, kind, count * 32, 1).astype(np.float64)
        * np.repeat(np.ldexp(1.0, s.astype(int) - 127), 32, axis=1)
        for x, s in ((a, p), (b, q))
    )
    np.testing.assert_allclose(y, left @ right.T, rtol=1e-5)


# ---- copies into tensor memory

F32 = "!ttg.memdesc<128x64xf32, #s32, #smem, mutable>"
COPY = (
    load("x", 128, 64, "f32")
    + matrix("y", 128, 64, "f32")
    + BARRIER
    + f"""
    %s = ttg.local_alloc %x_v : (tensor<128x64xf32, #b>) -> {F32}
    ttng.fence_async_shared {{bCluster = false}}
    %acc = ttng.tmem_alloc : () -> {ACC}
    ttng.tmem_copy %s, %acc : {F32}, {ACC}
    {DONE}
    %r = ttng.tmem_load %acc : {ACC} -> tensor<128x64xf32, #b>
    tt.store %y_at, %r : tensor<128x64x!tt.ptr<f32>, #b>
"""
)
FLOATS = [("x", "f32"), ("y", "f32")]


def test_copies_keep_rows_and_columns():
    x, y = np.arange(128 * 64, dtype=np.float32).reshape(128, 64), np.zeros((128, 64), np.float32)
    run(COPY, FLOATS, [x, y])
    assert (x == y).all()


@pytest.mark.parametrize("line", [DONE, "ttng.fence_async_shared {bCluster = false}"])
def test_copies_need_a_commit_and_a_fence(line):
    x, y = np.zeros((2, 128, 64), np.float32)
    with pytest.raises(EmulationError, match=r"in flight|asynchronous proxy"):
        run(COPY.replace(line, ""), FLOATS, [x, y])


# ---- packed arithmetic


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("add", 5.5), ("sub", -1.5), ("mul", 7), ("fma", 9), ("min", 2), ("max", 3.5)],
)
def test_packed_arithmetic(kind, expected):
    type_ = "tensor<128x64xf32, #b>"
    operands, types = ("%a, %c", f"{type_}, {type_}")
    if kind == "fma":
        operands, types = ("%a, %c, %a", f"{type_}, {type_}, {type_}")
    body = (
        matrix("y", 128, 64, "f32")
        + f"""
    %a = arith.constant dense<2.0> : {type_}
    %c = arith.constant dense<3.5> : {type_}
    %r = ttng.packed_arith {kind} {operands} : ({types}) -> {type_}
    tt.store %y_at, %r : tensor<128x64x!tt.ptr<f32>, #b>
"""
    )
    y = np.zeros((128, 64), np.float32)
    run(body, [("y", "f32")], [y])
    assert (y == expected).all()


# ---- cluster launch control

ANSWER = "!ttg.memdesc<2xi64, #plain, #smem, mutable>"
CANCEL = (
    BARRIER
    + f"""
    %none = arith.constant -1 : i32
    %answer = ttg.local_alloc : () -> {ANSWER}
    ttng.barrier_expect %bar, 16, %true : {BAR}
    ttng.clc_try_cancel %answer, %bar : {ANSWER}, {BAR}
    ttng.wait_barrier %bar, %c0 : {BAR}
    %got = ttng.clc_load_result %answer : {ANSWER} -> i128
    %is = ttng.clc_is_canceled %got : i128 -> i1
    %id = ttng.clc_get_program_id %got, x : i128 -> i32
    %v = arith.select %is, %id, %none : i32
    %pid = tt.get_program_id x : i32
    %at = tt.addptr %y, %pid : !tt.ptr<i32>, i32
    tt.store %at, %v : !tt.ptr<i32>
"""
)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_a_cta_takes_over_one_that_has_not_started(size):
    y = np.full(size, -2, np.int32)
    run(CANCEL, [("y", "i32")], [y], grid=(size,))
    # Each CTA takes the next one, which then does not run; the last one finds none.
    expected = [number + 1 if number % 2 == 0 else -2 for number in range(size)]
    if size % 2:
        expected[-1] = -1
    assert y.tolist() == expected


def test_the_answer_has_to_be_waited_for():
    body = CANCEL.replace(f"ttng.wait_barrier %bar, %c0 : {BAR}", "")
    with pytest.raises(EmulationError, match="reads 'answer' while a copy into it is in flight"):
        run(body, [("y", "i32")], [np.zeros(4, np.int32)], grid=(4,))
