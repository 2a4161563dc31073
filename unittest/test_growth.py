"""Time grows in proportion to what is read: four times the input takes four times the time.

Each case once took a time of its size squared.
"""

from __future__ import annotations

import gc
import random
import time

import pytest
from triton_ext.analysis.allocation import Item, place
from triton_ext.analysis.liveness import LiveRange
from triton_ext.ir import parse
from triton_ext.tools.ir_text import split


def module(body):
    return f"module {{\n  tt.func @f(%c: i1) {{\n{body}    tt.return\n  }}\n}}\n"


def read(text):
    def run():
        module = parse(text)
        module.verify()
        assert str(module) == text
        for op in module.walk():
            if op.loc is not None:
                op.loc.resolve()

    return run


def string(size):
    return read(module(f'    "t.x"() {{a = "{"a" * size}"}} : () -> ()\n'))


def blocks(count):
    jumps = "".join(
        f"    cf.cond_br %c, ^bb{n}, ^bb{n + 1}\n  ^bb{n}:\n" for n in range(1, count + 1)
    )
    return read(module(f"{jumps}    cf.br ^bb{count + 1}\n  ^bb{count + 1}:\n"))


def locations(count):
    """Locations of calls, each in the one before."""
    aliases = '#loc = loc("a.py":1:1)\n#loc1 = loc(callsite(#loc at #loc))\n'
    aliases += "".join(
        f"#loc{n} = loc(callsite(#loc{n - 1} at #loc))\n" for n in range(2, count + 1)
    )
    return read(f"{aliases}module {{\n}} loc(#loc{count})\n")


def parts(count):
    text = "tt.func @f()\n// -----\n" * count
    return lambda: split(text, "// -----")


def buffers(count):
    """Buffers with long lives, which are placed."""
    source = random.Random(count)
    items = []
    for _ in range(count):
        start = source.randrange(count)
        live = LiveRange(start, start + source.randrange(count // 2, count))
        items.append(Item(source.randrange(1, 30000), live, 16))
    return lambda: place(items)


def seconds(run):
    """CPU time of this process, the least of two runs: a busy machine does not count."""
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            begin = time.process_time()
            run()
            times.append(time.process_time() - begin)
    finally:
        gc.enable()
    return min(times)


@pytest.mark.parametrize(
    ("make", "size"),
    [(string, 2_000_000), (blocks, 2_000), (locations, 2_000), (parts, 60_000), (buffers, 1_600)],
)
def test_time_is_linear_in_the_size(make, size):
    small, large = seconds(make(size // 4)), seconds(make(size))
    assert large < 10 * small + 0.1, (small, large)
