"""Tensor memory and tcgen05 operations, in small TTGIR kernels for sm_100."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from triton_ext.backends.nvidia.emulator.tensor_memory import element_places  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402
from triton_ext.ir.attribute_values import parse_attribute  # noqa: E402

ENCODINGS = {
    "t": "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 1>",
    "t2": "#ttng.tensor_memory_encoding<blockM = 64, blockN = 128, colStride = 1>",
    "t4": "#ttng.tensor_memory_encoding<blockM = 64, blockN = 256, colStride = 1>",
    "wide": "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>",
}
HEAD = "".join(f"#{name} = {text}\n" for name, text in ENCODINGS.items())
HEAD += """#b = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#line = #ttg.slice<{dim = 1, parent = #b}>
#row = #ttg.slice<{dim = 0, parent = #b}>
#s = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
#tmem = #ttng.tensor_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:100", "ttg.threads-per-warp" = 32 : i32} {
"""  # noqa: E501 - TTGIR

BAR = "!ttg.memdesc<1xi64, #bar, #smem, mutable>"
HALF = "!ttg.memdesc<64x64xf16, #s, #smem, mutable>"
ACC = "!ttg.memdesc<64x64xf32, #t, #tmem, mutable>"

# One line each; `$mma acc a b true` stands for `mma` with these operands.
MACROS = {
    "bar": f"%{{0}} = ttg.local_alloc : () -> {BAR}\nttng.init_barrier %{{0}}, 1 : {BAR}",
    "wait": f"ttng.wait_barrier %{{0}}, %c{{1}} : {BAR}",
    "smem": f"%{{0}} = ttg.local_alloc %{{1}} : (tensor<64x64xf16, #b>) -> {HALF}",
    "put": f"ttg.local_store %{{1}}, %{{0}} : tensor<64x64xf16, #b> -> {HALF}",
    "fence": "ttng.fence_async_shared {{bCluster = false}}",
    "acc": f"%{{0}} = ttng.tmem_alloc : () -> {ACC}",
    "set": f"ttng.tmem_store %{{1}}, %{{0}}, %true : tensor<64x64xf32, #b> -> {ACC}",
    "get": f"%{{0}} = ttng.tmem_load %{{1}} : {ACC} -> tensor<64x64xf32, #b>",
    "mma": f"ttng.tc_gen5_mma %{{1}}, %{{2}}, %{{0}}, %{{3}}, %true : {HALF}, {HALF}, {ACC}",
    "done": f"ttng.tc_gen5_commit %{{0}} : {BAR}",
    "keep": "tt.store %at, %{0} : tensor<64x64x!tt.ptr<f32>, #b>",
}


def kernel(body):
    """A kernel over %x and %at, the addresses of a result of 64 x 64."""
    lines = [
        "%true = arith.constant true",
        "%false = arith.constant false",
        "%c0 = arith.constant 0 : i32",
        "%c1 = arith.constant 1 : i32",
        "%two = arith.constant dense<2.0> : tensor<64x64xf32, #b>",
        "%ones = arith.constant dense<1.0> : tensor<64x64xf16, #b>",
        "%m = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #line>",
        "%n = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #row>",
        "%m1 = tt.expand_dims %m {axis = 1 : i32} : tensor<64xi32, #line> -> tensor<64x1xi32, #b>",
        "%n1 = tt.expand_dims %n {axis = 0 : i32} : tensor<64xi32, #row> -> tensor<1x64xi32, #b>",
        "%pitch = arith.constant dense<64> : tensor<64x1xi32, #b>",
        "%m2 = arith.muli %m1, %pitch : tensor<64x1xi32, #b>",
        "%m3 = tt.broadcast %m2 : tensor<64x1xi32, #b> -> tensor<64x64xi32, #b>",
        "%n3 = tt.broadcast %n1 : tensor<1x64xi32, #b> -> tensor<64x64xi32, #b>",
        "%o = arith.addi %m3, %n3 : tensor<64x64xi32, #b>",
        "%ys = tt.splat %y : !tt.ptr<f32> -> tensor<64x64x!tt.ptr<f32>, #b>",
        "%at = tt.addptr %ys, %o : tensor<64x64x!tt.ptr<f32>, #b>, tensor<64x64xi32, #b>",
        "%xs = tt.splat %x : !tt.ptr<f32> -> tensor<64x64x!tt.ptr<f32>, #b>",
        "%xat = tt.addptr %xs, %o : tensor<64x64x!tt.ptr<f32>, #b>, tensor<64x64xi32, #b>",
        "%xf = tt.load %xat : tensor<64x64x!tt.ptr<f32>, #b>",
        "%xh = arith.truncf %xf : tensor<64x64xf32, #b> to tensor<64x64xf16, #b>",
    ]
    for line in body.strip().splitlines():
        line = line.strip()
        if line.startswith("$"):
            name, *words = line[1:].split()
            line = MACROS[name].format(*words)
        lines.append(line)
    text = "\n".join(lines)
    return (
        f"{HEAD}tt.func public @kernel(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {{\n{text}\n"
        "tt.return\n}\n}\n"
    )


X = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) * 7) % 61 / 16


def run(body, seed=0):
    """y of a kernel over X."""
    y = np.zeros((64, 64), np.float32)
    Program(kernel(body)).run((1,), (X.copy(), y), seed)
    return y


def message(body, seed=0):
    with pytest.raises(EmulationError) as caught:
        run(body, seed)
    return str(caught.value)


PRODUCT = """
    $smem a xh
    $smem b ones
    $fence
    $bar bar
    $acc acc
    $set acc two
    $mma acc a b true
    $done bar
    $wait bar 0
    $get r acc
    $keep r
"""


def test_products_add_to_the_accumulator():
    assert (run(PRODUCT) == X @ np.ones((64, 64)) + 2).all()


def test_products_without_use_d_replace_it():
    body = PRODUCT.replace("$set acc two\n", "").replace("a b true", "a b false")
    assert (run(body) == X @ np.ones((64, 64))).all()


def test_products_of_one_part_follow_each_other():
    body = PRODUCT.replace("$mma acc a b true", "$mma acc a b false\n$mma acc a b true")
    assert (run(body) == 2 * (X @ np.ones((64, 64)))).all()


def test_a_product_with_a_barrier_commits_to_it():
    mma = MACROS["mma"].format("acc", "a", "b", "true")
    with_barrier = mma.replace("%true : ", "%true, %bar[%true] {is_async} : ") + f", {BAR}"
    body = PRODUCT.replace("$mma acc a b true", with_barrier).replace("$done bar\n", "")
    assert (run(body) == X @ np.ones((64, 64)) + 2).all()
    assert "deadlock" in message(body.replace("%bar[%true]", "%bar[%false]"))


def test_a_product_that_is_off_does_nothing():
    mma = MACROS["mma"].format("acc", "a", "b", "true").replace("%true, %true", "%true, %false")
    assert (run(PRODUCT.replace("$mma acc a b true", mma)) == 2).all()


def test_the_first_wait_for_two_commits_lands_the_products_before_it():
    body = PRODUCT.replace("$done bar\n", "$bar other\n$done other\n$done bar\n")
    assert (run(body) == X @ np.ones((64, 64)) + 2).all()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("$wait bar 0\n", ""), "reads 'acc' in tensor memory while an operation"),
        (("$wait bar 0\n", "$set acc two\n"), "overwrites 'acc' in tensor memory while"),
        (("$wait bar 0\n", "$put a ones\n"), "overwrites 'a' while a matrix product that reads it"),
        (("$done bar\n", ""), "deadlock"),
        (("$set acc two\n", ""), "reads 'acc' before all of its elements were written"),
        (("$fence\n", ""), "through the asynchronous proxy"),
        (
            ("$done bar\n    $wait bar 0\n    $get r acc\n    $keep r\n", ""),
            "the kernel ends while",
        ),
    ],
)
def test_faults(edit, expected):
    before, after = edit
    assert before in PRODUCT
    assert expected in message(PRODUCT.replace(before, after))


def test_a_note_names_the_product_in_flight():
    assert "note: in flight: ttng.tc_gen5_mma" in message(PRODUCT.replace("$wait bar 0\n", ""))


def test_a_commit_beyond_the_count_is_a_fault():
    # Bytes that never come keep the phase open, so the second commit is one too many.
    expect = f"ttng.barrier_expect %bar, 16, %true : {BAR}"
    body = PRODUCT.replace("$done bar\n", f"$done bar\n$done bar\n{expect}\n")
    assert "a commit arrives at mbarrier 'bar', whose phase expects 0 more" in message(body)


# ---- views


def test_slices_and_arrays_of_buffers():
    array = "!ttg.memdesc<2x64x64xf32, #t, #tmem, mutable>"
    left = "!ttg.memdesc<64x32xf32, #t, #tmem, mutable, 64x64>"
    y = run(f"""
        %all = ttng.tmem_alloc : () -> {array}
        %one = ttg.memdesc_index %all[%c1] : {array} -> {ACC}
        %zero = ttg.memdesc_index %all[%c0] : {array} -> {ACC}
        $set one xf
        $set zero two
        %right = ttng.tmem_subslice %one {{N = 32 : i32}} : {ACC} -> {left}
        %half = arith.constant dense<-1.0> : tensor<64x32xf32, #b>
        ttng.tmem_store %half, %right, %true : tensor<64x32xf32, #b> -> {left}
        $get r one
        $keep r
    """)
    assert (y[:, :32] == X[:, :32]).all()
    assert (y[:, 32:] == -1).all()


def test_another_type_shares_the_columns():
    half = "!ttg.memdesc<64x128xf16, #t2, #tmem, mutable>"
    y = run(f"""
        $acc acc
        $set acc two
        %h = ttg.memdesc_reinterpret %acc : {ACC} -> {half}
        %v = ttng.tmem_load %h : {half} -> tensor<64x128xf16, #b>
        %w = arith.constant dense<1.0> : tensor<64x128xf16, #b>
        ttng.tmem_store %w, %h, %true : tensor<64x128xf16, #b> -> {half}
        $get r acc
        $keep r
    """)
    assert (y == np.frombuffer(np.array([1, 1], np.float16).tobytes(), np.float32)[0]).all()
    too_wide = half.replace("64x128xf16, #t2", "64x256xf16, #t4")
    text = kernel(f"$acc acc\n%h = ttg.memdesc_reinterpret %acc : {ACC} -> {too_wide}")
    with pytest.raises(EmulationError, match="does not fit into 'acc', which has 64"):
        Program(text).run((1,), (X.copy(), np.zeros((64, 64), np.float32)))


@pytest.mark.parametrize(
    ("shape", "layout", "columns"),
    [("64x64", "t", 64), ("128x64", "t", 64), ("64x128", "t", 64), ("256x64", "wide", 128)],
)
def test_blocks_lie_as_the_unit_has_them(shape, layout, columns):
    """The elements of each shape take all lanes and columns once (64 rows take half the lanes)."""
    encoding = parse_attribute(ENCODINGS[layout])
    rows, cols = (int(n) for n in shape.split("x"))
    lane, byte, found = element_places(encoding, (rows, cols), 4)
    assert found == columns
    assert np.unique(lane * 4096 + byte).size == rows * cols
    assert np.unique(lane).size == (64 if (rows, cols) == (64, 64) else 128)
    assert byte.max() == columns * 4 - 4


def test_loads_reduce_along_the_columns():
    type_ = f"{ACC} -> tensor<64x64xf32, #b>, tensor<64xf32, #line>"
    y = run(f"""
        $acc acc
        $set acc xf
        %r, %red = ttng.tmem_load %acc {{redOp = #ttng.redOp<max>, abs = false}} : {type_}
        %e = tt.expand_dims %red {{axis = 1 : i32}} : tensor<64xf32, #line> -> tensor<64x1xf32, #b>
        %w = tt.broadcast %e : tensor<64x1xf32, #b> -> tensor<64x64xf32, #b>
        $keep w
    """)
    assert (y == X.max(axis=1, keepdims=True)).all()


# ---- partitions

SPECIALIZED = (
    """
    $smem a xh
    $smem b ones
    $fence
    $bar bar
    $acc acc
    $set acc two
    ttg.warp_specialize(%acc, %a, %b, %bar, %true)
    attributes {requestedRegisters = array<i32: 24>}
    default {
      $wait bar 0
      $get r acc
      $keep r
      ttg.warp_yield
    }
    partition0(%acc1: ACC, %a1: HALF, %b1: HALF, %bar1: BAR, %true1: i1) num_warps(1) {
      ttng.tc_gen5_mma %a1, %b1, %acc1, %true1, %true1 : HALF, HALF, ACC
      ttng.tc_gen5_commit %bar1 : BAR
      ttg.warp_return
    } : (ACC, HALF, HALF, BAR, i1) -> ()
""".replace("ACC", ACC)
    .replace("HALF", HALF)
    .replace("BAR", BAR)
)


@pytest.mark.parametrize("seed", range(5))
def test_a_commit_orders_partitions(seed):
    assert (run(SPECIALIZED, seed) == X @ np.ones((64, 64)) + 2).all()


@pytest.mark.parametrize("seed", range(5))
def test_partitions_race_without_it(seed):
    text = message(SPECIALIZED.replace("$wait bar 0\n", ""), seed)
    assert "in flight" in text or "nothing orders the two accesses" in text
