"""Matmuls of gfx1250 as TTGIR and Gluon; Triton's LLVM IR of them, made in a child, and run."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import tempfile
from dataclasses import dataclass, replace

import numpy as np
from llvm_waves import LANES, Machine
from partitioned_modules import in_child

__all__ = ["Matmul", "descriptor", "llvm_ir", "product", "random_matmul", "wavefronts_of"]

#: Seconds for one compile, whatever it does.
_PATIENCE = 60


@dataclass(frozen=True)
class Matmul:
    """C = A B with one tile of C for each workgroup.

    ``b_is_nk``: B lies in memory as [N, K], and its buffer is read through its transpose.
    ``by_tdm``: TDM fills the buffers; otherwise waves load and store.
    """

    m: int = 128
    n: int = 128
    k: int = 64
    warps: tuple[tuple[int, int], ...] = ((0, 1), (1, 0))
    a_layout: str = "padded"
    b_layout: str = "padded"
    b_is_nk: bool = True
    by_tdm: bool = True
    stages: int = 2

    @property
    def num_warps(self):
        return 1 << len(self.warps)

    def __str__(self):
        """TTGIR in the spelling of 3.8 and newer."""
        bases = [list(basis) for basis in self.warps]
        b_shape = (self.n, self.k) if self.b_is_nk else (self.k, self.n)
        a, b = f"{self.m}x{self.k}", f"{b_shape[0]}x{b_shape[1]}"
        right = f"{self.k}x{self.n}"
        mma = "#mma"
        dots = [f"#ttg.dot_op<{{opIdx = {i}, parent = {mma}, kWidth = 8}}>" for i in range(2)]
        head = [
            f"{mma} = #ttg.amd_wmma<{{version = 3, isTranspose = true, "
            f"ctaLayout = {{warp = {bases}}}, instrShape = [16, 16, 32]}}>",
            f"#a = {_shared(self.a_layout, (self.m, self.k))}",
            f"#b = {_shared(self.b_layout, b_shape)}",
            f"#bt = {_shared(self.b_layout, b_shape, transposed=True)}",
            "#bl = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], "
            f"warpsPerCTA = [{self.num_warps}, 1], order = [1, 0]}}>",
            "#smem = #ttg.shared_memory",
            f'module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = {self.num_warps} '
            ': i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {',
        ]
        rows, columns = ("%N", "%K") if self.b_is_nk else ("%K", "%N")
        lines = [
            "tt.func public @kernel(%pa: !tt.ptr<f16>, %pb: !tt.ptr<f16>, %pc: !tt.ptr<f16>, "
            "%M: i32, %N: i32, %K: i32) {",
            "%c0 = arith.constant 0 : i32",
            "%c1 = arith.constant 1 : i32",
            "%one = arith.constant 1 : i64",
            f"%step = arith.constant {self.k} : i32",
            f"%stages = arith.constant {self.stages} : i32",
            f"%zero = arith.constant dense<0.0> : tensor<{self.m}x{self.n}xf32, {mma}>",
            *_buffer("a", a, self.stages),
            *_buffer("b", b, self.stages),
        ]
        if self.by_tdm:
            lines += [
                *_make("a", a, "%M", "%K"),
                *_make("b", b, rows, columns),
            ]
        lines += [
            f"%sum = scf.for %k = %c0 to %K step %step iter_args(%acc = %zero) -> "
            f"(tensor<{self.m}x{self.n}xf32, {mma}>) : i32 {{",
            "%number = arith.divsi %k, %step : i32",
            "%stage = arith.remsi %number, %stages : i32",
            *_index("a", a, self.stages),
            *_index("b", b, self.stages),
        ]
        b_start = ("%c0", "%k") if self.b_is_nk else ("%k", "%c0")
        fill = _by_tdm if self.by_tdm else _by_waves
        lines += fill("a", (self.m, self.k), ("%c0", "%k"), "%K")
        lines += fill("b", b_shape, b_start, columns)
        if self.by_tdm:
            lines.append("%w = amdg.async_tdm_wait {num = 0 : i32}")
        lines.append(f"%x = ttg.local_load %am : {_memdesc(a, '#a')} -> tensor<{a}xf16, {dots[0]}>")
        source, kind = "%bm", _memdesc(b, "#b")
        if self.b_is_nk:
            lines.append(
                f"%bt = ttg.memdesc_trans %bm {{order = array<i32: 1, 0>}} : {kind} -> "
                f"{_memdesc(right, '#bt')}"
            )
            source, kind = "%bt", _memdesc(right, "#bt")
        lines += [
            f"%y = ttg.local_load {source} : {kind} -> tensor<{right}xf16, {dots[1]}>",
            f"%next = tt.dot %x, %y, %acc : tensor<{a}xf16, {dots[0]}> * "
            f"tensor<{right}xf16, {dots[1]}> -> tensor<{self.m}x{self.n}xf32, {mma}>",
            f"scf.yield %next : tensor<{self.m}x{self.n}xf32, {mma}>",
            "}",
            *_pointers("c", (self.m, self.n), ("%c0", "%c0"), "%N", mma),
            f"%out = arith.truncf %sum : tensor<{self.m}x{self.n}xf32, {mma}> to "
            f"tensor<{self.m}x{self.n}xf16, {mma}>",
            f"tt.store %cq, %out : tensor<{self.m}x{self.n}x!tt.ptr<f16>, {mma}>",
            "tt.return",
            "}",
            "}",
        ]
        return "\n".join([*head, *lines, ""])


def _shared(layout, shape, *, transposed=False):
    order = "[0, 1]" if transposed else "[1, 0]"
    if layout == "padded":
        sizes = list(reversed(shape)) if transposed else list(shape)
        interval = max(shape[1], 128)
        return f"#ttg.padded_shared<[{interval}:+8] {{order = {order}, shape = {sizes}}}>"
    parameters = {"plain": (1, 1, 1), "swizzled": (8, 2, 8)}[layout]
    vec, per_phase, max_phase = parameters
    return (
        f"#ttg.swizzled_shared<{{vec = {vec}, perPhase = {per_phase}, maxPhase = {max_phase}, "
        f"order = {order}}}>"
    )


def _memdesc(shape, encoding):
    return f"!ttg.memdesc<{shape}xf16, {encoding}, #smem, mutable>"


def _buffer(name, shape, stages):
    yield f"%{name}s = ttg.local_alloc : () -> {_memdesc(f'{stages}x{shape}', f'#{name}')}"


def _index(name, shape, stages):
    yield (
        f"%{name}m = ttg.memdesc_index %{name}s[%stage] : "
        f"{_memdesc(f'{stages}x{shape}', f'#{name}')} -> {_memdesc(shape, f'#{name}')}"
    )


def _make(name, shape, rows, columns):
    yield f"%{name}l = arith.extsi {columns} : i32 to i64"
    yield (
        f"%{name}d = tt.make_tensor_descriptor %p{name}, [{rows}, {columns}], [%{name}l, %one] : "
        f"<f16>, <{shape}xf16, #{name}>"
    )


def _by_tdm(name, shape, start, stride):
    desc = f"!tt.tensordesc<{shape[0]}x{shape[1]}xf16, #{name}>"
    yield (
        f"%{name}u = amdg.update_tensor_descriptor %{name}d add_offsets = [{start[0]}, {start[1]}] "
        f"pred = %c1 {{clamp_bounds}} : {desc}"
    )
    yield (
        f"%{name}tok = amdg.async_tdm_copy_global_to_local %{name}u into %{name}m : {desc} -> "
        f"{_memdesc(f'{shape[0]}x{shape[1]}', f'#{name}')}"
    )


def _by_waves(name, shape, start, stride):
    tensor = f"{shape[0]}x{shape[1]}"
    yield from _pointers(name, shape, start, stride, "#bl")
    yield f"%{name}v = tt.load %{name}q : tensor<{tensor}x!tt.ptr<f16>, #bl>"
    yield (
        f"ttg.local_store %{name}v, %{name}m : tensor<{tensor}xf16, #bl> -> "
        f"{_memdesc(tensor, f'#{name}')}"
    )


def _pointers(name, shape, start, stride, encoding):
    both = f"{shape[0]}x{shape[1]}"
    for dim, size, sizes in ((0, shape[0], f"{shape[0]}x1"), (1, shape[1], f"1x{shape[1]}")):
        line = f"tensor<{size}xi32, #ttg.slice<{{dim = {1 - dim}, parent = {encoding}}}>>"
        matrix = f"tensor<{sizes}xi32, {encoding}>"
        n = f"%{name}{dim}"
        yield f"{n}r = tt.make_range {{end = {size} : i32, start = 0 : i32}} : {line}"
        yield f"{n}s = tt.splat {start[dim]} : i32 -> {line}"
        yield f"{n}i = arith.addi {n}r, {n}s : {line}"
        yield f"{n}e = tt.expand_dims {n}i {{axis = {1 - dim} : i32}} : {line} -> {matrix}"
        value = f"{n}e"
        if dim == 0:
            yield f"{n}t = tt.splat {stride} : i32 -> {matrix}"
            yield f"{n}m = arith.muli {n}e, {n}t : {matrix}"
            value = f"{n}m"
        yield f"{n}b = tt.broadcast {value} : {matrix} -> tensor<{both}xi32, {encoding}>"
    total = f"tensor<{both}xi32, {encoding}>"
    pointers = f"tensor<{both}x!tt.ptr<f16>, {encoding}>"
    yield f"%{name}o = arith.addi %{name}0b, %{name}1b : {total}"
    yield f"%{name}p = tt.splat %p{name} : !tt.ptr<f16> -> {pointers}"
    yield f"%{name}q = tt.addptr %{name}p, %{name}o : {pointers}, {total}"


_WARPS = [
    ((0, 1), (1, 0)),
    ((1, 0), (0, 1)),
    ((1, 0), (2, 0)),
    ((0, 1), (0, 2)),
    ((0, 1), (0, 2), (1, 0)),
    ((0, 1), (1, 0), (2, 0)),
    ((0, 1),),
]


def random_matmul(seed):
    """A matmul whose buffers fit into LDS."""
    source = random.Random(seed)
    by_tdm = source.random() < 0.6
    layouts = ["padded", "padded", "plain"] + ([] if by_tdm else ["swizzled"])
    found = Matmul(
        m=source.choice([64, 128, 256]),
        n=source.choice([64, 128, 256]),
        k=source.choice([32, 64, 128]),
        warps=source.choice(_WARPS),
        a_layout=source.choice(layouts),
        b_layout=source.choice(layouts),
        b_is_nk=source.random() < 0.7,
        by_tdm=by_tdm,
        stages=source.choice([1, 2, 3]),
    )
    while (found.m + found.n) * found.k * found.stages * 2.2 > 320 * 1024:
        found = replace(found, stages=1, k=32)
    return found


# ---- compiled and run


def llvm_ir(text):
    """Triton's LLVM IR of a TTGIR module, and its bytes of LDS; an error where it has none."""
    found, status = in_child(lambda: json.dumps(_compile(text)), _PATIENCE)
    assert found, f"Triton could not lower the module ({os.waitstatus_to_exitcode(status)})"
    return tuple(json.loads(found))


def _compile(text):
    from triton._C.libtriton import ir
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.compiler import GPUTarget

    backend = HIPBackend(GPUTarget("hip", "gfx1250", 32))
    counts = {
        "num_warps": int(re.search(r'"ttg.num-warps" = (\d+)', text)[1]),
        "num_ctas": 1,
    }
    options = backend.parse_options(dict(counts))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "kernel.ttgir")
        path.write_text(text)
        module = ir.parse_mlir_module(str(path), context)
    module.context = context
    metadata = {"target": backend.target, "name": "kernel", **options.__dict__, **counts}
    return backend.make_llir(module, metadata, options), metadata["shared"]


def product(llir, m, n, k, *, b_is_nk=True, num_warps=4, arguments=None):
    """Runs a matmul's workgroup 0, 0; the machine, what it wrote, and what is right.

    Args:
        llir: LLVM IR.
        m: Rows.
        n: Columns.
        k: What is contracted.
        b_is_nk: Whether B lies as [N, K].
        num_warps: Waves.
        arguments: Makes the arguments from the addresses of A, B and C.
    """
    source = np.random.default_rng(m + n + k)
    a = source.integers(-4, 5, (m, k)).astype(np.float16)
    b = source.integers(-4, 5, (n, k) if b_is_nk else (k, n)).astype(np.float16)
    c = np.zeros((m, n), np.float16)
    places = [(i + 1) << 32 for i in range(3)]
    memory = {at: x.reshape(-1).view(np.uint8) for at, x in zip(places, (a, b, c), strict=True)}
    given = [*places, m, n, k] if arguments is None else arguments(*places)
    machine = Machine(llir, given, memory, num_warps)
    machine.run()
    right = a.astype(np.float32) @ (b.T if b_is_nk else b).astype(np.float32)
    return machine, c, right.astype(np.float16)


def descriptor(entry, address, shape):
    """The dwords of a TDM descriptor as Triton's launcher makes them from metadata."""
    bits, (rows, columns) = entry["elem_bits"], entry["block_size"]
    first = (bits // 8).bit_length() - 1 << 16
    for interval, pad in entry.get("interval_padding_pairs") or ():
        dwords = interval * bits // 32
        first |= 1 << 20 | dwords.bit_length() - 2 << 22 | pad * bits // 32 - 1 << 25
    return [
        1,
        0,
        address & 0xFFFFFFFF,
        address >> 32 | 1 << 31,
        first,
        (shape[1] & 0xFFFF) << 16,
        shape[1] >> 16 | (shape[0] & 0xFFFF) << 16,
        shape[0] >> 16 | columns << 16,
        rows,
        shape[1],
        0,
        0,
    ]


def wavefronts_of(machine, partition_bytes=65536):
    """Wavefronts of the 16-byte reads of a run: counted from addresses, by the model's rules.

    Neighbouring waves meet where they want the same physical partition.
    """
    total = 0
    for addresses in machine.reads:
        waves = addresses.reshape(-1, LANES)
        for first in range(0, len(waves), 2):
            load = {}
            for wave in waves[first : first + 2]:
                taken = 0
                for half in wave.reshape(2, 16):
                    words = {int(a) // 4 + i for a in half for i in range(4)}
                    banks = [word % 64 for word in words]
                    taken += max(map(banks.count, set(banks)))
                for partition in {int(a) // partition_bytes for a in wave}:
                    load[partition] = load.get(partition, 0) + taken
            total += max(load.values())
    return total
