"""Dominance against its definition, over random graphs of blocks."""

from __future__ import annotations

import random

import pytest
from triton_ext.ir import parse
from triton_ext.ir.dominance import Dominance, post_dominators


def region_of(edges: list[list[int]]):
    """The region of a function whose blocks branch as they are told to; a list per block."""
    lines = ["module {", "  tt.func @f(%c: i1, %x: i32) {", "    cf.br ^b0"]
    for number, targets in enumerate(edges):
        lines.append(f"  ^b{number}:")
        if not targets:
            lines.append("    tt.return")
        elif len(targets) == 1:
            lines.append(f"    cf.br ^b{targets[0]}")
        elif len(targets) == 2:
            lines.append(f"    cf.cond_br %c, ^b{targets[0]}, ^b{targets[1]}")
        else:
            cases = ", ".join(f"{n}: ^b{target}" for n, target in enumerate(targets[1:]))
            lines.append(f"    cf.switch %x : i32, [default: ^b{targets[0]}, {cases}]")
    module = parse("\n".join([*lines, "  }", "}", ""]), "t.mlir")
    (function,) = (op for op in module.walk() if op.name == "tt.func")
    return function.regions[0]


def reached(region, without=None) -> set:
    """The blocks that a walk from the first one meets, where one block is not there."""
    pending = [block for block in region.blocks[:1] if block is not without]
    found = set(pending)
    while pending:
        for block in pending.pop().ops[-1].successors:
            if block is not without and block not in found:
                found.add(block)
                pending.append(block)
    return found


def check(edges: list[list[int]]) -> None:
    region = region_of(edges)
    dominance = Dominance(region)
    all_reached = reached(region)
    assert set(dominance.order) == all_reached
    assert len(dominance.order) == len(all_reached)
    for above in region.blocks:
        assert (above in dominance) == (above in all_reached)
        cut_off = all_reached - reached(region, above)
        for below in region.blocks:
            expected = above in all_reached and below in cut_off
            assert dominance.dominates(above, below) == expected, edges


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed):
    generator = random.Random(seed)
    count = generator.randint(1, 12)
    most = generator.choice([1, 2, 2, 4])
    check([generator.choices(range(count), k=generator.randint(0, most)) for _ in range(count)])


@pytest.mark.parametrize(
    "edges",
    [
        [[]],
        [[0]],
        [[1, 2], [3], [3], []],  # a diamond
        [[1, 2], [2], [1, 3], []],  # no loop with one entry
        [[1], [2], [3], [1, 4], []],
        [[2], [0], []],  # the second is not reached
        [[1, 1], []],
        # The example of the paper, from R.
        [[1, 2, 3], [4], [1, 4, 5], [6, 7], [12], [8], [9], [9, 10], [5, 11], [11], [9], [9, 0],
         [8]],
    ],
)  # fmt: skip
def test_graphs(edges):
    check(edges)


def test_an_order_has_what_leads_to_a_block_in_front():
    region = region_of([[1, 2], [3], [3], [4], []])
    order = [block.label for block in Dominance(region).order]
    assert order[1] == "^b0"
    assert order[-2:] == ["^b3", "^b4"]


@pytest.mark.parametrize("far", [False, True])
def test_long_chains_take_no_time(far):
    count = 4000
    last = count - 1
    chain = [[n + 1, last] if far else [n + 1] for n in range(count - 1)]
    region = region_of([*chain, []])
    blocks = region.blocks
    dominance = Dominance(region)
    assert dominance.dominates(blocks[1], blocks[-1])
    assert dominance.dominates(blocks[10], blocks[-1]) != far
    assert dominance.dominates(blocks[10], blocks[-2])


def test_post_dominators():
    """Blocks 1 and 2 meet in 3; 4 branches to itself and leaves by 6; none leaves from 5."""
    region = region_of([[1, 2], [3], [3, 5], [4], [4, 6], [5], []])
    found = {
        block.label: {each.label for each in over}
        for block, over in post_dominators(region).items()
    }
    assert found["^b0"] == {"^b0", "^b3", "^b4", "^b6"}
    assert found["^b1"] == {"^b1", "^b3", "^b4", "^b6"}
    assert found["^b6"] == {"^b6"}
    assert "^b5" not in found
