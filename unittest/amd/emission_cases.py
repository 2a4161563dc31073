"""Random asynchronous operations, each as a TTGIR module that the host compiles.

Pointers are ``base + row * stride + column`` of arguments with random divisibility.  Not every case
is legal: a host refuses a width that its instructions do not have, for instance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from triton_ext.ir import encodings as enc

DTYPES = {"i8": 8, "f16": 16, "f32": 32, "f64": 64}
COPIES = ("load", "buffer", "store")
TDM = ("tdm_load", "tdm_pieces", "tdm_store", "tdm_gather", "tdm_scatter", "tdm_fused")


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a host spells what differs.

    Attributes:
        release: ``(3, 9)``.
    """

    release: tuple[int, int]

    @property
    def coordinates(self) -> str:
        """Behind the descriptor of a TDM copy."""
        return "" if self.release >= (3, 8) else "[%zero, %zero]"

    @property
    def predicate(self) -> str:
        """Behind the buffer of a TDM load."""
        return "" if self.release >= (3, 8) else ", %yes"

    @property
    def predicate_type(self) -> str:
        return "i32" if self.release >= (3, 7) else "i1"

    def column(self, rows: str) -> str:
        """What stands in the brackets of a gather."""
        return f"[{rows}]" if self.release >= (3, 8) else f"[{rows}, %zero]"

    def descriptor(self, block: str) -> str:
        inner = block if self.release >= (3, 8) else f"tensor<{block}>"
        return f"!tt.tensordesc<{inner}>"

    def pointer(self, dtype: str) -> str:
        """The base of a buffer copy."""
        return f"!tt.ptr<{dtype}>" if self.release >= (3, 9) else f"<{dtype}>"

    @property
    def store_token(self) -> str:
        return "%t = " if self.release >= (3, 9) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation.

    Attributes:
        kind: One of :data:`COPIES` or :data:`TDM`.
        arch: The GPU.
        dtype: Elements.
        shape: Of the tensor and of the part of the buffer that is copied.
        shared: Encoding of the buffer.
        waves: Number of waves.
        layout: Encoding of the tensor; of the row numbers for gathers and scatters.
        fastest: The dimension in which pointers are contiguous.
        divisibility: Of the base pointer in bytes, and of the stride in elements.
        mask: Divisibility of the bound that columns are compared with; 0 for no mask.
        other: Whether masked elements get a value.
        hint: The attribute ``contiguity``; of a TDM load ``warp_used_hint``, 0 for none.
        view: How the buffer is part of another: ``""``, ``"index"`` or ``"subslice"``.
        sliced: Whether the pointers are a slice of those of a larger tensor.
        rows: Number and type of row numbers.
        ctas: CTAs of a cluster; the encodings say what each of them holds.
    """

    kind: str
    arch: str
    dtype: str
    shape: tuple[int, ...]
    shared: enc.Encoding
    waves: int
    layout: enc.Encoding | None = None
    fastest: int = 0
    divisibility: int = 16
    mask: int = 0
    other: bool = False
    hint: int = 0
    view: str = ""
    sliced: bool = False
    rows: tuple[int, str] = (0, "i32")
    ctas: int = 1

    def text(self, syntax: Syntax) -> str:
        """The module."""
        return _Writer(self, syntax).text()

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Of the tensor that the pointers are a slice of."""
        return (self.shape[0] * 2, *self.shape[1:]) if self.sliced else self.shape


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@dataclass(slots=True)
class _Writer:
    case: Case
    syntax: Syntax
    lines: list[str] = field(default_factory=list)
    next: int = 0

    def op(self, text: str) -> str:
        self.next += 1
        self.lines.append(f"    %v{self.next} = {text}")
        return f"%v{self.next}"

    def text(self) -> str:
        if self.case.kind in COPIES:
            token = self.copy()
            group = self.op(f"ttg.async_commit_group tokens {token}")
            self.op(f"ttg.async_wait {group} {{num = 0 : i32}}")
        else:
            self.tdm()
        return self.module()

    def module(self) -> str:
        case = self.case
        threads = 64 if case.arch.startswith("gfx9") else 32
        block = self.syntax.descriptor(f"{_x(case.shape)}x{case.dtype}, #s")
        first = f"#b = {case.layout}\n" if case.layout is not None else ""
        body = "\n".join(self.lines)
        descriptors = "" if case.kind in COPIES else f", %d: {block}, %e: {block}"
        divisible = f"{{tt.divisibility = {case.divisibility} : i32}}"
        return f"""\
{first}#s = {case.shared}
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = {case.ctas} : i32, "ttg.num-warps" = {case.waves} : i32, \
ttg.target = "hip:{case.arch}", "ttg.threads-per-warp" = {threads} : i32}} {{
  tt.func public @f(%p: !tt.ptr<{case.dtype}> {divisible}, %stride: i32 {divisible}, \
%n: i32 {{tt.divisibility = {max(1, case.mask)} : i32}}{descriptors}) \
attributes {{noinline = false}} {{
    %zero = arith.constant 0 : i32
{body}
    tt.return
  }}
}}
"""

    # ---- copies by address

    def range(self, dim: int, shape: tuple[int, ...]) -> str:
        """0, 1, ... along a dimension, as a tensor of the whole shape."""
        end = f"{{end = {shape[dim]} : i32, start = 0 : i32}}"
        if len(shape) == 1:
            return self.op(f"tt.make_range {end} : tensor<{_x(shape)}xi32, #b>")
        gone = f"#ttg.slice<{{dim = {1 - dim}, parent = #b}}>"
        thin = f"{shape[0]}x1" if dim == 0 else f"1x{shape[1]}"
        flat = f"tensor<{shape[dim]}xi32, {gone}>"
        made = self.op(f"tt.make_range {end} : {flat}")
        made = self.op(
            f"tt.expand_dims {made} {{axis = {1 - dim} : i32}} : {flat} -> tensor<{thin}xi32, #b>"
        )
        return self.op(
            f"tt.broadcast {made} : tensor<{thin}xi32, #b> -> tensor<{_x(shape)}xi32, #b>"
        )

    def offsets(self, shape: tuple[int, ...]) -> str:
        case, ints = self.case, f"tensor<{_x(shape)}xi32, #b>"
        columns = self.range(case.fastest, shape)
        if len(shape) == 1:
            return columns
        stride = self.op(f"tt.splat %stride : i32 -> {ints}")
        rows = self.op(f"arith.muli {self.range(1 - case.fastest, shape)}, {stride} : {ints}")
        return self.op(f"arith.addi {rows}, {columns} : {ints}")

    def cut(self, value: str, element: str) -> str:
        """The slice of a larger tensor, if the case has it."""
        case = self.case
        if not case.sliced:
            return value
        zeros = ", ".join("0" for _ in case.shape)
        types = (f"tensor<{_x(s)}x{element}, #b>" for s in (case.full_shape, case.shape))
        return self.op(f"amdg.extract_slice {value} [{zeros}] : {' to '.join(types)}")

    def mask(self) -> tuple[str, str]:
        """Mask and the value of what it leaves out; empty where there is none."""
        case, shape = self.case, _x(self.case.shape)
        if not case.mask:
            return "", ""
        ints = f"tensor<{shape}xi32, #b>"
        bound = self.op(f"tt.splat %n : i32 -> {ints}")
        columns = self.range(case.fastest, case.shape)
        mask = self.op(f"arith.cmpi slt, {columns}, {bound} : {ints}")
        if not case.other or case.kind == "store":
            return mask, ""
        one = "1" if case.dtype.startswith("i") else "1.0"
        return mask, self.op(f"arith.constant dense<{one}> : tensor<{shape}x{case.dtype}, #b>")

    def buffer(self, shape: tuple[int, ...]) -> tuple[str, str]:
        """The buffer and its type without the name."""
        case = self.case
        memory = f"{_x(shape)}x{case.dtype}, #s, #smem, mutable"
        if case.view == "index":
            made = self.op(f"ttg.local_alloc : () -> !ttg.memdesc<3x{memory}>")
            types = f"!ttg.memdesc<3x{memory}> -> !ttg.memdesc<{memory}>"
            return self.op(f"ttg.memdesc_index {made}[%zero] : {types}"), f"<{memory}>"
        if case.view == "subslice":
            whole = (shape[0] * 2, *shape[1:])
            large = f"{_x(whole)}x{case.dtype}, #s, #smem, mutable"
            made = self.op(f"ttg.local_alloc : () -> !ttg.memdesc<{large}>")
            start = ", ".join("0" for _ in shape)
            memory += f", {_x(whole)}"
            types = f"!ttg.memdesc<{large}> -> !ttg.memdesc<{memory}>"
            return self.op(f"ttg.memdesc_subslice {made}[{start}] : {types}"), f"<{memory}>"
        return self.op(f"ttg.local_alloc : () -> !ttg.memdesc<{memory}>"), f"<{memory}>"

    def copy(self) -> str:
        case, shape = self.case, _x(self.case.shape)
        ints, full = f"tensor<{shape}xi32, #b>", _x(case.full_shape)
        offsets = self.offsets(case.full_shape)
        mask, other = self.mask()
        buffer, memory = self.buffer(case.shape)
        hint = f" {{contiguity = {case.hint} : i32}}" if case.hint > 1 else ""
        if case.kind == "buffer":
            offsets = self.cut(offsets, "i32")
            words = f"{f' mask = {mask}' if mask else ''}{f' other = {other}' if other else ''}"
            types = f"{ints} {f'tensor<{shape}x{case.dtype}, #b>' if other else ''}"
            return self.op(
                f"amdg.buffer_load_to_local %p[{offsets}]{words} into {buffer}{hint} : "
                f"{self.syntax.pointer(case.dtype)}[{ints}] {types.removeprefix(ints)} -> {memory}"
            )
        pointer = f"!tt.ptr<{case.dtype}>"
        many = f"tensor<{full}x{pointer}, #b>"
        base = self.op(f"tt.splat %p : {pointer} -> {many}")
        place = self.op(f"tt.addptr {base}, {offsets} : {many}, tensor<{full}xi32, #b>")
        place, pointers = self.cut(place, pointer), f"tensor<{shape}x{pointer}, #b>"
        words = f"{f' mask {mask}' if mask else ''}{f' other {other}' if other else ''}{hint}"
        if case.kind == "load":
            return self.op(
                f"ttg.async_copy_global_to_local {place}, {buffer}{words} : {pointers} -> {memory}"
            )
        return self.op(
            f"amdg.async_copy_local_to_global {buffer}, {place}{words} : "
            f"!ttg.memdesc{memory} -> {pointers}"
        )

    # ---- tensor data mover

    def tdm(self) -> None:
        case, syntax = self.case, self.syntax
        value = "true" if syntax.predicate_type == "i1" else "1 : i32"
        self.lines.append(f"    %yes = arith.constant {value}")
        buffer, memory = self.buffer(case.shape)
        memory = f"!ttg.memdesc{memory}"
        block = syntax.descriptor(f"{_x(case.shape)}x{case.dtype}, #s")
        if case.kind in ("tdm_load", "tdm_pieces"):
            hint = f" {{warp_used_hint = {case.hint} : i32}}" if case.hint else ""
            self.op(
                f"amdg.async_tdm_copy_global_to_local %d{syntax.coordinates} into {buffer}"
                f"{syntax.predicate}{hint} : {block} -> {memory}"
            )
        elif case.kind == "tdm_fused":
            second, _ = self.buffer(case.shape)
            self.op(
                f"amdg.async_tdm_fused_copy_global_to_local %d, %e into {buffer}, {second} "
                f"{{warp_used_hints = array<i32: 1, 2>}} : {block}, {block} -> {memory}, {memory}"
            )
        elif case.kind == "tdm_store":
            self.lines.append(
                f"    {syntax.store_token}amdg.async_tdm_copy_local_to_global "
                f"%d{syntax.coordinates} from {buffer} : {memory} -> {block}"
            )
        else:
            number, element = case.rows
            indices = f"tensor<{number}x{element}, #b>"
            rows = self.op(
                f"tt.make_range {{end = {number} : i32, start = 0 : i32}} : "
                f"tensor<{number}xi32, #b>"
            )
            if element == "i16":
                rows = self.op(f"arith.trunci {rows} : tensor<{number}xi32, #b> to {indices}")
            word, to = ("gather", "to") if case.kind == "tdm_gather" else ("scatter", "from")
            self.op(
                f"amdg.async_tdm_{word} %d{syntax.column(rows)} {to} {buffer} : "
                f"{indices}, {memory} -> {block}"
            )


# ---- choices


def _power(rng: random.Random, low: int, high: int) -> int:
    return 1 << rng.randint(low, high)


def random_case(rng: random.Random, arch: str, kind: str) -> Case:
    """A case of one kind for one GPU."""
    if kind not in COPIES:
        return _random_tdm(rng, arch, kind)
    case = _random_copy(rng, arch, kind)
    if arch.startswith("gfx9") or rng.random() < 0.75:
        return case
    return _in_a_cluster(rng, case)


def _in_a_cluster(rng: random.Random, case: Case) -> Case:
    """The same for two CTAs or four, which share the elements or hold them all."""
    layout, shared, rank = case.layout, case.shared, len(case.shape)
    if not (
        isinstance(layout, enc.BlockedEncoding) and isinstance(shared, enc.SwizzledSharedEncoding)
    ):
        return case
    cga: list[tuple[int, ...]] = []
    for _ in range(rng.choice([1, 1, 2])):
        dim = rng.randrange(-1, rank)  # -1: a bit of the CTA that moves nothing
        step = 1 << sum(basis[dim] > 0 for basis in cga)
        cga.append(tuple(step if d == dim else 0 for d in range(rank)))
    return replace(
        case,
        ctas=1 << len(cga),
        layout=replace(layout, cga_layout=tuple(cga)),
        shared=replace(shared, cga_layout=tuple(cga)),
        view="",
        sliced=False,
    )


def _random_copy(rng: random.Random, arch: str, kind: str) -> Case:
    cdna = arch.startswith("gfx9")
    dtype = rng.choice([*DTYPES, "f16"])
    rank = rng.choice([1, 2, 2, 2])
    order = (0,) if rank == 1 else rng.choice([(1, 0), (1, 0), (0, 1)])
    shape = tuple(_power(rng, 3, 7) for _ in range(rank)) if rank == 2 else (_power(rng, 7, 12),)
    blocked = _random_blocked(rng, shape, order, DTYPES[dtype], arch)
    vector = blocked.size_per_thread[order[0]]
    # CDNA copies some widths only: most of the others would be refused.
    tame = cdna and rng.random() < 0.9
    view = rng.choice(["", "", "index", "subslice"])
    masked = rng.choice([0, 0, 16]) if tame else rng.choice([0, 0, 0, 1, 4, 16])
    return Case(
        kind=kind,
        arch=arch,
        dtype=dtype,
        shape=shape,
        layout=blocked if cdna or rng.random() < 0.7 else _shuffled(rng, blocked, shape),
        shared=_random_shared(rng, shape, order, vector if cdna else 0, view),
        waves=_product(blocked.warps_per_cta),
        fastest=order[0] if tame or rng.random() < 0.9 else rank - 1,
        divisibility=256 if tame else rng.choice([1, 2, 4, 8, 16, 16, 16, 16]),
        mask=masked,
        other=bool(masked) and rng.random() < 0.3,
        hint=rng.choice([1, vector]) if tame else rng.choice([1, 1, 1, 2, 4, 8, 16]),
        view=view,
        sliced=rng.random() < 0.2,
    )


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def _random_blocked(
    rng: random.Random, shape: tuple[int, ...], order: tuple[int, ...], bits: int, arch: str
) -> enc.BlockedEncoding:
    rank = len(shape)
    threads = 64 if arch.startswith("gfx9") else 32
    per_thread, lanes, warps = [1] * rank, [1] * rank, [1] * rank
    per_thread[order[0]] = min(_power(rng, 0, 4), 256 // bits)
    if arch.startswith("gfx9") and rng.random() < 0.9:
        width = 32 if arch == "gfx942" else rng.choice([32, 128])
        per_thread[order[0]] = max(1, width // bits)
    if rank == 2 and rng.random() < 0.2:
        per_thread[order[1]] = 2
    if rank == 1:
        lanes[0] = threads
    elif rng.random() < 0.8:  # one row after the other, as coalesced copies have it
        lanes[order[0]] = max(1, min(threads, shape[order[0]] // per_thread[order[0]]))
        lanes[order[1]] = threads // lanes[order[0]]
    else:
        lanes[order[0]] = min(threads, _power(rng, 0, 6))
        lanes[order[1]] = threads // lanes[order[0]]
    warps[order[-1] if rng.random() < 0.8 else order[0]] = rng.choice([1, 2, 4, 4, 8])
    return enc.BlockedEncoding(tuple(per_thread), tuple(lanes), tuple(warps), order)


def _shuffled(
    rng: random.Random, blocked: enc.BlockedEncoding, shape: tuple[int, ...]
) -> enc.LinearEncoding:
    """A linear encoding with some bits of registers, lanes and waves exchanged."""
    layout = blocked.to_linear_layout(shape)
    bases = {name: list(layout.in_bases(name)) for name in ("register", "lane", "warp")}
    places = [(name, bit) for name, vectors in bases.items() for bit in range(len(vectors))]
    for _ in range(rng.randint(0, 3)):
        (a, i), (b, j) = rng.choice(places), rng.choice(places)
        bases[a][i], bases[b][j] = bases[b][j], bases[a][i]
    return enc.LinearEncoding(*(tuple(bases[name]) for name in bases), ())


def _random_shared(
    rng: random.Random, shape: tuple[int, ...], order: tuple[int, ...], vector: int, view: str
) -> enc.Encoding:
    """The encoding of a buffer; ``vector``: elements of a lane on CDNA, 0 elsewhere."""
    if rng.random() < 0.3:
        low = 8 if vector else 2
        pad = ((_power(rng, low, low + 4), _power(rng, 2, 4)),)
        whole = (shape[0] * 2, *shape[1:]) if view == "subslice" else shape
        return enc.PaddedSharedEncoding.with_identity_for(pad, whole, order)
    vec, phases = (1, 1) if rng.random() < 0.5 else (_power(rng, 1, 3), _power(rng, 0, 3))
    if vector and phases > 1:
        vec = vector
    other = order if vector or rng.random() < 0.9 else tuple(reversed(order))
    return enc.SwizzledSharedEncoding(vec, 1, phases, other)


def _random_tdm(rng: random.Random, arch: str, kind: str) -> Case:
    waves = rng.choice([1, 2, 4, 4, 8])
    dtype = rng.choice(["i8", "f16", "f32"])
    shape = (_power(rng, 4, 8), _power(rng, 5, 7))
    plain = enc.SwizzledSharedEncoding(1, 1, 1, (1, 0))
    layout, rows, shared, hint = None, (0, "i32"), plain, 0
    if kind in ("tdm_load", "tdm_fused") and rng.random() < 0.5:
        shared = enc.PaddedSharedEncoding.with_identity_for(((64, 8),), shape, (1, 0))
    if kind == "tdm_load" and rng.random() < 0.3:
        hint = rng.choice([h for h in (1, 3, 5, 15) if h < 1 << waves])
    if kind == "tdm_fused":
        waves = rng.choice([2, 4, 8])
    if kind == "tdm_pieces":
        partitions, groups = rng.choice([2, 4]), _power(rng, 0, 3)
        piece = (shape[0] // (partitions * groups), shape[1])
        inner = plain
        if piece[0] and rng.random() < 0.5:
            inner = enc.PaddedSharedEncoding.with_identity_for(((64, 8),), piece, (1, 0))
        shared = enc.PartitionedSharedEncoding(partitions, groups, 0, inner)
        if partitions > waves or not piece[0]:  # the host asserts
            return _random_tdm(rng, arch, kind)
    if kind in ("tdm_gather", "tdm_scatter"):
        rows = (shape[0], rng.choice(["i16", "i32"]))
        layout = _random_rows(rng, shape[0], waves)
    return Case(
        kind=kind,
        arch=arch,
        dtype=dtype,
        shape=shape,
        shared=shared,
        waves=waves,
        layout=layout,
        hint=hint,
        rows=rows,
        view=rng.choice(["", "", "index"]) if kind != "tdm_pieces" else "",
    )


def _random_rows(rng: random.Random, number: int, waves: int) -> enc.Encoding:
    """An encoding of row numbers whose lanes all hold the same."""
    bits = number.bit_length() - 1
    steps = [(1 << bit,) for bit in range(bits)]
    over = rng.randint(0, min(waves.bit_length() - 1, bits))
    if rng.random() < 0.3:
        rng.shuffle(steps)
    cut = rng.choice([bits - over, rng.randint(0, bits - over)])
    warp = [*steps[cut : cut + over], *[(0,)] * (waves.bit_length() - 1 - over)]
    registers = [*steps[:cut], *steps[cut + over :]]
    if rng.random() < 0.2:
        registers.insert(rng.randint(0, len(registers)), (0,))
    return enc.LinearEncoding(tuple(registers), ((0,),) * 5, tuple(warp), ())
