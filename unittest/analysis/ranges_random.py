"""Random integer programs with control flow, and an interpreter that runs them on numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from integer_semantics import (
    BINARY,
    COMPARE,
    DIVISIONS,
    FLAGS,
    SHIFTS,
    binary,
    cast,
    compared,
    cut,
    flag_text,
    signed,
)
from triton_ext import ir
from triton_ext.ir.dialects import arith, scf

#: Small widths overflow often; an index counts as 64 bits.
WIDTHS = {"i1": 1, "i4": 4, "i8": 8, "i32": 32, "index": 64}
MOST_STEPS = 3000


class Abandoned(Exception):
    """The execution is none that ranges have to hold for, or takes too long."""


class Program:
    """Builds one function.

    Args:
        random: Where choices come from.
        length: Operations to make.
    """

    def __init__(self, random: Random, length: int) -> None:
        self.random = random
        self.left = length
        self.names = 0
        types = ["i1", "i8", "i32", *random.choices(list(WIDTHS), k=2)]
        self.arguments = [(f"%arg{number}", type_) for number, type_ in enumerate(types)]
        body = list(self._blocks() if random.random() < 0.3 else self._straight())
        header = ", ".join(f"{name}: {type_}" for name, type_ in self.arguments)
        self.text = f"tt.func public @f({header}) {{\n" + "\n".join(body) + "\n}\n"

    def _straight(self) -> Iterator[str]:
        yield from self._statements(list(self.arguments), 0)
        yield "tt.return"

    def _blocks(self) -> Iterator[str]:
        """Blocks that branch to any of each other but the first; values come as arguments."""
        count = self.random.randrange(2, 5)
        signatures = [[], *([self._type(), self._type()] for _ in range(count))]
        for number, types in enumerate(signatures):
            arguments = [(self._name(), type_) for type_ in types]
            if number:
                printed = ", ".join(f"{name}: {type_}" for name, type_ in arguments)
                yield f"^bb{number}({printed}):"
            scope = [*self.arguments, *arguments]
            self.left = 5
            yield from self._statements(scope, 1)
            yield from self._leave(scope, signatures)

    def _leave(self, scope, signatures) -> Iterator[str]:
        targets = []
        for _ in range(2):
            number = self.random.randrange(1, len(signatures))
            values = []
            for type_ in signatures[number]:
                value = yield from self._some(scope, type_)
                values.append(value)
            types = ", ".join(signatures[number])
            targets.append(f"^bb{number}({', '.join(values)} : {types})")
        if self.random.random() < 0.3:
            yield "tt.return"
        else:
            condition = yield from self._some(scope, "i1")
            yield f"cf.cond_br {condition}, {targets[0]}, {targets[1]}"

    # ---- pieces

    def _name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def _type(self) -> str:
        return self.random.choice(list(WIDTHS))

    def _number(self, type_: str) -> int:
        width = WIDTHS[type_]
        near = self.random.choice((0, 0, 1 << (width - 1), 3, 7))
        number = near + self.random.randrange(-3, 6)
        return signed(cut(number, width), width)

    def _constant(self, scope, type_: str, number: int | None = None):
        name = self._name()
        number = self._number(type_) if number is None else number
        printed = str(bool(number)).lower() if type_ == "i1" else f"{number} : {type_}"
        yield f"{name} = arith.constant {printed}"
        scope.append((name, type_))
        return name

    def _some(self, scope, type_: str):
        """A value of a type, often a new constant."""
        known = [name for name, other in scope if other == type_]
        if known and self.random.random() < 0.9:
            # The latest ones are results more often than constants.
            return self.random.choice(known[-3:] if self.random.random() < 0.6 else known)
        name = yield from self._constant(scope, type_)
        return name

    def _statements(self, scope, depth: int) -> Iterator[str]:
        count = self.random.randrange(2, 8)
        while count and self.left > 0:
            count -= 1
            self.left -= 1
            makers = [self._binary] * 5 + [self._compare, self._cast, self._select, self._assume]
            if depth < 3:
                makers += [self._if, self._for, self._while]
            yield from self.random.choice(makers)(scope, depth)

    def _binary(self, scope, depth):
        name, type_ = self.random.choice(BINARY), self._type()
        lhs = yield from self._some(scope, type_)
        if name in DIVISIONS or name in SHIFTS:
            number = self.random.choice((1, 2, 3, -1)) if name in DIVISIONS else 1
            rhs = yield from self._constant(scope, type_, number if type_ != "i1" else 1)
            if type_ == "i1" and name in SHIFTS:
                return
        else:
            rhs = yield from self._some(scope, type_)
        flags = frozenset(x for x in FLAGS.get(name, ()) if self.random.random() < 0.15)
        result = self._name()
        yield f"{result} = arith.{name} {lhs}, {rhs}{flag_text(name, flags)} : {type_}"
        scope.append((result, type_))

    def _compare(self, scope, depth):
        type_ = self._type()
        lhs = yield from self._some(scope, type_)
        rhs = yield from self._some(scope, type_)
        result = self._name()
        yield f"{result} = arith.cmpi {self.random.choice(list(COMPARE))}, {lhs}, {rhs} : {type_}"
        scope.append((result, "i1"))

    def _cast(self, scope, depth):
        before, after = self.random.sample(["i1", "i4", "i8", "i32"], 2)
        source = yield from self._some(scope, before)
        name = self.random.choice(("extsi", "extui"))
        if WIDTHS[before] > WIDTHS[after]:
            name = "trunci"
        result = self._name()
        if self.random.random() < 0.3:
            name, after = self.random.choice(("index_cast", "index_castui")), "index"
        yield f"{result} = arith.{name} {source} : {before} to {after}"
        scope.append((result, after))

    def _select(self, scope, depth):
        type_ = self._type()
        condition = yield from self._some(scope, "i1")
        lhs = yield from self._some(scope, type_)
        rhs = yield from self._some(scope, type_)
        result = self._name()
        yield f"{result} = arith.select {condition}, {lhs}, {rhs} : {type_}"
        scope.append((result, type_))

    def _assume(self, scope, depth):
        type_ = self._type()
        operands = [(yield from self._some(scope, type_)), (yield from self._constant([], type_))]
        self.random.shuffle(operands)
        result = self._name()
        predicate = self.random.choice([name for name in COMPARE if name not in ("eq", "ne")])
        yield f"{result} = arith.cmpi {predicate}, {', '.join(operands)} : {type_}"
        yield f"llvm.intr.assume {result} : i1"

    # ---- control flow

    def _yield(self, scope, types, word="scf.yield"):
        values = []
        for type_ in types:
            value = yield from self._some(scope, type_)
            values.append(value)
        yield f"{word} {', '.join(values)} : {', '.join(types)}"

    def _results(self, scope, types) -> str:
        name = self._name()
        if len(types) == 1:
            scope.append((name, types[0]))
            return name
        scope.extend((f"{name}#{number}", type_) for number, type_ in enumerate(types))
        return f"{name}:{len(types)}"

    def _types(self) -> list[str]:
        return [self._type() for _ in range(self.random.randrange(1, 3))]

    def _if(self, scope, depth):
        condition = yield from self._some(scope, "i1")
        types = self._types()
        inner = list(scope)
        results = self._results(scope, types)
        yield f"{results} = scf.if {condition} -> ({', '.join(types)}) {{"
        yield from self._statements(inner, depth + 1)
        yield from self._yield(inner, types)
        yield "} else {"
        inner = [pair for pair in inner if pair in scope]
        yield from self._statements(inner, depth + 1)
        yield from self._yield(inner, types)
        yield "}"

    def _inits(self, scope, types):
        pairs = []
        for type_ in types:
            value = yield from self._some(scope, type_)
            pairs.append((self._name(), value))
        return pairs

    def _for(self, scope, depth):
        type_ = self.random.choice(("i8", "i32", "index"))
        lower = yield from self._constant([], type_, self.random.randrange(-2, 3))
        if self.random.random() < 0.4:
            upper = yield from self._some(scope, type_)
        else:
            upper = yield from self._constant([], type_, self.random.randrange(0, 9))
        step = yield from self._constant([], type_, self.random.randrange(1, 4))
        types = self._types()
        pairs = yield from self._inits(scope, types)
        induction = self._name()
        inner = [*scope, (induction, type_), *zip((name for name, _ in pairs), types, strict=True)]
        carried = ", ".join(f"{name} = {value}" for name, value in pairs)
        tail = f" : {type_}" if type_ != "index" else ""
        yield (
            f"{self._results(scope, types)} = scf.for {induction} = {lower} to {upper} step {step}"
            f" iter_args({carried}) -> ({', '.join(types)}){tail} {{"
        )
        yield from self._statements(inner, depth + 1)
        yield from self._yield(inner, types)
        yield "}"

    def _while(self, scope, depth):
        types = self._types()
        pairs = yield from self._inits(scope, types)
        listed = ", ".join(types)
        outer = list(scope)
        results = self._results(scope, types)
        carried = ", ".join(f"{name} = {value}" for name, value in pairs)
        inner = [*outer, *zip((name for name, _ in pairs), types, strict=True)]
        yield f"{results} = scf.while ({carried}) : ({listed}) -> ({listed}) {{"
        yield from self._statements(inner, depth + 1)
        condition = yield from self._some(inner, "i1")
        yield from self._yield(inner, types, f"scf.condition({condition})")
        yield "} do {"
        names = [self._name() for _ in types]
        pairs = list(zip(names, types, strict=True))
        yield f"^bb0({', '.join(f'{name}: {type_}' for name, type_ in pairs)}):"
        inner = [*outer, *pairs]
        yield from self._statements(inner, depth + 1)
        yield from self._yield(inner, types)
        yield "}"


@cache
def _function(op: ir.Operation) -> Callable[..., int | None]:
    """Returns the function that an operation of ``arith`` computes."""
    name = op.name.removeprefix("arith.")
    widths = [WIDTHS[value.type] for value in (*op.operands, *op.results)]
    flags = arith.poison_flags(op)
    if name == "constant":
        bits = cut(int(arith.ConstantOp.match(op).value), widths[0])
        return lambda: bits
    if name == "cmpi":
        predicate = arith.CmpIOp.match(op).predicate
        return lambda a, b: compared(predicate, a, b, widths[0])
    if name == "select":
        return lambda condition, a, b: a if condition else b
    if name in BINARY:
        return lambda a, b: binary(name, a, b, widths[0], flags)
    if name.startswith("index"):
        name = "extui" if name.endswith("ui") else "extsi"
    return lambda a: cast(name, a, *widths, flags)


@cache
def _parts(block: ir.Block):
    """The operations of a block with their operands and results, and its terminator."""
    return [(op, op.operands, op.results) for op in block.ops], block.terminator


def forget() -> None:
    """Lets go of the operations that were run."""
    _function.cache_clear()
    _parts.cache_clear()


class Run:
    """One execution of a function on numbers.

    Attributes:
        defined: Every value that was defined, with its bits.
        used: Every operand, with the block of its use and its bits.
        iterations: Every loop that was left, with the number of its iterations.
    """

    def __init__(self, function: ir.Operation, arguments: list[int]) -> None:
        self.defined: list[tuple[ir.Value, int]] = []
        self.used: list[tuple[ir.Value, ir.Block, int]] = []
        self.iterations: list[tuple[ir.Operation, int]] = []
        self._now: dict[ir.Value, int] = {}
        self._steps = 0
        block, passed = function.regions[0].blocks[0], arguments
        while block is not None:
            end, operands = self._block(block, passed)
            block = None
            if end.name == "cf.cond_br":
                which, at = 1 - operands[0], 1
                for successor in end.successors[:which]:
                    at += len(successor.args)
                block = end.successors[which]
                passed = operands[at : at + len(block.args)]

    def _set(self, value: ir.Value, bits: int | None) -> None:
        if bits is None:
            raise Abandoned
        self._now[value] = bits
        self.defined.append((value, bits))

    def _block(self, block: ir.Block, arguments) -> tuple[ir.Operation, list[int]]:
        for argument, bits in zip(block.args, arguments, strict=True):
            self._set(argument, bits)
        ops, end = _parts(block)
        for op, values, results in ops:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise Abandoned
            operands = [self._now[value] for value in values]
            self.used += [(v, block, bits) for v, bits in zip(values, operands, strict=True)]
            if op is end:
                return op, operands
            for result, bits in zip(results, self._op(op, operands), strict=True):
                self._set(result, bits)
        raise AssertionError("a block without an end")

    def _op(self, op: ir.Operation, operands: list[int]):
        if op.name == "llvm.intr.assume":
            if not operands[0]:
                raise Abandoned
            return ()
        if op.name.startswith("arith."):
            return (_function(op)(*operands),)
        if op.name == "scf.if":
            region = op.regions[1 - operands[0]]
            return self._block(region.blocks[0], ())[1]
        return self._for(op, operands) if op.name == "scf.for" else self._while(op, operands)

    def _for(self, op: ir.Operation, operands: list[int]):
        loop = scf.ForOp.match(op)
        width = WIDTHS[loop.lower_bound.type]
        lower, upper, step = (signed(bits, width) for bits in operands[:3])
        state, numbers = operands[3:], range(lower, upper, step)
        for number in numbers:
            _, state = self._block(loop.body, [cut(number, width), *state])
        self.iterations.append((op, len(numbers)))
        return state

    def _while(self, op: ir.Operation, operands: list[int]):
        before, after = (region.blocks[0] for region in op.regions)
        state = operands
        while True:
            _, (condition, *state) = self._block(before, state)
            if not condition:
                return state
            _, state = self._block(after, state)
