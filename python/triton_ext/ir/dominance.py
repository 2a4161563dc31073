"""Dominators and post-dominators of the blocks of a region."""

from __future__ import annotations

from .nodes import Block, Region

__all__ = ["Dominance", "post_dominators"]


class Dominance:
    """The reachable blocks of a region, and their dominance relation.

    Lengauer and Tarjan's algorithm finds the tree of immediate dominators ("A fast algorithm for
    finding dominators in a flowgraph", 1979), in O(edges * log(blocks)) by path compression.

    Args:
        region: A region; control enters at its first block.

    Attributes:
        order: The reachable blocks, each after one of its predecessors.
    """

    __slots__ = ("_intervals", "order")

    def __init__(self, region: Region) -> None:
        successors: dict[Block, list[Block]] = {
            block: list(block._ops[-1]._successors) if block._ops else []
            for block in region._blocks
        }
        search = _Search(region._blocks[0], successors)
        self.order = search.reverse_postorder
        self._intervals = _intervals(search.blocks, _immediate_dominators(search, successors))

    def __contains__(self, block: Block) -> bool:
        """Returns whether a block is reachable."""
        return block in self._intervals

    def dominates(self, above: Block, below: Block) -> bool:
        """Returns whether every path to ``below`` leads through ``above``.

        A block dominates itself.  Unreachable blocks dominate nothing, and nothing dominates them.
        """
        outer, inner = self._intervals.get(above), self._intervals.get(below)
        if outer is None or inner is None:
            return False
        return outer[0] <= inner[0] and inner[1] <= outer[1]


def post_dominators(region: Region) -> dict[Block, frozenset[Block]]:
    """Returns for each block those on every path from it out of a region, itself included.

    Omits blocks from which no path leaves the region.

    Args:
        region: A region; control leaves at the blocks without successors.
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


class _Search:
    """A depth-first search without recursion.

    Attributes:
        blocks: The blocks in the order of discovery.
        numbers: The index of each block in ``blocks``.
        parents: By index, the index of the block from which a block was discovered.
        reverse_postorder: The blocks, each after one of its predecessors.
    """

    def __init__(self, entry: Block, successors: dict[Block, list[Block]]) -> None:
        self.blocks = [entry]
        self.numbers = {entry: 0}
        self.parents = [0]
        self.reverse_postorder: list[Block] = []
        stack = [(entry, iter(successors[entry]))]
        while stack:
            block, following = stack[-1]
            successor = next(following, None)
            if successor is None:
                self.reverse_postorder.append(block)
                stack.pop()
            elif successor not in self.numbers and successor in successors:
                self.numbers[successor] = len(self.blocks)
                self.blocks.append(successor)
                self.parents.append(self.numbers[block])
                stack.append((successor, iter(successors[successor])))
        self.reverse_postorder.reverse()


def _immediate_dominators(search: _Search, successors: dict[Block, list[Block]]) -> list[int]:
    """Returns the immediate dominator of each block, by index; the first block is its own."""
    numbers, parents = search.numbers, search.parents
    count = len(search.blocks)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for number, block in enumerate(search.blocks):
        for successor in successors[block]:
            if successor in numbers:
                predecessors[numbers[successor]].append(number)
    semi = list(range(count))  # semidominators
    best = list(range(count))  # on the path to the root of the forest, that of the least semi
    above = [-1] * count  # the forest
    found = [0] * count
    waiting: list[list[int]] = [[] for _ in range(count)]
    for number in range(count - 1, 0, -1):
        for other in predecessors[number]:
            semi[number] = min(semi[number], semi[_least(other, above, best, semi)])
        waiting[semi[number]].append(number)
        parent = above[number] = parents[number]
        for other in waiting[parent]:
            least = _least(other, above, best, semi)
            found[other] = least if semi[least] < parent else parent
        waiting[parent].clear()
    for number in range(1, count):
        if found[number] != semi[number]:
            found[number] = found[found[number]]
    return found


def _least(number: int, above: list[int], best: list[int], semi: list[int]) -> int:
    """Returns the block of the least semidominator below the root, and compresses the path."""
    if above[number] < 0:
        return number
    path = []
    while above[above[number]] >= 0:
        path.append(number)
        number = above[number]
    for lower in reversed(path):
        upper = above[lower]
        if semi[best[upper]] < semi[best[lower]]:
            best[lower] = best[upper]
        above[lower] = above[upper]
    return best[path[0] if path else number]


def _intervals(blocks: list[Block], dominators: list[int]) -> dict[Block, tuple[int, int]]:
    """Returns entry and exit times of each block in the tree; nested ones are dominated."""
    count = len(blocks)
    children: list[list[int]] = [[] for _ in range(count)]
    for number in range(1, count):
        children[dominators[number]].append(number)
    entered, left = [0] * count, [0] * count
    clock = 0
    stack = [(0, iter(children[0]))]
    while stack:
        number, following = stack[-1]
        child = next(following, None)
        clock += 1
        if child is None:
            left[number] = clock
            stack.pop()
        else:
            entered[child] = clock
            stack.append((child, iter(children[child])))
    return {block: (entered[n], left[n]) for n, block in enumerate(blocks)}
