"""Wavefronts of shared memory: what the model predicts against what the GPU counts.

Each case is a Gluon kernel that reads or writes one tile again and again.  Its accesses are those
that Triton emits; the prediction is made from the types of ``ttg.local_load`` or
``ttg.local_store`` in its TTGIR alone.  A second kernel takes the byte address of each lane from a
table: random addresses, and those of each case's first instruction.  ``ncu`` counts:

* ``wavefronts``: ``smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_*``, which ``ncu``
  attributes to instructions; it has to be equal to the prediction;
* ``l1tex``: ``l1tex__data_pipe_lsu_wavefronts_mem_shared_op_*``, the counter of the unit, which has
  some more where several units want the memory at once, but not in the second kernel.

Cycles of an access of the second kernel have to be the prediction, too; without ``ncu``, only they
are measured.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import operator
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import (
    ROOT,
    add_out_argument,
    collect_environment,
    emit,
    has_gpu,
    read_count,
    write_rows,
)

__all__ = ["CASES", "WIDTHS", "Case", "add_arguments", "compiled", "count", "cycles_of",
           "expected", "first_addresses", "patterns", "predicted", "run"]  # fmt: skip

STEPS = 10
ADDRESS_STEPS = 4
WARPS = 16
WIDTHS = (8, 16, 32, 64, 128)
_SASS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
_UNIT = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
_OPS = {"read": ("ld", "ldsm"), "write": ("st", "stsm")}
ROWS, COLUMNS = [1, 0], [0, 1]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel."""

    name: str  # for the table
    op: str  # ``read`` or ``write``
    bits: int  # of an element
    shape: tuple[int, int]  # of the tile
    # Size per thread, threads per warp, warps per CTA, order.
    registers: tuple[list[int], list[int], list[int], list[int]]
    # In shared memory: numbers of a swizzle (and an order), an interval and its padding, or the
    # width of TMA's swizzle.
    shared: tuple[Any, ...]

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.registers[2][0] * self.registers[2][1]


_PLAIN, _SWIZZLED_8 = (1, 1, 1), (8, 1, 8)
_ROW_WISE = ([1, 1], [1, 32], [8, 1], ROWS)
_COLUMN_WISE = ([1, 1], [32, 1], [1, 8], COLUMNS)
_VECTORS = ([1, 8], [32, 1], [1, 8], COLUMNS)
_MATRICES = ([2, 1], [4, 8], [2, 2], COLUMNS)
_ROWS_OF_16 = ([1, 8], [4, 8], [8, 1], ROWS)
_PAIRED = ([1, 1], [16, 2], [1, 8], COLUMNS)
_REPEATED = ([1, 1], [8, 4], [1, 4], ROWS)
_FOR_PAIRS = ([1, 1], [16, 2], [1, 4], ROWS)

# Name, operations, bits, tile, registers, shared memory.
CASES = tuple(
    Case(name, op, bits, shape, registers, shared)
    for name, ops, bits, shape, registers, shared in (
        ("a row of words", "read write", 32, (64, 64), _ROW_WISE, _PLAIN),
        ("a column of words", "read write", 32, (64, 64), _COLUMN_WISE, _PLAIN),
        ("a column, padded by 1", "read write", 32, (64, 64), _COLUMN_WISE, (64, 1)),
        ("a column, padded by 2", "read", 32, (64, 64), _COLUMN_WISE, (64, 2)),
        ("a column, padded by 4", "write", 32, (64, 64), _COLUMN_WISE, (64, 4)),
        ("a column, swizzled", "read", 32, (64, 64), _COLUMN_WISE, (1, 1, 32)),
        ("a column, swizzled by 8", "write", 32, (64, 64), _COLUMN_WISE, (1, 1, 8)),
        ("rows of 16 bytes", "read write", 16, (64, 64), _ROWS_OF_16, _PLAIN),
        ("16 bytes of a column", "read", 16, (64, 128), _VECTORS, _PLAIN),
        ("16 bytes, swizzled", "read", 16, (64, 128), _VECTORS, _SWIZZLED_8),
        ("16 bytes, swizzled by 4", "write", 16, (64, 128), _VECTORS, (8, 1, 4)),
        ("16 bytes, swizzled by TMA", "read", 16, (64, 64), _VECTORS, (128,)),
        ("16 bytes, swizzled by TMA", "write", 16, (64, 32),
         ([1, 8], [32, 1], [2, 4], COLUMNS), (64,)),
        ("2 bytes of a column", "read", 16, (64, 64), _COLUMN_WISE, (2, 1, 4)),
        ("2 bytes of a column", "write", 16, (64, 64), _COLUMN_WISE, _PLAIN),
        ("8 bytes, 2 lanes a row", "read", 64, (64, 32), _PAIRED, _PLAIN),
        ("8 bytes, swizzled", "write", 64, (64, 32), _PAIRED, (1, 1, 16)),
        ("8 bytes, padded", "read", 64, (64, 32), _COLUMN_WISE, (32, 1)),
        ("1 byte of a column", "read", 8, (128, 64), _COLUMN_WISE, _PLAIN),
        ("1 byte, padded", "write", 8, (128, 64), _COLUMN_WISE, (64, 4)),
        ("4 bytes, swizzled", "read", 8, (64, 64), ([1, 4], [8, 4], [2, 4], ROWS), (4, 2, 4)),
        ("rows repeated in lanes", "read write", 32, (8, 16), _REPEATED, _PLAIN),
        ("8 bytes, lane 2 repeats", "read", 64, (32, 2), _REPEATED, _PLAIN),
        ("8 bytes, a column for pairs", "read write", 64, (32, 1), _FOR_PAIRS, _PLAIN),
        ("16 bytes, a column for pairs", "read", 32, (32, 4),
         ([1, 4], [16, 2], [1, 4], ROWS), _PLAIN),
        ("16 bytes, a column for fours", "read", 32, (32, 4),
         ([1, 4], [8, 4], [1, 4], ROWS), (32, 4)),
        ("matrices, transposed", "read write", 16, (64, 64), _MATRICES, _PLAIN),
        ("matrices, swizzled", "read", 16, (64, 64), _MATRICES, _SWIZZLED_8),
        ("matrices, rows to choose", "read", 16, (64, 64), _MATRICES, (8, 2, 4)),
        ("2 bytes, padded", "read", 16, (64, 64), _MATRICES, (64, 8)),
    )
    for op in ops.split()
)  # fmt: skip


# ---- prediction


@dataclass(frozen=True, slots=True)
class Prediction:
    """The model's prediction for one step of a case."""

    instructions: int  # instructions of all warps
    wavefronts: int  # wavefronts of all warps
    ideal: int  # wavefronts without conflicts
    bits: int  # bits per lane of an instruction
    is_transposed: bool  # whether matrix instructions transpose


def compiled(case: Case, capability: int = 90) -> Any:
    """The kernel of a case, compiled without a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from benchmarks import bank_conflicts_kernels as kernels

    kernel = getattr(kernels, case.op)
    names = kernel.arg_names
    constants = _constants(case)
    kinds = {"out": f"*i{case.bits}", "cycles": "*i32", "steps": "i32", "mask": "i32"}
    signature = {n: "constexpr" if n in constants else kinds[n] for n in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("out", "cycles")}
    source = GluonASTSource(kernel, signature, values, aligned)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": case.warps})


def _constants(case: Case) -> dict[str, Any]:
    from triton.experimental.gluon import language as gl

    shape = list(case.shape)
    if len(case.shared) == 2:
        shared = gl.PaddedSharedLayout.with_identity_for([[*case.shared]], shape, ROWS)
    elif len(case.shared) == 1:
        shared = gl.NVMMASharedLayout(*case.shared, case.bits, 2)
    else:
        shared = gl.SwizzledSharedLayout(*case.shared[:3], *(case.shared[3:] or (ROWS,)))
    registers = gl.BlockedLayout(*case.registers)
    return {"SHAPE": tuple(shape), "SHARED": shared, "REGISTERS": registers}


def _access(case: Case, kernel: Any) -> Any:
    """The access in the loop of a compiled kernel."""
    from triton_ext.analysis.bank_conflicts import Access
    from triton_ext.ir import parse
    from triton_ext.ir.aliases import AliasTable

    module = parse(kernel.asm["ttgir"])
    aliases = AliasTable.of(module.aliases)
    name = "ttg.local_load" if case.op == "read" else "ttg.local_store"
    found = [op for op in module.walk() if op.name == name]
    (op,) = [op for op in found if op.parent_op is not None and op.parent_op.name == "scf.for"]
    buffer, tensor = op.operands[0], (op.results or op.operands)[0]
    if case.op == "write":
        buffer = op.operands[1]
    memory, values = aliases.type(buffer.type), aliases.type(tensor.type)
    shape = values.static_shape
    return Access.of(values.encoding, memory.encoding, shape, case.bits, memory.alloc_shape)


def predicted(case: Case, kernel: Any) -> Prediction:
    """Returns the model's prediction, from the TTGIR of a compiled kernel."""
    from triton_ext.analysis.bank_conflicts import wavefronts

    access = _access(case, kernel)
    found = wavefronts(access, is_store=case.op == "write")
    counts = (found.instructions, found.wavefronts, found.ideal)
    return Prediction(*counts, access.instruction_bits, bool(access.transposed_bits))


def first_addresses(case: Case, kernel: Any) -> list[int] | None:
    """The byte address of each lane in the first instruction; ``None``: it moves matrices."""
    access = _access(case, kernel)
    if access.transposed_bits:
        return None
    found = []
    for lane in range(32):
        offset = access.layout.apply({"register": 0, "lane": lane, "warp": 0})["offset"]
        offset += sum(offset // interval * pad for interval, pad in access.padding)
        found.append(offset * case.bits // 8)
    return found


def expected(addresses: Sequence[int], bits: int, *, is_store: bool) -> int:
    """Wavefronts of one access by the byte addresses of its lanes, as the model's rules say."""
    size = 1024 // max(bits, 32)
    pairs = any(all(a == addresses[i ^ k] for i, a in enumerate(addresses)) for k in (1, 2))
    if pairs and not is_store and bits > 32:
        size = min(32, 2 * size)
    total = 0
    for first in range(0, 32, size):
        words = {
            address // 4 + word
            for address in addresses[first : first + size]
            for word in range(max(1, bits // 32))
        }
        banks = [word % 32 for word in words]
        total += max(banks.count(bank) for bank in set(banks))
    return total


def patterns(bits: int, number: int, seed: int = 0) -> list[list[int]]:
    """Byte addresses of 32 lanes: known conflicts, repeated lanes, linear maps, anything."""
    from benchmarks.bank_conflicts_kernels import MEMORY_BYTES

    source, unit = random.Random(seed), bits // 8
    places = MEMORY_BYTES // unit
    found = [[lane * ways * max(4, unit) for lane in range(32)] for ways in (1, 2, 4, 8, 16, 32)]
    found.append([0] * 32)
    for bit in range(5):
        low = (1 << bit) - 1
        found.append([(lane & low | lane >> 1 & ~low) * unit for lane in range(32)])
    while len(found) < number:
        kind = len(found) % 4
        if kind < 2:
            order = _linear(source, min(places, 512))
        elif kind == 2:
            pool = [source.randrange(places) for _ in range(source.choice([2, 4, 8, 32, 512]))]
            order = source.choices(pool, k=32)
        else:
            stride = source.choice([1, 2, 3, 4, 5, 8, 16, 32, 33])
            order = [lane * stride % places for lane in range(32)]
            source.shuffle(order)
        found.append([place * unit for place in order])
    return found[:number]


def _linear(source: random.Random, places: int) -> list[int]:
    """Places that are linear in the bits of the lane; some bits may not matter."""
    powers = [1 << bit for bit in range(places.bit_length() - 1)]
    kinds = ([0], powers, range(places))
    bases = [source.choice(source.choices(kinds, (2, 5, 3))[0]) for _ in range(5)]
    found = []
    for lane in range(32):
        chosen = [basis for bit, basis in enumerate(bases) if lane >> bit & 1]
        found.append(functools.reduce(operator.xor, chosen, 0))
    return found


# ---- launching


def _launch(case: Case, steps: int) -> Any:
    """Launches a case; returns its kernel."""
    import torch

    from benchmarks import bank_conflicts_kernels as kernels

    out = torch.ones(case.shape, device="cuda", dtype=getattr(torch, f"int{case.bits}"))
    cycles = torch.zeros((case.warps * 32, 2), dtype=torch.int32, device="cuda")
    kernel = getattr(kernels, case.op)
    launched = kernel[(1,)](out, cycles, steps, 1, **_constants(case), num_warps=case.warps)
    torch.cuda.synchronize()
    return launched


def _launch_addresses(
    rows: Sequence[Sequence[int]], bits: int, is_store: bool, steps: int
) -> list[int]:
    """Cycles that each row's program takes; a program has an SM to itself."""
    import torch

    from benchmarks import bank_conflicts_kernels as kernels

    table = torch.tensor(rows, dtype=torch.int32, device="cuda")
    cycles = torch.zeros((len(rows), WARPS * 32, 2), dtype=torch.int32, device="cuda")
    source = kernels.access_asm(is_store, bits)
    kernels.by_address[(len(rows),)](table, cycles, steps, source, WARPS * 32, num_warps=WARPS)
    clocks = cycles.cpu().long() & 0xFFFFFFFF
    found: list[int] = (clocks[..., 1].amax(1) - clocks[..., 0].amin(1)).tolist()
    return found


def cycles_of(rows: Sequence[Sequence[int]], bits: int, *, is_store: bool) -> list[float]:
    """Cycles of one access of each row: the slope between two lengths of the loop.

    Args:
        rows: Byte addresses of 32 lanes each.
        bits: That a lane moves.
        is_store: Whether it writes.
    """
    import torch

    from benchmarks.bank_conflicts_kernels import UNROLL

    processors = torch.cuda.get_device_properties(0).multi_processor_count
    short, long = 32, 160
    found: list[float] = []
    for first in range(0, len(rows), processors):
        part = rows[first : first + processors]
        _launch_addresses(part, bits, is_store, 2)
        slopes = []
        for _ in range(3):
            one, two = (_launch_addresses(part, bits, is_store, n) for n in (short, long))
            accesses = (long - short) * UNROLL * WARPS
            slopes.append([(b - a) / accesses for a, b in zip(one, two, strict=True)])
        found += map(statistics.median, zip(*slopes, strict=True))
    return found


# ---- counting


@dataclass(frozen=True, slots=True)
class Counted:
    """Wavefronts of a launch."""

    sass: int  # those that are attributed to its reads, or its writes
    unit: float  # those that the unit counted


def count(number: int) -> tuple[list[Counted], dict[tuple[str, int], list[Counted]]]:
    """Counts with ``ncu``, in a process of its own.

    Args:
        number: Address patterns of each operation and width.

    Returns:
        For each case, one step; for each operation and width, one access of each pattern.

    Raises:
        RuntimeError: There is no ``ncu``, or it may not read the counters.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise RuntimeError("ncu is not on the PATH")
    names = [f"{_SASS}{op}.sum" for ops in _OPS.values() for op in ops]
    names += [f"{_UNIT}{op}.sum" for op in ("ld", "st")]
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "counters.csv")
        command = [
            *(tool, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"),
            *("--metrics", ",".join(names), "--log-file", str(log)),
            *("-k", "regex:^(by_address|read|write)$", sys.executable, "-m", "benchmarks"),
            *("bank_conflicts", "--launch", str(number)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    start = text.find('"ID"')
    if done.returncode or start < 0:
        raise RuntimeError(f"ncu failed: {(text + done.stderr).strip()[-500:]}")
    # The line behind the names has the units.
    rows = iter(list(csv.DictReader(io.StringIO(text[start:])))[1:])
    cases = [_counted(next(rows), case.op, STEPS) for case in CASES]
    from benchmarks.bank_conflicts_kernels import UNROLL

    accesses = ADDRESS_STEPS * UNROLL * WARPS
    found = {
        (op, bits): [_counted(next(rows), op, accesses) for _ in range(number)]
        for op in _OPS
        for bits in WIDTHS
    }
    if next(rows, None) is not None:
        raise RuntimeError("ncu counted more kernels than were launched")
    return cases, found


def _counted(row: dict[str, str], op: str, times: int) -> Counted:
    def number(name: str) -> int:
        return round(float(row[f"{name}.sum"].replace(",", "")))

    names = _OPS[op]
    sass, unit = sum(number(f"{_SASS}{name}") for name in names), number(f"{_UNIT}{names[0]}")
    if sass % times:
        raise RuntimeError(f"{sass} wavefronts are no multiple of {times} accesses")
    return Counted(sass // times, unit / times)


def _launch_all(number: int) -> int:
    """Runs all cases under ``ncu``, in the order in which :func:`count` reads."""
    for case in CASES:
        _launch(case, STEPS)
    for op in _OPS:
        for bits in WIDTHS:
            for row in patterns(bits, number):
                _launch_addresses([row], bits, op == "write", ADDRESS_STEPS)
    return 0


# ---- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the case."""
    parser.add_argument(
        "--patterns", type=read_count, default=40, help="per operation and width (40)"
    )
    add_out_argument(parser)
    parser.add_argument(
        "--compile", action="store_true", help="no GPU: compiles for sm_90, prints predictions"
    )
    parser.add_argument("--launch", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Prints a line per case; returns 1 where a count is not the predicted one."""
    if arguments.launch is not None:
        return _launch_all(arguments.launch)
    if arguments.compile:
        for case in CASES:
            emit(f"{case.name:32}{case.op:6} {json.dumps(asdict(predicted(case, compiled(case))))}")
        return 0
    if not has_gpu("--compile prints the predictions"):
        return 2
    environment = collect_environment()
    for line in environment.lines():
        emit(line)
    counted: list[Counted] = []
    by_address: dict[tuple[str, int], list[Counted]] = {}
    try:
        counted, by_address = count(arguments.patterns)
    except RuntimeError as error:
        emit(f"no counters: {error}")
    head = f"{'case':32}{'op':6}{'bits':>5}{'instr.':>7}{'ideal':>7}{'model':>7}{'counter':>8}"
    emit(f"{head}{'l1tex':>8}{'access':>8}{'cycles':>8}")
    rows, wrong = [], 0
    for index, case in enumerate(CASES):
        row, is_good = _measured(case, counted[index] if counted else None)
        rows.append(row)
        wrong += not is_good
    for op in _OPS:
        for bits in WIDTHS:
            wrong += _measured_patterns(op, bits, by_address.get((op, bits)), arguments.patterns)
    if arguments.out is not None:
        write_rows(arguments.out, environment, rows)
    emit("every count is the predicted one" if not wrong else f"{wrong} are not as predicted")
    return 1 if wrong else 0


def _measured(case: Case, counted: Counted | None) -> tuple[dict[str, Any], bool]:
    """Prints and returns a case's row, whose counters are 0 without ``ncu``, and if it is right."""
    kernel = _launch(case, 1)
    said, addresses = predicted(case, kernel), first_addresses(case, kernel)
    single, cycles = 0, 0.0
    if addresses is not None:
        is_store = case.op == "write"
        single = expected(addresses, said.bits, is_store=is_store)
        (cycles,) = cycles_of([addresses], said.bits, is_store=is_store)
    got = counted or Counted(0, 0)
    good = (counted is None or got.sass == said.wavefronts) and round(cycles) == single
    emit(
        f"{case.name:32}{case.op:6}{said.bits:5}{said.instructions:7}{said.ideal:7}"
        f"{said.wavefronts:7}{got.sass:8}{got.unit:8.1f}{single:8}{cycles:8.2f}"
        f"{'' if good else '   <-- not as predicted'}"
    )
    row = {
        "case": case.name, "op": case.op, "bits": said.bits, "instructions": said.instructions,
        "ideal": said.ideal, "predicted": said.wavefronts, "wavefronts": got.sass,
        "l1tex": got.unit, "access_predicted": single, "access_cycles": round(cycles, 3),
    }  # fmt: skip
    return row, good


def _measured_patterns(op: str, bits: int, counted: list[Counted] | None, number: int) -> int:
    """Prints how patterns of addresses do; returns how many counts are wrong."""
    rows, is_store = patterns(bits, number), op == "write"
    said = [expected(row, bits, is_store=is_store) for row in rows]
    cycles = cycles_of(rows, bits, is_store=is_store)
    off = max(abs(c / s - 1) for c, s in zip(cycles, said, strict=True))
    equal = sum(round(c) == s for c, s in zip(cycles, said, strict=True))
    text = f"addresses, {op} of {bits} bits: {equal} of {number} rounded cycles are the prediction"
    text += f", the worst is {off:.1%} off"
    wrong = 0
    if counted is not None:
        wrong = sum(got.unit != s for got, s in zip(counted, said, strict=True))
        text += f"; {number - wrong} of {number} counts"
    emit(text)
    return wrong
