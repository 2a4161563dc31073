"""Random kernels with asynchronous copies, for differential tests of wait counts.

``generate(seed, host, arch)`` gives the text of a legal module for one Triton and target.  What is
``intended`` is right if every wait waits for what it asks for; the waits of an ``arbitrary`` kernel
ask for anything.
"""

from __future__ import annotations

import random
import re
from typing import Literal

from async_pieces import Context, piece
from async_soup import soup
from async_text import Function, Kernel, has_tdm

__all__ = ["Flavour", "generate"]

Flavour = Literal["intended", "arbitrary"]


def generate(seed: int, host: str, arch: str, flavour: Flavour = "intended") -> str:
    """Returns a module.

    Args:
        seed: Of everything that is drawn.
        host: The version of Triton that shall read it: ``3.6.0`` to ``3.9.0``.
        arch: The target: ``gfx942``, ``gfx950`` or ``gfx1250``.
        flavour: What the waits ask for.
    """
    rng = random.Random(f"{seed} {arch} {flavour}")
    kernel = Kernel(host, arch)
    arguments = {"ptr": "!tt.ptr<f16>", "n": "i32", "b": "i1"}
    function = kernel.function("kernel", arguments)
    if has_tdm(arch):
        for rows in (1, 16, 64):
            arguments[f"d{rows}"] = function.desc_type(rows)
    arbitrary = flavour == "arbitrary"
    if arbitrary and rng.random() < 0.6:
        soup(Context(rng, function, arbitrary=True))
        return str(kernel)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.15:
            _partitions(rng, function, arbitrary)
        else:
            _around(rng, function, arbitrary, rng.choice((0, 0, 1, 1, 2)))
    if has_tdm(arch) and not arbitrary:
        function.drain()
    return str(kernel)


def _around(rng: random.Random, f: Function, arbitrary: bool, depth: int) -> None:
    """A piece inside of loops and branches."""
    context = Context(rng, f, arbitrary=arbitrary, drains=True)
    if depth == 0:
        context.drains = False
        piece(context)
        return
    kind, i = rng.choice(("for", "for", "if", "if else", "while")), f"%o{len(f.lines)}"
    if kind == "for":
        head = f"scf.for {i} = {f.const(0)} to {context.trips()} step {f.const(1)} : i32 {{"
        with f.block(head):
            _inside(rng, context, depth)
    elif kind == "while":
        with f.block(f"scf.while ({i} = {f.const(0)}) : (i32) -> () {{"):
            if rng.random() < 0.5:
                piece(context)
            more = f.value(f"arith.cmpi slt, {i}, %n : i32")
            f.emit(f"scf.condition({more})")
            f.emit("} do {")
            _inside(rng, context, depth)
            f.emit(f"scf.yield {f.const(rng.choice((3, 9)))} : i32")
    else:
        f.emit("scf.if %b {")
        f.depth += 1
        _inside(rng, context, depth)
        f.depth -= 1
        if kind == "if else":
            with f.block("} else {"):
                _inside(rng, context, depth)
        else:
            f.emit("}")


def _inside(rng: random.Random, context: Context, depth: int) -> None:
    if depth > 1:
        _around(rng, context.f, context.arbitrary, depth - 1)
    if depth == 1 or rng.random() < 0.3:
        piece(context)
    if depth > 1:
        # What was written without draining may still be in flight when the loop comes back.
        context.drain()
        if has_tdm(context.arch):
            context.drain(tdm=True)


def _partitions(rng: random.Random, f: Function, arbitrary: bool) -> None:
    """Two groups of waves, each with a piece of its own."""
    names = ", ".join(f"%{name}" for name in f.arguments)
    types = ", ".join(f.arguments.values())
    f.emit(f"ttg.warp_specialize({names}) attributes {{requestedRegisters = array<i32: 24>}}")
    with f.block("default {"):
        piece(Context(rng, f, arbitrary=arbitrary))
        f.emit("ttg.warp_yield")
    inner = Function(f.kernel, "", f.arguments, private=False)
    inner.depth = f.depth + 1
    piece(Context(rng, inner, arbitrary=arbitrary))
    # A partition cannot see the names around it, and may not use them again either.
    arguments = ", ".join(f"%{name}_in: {type_}" for name, type_ in f.arguments.items())
    f.emit(f"partition0({arguments}) num_warps(4) {{")
    f.lines += [re.sub(r"%(\w+)", r"%\1_in", line) for line in [*inner.prelude, *inner.lines]]
    f.emit("  ttg.warp_return")
    f.emit(f"}} : ({types}) -> ()")
