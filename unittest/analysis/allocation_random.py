"""Random modules with many buffers: allocations, scratch memory, calls, branches and loops."""

from __future__ import annotations

import random

__all__ = ["module"]

_HEAD = """\
#r = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], \
order = [1, 0]}>
#c = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], \
order = [1, 0]}>
#v = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#n = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90",
  "ttg.threads-per-warp" = 32 : i32} {
"""
_ARGUMENTS = (
    "%c: i1, %n: i32, %p: !tt.ptr<i32>, %h: tensor<128xi32, #v>, %x: tensor<32x32xf32, #r>, "
    "%y: tensor<64x32xf16, #r>"
)
_TYPES = "i1, i32, !tt.ptr<i32>, tensor<128xi32, #v>, tensor<32x32xf32, #r>, tensor<64x32xf16, #r>"


class _Maker:
    """Draws one module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def block(self, depth: int, buffers: list[tuple[str, str]], callees: int) -> list[str]:
        """Statements; what they allocate is used by these and those inside of them only."""
        lines: list[str] = []
        here = list(buffers)
        for _ in range(self.random.randint(2, 6)):
            makers = [self.alloc, self.alloc, self.alloc, self.load, self.load, self.scratch]
            makers += [self.branch, self.loop] if depth else []
            lines += self.random.choice(makers)(depth, here, callees)
            if callees and self.random.random() < 0.15:
                callee = self.random.randrange(callees)
                lines.append(f"tt.call @f{callee}(%c, %n, %p, %h, %x, %y) : ({_TYPES}) -> ()")
        return lines

    def alloc(self, depth: int, here: list[tuple[str, str]], callees: int) -> list[str]:
        rows, columns = self.random.choice([8, 16, 32, 64]), self.random.choice([64, 64, 128])
        encoding, element = self.random.choice(
            [("#s", "f16"), ("#s", "i8"), ("#s", "f32"), ("#n", "f16")]
        )
        type_ = f"!ttg.memdesc<{rows}x{columns}x{element}, {encoding}, #smem, mutable>"
        here.append((self.name(), type_))
        return [f"{here[-1][0]} = ttg.local_alloc : () -> {type_}"]

    def load(self, depth: int, here: list[tuple[str, str]], callees: int) -> list[str]:
        if not here:
            return []
        name, type_ = self.random.choice(here)
        tensor = type_.replace("!ttg.memdesc", "tensor").partition(",")[0] + ", #c>"
        return [f"{self.name()} = ttg.local_load {name} : {type_} -> {tensor}"]

    def scratch(self, depth: int, here: list[tuple[str, str]], callees: int) -> list[str]:
        name = self.name()
        kind = self.random.randrange(4)
        if kind == 0:
            bins = self.random.choice([64, 256])
            return [f"{name} = tt.histogram %h : tensor<128xi32, #v> -> tensor<{bins}xi32, #v>"]
        if kind == 1:
            return [
                f"{name} = tt.atomic_cas acq_rel, gpu, %p, %n, %n : "
                "(!tt.ptr<i32>, i32, i32) -> i32",
                f"tt.store %p, {name} : !tt.ptr<i32>",
            ]
        value, shape = self.random.choice([("%x", "32x32xf32"), ("%y", "64x32xf16")])
        types = f"tensor<{shape}, #r> -> tensor<{shape}, #c>"
        return [f"{name} = ttg.convert_layout {value} : {types}"]

    def branch(self, depth: int, here: list[tuple[str, str]], callees: int) -> list[str]:
        one, two = (self.block(depth - 1, here, callees) for _ in range(2))
        return ["scf.if %c {", *one, "} else {", *two, "}"]

    def loop(self, depth: int, here: list[tuple[str, str]], callees: int) -> list[str]:
        body = self.block(depth - 1, here, callees)
        return [f"scf.for {self.name()} = %n to %n step %n : i32 {{", *body, "}"]


def module(seed: int) -> str:
    """The text of a module.

    Args:
        seed: Which one.
    """
    make = _Maker(seed)
    functions = make.random.choice([1, 1, 2, 3])
    text = _HEAD
    for number in range(functions):
        is_last = number == functions - 1
        head = "public @kernel" if is_last else f"private @f{number}"
        tail = "" if is_last else " attributes {noinline = true}"
        body = "\n".join(make.block(2, [], number))
        text += f"tt.func {head}({_ARGUMENTS}){tail} {{\n{body}\ntt.return\n}}\n"
    return text + "}\n"
