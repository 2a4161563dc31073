"""Alias sets: cases by hand, and random programs that are run."""

from __future__ import annotations

import os
from random import Random

import pytest
from alias_random import BYTES, HEAD, OUTSIDE, Abandoned, Program, Run, T
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_ext import ir
from triton_ext.analysis.alias_sets import AliasSets, is_allocation, is_memdesc
from triton_ext.analysis.buffer_regions import BufferRegions, RegionSet
from triton_ext.analysis.value_flow import ValueFlow, successor_parts
from triton_ext.ir.functions import FUNCTIONS

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
RUNS = 40


def values_of(module: ir.Module) -> list[ir.Value]:
    """Every descriptor of a module."""
    found: list[ir.Value] = []
    for op in module.walk():
        found += op.results
        found += [arg for region in op.regions for block in region.blocks for arg in block.args]
    return [value for value in found if is_memdesc(value)]


def aliases(body: str, *, alone: bool = False) -> dict[str, str]:
    """The alias set of each descriptor by name: ``a, b``, with ``...`` where it is incomplete."""
    module = ir.parse((HEAD + body + "\n}\n").replace("!T", T))
    module.verify()
    function = next(op for op in module.walk() if op.name in FUNCTIONS and op.regions)
    sets = AliasSets.of(function if alone else module)
    found = {}
    for value in values_of(module):
        known = sets.alias_set(value)
        names = sorted(each.name[1:] for each in known.allocations)
        found[value.name[1:]] = ", ".join(names + ["..."] * (not known.is_complete))
    return found


def test_views_selects_and_poison():
    found = aliases("""\
tt.func public @f(%c: i1) {
  %a = ttg.local_alloc : () -> !T
  %b = ttg.local_alloc : () -> !T
  %v = ttg.memdesc_subslice %a[0] : !T -> !T
  %w = ttg.memdesc_reinterpret %v : !T -> !T
  %s = arith.select %c, %w, %b : !T
  %p = ub.poison : !T
  %q = arith.select %c, %p, %b : !T
  tt.return
}""")
    assert found == {"a": "a", "b": "b", "v": "a", "w": "a", "s": "a, b", "p": "", "q": "b"}


def test_buffers_that_change_places_in_a_loop_are_both():
    found = aliases("""\
tt.func public @f(%n: index) {
  %a = ttg.local_alloc : () -> !T
  %b = ttg.local_alloc : () -> !T
  %c = ttg.local_alloc : () -> !T
  %r:3 = scf.for %i = %n to %n step %n iter_args(%x = %a, %y = %b, %z = %c) -> (!T, !T, !T) {
    scf.yield %y, %x, %z : !T, !T, !T
  }
  tt.return
}""")
    assert (found["x"], found["y"], found["z"]) == ("a, b", "a, b", "c")
    assert (found["r#0"], found["r#1"], found["r#2"]) == ("a, b", "a, b", "c")


def test_arguments_are_what_the_calls_of_a_private_function_pass():
    text = """\
tt.func private @g(%x: !T) -> !T {
  %l = ttg.local_alloc : () -> !T
  tt.return %x : !T
}
tt.func public @f(%o: !T) {
  %a = ttg.local_alloc : () -> !T
  %r = tt.call @g(%a) : (!T) -> !T
  %e = tt.call @external(%a) : (!T) -> !T
  tt.return
}"""
    found = aliases(text)
    assert (found["x"], found["r"], found["e"], found["o"]) == ("a", "a", "a, ...", "...")
    # Others may call a public function, and of one function alone nothing is known.
    assert aliases(text.replace("private @g", "public @g"))["x"] == "a, ..."
    assert aliases(text, alone=True)["x"] == "..."


def test_a_private_function_that_nothing_calls_may_get_anything():
    assert aliases("tt.func private @g(%x: !T) {\n  tt.return\n}")["x"] == "..."


def test_operations_that_are_not_known_hand_on_what_they_get():
    found = aliases("""\
tt.func public @f(%n: i32) {
  %a = ttg.local_alloc : () -> !T
  %b = ttg.local_alloc : () -> !T
  %u = "some.op"(%a, %n) ({
  ^bb0(%x: !T):
    "some.yield"(%b) : (!T) -> ()
  }) : (!T, i32) -> !T
  tt.return
}""")
    assert found["u"] == found["x"] == "a, b, ..."


def test_both_edges_of_one_branch_count():
    found = aliases("""\
tt.func public @f(%c: i1) {
  %a = ttg.local_alloc : () -> !T
  %b = ttg.local_alloc : () -> !T
  cf.cond_br %c, ^bb1(%a : !T), ^bb1(%b : !T)
^bb1(%x: !T):
  tt.return
}""")
    assert found["x"] == "a, b"


def test_tensor_memory_and_the_results_of_a_wait():
    text = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
#t = #ttng.tensor_memory_encoding<blockM = 128, blockN = 128, colStride = 1>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
tt.func public @f(%d: tensor<64x64xf32>) {
  %a = ttg.local_alloc : () -> !S
  %m = ttng.tmem_alloc : () -> !T
  %v = ttng.tmem_subslice %m {offset = 0 : i32} : !T -> !U
  %w:2 = ttng.warp_group_dot_wait %d, %a {pendings = 0 : i32} : tensor<64x64xf32>, !S
  tt.return
}
}
"""
    types = {
        "!S": "!ttg.memdesc<64x64xf32, #s, #smem, mutable>",
        "!T": "!ttg.memdesc<128x128xf32, #t, #ttng.tensor_memory, mutable>",
        "!U": "!ttg.memdesc<128x64xf32, #t, #ttng.tensor_memory, mutable, 128x128>",
    }
    for name, type_ in types.items():
        text = text.replace(name, type_)
    module = ir.parse(text)
    sets = AliasSets.of(module)
    a, m, v, w = (op.results for op in module.walk() if op.results)
    assert sets.alias_set(v[0]).allocations == {m[0]}
    assert sets.alias_set(w[1]).allocations == {a[0]}
    assert not sets.may_alias(v[0], w[1])
    assert sets.values_of(a[0]) == [a[0], w[1]]


def check(random: Random, length: int) -> tuple[int, int]:
    """Fails where a descriptor refers to what is not in its alias set.

    Returns:
        The number of descriptors that were defined, and of those whose sets hold nothing that no
        run showed.
    """
    program = Program(random, length)
    module = ir.parse(program.text)
    module.verify()
    sets = AliasSets.of(module)
    alone = [AliasSets.of(op) for op in module.walk() if op.name in FUNCTIONS]
    regions = BufferRegions(module, sets)
    seen: dict[ir.Value, set[ir.Value | str]] = {}
    for _ in range(RUNS):
        try:
            run = Run(module, random)
        except Abandoned:
            continue
        for value, root in run.defined:
            seen.setdefault(value, set()).add(root)
    for value, roots in seen.items():
        for each in (sets, *alone):
            found = each.alias_set(value)
            missing = roots - found.allocations
            assert not missing or not found.is_complete, f"{value.name}\n{program.text}"
        missing = roots - sets.alias_set(value).allocations
        assert missing <= {OUTSIDE}, f"{value.name}\n{program.text}"
        check_regions(regions.region_set(value), roots)
    for each in (sets, *alone):
        check_directions(module, each)
    exact = sum(
        roots - {OUTSIDE} == sets.alias_set(value).allocations for value, roots in seen.items()
    )
    return len(seen), exact


def check_regions(found: RegionSet, roots: set[ir.Value | str]) -> None:
    """A descriptor covers what it refers to; no view in these programs cuts off a part."""
    bases = {region.base for region in found.regions}
    offsets = {each.owner.attributes["allocation.offset"] for each in roots - {OUTSIDE}}
    assert not found.is_known or bases >= {int(text.split()[0]) for text in offsets}
    assert all(region.length == BYTES for region in found.regions)


def check_directions(module: ir.Module, sets: AliasSets) -> None:
    """Both directions are one relation."""
    values = values_of(module)
    for allocation in filter(is_allocation, values):
        forwards = set(sets.values_of(allocation))
        backwards = {value for value in values if allocation in sets.alias_set(value).allocations}
        assert forwards == backwards, f"{allocation.name}\n{module}"


def test_origins_of_a_value():
    module = ir.parse(
        "tt.func @f(%c: i1, %n: index, %x: i32) -> i32 {\n"
        "  %a = t.a : i32\n  %b = t.b : i32\n"
        "  %r = scf.for %i = %n to %n step %n iter_args(%carried = %a) -> (i32) {\n"
        "    %s = scf.if %c -> (i32) {\n      scf.yield %carried : i32\n    } else {\n"
        "      scf.yield %b : i32\n    }\n    scf.yield %s : i32\n  }\n"
        "  tt.return %r : i32\n}\n"
    )
    (loop,) = (op for op in module.walk() if op.name == "scf.for")
    found = ValueFlow.of_module(module.op).origins(loop.results[0])
    assert ([each.name for each in found.values], found.is_complete) == (["%a", "%b"], True)
    argument = module.body[0].regions[0].blocks[0].args[2]
    found = ValueFlow.of_module(module.op).origins(argument)
    assert (found.values, found.is_complete) == ((argument,), False)


def test_each_successor_gets_its_part_of_the_operands():
    module = ir.parse(
        "tt.func @f(%c: i1, %x: i32, %y: i32) {\n"
        "  cf.cond_br %c, ^bb1(%x, %y : i32, i32), ^bb2(%y : i32)\n"
        "^bb1(%p: i32, %q: i32):\n  tt.return\n^bb2(%r: i32):\n  tt.return\n}\n"
    )
    branch = next(op for op in module.walk() if op.successors)
    parts = successor_parts(branch, [value.name for value in branch.operands])
    assert [part for _, part in parts] == [["%x", "%y"], ["%y"]]
    assert [part for _, part in successor_parts(branch, ["%c"])] == [[], []]


@pytest.mark.parametrize(
    "examples", [60, pytest.param(2000, marks=pytest.mark.skipif(not NIGHTLY, reason="nightly"))]
)
def test_random_programs_stay_in_their_alias_sets(examples: int):
    counts = []

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32), st.integers(10, 40))
    def run(seed: int, length: int) -> None:
        counts.append(check(Random(seed), length))

    run()
    defined, exact = (sum(column) for column in zip(*counts, strict=True))
    assert defined > 3 * examples
    assert exact > 0.9 * defined
