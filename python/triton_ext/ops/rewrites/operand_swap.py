"""Operand swap: wgrad with x and dy in each other's places, for few output channels.

With stride 1 and one group,

    dw[co, r, ci] = sum over output pixels p of dy[p, co] * x[p + r * dilation - padding, ci]
                  = sum over input pixels q of x[q, ci] * dy[q - r * dilation + padding, co]

The second sum is the gradient of the filter of another convolution: its input is dy, the gradient
of its output x, its filter turned round (r' = R - 1 - r), and its padding dilation * (R - 1) -
padding.  That is the convolution of dy that gives dx (``problem.as_forward``).  Its few input
channels are worth packing (``packing.py``).  The copy that unpacks its dw turns it and swaps its
channels.

Sums have the same products in another order, but for those with zeros: here dy is padded, not x.
So NaN or infinity in a pixel of x that a tap sees no output pixel from shows in that tap of dw as
well, and in dy not in the taps that see padding from there.

Not handled: strides, groups, padding beyond the reach of the filter, and an x that has to be
copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.core.refusals import Refusal, refused
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.wgrad import WGRAD, Operand, PackedWgradPlan
from triton_ext.ops.kernels.row_copy import CopyLauncher, RowCopy
from triton_ext.ops.rewrites.packing import RowPacking, packing_refusals
from triton_ext.ops.rewrites.partial_im2col import Rewrite, fastest_wgrad, with_unpacking

__all__ = [
    "OPERAND_SWAP",
    "SwappedConfig",
    "SwappedWgradPlan",
    "swap_refusals",
    "swapped_case",
    "turning_copy",
    "ways",
]

# x is read in place: its channels are whole units of 16 bytes of 16-bit numbers.
_CHANNEL_UNIT = ROW_BYTES // 2


@dataclass(frozen=True, slots=True)
class SwappedConfig:
    """A configuration of the operand swap.

    Attributes:
        config: How the gradient of the packed filter is computed, as in a ``PackedConfig``.
    """

    config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedWgradPlan(PackedWgradPlan):
    """A gradient of a filter as that of a packed one [Ci, S * C', ([T, ]R, )1], whose input is dy.

    Attributes:
        turning: Unpacks dw, turns it round and swaps its channels.
    """

    turning: CopyLauncher

    def _rows(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        rows = self._memory(x.device, out)
        packed = self.packed.run(self.copies.x(dy).movedim(-1, 1), x)
        self.turning.launch((packed.movedim(1, -1), rows))
        return rows


def swap_refusals(problem: ConvProblem) -> tuple[Refusal, ...]:
    """Returns why x and dy of a problem cannot be swapped, whatever its sizes and its padding."""
    found = []
    if set(problem.stride) != {1}:
        found.append(f"stride {problem.stride}: expected 1, dy has no pixels between its own")
    if problem.in_channels % _CHANNEL_UNIT:
        found.append(f"{problem.in_channels} input channels: expected a multiple of 8")
    return (*refused(*found), *packing_refusals(problem))


def swapped_case(case: Case) -> Case | None:
    """Returns the case with x and dy swapped; ``None`` where they cannot be."""
    problem = case.problem
    if swap_refusals(problem) or not problem.batch:
        return None
    swapped = as_forward(problem)
    x = Operand.make(problem.x_shape, case.strides_of_x, case.dtype.itemsize, as_matrix=True)
    # x is the large one: a copy of it costs more than is gained.
    if swapped is None or min(min(sides) for sides in swapped.padding) < 0 or x.is_copied:
        return None
    return replace(
        case,
        problem=swapped,
        out_dtype=case.output_dtype,
        x_strides=case.strides_of_dy,
        dy_strides=case.strides_of_x,
    )


def ways(case: Case) -> tuple[RowPacking, ...]:
    """Returns how rows of dy can be packed; none where x and dy cannot be swapped."""
    swapped = swapped_case(case)
    if swapped is None:
        return ()
    size = case.dtype.itemsize
    every = RowPacking.ways(swapped.problem, swapped.strides_of_x, size)
    # Gradients begin at any address, and TMA reads from aligned ones: dy is copied.
    return tuple(way for way in every if way.is_copied)


def turning_copy(way: RowPacking, element_bytes: int) -> RowCopy:
    """Returns the copy of the gradient of a packed filter to dw.

    Args:
        way: How rows of dy are packed.
        element_bytes: Size of an element of dw.
    """
    swapped = way.problem
    ci, co, taps = swapped.out_channels, swapped.in_channels, swapped.filter_size
    # Strides of the packed dw [Ci, *rows, channels]: from filter to filter, from tap to tap.
    of_filter, *of_rows, _ = packed_strides(way.weight_shape)
    # Planes have a dimension of 1 in front; a pixel's channels hold a column.
    of_walked = of_rows[1:] if way.planes else of_rows[: way.walked]
    of_taps = (*of_walked, *((co,) if way.columns else ()), way.channels)
    ones = (1,) * (3 - len(taps))
    size = (co, *ones, *taps)
    return RowCopy(
        size=size,
        strides=(1, *(0 for _ in ones), *(-step for step in of_taps), of_filter),
        start=sum((count - 1) * step for count, step in zip(taps, of_taps, strict=True)),
        target_h=size[2],
        target_elements=size[3] * ci,
        channels=ci,
        target_channels=ci,
        element_bytes=element_bytes,
    )


class OperandSwap(Rewrite[SwappedConfig]):
    """wgrad of the convolution over dy, whose rows are packed."""

    kind = "swapped"
    direction = "wgrad"
    config_type = SwappedConfig
    inner = (WGRAD,)
    failure = "x and dy cannot be swapped"

    def rewritten(self, case: Case, device: Device) -> Case | None:
        way = fastest_wgrad(ways(case), case, device)
        swapped = None if way is None else swapped_case(case)
        return None if swapped is None else replace(swapped, packing=way)

    def rewrite_refusals(self, case: Case) -> tuple[Refusal, ...]:
        return swap_refusals(case.problem) or refused(
            "its padding, its batch or the memory of x does not allow it", in_key=False
        )

    def passed_over(self, case: Case, device: Device) -> str:
        if case.problem.in_channels <= case.problem.out_channels:
            return "there are no more input channels than output channels"
        return "; ".join(map(str, tap_refusals(case)))

    def with_copies(self, case: Case, expected: Expected) -> Expected:
        return with_unpacking(expected)

    def plan(
        self, case: Case, rewritten: Case, bind: Callable[[Case], PackedWgradPlan]
    ) -> SwappedWgradPlan:
        packed = bind(rewritten)
        assert rewritten.packing is not None
        return SwappedWgradPlan(
            problem=case.problem,
            out_dtype=packed.out_dtype,
            packed=packed.packed,
            copies=packed.copies,
            turning=CopyLauncher(turning_copy(rewritten.packing, packed.out_dtype.itemsize)),
        )


OPERAND_SWAP = OperandSwap()
