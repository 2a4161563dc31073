"""Which blocks are on every way to a block, and on every way out of one."""

from __future__ import annotations

from triton_ext.ir import parse
from triton_ext.ir.dominance import dominators, post_dominators

# The entry branches to one and two, which meet in three; four is reached from three and from itself
# and leaves, stuck never does.
TEXT = """
tt.func @f(%c: i1) {
  cf.cond_br %c, ^one, ^two
^one:
  cf.br ^three
^two:
  cf.cond_br %c, ^three, ^stuck
^three:
  cf.br ^four
^four:
  cf.cond_br %c, ^four, ^end
^stuck:
  cf.br ^stuck
^end:
  tt.return
}
"""


def named(sets):
    """The sets with labels for blocks."""
    return {
        block.label or "entry": {each.label or "entry" for each in found}
        for block, found in sets.items()
    }


def region():
    return next(op for op in parse(TEXT).walk() if op.name == "tt.func").regions[0]


def test_dominators():
    found = named(dominators(region()))
    assert found["^three"] == {"entry", "^three"}
    assert found["^end"] == {"entry", "^three", "^four", "^end"}
    assert found["^stuck"] == {"entry", "^two", "^stuck"}


def test_post_dominators():
    """A block that no way leads out of is left out."""
    found = named(post_dominators(region()))
    assert found["entry"] == {"entry", "^three", "^four", "^end"}
    assert found["^one"] == {"^one", "^three", "^four", "^end"}
    assert found["^end"] == {"^end"}
    assert "^stuck" not in found
