"""Normalizations as operators of torch, for graphs of torch.compile; eager calls need none.

A traced function has ``group_norm`` and ``batch_norm``, which decompose where autograd is:

    group_norm     group_norm_forward                        backward: norm_backward
    batch_norm     batch_moments, batch_norm_forward         backward: norm_backward

``batch_moments`` alone writes, to the running statistics, and what is differentiated does not: so
a graph moves them once per call, whatever it computes again for a backward.  Statistics of x travel
as one tensor [2, images * groups], means and rstd.

torch refuses transforms of torch.func and derivatives forwards; :mod:`graphs` keeps them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.core.memory_format import channels_last, empty_channels_last
from triton_ext.ops.norms.composite import differentiable_gradients
from triton_ext.ops.norms.norm_calls import Call, plan_of
from triton_ext.ops.norms.norm_config import NormShape
from triton_ext.ops.norms.refusals import is_channels_last

__all__: list[str] = []

Tensor = torch.Tensor

_TERMS = "Tensor? weight, Tensor? bias"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_MOVED = "Tensor(a!)? running_mean, Tensor(b!)? running_var"
_SCHEMAS = {
    "group_norm": (
        f"(Tensor x, {_TERMS}, SymInt groups, float eps, str activation, ScalarType out_dtype) "
        "-> Tensor"
    ),
    "batch_norm": (
        f"(Tensor x, {_TERMS}, Tensor? residual, {_MOVED}, bool training, float momentum, "
        "float eps, str activation) -> Tensor"
    ),
    "group_norm_forward": (
        f"(Tensor x, {_TERMS}, SymInt groups, float eps, str activation, ScalarType out_dtype) "
        "-> (Tensor y, Tensor moments)"
    ),
    "batch_moments": f"(Tensor x, {_MOVED}, float momentum, float eps) -> Tensor",
    "batch_norm_forward": (
        f"(Tensor x, {_TERMS}, Tensor? residual, Tensor? moments, {_RUNNING}, float eps, "
        "str activation) -> Tensor"
    ),
    "norm_backward": (
        f"(Tensor dy, Tensor x, Tensor? y, {_TERMS}, Tensor? moments, {_RUNNING}, SymInt? groups, "
        "float eps, str activation, ScalarType out_dtype, bool[] needs) "
        "-> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dresidual)"
    ),
}


# --- on real tensors ----------------------------------------------------------------------------


def _values(tensor: Any) -> Any:
    """A tensor whose memory holds its values, in the kernels' order; ``None`` for ``None``.

    It is, but for views that nobody sees while torch traces.
    """
    if tensor is None:
        return None
    tensor = tensor.resolve_neg()
    return tensor if tensor.dim() < 3 or is_channels_last(tensor) else channels_last(tensor)


def _run_group(  # type: ignore[no-untyped-def]
    x, weight, bias, groups, eps, activation, out_dtype
) -> tuple[Tensor, Tensor]:
    x, weight, bias = map(_values, (x, weight, bias))
    running = (None, None)
    plan = plan_of("group", x, groups, weight, bias, None, running, activation, eps, out_dtype)
    call = Call(plan)
    moments = call.moments(x)
    mean, rstd = moments
    return call.normalize(x, (mean, rstd, weight, bias), None), moments


def _run_moments(x, running_mean, running_var, momentum, eps) -> Tensor:  # type: ignore[no-untyped-def]
    x, running = _values(x), (running_mean, running_var)
    plan = plan_of("batch", x, None, None, None, None, running, "identity", eps, x.dtype)
    return Call(plan, *running, True, momentum).moments(x)


def _run_batch(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, moments, running_mean, running_var, eps, activation
) -> Tensor:
    x, weight, bias, residual = map(_values, (x, weight, bias, residual))
    running = (running_mean, running_var)
    plan = plan_of("batch", x, None, weight, bias, residual, running, activation, eps, x.dtype)
    mean, rstd = running if moments is None else moments
    call = Call(plan, uses_batch=moments is not None)
    return call.normalize(x, (mean, rstd, weight, bias), residual)


def _run_backward(  # type: ignore[no-untyped-def]
    dy, x, y, weight, bias, moments, running_mean, running_var, groups, eps, activation,
    out_dtype, needs,
) -> tuple[Tensor, ...]:  # fmt: skip
    x, y, weight, bias = map(_values, (x, y, weight, bias))
    kind, running = "batch" if groups is None else "group", (running_mean, running_var)
    plan = plan_of(kind, x, groups, weight, bias, None, running, activation, eps, out_dtype)  # type: ignore[arg-type]
    mean, rstd = running if moments is None else moments
    call = Call(plan, uses_batch=moments is not None)
    found = call.backward([x, weight, bias, mean, rstd, y], dy, needs)
    # An operator returns no None.
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in found)


# --- on fake tensors ----------------------------------------------------------------------------


def _fake_y(x: Tensor, out_dtype: torch.dtype) -> Tensor:
    return empty_channels_last(x.shape, out_dtype, x.device)


def _fake_moments(x: Tensor, statistics: Any) -> Tensor:
    return x.new_empty((2, statistics), dtype=torch.float32)


def _fake_group(  # type: ignore[no-untyped-def]
    x, weight, bias, groups, eps, activation, out_dtype
) -> tuple[Tensor, Tensor]:
    return _fake_y(x, out_dtype), _fake_moments(x, x.shape[0] * groups)


def _fake_backward(  # type: ignore[no-untyped-def]
    dy, x, y, weight, bias, moments, running_mean, running_var, groups, eps, activation,
    out_dtype, needs,
) -> tuple[Tensor, ...]:  # fmt: skip
    pixels = _fake_y(x, x.dtype)
    gradients = (pixels, weight, bias, pixels)
    return tuple(
        torch.empty_like(like) if is_needed else x.new_empty(0)
        for like, is_needed in zip(gradients, needs, strict=True)
    )


# --- where autograd is --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """Arguments of a normalization other than tensors.

    Attributes:
        groups: ``None`` for BatchNorm.
        eps: Added to variances.
        activation: Its name.
        out_dtype: Dtype of y.
    """

    groups: Any
    eps: float
    activation: str
    out_dtype: torch.dtype


class _Norm(torch.autograd.Function):
    """The differentiable part of a normalization."""

    @staticmethod
    def forward(ctx, x, weight, bias, residual, moments, running_mean, running_var, how):  # type: ignore[no-untyped-def]
        """Returns y."""
        running = (running_mean, running_var)
        y, moments = _forward(x, weight, bias, residual, moments, running, how)
        # y tells where a ReLU after a residual passed, as in the eager call.
        needs_y = residual is not None and how.activation == "relu"
        ctx.save_for_backward(x, weight, bias, moments, *running, y if needs_y else None)
        ctx.has_residual, ctx.how = residual is not None, how
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        """Returns the gradients of x, weight, bias and residual."""
        x, weight, bias, moments, *running, y = ctx.saved_tensors
        how, needs = ctx.how, list(ctx.needs_input_grad[:4])
        if torch.is_grad_enabled():
            groups = how.groups
            images = 1 if groups is None else x.shape[0]
            shape = NormShape(
                images=images, rows=x.numel() // x.shape[1] // images, channels=x.shape[1],
                groups=groups or x.shape[1],
            )  # fmt: skip
            found = differentiable_gradients(
                dy, x, weight, bias, y, shape=shape,
                statistics=running if moments is None else None,
                # For a residual, only where the ReLU passed was saved.
                activation="identity" if ctx.has_residual else how.activation,
                eps=how.eps, out_dtype=how.out_dtype, needs=needs,
            )  # fmt: skip
            return (*found, None, None, None, None)
        is_given = needs[3] and how.activation == "identity"
        if is_given:
            # An operator returns no memory that it gets.
            needs[3] = False
        found = torch.ops.triton_ext.norm_backward.default(
            dy, x, y, weight, bias, moments, *running, how.groups, how.eps, how.activation,
            how.out_dtype, needs,
        )  # fmt: skip
        gradients = [
            gradient if is_needed else None
            for gradient, is_needed in zip(found, needs, strict=True)
        ]
        if is_given:
            gradients[3] = dy
        return (*gradients, None, None, None, None)


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    moments: Tensor | None,
    running: Sequence[Tensor | None],
    how: _How,
) -> tuple[Tensor, Tensor | None]:
    ops = torch.ops.triton_ext
    if how.groups is not None:
        words = (how.groups, how.eps, how.activation, how.out_dtype)
        y, moments = ops.group_norm_forward.default(x, weight, bias, *words)
    else:
        y = ops.batch_norm_forward.default(
            x, weight, bias, residual, moments, *running, how.eps, how.activation
        )
    return y, moments


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    moments: Tensor | None,
    running: Sequence[Tensor | None],
    how: _How,
) -> Tensor:
    if torch.is_grad_enabled() and any(
        [t is not None and t.requires_grad for t in (x, weight, bias, residual)]
    ):
        return _Norm.apply(x, weight, bias, residual, moments, *running, how)
    return _forward(x, weight, bias, residual, moments, running, how)[0]


def _group_norm(  # type: ignore[no-untyped-def]
    x, weight, bias, groups, eps, activation, out_dtype
) -> Tensor:
    how = _How(groups=groups, eps=eps, activation=activation, out_dtype=out_dtype)
    return _norm(x, weight, bias, None, None, (None, None), how)


def _batch_norm(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, running_mean, running_var, training, momentum, eps, activation
) -> Tensor:
    running = (running_mean, running_var)
    how = _How(groups=None, eps=eps, activation=activation, out_dtype=x.dtype)
    moments = None
    if training:
        with torch.no_grad():
            moments = torch.ops.triton_ext.batch_moments.default(x, *running, momentum, eps)
        running = (None, None)
    return _norm(x, weight, bias, residual, moments, running, how)


# --- registration -------------------------------------------------------------------------------

_TRACED: dict[str, Callable[..., Any]] = {"group_norm": _group_norm, "batch_norm": _batch_norm}
_REAL: dict[str, Callable[..., Any]] = {
    "group_norm_forward": _run_group,
    "batch_moments": _run_moments,
    "batch_norm_forward": _run_batch,
    "norm_backward": _run_backward,
}
_FAKE: dict[str, Callable[..., Any]] = {
    "group_norm_forward": _fake_group,
    "batch_moments": lambda x, *_: _fake_moments(x, x.shape[1]),
    "batch_norm_forward": lambda x, *_: _fake_y(x, x.dtype),
    "norm_backward": _fake_backward,
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
            torch.library.impl(qualified, ("CPU", "CUDA"))(torch._disable_dynamo(_REAL[name]))
            torch.library.register_fake(qualified)(_FAKE[name])


_register()
