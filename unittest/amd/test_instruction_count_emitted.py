"""Counted instructions are those that the installed Triton emits.

Random copies, gathers, scatters and TDM operations are compiled to assembly.  The instructions in
it have to lie in the interval that is counted, and to be its only number where it is exact; where
waves may branch around them, nothing may be counted as issued.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter as Tally

import pytest
from emission_cases import COPIES, TDM, Case, Syntax, random_case
from triton_ext.analysis import AxisInfoAnalysis
from triton_ext.backends.amd.analysis.axis_info import AXIS_INFO_RULES
from triton_ext.backends.amd.analysis.instruction_count import AsyncIssue, count
from triton_ext.backends.amd.analysis.target import Counter, Direction, Lowering, Target
from triton_ext.host import detect, features
from triton_ext.ir import encodings, parse

#: What is compiled, each as often as the others.
KINDS = [
    *(("gfx1250", kind) for kind in ("load", "store", *TDM)),
    *((arch, kind) for arch in ("gfx950", "gfx942") for kind in ("load", "buffer")),
]
COUNTERS = {"gfx942": Counter.VMCNT, "gfx950": Counter.VMCNT, "gfx1250": Counter.ASYNCCNT}
#: Capabilities without which a host does not know the operation or its encoding.
NEEDS = {
    "store": "amd-async-stores",
    "tdm_gather": "amd-tdm-rows",
    "tdm_scatter": "amd-tdm-rows",
    "tdm_pieces": "amd-partitioned-shared",
    "tdm_fused": "amd-tdm-fused",
}


def issue_of(case, text) -> AsyncIssue:
    """What is counted for the one operation of a case."""
    module = parse(text)
    analysis = AxisInfoAnalysis.of(module, AXIS_INFO_RULES)
    target, lowering = Target.of_module(module), Lowering.of(features())
    found = [count(op, lambda: analysis, target, lowering) for op in module.walk()]
    [issue] = [issue for issue in found if issue is not None]
    stores = case.kind in ("store", "tdm_store", "tdm_scatter")
    assert issue.direction is (Direction.STORE if stores else Direction.LOAD)
    expected = COUNTERS[case.arch] if case.kind in COPIES else Counter.TENSORCNT
    assert issue.queue.counter is expected
    assert len(issue.reads if stores else issue.writes) == (2 if case.kind == "tdm_fused" else 1)
    assert not (issue.writes if stores else issue.reads)
    assert issue.is_masked == (bool(case.mask) or (case.kind == "tdm_load" and has_predicate()))
    return issue


def has_predicate() -> bool:
    """Whether TDM loads have a predicate of their own."""
    return detect().release < (3, 8)


def has_idle_lanes(case) -> bool:
    """Whether lanes or waves hold what others hold: those may branch, whatever the mask."""
    masks = case.layout.to_linear_layout(case.shape).free_variable_masks()
    return bool(masks["lane"] or masks["warp"])


def compare(emission, rng, cases, capsys) -> Tally:
    """Compiles cases; returns how many of each kind were exact, inside, or refused by the host."""
    tally: Tally = Tally()
    syntax = Syntax(detect().release)
    known = [k for k in KINDS if NEEDS.get(k[1]) is None or NEEDS[k[1]] in features()]
    for number in range(cases):
        arch, kind = known[number % len(known)]
        case = random_case(rng, arch, kind)
        text = case.text(syntax)
        emitted = emission.ask(text, arch)
        if emitted.count is None:
            tally[arch, kind, "refused"] += 1
            continue
        found = issue_of(case, text).instructions
        assert found.lo <= emitted.count <= found.hi, f"{found}, emitted {emitted.count}\n{text}"
        # All that is unknown here is whether a wave issues its instructions: hi is what it issues.
        assert found.hi == emitted.count, f"{found}, emitted {emitted.count}\n{text}"
        assert found.lo in (0, found.hi), f"{found}\n{text}"
        # Without mask or cluster no wave takes the branch: lanes exchange swizzled addresses under
        # the mask of those that have one.
        if emitted.skips and (case.mask or case.ctas > 1) and not has_idle_lanes(case):
            assert found.lo == 0, f"waves may skip what is counted as {found}\n{text}"
        tally[arch, kind, "exact" if found.is_exact else "at most"] += 1
    with capsys.disabled():
        sys.stdout.write(f"\ntriton {detect().version}: {cases} modules\n")
        for arch, kind in known:
            words = ("exact", "at most", "refused")
            line = ", ".join(f"{tally[arch, kind, word]} {word}" for word in words)
            sys.stdout.write(f"  {arch} {kind}: {line}\n")
    return tally


def compared(tally: Tally) -> int:
    return sum(times for (_, _, word), times in tally.items() if word != "refused")


def test_a_sample_is_what_the_host_emits(emission, capsys):
    tally = compare(emission, random.Random(0), 44, capsys)
    assert compared(tally) > 20
    assert sum(times for (_, _, word), times in tally.items() if word == "exact") > 12


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("arch", "kind"),
    [("gfx1250", "load"), ("gfx1250", "store"), ("gfx950", "load"), ("gfx950", "buffer")],
)
def test_masked_copies_are_skipped_where_nothing_is_counted(emission, arch, kind, other):
    if kind == "store" and (other or NEEDS[kind] not in features()):
        pytest.skip("a store fills nothing, and 3.6 has none")
    lanes = 64 if arch == "gfx950" else 32
    case = Case(
        kind=kind,
        arch=arch,
        dtype="f32",
        shape=(4 * lanes * 4,),
        layout=encodings.BlockedEncoding((4,), (lanes,), (4,), (0,)),
        shared=encodings.SwizzledSharedEncoding(1, 1, 1, (0,)),
        waves=4,
        mask=16,
        other=other,
    )
    text = case.text(Syntax(detect().release))
    emitted = emission.ask(text, arch)
    found = issue_of(case, text).instructions
    assert (found.hi, emitted.count) == (1, 1), emitted.said
    assert emitted.skips == (found.lo == 0)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["load", "store"])
def test_one_of_the_ctas_with_equal_elements_stores_them(emission, kind, split):
    if "amd-async-stores" not in features():
        pytest.skip("3.6 has no stores, and spells clusters in another way")
    cga = ((1 if split else 0,),)
    case = Case(
        kind=kind,
        arch="gfx1250",
        dtype="f32",
        shape=(1024 if split else 512,),
        layout=encodings.BlockedEncoding((4,), (32,), (4,), (0,), cga),
        shared=encodings.SwizzledSharedEncoding(1, 1, 1, (0,), cga),
        waves=4,
        ctas=2,
    )
    text = case.text(Syntax(detect().release))
    emitted = emission.ask(text, case.arch)
    found = issue_of(case, text).instructions
    assert (found.hi, emitted.count) == (1, 1), emitted.said
    assert emitted.skips == (found.lo == 0) == (kind == "store" and not split)


#: How offsets ``%x`` and a mask ``%k`` are computed: ``%r`` is a range, ``%m`` the number ``%n`` in
#: every element.
FOLDABLE = {
    "offsets and all ones": "%x = arith.andi %r, %ones : tensor<512xi32, #b>",
    "there and back": """%y = arith.addi %r, %m : tensor<512xi32, #b>
    %x = arith.subi %y, %m : tensor<512xi32, #b>""",
    "twice the other bits": """%y = arith.xori %r, %m : tensor<512xi32, #b>
    %x = arith.xori %y, %m : tensor<512xi32, #b>""",
    "a mask or true": """%x = arith.addi %r, %zeros : tensor<512xi32, #b>
    %j = arith.cmpi slt, %r, %m : tensor<512xi32, #b>
    %k = arith.ori %j, %true : tensor<512xi1, #b>""",
    "a branch that is always taken": """%z = arith.constant 0 : i32
    %y = arith.minui %n, %z : i32
    %c = arith.cmpi eq, %y, %z : i32
    %x = scf.if %c -> (tensor<512xi32, #b>) {
      scf.yield %r : tensor<512xi32, #b>
    } else {
      scf.yield %m : tensor<512xi32, #b>
    }""",
    "a condition or true": """%y = arith.constant true
    %z = arith.constant 0 : i32
    %c = arith.cmpi slt, %n, %z : i32
    %d = arith.ori %c, %y : i1
    %x = arith.select %d, %r, %m : tensor<512xi32, #b>""",
    "a loop that never runs": """%z = arith.constant 0 : i32
    %o = arith.constant 1 : i32
    %e = arith.minui %n, %z : i32
    %x = scf.for %i = %z to %e step %o iter_args(%a = %r) -> (tensor<512xi32, #b>) : i32 {
      scf.yield %m : tensor<512xi32, #b>
    }""",
}
#: A module with one copy, in which the host may fold something before it looks at it.
FOLDABLE_MODULE = """\
#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) {
    %l = ttg.local_alloc : () -> !ttg.memdesc<512xf32, #s, #smem, mutable>
    %r = tt.make_range {end = 512 : i32, start = 0 : i32} : tensor<512xi32, #b>
    %m = tt.splat %n : i32 -> tensor<512xi32, #b>
    %ones = arith.constant dense<-1> : tensor<512xi32, #b>
    %zeros = arith.constant dense<0> : tensor<512xi32, #b>
    %true = arith.constant dense<true> : tensor<512xi1, #b>
    BODY
    %b = tt.splat %p : !tt.ptr<f32> -> tensor<512x!tt.ptr<f32>, #b>
    %q = tt.addptr %b, %x : tensor<512x!tt.ptr<f32>, #b>, tensor<512xi32, #b>
    %t = ttg.async_copy_global_to_local %q, %lMASK : \
tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
    %w = ttg.async_wait %g {num = 0 : i32}
    tt.return
  }
}
"""


@pytest.mark.parametrize("body", FOLDABLE.values(), ids=FOLDABLE)
def test_what_the_host_folds_before_it_looks(emission, body):
    if "amd-async-stores" not in features():
        pytest.skip("3.6 does not know gfx1250's copies by address")
    text = FOLDABLE_MODULE.replace("BODY", body)
    text = text.replace("MASK", " mask %k" if "%k" in body else "")
    emitted = emission.ask(text, "gfx1250")
    module = parse(text)
    analysis = AxisInfoAnalysis.of(module, AXIS_INFO_RULES)
    target, lowering = Target.of_module(module), Lowering.of(features())
    [copy] = [op for op in module.walk() if op.name == "ttg.async_copy_global_to_local"]
    found = count(copy, lambda: analysis, target, lowering)
    # The text has four elements of a thread apart, of which a host may make one row.
    assert emitted.count in (1, 4), emitted.said
    assert found.instructions.lo <= emitted.count <= found.instructions.hi == 4


@pytest.mark.slow
def test_many_are_what_the_host_emits(emission, capsys):
    large = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
    tally = compare(emission, random.Random(1), 1500 if large else 300, capsys)
    assert compared(tally) > (750 if large else 150)
