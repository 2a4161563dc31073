"""dgrad as fprop over dy with the filter turned round, rows of dy packed, for few output channels.

With stride 1, dx is the convolution of dy with the filter turned round, its two channels swapped.
The kernels of dgrad compute it so, too, tap by tap; but with few output channels, as at the end of
a network, rows of dy are worth packing (``rewrites/packing.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from triton_ext import backends
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.plan import ForwardPlan, InputGradientPlan
from triton_ext.ops.core.problem import as_forward
from triton_ext.ops.core.refusals import Refusal, refused
from triton_ext.ops.families.gemm import GEMM
from triton_ext.ops.families.gluon import GLUON
from triton_ext.ops.rewrites.packing import packing_refusals
from triton_ext.ops.rewrites.partial_im2col import Rewrite, fastest_fprop

conv_violations = backends.load("nvidia", "conv_violations")

__all__ = ["AS_FPROP", "AsFpropConfig"]


@dataclass(frozen=True, slots=True)
class AsFpropConfig:
    """The choice to compute dgrad as fprop over packed rows of dy, so configured."""

    config: Any


class AsFprop(Rewrite[AsFpropConfig]):
    """dgrad by the families that fprop over packed pixels has.

    The model of packed rows decides whether it pays (``RowPacking.cost``).
    """

    kind = "as_fprop"
    direction = "dgrad"
    config_type = AsFpropConfig
    reads_packed = True
    supersedes = ("gemm", "gluon", "patches")
    inner = (GLUON, GEMM)
    failure = "not computed as fprop"

    def rewritten(self, case: Case, device: Device) -> Case | None:
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

    def rewrite_refusals(self, case: Case) -> tuple[Refusal, ...]:
        forward = as_forward(case.problem)
        if forward is None:
            return refused("no convolution of dy: expected stride 1 and one group")
        return packing_refusals(forward) or refused("im2col does not walk dy so", in_key=False)

    def passed_over(self, case: Case, device: Device) -> str:
        rewritten = self.rewritten(case, device)
        if rewritten is None or rewritten.packing is None or case.packing is not None:
            return ""
        return rewritten.packing.cost(device.num_sms).too_slow

    def plan(
        self, case: Case, rewritten: Case, bind: Callable[[Case], ForwardPlan]
    ) -> InputGradientPlan:
        # The copy that packs the filter reads it from its ends.
        return InputGradientPlan.of(case.problem, rewritten, bind, swaps_channels=True)


AS_FPROP = AsFprop()
