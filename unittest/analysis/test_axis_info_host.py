"""Axis info against the host's own.

The host shows what it knows in ``tritongpu-coalesce``: the elements per thread of a store are what
it can prove of the pointers, up to 128 bits.  Random values are made visible by stores:

- pointers as they are, and integers as offsets of a well-aligned pointer: (1) and (2);
- integers that repeat by adding a range to them, and masks by selecting one of two ranges: (3).

Where the host knows more than we do the value must have a gap (property 6).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from random import Random

import pytest
from axis_info_random import Made, Program
from triton_ext import ir
from triton_ext.analysis.axis_info import AxisInfoAnalysis
from triton_ext.ir.types import parse_type

libtriton = pytest.importorskip("triton._C.libtriton")

NIGHTLY = bool(os.environ.get("TRITON_EXT_NIGHTLY"))
#: One warp, so that 512 elements are enough for the widest access.
SCALE, LANES = 8, 32


class Probes:
    """Stores that show what is known of the values of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kinds: list[str] = []
        for side in ("big", "large"):
            program.arguments.append(f"%{side}: !tt.ptr<i8> {{tt.divisibility = 4096 : i32}}")
        for made in list(program.values):
            if len(made.shape) in (1, 2):
                self._probe(made)

    def line(self, text: str) -> str:
        name = f"%z{len(self.program.lines)}"
        self.program.lines.append(f"{name} = {text}")
        return name

    def _probe(self, made: Made) -> None:
        pointers, numbers, bits = self._types(made)
        if made.element[0] == "p":
            self._store("pointer", made.name, made.type, {"p1": "i8", "p2": "f16"}, made)
        elif made.element == "i32":
            base = self.line(f"tt.splat %big : !tt.ptr<i8> -> {pointers}")
            moved = self.line(f"tt.addptr {base}, {made.name} : {pointers}, {numbers}")
            self._store("run", moved, pointers, {}, made)
            moved = self.line(f"tt.addptr {self._row(made)}, {made.name} : {pointers}, {numbers}")
            self._store("repeat", moved, pointers, {}, made)
        elif made.element == "i1":
            rows = f"{self._row(made)}, {self._row(made, 'large')}"
            chosen = self.line(f"arith.select {made.name}, {rows} : {bits}, {pointers}")
            self._store("mask", chosen, pointers, {}, made)

    def _types(self, made: Made) -> tuple[str, str, str]:
        sizes = "x".join(map(str, made.shape))
        return tuple(f"tensor<{sizes}x{x}>" for x in ("!tt.ptr<i8>", "i32", "i1"))

    def _row(self, made: Made, base: str = "big") -> str:
        """A pointer with a range along the last dimension."""
        pointers, numbers, _ = self._types(made)
        size = made.shape[-1]
        row = self.line(
            f"tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>"
        )
        if len(made.shape) == 2:
            flat = f"tensor<{size}xi32> -> tensor<1x{size}xi32>"
            row = self.line(f"tt.expand_dims {row} {{axis = 0 : i32}} : {flat}")
            row = self.line(f"tt.broadcast {row} : tensor<1x{size}xi32> -> {numbers}")
        start = self.line(f"tt.splat %{base} : !tt.ptr<i8> -> {pointers}")
        return self.line(f"tt.addptr {start}, {row} : {pointers}, {numbers}")

    def _store(self, kind: str, name: str, type_: str, elements: dict, made: Made) -> None:
        pointee = "i8" if kind != "pointer" else elements.get(made.element, "f32")
        value = type_.replace(f"!tt.ptr<{pointee}>", pointee)
        zero = "0" if pointee == "i8" else "0.0"
        stored = self.line(f"arith.constant dense<{zero}> : {value}")
        self.program.lines.append(f"tt.store {name}, {stored} : {type_}")
        self.kinds.append(kind)


def run_passes(text: str, *steps) -> str:
    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        module = libtriton.ir.parse_mlir_module(file.name, context)
    module.context = context
    manager = libtriton.ir.pass_manager(context)
    for step, *arguments in steps:
        step(manager, *arguments)
    manager.run(module, "axis-info")
    return module.str_nodebug()


def stored_pointers(module: ir.Module) -> list:
    return [op.operands[0] for op in module.walk() if op.name == "tt.store"]


def compare(seed: int) -> Counter:
    """Compares every probe of one program; the counter says how many of which kind agree."""
    program = Program(Random(seed), 20, scale=SCALE)
    probes = Probes(program)
    passes = libtriton.passes
    to_gpu = (passes.ttir.add_convert_to_ttgpuir, "cuda:90", 1, LANES, 1)
    text = run_passes(program.text(), to_gpu)
    module = ir.parse(text)
    coalesced = ir.parse(run_passes(text, (passes.ttgpuir.add_coalesce,)))
    analysis = AxisInfoAnalysis.of(module)
    found: Counter = Counter()
    pairs = zip(stored_pointers(module), stored_pointers(coalesced), strict=True)
    for kind, (pointer, shown) in zip(probes.kinds, pairs, strict=True):
        info = analysis.info(pointer)
        type_ = parse_type(shown.type, coalesced.aliases)
        dim = type_.encoding.order[0]
        host = type_.encoding.size_per_thread[dim]
        bits = type_.element.pointee.bit_width
        proven = min(max(1, info.divisibility[dim] // (bits // 8)), info.contiguity[dim])
        ours = min(proven, 128 // bits, type_.static_shape[dim], type_.num_elements // LANES)
        assert host <= ours or not info.complete, (
            f"seed {seed}: the host knows {host} elements of {kind} {pointer.name}, we know"
            f" {ours}: {info}\n{text}"
        )
        found["equal" if host == ours else "more" if host < ours else "gap"] += 1
        found["wide"] += host > 1
    return found


def check(seeds: range, capsys) -> None:
    total: Counter = Counter()
    for seed in seeds:
        total += compare(seed)
    compared = total["equal"] + total["more"] + total["gap"]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(seeds)} programs, {compared} pointers ({total['wide']} wider than an element):"
            f" {total['equal']} of equal width, {total['more']} wider here, "
            f"{total['gap']} with a gap where the host claims more\n"
        )
    assert total["equal"] > 0.95 * compared
    assert total["wide"] > 5 * len(seeds)


@pytest.mark.slow
def test_no_host_knows_more(capsys):
    check(range(40), capsys)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes; TRITON_EXT_NIGHTLY=1 runs it")
def test_no_host_knows_more_of_many(capsys):
    check(range(1000, 4000), capsys)
