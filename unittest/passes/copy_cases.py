"""Generated asynchronous copies: shapes, elements, encodings, masks, paddings and what is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random

from triton_ext.ir.encodings import PaddedSharedEncoding, SharedLinearEncoding

__all__ = ["BITS", "CopyCase", "compiles_only_on_3_6", "draw", "in_a_function", "over_ctas"]

_POINTERS = "%p: tensor<{shape}x!tt.ptr<{element}>, #b> {{{pointer}}}"
_BY_POINTERS = """\
%t = ttg.async_copy_global_to_local %p, %m{masked}{attribute} : \
tensor<{shape}x!tt.ptr<{element}>, #b> -> <{shape}x{element}, #s, #smem, mutable>"""
_OFFSETS = """\
%q: !tt.ptr<{element}> {{tt.divisibility = {base} : i32}}, \
%p: tensor<{shape}xi32, #b> {{{pointer}}}"""
_BY_OFFSETS = """\
%t = amdg.buffer_load_to_local %q[%p]{masked} into %m{attribute} : \
{base_type}[tensor<{shape}xi32, #b>] {other} -> <{shape}x{element}, #s, #smem, mutable>"""

BITS = {"i8": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "f32": 32, "i64": 64}

_MODULE = """\
#b = {encoding}
#s = {shared}
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = {ctas} : i32, "ttg.num-warps" = {module_warps} : i32, \
"ttg.threads-per-warp" = {lanes} : i32, ttg.target = "{target}"}} {{
  tt.func public @f({address}, \
%k: tensor<{shape}xi1, #b> {{{constancy}}}, %o: tensor<{shape}x{element}, #b>){own} {{
    %m = ttg.local_alloc : () -> !ttg.memdesc<{shape}x{element}, #s, #smem, mutable>
    {copy}
    %g = ttg.async_commit_group tokens %t
    tt.return
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCase:
    """One copy.

    Attributes:
        target: ``"cuda:90"``.
        warps: That run the copy.
        shape: Sizes.
        element: Type of the elements.
        encoding: Of the pointers.
        shared: Of the buffer.
        contiguity: Hint of the pointers per dimension; empty without one.
        divisibility: The same, in bytes.
        constancy: Hint of the mask; empty for one of which nothing is known; ``None`` without mask.
        other: Whether there is a value for what is masked out.
        hint: The attribute ``contiguity``.
        base: Alignment in bytes of the pointer that offsets are from (AMD); 0 for a copy by
            pointers, of which ``divisibility`` is in bytes and not in elements.
        ctas: CTAs of a cluster.
        module_warps: Warps of the module where the function is one that a partition calls; else 0.
    """

    target: str
    warps: int = 4
    shape: tuple[int, ...]
    element: str
    encoding: str
    shared: str
    contiguity: tuple[int, ...] = ()
    divisibility: tuple[int, ...] = ()
    constancy: tuple[int, ...] | None = None
    other: bool = False
    hint: int = 1
    base: int = 0
    ctas: int = 1
    module_warps: int = 0

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return BITS[self.element]

    @property
    def lanes(self) -> int:
        """Threads of a warp."""
        return lanes_of(self.target)

    @property
    def text(self) -> str:
        """The module."""
        is_masked, by_offsets = self.constancy is not None, bool(self.base)
        masked = (" mask = %k" if by_offsets else " mask %k") if is_masked else ""
        if self.other and is_masked:
            masked += " other = %o" if by_offsets else " other %o"
        names = {
            "shape": "x".join(map(str, self.shape)),
            "element": self.element,
            # Triton wants all three of them or none.
            "pointer": _hints(self.contiguity, self.divisibility, (1,) * len(self.contiguity)),
            "masked": masked,
            "attribute": f" {{contiguity = {self.hint} : i32}}" if self.hint > 1 else "",
            "base": self.base,
            "base_type": _base_type(self.element),
            "other": "tensor<{shape}x{element}, #b>" if self.other and is_masked else "",
        }
        names["other"] = names["other"].format(**names)
        return _MODULE.format(
            encoding=self.encoding,
            shared=self.shared,
            ctas=self.ctas,
            module_warps=self.module_warps or self.warps,
            own=f' attributes {{noinline = true, "ttg.num-warps" = {self.warps} : i32}}'
            if self.module_warps
            else "",
            lanes=self.lanes,
            target=self.target,
            address=(_OFFSETS if by_offsets else _POINTERS).format(**names),
            copy=(_BY_OFFSETS if by_offsets else _BY_POINTERS).format(**names),
            constancy=_hints(*((1,) * len(self.shape),) * 2, self.constancy)
            if self.constancy
            else "",
            shape=names["shape"],
            element=self.element,
        )


def _base_type(element: str) -> str:
    """How the installed Triton prints the base pointer of a buffer copy."""
    from triton_ext import host

    return f"!tt.ptr<{element}>" if host.detect().release >= (3, 9) else f"<{element}>"


def lanes_of(target: str) -> int:
    """Threads of a warp of a target."""
    return 64 if target.startswith("hip:gfx9") else 32


def _hints(*numbers: Sequence[int]) -> str:
    names = ("contiguity", "divisibility", "constancy")
    return ", ".join(
        f"tt.{name} = dense<{list(each)}> : tensor<{len(each)}xi32>"
        for name, each in zip(names, numbers, strict=True)
        if each
    )


def _split(random: Random, number: int, parts: int) -> list[int]:
    """A power of two as a product."""
    found = [1] * parts
    while number > 1:
        found[random.randrange(parts)] *= 2
        number //= 2
    return found


def blocked(tile: Sequence[int], lanes: Sequence[int], warps: Sequence[int], order) -> str:
    """The text of a blocked encoding."""
    return (
        f"#ttg.blocked<{{sizePerThread = {list(tile)}, threadsPerWarp = {list(lanes)}, "
        f"warpsPerCTA = {list(warps)}, order = {list(order)}}}>"
    )


def _walking(random: Random, shape, order, held, lanes, warps) -> str:
    """A blocked encoding as passes make them: lanes and warps walk through the dimensions."""
    tile = [held if dim == order[0] else 1 for dim in range(len(shape))]
    per_warp, per_cta, left_lanes, left_warps = [1] * len(shape), [1] * len(shape), lanes, warps
    for dim in order[:-1]:
        room = max(1, shape[dim] // tile[dim])
        per_warp[dim] = min(room, left_lanes)
        per_cta[dim] = min(max(1, room // per_warp[dim]), left_warps)
        left_lanes //= per_warp[dim]
        left_warps //= per_cta[dim]
    per_warp[order[-1]], per_cta[order[-1]] = left_lanes, left_warps
    return blocked(tile, per_warp, per_cta, order)


def _encoding(random: Random, shape, order, lanes, warps) -> str:
    rank = len(shape)
    held = random.choice((1, 1, 2, 4, 8, 16))
    kind = random.random()
    if kind < 0.6:
        return _walking(random, shape, order, held, lanes, warps)
    if kind < 0.8:
        tile = [random.choice((1, 1, 2, 4)) for _ in shape]
        tile[order[0]] = held
        return blocked(tile, _split(random, lanes, rank), _split(random, warps, rank), order)
    if kind < 0.9 and rank < 3:
        parent = [dim + 1 for dim in order] if random.random() < 0.5 else list(order)
        gone = 0 if parent[0] > 0 and min(parent) == 1 else rank
        parent.insert(random.randrange(rank + 1), gone)
        tile = [random.choice((1, 1, 4)) for _ in parent]
        text = blocked(
            tile, _split(random, lanes, rank + 1), _split(random, warps, rank + 1), parent
        )
        return f"#ttg.slice<{{dim = {gone}, parent = {text}}}>"
    bits = [
        [1 << bit if d == dim else 0 for d in range(rank)]
        for dim in order
        for bit in range(shape[dim].bit_length() - 1)
    ]
    if random.random() < 0.4:
        random.shuffle(bits)
    wanted = lanes.bit_length() - 1, warps.bit_length() - 1
    registers = max(random.choice((0, 1, 2)), len(bits) - sum(wanted))
    head, rest = bits[:registers], bits[registers:]
    lane = (rest + [[0] * rank] * wanted[0])[: wanted[0]]
    warp = (rest[wanted[0] :] + [[0] * rank] * wanted[1])[: wanted[1]]
    head += rest[sum(wanted) :]
    return f"#ttg.linear<{{register = {head}, lane = {lane}, warp = {warp}, block = []}}>"


def _shared(random: Random, shape, order, padded: bool) -> str:
    if padded and random.random() < 0.3:
        interval = random.choice((4, 8, 16, 32, 64, 128, 256, 512, 1024))
        pad = random.choice((4, 8, 16))
        return f"#ttg.padded_shared<[{interval}:+{pad}] {{order = {order}, shape = {list(shape)}}}>"
    vec, phases = 1, 1
    if len(shape) > 1 and random.random() < 0.5:
        vec, phases = random.choice((1, 2, 4, 8, 16)), random.choice((2, 4, 8))
    return (
        f"#ttg.swizzled_shared<{{vec = {vec}, perPhase = {random.choice((1, 2))}, "
        f"maxPhase = {phases}, order = {order}}}>"
    )


def draw(random: Random, target: str, *, by_offsets: bool = False) -> CopyCase:
    """A copy whose hints do not contradict each other.

    Args:
        random: Decides.
        target: ``"cuda:90"``, ``"hip:gfx950"``.
        by_offsets: Whether it is a buffer copy of AMD.
    """
    lanes, warps = lanes_of(target), random.choice((1, 2, 4, 4, 8))
    rank = random.choice((1, 1, 2, 2, 2, 3))
    small = random.random() < 0.6
    largest = lanes * warps // 2 if small else 4096
    total = 2
    while total < largest and (random.random() < 0.8 or not small):
        total *= 2
    shape = tuple(_split(random, total, rank))
    order = list(range(rank))
    random.shuffle(order)
    element = random.choice(list(BITS))
    buffer_order = order if random.random() < 0.8 else random.sample(order, rank)
    contiguity: tuple[int, ...] = ()
    divisibility: tuple[int, ...] = ()
    if random.random() < 0.75:
        dim = order[0] if random.random() < 0.8 else random.randrange(rank)
        run = min(random.choice((1, 2, 4, 8, 16, 64)), shape[dim])
        contiguity = tuple(run if d == dim else 1 for d in range(rank))
        least = BITS[element] // 8
        divisor = random.choice((least, 4, 8, 16, 16, 64)) if run > 1 else least
        divisibility = tuple(max(divisor, least) if d == dim else least for d in range(rank))
    constancy: tuple[int, ...] | None = None
    if random.random() < 0.4:
        constancy = ()
        if random.random() < 0.8:
            constancy = tuple(random.choice((1, 2, 4, 8, 16)) for _ in range(rank))
    return CopyCase(
        target=target,
        warps=warps,
        shape=shape,
        element=element,
        encoding=_encoding(random, shape, order, lanes, warps),
        shared=_shared(random, shape, buffer_order, target.startswith("hip")),
        contiguity=contiguity,
        divisibility=divisibility,
        constancy=constancy,
        other=random.random() < 0.3,
        hint=random.choice((1, 1, 1, 2, 4, 8, 16)),
        base=random.choice((1, 4, 16, 16, 64)) if by_offsets else 0,
    )


def in_a_function(case: CopyCase, module_warps: int) -> CopyCase:
    """A copy in a function that a partition calls: the warps are said there."""
    return replace(case, module_warps=module_warps)


def over_ctas(random: Random, case: CopyCase) -> CopyCase | None:
    """A copy of as much in each of two CTAs; ``None`` for a slice, whose parent is not drawn."""
    if not case.encoding.startswith(("#ttg.blocked", "#ttg.linear")):
        return None
    dim = random.randrange(len(case.shape))
    unit = [int(d == dim) for d in range(len(case.shape))]
    step = [case.shape[dim] * x for x in unit]
    shape = tuple(size * (1 + x) for size, x in zip(case.shape, unit, strict=True))
    cga = f", CGALayout = [{unit}]}}>"
    encoding = case.encoding.replace("block = []", f"block = [{step}]")
    if case.encoding.startswith("#ttg.blocked"):
        encoding = case.encoding.removesuffix("}>") + cga
    order = [int(x) for x in re.findall(r"\d+", case.shared.partition("order = ")[2])]
    order = order[: len(shape)]
    shared = case.shared.removesuffix("}>") + cga
    identity = PaddedSharedEncoding.with_identity_for(((4, 4),), shape, order, (tuple(unit),))
    if "padded" in case.shared:
        pairs = re.findall(r"(\d+):\+(\d+)", case.shared)
        shared = replace(
            identity, interval_padding_pairs=tuple((int(a), int(b)) for a, b in pairs)
        ).print()
    elif case.target.startswith("cuda") and "maxPhase = 1," in case.shared:
        shared = SharedLinearEncoding(identity.offset_bases, identity.cga_layout).print()
    return replace(case, ctas=2, shape=shape, encoding=encoding, shared=shared)


def compiles_only_on_3_6(case: CopyCase) -> bool:
    """Whether 3.6 may compile a copy for gfx942 or gfx950 that later releases refuse.

    The lanes of a wave write 64 vectors of 4 bytes and more, at most of what a thread holds, in one
    run: nothing else may lie there, and no padding.
    """
    if not case.target.startswith("hip:gfx9"):
        return False
    interval = re.search(r"padded_shared<\[(\d+):", case.shared)
    room = min(prod(case.shape), int(interval[1]) if interval is not None else 1 << 20)
    held = re.search(r"sizePerThread = \[([\d, ]+)\]", case.encoding)
    widest = prod(int(size) for size in held[1].split(",")) * case.bits if held is not None else 128
    return room * case.bits < 64 * max(32, min(128, widest))
