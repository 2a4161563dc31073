"""Where barriers are missing: which pairs, on which hosts, and the safe direction."""

from __future__ import annotations

import pytest
from triton_ext.analysis.allocation import allocate, as_written
from triton_ext.analysis.membar import find_barriers
from triton_ext.errors import VerifyError
from triton_ext.ir import parse

HEAD = """
#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [WARPS, 1],
                     order = [1, 0]}>
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#flat = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
!buf = !ttg.memdesc<16x32xf16, #sh, #smem, mutable>
!bufs = !ttg.memdesc<4x16x32xf16, #sh, #smem, mutable>
!bar = !ttg.memdesc<1xi64, #flat, #smem, mutable>
!t = tensor<16x32xf16, #row>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = WARPS : i32} {
  tt.func private @outside(!buf)
  tt.func private @handed(%x: !t, %b: !buf) {
    ttg.local_store %x, %b : !t -> !buf
    tt.return
  }
  tt.func public @f(%x: !t, %n: i32, %c: i1, %p: !tt.ptr<i32>) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c4 = arith.constant 4 : i32
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !buf
    %s = ttg.local_alloc {allocation.offset = 1024 : i32} : () -> !bufs
    %m = ttg.local_alloc {allocation.offset = 5120 : i32} : () -> !bar
BODY
    tt.return
  }
}
"""
STORE = "ttg.local_store %x, %a : !t -> !buf"
LOAD = "%l# = ttg.local_load %a : !buf -> !t"


def barriers(*lines: str, warps: int = 4, features=None):
    """The hazards in a function of these operations, as ``RAW ttg.local_load``; and the waits."""
    body = "\n".join(f"    {line}".replace("#", str(n)) if "%l#" in line else f"    {line}"
                     for n, line in enumerate(lines))  # fmt: skip
    module = parse(HEAD.replace("BODY", body).replace("WARPS", str(warps)))
    placed = as_written(allocate(module, scratch=lambda op: (0, 1)))
    return find_barriers(module, placed, features=features)


def said(found) -> list[str]:
    """The hazards in words, in the order in which they were found."""
    return [f"{pair.kind} {op.name}" for op, pair in found.before.items()]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((STORE, LOAD), ["RAW ttg.local_load"]),
        ((LOAD, STORE), ["WAR ttg.local_store"]),
        ((STORE, STORE), ["WAW ttg.local_store"]),
        ((LOAD, LOAD), []),
        ((STORE, "ttg.barrier local", LOAD), []),
        ((STORE, "ttg.barrier global_read", LOAD), ["RAW ttg.local_load"]),
        # An operation that is in no table may read and write what it is given.
        ((STORE, "foreign.use %a : !buf"), ["RAW foreign.use"]),
        ((LOAD, "foreign.use %a : !buf"), ["WAR foreign.use"]),
        # What is handed to a function is looked at where it is allocated.
        ((LOAD, "tt.call @handed(%x, %a) : (!t, !buf) -> ()"), ["WAR tt.call"]),
        ((LOAD, "tt.call @outside(%a) : (!buf) -> ()"), ["WAR tt.call"]),
    ],
)
def test_pairs(lines, expected):
    """Two accesses need a barrier where one of them writes and none is between them."""
    assert said(barriers(*lines)) == expected


def test_a_pair_names_both_sides():
    """A hazard holds the operations and the bytes of both accesses."""
    (pair,) = barriers(STORE, LOAD).before.values()
    assert (pair.before.name, pair.after.name) == ("ttg.local_store", "ttg.local_load")
    assert not pair.before_reads
    assert pair.after_reads
    assert (pair.before_slice.start, pair.before_slice.end) == (0, 1024)


def index(name: str, text: str) -> str:
    return f"%{name} = ttg.memdesc_index %s[{text}] : !bufs -> !buf"


def test_slots_that_differ():
    """Slots of one allocation are told apart by their numbers, modulo how many there are."""
    other = [
        "%next = arith.addi %n, %c1 : i32",
        "%r = arith.remsi %n, %c4 : i32",
        "%w = arith.remsi %next, %c4 : i32",
        index("from", "%r"),
        index("to", "%w"),
    ]
    read, write = "%l = ttg.local_load %from : !buf -> !t", "ttg.local_store %x, %to : !t -> !buf"
    assert said(barriers(*other, write, read)) == []
    same = [line.replace("[%w]", "[%r]") for line in other]
    assert said(barriers(*same, write, read)) == ["RAW ttg.local_load"]


LOOP = [
    "cf.br ^head(%c0 : i32)",
    "^head(%i: i32):",
    "%r = arith.remsi %i, %c4 : i32",
    index("from", "%r"),
    "%l = ttg.local_load %from : !buf -> !t",
    "%next = arith.addi %i, %c1 : i32",
    "%w = arith.remsi %next, %c4 : i32",
    index("to", "%w"),
    "ttg.local_store %x, %to : !t -> !buf",
    "cf.cond_br %c, ^head(%next : i32), ^end",
    "^end:",
]


def test_a_branch_back_makes_numbers_stale():
    """The slot that was written is read in the next iteration, though both have other numbers."""
    assert said(barriers(*LOOP)) == ["RAW ttg.local_load"]


def test_constant_slots_stay_known_around_a_loop():
    """A slot with a constant number is the same one in every iteration."""
    lines = [
        index("from", "%c0"),
        index("to", "%c1"),
        "cf.br ^head",
        "^head:",
        "%l = ttg.local_load %from : !buf -> !t",
        "cf.cond_br %c, ^body, ^end",
        "^body:",
        "ttg.local_store %x, %to : !t -> !buf",
        "ttg.barrier local",
        "cf.br ^head",
        "^end:",
    ]
    assert said(barriers(*lines)) == []


def test_both_ways_into_a_block_count():
    """A barrier on one way does not help the other one."""
    lines = [
        STORE,
        "cf.cond_br %c, ^one, ^two",
        "^one:",
        "ttg.barrier local",
        "cf.br ^two",
        "^two:",
        "%l = ttg.local_load %a : !buf -> !t",
    ]
    assert said(barriers(*lines)) == ["RAW ttg.local_load"]


def test_a_region_that_is_not_known_may_run_again():
    """A read at the start of an unknown region may follow a write at its end."""
    lines = [
        "foreign.repeat {",
        "%l = ttg.local_load %a : !buf -> !t",
        STORE,
        "}",
    ]
    assert sorted(said(barriers(*lines))) == ["RAW ttg.local_load", "WAR ttg.local_store"]


ARRIVE = "ttng.arrive_barrier %m, 1 : !bar"
ATOMIC = "tt.atomic_cas acq_rel, gpu, %p, %n, %n : (!tt.ptr<i32>, i32, i32) -> i32"
PRODUCTS = "ttng.warp_group_dot_wait %x {pendings = 0 : i32} : !t"


@pytest.mark.parametrize(
    ("between", "feature", "warps"),
    [
        (ARRIVE, "arrival-barriers", 4),
        (ATOMIC, "ordering-barriers", 4),
        (PRODUCTS, "ordering-barriers", 8),
    ],
)
def test_contained_barriers_depend_on_the_host(between, feature, warps):
    """A barrier inside of an operation counts where the host's lowering has it."""
    lines = (STORE, between, LOAD)
    assert said(barriers(*lines, warps=warps)) == []
    assert said(barriers(*lines, warps=warps, features={feature})) == []
    assert said(barriers(*lines, warps=warps, features=set())) == ["RAW ttg.local_load"]


def test_a_wait_for_products_is_relaxed_where_a_barrier_follows():
    """Only where nothing touches memory in between, and only where there is a barrier to spare."""
    followed = (PRODUCTS, "ttg.barrier local")
    assert len(barriers(*followed, warps=8).relaxed) == 1
    assert barriers(*followed, warps=4).relaxed == ()
    assert barriers(*followed, warps=8, features=set()).relaxed == ()
    assert barriers(PRODUCTS, STORE, "ttg.barrier local", warps=8).relaxed == ()


def test_waits():
    """A wait has a barrier behind it, unless another wait or barrier is reached first."""
    wait = "ttg.async_wait {num = 0 : i32}"
    assert len(barriers(wait).after) == 1
    assert len(barriers(wait, "%i = arith.addi %n, %n : i32", wait).after) == 1
    assert len(barriers(wait, "ttg.barrier local").after) == 0
    assert len(barriers(wait, LOAD, "ttg.barrier local").after) == 1


def test_partitioned_buffers_have_a_slice_for_each_piece():
    """Both pieces of a partitioned value are read, wherever they lie."""
    text = """
#sh = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#parts = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 1, partitionDim = 0,
                                  partitionLayout = #sh}>
#row = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],
                     order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func @f(%x: tensor<16x32xf16, #row>, %y: tensor<8x32xf16, #row>) {
    %a = ttg.local_alloc %x {allocation.offset = [0 : i32, 65536 : i32]} : (tensor<16x32xf16, #row>)
        -> !ttg.memdesc<16x32xf16, #parts, #smem>
    %b = ttg.local_alloc %y {allocation.offset = 65536 : i32} : (tensor<8x32xf16, #row>)
        -> !ttg.memdesc<8x32xf16, #sh, #smem>
    tt.return
  }
}
"""
    module = parse(text)
    placed = as_written(allocate(module, partition_size=65536))
    assert said(find_barriers(module, placed)) == ["WAW ttg.local_alloc"]
    fewer = parse(text.replace("[0 : i32, 65536 : i32]", "0 : i32"))
    placed = allocate(fewer, partition_size=65536)
    with pytest.raises(VerifyError, match="expected 2 numbers of bytes"):
        as_written(placed)
