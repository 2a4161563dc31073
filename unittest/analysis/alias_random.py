"""Random programs that hand memory descriptors around, and an interpreter that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from triton_ext import ir

HEAD = """\
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
tt.func private @external(!T) -> !T
"""
T = "!ttg.memdesc<64xi32, #s, #smem, mutable>"
BYTES = 256
MOST_STEPS = 400
#: Memory that is no allocation of the program.
OUTSIDE = "outside"


class Program:
    """The text of a module with two functions that hand buffers to each other."""

    def __init__(self, random: Random, length: int) -> None:
        self.random = random
        self.left = length
        self.count = 0
        self.allocations = 0
        self.callees = ["external"]
        parts = [self._function("private", "g"), self._function("public", "f")]
        self.text = (HEAD + "\n".join(parts) + "\n}\n").replace("!T", T)

    def _function(self, visibility: str, name: str) -> str:
        self.left += 4
        known = ["%a", "%b"]
        lines = [f"tt.func {visibility} @{name}(%a: !T, %b: !T, %c: i1, %n: index) -> !T {{"]
        if self.random.random() < 0.4:
            lines += self._blocks(known)
        else:
            lines += self._statements(known, 0)
            lines.append(f"tt.return {self.random.choice(known)} : !T")
        self.callees.append(name)
        return "\n".join([*lines, "}"])

    def _blocks(self, known: list[str]) -> Iterator[str]:
        count = self.random.randrange(2, 5)
        yield from self._statements(known, 1)
        yield self._branch(known, count)
        for block in range(1, count + 1):
            arguments = [self._name(), self._name()]
            yield f"^bb{block}({arguments[0]}: !T, {arguments[1]}: !T):"
            # What the first block defines is known in all of them.
            inner = [*known, *arguments]
            yield from self._statements(inner, 1)
            leaves = self.random.random() < 0.4
            yield f"tt.return {self._any(inner)} : !T" if leaves else self._branch(inner, count)

    def _branch(self, known: list[str], count: int) -> str:
        one, other = (
            f"^bb{self.random.randrange(1, count + 1)}({self._any(known)}, {self._any(known)}"
            " : !T, !T)"
            for _ in range(2)
        )
        return f"cf.br {one}" if self.random.random() < 0.3 else f"cf.cond_br %c, {one}, {other}"

    def _name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def _any(self, known: Sequence[str]) -> str:
        return self.random.choice([*known, *known[-3:]])

    def _statements(self, known: list[str], depth: int) -> list[str]:
        makers = [self._allocation, self._view, self._select, self._call]
        if depth < 3:
            makers += [self._if, self._for, self._while, self._region, self._partitions]
        lines: list[str] = []
        for _ in range(self.random.randrange(1, 5)):
            self.left -= 1
            if self.left < 0:
                break
            lines += self.random.choice(makers)(known, depth)
        return lines

    def _results(self, known: list[str]) -> tuple[str, str]:
        name = self._name()
        known += [f"{name}#0", f"{name}#1"]
        return f"{name}:2", "(!T, !T)"

    def _body(self, known: Sequence[str], depth: int, end: str) -> list[str]:
        inner = list(known)
        lines = self._statements(inner, depth + 1)
        return [*lines, f"{end} {self._any(inner)}, {self._any(inner)} : !T, !T"]

    def _define(self, known: list[str], text: str) -> list[str]:
        name = self._name()
        known.append(name)
        return [f"{name} = {text}"]

    def _allocation(self, known: list[str], depth: int) -> list[str]:
        self.allocations += 1
        offset = f"{{allocation.offset = {self.allocations * BYTES} : i32}}"
        return self._define(known, f"ttg.local_alloc {offset} : () -> !T")

    def _view(self, known: list[str], depth: int) -> list[str]:
        return self._define(known, f"ttg.memdesc_subslice {self._any(known)}[0] : !T -> !T")

    def _select(self, known: list[str], depth: int) -> list[str]:
        one, other = self._any(known), self._any(known)
        return self._define(known, f"arith.select %c, {one}, {other} : !T")

    def _call(self, known: list[str], depth: int) -> list[str]:
        callee, one = self.random.choice(self.callees), self._any(known)
        if callee == "external":
            return self._define(known, f"tt.call @external({one}) : (!T) -> !T")
        operands = f"{one}, {self._any(known)}, %c, %n"
        return self._define(known, f"tt.call @{callee}({operands}) : (!T, !T, i1, index) -> !T")

    def _if(self, known: list[str], depth: int) -> list[str]:
        bodies = [self._body(known, depth, "scf.yield") for _ in range(2)]
        name, types = self._results(known)
        return [f"{name} = scf.if %c -> {types} {{", *bodies[0], "} else {", *bodies[1], "}"]

    def _region(self, known: list[str], depth: int) -> list[str]:
        body = self._body(known, depth, "scf.yield")
        name, types = self._results(known)
        return [f"{name} = scf.execute_region -> {types} {{", *body, "}"]

    def _for(self, known: list[str], depth: int) -> list[str]:
        x, y, i = self._name(), self._name(), self._name()
        inits = f"{x} = {self._any(known)}, {y} = {self._any(known)}"
        body = self._body([*known, x, y], depth, "scf.yield")
        name, types = self._results(known)
        head = f"{name} = scf.for {i} = %n to %n step %n iter_args({inits}) -> {types} {{"
        return [head, *body, "}"]

    def _while(self, known: list[str], depth: int) -> list[str]:
        x, y, z, w = (self._name() for _ in range(4))
        inits = f"{x} = {self._any(known)}, {y} = {self._any(known)}"
        before = self._body([*known, x, y], depth, "scf.condition(%c)")
        after = self._body([*known, z, w], depth, "scf.yield")
        name, types = self._results(known)
        head = f"{name} = scf.while ({inits}) : {types} -> {types} {{"
        return [head, *before, "} do {", f"^bb0({z}: !T, {w}: !T):", *after, "}"]

    def _partitions(self, known: list[str], depth: int) -> list[str]:
        captures = [self._any(known), self._any(known)]
        x, y, c, n = (self._name() for _ in range(4))
        default = self._body(known, depth, "ttg.warp_yield")
        inner = [x, y]
        # An isolated region, so the condition and the bounds are captured as well.
        body = [
            line.replace("%c,", f"{c},").replace("%c ", f"{c} ").replace("%n", n)
            for line in self._statements(inner, 3)
        ]
        name, types = self._results(known)
        return [
            f"{name} = ttg.warp_specialize({', '.join(captures)}, %c, %n)",
            "default {",
            *default,
            "}",
            f"partition0({x}: !T, {y}: !T, {c}: i1, {n}: index) num_warps(4) {{",
            *body,
            "ttg.warp_return",
            f"}} : (!T, !T, i1, index) -> {types}",
        ]


class Abandoned(Exception):
    """The execution takes too long."""


class Run:
    """One execution with random conditions and numbers of iterations.

    Attributes:
        defined: Every descriptor with the allocation that it refers to, each time it is defined.
    """

    def __init__(self, module: ir.Module, random: Random) -> None:
        self.random = random
        self.steps = 0
        self.functions = {name: op for op in module.body if (name := _symbol(op))}
        self.defined: set[tuple[ir.Value, ir.Value | str]] = set()
        self.now: dict[ir.Value, ir.Value | str] = {}
        self._region(self.functions["f"].regions[0], [OUTSIDE] * 4)

    def _bind(self, values: Sequence[ir.Value], roots: Sequence[ir.Value | str]) -> None:
        for value, root in zip(values, roots, strict=True):
            self.now[value] = root
            if value.type.startswith("!ttg.memdesc"):
                self.defined.add((value, root))

    def _values(self, values: Sequence[ir.Value]) -> list[ir.Value | str]:
        return [self.now.get(value, OUTSIDE) for value in values]

    def _region(self, region: ir.Region, arguments: Sequence[ir.Value | str]):
        """Runs a region, and returns what its last terminator hands out."""
        block = region.blocks[0]
        while True:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Abandoned
            self._bind(block.args, arguments)
            *ops, last = block.ops
            for op in ops:
                self._run(op)
            if not last.successors:
                return self._values(last.operands)
            number = self.random.randrange(len(last.successors))
            skipped = (len(last.successors) > 1) + sum(
                len(each.args) for each in last.successors[:number]
            )
            block = last.successors[number]
            arguments = self._values(last.operands[skipped : skipped + len(block.args)])

    def _run(self, op: ir.Operation) -> None:
        self._bind(op.results, self._outcome(op))

    def _outcome(self, op: ir.Operation) -> Sequence[ir.Value | str]:
        name, operands = op.name, self._values(op.operands)
        if name == "ttg.local_alloc":
            return [op.results[0]]
        if name == "ttg.memdesc_subslice":
            return operands
        if name == "arith.select":
            return [self.random.choice(operands[1:])]
        if name == "tt.call":
            return self._called(op, operands)
        if name == "scf.for":
            state = operands[3:]
            for _ in range(self.random.randrange(4)):
                state = self._region(op.regions[0], [OUTSIDE, *state])
            return state
        if name == "scf.while":
            state = operands
            while True:
                _, *state = self._region(op.regions[0], state)
                if self.random.random() < 0.5:
                    return state
                state = self._region(op.regions[1], state)
        if name == "ttg.warp_specialize":
            self._region(op.regions[1], operands)
            return self._region(op.regions[0], [])
        return self._region(self.random.choice(op.regions), [])

    def _called(self, op: ir.Operation, operands: Sequence[ir.Value | str]):
        callee = next(f for name, f in self.functions.items() if f"@{name}(" in op.text)
        if not callee.regions:
            return [self.random.choice([operands[0], OUTSIDE])]
        kept = dict(self.now)
        found = self._region(callee.regions[0], operands)
        self.now = kept
        return found


def _symbol(op: ir.Operation) -> str:
    return op.text.partition("@")[2].partition("(")[0]
