"""The gradient of the input as a forward convolution of dy, for few output channels.

With stride 1, dx is the convolution of dy with the filter turned round, its two channels swapped.
That is how the kernel of dgrad computes it too, tap by tap; but with few output channels, as at the
end of a network, rows of dy are worth packing (``row_packing.py``), and that is what forward plans
do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from triton_ext.ops import conv_plan
from triton_ext.ops.conv_launch import ForwardPlan
from triton_ext.ops.conv_refusals import conv_violations
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.input_gradient import InputGradientPlan
from triton_ext.ops.problem import ConvProblem, as_forward
from triton_ext.ops.row_packing import RowPacking

__all__ = ["ForwardDgradPlan", "as_forward", "fastest_way", "make_forward_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardDgradPlan(InputGradientPlan):
    """A gradient of the input as the forward convolution of dy with the filter turned round."""

    def _filter(self, weight: torch.Tensor) -> torch.Tensor:
        # The copy that packs it reads it from its ends.
        return weight.transpose(0, 1)


def fastest_way(
    problem: ConvProblem, dy_strides: tuple[int, ...], element_bytes: int, num_sms: int
) -> RowPacking | None:
    """Returns how rows of dy are packed where that pays; else ``None``.

    Args:
        problem: The convolution whose gradient is asked for.
        dy_strides: Of dy [N, Co, *output_size], in elements.
        element_bytes: Size of an element of dy.
        num_sms: Multiprocessors of the GPU.
    """
    forward = as_forward(problem)
    if forward is None or conv_violations(forward.geometry):
        return None
    way = RowPacking.make(forward, dy_strides, element_bytes, num_sms)
    return way if way is not None and way.cost(num_sms).pays else None


def make_forward_plan(
    problem: ConvProblem,
    dy_strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    way: RowPacking,
) -> ForwardDgradPlan:
    """Returns the plan of a gradient of the input.

    Args:
        problem: The convolution.
        dy_strides: Of dy [N, Co, *output_size], in elements; channels-last.
        dtype: Of dy, weight and dx.
        device: Where dy is.
        way: How rows of dy are packed.
    """

    way = replace(way, is_turned=True)

    def plan_of(spec: EpilogueSpec) -> ForwardPlan:
        return conv_plan.make_plan(way.problem, dy_strides, dtype, device, spec, pack_rows=way)

    return ForwardDgradPlan(
        problem=problem, plain=plan_of(EpilogueSpec()), biased=plan_of(EpilogueSpec(bias=True))
    )
