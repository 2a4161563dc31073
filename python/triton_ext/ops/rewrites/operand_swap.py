"""Operand swap: wgrad with x and dy in each other's places, for few output channels.

``wgrad_swapped.py`` has the derivation and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from triton_ext.errors import UnsupportedError
from triton_ext.ops import wgrad_swapped
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.keys import Direction
from triton_ext.ops.families.gemm import tap_refusals
from triton_ext.ops.families.wgrad import WGRAD
from triton_ext.ops.rewrites.partial_im2col import (
    fastest_wgrad,
    inner_family,
    inner_refusals,
    packed_wgrad_times,
)
from triton_ext.ops.row_packing import RowPacking
from triton_ext.ops.wgrad_config import WgradTiles
from triton_ext.ops.wgrad_swapped import SwappedConfig, swap_reasons

__all__ = ["OPERAND_SWAP"]


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
        return wgrad_swapped.make_plan(
            case.problem, (case.strides_of_x, case.strides_of_dy), case.dtype,
            case.output_dtype, tiles, way,
        )  # fmt: skip

    def _way(self, case: Case, device: Device) -> RowPacking | None:
        """Returns the fastest way to pack rows of dy; ``None`` where there is none."""
        return fastest_wgrad(_ways(case), case, device)


def _ways(case: Case) -> tuple[RowPacking, ...]:
    strides = (case.strides_of_x, case.strides_of_dy)
    return tuple(wgrad_swapped.ways(case.problem, strides, case.dtype.itemsize))


OPERAND_SWAP: OperandSwap = OperandSwap()
