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

The number of operands is part of the symbol, because LLVM IR has one type for each function.  So is
the number of pixels where the host cuts the block into several boxes, which it does at 256 rows:
one im2col copy has room for all of them.

Safe direction: a module that cannot be brought into this form is an error; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from triton_ext.ir import Builder, Module, Value
from triton_ext.markers import CHANNEL, LIBRARY, PIXEL, sized
from triton_ext.passes import Pass, PassContext, error_at

from ..dialect.ttng import TmaLoad, cga_bases, pixels_per_cta
from .descriptor_flow import descriptor_values
from .marker_flow import MarkerFlow
from .marker_tuples import MarkerTuples, position_of

__all__ = ["LocalizeIm2Col"]

# Rows of one tiled box (CUDA driver API, boxDim), and pixels of one im2col copy (pixelsPerColumn).
_MAX_TILED_ROWS: Final = 256
_MAX_PIXELS: Final = 1024


@dataclass(frozen=True, slots=True)
class LocalizeIm2Col(Pass):
    """Gives each im2col load markers of its own, right in front of it."""

    name: ClassVar[str] = "triton-ext-localize-im2col"

    def run(self, module: Module, context: PassContext | None = None) -> None:
        """Moves every marker of ``module`` to its loads.

        Raises:
            PassError: As for ``triton-ext-lower-im2col``; or a CTA has more pixels than one copy.
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
            _localize(load, tuples, bases, _pixels(load, module))
        for marker in reversed(flow.markers):
            marker.erase()
        if context is not None:
            context.count("loads-localized", len(flow.loads))


def _pixels(load: TmaLoad, module: Module) -> int:
    pixels = pixels_per_cta(load.result.type, module)
    if pixels is None:
        raise error_at(load.op, f"cannot read the block shape from {load.result.type}")
    if pixels > _MAX_PIXELS:
        raise error_at(
            load.op,
            f"this im2col load has {pixels} pixels per CTA, TMA has {_MAX_PIXELS} at most",
        )
    return pixels


def _localize(load: TmaLoad, tuples: MarkerTuples, bases: list[list[int]], pixels: int) -> None:
    builder = Builder.before(load.op)
    position = position_of(load, tuples, bases, builder)
    rows = pixels if pixels > _MAX_TILED_ROWS else 0
    load.op.set_operand(1, _marker(PIXEL, position.pixel, builder, rows))
    load.op.set_operand(2, _marker(CHANNEL, (position.channel, *position.offsets), builder))


def _marker(symbol: str, operands: tuple[Value, ...], builder: Builder, rows: int = 0) -> Value:
    slots = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    attributes = (
        f'libname = "{LIBRARY}", libpath = "", pure = true, '
        f'symbol = "{sized(symbol, len(operands), rows)}"'
    )
    made = builder.create(
        "tt.extern_elementwise",
        operands,
        ["i32"],
        text=f"{{results}} = tt.extern_elementwise {slots} {{{attributes}}} : "
        f"({', '.join(['i32'] * len(operands))}) -> i32",
    )
    return made.results[0]
