"""BatchNorm and GroupNorm as functions, differentiable."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_variadic

from triton_ext.ops.api.checks import check_groups
from triton_ext.ops.core.dispatch_cache import PLAIN_TYPES, cached, is_autocast, keep, tensor_key
from triton_ext.ops.norms.calls import Call, activated, differentiable_gradients, plan_of
from triton_ext.ops.norms.checks import (
    are_numbers,
    check_kinds,
    epsilon,
    is_left_to_torch,
    norm_problem,
    number,
    refusal,
)
from triton_ext.ops.norms.library import is_operator

__all__ = ["batch_norm", "group_norm", "norm_key", "normalize"]

Tensor = torch.Tensor

_has_storage = torch._C._has_storage


class _Norm(torch.autograd.Function):
    """A normalization that torch differentiates."""

    @staticmethod
    def forward(ctx, x, weight, bias, residual, call):  # type: ignore[no-untyped-def]
        """Returns y."""
        y, mean, rstd = call.forward(x, weight, bias, residual)
        if not call.uses_batch:
            # A call in training mode may move them before the backward, unnoticed by autograd.
            mean, rstd = mean.clone(), rstd.clone()
        # y tells where a ReLU after a residual passed, which is not computed again.
        needs_y = residual is not None and call.plan.activation == "relu"
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if needs_y else None)
        ctx.has_residual = residual is not None
        ctx.call = Call(call.plan, None, None, call.uses_batch)
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        """Returns the gradients of the tensors."""
        if torch.is_grad_enabled():
            # The gradients will be differentiated.
            return (*_differentiable_gradients(ctx, dy), None)
        if not _has_storage(dy):
            # A batch of gradients at a time (is_grads_batched).
            with torch.enable_grad():
                found = _differentiable_gradients(ctx, dy)
            # Legacy vmap, which torch.autograd.grad uses, has no detach().
            return (*[None if t is None else t.clone() for t in found], None)
        saved = list(ctx.saved_tensors)
        needs = ctx.needs_input_grad[:4]
        if torch.compiler.is_compiling():
            # Compiled autograd traces the backward of eager calls.
            return (*_untraced_gradients(ctx.call, saved, dy, needs), None)
        if ctx.has_residual:
            # Where the graph is not kept, tensors saved for this backward alone are freed in it.
            ctx.maybe_clear_saved_tensors()
        return (*ctx.call.backward(saved, dy, needs), None)


_untraced_gradients: Any = torch._disable_dynamo(Call.backward)

# Function.apply first asks for transforms, and for tensors that they left behind, which a call with
# a key has none of.
_apply: Any = super(torch.autograd.Function, _Norm).apply


def _differentiable_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of torch's operators; torch differentiates them again."""
    x, weight, bias, mean, rstd, y = ctx.saved_tensors
    plan = ctx.call.plan
    return differentiable_gradients(
        dy, x, weight, bias, y, shape=plan.shape,
        statistics=None if ctx.call.uses_batch else (mean, rstd),
        activation=plan.activation, eps=plan.eps, out_dtype=plan.out_dtype,
        needs=ctx.needs_input_grad[:4],
    )  # fmt: skip


def normalize(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    """Returns y of a call with its plan; autograd records it."""
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ):
        apply = _apply if call.is_cached else _Norm.apply
        y: Tensor = apply(x, weight, bias, residual, call)
        return y
    return call.forward(x, weight, bias, residual)[0]


def _group_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype of GroupNorm's result."""
    if is_autocast(x.device.type):
        # Autocast computes GroupNorm in fp32; the kernel reads x as it is.
        return torch.float32
    return x.dtype


def norm_key(tensors: tuple[Any, ...], how: Any, activation: Any, eps: Any) -> Hashable:
    """Returns the key of a call, under which its plan is cached; ``None`` if it has none.

    Args:
        tensors: x, weight, bias and for ``batch_norm`` running mean and variance and residual.
            They may be anything, as all arguments: nothing was checked.
        how: ``training`` of ``batch_norm``, a bool, or ``groups`` of ``group_norm``, an int.
        activation: Its name.
        eps: Added to variances.
    """
    # Equal values of other types are other arguments.
    kind = type(how)
    if type(eps) is not float or type(activation) is not str or not (kind is bool or kind is int):
        return None
    if has_torch_function_variadic(*tensors):
        return None
    x = tensors[0]
    # Other classes have no key.
    is_wide = kind is int and type(x) in PLAIN_TYPES and is_autocast(x.device.type)
    return tensor_key(("norm", kind, how, is_wide, activation, eps), tensors)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    activation: str = "identity",
    residual: Tensor | None = None,
) -> Tensor:
    """Normalizes every channel, then ``activation(... + residual)``; one kernel writes the result.

    Sums are in fp32, by chunks in a fixed order: the same bits at every call.

    Args:
        x: [N, C, *size] of one to three dimensions, channels-last, fp16, bf16 or fp32; on a GPU,
            or on the CPU under ``TRITON_INTERPRET=1``.
        weight: [C], dtype of x or fp32, or None.
        bias: As weight.
        running_mean: [C], moved towards the batch's in training, or None.
        running_var: [C], moved towards the batch's unbiased variance in training, or None.
        training: Whether statistics are those of x; otherwise they are the running ones, where
            there are some.
        momentum: How far running statistics are moved, from 0 to 1; ``None`` does not move them.
        eps: Added to variances.
        activation: ``"identity"``, ``"relu"``, ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or
            ``"tanh"``; the first two with a residual.
        residual: As x, added before the activation, or None.

    Returns:
        y as x.

    Raises:
        UnsupportedError: A normalization that no kernel takes; :func:`norm_problem` says why.
        ValueError: Sizes or devices that do not fit each other; an activation that there is not;
            no statistics: not training, and a running one is None; ``eps`` is negative.
        TypeError: A value that is no dense tensor; ``training`` that is no bool; ``eps`` or
            ``momentum`` that is no number; mixed dtypes.
    """
    given = (x, weight, bias, running_mean, running_var, residual)
    key = norm_key(given, training, activation, eps)
    plan = cached(key)
    if plan is not None and type(momentum) is float:
        call = Call(plan, running_mean, running_var, training, momentum, is_cached=True)
        return normalize(call, x, weight, bias, residual)
    if not torch.compiler.is_compiling() and has_torch_function_variadic(*given):
        result: Tensor = handle_torch_function(
            batch_norm, given, *given[:5], training=training, momentum=momentum, eps=eps,
            activation=activation, residual=residual,
        )  # fmt: skip
        return result
    running = {"running_mean": running_mean, "running_var": running_var}
    affine = {"weight": weight, "bias": bias}
    numbers = {"eps": eps} if momentum is None else {"momentum": momentum, "eps": eps}
    tensors = {"x": x, **affine, **running, "residual": residual}
    check_kinds("batch_norm", tensors, numbers, activation)
    if not isinstance(training, (bool, torch.SymBool)):
        raise TypeError(f"batch_norm: training must be a bool, got {training!r}")
    if not training and (running_mean is None or running_var is None):
        raise ValueError(
            "batch_norm: expected running_mean and running_var for training=False, got None"
        )
    if is_left_to_torch(*given):
        if (
            is_operator("training" if training else "evaluation")
            and are_numbers(*numbers.values())
            and refusal(x, None, affine | running, residual, activation) is None
        ):
            if training and momentum is None:
                running_mean = running_var = None
            y = torch.ops.triton_ext.batch_norm.default(
                x, weight, bias, residual, running_mean, running_var, training,
                0.0 if momentum is None else momentum, eps, activation,
            )  # fmt: skip
            return y
        y = functional.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum or 0.0, eps
        )
        return activated(y if residual is None else y + residual, activation)
    eps = epsilon("batch_norm: eps", eps)
    if momentum is not None:
        momentum = number("batch_norm: momentum", momentum)
    statistics = (running_mean, running_var)
    plan = plan_of(x, None, weight, bias, residual, statistics, activation, eps, x.dtype)
    keep(key, plan)
    if training and momentum is None:
        statistics = (None, None)
    call = Call(plan, *statistics, training, 0.0 if momentum is None else momentum)
    return normalize(call, x, weight, bias, residual)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "identity",
) -> Tensor:
    """Normalizes the channels of every group and image, then applies the activation.

    Sums are in fp32, by chunks in a fixed order: the same bits at every call.

    Args:
        x: As for :func:`batch_norm`.
        groups: Number of groups that the channels divide into.
        weight: [C], dtype of x or fp32, or None.
        bias: As weight.
        eps: Added to variances.
        activation: As for :func:`batch_norm`.

    Returns:
        y as x; fp32 under autocast, as of ``torch.nn.functional.group_norm``.

    Raises:
        UnsupportedError: A normalization that no kernel takes; :func:`norm_problem` says why.
        ValueError: As :func:`batch_norm`; groups that are no integer, or into which channels do
            not divide.
        TypeError: As :func:`batch_norm`.
    """
    key = norm_key((x, weight, bias), groups, activation, eps)
    plan = cached(key)
    if plan is not None:
        return normalize(Call(plan, is_cached=True), x, weight, bias, None)
    if not torch.compiler.is_compiling() and has_torch_function_variadic(x, weight, bias):
        result: Tensor = handle_torch_function(
            group_norm, (x, weight, bias), x, groups, weight, bias, eps=eps, activation=activation
        )
        return result
    tensors = {"x": x, "weight": weight, "bias": bias}
    check_kinds("group_norm", tensors, {"eps": eps}, activation)
    check_groups("group_norm", groups)
    if is_left_to_torch(x, weight, bias):
        if (
            is_operator("group")
            and are_numbers(eps)
            and norm_problem("group", x, groups, weight, bias, None, activation) is None
        ):
            y: Tensor = torch.ops.triton_ext.group_norm.default(
                x, weight, bias, groups, eps, activation, _group_dtype(x)
            )
            return y
        return activated(functional.group_norm(x, groups, weight, bias, eps), activation)
    eps, groups = epsilon("group_norm: eps", eps), int(groups)
    out_dtype = _group_dtype(x)
    plan = plan_of(x, groups, weight, bias, None, (None, None), activation, eps, out_dtype)
    keep(key, plan)
    return normalize(Call(plan), x, weight, bias, None)
