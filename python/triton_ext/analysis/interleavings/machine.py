"""Runs the instructions of a kernel, one at a time, on a state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...ir import Operation, Value
from .arithmetic import Arithmetic, InfeasibleError, Precision
from .layout import SAME, size_bytes, slice_pieces, type_of
from .memory import Memory, Violation
from .numbers import UNKNOWN, Counted, Number, Residue, Term
from .program import (
    Access,
    Arrive,
    Branch,
    Calc,
    Commit,
    Copy,
    End,
    Enter,
    Fence,
    Init,
    Inval,
    Join,
    JoinParts,
    Jump,
    Kernel,
    Lifetime,
    Move,
    Next,
    Retire,
    Spawn,
    Start,
    Stop,
    Test,
    Use,
    View,
    Wait,
    fail,
)
from .state import DONE, Event, Flying, Part, Result, State

__all__ = ["Machine"]

#: A counter that is carried and grows beyond this is known by its residue only.
_EXACT: Final = 64


@dataclass(frozen=True, slots=True)
class _Bound:
    """The variable of a loop's bound."""

    enter: Enter


@dataclass(frozen=True, slots=True)
class _Outside:
    """The value of a view with an index out of range; only its use is wrong.

    Attributes:
        op: The operation with the index.
        is_known: Whether the index is known exactly.
    """

    op: Operation
    is_known: bool


class Machine:
    """Runs instructions.

    Args:
        kernel: The kernel.
        precision: How exactly numbers are known.

    Attributes:
        loops: The loop of each bound.
        in_range: Operations whose indices are assumed to be in range.
    """

    def __init__(self, kernel: Kernel, precision: Precision) -> None:
        self.kernel = kernel
        self.precision = precision
        self.memory = Memory(kernel)
        self.arithmetic = Arithmetic(kernel.terms, precision)
        self.loops: dict[Term, Operation] = {}
        self.in_range: set[Operation] = set()
        #: Buffers that an index tells apart.
        self._counts: dict[Operation, int] = {}
        #: How the results of operations are computed, and the first of them.
        self._plans: dict[Operation, tuple[Callable[..., object], Value]] = {}
        self._handlers: dict[type, Callable[..., bool]] = {
            Access: self._access,
            Arrive: self._arrive,
            Branch: self._branch,
            Calc: self._calc,
            Commit: self._commit,
            Copy: self._copy,
            End: self._end,
            Enter: self._enter,
            Fence: self._fence,
            Init: self._init,
            Inval: self._inval,
            Join: self._join,
            JoinParts: self._join_parts,
            Jump: self._jump,
            Lifetime: self._lifetime,
            Move: self._move,
            Next: self._next,
            Retire: self._retire,
            Spawn: self._spawn,
            Start: self._start,
            Stop: self._stop,
            Test: self._test,
            Use: self._use,
            Wait: self._wait,
        }

    def step(self, state: State, part: Part) -> bool:
        """Runs the next instruction of a partition; returns whether it goes on.

        Raises:
            Fork: The state does not tell how.
            InfeasibleError: No run takes this path.
            NotDecided: The instruction cannot be followed.
            Restart: Numbers are not known exactly enough.
            Violation: The kernel is wrong.
        """
        state.asked = 0
        instruction = self.kernel.code[part.pc]
        goes_on = self._handlers[type(instruction)](state, part, instruction)
        state.guesses = ()
        return goes_on

    # ---- variables

    def _value(self, part: Part, value: Value) -> object:
        found = part.env.get(value)
        if found is None:
            found = self.kernel.constants.get(value, UNKNOWN)
        return found

    def _number(self, part: Part, value: Value) -> Number:
        found = self._value(part, value)
        return found if isinstance(found, (int, Counted, Residue, Term)) else UNKNOWN

    def view(self, part: Part, value: Value, op: Operation) -> View:
        found = self._value(part, value)
        if isinstance(found, _Outside):
            if found.is_known:
                raise Violation(found.op, "the index is out of range, and the buffer is used", ())
            # The kernel relies on a loop that does not run so often.
            self.in_range.add(found.op)
            raise InfeasibleError
        if not isinstance(found, View):
            fail(op, f"it is not known which buffer '{value.name}' is")
        return found

    def _mask(self, part: Part, values: Sequence[Value], op: Operation) -> int:
        found = 0
        for value in values:
            found |= self.kernel.mask(self.view(part, value, op))
        return found

    def _is_on(self, state: State, part: Part, pred: Value | None) -> bool:
        return pred is None or self.arithmetic.truth(state, part, self._number(part, pred))

    # ---- events

    def _init(self, state: State, part: Part, it: Init) -> bool:
        self.memory.init(state, part, it.op, self.view(part, it.barrier, it.op), it.count)
        part.pc += 1
        return True

    def _inval(self, state: State, part: Part, it: Inval) -> bool:
        self.memory.inval(state, part, it.op, self.view(part, it.barrier, it.op))
        part.pc += 1
        return True

    def _arrive(self, state: State, part: Part, it: Arrive) -> bool:
        if self._is_on(state, part, it.pred):
            view = self.view(part, it.barrier, it.op)
            self.memory.arrive(state, part, it.op, view, it.count, expects=it.expects)
        part.pc += 1
        return True

    def _wait(self, state: State, part: Part, it: Wait) -> bool:
        if self._is_on(state, part, it.pred):
            parity = self.arithmetic.residue(state, self._number(part, it.phase), 2)
            view = self.view(part, it.barrier, it.op)
            if not self.memory.wait(state, part, it.op, view, parity):
                return False
        part.pc += 1
        return True

    def _copy(self, state: State, part: Part, it: Copy) -> bool:
        if self._is_on(state, part, it.pred):
            mask = self._mask(part, (it.target,), it.op)
            view = self.view(part, it.barrier, it.op)
            self.memory.copy(state, part, it.op, mask, view, it.size_bytes)
        part.pc += 1
        return True

    def _access(self, state: State, part: Part, it: Access) -> bool:
        if it.reads:
            self.memory.read(state, part, it.op, self._mask(part, it.reads, it.op))
        if it.writes:
            self.memory.write(state, part, it.op, self._mask(part, it.writes, it.op))
        part.pc += 1
        return True

    def _start(self, state: State, part: Part, it: Start) -> bool:
        reads = self._mask(part, it.reads, it.op)
        writes = self._mask(part, it.writes, it.op)
        if reads:
            self.memory.read(state, part, it.op, reads, is_async=True)
        if writes:
            self.memory.write(state, part, it.op, writes, is_over=False)
        newest = part.serials.get(it.kind, 0)
        if it.is_grouped:
            serial = newest + 1
        elif part.joined.get(it.kind):
            part.joined[it.kind] -= 1
            serial = newest
        else:
            serial = newest + 1
            part.serials[it.kind] = serial
        flying = Flying(it.op, reads, writes, serial, part.results)
        if it.result is not None:
            part.env[it.result] = Result(part.results)
        part.results += 1
        part.flying.setdefault(it.kind, []).append(flying)
        if it.is_over:
            self.memory.retire(state, part, it.kind, 0)
        part.pc += 1
        return True

    def _join(self, state: State, part: Part, it: Join) -> bool:
        part.serials[it.kind] = part.serials.get(it.kind, 0) + 1
        part.joined[it.kind] = it.count
        part.pc += 1
        return True

    def _commit(self, state: State, part: Part, it: Commit) -> bool:
        part.serials[it.kind] = part.serials.get(it.kind, 0) + 1
        part.pc += 1
        return True

    def _retire(self, state: State, part: Part, it: Retire) -> bool:
        self.memory.retire(state, part, it.kind, it.pendings)
        for result, value in zip(it.results, it.takes, strict=True):
            part.env[result] = self._value(part, value)
        part.pc += 1
        return True

    def _fence(self, state: State, part: Part, it: Fence) -> bool:
        self.memory.fence(state, part)
        part.pc += 1
        return True

    def _lifetime(self, state: State, part: Part, it: Lifetime) -> bool:
        mask = self._mask(part, (it.buffer,), it.op)
        if it.is_over:
            self.memory.free(state, part, it.op, mask)
        else:
            self.memory.allocate(state, mask)
        part.pc += 1
        return True

    def _use(self, state: State, part: Part, it: Use) -> bool:
        flying = {each.result: each.op for each in part.flights()}
        for value in it.values:
            found = self._value(part, value)
            if isinstance(found, Result) and found.number in flying:
                raise Violation(
                    it.op,
                    f"{self.kernel.names[part.number]} reads the result of a matrix product that "
                    "is in flight",
                    (Event(part.number, flying[found.number], "start"),),
                )
        part.pc += 1
        return True

    # ---- arithmetic

    def _calc(self, state: State, part: Part, it: Calc) -> bool:
        op = it.op
        plan = self._plans.get(op)
        if plan is None:
            plan = self._plans[op] = (_CALCS.get(op.name, Machine._number_of), op.results[0])
        compute, result = plan
        part.env[result] = compute(self, state, part, op)
        part.pc += 1
        return True

    def _number_of(self, state: State, part: Part, op: Operation) -> object:
        operands = [self._number(part, value) for value in op.operands]
        return self.arithmetic.calc(state, part, op, operands)

    def _slice(self, state: State, part: Part, op: Operation) -> View | _Outside:
        outside = self._value(part, op.operands[0])
        if isinstance(outside, _Outside):
            return outside
        view = self.view(part, op.operands[0], op)
        root = self.kernel.roots[view.root]
        if view.pieces != (1 << root.pieces) - 1:
            fail(op, "a slice of a slice is not followed")
        return View(view.root, view.first, view.count, slice_pieces(root, op))

    def _select(self, state: State, part: Part, op: Operation) -> object:
        if not isinstance(self._value(part, op.operands[1]), (View, _Outside)):
            return self._number_of(state, part, op)
        is_first = self._is_on(state, part, op.operands[0])
        return self._value(part, op.operands[1 if is_first else 2])

    def _same(self, state: State, part: Part, op: Operation) -> View | _Outside:
        outside = self._value(part, op.operands[0])
        if isinstance(outside, _Outside):
            return outside
        view = self.view(part, op.operands[0], op)
        if op.name == "ttg.memdesc_reinterpret" and size_bytes(op.operands[0]) != size_bytes(
            op.results[0]
        ):
            fail(op, "it is not known which part of the buffer this is")
        return view

    def _index(self, state: State, part: Part, op: Operation) -> View | _Outside:
        view = self._value(part, op.operands[0])
        if isinstance(view, _Outside):
            return view
        view = self.view(part, op.operands[0], op)
        count = self._counts.get(op)
        if count is None:
            count = self._counts[op] = type_of(op.operands[0]).static_shape[0]
        root = self.kernel.roots[view.root]
        if view.count % count or view.pieces != (1 << root.pieces) - 1:
            fail(op, "this part of the buffer is not followed")
        index = self._number(part, op.operands[1])
        if index is UNKNOWN:
            fail(op, "its index is not followed")
        if isinstance(index, (int, Counted)):
            number = index if isinstance(index, int) else index.value
            if not 0 <= number < count:
                return _Outside(op, is_known=isinstance(index, int))
        if not isinstance(index, int):
            number = self.arithmetic.residue(state, index, count)
        size = view.count // count
        return View(view.root, view.first + number * size, size, view.pieces)

    def _move(self, state: State, part: Part, it: Move) -> bool:
        values = [self._value(part, source) for source in it.sources]
        if it.is_back:
            values = [
                self._widened(state, self._value(part, target), value)
                for target, value in zip(it.targets, values, strict=True)
            ]
        for each in it.dead:
            part.env.pop(each, None)
        for target, value in zip(it.targets, values, strict=True):
            part.env[target] = value
        part.pc += 1
        return True

    def _widened(self, state: State, old: object, new: object) -> object:
        """A carried value that may grow without end, by its residue."""
        if isinstance(new, int) and not -_EXACT <= new <= _EXACT:
            return Residue(new % self.precision.carried, self.precision.carried)
        if isinstance(new, Term) and new is not old and new is not UNKNOWN:
            modulus = self.precision.carried
            return Residue(self.arithmetic.residue(state, new, modulus), modulus)
        return new

    # ---- control flow

    def _branch(self, state: State, part: Part, it: Branch) -> bool:
        is_on = self.arithmetic.truth(state, part, self._number(part, it.condition))
        part.pc = part.pc + 1 if is_on else it.otherwise
        return True

    def _jump(self, state: State, part: Part, it: Jump) -> bool:
        part.pc = it.target
        return True

    def _enter(self, state: State, part: Part, it: Enter) -> bool:
        lower, step = self._number(part, it.lower), self._number(part, it.step)
        uppers = [self._number(part, upper) for upper in it.uppers]
        if any(each is UNKNOWN for each in (lower, step, *uppers)):
            fail(it.op, "the number of iterations is not followed")
        terms = self.kernel.terms
        upper = terms.product(*uppers)
        if not isinstance(lower, int) or not isinstance(step, int):
            if it.is_used:
                fail(it.op, "its induction variable starts or steps by an unknown number")
            if step == 1:
                upper = terms.sum(upper, terms.product(-1, lower))
            else:
                upper = terms.make("trips", lower, upper, step)
            lower = 0
        if isinstance(upper, (Counted, Residue)):
            upper = terms.make("value", upper)
        if isinstance(upper, int):
            part.loops.append((None, it.counter))
            part.env[it.counter] = lower
        else:
            self.loops.setdefault(upper, it.op)
            self.arithmetic.foresee(state, upper)
            domain = self.arithmetic.domain(state, part, upper, is_new=True)
            known = state.domains[domain]
            if it.op in self.precision.positive and known.low <= lower:
                if known.high <= lower:
                    raise InfeasibleError
                known.low = lower + 1
            if known.base:
                fail(it.op, "partitions run through this loop too far apart")
            part.loops.append((domain, it.counter))
            part.env[it.counter] = Counted(domain, lower)
            part.positions[domain] = lower
        part.env[_Bound(it)] = upper
        part.pc += 1
        return True

    def _test(self, state: State, part: Part, it: Test) -> bool:
        domain, counter = part.loops[-1]
        value = part.env[counter]
        bound = part.env[_Bound(it.enter)]
        if domain is None:
            assert isinstance(value, int)
            assert isinstance(bound, int)
            goes_on = value < bound
        else:
            assert isinstance(value, Counted)
            goes_on = self.arithmetic.exceeds(state, domain, value.value, is_counter=True)
        if goes_on:
            part.pc += 1
            return True
        part.loops.pop()
        if domain is not None:
            part.positions[domain] = math.inf
        del part.env[_Bound(it.enter)]
        part.pc = it.end
        return True

    def _next(self, state: State, part: Part, it: Next) -> bool:
        domain, variable = part.loops[-1]
        counter = part.env[variable]
        step = self._number(part, it.enter.step)
        step = (
            step
            if isinstance(step, int) and isinstance(self._number(part, it.enter.lower), int)
            else 1
        )
        values = []
        for target, source, counts in zip(it.targets, it.sources, it.counts, strict=True):
            old, new = self._value(part, target), self._value(part, source)
            if domain is not None:
                if counts and step == 1 and isinstance(new, int):
                    new = Counted(domain, new)
                new = self._widened(state, old, new)
            values.append(new)
        for each in it.dead:
            part.env.pop(each, None)
        for target, new in zip(it.targets, values, strict=True):
            part.env[target] = new
        if domain is None:
            assert isinstance(counter, int)
            part.env[variable] = counter + step
        else:
            assert isinstance(counter, Counted)
            part.env[variable] = Counted(domain, counter.value + step)
            part.positions[domain] = counter.value + step
        part.pc = it.test
        return True

    # ---- partitions

    def _spawn(self, state: State, part: Part, it: Spawn) -> bool:
        for (number, start), arguments in zip(it.parts, it.arguments, strict=True):
            other = state.parts[number]
            other.pc = start
            state.know[number] = state.know[part.number]
            other.env = {target: self._value(part, source) for target, source in arguments}
        state.has_news = True
        part.pc += 1
        return True

    def _join_parts(self, state: State, part: Part, it: JoinParts) -> bool:
        others = [state.parts[number] for number in it.parts]
        if any(other.pc != DONE for other in others):
            return False
        for other in others:
            state.know[part.number] |= state.know[other.number]
            for kind, flying in other.flying.items():
                part.flying.setdefault(kind, []).extend(flying)
            other.flying, other.pc = {}, -1
        part.pc += 1
        return True

    def _stop(self, state: State, part: Part, it: Stop) -> bool:
        part.pc = DONE
        part.env, part.loops = {}, []
        state.has_news = True
        return True

    def _end(self, state: State, part: Part, it: End) -> bool:
        self.memory.end(state, part, it.op)
        part.pc = DONE
        state.has_news = True
        return True


_CALCS: Final[Mapping[str, Callable[..., object]]] = {
    "arith.select": Machine._select,
    "ttg.memdesc_index": Machine._index,
    "ttg.memdesc_subslice": Machine._slice,
    **dict.fromkeys(SAME, Machine._same),
}
