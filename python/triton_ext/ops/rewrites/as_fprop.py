"""dgrad as fprop over dy with the filter turned round, rows of dy packed, for few output channels.

With stride 1, dx is the convolution of dy with the filter turned round, its two channels swapped.
The kernels of dgrad compute it so, too, tap by tap; but with few output channels, as at the end of
a network, rows of dy are worth packing (``rewrites/packing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.case import Case, Direction
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.family import Expected, Family
from triton_ext.ops.core.plan import InputGradientPlan
from triton_ext.ops.core.problem import as_forward
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.rewrites.packing import packing_reasons
from triton_ext.ops.rewrites.partial_im2col import (
    fastest_fprop,
    inner_family,
    inner_refusals,
    packed_times,
)

conv_violations = backends.load("nvidia", "conv_violations")

__all__ = ["AS_FPROP", "AsFpropConfig"]


@dataclass(frozen=True, slots=True)
class AsFpropConfig:
    """The choice to compute dgrad as fprop over packed rows of dy.

    Attributes:
        config: Of the family of fprop that computes it.
    """

    config: Any


class AsFprop(Family[AsFpropConfig]):
    """dgrad by the families that fprop over packed pixels has.

    Whether it pays, the model of packed rows says (``RowPacking.cost``).
    """

    kind: ClassVar[str] = "as_fprop"
    direction: ClassVar[Direction] = "dgrad"
    config_type: ClassVar[type[AsFpropConfig]] = AsFpropConfig
    reads_packed: ClassVar[bool] = True
    supersedes: ClassVar[tuple[str, ...]] = ("gemm", "gluon", "patches")
    inner: ClassVar[tuple[Family[Any], ...]] = (GLUON, GEMM)

    def refusals(
        self, case: Case, device: Device, config: AsFpropConfig | None = None
    ) -> list[str]:
        rewritten = self._rewritten(case, device)
        if rewritten is None:
            forward = as_forward(case.problem)
            if forward is None:
                return ["no convolution of dy: expected stride 1 and one group"]
            return [*packing_reasons(forward)] or ["im2col does not walk dy so"]
        if config is None:
            return []
        inner = inner_family(self.inner, config.config)
        return inner.refusals(rewritten, device, config.config)

    def passed_over(self, case: Case, device: Device) -> str:
        rewritten = self._rewritten(case, device)
        if rewritten is None or rewritten.packing is None or case.packing is not None:
            return ""
        return rewritten.packing.cost(device.num_sms).too_slow

    def number_refusals(self, config: AsFpropConfig, case: Case, device: Device) -> list[str]:
        return inner_refusals(self.inner, config.config, case, device)

    def candidates(self, case: Case, device: Device) -> Mapping[AsFpropConfig, Expected]:
        rewritten = self._rewritten(case, device)
        assert rewritten is not None
        times = packed_times(self.inner, rewritten, device)
        return {AsFpropConfig(packed.config): each for packed, each in times.items()}

    def bind(self, config: AsFpropConfig, case: Case, device: Device) -> InputGradientPlan:
        rewritten = self._rewritten(case, device)
        if rewritten is None:
            why = "; ".join(self.refusals(case, device))
            raise UnsupportedError(f"{case.operator}: not computed as fprop: {why}")
        inner = inner_family(self.inner, config.config)
        # The copy that packs the filter reads it from its ends.
        return InputGradientPlan.of(
            case.problem,
            rewritten,
            lambda each: inner.bind(config.config, each, device),
            swaps_channels=True,
        )

    def _rewritten(self, case: Case, device: Device) -> Case | None:
        """Returns the case of fprop over packed rows of dy; ``None`` where there is none."""
        forward = as_forward(case.problem)
        if forward is None or conv_violations(forward.geometry):
            return None
        strides, size = case.strides_of_dy, case.dtype.itemsize
        way = case.packing or fastest_fprop(forward, strides, size, device.num_sms)
        if way is None:
            return None
        return Case(
            direction="fprop",
            problem=way.problem,
            dtype=case.dtype,
            x_strides=strides,
            packing=replace(way, is_turned=True),
        )


AS_FPROP: AsFprop = AsFprop()
