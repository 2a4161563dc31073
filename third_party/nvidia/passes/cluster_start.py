"""The start pixel of each CTA where a cluster shares the pixels of an im2col load.

Triton's lowering adds the CTA's first pixel to the w coordinate, as if the pixels of a block were
columns; that is right for one row only.  Here every CTA's own start is derived and that number
taken off w again (docs/adr/0006).
"""

from __future__ import annotations

import re

from triton_ext.errors import PassError
from triton_ext.ir import Builder, Location, Value
from triton_ext.passes import error_at

from ..dialect.cluster import CTA_RANK_ASM, Walk, advance, first_pixel
from ..dialect.ttng import TmaLoad

__all__ = ["start_of_cta"]


def start_of_cta(
    load: TmaLoad,
    pixel: tuple[Value, ...],
    walk: tuple[Value, ...],
    bases: list[list[int]],
    builder: Builder,
) -> tuple[Value, ...]:
    """Returns the start pixel to give to the load, which differs from CTA to CTA.

    Args:
        load: A load whose pixels are split.
        pixel: Start of the whole block, (n, [d, [h,]] w).
        walk: Sizes, strides and paddings in front, each ([d, [h,]] w); empty where unknown.
        bases: How the CTAs cover the block (``ttng.cga_bases``).
        builder: Where to put the arithmetic.

    Raises:
        PassError: The walk is unknown.
    """
    if not walk:
        raise error_at(
            load.op,
            "num_ctas > 1 splits the pixels of this im2col load over CTAs, and each CTA would "
            "start at the wrong pixel: pass walk=(output_size, stride, padding) to load_im2col, "
            "or use num_ctas=1",
        )
    spatial_rank = len(pixel) - 1
    size, stride, front = (walk[i * spatial_rank : (i + 1) * spatial_rank] for i in range(3))
    arithmetic = _Emitted(builder, load.op.loc)
    rank = arithmetic.emit(
        "tt.elementwise_inline_asm",
        f'"{CTA_RANK_ASM}" {{constraints = "=r", packed_element = 1 : i32, pure = true}} -> i32',
    )
    first = first_pixel(arithmetic, rank, bases, _block_pixels(load))
    *outer, w = advance(arithmetic, pixel, Walk(size, stride, front), first)
    return (*outer, arithmetic.sub(w, first))


def _block_pixels(load: TmaLoad) -> int:
    match = re.search(r"memdesc<(\d+)x", load.result.type)
    if match is None:
        raise _unknown_type(load)
    return int(match[1])


def _unknown_type(load: TmaLoad) -> PassError:
    return error_at(load.op, f"cannot read the block shape from {load.result.type}")


class _Emitted:
    """Arithmetic by operations of a module."""

    def __init__(self, builder: Builder, loc: Location | None) -> None:
        self._builder = builder
        self._loc = loc

    def emit(self, name: str, rest: str, *operands: Value) -> Value:
        made = self._builder.create(
            name, operands, ["i32"], text=f"{{results}} = {name} {rest}", loc=self._loc
        )
        return made.results[0]

    def constant(self, value: int) -> Value:
        return self.emit("arith.constant", f"{value} : i32")

    def add(self, a: Value, b: Value) -> Value:
        return self.emit("arith.addi", "{0}, {1} : i32", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.emit("arith.subi", "{0}, {1} : i32", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.emit("arith.muli", "{0}, {1} : i32", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.emit("arith.divsi", "{0}, {1} : i32", a, b)

    def rem(self, a: Value, b: Value) -> Value:
        return self.emit("arith.remsi", "{0}, {1} : i32", a, b)
