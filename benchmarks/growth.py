"""How time grows with the size of hostile input: four times the input, four times the time.

Part of the case ``ir``.  Each row is one thing that once took a time of its size squared.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Growth", "growths"]

_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """Times of one kind of input."""

    name: str  # what it is
    size: str  # how large the larger input is
    small_ms: float  # CPU time of the smaller one, a fourth of it
    large_ms: float  # CPU time of the larger one

    @property
    def factor(self) -> float:
        """How many times as long the larger one takes."""
        return self.large_ms / self.small_ms


def growths(rounds: int) -> list[Growth]:
    """Measures all of them.

    Args:
        rounds: Measurements of each; the fastest counts.
    """
    found = []
    for name, unit, large, make in _CASES:
        times = []
        for size in (large // _FACTOR, large):
            run = make(size)
            times.append(min(_cpu_ms(run) for _ in range(rounds)))
        found.append(Growth(name, f"{large} {unit}", *times))
    return found


def _cpu_ms(run: Callable[[], object]) -> float:
    # Collections come in steps, which would count once for one size and not for the other.
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        run()
        return (time.process_time() - start) * 1e3
    finally:
        gc.enable()


def _module(body: str) -> str:
    return f"module {{\n  tt.func @f(%c: i1) {{\n{body}    tt.return\n  }}\n}}\n"


def _read(text: str) -> Callable[[], object]:
    from triton_ext.ir import parse

    def run() -> None:
        module = parse(text)
        module.verify()
        assert str(module) == text
        for op in module.walk():
            if op.loc is not None:
                op.loc.resolve()

    return run


def _string(size: int) -> Callable[[], object]:
    return _read(_module(f'    "t.x"() {{a = "{"a" * size}"}} : () -> ()\n'))


def _blocks(count: int) -> Callable[[], object]:
    jumps = "".join(
        f"    cf.cond_br %c, ^bb{n}, ^bb{n + 1}\n  ^bb{n}:\n" for n in range(1, count + 1)
    )
    return _read(_module(f"{jumps}    cf.br ^bb{count + 1}\n  ^bb{count + 1}:\n"))


def _locations(count: int) -> Callable[[], object]:
    """Locations of calls, each in the one before."""
    aliases = '#loc = loc("a.py":1:1)\n#loc1 = loc(callsite(#loc at #loc))\n'
    aliases += "".join(
        f"#loc{n} = loc(callsite(#loc{n - 1} at #loc))\n" for n in range(2, count + 1)
    )
    return _read(f"{aliases}module {{\n}} loc(#loc{count})\n")


def _parts(count: int) -> Callable[[], object]:
    from triton_ext.tools.ir_text import split

    text = "tt.func @f()\n// -----\n" * count
    return lambda: split(text, "// -----")


def _buffers(count: int) -> Callable[[], object]:
    from triton_ext.analysis.allocation import Item, place
    from triton_ext.analysis.liveness import LiveRange

    source = random.Random(count)
    items = []
    for _ in range(count):
        start = source.randrange(count)
        live = LiveRange(start, start + source.randrange(count // 2, count))
        items.append(Item(source.randrange(1, 30000), live, 16))
    return lambda: place(items)


_CASES: tuple[tuple[str, str, int, Callable[[int], Callable[[], object]]], ...] = (
    ("one string, read and verified", "characters", 8_000_000, _string),
    ("blocks of one function", "blocks", 8_000, _blocks),
    ("nested locations of calls", "locations", 4_000, _locations),
    ("parts of a file", "parts", 200_000, _parts),
    ("buffers with long lives, placed", "buffers", 6_400, _buffers),
)
