"""The operators on real tensors: they run the plan of a call, or leave the call to torch.

A ``bind_`` function returns what computes the calls with one operator key (shapes, strides, dtypes,
devices, parameters): a :class:`BoundPlan`, or a :class:`Refusal`.  The dispatch cache keeps both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_ext.ops.api.calls import function_of
from triton_ext.ops.api.checks import check_operands, check_pair, operator_name
from triton_ext.ops.api.reference import torch_dgrad, torch_fprop, torch_fused, torch_wgrad
from triton_ext.ops.core.dispatch_cache import cached, keep, operand_key
from triton_ext.ops.core.epilogue import (
    NO_OPERANDS,
    PLAIN,
    EpilogueArguments,
    EpilogueOperands,
    EpilogueSpec,
    output_dtype,
)
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.memory_format import empty_channels_last
from triton_ext.ops.core.parameters import ConvParameters
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.plans import Refusal, address_refusal, plan_or_refusal, tensor_refusal

__all__ = [
    "Bound",
    "bind_dgrad",
    "bind_fprop",
    "bind_fused",
    "bind_wgrad",
    "run_dgrad",
    "run_fprop",
    "run_fused",
    "run_wgrad",
]

Tensor = torch.Tensor
Bound = BoundPlan | Refusal

_WITH_BIAS = EpilogueSpec(bias=True)


@dataclass(frozen=True, slots=True)
class _EmptyPlan:
    """The plan of an empty batch: there is nothing to compute."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def run(self, first: Tensor, *_: Any, out: Any = None, **__: Any) -> Tensor:
        if out is None:
            out = empty_channels_last(self.shape, self.dtype, first.device)
        # A filter gets a sum over no pixels; the other directions have no element to write.
        result: Tensor = out.zero_()
        return result


def _bound(plan: Any, run: Callable[..., Tensor]) -> Bound:
    """Returns a plan with what runs it with the tensors of a call; a refusal as it is."""
    return plan if type(plan) is Refusal else BoundPlan(plan, run)


def _refused_here(
    bound: Bound, operator: str, fallback: bool, tensors: dict[str, Tensor]
) -> Refusal | None:
    """Returns the refusal of a call that torch is to take; raises it where torch may not."""
    if type(bound) is BoundPlan:
        # Without a fallback, the plan itself refuses an address.
        return address_refusal(operator, tensors) if fallback else None
    assert isinstance(bound, Refusal)
    if not (fallback and bound.by_torch):
        raise bound.error()
    return bound


# --- fprop --------------------------------------------------------------------------------------


def run_fprop(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: ConvParameters, fallback: bool
) -> Tensor:
    """Convolves.

    Args:
        x: [N, Ci, *input_size].
        weight: [Co, Ci / groups, *filter_size].
        bias: [Co] or None.
        parameters: Those of the convolution.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        y [N, Co, *output_size], dense, channels contiguous.
    """
    bound: Any = bind_fprop(x, weight, bias, parameters)
    if _refused_here(bound, operator_name(x.dim()), fallback, {"x": x}):
        return torch_fprop(x, weight, bias, parameters)
    return bound.run_plan(x, weight, bias)


def bind_fprop(x: Tensor, weight: Tensor, bias: Tensor | None, parameters: ConvParameters) -> Bound:
    """Returns what computes y of x, weight and bias."""
    key = operand_key(("fprop", parameters), (x, weight, bias))
    bound = cached(key)
    if bound is None:
        spec = PLAIN if bias is None else _WITH_BIAS
        plan = _plan_fprop(x, weight, bias, parameters, spec)
        bound = keep(key, _bound(plan, _run_forward))
    return bound


def _run_forward(
    plan: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    out_scale: Tensor | None = None,
) -> Tensor:
    if bias is scale is residual is out_scale is None:
        operands = NO_OPERANDS
    else:
        operands = EpilogueOperands(bias=bias, scale=scale, residual=residual, out_scale=out_scale)
    y: Tensor = plan.run(x, weight, operands)
    return y


def _plan_fprop(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    spec: EpilogueSpec,
    mixed_bias: bool = False,
) -> Any:
    """Returns the plan of a forward convolution, or its refusal."""
    operator = operator_name(x.dim())
    check_pair(operator, ("x", x), weight, bias, parameters.groups, mixed_bias=mixed_bias)
    refusal = tensor_refusal("fprop", operator, {"x": x})
    if refusal is not None:
        return _for_torch(refusal, x.dtype, spec)
    # An empty batch has a geometry as well: that of one image.
    problem = parameters.problem((x.shape[0] or 1, *x.shape[1:]), weight.shape)

    def make(module: Any) -> Any:
        return module.make_plan(problem, x.stride(), x.dtype, x.device, spec)

    plan = plan_or_refusal("fprop", make)
    if type(plan) is Refusal:
        return _for_torch(plan, x.dtype, spec)
    if x.shape[0]:
        return plan
    return _EmptyPlan((0, *problem.y_shape[1:]), output_dtype(x.dtype, spec.out_dtype))


def _for_torch(refusal: Refusal, dtype: torch.dtype, spec: EpilogueSpec) -> Refusal:
    """Returns a refusal that says whether torch may compute the call.

    Torch would compute sums of int8 that stay integers modulo 256.
    """
    sums_alone = replace(spec, out_dtype=None, amax=False) == PLAIN
    is_float = output_dtype(dtype, spec.out_dtype).is_floating_point
    return replace(refusal, by_torch=dtype != torch.int8 or is_float or sums_alone)


# --- fprop with an epilogue ---------------------------------------------------------------------


def run_fused(
    x: Tensor,
    weight: Tensor,
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
    fallback: bool,
) -> Tensor:
    """Convolves with an epilogue, whose function is a handle; arguments as for :func:`run_fprop`.

    Returns:
        y, which is ``epilogue.out`` where that is given.
    """
    bound: Any = bind_fused(x, weight, epilogue, parameters)
    out, amax = epilogue.out, epilogue.amax
    if amax is not None and x.shape[0] == 0:
        amax.zero_()
    may_fall_back = fallback and epilogue.function is None
    if _refused_here(bound, operator_name(x.dim()), may_fall_back, {"x": x}):
        y = torch_fused(x, weight, epilogue, parameters)
        return y if out is None else out.copy_(y)
    return bound.plan.run(x, weight, epilogue.operands(), out=out)


def bind_fused(
    x: Tensor, weight: Tensor, epilogue: EpilogueArguments, parameters: ConvParameters
) -> Bound:
    """Returns what computes y of x, weight, bias, scale, residual and ``out_scale``."""
    bias, scale, residual, out_scale, _, *how, _, amax = epilogue
    words = ("fprop_fused", parameters, *how, amax is None)
    key = operand_key(words, (x, weight, bias, scale, residual, out_scale))
    bound = cached(key)
    if bound is None:
        size = parameters.output_size(x.shape[2:], weight.shape[2:])
        y_shape = (x.shape[0], weight.shape[0], *size)
        spec = epilogue.spec(y_shape, function_of(epilogue.function))
        plan = _plan_fprop(x, weight, bias, parameters, spec, mixed_bias=True)
        bound = keep(key, _bound(plan, _run_forward))
    return bound


# --- gradients ----------------------------------------------------------------------------------


def _plan_gradient(
    direction: Any,
    problem: ConvProblem,
    output_size: Sequence[int],
    make: Callable[[Any], Any],
    tensors: dict[str, Tensor],
    empty_shape: tuple[int, ...],
) -> Any:
    """Returns the plan of a gradient, or its refusal."""
    operator = f"{operator_name(problem.dims + 2)} ({direction})"
    if tuple(problem.output_size) != tuple(output_size):
        raise ValueError(
            f"{operator}: expected dy with {list(problem.output_size)} pixels for an input of "
            f"{list(problem.input_size)}, got {list(output_size)}"
        )
    refusal = tensor_refusal(direction, operator, tensors)
    if refusal is not None:
        return refusal
    if not problem.batch:
        return _EmptyPlan(empty_shape, next(iter(tensors.values())).dtype)
    return plan_or_refusal(direction, make)


def run_dgrad(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    input_size: Sequence[int],
    fallback: bool,
) -> Tensor:
    """Computes the gradient of the input, a transposed convolution of dy.

    Args:
        dy: [N, Co, *output_size].
        weight: [Co, Ci / groups, *filter_size].
        bias: [Ci] or None; added to dx, for transposed convolutions.
        parameters: Those of the convolution.
        input_size: Pixels of dx per dimension.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        dx [N, Ci, *input_size], dense, channels contiguous.
    """
    bound: Any = bind_dgrad(dy, weight, bias, parameters, input_size)
    if _refused_here(bound, "dgrad", fallback, {"dy": dy}):
        dx = torch_dgrad(dy, weight, parameters, tuple(input_size))
        return dx if bias is None else dx.add_(bias.view(-1, *(1,) * len(input_size)))
    return bound.run_plan(dy, weight, bias)


def bind_dgrad(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    input_size: Sequence[int],
) -> Bound:
    """Returns what computes dx of dy, weight and bias."""
    key = operand_key(("dgrad", parameters, tuple(input_size)), (dy, weight, bias))
    bound = cached(key)
    if bound is None:
        operator = f"conv_transpose{dy.dim() - 2}d"
        check_pair(operator, ("dy", dy), weight, bias, parameters.groups, is_transposed=True)
        x_shape = (dy.shape[0], weight.shape[1] * parameters.groups, *input_size)
        problem = parameters.problem(x_shape, weight.shape)
        plan = _plan_gradient(
            "dgrad",
            problem,
            dy.shape[2:],
            lambda module: module.make_plan(problem, dy.stride(), dy.dtype, dy.device),
            {"dy": dy},
            x_shape,
        )
        bound = keep(key, _bound(plan, _run_input_gradient))
    return bound


def _run_input_gradient(
    plan: Any, dy: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    dx: Tensor = plan.run(dy, weight, bias=bias)
    return dx


def run_wgrad(
    x: Tensor,
    dy: Tensor,
    parameters: ConvParameters,
    filter_size: Sequence[int],
    fallback: bool,
) -> Tensor:
    """Computes the gradient of the filter.

    Args:
        x: [N, Ci, *input_size].
        dy: [N, Co, *output_size].
        parameters: Those of the convolution.
        filter_size: Taps per dimension.
        fallback: Whether torch takes what the kernel does not.

    Returns:
        dw [Co, Ci / groups, *filter_size], dense, channels contiguous.
    """
    bound: Any = bind_wgrad(x, dy, parameters, filter_size)
    if _refused_here(bound, "wgrad", fallback, {"x": x, "dy": dy}):
        return torch_wgrad(x, dy, parameters, tuple(filter_size))
    return bound.run_plan(x, dy)


def bind_wgrad(
    x: Tensor, dy: Tensor, parameters: ConvParameters, filter_size: Sequence[int]
) -> Bound:
    """Returns what computes dw of x and dy."""
    key = operand_key(("wgrad", parameters, tuple(filter_size)), (x, dy))
    bound = cached(key)
    if bound is None:
        groups = parameters.groups
        check_operands(x, dy, groups)
        w_shape = (dy.shape[1], x.shape[1] // groups, *filter_size)
        problem = parameters.problem(x.shape, w_shape)
        plan = _plan_gradient(
            "wgrad",
            problem,
            dy.shape[2:],
            lambda module: module.make_plan(problem, x.stride(), dy.stride(), x.dtype, x.device),
            {"x": x, "dy": dy},
            w_shape,
        )
        bound = keep(key, _bound(plan, _run_weight_gradient))
    return bound


def _run_weight_gradient(plan: Any, x: Tensor, dy: Tensor) -> Tensor:
    dw: Tensor = plan.run(x, dy)
    return dw
