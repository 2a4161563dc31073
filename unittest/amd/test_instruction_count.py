"""Instructions of asynchronous operations: the rules one by one, and what an operation says."""

from __future__ import annotations

import pytest
from triton_ext.backends.amd.analysis.async_events import AsyncEvents
from triton_ext.backends.amd.analysis.instruction_count import (
    AsyncIssue,
    CopyKind,
    Interval,
    Proven,
    copy_instructions,
    tdm_copy_instructions,
    tdm_rows_instructions,
)
from triton_ext.backends.amd.analysis.target import Counter, Direction, Lowering, Queue, Target
from triton_ext.errors import UnsupportedError, VerifyError
from triton_ext.ir import parse, parse_type

#: A host that branches around nothing.
PREDICATED = Lowering(masked_loads_branch=False, masked_stores_branch=False)
BLOCKED = (
    "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], "
    "order = [1, 0]}>"
)
BLOCKED_64 = BLOCKED.replace("[4, 8]", "[8, 8]")
BLOCKED_64_F32 = BLOCKED_64.replace("[1, 8]", "[1, 4]").replace("[8, 8]", "[4, 16]")


def swizzled(vec: int = 1, phases: int = 1, order: str = "[1, 0]") -> str:
    return (
        f"#ttg.swizzled_shared<{{vec = {vec}, perPhase = 1, maxPhase = {phases}, order = {order}}}>"
    )


def padded(pad: str, shape: str = "[64, 64]") -> str:
    return f"#ttg.padded_shared<[{pad}] {{order = [1, 0], shape = {shape}}}>"


def copy(shared, contiguity=64, *, shape="64x64", element="f16", encoding=BLOCKED, **more):
    """The interval of a copy; numbers stand for what both analyses see."""
    more = {"target": "gfx1250", "lowering": PREDICATED, "kind": CopyKind.LOAD, **more}
    for name, value in (("contiguity", contiguity), ("mask", more.pop("mask", None))):
        more[name] = Proven.exactly(value) if isinstance(value, int) else value
    return copy_instructions(
        parse_type(f"tensor<{shape}x!tt.ptr<{element}>, {encoding}>"),
        parse_type(f"!ttg.memdesc<{shape}x{element}, {shared}, #ttg.shared_memory, mutable>"),
        Target.of(more.pop("target")),
        more.pop("lowering"),
        **more,
    )


# 64x64xf16 on 4 waves of 32 lanes are 32 registers, 8 of them side by side: 32 / 8 = 4.
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param(copy(swizzled()), 4, id="64 elements proven: 128 bits"),
        pytest.param(copy(swizzled(), 4), 8, id="rule 1: 4 elements proven"),
        pytest.param(copy(swizzled(), 1), 32, id="rule 1: nothing proven"),
        pytest.param(copy(swizzled(), encoding=BLOCKED_64, target="gfx950"), 2, id="wave of 64"),
        pytest.param(copy(swizzled(4, 8)), 8, id="rule 4: swizzled in fours"),
        pytest.param(copy(swizzled(order="[0, 1]")), 32, id="rule 4: other order in LDS"),
        pytest.param(copy(swizzled(), mask=4), 8, id="rule 2: mask constant over 4"),
        pytest.param(copy(swizzled(), mask=1), 32, id="rule 2: nothing known of the mask"),
        pytest.param(copy(swizzled(), mask=1, hint=8), 4, id="rule 3: hint overrules the mask"),
        pytest.param(copy(swizzled(), 1, hint=8), 4, id="rule 3: hint overrules what is proven"),
        pytest.param(copy(swizzled(), 1, hint=2), 16, id="rule 3: hint of 2"),
        pytest.param(copy(swizzled(), 4, hint=2), 8, id="rule 3: more is proven"),
        pytest.param(copy(padded("4:+4")), 8, id="rule 4: padding behind 4 elements"),
        pytest.param(copy(padded("64:+4")), 4, id="rule 4: padding behind 64 elements"),
        pytest.param(copy(padded("16:+4, 4:+2")), 8, id="rule 4: the smaller of two intervals"),
        pytest.param(
            # A thread has room for 8 columns, of which 4 are others: 4 times 4 of them.
            copy(swizzled(), shape="64x4"),
            4,
            id="rule 5: repeated registers",
        ),
        pytest.param(
            copy(swizzled(), encoding=BLOCKED.replace("[1, 8]", "[1, 16]"), hint=16),
            8,
            id="rule 6: 256 bits are two instructions",
        ),
        pytest.param(copy(swizzled(), element="i8"), 4, id="i8: 64 bits"),
        pytest.param(copy(swizzled(), element="f64"), 16, id="f64: 2 elements"),
        pytest.param(
            copy(swizzled(), encoding=BLOCKED_64_F32, element="f32", target="gfx950"), 4, id="f32"
        ),
        pytest.param(copy(swizzled(), kind=CopyKind.STORE), 4, id="store of 128 bits"),
        pytest.param(copy(swizzled(), 1, kind=CopyKind.STORE), 64, id="rule 6: 16 bits as 2 b8"),
        pytest.param(
            copy(swizzled(), 1, element="i8", kind=CopyKind.STORE), 32, id="store of 8 bits"
        ),
    ],
)
def test_copies(found, wanted):
    assert found == Interval.exactly(wanted)


def test_redundant_waves_may_issue_nothing():
    # 8 rows are 2 waves of 4 rows: the others hold the same elements.
    assert copy(swizzled(), shape="8x64") == Interval(0, 1)
    assert copy(swizzled(), shape="16x64") == Interval.exactly(1)


@pytest.mark.parametrize(
    ("kind", "arch", "lowering", "lo"),
    [
        (CopyKind.LOAD, "gfx1250", Lowering(), 0),
        (CopyKind.LOAD, "gfx1250", PREDICATED, 4),
        (CopyKind.STORE, "gfx1250", Lowering(masked_loads_branch=False), 0),
        (CopyKind.STORE, "gfx1250", PREDICATED, 4),
        (CopyKind.LOAD, "gfx950", PREDICATED, 0),
        (CopyKind.LOAD, "gfx942", PREDICATED, 0),
        (CopyKind.BUFFER_LOAD, "gfx950", Lowering(), 4),
    ],
)
def test_masked_copies_behind_a_branch(kind, arch, lowering, lo):
    found = copy(swizzled(), mask=8, kind=kind, target=arch, lowering=lowering)
    assert found == Interval(lo, 4)
    assert copy(swizzled(), kind=kind, target=arch, lowering=lowering) == Interval(4, 4)


def test_a_buffer_copy_that_fills_what_is_masked_out_branches():
    more = {"kind": CopyKind.BUFFER_LOAD, "target": "gfx950", "has_other": True}
    assert copy(swizzled(), mask=8, **more) == Interval(0, 4)
    assert copy(swizzled(), **more) == Interval(4, 4)


def test_what_the_host_may_know_beyond_what_is_proven():
    # Between all 8 elements of a thread and what is proven of them.
    assert copy(swizzled(), Proven(1, 1 << 20)) == Interval(4, 32)
    assert copy(swizzled(), Proven(2, 1 << 20)) == Interval(4, 16)
    assert copy(swizzled(), mask=Proven(1, 1 << 20)) == Interval(4, 32)
    # The hint decides whatever is proven.
    assert copy(swizzled(), Proven(1, 1 << 20), hint=8) == Interval.exactly(4)


@pytest.mark.parametrize(
    ("partitions", "groups", "waves", "wanted"),
    [
        *((2, 1, 4, 1), (2, 2, 4, 1), (2, 4, 4, 2), (2, 8, 4, 4), (2, 16, 4, 8), (2, 4, 8, 1)),
        *((4, 4, 8, 2), (2, 1, 1, 2), (2, 2, 2, 2)),
    ],
)
def test_tdm_loads_into_pieces(partitions, groups, waves, wanted):
    encoding = (
        f"#ttg.partitioned_shared<{{numPartitions = {partitions}, numGroups = {groups}, "
        f"partitionDim = 0, partitionLayout = {swizzled()}}}>"
    )
    buffer = parse_type(f"!ttg.memdesc<128x64xf16, {encoding}, #ttg.shared_memory, mutable>")
    assert tdm_copy_instructions(buffer, waves) == Interval.exactly(wanted)


def test_a_whole_block_is_one_instruction():
    for shared in (swizzled(), padded("64:+8")):
        buffer = parse_type(f"!ttg.memdesc<64x64xf16, {shared}, #ttg.shared_memory, mutable>")
        assert tdm_copy_instructions(buffer, 4) == Interval.exactly(1)


def rows(count: int, element: str, per_thread: int, warps: int = 1, lanes: int = 1):
    """Indices along the columns of a layout whose lanes lie along the rows."""
    parent = (
        f"#ttg.blocked<{{sizePerThread = [1, {per_thread}], threadsPerWarp = [{32 // lanes}, "
        f"{lanes}], warpsPerCTA = [{4 // warps}, {warps}], order = [1, 0]}}>"
    )
    return parse_type(f"tensor<{count}x{element}, #ttg.slice<{{dim = 0, parent = {parent}}}>>")


REPEATED = (
    "tensor<8xi32, #ttg.linear<{register = [[0], [1], [2], [4]], "
    "lane = [[0], [0], [0], [0], [0]], warp = [[0], [0]], block = []}>>"
)


@pytest.mark.parametrize(
    ("indices", "wanted", "full"),
    [
        pytest.param(rows(64, "i32", 64), 8, 8, id="64 x i32, all in every thread"),
        pytest.param(rows(64, "i32", 16, 4), 2, 2, id="64 x i32, 16 per wave"),
        pytest.param(rows(256, "i16", 256), 16, 16, id="256 x i16, all in every thread"),
        pytest.param(rows(256, "i16", 64, 4), 4, 4, id="256 x i16, 64 per wave"),
        # Each wave has 16 rows in runs of 4: a host may take 8 rows at once, or the runs.
        pytest.param(rows(64, "i32", 4, 4), 4, 2, id="64 x i32, 4 per thread over 4 waves"),
        pytest.param(rows(64, "i32", 1, 4), 16, 2, id="64 x i32, 1 per thread over 4 waves"),
        # 16 registers for 8 rows: hosts that do not look how rows lie count each.
        pytest.param(parse_type(REPEATED), 1, 2, id="8 x i32, repeated"),
        pytest.param(rows(4, "i16", 4), 1, 1, id="4 x i16"),
    ],
)
def test_gathers_and_scatters(indices, wanted, full):
    known = tdm_rows_instructions(indices, Lowering(rows_split_at_runs=True))
    assert known == Interval.exactly(wanted)
    careless = tdm_rows_instructions(indices, Lowering(rows_split_at_runs=False))
    assert careless == Interval.exactly(full)
    assert tdm_rows_instructions(indices, Lowering()) == Interval(
        min(full, wanted), max(full, wanted)
    )


def test_one_cta_stores_what_several_hold():
    alone = BLOCKED.replace("}>", ", CGALayout = [[0, 0]]}>")
    each = BLOCKED.replace("}>", ", CGALayout = [[1, 0]]}>")
    shared = swizzled().replace("}>", ", CGALayout = [[0, 0]]}>")
    shares = swizzled().replace("}>", ", CGALayout = [[1, 0]]}>")
    for kind, lo in ((CopyKind.LOAD, 4), (CopyKind.STORE, 0)):
        assert copy(shared, encoding=alone, kind=kind) == Interval(lo, 4)
        # Half of the rows in each CTA: half of the registers.
        assert copy(shares, encoding=each, kind=kind) == Interval.exactly(2)


def test_a_predicate_of_a_descriptor_masks_its_copies():
    """From Triton 3.8 on a TDM copy has no predicate of its own, its descriptor may have one."""
    desc = "!tt.tensordesc<64x64xf16, #s>"
    buffer = "!ttg.memdesc<64x64xf16, #s, #ttg.shared_memory, mutable>"
    load, arrow = "amdg.async_tdm_copy_global_to_local", f": {desc} -> {buffer}"
    fused = "amdg.async_tdm_fused_copy_global_to_local"
    text = f"""
#s = {swizzled()}
module attributes {{"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"}} {{
  tt.func @f(%d: {desc}, %m: {buffer}, %i: i32) {{
    %moved = amdg.update_tensor_descriptor %d add_offsets = [%i, %i] : {desc}
    %0 = {load} %moved into %m {arrow}
    %off = amdg.update_tensor_descriptor %d pred = %i : {desc}
    %both = amdg.update_tensor_descriptor %off add_offsets = [%i, %i] : {desc}
    %1 = {load} %both into %m {arrow}
    %2 = {fused} %d, %off into %m, %m {{warp_used_hints = array<i32: 3, 12>}} : {desc}, {desc} -> {buffer}, {buffer}
    tt.return
  }}
}}
"""  # noqa: E501 - TTGIR
    target = Target.of("gfx1250")
    found = AsyncEvents(parse(text), target, PREDICATED)
    copies = [event for event in found if isinstance(event, AsyncIssue)]
    assert [event.is_masked for event in copies] == [False, True, True]
    assert [event.instructions for event in copies] == [Interval.exactly(1)] * 3


# ---- targets


def test_queues():
    cdna5, cdna4 = Target.of("gfx1250"), Target.of("gfx950")
    load, store = (cdna5.copy_queue(direction) for direction in Direction)
    assert load != store
    assert (load.counter, store.counter) == (Counter.ASYNCCNT, Counter.ASYNCCNT)
    assert cdna4.copy_queue(Direction.LOAD) == Queue(Counter.VMCNT)
    assert cdna5.tdm_queue == Queue(Counter.TENSORCNT)
    assert (cdna5.has_tdm, cdna4.has_tdm) == (True, False)
    assert (cdna5.clamp(80), cdna5.clamp(5)) == (63, 5)


def test_widths():
    assert Target.of("gfx942").load_widths == (32,)
    assert Target.of("gfx950").load_widths == (32, 128)
    assert Target.of("gfx1250").load_widths == (32, 64, 128)
    assert Target.of("gfx1250").store_widths == (8, 32, 64, 128)


def test_the_target_of_a_module():
    text = 'module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {\n}\n'
    assert Target.of_module(parse(text)) is Target.of("gfx1250")
    assert Target.of("gfx1250-strict") is Target.of("gfx1250")
    with pytest.raises(UnsupportedError, match=r"gfx1250, gfx1251\), found 'gfx1201'"):
        Target.of("gfx1201")
    nvidia = Target.of_module(parse(text.replace("hip:gfx1250", "cuda:90")))
    assert nvidia.waits_count_groups
    with pytest.raises(VerifyError, match="found 'cpu:x86'"):
        Target.of_module(parse(text.replace("hip:gfx1250", "cpu:x86")))
