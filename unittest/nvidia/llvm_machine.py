"""Random LLVM IR with im2col markers, and a machine that runs it before and after the lowering.

Before, a value is a number or a marker, and a copy reads two markers; after, all values are
numbers.  What the copies read has to be the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

from triton_ext.llvm_ir import Binary, Call, Freeze, Function, Instruction, Phi, Select
from triton_ext.markers import CHANNEL, PIXEL, kind_of, rows_of, sized

__all__ = ["TILED", "Marker", "random_function", "run"]

TILED = (
    '"@$0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes '
    '[$1], [$2, {$3, $4}], [$5];", "b,r,l,r,r,r"'
)
_WRAP = 1 << 32


@dataclass(frozen=True)
class Marker:
    """A marker as a value: what it was called with, and what was added to it since.

    Only copies at a distance of whole blocks to its pixel are issued, if it tells of how many rows
    those are.
    """

    kind: str
    args: tuple[int, ...]
    rows: int = 0
    distance: int = 0

    def plus(self, number: int) -> Marker:
        """Distances go to the channel, or to w."""
        at = 0 if self.kind == CHANNEL else len(self.args) - 1
        moved = (self.args[at] + number) % _WRAP
        args = (*self.args[:at], moved, *self.args[at + 1 :])
        return replace(self, args=args, distance=self.distance + number)


class _Writer:
    """Writes a function statement by statement; knows which values may be used where it is."""

    def __init__(self, random: Random, rank: int, rows: int) -> None:
        self.random = random
        self.rank = rank
        self.rows = rows
        self.lines: list[str] = []
        self.names = 0
        self.block = "%entry"
        self.values = {
            "number": ["%a", "%b", "256", "512"] if rows else ["%a", "%b", "7", "-3"],
            "bit": ["%p"],
            PIXEL: [],
            CHANNEL: [],
        }

    def fresh(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def emit(self, kind: str, text: str) -> str:
        name = self.fresh()
        place = self.random.choice(["", ", !dbg !7"])
        self.lines.append(f"  {name} = {text}{place}")
        self.values[kind].append(name)
        return name

    def pick(self, kind: str) -> str:
        if not self.values[kind]:
            return self.marker(kind)
        return self.random.choice(self.values[kind])

    def marker(self, kind: str) -> str:
        size = self.rank - 1
        args = ", ".join(f"i32 {self.pick('number')}" for _ in range(size))
        return self.emit(kind, f"call i32 @{self.symbol(kind)}({args})")

    def symbol(self, kind: str) -> str:
        """What a marker calls."""
        return sized(kind, self.rank - 1, self.rows if kind == PIXEL else 0)

    def statement(self, depth: int) -> None:
        kind = self.random.choice([PIXEL, CHANNEL])
        choices = ["marker", "number", "bit", "select", "freeze", "sum", "copy", "copy"]
        if depth:
            choices += ["if", "if", "loop"]
        match self.random.choice(choices):
            case "marker":
                self.marker(kind)
            case "number":
                op = self.random.choice(["add", "sub", "add nsw"])
                self.emit("number", f"{op} i32 {self.pick('number')}, {self.pick('number')}")
            case "bit":
                self.emit("bit", f"icmp slt i32 {self.pick('number')}, {self.pick('number')}")
            case "select":
                a, b = self.pick(kind), self.random.choice([self.pick(kind), "poison"])
                self.emit(
                    kind, f"select i1 {self.pick('bit')}, i32 {a}, i32 {a if b == 'poison' else b}"
                )
            case "freeze":
                self.emit(kind, f"freeze i32 {self.pick(kind)}")
            case "sum":
                self.sum(kind)
            case "copy":
                self.copy()
            case "if":
                self.branch(depth)
            case "loop":
                self.loop(depth)

    def sum(self, kind: str) -> None:
        op = self.random.choice(["add", "add nuw nsw", "or disjoint", "sub"])
        marker, number = self.pick(kind), self.pick("number")
        swap = op != "sub" and self.random.random() < 0.5
        left, right = (number, marker) if swap else (marker, number)
        self.emit(kind, f"{op} i32 {left}, {right}")

    def copy(self) -> None:
        pixel, channel = self.pick(PIXEL), self.pick(CHANNEL)
        self.lines.append(
            f"  call void asm sideeffect {TILED}(i1 {self.pick('bit')}, ptr addrspace(3) @s, "
            f"ptr nonnull %x, i32 {channel}, i32 {pixel}, "
            "ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @s, i32 8192)) #1, !dbg !7"
        )

    def branch(self, depth: int) -> None:
        self.names += 1
        number, bit = self.names, self.pick("bit")
        self.lines.append(f"  br i1 {bit}, label %then{number}, label %else{number}")
        outer, ends = self.values, []
        for side in ("then", "else"):
            self.values = {kind: list(names) for kind, names in outer.items()}
            self.start(f"{side}{number}")
            for _ in range(self.random.randint(0, 3)):
                self.statement(depth - 1)
            ends.append((self.values, self.block, [self.pick(PIXEL), self.pick(CHANNEL)]))
            self.lines.append(f"  br label %end{number}")
        self.values = outer
        self.start(f"end{number}")
        for i, kind in enumerate((PIXEL, CHANNEL)):
            pairs = [f"[ {picked[i]}, {block} ]" for _, block, picked in ends]
            self.random.shuffle(pairs)
            self.emit(kind, f"phi i32 {', '.join(pairs)}")

    def loop(self, depth: int) -> None:
        start = [self.pick(PIXEL), self.pick(CHANNEL)]
        trips = self.random.randint(1, 3)
        self.names += 1
        number, before = self.names, self.block
        self.lines.append(f"  br label %loop{number}")
        self.start(f"loop{number}")
        header = len(self.lines)
        carried = [self.fresh(), self.fresh()]
        counter = self.fresh()
        outer = {kind: list(names) for kind, names in self.values.items()}
        for kind, name in zip((PIXEL, CHANNEL), carried, strict=True):
            outer[kind].append(name)
        self.values = {kind: list(names) for kind, names in outer.items()}
        self.values["number"].append(counter)
        for _ in range(self.random.randint(1, 4)):
            self.statement(depth - 1)
        following = [self.pick(PIXEL), self.pick(CHANNEL)]
        after, bit = self.fresh(), self.fresh()
        phis = [
            f"  {name} = phi i32 [ {first}, {before} ], [ {next_one}, {self.block} ]"
            for name, first, next_one in zip(carried, start, following, strict=True)
        ]
        phis.append(f"  {counter} = phi i32 [ 0, {before} ], [ {after}, {self.block} ]")
        self.lines[header:header] = phis
        self.lines += [
            f"  {after} = add i32 {counter}, 1",
            f"  {bit} = icmp slt i32 {after}, {trips}",
            f"  br i1 {bit}, label %loop{number}, label %end{number}",
        ]
        self.values = outer
        self.start(f"end{number}")

    def start(self, label: str) -> None:
        self.lines += ["", f"{label}:"]
        self.block = f"%{label}"


def random_function(random: Random) -> str:
    """A module with one kernel."""
    writer = _Writer(random, random.choice([3, 4, 5]), random.choice([0, 512, 1024]))
    for _ in range(random.randint(2, 9)):
        writer.statement(depth=2)
    writer.copy()
    body = "\n".join(writer.lines)
    args = ", ".join(["i32"] * (writer.rank - 1))
    symbols = [writer.symbol(kind) for kind in (PIXEL, CHANNEL)]
    declared = "\n\n".join(
        f"declare !dbg !{8 + i} i32 @{symbol}({args}) local_unnamed_addr"
        for i, symbol in enumerate(symbols)
        if f"@{symbol}(" in body
    )
    return f"""@s = external addrspace(3) global [0 x i8], align 16

{declared}

define ptx_kernel void @kernel(ptr byval([128 x i8]) align 64 %x, i32 %a, i32 %b, i1 %p) !dbg !4 {{
entry:
{body}
  ret void
}}

attributes #1 = {{ nounwind }}

!llvm.dbg.cu = !{{!0}}
!llvm.module.flags = !{{!2}}

!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "kernel.py", directory: "/nowhere")
!2 = !{{i32 2, !"Debug Info Version", i32 3}}
!3 = !DISubroutineType(types: !{{}})
!4 = distinct !DISubprogram(name: "kernel", scope: !1, file: !1, line: 1, type: !3, unit: !0)
!7 = !DILocation(line: 2, column: 5, scope: !4)
!8 = !DISubprogram(name: "{symbols[0]}", scope: !1, file: !1, line: 1, type: !3)
!9 = !DISubprogram(name: "{symbols[1]}", scope: !1, file: !1, line: 1, type: !3)
"""


Value = int | Marker | None


def run(function: Function, arguments: dict[str, int]) -> list[tuple[int, ...]]:
    """What each copy that is issued reads: coordinates innermost first, then offsets likewise.

    Args:
        function: The kernel.
        arguments: Values of its parameters that are numbers.
    """
    machine = _Machine(function, dict(arguments))
    machine.run()
    return machine.copies


class _Machine:
    def __init__(self, function: Function, values: dict[str, Value]) -> None:
        self.blocks = {block.label: block for block in function.blocks}
        self.values = values
        self.copies: list[tuple[int, ...]] = []

    def run(self) -> None:
        before, now = "", "%entry"
        while now:
            instructions = self.blocks[now].instructions
            # All phis of a block read what was there when the block was entered.
            phis = [one for one in instructions if one.opcode == "phi"]
            self.values.update({one.result: self.phi(one, before) for one in phis})
            for one in instructions[len(phis) : -1]:
                self.step(one)
            before, now = now, self.following(instructions[-1])

    def phi(self, one: Instruction, before: str) -> Value:
        phi = Phi.match(one)
        return self.of(phi.incoming[phi.labels.index(before)].text)

    def following(self, end: Instruction) -> str:
        if end.opcode == "ret":
            return ""
        labels = re.findall(r"label (%\w+)", end.text)
        condition = re.search(r"br i1 (%\w+)", end.text)
        return labels[0 if condition is None or self.of(condition[1]) else 1]

    def of(self, text: str) -> Value:
        if text in ("poison", "undef"):
            return None
        if text in self.values:
            return self.values[text]
        return int(text) % _WRAP

    def step(self, one: Instruction) -> None:
        call = Call.match(one)
        if call is not None and call.template:
            self.copy(call)
        elif call is not None:
            args = tuple(self.of(arg.text) for arg in call.args)
            symbol = call.callee[1:]
            self.values[one.result] = Marker(kind_of(symbol), args, rows_of(symbol))
        else:
            self.values[one.result] = self.compute(one)

    def compute(self, one: Instruction) -> Value:
        binary, select, freeze = Binary.match(one), Select.match(one), Freeze.match(one)
        if binary is not None:
            left, right = self.of(binary.left.text), self.of(binary.right.text)
            right = -right if binary.opcode == "sub" else right
            if isinstance(left, Marker):
                return left.plus(right)
            return right.plus(left) if isinstance(right, Marker) else (left + right) % _WRAP
        if select is not None:
            chosen = select.on_true if self.of(select.condition.text) else select.on_false
            return self.of(chosen.text)
        if freeze is not None:
            return self.of(freeze.value.text)
        compared = re.search(r"icmp slt i32 (\S+), ([^\s,]+)", one.text)
        if compared is not None:
            left, right = (self.of(compared[i]) for i in (1, 2))
            return int(_signed(left) < _signed(right))
        masked = re.search(r"and i\d+ (\S+), ([^\s,]+)", one.text)
        if masked is not None:
            return self.of(masked[1]) & self.of(masked[2])
        zero = re.search(r"icmp eq i32 (\S+), 0", one.text)
        if zero is not None:
            return int(self.of(zero[1]) == 0)
        truncated = re.search(r"trunc i32 (\S+) to i16", one.text)
        return self.of(truncated[1]) % (1 << 16)

    def copy(self, call: Call) -> None:
        values = [self.of(arg.text) for arg in call.args if arg.type in ("i32", "i16")]
        if not self.of(call.args[0].text):
            return
        if any(isinstance(value, Marker) for value in values):
            channel, pixel = values
            assert (channel.kind, pixel.kind) == (CHANNEL, PIXEL)
            if pixel.rows and pixel.distance % pixel.rows:
                return
            offsets = [value % (1 << 16) for value in reversed(channel.args[1:])]
            self.copies.append((channel.args[0], *reversed(pixel.args), *offsets))
        else:
            self.copies.append(tuple(values))


def _signed(value: int) -> int:
    return value - _WRAP if value >> 31 else value
