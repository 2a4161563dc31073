"""Kernels of ``bank_conflicts``: loops of one access to shared memory, with their cycles."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["UNROLL", "VARYING", "access_asm", "by_address", "read", "write"]

#: Accesses in the body of the loop of :func:`access_asm`.
UNROLL = 8
#: Bytes that :func:`by_address` can reach.
MEMORY_BYTES = 32768
# Numbers that the compiler must not know.
VARYING = ("steps", "mask")


def access_asm(is_store: bool, bits: int) -> str:
    """PTX that repeats one access and reads the clock before and behind.

    ``volatile`` forbids to merge or hoist the accesses.  Operands: start, stop; address, steps.
    """
    width = min(bits, 32)
    count = max(1, bits // 32)
    suffix = f"{f'.v{count}' if count > 1 else ''}.{'b' if bits > 16 else 'u'}{width}"
    lines = [
        "{",
        ".reg .u32 base, at, left; .reg .pred more;",
        f".shared .align 1024 .b8 memory[{MEMORY_BYTES}];",
        f".reg .b{max(16, width)} d<{4 * UNROLL}>;",
        "mov.u32 base, memory; add.u32 at, base, $2; mov.u32 left, $3;",
        *(f"cvt.u{max(16, width)}.u32 d{i}, $2;" for i in range(4 * UNROLL)),
        "bar.sync 0;",
        "mov.u32 $0, %clock;",
        "again:",
    ]
    for index in range(UNROLL):
        names = [f"d{4 * index + word}" for word in range(count)]
        data = f"{{{', '.join(names)}}}" if count > 1 else names[0]
        operands = f"[at], {data}" if is_store else f"{data}, [at]"
        lines.append(f"{'st' if is_store else 'ld'}.volatile.shared{suffix} {operands};")
    lines += [
        "sub.u32 left, left, 1; setp.ne.u32 more, left, 0;",
        "@more bra again;",
        "bar.sync 0;",
        "mov.u32 $1, %clock;",
        "}",
    ]
    return "\n".join(lines)


@triton.jit(do_not_specialize=["steps"])
def by_address(table, cycles, steps, ASM: tl.constexpr, THREADS: tl.constexpr):
    """Each program repeats the access whose byte addresses are its row of the table.

    Args:
        table: [programs, 32] byte addresses of the lanes of every warp.
        cycles: [programs, THREADS, 2] clocks of each thread.
        steps: Iterations of the loop.
        ASM: What :func:`access_asm` made.
        THREADS: Of a program.
    """
    thread = tl.arange(0, THREADS)
    row = tl.program_id(0)
    address = tl.load(table + row * 32 + thread % 32)
    start, stop = tl.inline_asm_elementwise(
        ASM, "=&r,=&r,r,r", [address, steps], (tl.int32, tl.int32), is_pure=False, pack=1
    )
    at = cycles + (row * THREADS + thread) * 2
    tl.store(at, start)
    tl.store(at + 1, stop)


@gluon.jit
def _clock(threads):
    return gl.inline_asm_elementwise(
        "bar.sync 0; mov.u32 $0, %clock;", "=r,r", [threads], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _report(cycles, threads, start, stop):
    gl.store(cycles + threads * 2, start)
    gl.store(cycles + threads * 2 + 1, stop)


@gluon.jit
def _offsets(SHAPE: gl.constexpr, REGISTERS: gl.constexpr):
    rows = gl.arange(0, SHAPE[0], layout=gl.SliceLayout(1, REGISTERS))
    columns = gl.arange(0, SHAPE[1], layout=gl.SliceLayout(0, REGISTERS))
    return rows[:, None] * SHAPE[1] + columns[None, :]


@gluon.jit
def _mixed(one, two):
    """The exclusive or, in registers as they come from memory."""
    BITS: gl.constexpr = one.dtype.primitive_bitwidth
    if BITS > 32:
        mixed = one ^ two
    else:
        mixed = gl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;", "=r,r,r", [one, two], one.dtype, is_pure=True, pack=32 // BITS
        )
    return mixed


@gluon.jit(do_not_specialize=VARYING)
def read(
    out, cycles, steps, mask,
    SHAPE: gl.constexpr, SHARED: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Reads a tile from shared memory again and again, from one of two places.

    Args:
        out: [SHAPE] integers.
        cycles: [threads, 2] clocks in front of the loop and behind.
        steps: Iterations.
        mask: 1; which place is read is the iteration's number under this mask.
        SHAPE: Of the tile.
        SHARED: Layout in shared memory.
        REGISTERS: Layout in registers.
    """
    TYPE: gl.constexpr = out.dtype.element_ty
    threads = gl.arange(
        0, 32 * gl.num_warps(), layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    )
    smem = gl.allocate_shared_memory(TYPE, [2, SHAPE[0], SHAPE[1]], SHARED)
    acc = gl.zeros([SHAPE[0], SHAPE[1]], TYPE, layout=REGISTERS)
    start = _clock(threads)
    for step in range(steps):
        acc = _mixed(acc, smem.index(step & mask).load(REGISTERS))
    stop = _clock(threads)
    gl.store(out + _offsets(SHAPE, REGISTERS), acc)
    _report(cycles, threads, start, stop)


@gluon.jit(do_not_specialize=VARYING)
def write(
    out, cycles, steps, mask,
    SHAPE: gl.constexpr, SHARED: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """As ``read``, but a tile is written again and again."""
    TYPE: gl.constexpr = out.dtype.element_ty
    threads = gl.arange(
        0, 32 * gl.num_warps(), layout=gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    )
    smem = gl.allocate_shared_memory(TYPE, [2, SHAPE[0], SHAPE[1]], SHARED)
    offsets = _offsets(SHAPE, REGISTERS)
    tile = gl.load(out + offsets)
    start = _clock(threads)
    for step in range(steps):
        smem.index(step & mask).store(tile)
    stop = _clock(threads)
    gl.store(out + offsets, smem.index(mask).load(REGISTERS))
    _report(cycles, threads, start, stop)
