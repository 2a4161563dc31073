"""Tells from a module's text whether a copy to shared memory may want another layout.

Reading a module takes milliseconds, and most kernels have nothing to gain.  This looks at the types
of the copies alone: two regular expressions over the text, and some arithmetic for each pair of
types.  A copy is a *candidate* if

1. it has fewer elements than there are threads, or
2. no instruction is as narrow as what a thread holds side by side, in registers and in the buffer,
   even if all that is asked of pointers and mask were proven.

Safe direction: a copy that is no candidate stays as it is; a module may be read in vain.
Not seen: pointers and masks of which less is proven than a thread holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

__all__ = ["Blocked", "PrintedCopy", "Swizzled", "any_candidate", "has_narrow_copies"]

Ints = tuple[int, ...]

#: ``cp.async`` copies 4 bytes at least (PTX ISA, cp.async).
_LEAST_BITS: Final = 32
_WIDEST_BITS: Final = 128

_ALIAS: Final = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_COPIES: Final = ("ttg.async_copy_global_to_local", "amdg.buffer_load_to_local")
# Types of a copy by pointers, and by offsets: `.. : tensor<..> -> <..>`, `.. : T[tensor<..>] ..`.
_TYPES: Final = re.compile(r"(?: : |\[)(tensor<.*?>)(?:\].*?)? -> <(.*?)>(?= loc\(|\s*\Z)")
_PARTITION: Final = re.compile(r"num_warps\((\d+)\)")
_DIGITS: Final = re.compile(r"\d+")
_NAME: Final = re.compile(r"#\w+\b(?!\.)")
_ELEMENTS: Final = re.compile(r"((?:\d+x)+)(?:b?f|i)(\d+)")
_ENCODING: Final = re.compile(r", (#.*)>\Z")
_SLICE: Final = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>\Z")
_BLOCKED: Final = re.compile(
    r"#ttg\.blocked<\{sizePerThread = \[([\d, ]+)\], threadsPerWarp = \[([\d, ]+)\], "
    r"warpsPerCTA = \[[\d, ]+\], order = \[([\d, ]+)\]"
)
_SWIZZLED: Final = re.compile(
    r"#ttg\.swizzled_shared<\{vec = (\d+), perPhase = \d+, maxPhase = (\d+), order = \[([\d, ]+)\]"
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A blocked encoding, or a slice of one; per dimension of the tensor.

    Attributes:
        size_per_thread: Tile of a thread.
        threads_per_warp: Threads of a warp; empty for a slice, whose lanes may repeat others.
        order: Dimensions, the fastest varying first.
    """

    size_per_thread: Ints
    threads_per_warp: Ints
    order: Ints


@dataclass(frozen=True, slots=True)
class Swizzled:
    """A swizzled encoding of a buffer.

    Attributes:
        run: Elements that stay side by side.
        reach: Elements within which they are swizzled; 1 without a swizzle.
        order: Dimensions, the fastest varying first.
    """

    run: int
    reach: int
    order: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCopy:
    """The types of a copy.

    Attributes:
        shape: Sizes.
        bits: Bits of an element.
        blocked: Encoding of the pointers; ``None`` for one of another kind.
        swizzled: Encoding of the buffer; ``None`` for one of another kind.
        tensor: Type of the pointers, as text without aliases.
        buffer: Type of the buffer, as text without aliases.
        threads: Threads of a warp.
    """

    shape: Ints
    bits: int
    blocked: Blocked | None
    swizzled: Swizzled | None
    tensor: str
    buffer: str
    threads: int

    @property
    def widest(self) -> int:
        """Elements of the widest instruction."""
        return max(1, _WIDEST_BITS // self.bits)

    def run(self) -> int | None:
        """Elements of a thread side by side on both sides; ``None`` if the text does not tell."""
        if self.blocked is None or self.swizzled is None:
            return None
        dim = self.blocked.order[0]
        held = min(self.blocked.size_per_thread[dim], self.shape[dim])
        if self.swizzled.order[0] != dim:
            # Registers may move along the buffer in another dimension of their tile.
            return 1 if prod(self.blocked.size_per_thread) == held else None
        return min(held, self.swizzled.run)


def any_candidate(text: str, is_refused: Callable[[PrintedCopy], bool]) -> bool:
    """Returns whether a module has a candidate.

    Args:
        text: The module as Triton prints it.
        is_refused: Whether no layout-independent knowledge makes a copy compile as it is.
    """
    found = dict.fromkeys(_types_of_copies(text))
    if not found:
        return False
    threads = _number(text, "threads-per-warp", 32)
    warps = max(_number(text, "num-warps"), *map(int, _PARTITION.findall(text)), 1)
    most = warps * threads * _number(text, "num-ctas")
    aliases: dict[str, str] = {}
    for name, meaning in _ALIAS.findall(text, 0, text.find("\nmodule") + 1):
        aliases[name] = _spelled_out(meaning, aliases)  # may name those above it
    return any(
        prod(copy.shape) < most or is_refused(copy) for copy in _copies(found, aliases, threads)
    )


def _types_of_copies(text: str) -> Iterator[tuple[str, str]]:
    """The types of pointers and buffer of each copy, as they are printed."""
    for name in _COPIES:
        start = text.find(name)
        while start >= 0:
            end = text.find("\n", start)
            end = end if end >= 0 else len(text)
            found = _TYPES.search(text, start, end)
            if found is not None:
                yield found[1], found[2]
            start = text.find(name, end)


def _number(text: str, name: str, default: int = 1) -> int:
    """A number of the module's attributes, or a default where it is not there."""
    start = text.find(f'"ttg.{name}" = ')
    found = _DIGITS.search(text, start) if start >= 0 else None
    return int(found[0]) if found is not None else default


def has_narrow_copies(text: str) -> bool:
    """Returns whether a module for NVIDIA has a candidate."""
    return any_candidate(text, _is_refused)


def _is_refused(copy: PrintedCopy) -> bool:
    if copy.bits >= _LEAST_BITS:
        return False
    run = copy.run()
    if run is None:
        run = _run_of(copy.tensor, copy.buffer)
    return min(run, copy.widest) * copy.bits < _LEAST_BITS


@lru_cache(maxsize=256)
def _run_of(tensor: str, buffer: str) -> int:
    """The same of encodings of any kind; 0 for what is not known here."""
    # Imported here, because a kernel without such copies should not pay for it.
    from triton_ext.passes.async_copy import run_of

    return run_of(tensor, buffer)


def _copies(
    found: dict[tuple[str, str], None], aliases: dict[str, str], threads: int
) -> Iterator[PrintedCopy]:
    for tensor, buffer in found:
        elements = _ELEMENTS.match(buffer)
        if elements is None:
            continue
        tensor, buffer = _spelled_out(tensor, aliases), _spelled_out(buffer, aliases)
        shared = None if "partitioned_shared" in buffer else _SWIZZLED.search(buffer)
        encoding = _ENCODING.search(tensor)
        yield PrintedCopy(
            shape=tuple(map(int, elements[1].strip("x").split("x"))),
            bits=int(elements[2]),
            blocked=_blocked(encoding[1]) if encoding is not None else None,
            swizzled=_swizzled(shared) if shared is not None else None,
            tensor=tensor,
            buffer=f"!ttg.memdesc<{buffer}>",
            threads=threads,
        )


def _spelled_out(text: str, aliases: dict[str, str]) -> str:
    return _NAME.sub(lambda name: aliases.get(name[0], name[0]), text)


def _blocked(text: str) -> Blocked | None:
    dims: list[int] = []
    while (inner := _SLICE.match(text)) is not None:
        dims.insert(0, int(inner[1]))
        text = inner[2]
    found = _BLOCKED.match(text)
    if found is None:
        return None
    size, threads, order = (list(_ints(found[i])) for i in (1, 2, 3))
    for dim in dims:
        del size[dim]
        order = [d - (d > dim) for d in order if d != dim]
    return Blocked(tuple(size), () if dims else tuple(threads), tuple(order))


def _swizzled(found: re.Match[str]) -> Swizzled:
    vec, phases = int(found[1]), int(found[2])
    is_plain = phases == 1
    return Swizzled(1 << 20 if is_plain else vec, 1 if is_plain else vec * phases, _ints(found[3]))


def _ints(text: str) -> Ints:
    return tuple(map(int, text.split(",")))
