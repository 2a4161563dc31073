"""TDM copies of triton_ext.gluon.amd: what they do on every host, and what is refused and how."""

from __future__ import annotations

import re

import pytest

np = pytest.importorskip("numpy")
triton = pytest.importorskip("triton")

from amd_kernels import copy_any, copy_block, copy_rows, fused, move, refused  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton_ext.errors import LaunchError, UnsupportedError  # noqa: E402
from triton_ext.gluon import amd as xamd  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402


def needs(name):
    found = capabilities()[name]
    return pytest.mark.skipif(not found.available, reason=found.reason)


def lacks(name):
    return pytest.mark.skipif(
        capabilities()[name].available, reason="this Triton has it; nothing to refuse"
    )


needs_rows = needs("amd-tdm-rows")
# Gathers take padding and descriptors positions from the same release on.
needs_positions = needs("amd-tdm-rows-by-layout")
needs_partitions = needs("amd-partitioned-shared")
PADS = capabilities()["amd-tdm-rows-by-layout"].available
# So do stores, from the release on that has gathers.
PADS_STORES = capabilities()["amd-tdm-rows"].available


def block_of(x, row, column):
    """The block at a position, and where it lies in the tensor."""
    place = np.s_[row : row + 16, column : column + 32]
    return x[place], place


# ---- what they do


def test_a_grid_sees_all_arguments(fresh_triton_cache):
    x, y, seen = np.ones((40, 80), np.float32), np.zeros((40, 80), np.float32), {}
    layout = xamd.smem_layout([16, 32], 32, False)

    def grid(given):
        seen.update(given)
        return (1,)

    xamd.emulated(copy_block)[grid](x, y, 40, 80, 0, 0, layout, num_warps=4)
    assert list(seen) == copy_block.arg_names
    assert list(seen.values())[-1] is layout
    assert y.sum() == 16 * 32


@pytest.mark.parametrize("pad", [True, False] if PADS_STORES else [False])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 10), (30, 64)])
def test_load_and_store(fresh_triton_cache, pad, row, column):
    x = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)
    y = np.zeros_like(x)
    layout = xamd.smem_layout([16, 32], 32, pad)
    xamd.emulated(copy_block)[1,](x, y, 40, 80, row, column, layout)
    expected = np.zeros_like(x)
    block, place = block_of(x, row, column)
    expected[place] = block
    np.testing.assert_array_equal(y, expected)


@needs_rows
@pytest.mark.parametrize("pad", [True, False] if PADS else [False])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_gather_and_scatter(fresh_triton_cache, pad, short, num_warps):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 80)).astype(np.float16)
    y = np.zeros_like(x)
    rows = rng.permutation(50)[:16].astype(np.int32)  # some out of bounds
    layout = xamd.smem_layout([16, 32], 16, pad)
    index = xamd.index_layout(16, num_warps)
    launch = xamd.emulated(copy_rows)
    arguments = (x, y, rows, 40, 80, 8, layout, index, short)
    launch[1,](*arguments, num_warps=num_warps)
    expected = np.zeros_like(x)
    inside = rows[rows < 40]
    expected[inside, 8:40] = x[inside, 8:40]
    np.testing.assert_array_equal(y, expected)
    # As many instructions as are said to be.
    asm = launch.compile(*arguments, num_warps=num_warps).asm
    count = xamd.rows_instructions(16 // num_warps, 16 if short else 32)
    for name in ("tensor_load_to_lds", "tensor_store_from_lds"):
        assert len(re.findall(rf"^\s*{name}", asm["amdgcn"], re.M)) == count


@needs_positions
@pytest.mark.parametrize("on", [1, 0])
def test_descriptors_that_are_changed(fresh_triton_cache, on):
    x = np.random.default_rng(2).standard_normal((40, 80)).astype(np.float32)
    y = np.full_like(x, -1)
    xamd.emulated(move)[1,](x, y, 40, 80, on, xamd.smem_layout([16, 32], 32))
    first = x[2:18, 4:36] if on else np.full((16, 32), -1, np.float32)
    np.testing.assert_array_equal(y[:16, :32], first)
    second = np.zeros((16, 32), np.float32)
    second[:5, :6] = x[:5, :6]
    np.testing.assert_array_equal(y[16:32, :32], second)


@needs("amd-tdm-fused")
def test_fused_loads(fresh_triton_cache):
    x = np.random.default_rng(3).standard_normal((32, 32)).astype(np.float32)
    y = np.zeros_like(x)
    xamd.emulated(fused)[1,](x, y, 32, 32, xamd.smem_layout([16, 32], 32))
    np.testing.assert_array_equal(y, x)


def test_bf16(fresh_triton_cache):
    x = np.random.default_rng(4).integers(0, 1 << 15, (16, 32), dtype=np.uint16)
    x[(x & 0x7F80) == 0x7F80] = 0  # neither Inf nor NaN
    y = np.zeros_like(x)
    launch = xamd.emulated(copy_block, types={"x_ptr": "*bf16", "y_ptr": "*bf16"})
    launch[1,](x, y, 16, 32, 0, 0, xamd.smem_layout([16, 32], 16, PADS_STORES))
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.zeros((4, 4), np.complex64), "'x_ptr': the emulator has no arrays of complex64"),
        ("text", "'x_ptr': expected a CPU tensor, a numpy array, .* or a float, got str"),
    ],
)
def test_arguments_of_a_launch(argument, message):
    y = np.zeros((4, 4), np.float32)
    with pytest.raises(LaunchError, match=message):
        xamd.emulated(copy_block)[1,](argument, y, 4, 4, 0, 0, xamd.smem_layout([16, 32], 32))


# ---- hosts and targets


def compile_kernel(kernel, signature, constants, arch="gfx1250"):
    names = kernel.arg_names
    full = {name: signature.get(name, "constexpr") for name in names}
    source = GluonASTSource(
        kernel, full, {(names.index(name),): value for name, value in constants.items()}, {}
    )
    waves = 64 if arch.startswith("gfx9") else 32
    return triton.compile(source, target=GPUTarget("hip", arch, waves))


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
def test_another_gpu_is_refused_by_name(fresh_triton_cache, arch):
    with pytest.raises(CompilationError) as caught:
        compile_any(arch=arch, kind="load")
    assert f"needs the tensor data mover of gfx1250 (CDNA5), the target is {arch}" in str(
        caught.value
    )


def test_a_gpu_that_this_triton_may_not_know(fresh_triton_cache):
    capability = capabilities()["amd-gfx1251"]
    if capability.available:
        assert 'ttg.target = "hip:gfx1251"' in compile_any(arch="gfx1251", kind="load").asm["ttgir"]
        return
    with pytest.raises(CompilationError) as caught:
        compile_any(arch="gfx1251", kind="load")
    assert f"make_tensor_descriptor: {capability.reason}" in str(caught.value)


def test_an_nvidia_gpu_is_refused_by_name(fresh_triton_cache):
    layout = xamd.smem_layout([16, 32], 32)
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    signature |= dict.fromkeys(("height", "width", "row", "column"), "i32")
    names = copy_block.arg_names
    full = {name: signature.get(name, "constexpr") for name in names}
    source = GluonASTSource(copy_block, full, {(names.index("LAYOUT"),): layout}, {})
    with pytest.raises(CompilationError, match="the target is cuda"):
        triton.compile(source, target=GPUTarget("cuda", 90, 32))


@lacks("amd-tdm-rows")
def test_gathers_are_refused_by_name(fresh_triton_cache):
    with pytest.raises(CompilationError, match=r"has no TDM gather and scatter; install 3\.7"):
        compile_any()


@lacks("amd-tdm-rows-by-layout")
def test_descriptors_without_position_are_refused_by_name(fresh_triton_cache):
    with pytest.raises(CompilationError, match=r"neither position nor predicate; install 3\.8"):
        compile_refused("bounds")
    if capabilities()["amd-tdm-rows"].available:
        with pytest.raises(CompilationError, match="does not support padding"):
            compile_any(LAYOUT=xamd.smem_layout([32, 64], 16))
        spread = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))
        with pytest.raises(
            CompilationError, match="assumes that the rows of a wave are contiguous"
        ):
            compile_any(IDX_LAYOUT=spread, LAYOUT=xamd.smem_layout([32, 64], 16, False))


@lacks("amd-tdm-rows")
def test_padded_stores_are_refused_by_name(fresh_triton_cache):
    with pytest.raises(CompilationError, match=r"a store of this Triton does not support p"):
        compile_any(kind="store", LAYOUT=xamd.smem_layout([32, 64], 16))


@lacks("amd-partitioned-shared")
def test_partitioned_layouts_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"install 3\.8 or newer"):
        xamd.partitioned_layout([32, 64], 16, 0)
    with pytest.raises(UnsupportedError, match=r"install 3\.8 or newer"):
        xamd.partitioned_dot_layouts([64, 64, 32], 16, 4, [16, 16, 32])


@lacks("amd-tdm-fused")
def test_fused_loads_are_refused_by_name(fresh_triton_cache):
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "height": "i32", "width": "i32"}
    layout = xamd.smem_layout([16, 32], 32)
    with pytest.raises(CompilationError, match=r"has no fused TDM load|neither position"):
        compile_kernel(fused, signature, {"LAYOUT": layout})


# ---- what the data mover cannot do


def rows_layout(size, threads=(1, 32), warps=(4, 1)):
    return gl.SliceLayout(1, gl.BlockedLayout([size, 1], list(threads), list(warps), [1, 0]))


def padded(pairs, shape, order=(1, 0)):
    return gl.PaddedSharedLayout.with_identity_for(pairs, list(shape), list(order))


def compile_any(arch="gfx1250", kind="gather", dtype="fp16", **changes):
    constants = {
        "SHAPE": [32, 64],
        "BLOCK": [32, 64],
        "LAYOUT": xamd.smem_layout([32, 64], 16, PADS),
        "IDX_LAYOUT": xamd.index_layout(32, 4),
        "ROWS": 32,
        "TYPE": gl.int32,
        "KIND": kind,
        "COLUMN": 0,
    }
    signature = {"p": f"*{dtype}", "i": "*i32"}
    return compile_kernel(copy_any, signature, {**constants, **changes}, arch)


def compile_refused(kind):
    constants = {
        "LAYOUT": xamd.smem_layout([16, 32], 16, PADS),
        "KIND": kind,
        "STAGE": xamd.TdmStage((8, 1)),
    }
    return compile_kernel(refused, {"p": "*fp16", "n": "i32"}, constants)


def the_sentence(error):
    """The last lines of a CompilationError: what is ours, behind the kernel's line."""
    text = str(error.value)
    found = re.search(r"^\S+amd_kernels\.py:\d+:\d+: error: ", text, re.M)
    return text[found.end() :]


WITHOUT_PADDING = {"LAYOUT": gl.SwizzledSharedLayout(1, 1, 1, [1, 0])}
ROWS_PROBLEMS = [
    ({"IDX_LAYOUT": rows_layout(1, (32, 1), (1, 4))}, "are spread over the lanes of a wave"),
    ({"IDX_LAYOUT": rows_layout(2, (2, 16))}, "are spread over the lanes of a wave"),
    ({"IDX_LAYOUT": gl.BlockedLayout([1], [32], [4], [0])}, "spread over the lanes of a wave"),
    ({"ROWS": 64}, "64 row indices for an LDS buffer of 32 rows"),
    ({"ROWS": 16}, "16 row indices for an LDS buffer of 32 rows"),
    ({"TYPE": gl.int64}, "row indices of type int64, expected int16 or int32; use .to(gl.int32)"),
    ({"TYPE": gl.int8}, "row indices of type int8, expected int16 or int32"),
    ({"TYPE": gl.float32}, "row indices of type fp32, expected int16 or int32"),
    (
        {
            "ROWS": 1024,
            "SHAPE": [1024, 64],
            "BLOCK": [1024, 64],
            "IDX_LAYOUT": rows_layout(1024, (1, 32), (1, 4)),
            **WITHOUT_PADDING,
        },
        "1024 rows per wave are 128 instructions, TENSORcnt counts to 63",
    ),
    (
        {"COLUMN": 3},
        "column 3 of elements of 16 bits starts inside of a dword: expected a multiple",
    ),
    ({"COLUMN": -4}, "column -4 is negative"),
    (
        {"SHAPE": [32, 1], "BLOCK": [32, 1], **WITHOUT_PADDING},
        "a row of 1 elements of 16 bits is not whole dwords: expected a multiple of 2 columns",
    ),
]
LAYOUT_PROBLEMS = [
    (
        padded([[2, 8]], (32, 64)),
        "padding every 2 elements of 16 bits: expected a power of two from 4",
    ),
    (padded([[64, 1]], (32, 64)), "padding of 1 elements of 16 bits: expected a multiple of 2"),
    (padded([[64, 512]], (32, 64)), "up to 256 elements (1 to 128 dwords)"),
    (padded([[64, 8], [128, 8]], (32, 64)), "holds one padding, the layout has 2"),
    (padded([[64, 8]], (32, 64), (0, 1)), "elements in row-major order"),
    (gl.SwizzledSharedLayout(4, 2, 8, [1, 0]), "does not swizzle: expected max_phase 1, got 8"),
    (gl.SwizzledSharedLayout(1, 1, 1, [0, 1]), "expected order [1, 0], got [0, 1]"),
]


@needs_rows
@pytest.mark.parametrize("kind", ["gather", "scatter"])
@pytest.mark.parametrize(("change", "message"), ROWS_PROBLEMS, ids=lambda x: str(x)[:40])
def test_rows_that_cannot_be_copied(fresh_triton_cache, kind, change, message):
    with pytest.raises(CompilationError) as caught:
        compile_any(kind=kind, **change)
    assert message in the_sentence(caught)
    assert f"xamd.async_{kind}(desc, rows, COLUMN, smem)" in str(caught.value)


@pytest.mark.parametrize(("layout", "message"), LAYOUT_PROBLEMS, ids=lambda x: str(x)[:40])
def test_layouts_that_cannot_be_copied(fresh_triton_cache, layout, message):
    with pytest.raises(CompilationError) as caught:
        compile_any(kind="load", LAYOUT=layout)
    assert message in the_sentence(caught)
    assert "xamd.make_tensor_descriptor(p, " in str(caught.value)


@pytest.mark.parametrize("kind", ["store", *(["scatter"] if PADS else [])])
def test_padding_inside_of_stored_rows(fresh_triton_cache, kind):
    layout = padded([[32, 8]], (32, 64))
    compile_any(kind="load", LAYOUT=layout)
    with pytest.raises(
        CompilationError, match="supports padding only after whole rows: expected an"
    ):
        compile_any(kind=kind, LAYOUT=layout)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ([1, 131072], "dimension 1 of the block is 131072, a descriptor holds 65535"),
        ([32, 3], "dimension 1 of the block is 3, expected a power of two"),
        ([3, 0], "2 problems"),
    ],
)
def test_blocks_that_cannot_be_copied(fresh_triton_cache, block, message):
    with pytest.raises(CompilationError) as caught:
        compile_any(kind="load", BLOCK=block, SHAPE=[32, 64], **WITHOUT_PADDING)
    assert message in the_sentence(caught)


@needs_partitions
@pytest.mark.parametrize("kind", ["store", "gather", "scatter"])
def test_only_loads_take_pieces(fresh_triton_cache, kind):
    layout = xamd.partitioned_layout([32, 64], 16, 0)
    compile_any(kind="load", LAYOUT=layout)
    with pytest.raises(CompilationError, match=f"a {kind} does not support partitioned layouts"):
        compile_any(kind=kind, LAYOUT=layout)


@needs_partitions
def test_pieces_that_cannot_be_loaded(fresh_triton_cache):
    from triton_ext.backends.amd.gluon import hosts

    layout = hosts.cdna5().PartitionedSharedLayout
    for arguments, message in (
        ((8, 1, 0, padded([[64, 8]], (4, 64))), "4 waves cannot fill 8 partitions"),
        ((1, 2, 0, padded([[64, 8]], (16, 64))), "num_partitions is 1: expected 2 or more"),
        ((2, 64, 0, padded([[64, 8]], (1, 64))), "cannot be cut into 2 partitions x 64 groups"),
        ((2, 1, 2, padded([[64, 8]], (16, 64))), "partition_dim is 2, the block has 2 dimensions"),
        ((2, 1, 0, padded([[64, 8]], (32, 64))), "a piece has shape [16, 64], its layout has"),
        ((2, 1, 0, padded([[2, 8]], (16, 64))), "padding every 2 elements"),
    ):
        with pytest.raises(CompilationError) as caught:
            compile_any(kind="load", LAYOUT=layout(*arguments))
        assert message in the_sentence(caught), message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("base", "make_tensor_descriptor: base must be a pointer, got a scalar int32"),
        ("sizes", "expected as many sizes, strides and block sizes, got 1, 2 and 2"),
        ("stride", "the last stride is 100, expected 1: rows must be contiguous"),
        ("no descriptor", "async_load: expected a TDM descriptor, got a scalar"),
        ("offsets", "async_load: expected 2 offsets, outermost first, got 1"),
        ("no offsets", "async_store: offsets: expected a list, got a scalar int32"),
        ("no smem", "async_load: expected shared memory, got a scalar"),
        ("shape", "async_load: the descriptor's block is fp16[16, 32] in "),
        ("swapped", "async_store: expected a TDM descriptor, got shared_memory_descriptor"),
        pytest.param(
            "rows",
            "async_gather: expected a tensor of row indices, got a scalar int32",
            marks=needs_rows,
        ),
        ("wait", "async_wait: num_ops: expected a constant integer, got a scalar int32"),
        ("wait -1", "async_wait: -1 operations in flight: expected 0 to 63 (TENSORcnt)"),
        ("wait 64", "async_wait: 64 operations in flight: expected 0 to 63 (TENSORcnt)"),
        ("stage", "async_wait_stage: expected a constant TdmStage, got 3"),
        ("behind", "8 stages of 9 instructions are 72 in flight, TENSORcnt holds 63"),
        ("instructions", "expected 0 to 63 instructions in flight, got 64"),
        pytest.param(
            "bounds",
            "update_tensor_descriptor: set_bounds has 1 numbers, the descriptor 2",
            marks=needs_positions,
        ),
        pytest.param("nothing", "expected add_offsets, set_bounds or pred", marks=needs_positions),
        pytest.param("clamp", "clamp_bounds goes with add_offsets", marks=needs_positions),
    ],
)
def test_arguments_are_named(fresh_triton_cache, kind, message):
    with pytest.raises(CompilationError) as caught:
        compile_refused(kind)
    assert message in the_sentence(caught)


def test_a_padded_descriptor_needs_the_buffer_in_its_layout(fresh_triton_cache):
    with pytest.raises(CompilationError, match="the shared memory is fp16"):
        compile_any(kind="load", SHAPE=[32, 32], BLOCK=[32, 64], **WITHOUT_PADDING)
