"""Wrong arguments of triton_ext.gluon.amd: one sentence each, at the kernel's line or by name."""

from __future__ import annotations

import linecache
import re

import pytest

np = pytest.importorskip("numpy")
triton = pytest.importorskip("triton")
pytest.importorskip("hypothesis")

from amd_wrong_calls import CALLS, STAGE, wrong_call  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction  # noqa: E402
from triton_ext.gluon import amd as xamd  # noqa: E402
from triton_ext.host import capabilities  # noqa: E402

POWERS = st.integers(0, 6).map(lambda n: 1 << n)
KERNEL = __file__.replace("test_amd_arguments", "amd_wrong_calls")


def needs(call):
    if "fused" in call.text:
        return capabilities()["amd-tdm-fused"]
    if "hint" in call.text or "update" in call.text or ("gather" in call.text and call.positions):
        return capabilities()["amd-tdm-rows-by-layout"]
    return capabilities()["amd-tdm-rows" if "gather" in call.text else "interpreter"]


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[call.text[:60] for call in CALLS])
def test_in_a_kernel(fresh_triton_cache, number):
    call = CALLS[number]
    needed = needs(call)
    if not needed.available:
        pytest.skip(needed.reason)
    pad = capabilities()["amd-tdm-rows-by-layout"].available
    constants = {
        "SMEM": xamd.smem_layout([32, 64], 16, pad),
        "IDX": xamd.index_layout(32, 4),
        "STAGE": STAGE,
        "CASE": number,
    }
    table, rows = np.zeros((100, 64), np.float16), np.zeros(32, np.int32)
    with pytest.raises(CompilationError) as caught:
        xamd.emulated(wrong_call)[1,](table, rows, 100, **constants)
    last = str(caught.value).splitlines()[-1]
    found = re.fullmatch(r"(\S+):(\d+):(\d+): error: (.*)", last)
    assert found, last
    assert found[1] == KERNEL
    assert call.text in linecache.getline(KERNEL, int(found[2]))
    assert found[4] == call.message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: xamd.index_layout(0, 4), "index_layout: rows is 0, expected 1 or more"),
        (lambda: xamd.index_layout(32, 3), "index_layout: num_warps is 3, expected a power of two"),
        (lambda: xamd.index_layout("a", 4), "index_layout: rows: expected an integer, got 'a'"),
        (lambda: xamd.smem_layout([3, 64], 16), "smem_layout: block_shape[0] is 3, expected a"),
        (lambda: xamd.smem_layout([], 16), "smem_layout: block_shape has 0 numbers"),
        (lambda: xamd.smem_layout(64, 16), "smem_layout: block_shape: expected a list of integers"),
        (lambda: xamd.smem_layout([64], 4), "smem_layout: elements of 4 bits, expected 8, 16, 32"),
        (lambda: xamd.wmma_layout(4, 8, [16, 16, 32]), "wmma_layout: 8 waves along M, the work"),
        (
            lambda: xamd.wmma_layout(4, 2, [16]),
            "wmma_layout: instr_shape has 1 numbers, expected 3",
        ),
        (
            lambda: xamd.rows_instructions(0, 32),
            "rows_instructions: rows_per_wave is 0, expected 1",
        ),
        (lambda: xamd.rows_instructions(4, 8), "rows_instructions: index_bits is 8, expected 16"),
        (lambda: xamd.load_instructions(4, 0), "load_instructions: num_warps is 0, expected 1"),
        (lambda: xamd.TdmStage(3), "TdmStage: expected a number of instructions, 1 or more, for"),
        (lambda: xamd.TdmStage((True,)), "TdmStage: expected a number of instructions, 1 or more"),
        (lambda: STAGE.behind(1.5), "expected numbers of stages and of operations, got 1.5 and 0"),
        (lambda: STAGE.within(None), "expected a number of instructions in flight, got None"),
        (lambda: xamd.emulated(print), "emulated: expected a @gluon.jit or @triton.jit function"),
        (
            lambda: xamd.emulated(InterpretedFunction(wrong_call)),
            "got 'wrong_call' of Triton's interpreter: unset TRITON_INTERPRET",
        ),
    ],
)
def test_on_the_host(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


PARTITIONED = capabilities()["amd-partitioned-shared"]


@pytest.mark.skipif(not PARTITIONED.available, reason=PARTITIONED.reason)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: xamd.partitioned_layout([32, 64], 16, 5), "dim is 5, the block has 2 dimensions"),
        (lambda: xamd.partitioned_layout([32, 64], 16, 0, 1.5), "num_partitions: expected an int"),
        (lambda: xamd.partitioned_dot_layouts([64], 16, 4, [16] * 3), "block_shape has 1 numbers"),
        (lambda: xamd.partitioned_dot_layouts([96, 64, 64], 16, 4, [16] * 3), "[0] is 96, expecte"),
        (
            lambda: xamd.partitioned_dot_layouts([64] * 3, 16, 4, [0, 16, 16]),
            "[0] is 0, expected 1",
        ),
    ],
)
def test_pieces_on_the_host(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


# ---- layouts of row numbers


@settings(max_examples=200, deadline=None)
@given(POWERS, st.sampled_from((1, 2, 4, 8)))
def test_layouts_that_are_proposed_are_legal(rows, num_warps):
    layout = xamd.index_layout(rows, num_warps)
    assert xamd.index_layout_problems(layout, rows, num_warps) == []


def sliced(size, threads, warps, order=(1, 0)):
    return gl.SliceLayout(1, gl.BlockedLayout(list(size), list(threads), list(warps), list(order)))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (gl.BlockedLayout([1], [32], [4], [0]), "spread over the lanes of a wave"),
        (sliced([1, 1], [32, 1], [1, 4]), "spread over the lanes of a wave"),
        (sliced([2, 1], [2, 16], [4, 1]), "spread over the lanes of a wave"),
        (sliced([8, 1], [1, 32], [2, 1]), "warps_per_cta is [2, 1], 2 in all: the workgroup has 4"),
        (sliced([8, 1], [1, 64], [4, 1]), "threads_per_warp is [1, 64], 64 in all"),
        (sliced([3, 1], [1, 32], [4, 1]), "size_per_thread is [3, 1], expected powers of two"),
        (gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]), "is [1, 1], expected 1 numbers"),
        (gl.AutoLayout(), "expected a blocked or linear layout, or a slice of one, got AutoLayout"),
        (gl.SwizzledSharedLayout(1, 1, 1, [0]), "or a slice of one, got SwizzledSharedLayout"),
        (7, "or a slice of one, got int"),
    ],
)
def test_layouts_that_no_gather_takes(layout, message):
    assert message in "\n".join(xamd.index_layout_problems(layout, 32, 4))


def test_numbers_of_rows():
    layout = xamd.index_layout(1024, 1)
    problems = xamd.index_layout_problems(layout, 1024, 1)
    assert "128 instructions, TENSORcnt counts to 63" in problems[0]
    assert xamd.index_layout_problems(xamd.index_layout(512, 1), 512, 1, index_bits=16) == []
    assert "expected a power of two" in xamd.index_layout_problems(layout, 3, 1)[0]
    assert "of 8 bits, expected 16 or 32" in xamd.index_layout_problems(layout, 8, 1, 8)[0]


def host_bases(layout, rows):
    """Registers and lanes of a layout, as the installed Triton has them."""
    from triton._C.libtriton import gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    found = builder.to_linear_layout(layout._to_ir(builder), [rows])
    return found.reg_bases, found.lane_bases


HAS_LINEAR = capabilities()["amd-partitioned-shared"]


@pytest.mark.skipif(not HAS_LINEAR.available, reason=HAS_LINEAR.reason)
@settings(max_examples=150, deadline=None)
@given(
    rows=POWERS,
    size=st.tuples(POWERS, POWERS),
    lanes=st.integers(0, 5),
    waves=st.integers(0, 2),
    order=st.permutations([0, 1]),
    dim=st.sampled_from([0, 1]),
)
def test_bases_are_those_of_the_compiler(rows, size, lanes, waves, order, dim):
    from triton_ext.backends.amd.gluon import index_layouts

    parent = gl.BlockedLayout(
        list(size), [1 << lanes, 32 >> lanes], [1 << waves, 4 >> waves], list(order)
    )
    shape = [rows]
    shape.insert(dim, 1)
    registers, lane_bases = index_layouts._blocked_bases(parent, shape)
    ours = [[[b[1 - dim]] for b in of] for of in (registers, lane_bases)]
    theirs = host_bases(gl.SliceLayout(dim, parent), rows)
    # The compiler drops registers that hold copies.
    assert [b for b in ours[0] if any(b)] == [list(b) for b in theirs[0] if any(b)]
    assert ours[1] == [list(b) for b in theirs[1]]
