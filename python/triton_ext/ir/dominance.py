"""Which blocks of a region are on every way to a block."""

from __future__ import annotations

from .nodes import Block, Region

__all__ = ["dominators", "post_dominators"]


def dominators(region: Region) -> dict[Block, frozenset[Block]]:
    """The blocks that dominate each block, itself included; unreachable blocks are not listed.

    Args:
        region: A region; control enters at its first block.
    """
    blocks = region._blocks
    successors: dict[Block, list[Block]] = {
        block: list(block._ops[-1]._successors) if block._ops else [] for block in blocks
    }
    order = _reverse_postorder(blocks[0], successors)
    predecessors: dict[Block, list[Block]] = {block: [] for block in order}
    for block in order:
        for successor in successors[block]:
            if block not in predecessors[successor]:
                predecessors[successor].append(block)
    everything = frozenset(order)
    found = dict.fromkeys(order, everything)
    found[blocks[0]] = frozenset({blocks[0]})
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            common = frozenset.intersection(*(found[other] for other in predecessors[block]))
            new = common | {block}
            if new != found[block]:
                found[block] = new
                changed = True
    return found


def post_dominators(region: Region) -> dict[Block, frozenset[Block]]:
    """The blocks that are on every way from each block out of a region, itself included.

    Blocks that no way leads out of are not listed.

    Args:
        region: A region; control leaves at the blocks that branch nowhere.
    """
    successors = {
        block: list(block._ops[-1]._successors) if block._ops else [] for block in region._blocks
    }
    leaving = {block for block, following in successors.items() if not following}
    todo = list(leaving)
    while todo:
        block = todo.pop()
        before = [each for each, following in successors.items() if block in following]
        todo += [each for each in before if each not in leaving]
        leaving.update(before)
    found = dict.fromkeys(leaving, frozenset(leaving))
    changed = True
    while changed:
        changed = False
        for block in leaving:
            following = [found[each] for each in successors[block] if each in found]
            new = frozenset({block}) | (frozenset.intersection(*following) if following else set())
            if new != found[block]:
                found[block] = new
                changed = True
    return found


def _reverse_postorder(entry: Block, successors: dict[Block, list[Block]]) -> list[Block]:
    """The blocks that can be reached, each behind one that leads to it; no recursion."""
    order: list[Block] = []
    entered = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        block, following = stack[-1]
        successor = next(following, None)
        if successor is None:
            order.append(block)
            stack.pop()
        elif successor not in entered and successor in successors:
            entered.add(successor)
            stack.append((successor, iter(successors[successor])))
    order.reverse()
    return order
