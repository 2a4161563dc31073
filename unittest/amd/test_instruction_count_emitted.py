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
from foldable_cases import FOLDABLE, foldable_module, random_body
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


def compare_folded(emission, body) -> bool:
    """Compares a copy of which the host may fold something; whether it was not refused."""
    text = foldable_module(body)
    emitted = emission.ask(text, "gfx1250")
    if emitted.count is None:
        return False
    module = parse(text)
    analysis = AxisInfoAnalysis.of(module, AXIS_INFO_RULES)
    target, lowering = Target.of_module(module), Lowering.of(features())
    [copy] = [op for op in module.walk() if op.name == "ttg.async_copy_global_to_local"]
    found = count(copy, lambda: analysis, target, lowering).instructions
    assert found.lo <= emitted.count <= found.hi <= 4, f"{found}, emitted {emitted.count}\n{text}"
    return True


@pytest.mark.parametrize("body", FOLDABLE.values(), ids=FOLDABLE)
def test_what_the_host_folds_before_it_looks(emission, body):
    if "amd-async-stores" not in features():
        pytest.skip("3.6 does not know gfx1250's copies by address")
    assert compare_folded(emission, body)


def test_arithmetic_that_the_host_folds(emission):
    if "amd-async-stores" not in features():
        pytest.skip("3.6 does not know gfx1250's copies by address")
    rng = random.Random(0)
    assert sum(compare_folded(emission, random_body(rng)) for _ in range(40)) > 20


@pytest.mark.slow
def test_much_arithmetic_that_the_host_folds(emission):
    if "amd-async-stores" not in features():
        pytest.skip("3.6 does not know gfx1250's copies by address")
    rng = random.Random(1)
    cases = 2000 if os.environ.get("TRITON_EXT_NIGHTLY") else 120
    assert sum(compare_folded(emission, random_body(rng)) for _ in range(cases)) > cases // 2


@pytest.mark.slow
def test_many_are_what_the_host_emits(emission, capsys):
    cases = 1500 if os.environ.get("TRITON_EXT_NIGHTLY") else 120
    tally = compare(emission, random.Random(1), cases, capsys)
    assert compared(tally) > cases // 2
