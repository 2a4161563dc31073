"""Random kernels of blocks: slots, buffers and tokens flow along branches and into a function.

What other generated kernels carry in loops is an argument of every block here, and any block may
branch back to any other one.  Nothing is read for a reason, and most kernels are wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["generate_blocks"]

_HEAD = """\
#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250"} {
"""
_POINTERS = "tensor<128x!tt.ptr<f32>, #b>"
_BUFFER = "!ttg.memdesc<128xf32, #s, #smem, mutable>"
_BUFFERS = "!ttg.memdesc<2x128xf32, #s, #smem, mutable>"
_TOKEN = "!ttg.async.token"
_ARGUMENTS = f"%p: {_POINTERS}, %other: {_BUFFER}, %q: i1, %r: i1"
#: Branches that a counter takes before the kernel has to end.
_MOST = 5


@dataclass(slots=True)
class _Seen:
    """What is visible in a block.

    Attributes:
        counter: Number of branches taken.
        slots: Numbers that are 0 or 1.
        buffers: Buffers.
        tokens: Tokens of copies and groups.
    """

    counter: str
    slots: list[str]
    buffers: list[str]
    tokens: list[str]


@dataclass(slots=True)
class _Writer:
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    names: int = 0

    def name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def emit(self, text: str) -> str:
        """Writes an operation with one result."""
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def buffer(self, seen: _Seen) -> str:
        if self.rng.random() < 0.5:
            slot = self.rng.choice(seen.slots)
            seen.buffers.append(
                self.emit(f"ttg.memdesc_index %ring[{slot}] : {_BUFFERS} -> {_BUFFER}")
            )
        return self.rng.choice(seen.buffers[-3:])

    def copy(self, seen: _Seen) -> None:
        buffer = self.buffer(seen)
        token = self.emit(
            f"ttg.async_copy_global_to_local %p, {buffer} : {_POINTERS} -> "
            + _BUFFER.removeprefix("!ttg.memdesc")
        )
        # Tokens of groups without copies ask for nothing, though what is older retires.
        if self.rng.random() < 0.8:
            token = self.emit(f"ttg.async_commit_group tokens {token}")
        seen.tokens.append(token)

    def statement(self, seen: _Seen) -> None:
        drawn = self.rng.random()
        if drawn < 0.35:
            self.copy(seen)
        elif drawn < 0.45:
            self.emit(f"ttg.async_wait {self.rng.choice(seen.tokens)} {{num = 0 : i32}}")
        elif drawn < 0.55:
            self.emit(f"ttg.async_wait {{num = {self.rng.choice((0, 1, 1, 2))} : i32}}")
        elif drawn < 0.85:
            self.emit(f"ttg.local_load {self.buffer(seen)} : {_BUFFER} -> tensor<128xf32, #b>")
        else:
            total = self.emit(f"arith.addi {self.rng.choice(seen.slots)}, %c1 : i32")
            seen.slots.append(self.emit(f"arith.remsi {total}, %c2 : i32"))

    def body(self, seen: _Seen) -> None:
        for _ in range(self.rng.randint(0, 5)):
            self.statement(seen)
        seen.counter = self.emit(f"arith.addi {seen.counter}, %c1 : i32")

    def target(self, block: int, blocks: int, seen: _Seen) -> str:
        if block >= blocks:
            return "^exit"
        handed = [seen.counter, *map(self.rng.choice, (seen.slots, seen.buffers, seen.tokens))]
        return f"^bb{block}({', '.join(handed)} : i32, i32, {_BUFFER}, {_TOKEN})"

    def branch(self, block: int, blocks: int, seen: _Seen) -> None:
        if self.rng.random() < 0.3:
            self.lines.append(f"cf.br {self.target(block + 1, blocks, seen)}")
            return
        condition = self.rng.choice(("%q", "%r"))
        if self.rng.random() < 0.6:
            condition = self.emit(f"arith.cmpi slt, {seen.counter}, %most : i32")
        elif self.rng.random() < 0.6:
            condition = self.emit(f"arith.cmpi eq, {self.rng.choice(seen.slots)}, %c0 : i32")
        ways = [self.rng.randint(1, blocks), self.rng.randint(block + 1, blocks)]
        one, other = (self.target(way, blocks, seen) for way in ways)
        self.lines.append(f"cf.cond_br {condition}, {one}, {other}")

    def function(self) -> str:
        """The lines of a function's body."""
        for name, number in (("c0", 0), ("c1", 1), ("c2", 2), ("most", _MOST)):
            self.lines.append(f"%{name} = arith.constant {number} : i32")
        self.lines.append(f"%ring = ttg.local_alloc : () -> {_BUFFERS}")
        self.lines.append(f"%one = ttg.local_alloc : () -> {_BUFFER}")
        seen = _Seen("%c0", ["%c0", "%c1"], ["%one", "%other"], [])
        self.copy(seen)
        self.body(seen)
        blocks = self.rng.randint(2, 6)
        self.lines.append(f"cf.br {self.target(1, blocks, seen)}")
        for block in range(1, blocks):
            counter, slot, buffer, token = (self.name() for _ in range(4))
            self.lines.append(
                f"^bb{block}({counter}: i32, {slot}: i32, {buffer}: {_BUFFER}, {token}: {_TOKEN}):"
            )
            seen = _Seen(counter, ["%c0", slot], ["%one", buffer], [token])
            self.body(seen)
            self.branch(block, blocks, seen)
        self.lines.append("^exit:")
        self.emit(f"ttg.local_load %one : {_BUFFER} -> tensor<128xf32, #b>")
        return "\n".join([*self.lines, "tt.return", "}"])


def generate_blocks(seed: int) -> str:
    """Returns a module for gfx1250 with one kernel.

    Every other kernel calls a function of blocks twice, with buffers that change places.
    """
    body = _Writer(random.Random(seed)).function()
    arguments = f"({_POINTERS}, {_BUFFER}, i1, i1) -> ()"
    start = [f"tt.func public @kernel(%p: {_POINTERS}, %q: i1, %r: i1) {{"]
    start.append(f"%other = ttg.local_alloc : () -> {_BUFFER}")
    if seed % 2:
        return _HEAD + "\n".join([*start, body, "}"]) + "\n"
    calls = [
        f"%another = ttg.local_alloc : () -> {_BUFFER}",
        f"tt.call @blocks(%p, %other, %q, %r) : {arguments}",
        "%w = ttg.async_wait {num = 1 : i32}",
        f"%x = ttg.local_load %another : {_BUFFER} -> tensor<128xf32, #b>",
        f"tt.call @blocks(%p, %another, %r, %q) : {arguments}",
        "tt.return",
        "}",
    ]
    function = [f"tt.func private @blocks({_ARGUMENTS}) {{", body]
    return _HEAD + "\n".join([*function, *start, *calls, "}"]) + "\n"
