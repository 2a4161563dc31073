"""Live ranges: loops, branches, blocks, partitions, views."""

from __future__ import annotations

import pytest
from triton_ext.analysis.liveness import Liveness, LiveRange
from triton_ext.ir import parse

HEAD = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
tt.func public @f(%c: i1, %n: i32) {
"""
TAIL = "  tt.return\n}\n}\n"
ALLOCATION = ("ttg.local_alloc",)
T = "!ttg.memdesc<64xi32, #s, #smem, mutable>"


def ranges(body: str) -> dict[str, LiveRange]:
    """The live range of each buffer of a function by name."""
    module = parse(HEAD + body.replace("$T", T) + TAIL)
    function = next(op for op in module.walk() if op.name == "tt.func")
    liveness = Liveness(function)
    return {
        op.results[0].name: liveness.of_buffer(op.results[0])
        for op in function.walk()
        if op.name == "ttg.local_alloc"
    }


def test_one_behind_the_other_do_not_meet():
    found = ranges("""\
  %a = ttg.local_alloc : () -> $T
  ttg.local_dealloc %a : $T
  %b = ttg.local_alloc : () -> $T
  ttg.local_dealloc %b : $T
""")
    assert found["%a"] == LiveRange(0, 2)
    assert not found["%a"].meets(found["%b"])


def test_what_a_loop_uses_lives_to_its_end():
    found = ranges("""\
  %a = ttg.local_alloc : () -> $T
  scf.for %i = %n to %n step %n : i32 {
    ttg.local_dealloc %a : $T
    %b = ttg.local_alloc : () -> $T
    ttg.local_dealloc %b : $T
  }
  %d = ttg.local_alloc : () -> $T
""")
    assert found["%a"].meets(found["%b"])
    assert not found["%a"].meets(found["%d"])
    assert not found["%b"].meets(found["%d"])


def test_what_a_loop_carries_lives_in_all_of_it_and_behind():
    found = ranges("""\
  %a = ttg.local_alloc : () -> $T
  %r = scf.for %i = %n to %n step %n iter_args(%x = %a) -> ($T) : i32 {
    %b = ttg.local_alloc : () -> $T
    scf.yield %b : $T
  }
  %d = ttg.local_alloc : () -> $T
  ttg.local_dealloc %r : $T
""")
    assert found["%a"].meets(found["%b"])
    assert found["%a"].meets(found["%d"])
    assert found["%b"].meets(found["%d"])


@pytest.mark.parametrize(
    "view",
    [
        "%v = ttg.memdesc_subslice %a[0] : $T -> $T",
        "%v = arith.select %c, %a, %a : $T",
        "%v = scf.if %c -> ($T) {\n scf.yield %a : $T\n } else {\n scf.yield %a : $T\n }",
        '%v = "other.view"(%a) : ($T) -> $T',
        "cf.br ^bb1(%a : $T)\n ^bb1(%v: $T):",
    ],
)
def test_uses_of_views_count(view):
    found = ranges(f"""\
  %a = ttg.local_alloc : () -> $T
  {view}
  %b = ttg.local_alloc : () -> $T
  ttg.local_dealloc %v : $T
  %d = ttg.local_alloc : () -> $T
""")
    assert found["%a"].meets(found["%b"])
    assert not found["%a"].meets(found["%d"])


def test_loops_of_blocks():
    found = ranges(
        """\
  %a = ttg.local_alloc : () -> $T
  cf.br ^bb1
^bb1:
  ttg.local_store %a : $T
  cf.br ^bb2
^bb2:
  %b = ttg.local_alloc : () -> $T
  ttg.local_dealloc %b : $T
  cf.cond_br %c, ^bb1, ^bb3
^bb3:
  %d = ttg.local_alloc : () -> $T
""".replace("ttg.local_store %a : $T", '"other.use"(%a) : ($T) -> ()')
    )
    # The block behind the last use leads back to it.
    assert found["%a"].meets(found["%b"])
    assert not found["%a"].meets(found["%d"])


def test_concurrent_regions():
    found = ranges("""\
  %a = ttg.local_alloc : () -> $T
  %z = ttg.local_alloc : () -> $T
  ttg.local_dealloc %z : $T
  ttg.warp_specialize(%a)
  default {
    %b = ttg.local_alloc : () -> $T
    ttg.local_dealloc %b : $T
    ttg.warp_yield
  }
  partition0(%x: $T) num_warps(4) {
    ttg.local_dealloc %x : $T
    %d = ttg.local_alloc : () -> $T
    ttg.local_dealloc %d : $T
    ttg.warp_return
  } : ($T) -> ()
  %e = ttg.local_alloc : () -> $T
""")
    # They run at the same time, and what is captured lives as long as all of them.
    assert found["%b"].meets(found["%d"])
    assert found["%a"].meets(found["%b"])
    assert found["%a"].meets(found["%d"])
    assert not found["%z"].meets(found["%b"])
    for name in ("%a", "%b", "%d"):
        assert not found[name].meets(found["%e"])


def test_aliases_are_found_through_everything():
    module = parse(
        HEAD
        + f"""\
  %a = ttg.local_alloc : () -> {T}
  %r = scf.for %i = %n to %n step %n iter_args(%x = %a) -> ({T}) : i32 {{
    %v = ttg.memdesc_subslice %x[0] : {T} -> {T}
    scf.yield %v : {T}
  }}
"""
        + TAIL
    )
    alloc = next(op for op in module.walk() if op.name == "ttg.local_alloc")
    aliases = Liveness(next(op for op in module.walk() if op.name == "tt.func")).aliases
    assert [value.name for value in aliases(alloc.results[0])] == ["%a", "%x", "%r", "%v"]


def test_what_a_call_returns_lives_as_long_as_it_is_used():
    module = parse(
        HEAD
        + """\
  %a = tt.call @g(%n) : (i32) -> $T
  %b = ttg.local_alloc : () -> $T
  %v = ttg.memdesc_subslice %a[0] : $T -> $T
  ttg.local_dealloc %v : $T
  %d = ttg.local_alloc : () -> $T
""".replace("$T", T)
        + TAIL
    )
    function = next(op for op in module.walk() if op.name == "tt.func")
    call, first, *_, last = (op for op in function.walk() if op.name in ("tt.call", *ALLOCATION))
    liveness = Liveness(function)
    assert liveness.of_call(call).start == liveness.at(call).start
    assert liveness.of_call(call).meets(liveness.at(first))
    assert not liveness.of_call(call).meets(liveness.at(last))
