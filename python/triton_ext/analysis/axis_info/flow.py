"""The data-flow solver: computes the states of all values of a function up to a fixed point."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from ...ir import Operation, Value
from ...ir.functions import CALLS, callee_of
from ...ir.result_counts import BINARY, CASTS, COMPARED, UNARY
from ..trip_count import iterations
from ..value_flow import successor_parts
from .folds import FOLDS, FOLDS_MODULO, Poison
from .hints import apply_hints
from .identities import claims_less, is_decided, simpler
from .info import AxisInfo, exact, join
from .opaque import is_opaque
from .visit import Rule, Rules, Types, Visit

__all__ = ["Solver"]

#: Operations whose operands have the rank of the result; the condition of a select may be a scalar.
_ELEMENTWISE = (BINARY | COMPARED | UNARY | CASTS | {"tt.addptr", "tt.bitcast"}) - {"arith.select"}
#: Structured operations whose results and block arguments are joins of incoming values.
_STRUCTURED = frozenset({"scf.execute_region", "scf.for", "scf.if", "scf.while"})
_LOOPS_BACK = frozenset({"scf.condition", "scf.yield", "ttg.warp_yield"})


class Solver:
    """Computes the states of the values of one function.

    A value has no state until something flows into it; afterwards its state only loses claims, so
    loops terminate.  An operation is visited when all operands have a state, and again when one of
    them changes.

    Args:
        types: The types of the module's values.
        rules: The rule of each operation, by name.
        inlined: Symbols of the functions that a host inlines.
    """

    def __init__(self, types: Types, rules: Rules, inlined: frozenset[str] = frozenset()) -> None:
        self.types = types
        self.rules = rules
        self.inlined = inlined
        self.states: dict[Value, AxisInfo] = {}
        # Operations in program order, positions of those to revisit, and the same as a set.
        self._ops: list[Operation] = []
        self._places: dict[Operation, int] = {}
        self._pending: list[int] = []
        self._waiting: set[int] = set()

    def run(self, function: Operation, arguments: Iterable[AxisInfo]) -> None:
        """Solves a function.

        Args:
            function: The function.
            arguments: The states of its arguments.
        """
        if not function.regions:
            return
        for argument, info in zip(function.regions[0].blocks[0].args, arguments, strict=True):
            self._meet(argument, info)
        self._ops = [op for op in function.walk() if op is not function]
        self._places = {op: place for place, op in enumerate(self._ops)}
        self._pending = list(range(len(self._ops)))
        self._waiting = set(self._pending)
        while self._pending:
            place = heapq.heappop(self._pending)
            self._waiting.discard(place)
            self._visit(self._ops[place])

    # ---- states

    def _meet(self, value: Value, info: AxisInfo) -> None:
        """Joins a state into a value; revisits the users if that changed it."""
        old = self.states.get(value)
        new = info.normalized()
        if old is not None:
            if old == new:
                return
            new = join(old, new, self.types.kind(value).stride).normalized()
            if old == new:
                return
        self.states[value] = new
        for user in value._users:
            self._again(user)

    def _again(self, op: Operation) -> None:
        place = self._places.get(op)
        if place is not None and place not in self._waiting:
            self._waiting.add(place)
            heapq.heappush(self._pending, place)

    def _flow_all(
        self, sources: Iterable[Value], targets: Iterable[Value], gap: Operation | None = None
    ) -> None:
        """Propagates states along an edge; ``gap`` if a host may decide whether it is taken."""
        # Ranges are as long as the IR says; one that is malformed is the verifier's to report.
        for source, target in zip(sources, targets, strict=False):
            state = self.states.get(source)
            if state is not None:
                state = state.of_rank(len(self.types.shape(target)))
                self._meet(target, state.with_gap(gap))

    def nothing(self, value: Value, gap: Operation | None = None) -> AxisInfo:
        """Returns the state that is true of every value of a type."""
        return AxisInfo.nothing(len(self.types.shape(value)), gap)

    # ---- visits

    def _visit(self, op: Operation) -> None:
        name = op.name
        if name in _LOOPS_BACK:
            self._visit_yield(op)
        elif op.successors:
            self._visit_branch(op)
        elif name in _STRUCTURED:
            self._visit_structured(op)
        elif name.startswith("ttg.warp_specialize"):
            self._visit_partitions(op)
        else:
            self._visit_regions(op)
            if op.results:
                self._visit_operation(op)

    def _visit_operation(self, op: Operation) -> None:
        operands = []
        for value in op._operands:
            state = self.states.get(value)
            if state is None:
                return
            operands.append(state)
        for result, info in zip(op.results, self._infer(op, tuple(operands)), strict=True):
            # The printed type of an unknown operation may be ambiguous.
            info = info.of_rank(len(self.types.shape(result)))
            self._meet(result, apply_hints(op, info))

    def _infer(self, op: Operation, operands: tuple[AxisInfo, ...]) -> Iterator[AxisInfo]:
        """Yields the state of each result."""
        rule = self.rules.get(op.name)
        if rule is None:
            # Hosts fold constants before they decide branches.
            folds = op.name.startswith(("arith.", "math."))
            constants = bool(operands) and all(
                _is_constant(value, known) or (folds and not known.complete)
                for value, known in zip(op.operands, operands, strict=True)
            )
            visit = Visit(op, operands, self.types)
            is_known = is_opaque(op.name) and not constants and not self._is_less(visit, None)
            if op.name in CALLS and callee_of(op) in self.inlined:
                is_known = False
            gap = None if is_known else op
            for result in op.results:
                yield self.nothing(result, gap)
            return
        rank = len(self.types.shape(op.results[0]))
        if op.name in _ELEMENTWISE:
            operands = tuple(known.of_rank(rank) for known in operands)
        visit = Visit(op, operands, self.types)
        found = self._fold(visit, rule) or rule(visit)
        gap = next((x.gap for x in operands if x.gap is not None), None)
        if gap is None and self._is_less(visit, found):
            gap = op
        for result in op.results:
            if found is None:
                yield self.nothing(result, gap)
            elif found.constant is not None and visit.width is not None:
                whole = AxisInfo.splat(found.constant, self.types.shape(result))
                yield whole.with_gap(found.gap or gap)
            else:
                yield found.with_gap(gap)

    def _is_less(self, visit: Visit, found: AxisInfo | None) -> bool:
        """Returns whether a host may replace an operation by one it knows more about."""
        if found is not None and found.constant is not None:
            return False
        return any(
            claims_less(found, other) for other in simpler(visit, self.states.get, self.rules)
        )

    def _fold(self, visit: Visit, rule: Rule) -> AxisInfo | None:
        fold = FOLDS.get(visit.op.name)
        if fold is None or not self._may_fold(visit):
            return None
        width = visit.width
        if width is None:
            return None
        number = fold(visit, width)
        if number is None:
            return None
        if isinstance(number, Poison):
            # (6) Some hosts have a constant for it.
            return (rule(visit) or self.nothing(visit.op.results[0])).with_gap(visit.op)
        found = AxisInfo.splat(exact(number, width), visit.shape)
        # (6) Hosts up to 3.7 read negative constants as large ones.
        signs = visit.op.name not in FOLDS_MODULO
        wrong = signs and any((x.constant or 0) < 0 for x in visit.operands)
        return found.with_gap(visit.op if wrong else None)

    @staticmethod
    def _may_fold(visit: Visit) -> bool:
        """Returns whether reading the types is worthwhile."""
        operands = visit.op.operands
        if len(operands) == 2 and operands[0] is operands[1]:
            return True
        return any(known.constant is not None for known in visit.operands)

    # ---- control flow

    def _visit_branch(self, op: Operation) -> None:
        """``cf.br``, ``cf.cond_br``, ``cf.switch``: operands are listed block by block."""
        taken = op.successors
        gap = None
        if op.name != "cf.br" and not op.operands:
            gap = op  # of an unknown dialect
        elif op.name != "cf.br":
            condition = self.states.get(op.operands[0])
            if condition is None:
                return
            gap = condition.gap
            if op.name != "cf.cond_br":
                gap = gap or (op if condition.constant is not None else None)
            elif condition.constant is not None:
                taken = (op.successors[0 if condition.constant else 1],)
            elif gap is None and is_decided(op):
                gap = op
        for block, passed in successor_parts(op, op.operands):
            if block in taken:
                self._flow_all(passed, block.args, gap)

    def _visit_structured(self, op: Operation) -> None:
        if op.name == "scf.for":
            self._enter_for(op)
        elif op.name == "scf.while":
            self._flow_all(op.operands, op.regions[0].blocks[0].args)
        # Yielded values may flow elsewhere now that bounds or conditions changed.
        for region in op.regions:
            for block in region.blocks:
                if block.terminator is not None:
                    self._again(block.terminator)

    def _enter_for(self, op: Operation) -> None:
        lower, _, step = op.operands[:3]
        start, stride = self.states.get(lower), self.states.get(step)
        block = op.regions[0].blocks[0]
        if start is not None and stride is not None:
            divisor = math.gcd(start.divisor, stride.divisor)
            gap = start.gap or stride.gap
            self._meet(block.args[0], AxisInfo((1,), (divisor,), (1,), None, gap))
        trips, unsure = self._trips(op)
        inits = op.operands[3:]
        if trips != 0:
            self._flow_all(inits, block.args[1:], unsure)
        if not trips:
            self._flow_all(inits, op.results, unsure)

    def _trips(self, op: Operation) -> tuple[int | None, Operation | None]:
        """Returns the trip count of an ``scf.for``, and the gap that it depends on."""
        bounds = [self.states.get(value) for value in op.operands[:3]]
        numbers = [x.constant if x is not None else None for x in bounds]
        trips = iterations(op, *numbers)
        gap = next((x.gap for x in bounds if x is not None and x.gap is not None), None)
        if gap is None and trips is None and (None not in numbers or _bounds_are_related(op)):
            gap = op
        return trips, gap

    def _visit_yield(self, op: Operation) -> None:
        around = op.parent_op
        if around is None or op.parent is None:
            return
        if around.name == "scf.for":
            trips, gap = self._trips(around)
            if trips != 1:
                self._flow_all(op.operands, around.regions[0].blocks[0].args[1:], gap)
            if trips != 0:
                self._flow_all(op.operands, around.results, gap)
        elif around.name == "scf.while":
            self._visit_while_end(op, around)
        elif around.name == "scf.if":
            self._visit_if_end(op, around)
        else:
            self._flow_all(op.operands, around.results)

    def _visit_while_end(self, op: Operation, loop: Operation) -> None:
        before, after = (region.blocks[0] for region in loop.regions)
        if op.name == "scf.condition":
            condition = self.states.get(op.operands[0])
            if condition is None:
                return
            # Both edges count as taken; a host may decide.
            gap = condition.gap or (op if condition.constant is not None else None)
            self._flow_all(op.operands[1:], after.args, gap)
            self._flow_all(op.operands[1:], loop.results, gap)
        else:
            self._flow_all(op.operands, before.args)

    def _visit_if_end(self, op: Operation, choice: Operation) -> None:
        condition = self.states.get(choice.operands[0])
        if condition is None:
            return
        if condition.constant is not None:
            taken = choice.regions[0 if condition.constant else -1]
            if op.parent is not None and op.parent.parent is not taken:
                return
        gap = condition.gap or (choice if is_decided(choice) else None)
        self._flow_all(op.operands, choice.results, gap)

    def _visit_partitions(self, op: Operation) -> None:
        """Captures of ``ttg.warp_specialize``; the default region uses outer values directly."""
        for region in op.regions:
            for block in region.blocks[:1]:
                if block.args:
                    self._flow_all(op.operands, block.args)

    def _visit_regions(self, op: Operation) -> None:
        """Arguments of regions that are not control flow, such as the body of ``tt.reduce``."""
        gap = None if is_opaque(op.name) else op
        for region in op.regions:
            for block in region.blocks[:1]:
                for argument in block.args:
                    self._meet(argument, self.nothing(argument, gap))


def _bounds_are_related(loop: Operation) -> bool:
    """Returns whether a host may know the trip count without knowing the bounds."""
    lower, upper = loop.operands[:2]
    owner = upper.owner
    return lower is upper or (isinstance(owner, Operation) and lower in owner.operands)


def _is_constant(value: Value, known: AxisInfo) -> bool:
    owner = value.owner
    defined = isinstance(owner, Operation) and owner.name == "arith.constant"
    return defined or known.constant is not None
