"""Copies whose offsets and masks MLIR's canonicalizer can simplify, as TTGIR modules for gfx1250.

Offsets are ``%x`` and a mask, if there is one, ``%k``: what is computed in a body from the range
``%r``, the number ``%n``, ``%m``, which has it in every element, and constants.  The copy is one
instruction for offsets in a row and four for others.
"""

from __future__ import annotations

import random

__all__ = ["FOLDABLE", "foldable_module", "random_body"]

#: Bodies of which a host folds something, by what it is.
FOLDABLE = {
    "offsets and all ones": "%x = arith.andi %r, %ones : tensor<512xi32, #b>",
    "there and back": """%y = arith.addi %r, %m : tensor<512xi32, #b>
    %x = arith.subi %y, %m : tensor<512xi32, #b>""",
    "twice the other bits": """%y = arith.xori %r, %m : tensor<512xi32, #b>
    %x = arith.xori %y, %m : tensor<512xi32, #b>""",
    "a mask or true": """%x = arith.addi %r, %zeros : tensor<512xi32, #b>
    %j = arith.cmpi slt, %r, %m : tensor<512xi32, #b>
    %k = arith.ori %j, %true : tensor<512xi1, #b>""",
    "a branch that is always taken": """%z = arith.constant 0 : i32
    %y = arith.minui %n, %z : i32
    %c = arith.cmpi eq, %y, %z : i32
    %x = scf.if %c -> (tensor<512xi32, #b>) {
      scf.yield %r : tensor<512xi32, #b>
    } else {
      scf.yield %m : tensor<512xi32, #b>
    }""",
    "a condition or true": """%y = arith.constant true
    %z = arith.constant 0 : i32
    %c = arith.cmpi slt, %n, %z : i32
    %d = arith.ori %c, %y : i1
    %x = arith.select %d, %r, %m : tensor<512xi32, #b>""",
    "a loop that never runs": """%z = arith.constant 0 : i32
    %o = arith.constant 1 : i32
    %e = arith.minui %n, %z : i32
    %x = scf.for %i = %z to %e step %o iter_args(%a = %r) -> (tensor<512xi32, #b>) : i32 {
      scf.yield %m : tensor<512xi32, #b>
    }""",
}
#: A module with one copy, in which the host may fold something before it looks at it.
_MODULE = """\
#b = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) {
    %l = ttg.local_alloc : () -> !ttg.memdesc<512xf32, #s, #smem, mutable>
    %r = tt.make_range {end = 512 : i32, start = 0 : i32} : tensor<512xi32, #b>
    %m = tt.splat %n : i32 -> tensor<512xi32, #b>
    %ones = arith.constant dense<-1> : tensor<512xi32, #b>
    %zeros = arith.constant dense<0> : tensor<512xi32, #b>
    %true = arith.constant dense<true> : tensor<512xi1, #b>
    BODY
    %b = tt.splat %p : !tt.ptr<f32> -> tensor<512x!tt.ptr<f32>, #b>
    %q = tt.addptr %b, %x : tensor<512x!tt.ptr<f32>, #b>, tensor<512xi32, #b>
    %t = ttg.async_copy_global_to_local %q, %lMASK : \
tensor<512x!tt.ptr<f32>, #b> -> <512xf32, #s, #smem, mutable>
    %g = ttg.async_commit_group tokens %t
    %w = ttg.async_wait %g {num = 0 : i32}
    tt.return
  }
}
"""
_INTS = "tensor<512xi32, #b>"
_CONSTANTS = (1, 4, -4, 16, 12, -(1 << 31), (1 << 31) - 1)
_DIVISIONS = ("divsi", "divui", "remsi", "remui", "shli", "shrsi", "shrui")
_COMMON = ("addi", "subi", "xori", "andi", "ori")
_OPERATIONS = (*_COMMON, *_COMMON, "muli", "maxsi", "maxui", "minsi", "minui", *_DIVISIONS)
_PREDICATES = ("eq", "ne", "slt", "sge", "sle", "ult", "uge", "ule")


def foldable_module(body: str) -> str:
    """A module with one copy, of :data:`FOLDABLE` or :func:`random_body`."""
    mask = " mask %k" if "%k = " in body else ""
    return _MODULE.replace("BODY", body).replace("MASK", mask)


def random_body(rng: random.Random) -> str:
    """A few operations on the range, on numbers, and on constants that are special to some."""
    lines, pool, made = [], ["%r", "%m", "%ones", "%zeros"], ["%r"]
    for place, number in enumerate(_CONSTANTS):
        lines.append(f"%c{place} = arith.constant dense<{number}> : {_INTS}")
        pool.append(f"%c{place}")
    for place in range(rng.randint(1, 3)):
        lhs = made[-1] if rng.random() < 0.85 else rng.choice(pool)
        rhs = rng.choice(pool + made)
        if rng.random() < 0.35:
            lhs, rhs = rhs, lhs
        if rng.random() < 0.12:
            lines.append(
                f"%q{place} = arith.cmpi {rng.choice(_PREDICATES)}, {lhs}, {rhs} : {_INTS}"
            )
            arms = f"{rng.choice([lhs, rhs, '%r'])}, {rng.choice([lhs, rhs])}"
            lines.append(
                f"%v{place} = arith.select %q{place}, {arms} : tensor<512xi1, #b>, {_INTS}"
            )
        else:
            name = rng.choice(_OPERATIONS)
            if name in _DIVISIONS and rng.random() < 0.8:
                rhs = rng.choice(["%c0", "%c1", "%c3", "%zeros"])
            lines.append(f"%v{place} = arith.{name} {lhs}, {rhs} : {_INTS}")
        made.append(f"%v{place}")
    lines.append(f"%x = arith.addi {made[-1]}, %zeros : {_INTS}")
    if rng.random() < 0.3:
        operands = f"{rng.choice(pool + made)}, {rng.choice(pool)}"
        lines.append(f"%i = arith.cmpi {rng.choice(_PREDICATES)}, {operands} : {_INTS}")
        lines.append(f"%j = arith.cmpi slt, {rng.choice(made)}, %m : {_INTS}")
        name, other = rng.choice(["andi", "ori", "xori"]), rng.choice(["%i", "%j", "%true"])
        lines.append(f"%k = arith.{name} %i, {other} : tensor<512xi1, #b>")
    return "\n    ".join(lines)
