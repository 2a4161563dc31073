"""Random modules with one operation that needs shared memory while it runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import encodings_random
from triton_ext.ir import encodings as enc

#: Kinds of operations.
KINDS = ("convert", "reduce", "scan", "gather", "atomic", "histogram", "tensor_map", "captures")
#: Those of some releases: the first one, and the first one without it.
SOME_KINDS = {
    "gsan_atomic": ("3.8", "4"),
    "local_atomic": ("3.8", "4"),
    "atomic_poll": ("3.9", "4"),
    "forced_shuffle": ("3.9", "4"),
    "captured_descriptors": ("3.8", "4"),
    "buffer_atomic": ("3.6", "3.9"),
    "buffer_atomic_3.9": ("3.9", "4"),
}
TARGETS = {
    "cuda:75": 32,
    "cuda:80": 32,
    "cuda:90": 32,
    "cuda:100": 32,
    "hip:": 64,
    "hip:gfx1030": 32,
    "hip:gfx1100": 32,
    "hip:gfx90a": 64,
    "hip:gfx942": 64,
    "hip:gfx950": 64,
    "hip:gfx1200": 32,
    "hip:gfx1250": 32,
}
_ELEMENTS = {"f16": 16, "bf16": 16, "f32": 32, "i8": 8, "i16": 16, "i32": 32, "f64": 64, "i1": 1}


@dataclass(frozen=True)
class Case:
    """A module.

    Attributes:
        target: ``"cuda:90"``.
        text: The module.
    """

    target: str
    text: str


class _Maker:
    """Draws one module."""

    def __init__(self, seed: str, ctas: int, vendor: str = "") -> None:
        self.random = random.Random(seed)
        targets = [t for t in TARGETS if ctas == 1 or t in ("cuda:90", "cuda:100")]
        targets = [t for t in targets if t.startswith(vendor)]
        self.target = self.random.choice(targets)
        self.lanes = TARGETS[self.target]
        self.warps = self.random.choice([1, 2, 4, 4, 8])
        self.ctas = ctas
        rank = self.random.choice([1, 2, 2, 2, 3])
        most = 7 if rank < 3 else 5
        low = 4 if rank == 1 or ctas > 1 else 2
        self.shape = tuple(1 << self.random.randint(low, most) for _ in range(rank))
        self.element = self.random.choice(list(_ELEMENTS))
        self.encodings: list[object] = []

    def tensor(self, encoding: int, element: str = "", shape: tuple[int, ...] = ()) -> str:
        """The type of a tensor."""
        sizes = "x".join(map(str, shape or self.shape))
        return f"tensor<{sizes}x{element or self.element}, #e{encoding}>"

    def encoding(self, shape: tuple[int, ...] = ()) -> int:
        """A new encoding for a shape; its number."""
        shape = shape or self.shape
        makers = [self._blocked, self._blocked, self._linear]
        if self.ctas == 1:
            makers += [self._slice] if len(shape) < 3 else []
            makers += [self._matrix] * 2 if len(shape) == 2 else []
        else:
            makers = makers[:2]
        self.encodings.append(self.random.choice(makers)(shape))
        return len(self.encodings) - 1

    def _blocked(self, shape: tuple[int, ...], rank: int = 0) -> enc.BlockedEncoding:
        rank = rank or len(shape)
        spread, bits = encodings_random.spread, self.random.randint(0, 5)
        cga = ()
        if self.ctas > 1:
            dim = self.random.randrange(rank + 1)
            cga = (tuple(int(d == dim) for d in range(rank)),)
        return enc.BlockedEncoding(
            spread(self.random, bits, rank),
            spread(self.random, self.lanes.bit_length() - 1, rank),
            spread(self.random, self.warps.bit_length() - 1, rank),
            encodings_random.some_order(self.random, rank),
            cga,
        )

    def _slice(self, shape: tuple[int, ...]) -> enc.SliceEncoding:
        rank = len(shape) + 1
        return enc.SliceEncoding(self.random.randrange(rank), self._blocked(shape, rank))

    def _linear(self, shape: tuple[int, ...]) -> enc.LinearEncoding:
        bits = [
            tuple((1 << bit) * (d == dim) for d in range(len(shape)))
            for dim, size in enumerate(shape)
            for bit in range(size.bit_length() - 1)
        ]
        self.random.shuffle(bits)
        zero = (0,) * len(shape)

        def take(count: int, share: float) -> tuple[tuple[int, ...], ...]:
            drawn = (self.random.random() < share for _ in range(count))
            return tuple(bits.pop() if here and bits else zero for here in drawn)

        lanes = take(self.lanes.bit_length() - 1, 0.9)
        warps = take(self.warps.bit_length() - 1, self.random.choice([0.0, 0.85]))
        return enc.LinearEncoding(tuple(bits), lanes, warps, ())

    def _matrix(self, shape: tuple[int, ...]) -> enc.DistributedEncoding:
        source = self.random
        warps = encodings_random.spread(source, self.warps.bit_length() - 1, 2)
        width = max(1, 32 // max(_ELEMENTS[self.element], 8))
        if self.target.startswith("cuda"):
            parent = enc.NvidiaMmaEncoding((2, 0), warps, (16, 8), ())
        elif self.lanes == 64:
            instr = source.choice([(32, 32, 8), (16, 16, 16)])
            flipped = source.random() < 0.5
            parent, width = enc.AmdMfmaEncoding(3, instr, flipped, warps, 32, (), ()), 4
        else:
            return self._blocked(shape)
        return (
            parent
            if source.random() < 0.5
            else enc.DotOperandEncoding(source.randint(0, 1), parent, width)
        )

    def module(self, arguments: str, body: str) -> Case:
        """The module around an operation."""
        aliases = "\n".join(f"#e{i} = {text}" for i, text in enumerate(self.encodings))
        text = f"""{aliases}
module attributes {{"ttg.num-ctas" = {self.ctas} : i32, "ttg.num-warps" = {self.warps} : i32,
  ttg.target = "{self.target}", "ttg.threads-per-warp" = {self.lanes} : i32}} {{
tt.func public @kernel({arguments}) {{
{body}
tt.return
}}
}}
"""
        return Case(self.target, text)


def _convert(make: _Maker) -> Case:
    source, target = make.tensor(make.encoding()), make.tensor(make.encoding())
    return make.module(f"%x: {source}", f"%0 = ttg.convert_layout %x : {source} -> {target}")


def _along(make: _Maker, name: str, elements: list[str], result: Callable[[str, int], str]) -> Case:
    """A reduction or a scan of some operands."""
    encoding, count = make.encoding(), len(elements)
    axis = make.random.randrange(len(make.shape))
    types = [make.tensor(encoding, element) for element in elements]
    results = [result(element, axis) for element in elements]
    arguments = ", ".join(f"%x{i}: {type_}" for i, type_ in enumerate(types))
    names = [f"%{side}{i}: {e}" for side in "lr" for i, e in enumerate(elements)]
    back = ", ".join(f"%l{i}" for i in range(count)) + " : " + ", ".join(elements)
    more = ", reverse = false" if name == "scan" else ""
    body = (
        f'%0:{count} = "tt.{name}"({", ".join(f"%x{i}" for i in range(count))}) '
        f"<{{axis = {axis} : i32{more}}}> ({{\n^bb0({', '.join(names)}):\n"
        f"  tt.{name}.return {back}\n}}) : ({', '.join(types)}) -> ({', '.join(results)})"
    )
    return make.module(arguments, body)


def _elements(make: _Maker) -> list[str]:
    others = [element for element in _ELEMENTS if element != "i1"]
    return [make.random.choice(others) for _ in range(make.random.choice([1, 1, 2]))]


def _reduce(make: _Maker) -> Case:
    def result(element: str, axis: int) -> str:
        shape = make.shape[:axis] + make.shape[axis + 1 :]
        sizes = "x".join(map(str, shape))
        return (
            f"tensor<{sizes}x{element}, #ttg.slice<{{dim = {axis}, parent = #e0}}>>" * bool(shape)
            or element
        )

    return _along(make, "reduce", _elements(make), result)


def _scan(make: _Maker) -> Case:
    return _along(make, "scan", _elements(make), lambda element, _: make.tensor(0, element))


def _gather(make: _Maker) -> Case:
    axis = make.random.randrange(len(make.shape))
    source = make.encoding()
    indices = source if make.random.random() < 0.4 else make.encoding()
    values, numbers = make.tensor(source), make.tensor(indices, "i32")
    return make.module(
        f"%x: {values}, %i: {numbers}",
        f"%0 = tt.gather %x[%i] {{axis = {axis} : i32}} : ({values}, {numbers}) -> "
        f"{make.tensor(indices)}",
    )


def _atomic(make: _Maker) -> Case:
    element = make.random.choice(["i32", "i64"])
    if make.random.random() < 0.2:
        make.encodings.clear()
        pointer, value, mask = f"!tt.ptr<{element}>", element, "i1"
    else:
        at = make.encoding()
        pointer = make.tensor(at, f"!tt.ptr<{element}>")
        value, mask = make.tensor(at, element), make.tensor(at, "i1")
    if make.random.random() < 0.5:
        body = f"%0 = tt.atomic_rmw add, acq_rel, gpu, %p, %v, %m : ({pointer}, {value}, {mask})"
    else:
        body = f"%0 = tt.atomic_cas acq_rel, gpu, %p, %v, %v : ({pointer}, {value}, {value})"
    body += f" -> {value}"
    if make.random.random() < 0.7:
        body += f"\ntt.store %p, %0 : {pointer}"
    return make.module(f"%p: {pointer}, %v: {value}, %m: {mask}", body)


def _histogram(make: _Maker) -> Case:
    make.shape = (1 << make.random.randint(4, 9),)
    bins = (1 << make.random.randint(3, 9),)
    make.encodings = [make._blocked(make.shape), make._blocked(bins)]
    source, target = make.tensor(0, "i32"), make.tensor(1, "i32", bins)
    return make.module(f"%x: {source}", f"%0 = tt.histogram %x : {source} -> {target}")


def _swapping(make: _Maker, name: str, pointer: str, value: str) -> str:
    """An atomic operation of a dialect on a pointer."""
    if make.random.random() < 0.5:
        text = f"{name}_rmw add, acq_rel, gpu, %p, %v : ({pointer}, {value})"
    else:
        text = f"{name}_cas acq_rel, gpu, %p, %v, %v : ({pointer}, {value}, {value})"
    used = f"\ntt.store %p, %0 : {pointer}" if make.random.random() < 0.7 else ""
    return f"%0 = {text} -> {value}{used}"


def _gsan_atomic(make: _Maker) -> Case:
    element = make.random.choice(["i32", "i64"])
    pointer, value = f"!tt.ptr<{element}>", element
    if make.random.random() < 0.8:
        at = make.encoding()
        pointer, value = make.tensor(at, pointer), make.tensor(at, element)
    body = _swapping(make, "tti.experimental_gsan_atomic", pointer, value)
    return make.module(f"%p: {pointer}, %v: {value}", body)


def _local_atomic(make: _Maker) -> Case:
    element, kind = make.random.choice([("i32", "add"), ("i64", "max"), ("f32", "fadd")])
    at, rank = make.encoding(), len(make.shape)
    values, indices, mask = (make.tensor(at, e) for e in (element, "i32", "i1"))
    order = ", ".join(map(str, reversed(range(rank))))
    sizes = "x".join(map(str, make.shape))
    plain = f"#ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [{order}]}}>"
    buffer = f"!ttg.memdesc<{sizes}x{element}, {plain}, #ttg.shared_memory, mutable>"
    masked = make.random.random() < 0.5
    used = f"\nttg.local_store %0, %b : {values} -> {buffer}" * (make.random.random() < 0.7)
    return make.module(
        f"%v: {values}, %i: {indices}, %m: {mask}",
        f"%b = ttg.local_alloc : () -> {buffer}\n"
        f"%0 = ttg.local_atomic_scatter_rmw {kind}, %b[%i], %v{', %m' * masked} "
        f"{{axis = {make.random.randrange(rank)} : i32}} : "
        f"({buffer}, {values}, {indices}{f', {mask}' * masked}) -> {values}{used}",
    )


def _atomic_poll(make: _Maker) -> Case:
    element = make.random.choice(["i32", "i64"])
    timeout = " timeout %t" * (make.random.random() < 0.7)
    used = "\n%1 = arith.extui %0 : i1 to i32\ntt.store %q, %1 : !tt.ptr<i32>"
    return make.module(
        f"%p: !tt.ptr<{element}>, %v: {element}, %t: i64, %q: !tt.ptr<i32>",
        f"%0 = tt.atomic_poll acquire, gpu, %p, %v{timeout} : !tt.ptr<{element}>, {element} -> i1"
        + used * (make.random.random() < 0.7),
    )


def _buffer_atomic(make: _Maker) -> Case:
    at = make.encoding()
    values, offsets = make.tensor(at, "i32"), make.tensor(at, "i32")
    if make.random.random() < 0.5:
        body = f"%0 = amdg.buffer_atomic_rmw add, acq_rel, gpu, %v, %p[%o] : {values}"
    else:
        body = f"%0 = amdg.buffer_atomic_cas acq_rel, gpu, %v, %v, %p[%o] : {values}"
    pointers = make.tensor(at, "!tt.ptr<i32>")
    used = f"\ntt.store %q, %0 : {pointers}" * (make.random.random() < 0.7)
    arguments = f"%p: !tt.ptr<i32>, %v: {values}, %o: {offsets}, %q: {pointers}"
    return make.module(arguments, body + used)


def _buffer_atomic_of_3_9(make: _Maker) -> Case:
    made = _buffer_atomic(make)
    return Case(made.target, made.text.replace("[%o] : ", "[%o] : !tt.ptr<i32> -> "))


def _forced_shuffle(make: _Maker) -> Case:
    make.warps = 1
    source, target = make.tensor(make.encoding()), make.tensor(make.encoding())
    return make.module(
        f"%x: {source}",
        f"%0 = ttg.convert_layout %x {{force_warp_shuffle}} : {source} -> {target}",
    )


def _tensor_map(make: _Maker) -> Case:
    return make.module(
        "%p: !tt.ptr<i8>, %n: i32",
        "ttng.tensormap_create %p, %p, [%n], [%n], [], [%n] {elem_type = 3 : i32, "
        "fill_mode = 1 : i32, interleave_layout = 0 : i32, swizzle_mode = 2 : i32} : "
        "(!tt.ptr<i8>, !tt.ptr<i8>, i32, i32, i32) -> ()",
    )


def _captured_descriptors(make: _Maker) -> Case:
    return _captures(make, ("!tt.tensordesc<64x64xf16>", "!tt.tensordesc<8x8x8x16x16xf16>"))


def _captures(make: _Maker, more: tuple[str, ...] = ()) -> Case:
    """A ``ttg.warp_specialize``, whose function has a byte for each warp of its partitions."""
    source = make.random
    make.warps = 4  # Triton takes multiples of 4.
    plain = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    choices = (
        *("i1", "i8", "i32", "i64", "f16", "f32", "!tt.ptr<f32>"),
        f"!ttg.memdesc<16x16xf32, {plain}, #ttg.shared_memory, mutable>",
        *more,
    )
    types = [source.choice(choices) for _ in range(source.randint(1, 5))]
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    later = f"consan.extra_capture_bytes = {8 * source.randint(1, 5)} : i32, "
    partitions = []
    for number in range(source.randint(1, 3)):
        inner = ", ".join(f"%b{number}_{i}: {type_}" for i, type_ in enumerate(types))
        warps = source.choice([1, 2, 4])
        partitions.append(f"partition{number}({inner}) num_warps({warps}) {{\nttg.warp_return\n}}")
    joined = "\n".join(partitions)
    starts = ", ".join(str(4 * (i + 1)) for i in range(len(partitions)))
    return make.module(
        ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(types)),
        f"ttg.warp_specialize({names}) attributes "
        f"{{{later * (source.random() < 0.3)}warpGroupStartIds = array<i32: {starts}>}}\n"
        f"default {{\nttg.warp_yield\n}}\n{joined} : ({', '.join(types)}) -> ()",
    )


_MAKERS = {
    "gsan_atomic": _gsan_atomic,
    "local_atomic": _local_atomic,
    "atomic_poll": _atomic_poll,
    "buffer_atomic": _buffer_atomic,
    "buffer_atomic_3.9": _buffer_atomic_of_3_9,
    "forced_shuffle": _forced_shuffle,
    "tensor_map": _tensor_map,
    "captures": _captures,
    "captured_descriptors": _captured_descriptors,
    "convert": _convert,
    "reduce": _reduce,
    "scan": _scan,
    "gather": _gather,
    "atomic": _atomic,
    "histogram": _histogram,
}


def case(kind: str, seed: int, *, ctas: int = 1) -> Case:
    """A module.

    Args:
        kind: One of :data:`KINDS` and :data:`SOME_KINDS`.
        seed: Which one.
        ctas: CTAs in a cluster.
    """
    vendor = "hip" if kind.startswith("buffer_atomic") else ""
    return _MAKERS[kind](_Maker(f"{kind} {seed} {ctas}", ctas, vendor))
