"""``triton-ext-lower-im2col``: markers and TMA loads become im2col copies.

Before (two markers, a tiled copy, a tiled descriptor)::

    %px = tt.extern_elementwise %n, %h, %w {.. symbol = "triton_ext.im2col.pixel"}
    %ch = tt.extern_elementwise %c, %r, %s {.. symbol = "triton_ext.im2col.channel"}
    ttng.async_tma_copy_global_to_local %x[%px, %ch] %buf, %bar, %pred : !tt.tensordesc<..>, ..

After::

    %r16 = arith.trunci %r : i32 to i16
    %s16 = arith.trunci %s : i32 to i16
    ttng.async_tma_copy_global_to_local %x[%n, %h, %w, %c] offsets = [%r16, %s16] %buf, %bar, %pred
        : !ttng.tensordesc_im2col<..>, ..

Safe direction: a module that cannot be lowered exactly is an error; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Builder, Module, Operation
from triton_ext.passes import Pass, PassContext

from ..dialect.ttng import TmaLoad, cga_bases, im2col_descriptor_type
from .descriptor_flow import descriptor_values
from .marker_flow import MarkerFlow
from .marker_tuples import MarkerTuples, position_of

__all__ = ["LowerIm2Col"]


@dataclass(frozen=True, slots=True)
class LowerIm2Col(Pass):
    """Replaces markers and tiled TMA loads by im2col copies."""

    name: ClassVar[str] = "triton-ext-lower-im2col"

    def run(self, module: Module, context: PassContext | None = None) -> None:
        """Lowers every marker of ``module``.

        Raises:
            PassError: See :class:`MarkerFlow`; or a descriptor is read both ways, is not a kernel
                argument, its pixels are split over the CTAs of a cluster without a walk, or a
                first channel is a constant that is not at a multiple of 16 bytes.
        """
        flow = MarkerFlow.of(module)
        if not flow.markers:
            return
        descriptors = descriptor_values(flow)
        tuples = MarkerTuples(flow.kinds)
        for value in list(flow.kinds):
            tuples.of(value)
        for load in flow.loads:
            _replace_load(load, tuples, cga_bases(load.result.type, module))
        for desc in descriptors:
            desc.set_type(im2col_descriptor_type(desc.type))
        for marker in reversed(flow.markers):
            marker.erase()
        if context is not None:
            context.count("loads-lowered", len(flow.loads))


def _replace_load(load: TmaLoad, tuples: MarkerTuples, bases: list[list[int]]) -> None:
    builder = Builder.before(load.op)
    position = position_of(load, tuples, bases, builder)
    offsets = position.offsets
    spatial_rank = len(offsets)
    coord = {f"coord{i}": value for i, value in enumerate((*position.pixel, position.channel))}
    taps = {f"tap{i}": value for i, value in enumerate(offsets)}
    # One text for all of it: each text that is inserted costs a run of the parser.
    truncations = [f"%offset{i} = arith.trunci %tap{i} : i32 to i16" for i in range(spatial_rank)]
    copy = (
        f"{load.op.name} %desc[{', '.join(f'%{name}' for name in coord)}] "
        f"offsets = [{', '.join(f'%offset{i}' for i in range(spatial_rank))}] "
        f"%result, %barrier, %pred{_attributes(load.op)} "
        f": {load.desc.type}, {load.barrier.type} -> {load.result.type}"
    )
    named = {
        "desc": load.desc,
        "result": load.result,
        "barrier": load.barrier,
        "pred": load.pred,
    }
    builder.parse("\n".join([*truncations, copy]), {**named, **coord, **taps}, loc=load.op.loc)
    load.op.erase()


def _attributes(op: Operation) -> str:
    """The attribute dictionary as printed, with a space in front; empty without attributes."""
    entries = (k if v == "unit" else f"{k} = {v}" for k, v in op.attributes.items())
    return " {" + ", ".join(entries) + "}" if op.attributes else ""
