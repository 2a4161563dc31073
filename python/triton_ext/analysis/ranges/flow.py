"""Abstract execution of a function: every operation runs on ranges instead of numbers.

Regions run along the control flow, so a short loop runs iteration by iteration; see the package's
docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

from ...ir import Block, Operation, Region, Value
from ...ir.dialects import scf
from ...ir.dominance import Dominance
from ..axis_info import Types
from ..trip_count import iterations
from ..value_flow import successor_parts
from .assumptions import Assumptions
from .interval import IntegerRange
from .visit import Rules, Visit, width_of

__all__ = ["MOST_ITERATIONS", "Execution"]

#: Longer loops, counted with the enclosing loops, do not run iteration by iteration.
MOST_ITERATIONS: Final = 1024
#: Rounds after which moving bounds are widened to their extremes, and after which all are.
_PATIENCE, _END = 3, 20

#: The ranges of several values; ``None`` for those that are no integers.
Ranges = tuple[IntegerRange | None, ...]


class Execution:
    """Runs functions on ranges.

    Args:
        types: The types of the module's values.
        rules: The rule of each operation, by name.
        assumptions: The assumptions of the module.
        programs: The known greatest program ids by axis.

    Attributes:
        seen: The range of every integer, over all of its definitions.
        trips: The greatest trip count of every loop that was entered; ``None`` if unknown.
    """

    def __init__(
        self, types: Types, rules: Rules, assumptions: Assumptions, programs: Mapping[int, int]
    ) -> None:
        self.seen: dict[Value, IntegerRange] = {}
        self.trips: dict[Operation, int | None] = {}
        self._types = types
        self._rules = rules
        self._assumptions = assumptions
        self._programs = programs
        # The ranges of the values at their latest definition.
        self._now: dict[Value, IntegerRange] = {}
        # The operations of a block that define integers or have regions.
        self._relevant: dict[Block, tuple[Operation, ...]] = {}
        # Product of the iterations of the enclosing loops.
        self._around = 1
        # Off while ranges move that are narrowed again later.
        self._records = True

    def run(self, function: Operation) -> None:
        """Runs a function with arguments of full range, narrowed by assumptions."""
        for region in function.regions:
            self._run_region(region, ())

    # ---- values

    def at(self, value: Value, block: Block) -> IntegerRange | None:
        """Returns the range of a value used in a block; ``None`` if it is not an integer."""
        found = self._now.get(value)
        if found is None:
            width = width_of(value, self._types)
            if width is None:
                return None
            found = IntegerRange.full(width)
        return self._assumptions.narrowed(found, value, block)

    def _all_at(self, values: Iterable[Value], block: Block) -> Ranges:
        return tuple(self.at(value, block) for value in values)

    def _define(self, values: Iterable[Value], ranges: Ranges, block: Block) -> None:
        """Sets the ranges of values; an integer without one gets the full range."""
        for value, found in zip_longest(values, ranges):
            width = width_of(value, self._types) if value is not None else None
            if width is None:
                continue
            if found is None or found.width != width:
                found = IntegerRange.full(width)
            self._set(value, self._assumptions.narrowed(found, value, block))

    def _set(self, value: Value, found: IntegerRange) -> None:
        self._now[value] = found
        if self._records:
            before = self.seen.get(value)
            self.seen[value] = found if before is None else before.joined(found)

    # ---- regions

    def _run_region(self, region: Region, arguments: Ranges) -> Ranges:
        """Runs a region, and returns the ranges that leave it."""
        blocks = region.blocks
        if len(blocks) > 1:
            return self._run_blocks(region, arguments)
        return self._run_block(blocks[0], arguments)

    def _run_block(self, block: Block, arguments: Ranges) -> Ranges:
        """Runs a block, and returns the ranges of its terminator's operands."""
        self._define(block.args, arguments, block)
        relevant = self._relevant.get(block)
        if relevant is None:
            relevant = self._relevant[block] = tuple(filter(self._is_relevant, block.ops))
        for op in relevant:
            self._run_op(op, block)
        return self._ends_at(block)

    def _ends_at(self, block: Block) -> Ranges:
        """Returns the ranges of a terminator's operands."""
        end = block.terminator
        return self._all_at(end.operands, block) if end is not None else ()

    def _is_relevant(self, op: Operation) -> bool:
        return bool(op.regions) or self._has_integers(op)

    def _has_integers(self, op: Operation) -> bool:
        return any(width_of(result, self._types) is not None for result in op.results)

    def _run_blocks(self, region: Region, arguments: Ranges) -> Ranges:
        """Runs blocks with branches until no range moves, then once more."""
        order = Dominance(region).order
        entering: dict[Block, Ranges] = {order[0]: arguments}
        records, self._records = self._records, False
        visits = dict.fromkeys(order, 0)
        pending = {order[0]}
        while pending:
            block = next(block for block in order if block in pending)
            pending.discard(block)
            visits[block] += 1
            before = self._defined_in(block) if visits[block] > 1 else {}
            passed = self._run_block(block, entering[block])
            if self._keep(before, visits[block]):
                pending |= entering.keys()
            for successor, ranges in _edges(block, passed):
                old = entering.get(successor)
                new = ranges if old is None else _joined(old, ranges)
                if new != old:
                    entering[successor] = _widened(new, old or (), visits[successor])
                    pending.add(successor)
        self._records = records
        return self._run_blocks_again([block for block in order if block in entering], entering)

    def _run_blocks_again(self, blocks: list[Block], entering: Mapping[Block, Ranges]) -> Ranges:
        """Runs blocks once more on their incoming ranges after the fixed point.

        These may be narrower than the widened ones assumed before.
        """
        # The first block is entered from outside only; each runs after its dominators.
        narrowed = {blocks[0]: entering[blocks[0]]}
        for block in blocks:
            for successor, ranges in _edges(block, self._ends_at(block)):
                old = narrowed.get(successor)
                narrowed[successor] = ranges if old is None else _joined(old, ranges)
        leaving = []
        for block in blocks:
            passed = self._run_block(block, narrowed.get(block, entering[block]))
            if block.terminator is None or not block.terminator.successors:
                leaving.append(passed)
        return _union(leaving)

    def _defined_in(self, block: Block) -> dict[Value, IntegerRange]:
        results = (result for op in self._relevant[block] for result in op.results)
        return {result: self._now[result] for result in results if result in self._now}

    def _keep(self, before: Mapping[Value, IntegerRange], visits: int) -> bool:
        """Joins the ranges of values with those of earlier visits; returns whether one moved.

        They stop when the arguments of the blocks do, except for non-monotone rules.
        """
        moved = False
        for value, old in before.items():
            new = old.joined(self._now[value])
            if new != old:
                moved = True
                new = new if visits < _END else IntegerRange.full(new.width)
            self._set(value, new)
        return moved

    # ---- operations

    def _run_op(self, op: Operation, block: Block) -> None:
        if op.name == "scf.for":
            self._run_for(scf.ForOp.match(op), block)
        elif op.name == "scf.while":
            self._run_while(scf.WhileOp.match(op), block)
        elif op.name == "scf.if":
            self._run_if(op, block)
        elif op.name == "scf.execute_region":
            self._define(op.results, self._run_region(op.regions[0], ()), block)
        elif op.name == "ttg.warp_specialize":
            captures = self._all_at(op.operands, block)
            default, *partitions = op.regions
            for partition in partitions:
                self._run_region(partition, captures)
            self._define(op.results, self._run_region(default, ()), block)
        else:
            # The arguments of an unknown operation's regions are unknown.
            for region in op.regions:
                self._run_region(region, ())
            self._define(op.results, self._infer(op, block), block)

    def _infer(self, op: Operation, block: Block) -> Ranges:
        rule = self._rules.get(op.name)
        if rule is None or not self._has_integers(op):
            return ()
        operands = []
        for value in op.operands:
            one = self.at(value, block)
            if one is None:
                return ()
            operands.append(one)
        found = rule(Visit(op, tuple(operands), self._types, self._programs))
        if found is None:
            return ()
        return found if isinstance(found, tuple) else (found,) * len(op.results)

    def _run_if(self, op: Operation, block: Block) -> None:
        condition = self.at(op.operands[0], block)
        truth = condition.truth if condition is not None else None
        taken = op.regions
        if truth is not None:
            taken = taken[:1] if truth else taken[1:]
        self._define(op.results, _union([self._run_region(region, ()) for region in taken]), block)

    # ---- loops

    def _run_for(self, loop: scf.ForOp | None, block: Block) -> None:
        assert loop is not None  # the caller matched the name
        op = loop.op
        bounds = self._all_at((loop.lower_bound, loop.upper_bound, loop.step), block)
        least, most = _trips(loop, bounds)
        self._count(op, most)
        inits = self._all_at(loop.inits, block)
        if most == 0:
            self._define(loop.results, inits, block)
            return
        induction = _induction(loop, bounds, most)

        def body(state: Ranges) -> Ranges:
            return self._run_block(loop.body, (induction, *state))

        around = self._around
        self._around *= most if most is not None else MOST_ITERATIONS + 1
        if most is not None and self._around <= MOST_ITERATIONS:
            found = _simulated(body, inits, least, most)
        else:
            yielded = self._stabilized(body, inits)
            found = yielded if least else _joined(inits, yielded)
        self._around = around
        self._define(loop.results, found, block)

    def _run_while(self, loop: scf.WhileOp | None, block: Block) -> None:
        assert loop is not None  # the caller matched the name
        self._count(loop.op, None)
        found: Ranges = ()

        def body(state: Ranges) -> Ranges:
            nonlocal found
            condition, *passed = self._run_block(loop.before, state) or (None,)
            found = tuple(passed)
            if condition is not None and condition.truth is False:
                return state
            return self._run_block(loop.after, found)

        around = self._around
        self._around *= MOST_ITERATIONS + 1
        self._stabilized(body, self._all_at(loop.inits, block))
        self._around = around
        self._define(loop.results, found, block)

    def _stabilized(self, body: Callable[[Ranges], Ranges], inits: Ranges) -> Ranges:
        """Runs a loop until no range moves, then once more; returns what its body yields."""
        records, self._records = self._records, False
        state = inits
        for rounds in range(_END + 2):
            yielded = body(state)
            new = _joined(state, yielded)
            if new == state:
                break
            state = _widened(new, state, rounds)
        self._records = records
        # Widened states exceed what really enters an iteration.
        return body(_joined(inits, yielded))

    def _count(self, loop: Operation, most: int | None) -> None:
        if not self._records:
            return
        before = self.trips.get(loop, 0)
        self.trips[loop] = None if most is None or before is None else max(most, before)


def _edges(block: Block, operands: Ranges) -> Iterator[tuple[Block, Ranges]]:
    """Yields the successors of a block, with the ranges of their arguments.

    Args:
        block: The block.
        operands: The ranges of its terminator's operands.
    """
    end = block.terminator
    if end is None:
        return
    condition = operands[0] if end.name == "cf.cond_br" and operands else None
    truth = condition.truth if condition is not None else None
    for number, (successor, passed) in enumerate(successor_parts(end, operands)):
        if truth is None or number == (0 if truth else 1):
            yield successor, tuple(passed)


def _trips(loop: scf.ForOp, bounds: Ranges) -> tuple[int, int | None]:
    """Returns the least and the greatest trip count; ``None`` if unknown."""
    lower, upper, step = bounds
    if lower is None or upper is None or step is None or step.smin < 0:
        return 0, None
    # A step of 0 would never terminate.
    most = iterations(loop.op, lower.smin, upper.smax, max(1, step.smin))
    least = iterations(loop.op, lower.smax, upper.smin, step.smax)
    return least or 0, most


def _induction(loop: scf.ForOp, bounds: Ranges, most: int | None) -> IntegerRange | None:
    """Returns the range of the induction variable while the body runs."""
    lower, upper, step = bounds
    if lower is None or upper is None or step is None:
        return None
    full = IntegerRange.full(lower.width)
    if loop.is_unsigned:
        return full.narrowed(unsigned=(lower.umin, upper.umax - 1))
    last = upper.smax - 1
    if most is not None and lower.number is not None and step.number is not None:
        last = min(last, lower.number + (most - 1) * step.number)
    return full.narrowed(signed=(lower.smin, last))


def _simulated(body: Callable[[Ranges], Ranges], inits: Ranges, least: int, most: int) -> Ranges:
    """Runs a loop iteration by iteration, and returns its results."""
    state, states, numbers = inits, [inits], {inits: 0}
    found = [inits] if least == 0 else []
    for number in range(1, most + 1):
        state = body(state)
        if number >= least:
            found.append(state)
        if state in numbers:
            # The remaining iterations repeat those since then.
            found += states[numbers[state] :]
            break
        numbers[state] = number
        states.append(state)
    return _union(found)


def _joined(one: Ranges, other: Ranges) -> Ranges:
    pairs = zip_longest(one, other)
    return tuple(None if a is None or b is None else a.joined(b) for a, b in pairs)


def _union(several: Iterable[Ranges]) -> Ranges:
    found: Ranges | None = None
    for one in several:
        found = one if found is None else _joined(found, one)
    return found or ()


def _widened(new: Ranges, old: Ranges, rounds: int) -> Ranges:
    """Returns ranges in which bounds that moved for too long are at their extremes."""
    if rounds < _PATIENCE:
        return new
    if rounds >= _END:
        return tuple(one and IntegerRange.full(one.width) for one in new)
    pairs = zip_longest(new, old)
    return tuple(a if a is None or b is None else a.widened(b) for a, b in pairs)
