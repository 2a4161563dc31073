"""Reads a kernel: which of its operations matter to barriers and shared memory, as a program.

Only what events depend on is kept: barriers, buffers, phases, predicates, bounds of loops and
conditions around events.  A nest of loops whose bodies hold nothing but the next loop is one loop.
Everything that is not understood and may matter is :class:`~.program.NotDecided`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, get_args

from ...ir import Block, Operation, Value
from ...ir.dialects import arith, scf, ttg
from ..alias_sets import AliasSets
from .layout import MEMORY_VIEWS, is_memdesc, roots_of, whole
from .program import (
    Access,
    Arrive,
    Branch,
    Calc,
    Copy,
    End,
    Enter,
    Event,
    Init,
    Instruction,
    Inval,
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
    Wait,
    fail,
)
from .state import Facts

__all__ = ["EventReader", "read_kernel"]

#: Returns what an operation does, or ``None`` if it does nothing to barriers and shared memory.
EventReader: TypeAlias = Callable[[Operation], Sequence[Event] | None]

EVENTS: Final = get_args(Event)
_STRUCTURED: Final = frozenset({"scf.for", "scf.if", "scf.while"})
#: Operations that may be given shared memory without doing anything to it.
_GIVEN: Final = MEMORY_VIEWS | {"ttg.warp_specialize", ttg.PARTITIONS}
_YIELDS: Final = frozenset({"scf.yield", "scf.condition", "ttg.warp_yield"})


def read_kernel(function: Operation, read_event: EventReader) -> Kernel:
    """Reads a kernel.

    Args:
        function: Its function.
        read_event: Reads the events of the vendor.

    Raises:
        NotDecided: Something in it cannot be followed.
    """
    reader = _Reader(function, read_event)
    return reader.kernel


class _Reader:
    def __init__(self, function: Operation, read_event: EventReader) -> None:
        self.kernel = Kernel(function)
        self.code: list[Instruction | None] = []
        self.events: dict[Operation, Sequence[Event]] = {}
        self.uses: dict[Operation, Use] = {}
        self.relevant: set[Value] = set()
        self.active: set[Operation] = set()
        self.statics: dict[Value, object] = {}
        self._read_events(function, read_event)
        self._find_uses()
        self.kernel.asynchronous = frozenset(
            op
            for op, events in self.events.items()
            if any(isinstance(each, (Copy, Start)) for each in events)
        )
        allocations = [op for op in function.walk() if op.name == "ttg.local_alloc"]
        top = function
        while top.parent_op is not None:
            top = top.parent_op
        self.sets = AliasSets.of(top)
        self.kernel.roots = roots_of(function, allocations, self.sets)
        for number, root in enumerate(self.kernel.roots):
            self.kernel.constants[root.value] = whole(number, root)
        self._slice(function)
        self.shared_bounds = self._find_shared_bounds()
        self._compile(function)

    # ---- events

    def _read_events(self, function: Operation, read_event: EventReader) -> None:
        for op in function.walk():
            if op is function or op.name in _STRUCTURED or op.name in _YIELDS:
                if any(len(region.blocks) != 1 for region in op.regions):
                    fail(op, "the kernel has branches that are not structured")
                continue
            events = read_event(op)
            if events is not None:
                self.events[op] = events
            elif op.name == "tt.call":
                fail(op, "the kernel calls a function")
            elif op.name.startswith("cf."):
                fail(op, "the kernel has branches that are not structured")
            elif op.name not in _GIVEN and any(map(is_memdesc, op.operands)):
                fail(op, f"'{op.name}' is not known, and it is given shared memory")

    def _find_uses(self) -> None:
        """Finds the operations that read results of asynchronous ones."""
        pending = [
            each.result
            for events in self.events.values()
            for each in events
            if isinstance(each, Start) and each.result is not None
        ]
        seen = set(pending)
        while pending:
            value = pending.pop()
            for use in value.uses:
                for target in self._passed_on(use.op, use.index, value):
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
        for op, use_event in self.uses.items():
            self.events[op] = (use_event, *self.events.get(op, ()))

    def _passed_on(self, op: Operation, index: int, value: Value) -> Iterable[Value]:
        """The values that are the same result as an operand; notes a use where there is none."""
        if op.name == "scf.for" and index >= 3:
            return (op.regions[0].blocks[0].args[index - 2],)
        if op.name in ("scf.yield", "ttg.warp_yield"):
            around = op.parent_op
            assert around is not None
            found: list[Value] = []
            if index < len(around.results):
                found.append(around.results[index])
            if around.name == "scf.for":
                found.append(around.regions[0].blocks[0].args[index + 1])
            if around.name != "scf.while":
                return found
        for event in self.events.get(op, ()):
            if isinstance(event, Start) and value in event.takes:
                return ()
            if isinstance(event, Retire) and value in event.takes:
                return (event.results[event.takes.index(value)],)
        known = self.uses.get(op)
        self.uses[op] = Use(op, (*(known.values if known else ()), value))
        return ()

    # ---- what matters

    def _slice(self, function: Operation) -> None:
        work: list[Value] = []
        for op, events in self.events.items():
            for event in events:
                work += _needs(event)
            self._activate(op, work)
        while work:
            value = work.pop()
            if value in self.relevant or value in self.kernel.constants:
                continue
            constant = arith.constant_int(value)
            if constant is not None and not value.type.startswith("tensor"):
                self.kernel.constants[value] = constant
                continue
            self.relevant.add(value)
            owner = value.owner
            if isinstance(owner, Operation):
                self._need_result(owner, value, work)
            else:
                self._need_argument(owner, value, work)

    def _activate(self, op: Operation, work: list[Value]) -> None:
        """Keeps the loops and branches around an operation."""
        around = op if op.name in _STRUCTURED else op.parent_op
        while around is not None and around not in self.active:
            self.active.add(around)
            if around.name == "scf.for":
                work += around.operands[:3]
            elif around.name == "scf.if":
                work.append(around.operands[0])
            elif around.name == "scf.while":
                condition = around.regions[0].blocks[0].terminator
                assert condition is not None
                work.append(condition.operands[0])
            around = around.parent_op

    def _need_result(self, op: Operation, value: Value, work: list[Value]) -> None:
        index = op.results.index(value)
        self._activate(op, work)
        if op.name == "scf.for":
            body = op.regions[0].blocks[0]
            work += (body.args[index + 1],)
        elif op.name == "scf.if":
            work += [_yielded(region.blocks[0])[index] for region in op.regions]
        elif op.name == "scf.while":
            condition = op.regions[0].blocks[0].terminator
            assert condition is not None
            work.append(condition.operands[1 + index])
        elif op.name == "ttg.warp_specialize":
            work.append(_yielded(op.regions[0].blocks[0])[index])
        elif op not in self.events and _is_followed(op):
            # All others, loads for instance, give unknown numbers.
            work += op.operands

    def _need_argument(self, block: Block, value: Value, work: list[Value]) -> None:
        op = block.parent_op
        index = block.args.index(value)
        if op is self.kernel.function:
            self.kernel.constants[value] = self.kernel.terms.make("argument", index)
            self.relevant.discard(value)
        elif op.name == "scf.for":
            self._activate(op, work)
            if index:
                work += (op.operands[index + 2], _yielded(block)[index - 1])
        elif op.name == "scf.while":
            self._activate(op, work)
            if block is op.regions[0].blocks[0]:
                work += (op.operands[index], _yielded(op.regions[1].blocks[0])[index])
            else:
                condition = op.regions[0].blocks[0].terminator
                assert condition is not None
                work.append(condition.operands[1 + index])
        elif op.name in ("ttg.warp_specialize", ttg.PARTITIONS):
            work.append(ttg.captures_of(op)[index])

    # ---- code

    def _emit(self, instruction: Instruction) -> int:
        self.code.append(instruction)
        return len(self.code) - 1

    def _compile(self, function: Operation) -> None:
        self.depths: dict[int, int] = {}
        loops: list[dict[int, int]] = []
        kernel = self.kernel
        self.waiting: list[tuple[int, Operation, Block, int]] = []
        self._block(function.regions[0].blocks[0], 0)
        terminator = function.regions[0].blocks[0].terminator
        self._emit(End(terminator if terminator is not None else function))
        loops.append(dict(self.depths))
        for at, op, block, number in self.waiting:
            self.depths = {}
            start = len(self.code)
            self._block(block, 0)
            self._emit(Stop(block.terminator or op))
            loops.append(dict(self.depths))
            spawn = self.code[at]
            assert isinstance(spawn, Spawn)
            captures = ttg.captures_of(block.parent_op)
            pairs = []
            for argument, capture in zip(block.args, captures, strict=True):
                if capture in kernel.constants:
                    kernel.constants[argument] = kernel.constants[capture]
                elif argument in self.relevant:
                    pairs.append((argument, capture))
            self.code[at] = Spawn(
                spawn.op,
                (*spawn.parts, (number, start)),
                (*spawn.arguments, tuple(pairs)),
            )
        kernel.code = [each for each in self.code if each is not None]
        assert len(kernel.code) == len(self.code)
        kernel.last_loops = loops
        slots = sum(root.atoms * root.pieces for root in kernel.roots)
        kernel.facts = Facts(slots, len(kernel.names))
        kernel.touching = self._touching()

    def _touching(self) -> list[tuple[int, list[int]]]:
        """Facts of each allocation, and the partitions that touch it."""
        kernel = self.kernel
        starts = [0]
        for at, instruction in enumerate(kernel.code):
            if isinstance(instruction, Spawn):
                starts[0] = starts[0] or at
                starts += [start for _, start in instruction.parts]
        ends = [starts[1] if len(starts) > 1 else len(kernel.code), *starts[2:], len(kernel.code)]
        parts: dict[Value, set[int]] = {root.value: set() for root in kernel.roots}
        for number, (start, end) in enumerate(zip(starts, ends, strict=False)):
            for instruction in kernel.code[start:end]:
                if isinstance(instruction, EVENTS):
                    for value in _needs(instruction):
                        if is_memdesc(value):
                            for allocation in self.sets.alias_set(value).allocations:
                                parts[allocation].add(number)
        found = []
        for root in kernel.roots:
            mask = ((1 << root.atoms * root.pieces) - 1) << root.base
            found.append((kernel.facts.of_slots(mask), sorted(parts[root.value])))
        return found

    def _block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            for event in self.events.get(op, ()):
                self._emit(event)
            if op.name == "scf.for" and op in self.active:
                self._loop(op, depth)
            elif op.name == "scf.if" and op in self.active:
                self._if(op, depth)
            elif op.name == "scf.while" and op in self.active:
                self._while(op, depth)
            elif op.name == "ttg.warp_specialize":
                self._specialize(op, depth)
            elif op.name == "ttg.warp_specialize" or op in self.events:
                continue
            elif any(result in self.relevant for result in op.results):
                self._emit(Calc(op))

    def _loop(self, op: Operation, depth: int) -> None:
        outer, uppers = op, [op.operands[1]]
        inner = self._only_loop(op)
        while inner is not None:
            uppers.append(inner.operands[1])
            op, inner = inner, self._only_loop(inner)
        body = op.regions[0].blocks[0]
        kept = [i for i, arg in enumerate(body.args[1:]) if arg in self.relevant]
        args = tuple(body.args[1:][i] for i in kept)
        # Follow what the innermost loop starts with out of the nest.
        starts = tuple(self._outer_init(op.operands[3 + i], outer, op) for i in kept)
        enter = Enter(
            outer,
            body.args[0],
            outer.operands[0],
            tuple(uppers),
            outer.operands[2],
            depth,
            body.args[0] in self.relevant,
        )
        self._emit(Move(outer, args, starts))
        self.depths[depth] = self._emit(enter)
        test = self._emit(Test(enter, outer))
        self._block(body, depth + 1)
        sources = tuple(_yielded(body)[i] for i in kept) if kept else ()
        counts = tuple(_counts(a, s) for a, s in zip(args, sources, strict=True))
        inside = {each for each in self._defined(outer) if each not in args}
        dead = tuple(each for each in inside if each is not body.args[0])
        self._emit(Next(enter, outer, args, sources, counts, dead, test))
        end = len(self.code)
        self.code[test] = Test(enter, outer, end)
        results = tuple(result for result in outer.results if result in self.relevant)
        sources = tuple(self._inner_argument(outer, op, result.index) for result in results)
        self._emit(Move(outer, results, sources, (*args, body.args[0], *dead)))

    def _only_loop(self, op: Operation) -> Operation | None:
        """The loop that is all there is in another one, so that both are one loop."""
        if not self._counts_up(op) or self._static(op.operands[1]) in self.shared_bounds:
            return None
        body = op.regions[0].blocks[0]
        inside = [each for each in body.ops if self._matters(each)]
        if len(inside) != 1 or inside[0].name != "scf.for" or not self._counts_up(inside[0]):
            return None
        inner = inside[0]
        upper = inner.operands[1].owner
        if isinstance(upper, Operation) and upper.parent is body:
            return None
        if body.args[0] in self.relevant or inner.regions[0].blocks[0].args[0] in self.relevant:
            return None
        inner_args = inner.regions[0].blocks[0].args[1:]
        for index, argument in enumerate(inner_args):
            if argument in self.relevant:
                init = inner.operands[3 + index]
                if init not in body.args[1:]:
                    return None
                at = body.args.index(init) - 1
                if _yielded(body)[at] is not inner.results[index]:
                    return None
        for argument in body.args[1:]:
            others = [user for user in argument._users if user is not inner]
            if argument in self.relevant and any(self._matters(user) for user in others):
                return None
        return inner

    def _find_shared_bounds(self) -> set[object]:
        """Bounds of loops in several partitions: these loops correspond to each other."""
        places: dict[object, set[object]] = {}
        for op in self.active:
            if op.name == "scf.for":
                around = op
                while around.parent_op is not None and around.parent_op.name not in (
                    "ttg.warp_specialize",
                    ttg.PARTITIONS,
                    "tt.func",
                ):
                    around = around.parent_op
                places.setdefault(self._static(op.operands[1]), set()).add(around.parent)
        return {bound for bound, blocks in places.items() if len(blocks) > 1}

    def _static(self, value: Value) -> object:
        """A value in terms of what never changes, as far as it is."""
        known = self.statics.get(value)
        if known is not None:
            return known
        terms, owner = self.kernel.terms, value.owner
        found: object = arith.constant_int(value)
        if found is None and isinstance(owner, Operation):
            if owner.name.startswith(("arith.", "tt.get_")) and len(owner.results) == 1:
                args = [self._static(operand) for operand in owner.operands]
                if owner.name == "arith.muli":
                    found = terms.product(*args)  # type: ignore[arg-type]
                else:
                    word = owner.text.partition("=")[2].partition("%")[0].partition(" loc(")[0]
                    found = terms.make("static", word.strip(), *args)
        elif found is None and not isinstance(owner, Operation):
            index = owner.args.index(value)
            around = owner.parent_op
            if around.name in ("ttg.warp_specialize", ttg.PARTITIONS):
                found = self._static(ttg.captures_of(around)[index])
        if found is None:
            found = terms.make("static", value)
        self.statics[value] = found
        return found

    def _counts_up(self, op: Operation) -> bool:
        lower, step = arith.constant_int(op.operands[0]), arith.constant_int(op.operands[2])
        return lower == 0 and step == 1

    def _matters(self, op: Operation) -> bool:
        return (
            op in self.active
            or op in self.events
            or any(result in self.relevant for result in op.results)
        ) and op.name not in _YIELDS

    def _outer_init(self, value: Value, outer: Operation, op: Operation) -> Value:
        while op is not outer:
            around = op.parent_op
            assert around is not None
            body = around.regions[0].blocks[0]
            value = around.operands[2 + body.args.index(value)]
            op = around
        return value

    def _inner_argument(self, outer: Operation, op: Operation, index: int) -> Value:
        """The argument of the innermost loop that is a result of the outermost one."""
        while outer is not op:
            value = _yielded(outer.regions[0].blocks[0])[index]
            outer = value.owner  # type: ignore[assignment]
            index = outer.results.index(value)
        return op.regions[0].blocks[0].args[index + 1]

    def _defined(self, op: Operation) -> Iterable[Value]:
        """The variables that are defined inside of an operation."""
        for inside in op.walk():
            if inside is not op:
                yield from (each for each in inside.results if each in self.relevant)
            for region in inside.regions:
                for block in region.blocks:
                    yield from (each for each in block.args if each in self.relevant)

    def _if(self, op: Operation, depth: int) -> None:
        branch = self._emit(Branch(op, op.operands[0]))
        kept = [i for i, result in enumerate(op.results) if result in self.relevant]
        results = tuple(op.results[i] for i in kept)
        dead = tuple(self._defined(op))
        self._block(op.regions[0].blocks[0], depth)
        yielded = _yielded(op.regions[0].blocks[0])
        self._emit(Move(op, results, tuple(yielded[i] for i in kept), dead))
        jump = self._emit(Jump(op))
        self.code[branch] = Branch(op, op.operands[0], len(self.code))
        if len(op.regions) > 1:
            self._block(op.regions[1].blocks[0], depth)
            yielded = _yielded(op.regions[1].blocks[0])
            self._emit(Move(op, results, tuple(yielded[i] for i in kept), dead))
        self.code[jump] = Jump(op, len(self.code))

    def _while(self, op: Operation, depth: int) -> None:
        before, after = (region.blocks[0] for region in op.regions)
        kept = [i for i, arg in enumerate(before.args) if arg in self.relevant]
        args = tuple(before.args[i] for i in kept)
        self._emit(Move(op, args, tuple(op.operands[i] for i in kept)))
        start = len(self.code)
        self._block(before, depth)
        condition = scf.ConditionOp.match(before.terminator) if before.terminator else None
        assert condition is not None
        branch = self._emit(Branch(op, condition.condition))
        passed = [i for i, arg in enumerate(after.args) if arg in self.relevant]
        targets = tuple(after.args[i] for i in passed)
        self._emit(Move(op, targets, tuple(condition.values[i] for i in passed)))
        self._block(after, depth)
        dead = tuple(each for each in self._defined(op) if each not in args)
        yielded = _yielded(after)
        self._emit(Move(op, args, tuple(yielded[i] for i in kept), dead, is_back=True))
        self._emit(Jump(op, start))
        self.code[branch] = Branch(op, condition.condition, len(self.code))
        results = [i for i, result in enumerate(op.results) if result in self.relevant]
        self._emit(
            Move(
                op,
                tuple(op.results[i] for i in results),
                tuple(condition.values[i] for i in results),
                (*args, *dead),
            )
        )

    def _specialize(self, op: Operation, depth: int) -> None:
        view = ttg.WarpSpecializeOp.match(op)
        assert view is not None
        at = self._emit(Spawn(op))
        numbers = []
        for index, partition in enumerate(view.partitions):
            number = len(self.kernel.names)
            self.kernel.names.append(f"partition{index}")
            numbers.append(number)
            self.waiting.append((at, op, partition.block, number))
        self.kernel.names[0] = "the default partition"
        self._block(view.default, depth)
        kept = [i for i, result in enumerate(op.results) if result in self.relevant]
        yielded = _yielded(view.default)
        targets = tuple(op.results[i] for i in kept)
        self._emit(Move(op, targets, tuple(yielded[i] for i in kept)))
        self._emit(JoinParts(op, tuple(numbers)))


def _yielded(block: Block) -> tuple[Value, ...]:
    terminator = block.terminator
    return terminator.operands if terminator is not None else ()


def _counts(argument: Value, source: Value) -> bool:
    owner = source.owner
    if not isinstance(owner, Operation) or owner.name != "arith.addi":
        return False
    left, right = owner.operands
    return left is argument and arith.constant_int(right) == 1


def _is_followed(op: Operation) -> bool:
    """Tells whether the results of an operation are computed from its operands."""
    return op.name.startswith("arith.") or op.name in MEMORY_VIEWS


def _needs(event: Event) -> list[Value]:
    """The variables of an event."""
    found: list[Value | None] = []
    if isinstance(event, (Init, Inval, Arrive, Wait, Copy)):
        found.append(event.barrier)
    if isinstance(event, (Arrive, Wait, Copy)):
        found.append(event.pred)
    if isinstance(event, Wait):
        found.append(event.phase)
    if isinstance(event, Copy):
        found.append(event.target)
    if isinstance(event, Lifetime) and event.is_over:
        found.append(event.buffer)
    if isinstance(event, (Access, Start)):
        found += [*event.reads, *event.writes]
    if isinstance(event, Start):
        found.append(event.result)
    if isinstance(event, (Start, Retire)):
        found += event.takes
    if isinstance(event, Retire):
        found += event.results
    if isinstance(event, Use):
        found += event.values
    return [each for each in found if each is not None]
