"""Accesses that need no barrier between them: atomic operations in both forms of text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from triton_ext.backends.nvidia.analysis.barriers import needs_no_barrier
from triton_ext.ir import parse

#: The numbers of the generic form; floating-point sums and exchanges keep their order.
NUMBERS = {
    1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd", 6: "max", 7: "min", 8: "umax", 9: "umin",
    10: "exch",
}  # fmt: skip
ORDERED = ("fadd", "exch")


def atomics(*first_words, element="i32"):
    """The atomic operations of a kernel, by a kind of the custom form or a number of the other."""
    types = (
        f"(!ttg.memdesc<16x32x{element}, #sh, #smem, mutable>, tensor<16x32xi32, #row>, "
        f"tensor<16x32x{element}, #row>) -> tensor<16x32x{element}, #row>"
    )
    name, lines = "ttg.local_atomic_scatter_rmw", []
    for number, word in enumerate(first_words):
        if isinstance(word, int):
            numbers = f"<{{atomic_rmw_op = {word} : i32, axis = 0 : i32}}>"
            lines.append(f'  %r{number} = "{name}"(%a, %x, %v) {numbers} : {types}')
        else:
            lines.append(f"  %r{number} = {name} {word}, %a[%x], %v {{axis = 0 : i32}} : {types}")
    text = "\n".join(
        [
            f"tt.func @f(%a: !ttg.memdesc<16x32x{element}, #sh, #smem, mutable>, "
            f"%x: tensor<16x32xi32, #row>, %v: tensor<16x32x{element}, #row>) {{",
            *lines,
            "  tt.return",
            "}",
        ]
    )
    found = [op for op in parse(text).walk() if op.name == name]
    assert len(found) == len(first_words)
    return found


def swaps(before, after):
    return needs_no_barrier(SimpleNamespace(before=before, after=after))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_its_kind(number):
    kind = NUMBERS[number]
    by_number, by_kind = atomics(number, kind)
    assert swaps(by_number, by_kind) == swaps(by_kind, by_number) == (kind not in ORDERED)
    for other in set(NUMBERS.values()) - {kind}:
        assert not swaps(*atomics(number, other))


def test_sums_of_floats_keep_their_order():
    assert not swaps(*atomics("add", "add", element="f32"))
