"""Normalizations as operators of torch, for graphs of torch.compile; eager calls need none.

A traced function has ``group_norm`` and ``batch_norm``, which decompose where autograd is:

    group_norm     norm_forward                    backward: norm_backward
    batch_norm     batch_moments, norm_forward     backward: norm_backward

Only ``batch_moments`` writes, to the running statistics, and it is not differentiated: so a graph
moves them once per call, whatever it computes again for a backward.  Statistics of x are one tensor
[2, images * groups], means and rstd.

torch refuses transforms of torch.func and derivatives forwards: :func:`is_operator` keeps them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from triton_ext.ops.core.descriptors import empty_channels_last
from triton_ext.ops.norms.calls import Call, differentiable_gradients, in_order, plan_of
from triton_ext.ops.norms.plan import NormShape

__all__ = ["IS_OPERATOR", "Kind", "is_operator"]

Tensor = torch.Tensor

#: GroupNorm, BatchNorm with statistics of x, BatchNorm with running ones.
Kind = Literal["group", "training", "evaluation"]

#: Whether it is an operator of ours in graphs of torch.compile; Inductor generates the others.
#: docs/norms.md counts the bytes that either moves.
IS_OPERATOR: dict[Kind, bool] = {"group": True, "training": False, "evaluation": False}


def is_operator(kind: Kind) -> bool:
    """Tells whether the caller is being compiled, and its graph is to have our operator.

    Graphs that are exported do not: they run where this package is not.
    """
    return (
        torch.compiler.is_dynamo_compiling()
        and IS_OPERATOR[kind]
        # The function is_exporting() is always true in what torch 2.11 traces.
        and not torch.compiler._is_exporting_flag
        and not _is_transformed()
    )


def _is_transformed() -> bool:
    """Tells whether torch asks for derivatives forwards, or by a transform of torch.func.

    Asked in words that torch.compile traces: for torch 2.11, the interpreter is never None, and
    the number of layers is none.
    """
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return forward_ad._current_level >= 0 or isinstance(
        interpreter, torch._C._functorch.CInterpreter
    )


# ---- Schemas ------------------------------------------------------------------------------------

_TERMS = "Tensor? weight, Tensor? bias"
_MOVED = "Tensor(a!)? running_mean, Tensor(b!)? running_var"
_STATISTICS = "Tensor? moments, Tensor? running_mean, Tensor? running_var"
_REST = "SymInt? groups, float eps, str activation, ScalarType out_dtype"
_SCHEMAS = {
    "group_norm": (
        f"(Tensor x, {_TERMS}, SymInt groups, float eps, str activation, ScalarType out_dtype) "
        "-> Tensor"
    ),
    "batch_norm": (
        f"(Tensor x, {_TERMS}, Tensor? residual, {_MOVED}, bool training, float momentum, "
        "float eps, str activation) -> Tensor"
    ),
    "batch_moments": f"(Tensor x, {_MOVED}, float momentum, float eps) -> Tensor",
    # The moments are empty where statistics are given.
    "norm_forward": (
        f"(Tensor x, {_TERMS}, Tensor? residual, {_STATISTICS}, {_REST}) "
        "-> (Tensor y, Tensor moments)"
    ),
    "norm_backward": (
        f"(Tensor dy, Tensor x, {_TERMS}, {_STATISTICS}, Tensor? y, {_REST}, bool[] needs) "
        "-> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dresidual)"
    ),
}


# ---- On real tensors ----------------------------------------------------------------------------


def _values(tensor: Any) -> Any:
    # Negated views and other memory orders are not seen while torch traces.
    return None if tensor is None else in_order(tensor)


def _run_moments(x, running_mean, running_var, momentum, eps) -> Tensor:  # type: ignore[no-untyped-def]
    x, running = in_order(x), (running_mean, running_var)
    plan = plan_of(x, None, None, None, None, running, "identity", eps, x.dtype)
    return Call(plan, *running, True, momentum).moments(x)


def _run_forward(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, moments, running_mean, running_var, groups, eps, activation,
    out_dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x, weight, bias, residual = map(_values, (x, weight, bias, residual))
    running = (running_mean, running_var)
    plan = plan_of(x, groups, weight, bias, residual, running, activation, eps, out_dtype)
    call, found = Call(plan, uses_batch=running_mean is None), x.new_empty(0)
    if call.uses_batch and moments is None:
        moments = found = call.moments(x)
    mean, rstd = moments if call.uses_batch else running
    return call.normalize(x, (mean, rstd, weight, bias), residual), found


def _run_backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, moments, running_mean, running_var, y, groups, eps, activation,
    out_dtype, needs,
) -> tuple[Tensor, ...]:  # fmt: skip
    x, weight, bias, y = map(_values, (x, weight, bias, y))
    running = (running_mean, running_var)
    plan = plan_of(x, groups, weight, bias, None, running, activation, eps, out_dtype)
    mean, rstd = running if moments is None else moments
    call = Call(plan, uses_batch=moments is not None)
    found = call.backward([x, weight, bias, mean, rstd, y], dy, needs)
    # An operator returns no None.
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in found)


# ---- On fake tensors ----------------------------------------------------------------------------


def _fake_moments(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _fake_forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *_, moments, running_mean, _, groups, _, _, out_dtype = arguments
    found = x.new_empty(0)
    if moments is None and running_mean is None:
        found = x.new_empty((2, x.shape[0] * groups), dtype=torch.float32)
    return empty_channels_last(x.shape, out_dtype, x.device), found


def _fake_backward(dy: Tensor, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    weight, bias, *_, needs = arguments
    pixels = empty_channels_last(x.shape, x.dtype, x.device)
    return tuple(
        torch.empty_like(like) if is_needed else x.new_empty(0)
        for like, is_needed in zip((pixels, weight, bias, pixels), needs, strict=True)
    )


# ---- Where autograd is --------------------------------------------------------------------------


class _Norm(torch.autograd.Function):
    """The differentiable part of a normalization."""

    @staticmethod
    def forward(ctx, *arguments):  # type: ignore[no-untyped-def]
        """Returns y; arguments as those of ``norm_forward``."""
        x, weight, bias, residual, moments, *running, groups, eps, activation, out_dtype = arguments
        y, found = torch.ops.triton_ext.norm_forward.default(*arguments)
        if moments is None and running[0] is None:
            moments = found
        # y tells where a ReLU after a residual passed, as in the eager call.
        needs_y = residual is not None and activation == "relu"
        ctx.save_for_backward(x, weight, bias, moments, *running, y if needs_y else None)
        ctx.rest = (groups, eps, activation, out_dtype)
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        """Returns the gradients of x, weight, bias and residual."""
        saved, needs = ctx.saved_tensors, list(ctx.needs_input_grad[:4])
        x, weight, bias, moments, *running, y = saved
        groups, eps, activation, out_dtype = ctx.rest
        nothing = (None,) * 7
        if torch.is_grad_enabled():
            found = differentiable_gradients(
                dy, x, weight, bias, y, shape=NormShape.of(x, groups),
                statistics=running if moments is None else None,
                activation=activation, eps=eps, out_dtype=out_dtype, needs=needs,
            )  # fmt: skip
            return (*found, *nothing)
        is_given = needs[3] and activation == "identity"
        if is_given:
            # An operator returns no memory that it gets.
            needs[3] = False
        found = torch.ops.triton_ext.norm_backward.default(dy, *saved, *ctx.rest, needs)
        gradients = [
            gradient if is_needed else None
            for gradient, is_needed in zip(found, needs, strict=True)
        ]
        if is_given:
            gradients[3] = dy
        return (*gradients, *nothing)


def _norm(*arguments: Any) -> Tensor:
    """Returns y; arguments as those of ``norm_forward``."""
    differs = [tensor is not None and tensor.requires_grad for tensor in arguments[:4]]
    y: Tensor
    if torch.is_grad_enabled() and any(differs):
        y = _Norm.apply(*arguments)
    else:
        y, _ = torch.ops.triton_ext.norm_forward.default(*arguments)
    return y


def _group_norm(  # type: ignore[no-untyped-def]
    x, weight, bias, groups, eps, activation, out_dtype
) -> Tensor:
    return _norm(x, weight, bias, None, None, None, None, groups, eps, activation, out_dtype)


def _batch_norm(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, running_mean, running_var, training, momentum, eps, activation
) -> Tensor:
    statistics = (None, running_mean, running_var)
    if training:
        with torch.no_grad():
            moments = torch.ops.triton_ext.batch_moments.default(
                x, running_mean, running_var, momentum, eps
            )
        statistics = (moments, None, None)
    return _norm(x, weight, bias, residual, *statistics, None, eps, activation, x.dtype)


# ---- Registration -------------------------------------------------------------------------------

_TRACED: dict[str, Callable[..., Any]] = {"group_norm": _group_norm, "batch_norm": _batch_norm}
# On real and on fake tensors.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "batch_moments": (_run_moments, _fake_moments),
    "norm_forward": (_run_forward, _fake_forward),
    "norm_backward": (_run_backward, _fake_backward),
}


def _register() -> None:
    for name, schema in _SCHEMAS.items():
        qualified = f"triton_ext::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.needs_fixed_stride_order,))
        # The backend "eager" runs a graph by itself, and would trace what it calls.
        if name in _TRACED:
            traced = torch._disable_dynamo(_TRACED[name])
            torch.library.impl(qualified, "CompositeImplicitAutograd")(traced)
        else:
            run, fake = _FUNCTIONS[name]
            torch.library.impl(qualified, ("CPU", "CUDA"))(torch._disable_dynamo(run))
            torch.library.register_fake(qualified)(fake)


_register()
