"""Tells for each direction whether a kernel takes a call, and if not, why; nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensor

from triton_ext.ops.api.checks import (
    check_groups,
    check_numbers,
    check_output_padding,
    check_pair,
    check_types,
    rank_error,
)
from triton_ext.ops.core.case import DIRECTIONS, Case
from triton_ext.ops.core.dispatch_cache import cast_dtype, is_cast
from triton_ext.ops.core.epilogue import PLAIN, EpilogueSpec
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.core.parameters import ConvParameters, Numbers, Padding, numbers
from triton_ext.ops.core.planner import plan_or_refusal, refusals_on
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import Refusal, address_refusal, layout_refusal

__all__ = ["Support", "support"]

_WITH_BIAS = EpilogueSpec(bias=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Which kernels take a convolution; true where the one that computes its output does.

    Each of the three tuples has the reasons against a kernel, and is empty where it takes the
    problem.  In a call with ``fallback="torch"`` and in every backward, torch computes what has
    reasons here.

    Attributes:
        problem: The convolution; a transposed one is the gradient of this one.
        is_transposed: Whether the question was about a transposed convolution.
        fprop: Refusals for y; for a transposed convolution, for the gradient of its input.
        dgrad: Refusals for the gradient of x; for a transposed convolution, for y.
        wgrad: Refusals for the gradient of the filter.
    """

    problem: ConvProblem
    is_transposed: bool
    fprop: tuple[str, ...]
    dgrad: tuple[str, ...]
    wgrad: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why no kernel computes the output; empty if one does."""
        return self.dgrad if self.is_transposed else self.fprop

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        lines = []
        for direction in ("fprop", "dgrad", "wgrad"):
            found = getattr(self, direction)
            lines.append(f"{direction}: {'no, ' + '; '.join(found) if found else 'yes'}")
        return "\n".join(lines)


def support(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Numbers = 1,
    padding: Padding = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    transposed: bool = False,
    output_padding: Numbers = 0,
) -> Support:
    """Tells whether the kernels take a convolution and its gradients.

    Nothing is computed: tensors may be fake or on the ``meta`` device, for which no GPU is
    assumed.  Under autocast, the dtype is the one that autocast will give.

    Args:
        x: As for ``conv1d`` to ``conv3d``, with or without a batch dimension.
        weight: As for them; its rank tells which.
        bias: As for them.
        stride: As for them.
        padding: As for them.
        dilation: As for them.
        groups: As for them.
        transposed: Whether it is about ``conv_transpose1d`` to ``conv_transpose3d``.
        output_padding: As for those.

    Raises:
        ValueError: Arguments that do not fit each other, as in the call.
        TypeError: Mixed dtypes, as in the call.
    """
    check_types("support", x, weight, bias)
    check_groups("support", groups)
    dims = weight.dim() - 2
    name = f"conv{'_transpose' if transposed else ''}{dims}d"
    if not 1 <= dims <= 3 or x.dim() not in (dims + 1, dims + 2):
        raise rank_error("support", 2, ("x", x), weight, transposed)
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
    autocast = is_cast(x)
    check_pair(
        name, ("x", x), weight, bias, groups, is_transposed=transposed, mixed_dtypes=autocast
    )
    dtype = cast_dtype(x)
    extra = numbers("output_padding", output_padding, dims)
    if transposed:
        check_numbers(name, padding)
    parameters = ConvParameters.parse((stride, padding, dilation, groups), weight.shape[2:])
    if transposed and min(extra) < 0:
        check_output_padding(name, extra, parameters)
    if not transposed and any(extra):
        raise ValueError(f"support: output_padding {extra} needs transposed=True")
    x_shape: Sequence[int] = x.shape
    found: list[str] = []
    if transposed:
        steps = parameters.stride
        if any(pixels >= step for pixels, step in zip(extra, steps, strict=True)):
            found.append(f"output_padding {extra} is not smaller than stride {steps}")
        size = parameters.transposed_size(x.shape[2:], weight.shape[2:], extra)
        x_shape = (x.shape[0], weight.shape[1] * parameters.groups, *size)
    problem = parameters.problem(tuple(x_shape), tuple(weight.shape))
    found += _reasons_of_x(name, x)
    # The bias of a transposed convolution is dgrad's, which adds any to what it takes.
    epilogue = PLAIN if transposed or bias is None else _WITH_BIAS
    cases = {
        direction: Case(
            direction=direction,
            problem=replace(problem, batch=max(problem.batch, 1)),
            dtype=dtype,
            epilogue=epilogue if direction == "fprop" else PLAIN,
        )
        for direction in DIRECTIONS
    }
    kernels = {direction: refusals_on(case, x.device) for direction, case in cases.items()}
    # These directions read x itself; gradients are copied to channels-last.
    reads_x = (cases["dgrad" if transposed else "fprop"], cases["wgrad"])
    # The copies of autocast are dense.
    is_view = dtype == x.dtype and x.stride() != channels_last_strides(x.shape)
    for case in reads_x:
        kernels[case.direction] = (*found, *kernels[case.direction])
        if is_view and not kernels[case.direction] and x.device.type != "meta":
            name = "dy_strides" if transposed else "x_strides"
            plan = plan_or_refusal(replace(case, **{name: x.stride()}), x.device)
            if type(plan) is Refusal:
                kernels[case.direction] = (plan.text,)
    return Support(problem=problem, is_transposed=transposed, **kernels)


def _reasons_of_x(name: str, x: torch.Tensor) -> list[str]:
    refusals = [layout_refusal(name, "x", x)]
    if not isinstance(x, FakeTensor) and x.device.type != "meta":
        refusals.append(address_refusal(name, {"x": x}))
    return [refusal.text.removeprefix(f"{name}: ") for refusal in refusals if refusal is not None]
