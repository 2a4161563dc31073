"""Small side inputs of a pipelined loop, copied by cp.async: Triton's layouts against ours.

A Gluon kernel scales the rows or columns of fp16 tiles by a side input: a scale per row, a bias, a
list of indices, in 4, 2 or 1 bytes.  Tiles and side inputs are copied to shared memory some steps
ahead; all programs read the same ones, from the L2.  The side input lies as the kernel uses it, a
slice of the tile's layout, as the plain way to write it is.

Variants: ``stock`` compiles that; where Triton refuses it (fewer than 4 bytes of a thread), the
side input is loaded into registers instead, which is what one writes then.  ``ext`` is the kernel
with copies as it is written, and triton-ext installed.

GB/s are the bytes that all programs copy over the time.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.conv_runs import has_gpu
from benchmarks.harness import (
    Environment,
    GraphTimer,
    add_out_argument,
    collect_environment,
    emit,
    geometric_mean,
    read_count,
    read_positive,
    time_interleaved,
    write_rows,
)

__all__ = ["CASES", "Case", "add_arguments", "compiled", "run", "widths_of"]

STEPS, PROGRAMS = 256, 264
_WIDTH = re.compile(r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x\w+|\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel.

    Attributes:
        name: For the table.
        side: Type of the side input, as torch calls it.
        rows: Rows of a tile.
        columns: Columns of a tile.
        axis: 0: the side input has an element for each row; 1: for each column.
    """

    name: str
    side: str
    rows: int
    columns: int
    axis: int

    @property
    def size(self) -> int:
        """Elements of the side input for one tile."""
        return self.rows if self.axis == 0 else self.columns


def _case(name: str, side: str, rows: int, columns: int, axis: int) -> Case:
    return Case(name=name, side=side, rows=rows, columns=columns, axis=axis)


CASES = (
    _case("scale per row, fp32", "float32", 64, 64, 0),
    _case("scale per row, fp32, 16 rows", "float32", 16, 128, 0),
    _case("scale per row, fp16", "float16", 64, 64, 0),
    _case("scale per row, int8", "int8", 64, 64, 0),
    _case("scale per row, int8, 16 rows", "int8", 16, 128, 0),
    _case("scale per row, fp8", "float8_e5m2", 64, 64, 0),
    _case("bias per column, fp32", "float32", 64, 64, 1),
    _case("bias per column, bf16", "bfloat16", 64, 64, 1),
    _case("bias per column, int8", "int8", 64, 32, 1),
    _case("indices of rows, int32", "int32", 64, 64, 0),
    _case("indices of rows, int16", "int16", 64, 64, 0),
    _case("indices of columns, int32", "int32", 32, 64, 1),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument(
        "--rounds", type=read_count, default=10, help="measurements per variant (10)"
    )
    parser.add_argument(
        "--target-ms", type=read_positive, default=20.0, help="GPU time of one (20)"
    )
    add_out_argument(parser)
    parser.add_argument(
        "--compile",
        action="store_true",
        help="no GPU: compiles for sm_90, prints the widths and what the passes cost",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints a line per case; returns 1 where a result is wrong."""
    if arguments.compile:
        return _compile()
    if not has_gpu("--compile compares the copies"):
        return 2
    environment = collect_environment()
    for line in environment.lines():
        emit(line)
    return _measure(arguments, environment)


# ---- compiling


def widths_of(ptx: str) -> str:
    """``16 B x 12, 4 B x 3``: bytes of an instruction, and how many a thread has."""
    found = Counter(int(match[1], 0) for match in _WIDTH.finditer(ptx))
    return ", ".join(f"{width} B x {count}" for width, count in sorted(found.items())[::-1])


def _compile() -> int:
    emit(f"{'case':30}{'stock':34}ext")
    different = 0
    for case in CASES:
        stock, is_copied = _compiled_stock(case)
        ext = _with_plugin(lambda case=case: compiled(case, copied=True)["ptx"])
        told = widths_of(stock) + ("" if is_copied else " (side: registers)")
        different += told != widths_of(ext)
        emit(f"{case.name:30}{told:34}{widths_of(ext)}")
    emit(f"{different} of {len(CASES)} differ")
    emit()
    for told, text in (
        ("nothing to gain", compiled(CASES[0], copied=False)["ttgir"]),
        ("a candidate", compiled(CASES[0], copied=True)["ttgir"]),
    ):
        screen, whole = _costs(text)
        rest = max(0.0, whole - screen)
        emit(f"{told}: {screen:.2f} ms to look at the text, {rest:.2f} ms for the pass")
    return 0


def _costs(text: str) -> tuple[float, float]:
    """Least ms of the look at a module's text, and of all that runs behind its stage."""
    from triton_ext import backends, plugin

    screen = backends.load("nvidia", "has-narrow-copies")

    def behind_the_stage() -> None:
        if screen(text):
            plugin.run_passes(text, is_gluon=True)

    return _best_ms(lambda: screen(text)), _best_ms(behind_the_stage)


def _best_ms(function: Callable[[], object], count: int = 51) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def _compiled_stock(case: Case) -> tuple[str, bool]:
    """The PTX without us, and whether the side input is copied in it."""
    try:
        return compiled(case, copied=True)["ptx"], True
    except RuntimeError:  # what Triton raises where a pass of its own fails
        return compiled(case, copied=False)["ptx"], False


def _with_plugin(function: Callable[[], Any]) -> Any:
    """Runs a function with triton-ext installed; it is not installed otherwise."""
    from triton_ext import plugin

    plugin.install()
    try:
        return function()
    finally:
        plugin.uninstall()


def compiled(case: Case, *, copied: bool) -> dict[str, str]:
    """TTGIR, PTX and so on for sm_90; ``copied``: whether the side input is copied."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from benchmarks.small_copies_kernels import scaled_tiles

    constants = _constants(case, copied)
    names = scaled_tiles.arg_names
    kinds = {"x_ptr": "*fp16", "side_ptr": f"*{_SHORT[case.side]}", "out_ptr": "*fp32"}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in kinds}
    source = GluonASTSource(scaled_tiles, signature, values, aligned)
    target = GPUTarget("cuda", 90, 32)
    asm: dict[str, str] = triton.compile(source, target=target, options={"num_warps": 4}).asm
    return asm


_SHORT = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e5m2": "fp8e5",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
}


def _constants(case: Case, copied: bool) -> dict[str, Any]:
    return {"R": case.rows, "C": case.columns, "AXIS": case.axis, "STAGES": 3, "COPIED": copied}


# ---- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result; times in microseconds."""

    case: str
    stock_copies_side: bool
    stock_us: float
    ext_us: float
    speedup: float
    stock_spread: float
    ext_spread: float
    ext_gb_per_s: float


def _measure(arguments: argparse.Namespace, environment: Environment) -> int:
    timer = GraphTimer(arguments.target_ms)
    rows, wrong = [], 0
    emit(f"{'case':30}{'stock us':>10}{'ext us':>10}{'speedup':>9}{'spread':>16}{'GB/s':>8}")
    for case in CASES:
        row = _measured(case, timer, arguments.rounds)
        if row is None:
            emit(f"{case.name:30}wrong result")
            wrong += 1
            continue
        rows.append(row)
        spread = f"{row.stock_spread:.1%} {row.ext_spread:.1%}"
        note = "" if row.stock_copies_side else "  stock: side in registers"
        emit(
            f"{case.name:30}{row.stock_us:10.1f}{row.ext_us:10.1f}{row.speedup:9.3f}{spread:>16}"
            f"{row.ext_gb_per_s:8.0f}{note}"
        )
    emit(f"geometric mean {geometric_mean([row.speedup for row in rows]):.3f}")
    if arguments.out is not None:
        write_rows(arguments.out, environment, [asdict(row) for row in rows])
    return 1 if wrong else 0


def _measured(case: Case, timer: GraphTimer, rounds: int) -> Row | None:
    """Times one case; ``None`` for a wrong result."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (STEPS, case.rows, case.columns)
    x = torch.rand(shape, device="cuda", generator=generator).half()
    side = torch.randint(0, 4, (STEPS, case.size), device="cuda", generator=generator)
    side = side.float().to(getattr(torch, case.side))
    out = torch.empty((PROGRAMS, case.rows, case.columns), device="cuda", dtype=torch.float32)
    _, is_copied = _compiled_stock(case)
    variants: dict[str, Callable[[], object]] = {
        "stock": lambda: _launch(case, x, side, out, is_copied),
        "ext": lambda: _with_plugin(lambda: _launch(case, x, side, out, True)),
    }
    factor = side.float()[:, :, None] if case.axis == 0 else side.float()[:, None, :]
    wanted = (x.float() * factor).sum(0)
    for function in variants.values():
        out.zero_()
        function()
        if not torch.allclose(out, wanted.expand_as(out), rtol=1e-4, atol=1e-2):
            return None
    times = time_interleaved(variants, timer, rounds)
    stock, ext = times["stock"], times["ext"]
    moved = PROGRAMS * (x.numel() * 2 + side.numel() * side.element_size())
    return Row(
        case=case.name,
        stock_copies_side=is_copied,
        stock_us=stock.ms * 1e3,
        ext_us=ext.ms * 1e3,
        speedup=stock.ms / ext.ms,
        stock_spread=stock.spread,
        ext_spread=ext.spread,
        ext_gb_per_s=moved / ext.ms * 1e-6,
    )


def _launch(case: Case, x: Any, side: Any, out: Any, copied: bool) -> None:
    from benchmarks.small_copies_kernels import scaled_tiles

    constants = _constants(case, copied)
    scaled_tiles[(PROGRAMS,)](x, side, out, STEPS, **constants, num_warps=4)
