"""Operand swap: wgrad with x and dy in each other's places, for few output channels.

With stride 1 and one group,

    dw[co, r, ci] = sum over output pixels p of dy[p, co] * x[p + r * dilation - padding, ci]
                  = sum over input pixels q of x[q, ci] * dy[q - r * dilation + padding, co]

The second sum is the gradient of the filter of another convolution: its input is dy, the gradient
of its output x, its filter turned round (r' = R - 1 - r), and its padding dilation * (R - 1) -
padding.  That is the convolution of dy that gives dx (``problem.as_forward``).  What is few output
channels here is few input channels there, and rows of those are worth packing (``packing.py``).
The copy that unpacks its dw turns it and swaps its channels.

Sums have the same products in another order, but for those with zeros: here dy is padded, not x.
So NaN or infinity in a pixel of x that a tap sees no output pixel from shows in that tap of dw as
well, and in dy not in the taps that see padding from there.

Not handled: strides, groups, padding beyond what the filter reaches, and an x that has to be
copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from triton_ext.errors import UnsupportedError
from triton_ext.ops import wgrad_gemm
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.descriptors import ROW_BYTES, packed_strides
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.problem import ConvProblem, as_forward
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.wgrad import WGRAD
from triton_ext.ops.kernels.row_copy import CopyLauncher, RowCopy
from triton_ext.ops.rewrites.packing import RowPacking, packing_reasons
from triton_ext.ops.rewrites.partial_im2col import (
    fastest_wgrad,
    inner_family,
    inner_refusals,
    packed_wgrad_times,
)
from triton_ext.ops.wgrad_config import WgradTiles
from triton_ext.ops.wgrad_gemm import PackedWgradPlan, PackingPlan
from triton_ext.ops.wgrad_launch import Operand, filter_rows, given_or

__all__ = [
    "OPERAND_SWAP",
    "SwappedConfig",
    "SwappedWgradPlan",
    "as_swapped",
    "make_plan",
    "swap_reasons",
    "turning_copy",
    "ways",
]

# x is read as it is: its channels are whole units of 16 bytes of 16-bit numbers.
_CHANNEL_UNIT = ROW_BYTES // 2


@dataclass(frozen=True, slots=True)
class SwappedConfig:
    """The choice to swap x and dy, and to pack rows of dy.

    Attributes:
        config: How the gradient of the packed filter is computed, as of a ``PackedConfig``.
    """

    config: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedWgradPlan(PackingPlan):
    """A gradient of a filter as that of a packed one, whose input is dy.

    Attributes:
        packed: Its dw is [Ci, S * C', ([T, ]R, )1].
        copies: How dy is packed.
        turning: Unpacks dw, turns it round and swaps its channels.
    """

    turning: CopyLauncher

    def _run(self, x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Packs dy, launches the kernels and turns dw."""
        rows = filter_rows(self.problem, self.out_dtype, x.device, out)
        packed = self.packed.run(self.copies.x(dy).movedim(-1, 1), x)
        self.turning.launch((packed.movedim(1, -1), rows))
        return given_or(rows, out)


def swap_reasons(problem: ConvProblem) -> tuple[str, ...]:
    """Returns why x and dy of a problem cannot be swapped, whatever its sizes and its padding.

    Args:
        problem: The convolution.
    """
    found = []
    if set(problem.stride) != {1}:
        found.append(f"stride {problem.stride}: expected 1, dy has no pixels between its own")
    if problem.in_channels % _CHANNEL_UNIT:
        found.append(f"{problem.in_channels} input channels: expected a multiple of 8")
    return (*found, *packing_reasons(problem))


def as_swapped(problem: ConvProblem) -> ConvProblem | None:
    """Returns the convolution over dy whose filter's gradient is dw turned, or ``None``.

    Args:
        problem: The convolution.
    """
    swapped = as_forward(problem)
    if swapped is None or any(min(sides) < 0 for sides in swapped.padding):
        return None
    return swapped


def ways(
    problem: ConvProblem, strides: tuple[tuple[int, ...], tuple[int, ...]], element_bytes: int
) -> list[RowPacking]:
    """Returns how rows of dy can be packed; none where x and dy cannot be swapped.

    Args:
        problem: The convolution.
        strides: Of x [N, Ci, *input_size] and of dy [N, Co, *output_size], in elements.
        element_bytes: Size of an element of x and dy.
    """
    swapped = None if swap_reasons(problem) or not problem.batch else as_swapped(problem)
    x_strides, dy_strides = strides
    if swapped is None:
        return []
    # x is the large one: a copy of it costs more than is gained.
    if Operand.make(problem.x_shape, x_strides, element_bytes, as_matrix=True).is_copied:
        return []
    every = RowPacking.ways(swapped, dy_strides, element_bytes)
    # Gradients begin at any address, which TMA does not.
    return [way for way in every if way.is_copied]


def turning_copy(way: RowPacking, element_bytes: int) -> RowCopy:
    """Returns the copy of the gradient of a packed filter to dw.

    Args:
        way: How rows of dy are packed.
        element_bytes: Size of an element of dw.
    """
    swapped = way.problem
    ci, co, taps = swapped.out_channels, swapped.in_channels, swapped.filter_size
    # Of dw as it was computed, [Ci, *rows, channels]: from filter to filter, from tap to tap.
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


def make_plan(
    problem: ConvProblem,
    strides: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    tiles: WgradTiles,
    way: RowPacking,
) -> SwappedWgradPlan:
    """Returns the plan of a gradient of a filter.

    Args:
        problem: The convolution.
        strides: As for :func:`ways`.
        dtype: Of x and dy.
        out_dtype: Of dw.
        tiles: Of the packed problem: the tile configuration and who computes which tile.
        way: How rows of dy are packed, one of :func:`ways`.
    """
    x_strides, dy_strides = strides
    packed = wgrad_gemm.make_plan(
        way.problem, (dy_strides, x_strides), dtype, out_dtype, tiles, way
    )
    assert isinstance(packed, PackedWgradPlan)
    return SwappedWgradPlan(
        problem=problem,
        packed=packed.packed,
        copies=packed.copies,
        turning=CopyLauncher(turning_copy(way, out_dtype.itemsize)),
    )


class OperandSwap(Family[SwappedConfig]):
    """wgrad of the convolution over dy, whose rows are packed."""

    kind: ClassVar[str] = "swapped"
    direction: ClassVar[Direction] = "wgrad"
    config_type: ClassVar[type[SwappedConfig]] = SwappedConfig

    def refusals(
        self, case: Case, device: Device, config: SwappedConfig | None = None
    ) -> list[str]:
        found = [*swap_reasons(case.problem)]
        if not found and not _ways(case):
            found.append("its padding, its batch or the memory of x does not allow it")
        return found

    def passed_over(self, case: Case, device: Device) -> str:
        if case.problem.in_channels <= case.problem.out_channels:
            return "there are no more input channels than output channels"
        return "; ".join(tap_refusals(case))

    def number_refusals(self, config: SwappedConfig, case: Case, device: Device) -> list[str]:
        return inner_refusals((WGRAD,), config.config, case, device)

    def config_refusals(self, config: SwappedConfig, case: Case, device: Device) -> list[str]:
        # How much padding there is, is not in the key: refusals() asks for it.
        return [*swap_reasons(case.problem), *self.number_refusals(config, case, device)]

    def candidates(self, case: Case, device: Device) -> Mapping[SwappedConfig, Expected]:
        way = self._way(case, device)
        assert way is not None
        times = packed_wgrad_times(replace(case, packing=way), device)
        return {SwappedConfig(config): expected for config, expected in times.items()}

    def bind(self, config: SwappedConfig, case: Case, device: Device) -> Any:
        way = self._way(case, device)
        if way is None:
            why = "; ".join(self.refusals(case, device))
            raise UnsupportedError(f"wgrad: x and dy cannot be swapped: {why}")
        inner = config.config
        inner_family((WGRAD,), inner)
        wrong = inner.config.problems()
        if wrong:
            raise UnsupportedError(f"wgrad: configuration {inner.config}: " + "; ".join(wrong))
        tiles = WgradTiles.make(inner.config, way.padded, device.num_sms, inner.part_rounds)
        return make_plan(
            case.problem, (case.strides_of_x, case.strides_of_dy), case.dtype,
            case.output_dtype, tiles, way,
        )  # fmt: skip

    def _way(self, case: Case, device: Device) -> RowPacking | None:
        """Returns the fastest way to pack rows of dy; ``None`` where there is none."""
        return fastest_wgrad(_ways(case), case, device)


def _ways(case: Case) -> tuple[RowPacking, ...]:
    strides = (case.strides_of_x, case.strides_of_dy)
    return tuple(ways(case.problem, strides, case.dtype.itemsize))


OPERAND_SWAP: OperandSwap = OperandSwap()
