"""``triton-ext-localize-im2col``: each im2col load gets markers of its own, right in front of it.

For hosts that cannot lower an im2col copy (3.6, 3.7): there the copy stays tiled as far as LLVM IR,
and the markers reach it as calls.  Whatever way a marker took to its load is resolved here, where
structure is still there to see, so that LLVM finds calls and copy side by side.

Before::

    %px = tt.extern_elementwise %n, %h, %w {.. symbol = "triton_ext.im2col.pixel"}
    %ch = tt.extern_elementwise %c, %r, %s {.. symbol = "triton_ext.im2col.channel"}
    scf.for .. { ttng.async_tma_copy_global_to_local %x[%px, %ch] .. }

After::

    scf.for .. {
      %px = tt.extern_elementwise %n, %h, %w {.. symbol = "triton_ext.im2col.pixel.3"}
      %ch = tt.extern_elementwise %c, %r, %s {.. symbol = "triton_ext.im2col.channel.3"}
      ttng.async_tma_copy_global_to_local %x[%px, %ch] ..
    }

The number of operands is part of the symbol, because LLVM IR has one type for each function.

Safe direction: a module that cannot be brought into this form is an error; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from triton_ext.ir import Builder, Module, Value
from triton_ext.ir.types import MemDescType, parse_type
from triton_ext.markers import CHANNEL, LIBRARY, PIXEL, sized
from triton_ext.passes import Pass, PassContext, error_at

from ..dialect.ttng import TmaLoad, cga_bases
from .descriptor_flow import descriptor_values
from .marker_flow import MarkerFlow
from .marker_tuples import MarkerTuples, position_of

__all__ = ["LocalizeIm2Col"]

# Pixels of one tiled box (CUDA driver API, boxDim): a block of more is cut into several boxes, each
# at its own row, which is no im2col position.
_MAX_TILED_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class LocalizeIm2Col(Pass):
    """Gives each im2col load markers of its own, right in front of it."""

    name: ClassVar[str] = "triton-ext-localize-im2col"

    def run(self, module: Module, context: PassContext | None = None) -> None:
        """Moves every marker of ``module`` to its loads.

        Raises:
            PassError: As for ``triton-ext-lower-im2col``; or a block has more than 256 pixels.
        """
        flow = MarkerFlow.of(module)
        if not flow.markers:
            return
        descriptor_values(flow)  # for what it refuses
        tuples = MarkerTuples(flow.kinds)
        for value in list(flow.kinds):
            tuples.of(value)
        for load in flow.loads:
            bases = cga_bases(load.result.type, module)
            _check_block(load, bases, module)
            _localize(load, tuples, bases)
        for marker in reversed(flow.markers):
            marker.erase()
        if context is not None:
            context.count("loads-localized", len(flow.loads))


def _check_block(load: TmaLoad, bases: list[list[int]], module: Module) -> None:
    type_ = parse_type(load.result.type, module.aliases)
    pixels = type_.shape[0] if isinstance(type_, MemDescType) and type_.shape else None
    if pixels is None:
        raise error_at(load.op, f"cannot read the block shape from {load.result.type}")
    for basis in bases:
        pixels = pixels // 2 if basis[0] else pixels
    if pixels > _MAX_TILED_ROWS:
        raise error_at(
            load.op,
            f"this im2col load has {pixels} pixels per CTA, this Triton cuts it into copies of "
            f"{_MAX_TILED_ROWS} whose start is not known: use blocks of at most {_MAX_TILED_ROWS} "
            "pixels, or triton 3.8 or newer",
        )


def _localize(load: TmaLoad, tuples: MarkerTuples, bases: list[list[int]]) -> None:
    builder = Builder.before(load.op)
    position = position_of(load, tuples, bases, builder)
    load.op.set_operand(1, _marker(PIXEL, position.pixel, builder))
    load.op.set_operand(2, _marker(CHANNEL, (position.channel, *position.offsets), builder))


def _marker(symbol: str, operands: tuple[Value, ...], builder: Builder) -> Value:
    slots = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    attributes = (
        f'libname = "{LIBRARY}", libpath = "", pure = true, '
        f'symbol = "{sized(symbol, len(operands))}"'
    )
    made = builder.create(
        "tt.extern_elementwise",
        operands,
        ["i32"],
        text=f"{{results}} = tt.extern_elementwise {slots} {{{attributes}}} : "
        f"({', '.join(['i32'] * len(operands))}) -> i32",
    )
    return made.results[0]
