"""BatchNorm and GroupNorm as functions, differentiable."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_variadic

from triton_ext.errors import UnsupportedError
from triton_ext.ops.arguments import channels_last
from triton_ext.ops.autocast import is_autocast
from triton_ext.ops.checks import kind_of
from triton_ext.ops.norms.composite import activated, normalized
from triton_ext.ops.norms.norm_config import NormShape
from triton_ext.ops.norms.norm_plan import NormPlan
from triton_ext.ops.norms.refusals import (
    dense_problem,
    is_channels_last,
    is_torchs,
    look,
    norm_problem,
)
from triton_ext.ops.plans import PlanCache

__all__ = ["batch_norm", "group_norm"]

Tensor = torch.Tensor

# The interpreter runs the programs one after another; a few show how parts are merged.
_INTERPRETED_SMS = 1

_plans: PlanCache[NormPlan] = PlanCache()


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call has beside its tensors.

    Attributes:
        plan: Its kernels.
        running_mean: [C] or None.
        running_var: [C] or None.
        uses_batch: Whether statistics are those of x.
        momentum: Of the running statistics.
    """

    plan: NormPlan
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    uses_batch: bool = True
    momentum: float = 0.0

    def forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, means and spreads."""
        with _on_device(x):
            if self.uses_batch:
                mean, spread = self.plan.statistics(
                    x, self.running_mean, self.running_var, self.momentum
                )
                for running in (self.running_mean, self.running_var):
                    if running is not None and not running.is_inference():
                        torch.autograd.graph.increment_version(running)
            else:
                mean, spread = self.running_mean, self.running_var
            y = self.plan.normalize(
                x, residual, mean, spread, weight, bias, is_variance=not self.uses_batch
            )
        return y, mean, spread


def _on_device(x: Tensor) -> Any:
    """Makes the device of a tensor the current one; kernels are launched there."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return _NOTHING


_NOTHING = contextlib.nullcontext()


class _Norm(torch.autograd.Function):
    """A normalization that torch differentiates."""

    @staticmethod
    def forward(ctx, x, weight, bias, residual, call):  # type: ignore[no-untyped-def]
        """Returns y."""
        y, mean, spread = call.forward(x, weight, bias, residual)
        # A ReLU in front of which a residual was added is not computed again: y tells.
        needs_y = residual is not None and call.plan.activation == "relu"
        ctx.save_for_backward(x, weight, bias, mean, spread, y if needs_y else None)
        ctx.has_residual = residual is not None
        ctx.call = _Call(call.plan, uses_batch=call.uses_batch)
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        """Returns the gradients of the tensors."""
        if torch.is_grad_enabled():
            # Somebody is going to differentiate them.
            return (*_differentiable_gradients(ctx, dy), None)
        x, weight, bias, mean, spread, y = ctx.saved_tensors
        plan, is_variance = ctx.call.plan, not ctx.call.uses_batch
        needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
        dy = dy.resolve_neg()
        dy = dy if is_channels_last(dy) else channels_last(dy)
        terms = (mean, spread, weight, bias)
        dx = dweight = dbias = means = None
        g, is_before = dy, plan.activation == "identity"
        writes_g = needs_residual and not is_before
        needs_means = needs_x and not is_variance
        with _on_device(x):
            if writes_g or needs_means or needs_weight or needs_bias:
                parts, written = plan.gradient_sums(x, dy, y, terms, is_variance, writes_g)
                if written is not None:
                    g, y, is_before = written, None, True
                dweight = torch.empty_like(weight) if needs_weight else None
                dbias = torch.empty_like(bias) if needs_bias else None
                if needs_means or needs_weight or needs_bias:
                    means = plan.merge_gradients(parts, weight, dweight, dbias, needs_means)
            if needs_x:
                dx = plan.input_gradient(x, g, y, terms, means, is_variance, is_before)
        return dx, dweight, dbias, g if needs_residual else None, None


def _differentiable_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of torch's operators; torch differentiates them again."""
    x, weight, bias, mean, spread, y = ctx.saved_tensors
    plan = ctx.call.plan
    statistics = None if ctx.call.uses_batch else (mean, spread)
    # Of a residual nothing but where the ReLU passed was saved, which has no derivative.
    activation = "identity" if ctx.has_residual else plan.activation
    if y is not None:
        dy = dy * (y > 0)
    found = normalized(
        x, plan.shape, statistics, weight, bias, activation, plan.eps, plan.out_dtype
    )
    needs = ctx.needs_input_grad[:3]
    inputs = [t for t, is_needed in zip((x, weight, bias), needs, strict=True) if is_needed]
    gradients: Any = iter(())
    if inputs:
        gradients = iter(torch.autograd.grad(found, inputs, dy, create_graph=True))
    return (
        *(next(gradients) if is_needed else None for is_needed in needs),
        dy if ctx.needs_input_grad[3] else None,
    )


def _run(
    call: _Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    if torch.is_grad_enabled() and any(
        [t is not None and t.requires_grad for t in (x, weight, bias, residual)]
    ):
        return _Norm.apply(x, weight, bias, residual, call)
    return call.forward(x, weight, bias, residual)[0]


def _plan_of(
    kind: Literal["batch", "group"],
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    activation: str,
    eps: float,
    out_dtype: torch.dtype,
) -> NormPlan:
    key: Hashable = None
    plan = None
    # Equal numbers of other types are the same key.
    if groups is None or type(groups) is int:
        try:
            key = (kind, groups, activation, eps, out_dtype)
            key = (*key, look(x, weight, bias, residual, *running))
            plan = _plans.get(key)
        except (AttributeError, RuntimeError, TypeError):
            pass  # no tensors, or no hash: the problem says so
    if plan is not None:
        return plan
    problem = norm_problem(kind, x, groups, weight, bias, residual, activation)
    if problem is None:
        problem = _running_problem(x, *running)
    if problem is not None:
        raise UnsupportedError(f"{kind}_norm: {problem}")
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    images = x.shape[0] if kind == "group" else 1
    num_sms = _INTERPRETED_SMS
    if x.is_cuda:
        num_sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    return _plans.keep(
        key,
        NormPlan(
            shape=NormShape(
                images=images, rows=rows // images, channels=channels, groups=groups or channels
            ),
            num_sms=num_sms,
            dtype=x.dtype,
            out_dtype=out_dtype,
            activation=activation,
            eps=eps,
        ),
    )


def _running_problem(x: Tensor, mean: Tensor | None, variance: Tensor | None) -> str | None:
    for name, running in (("running_mean", mean), ("running_var", variance)):
        if running is None:
            continue
        problem = dense_problem(name, running)
        if problem is not None:
            return problem
        if running.shape != (x.shape[1],):
            return f"expected {name} [{x.shape[1]}], got {list(running.shape)}"
        if not running.is_contiguous():
            return f"{name} has strides, expected it packed"
        if running.dtype not in (x.dtype, torch.float32):
            return f"{name} is {running.dtype}: expected float32 or the dtype of x, {x.dtype}"
        if running.device != x.device:
            return f"{name} is on {running.device}, x is on {x.device}"
    return None


def _number(name: str, value: object) -> float:
    """Returns a number as plans know it: a tensor may hold another one at the next call."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}") from None


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
        residual: As x, added in front of the activation, or None.

    Returns:
        y as x.

    Raises:
        UnsupportedError: What :func:`norm_problem` says no kernel takes.
        ValueError: No statistics: not training, and a running one is None.
        TypeError: ``eps`` or ``momentum`` is no number.
    """
    terms = (weight, bias, running_mean, running_var, residual)
    if not torch.compiler.is_compiling() and has_torch_function_variadic(x, *terms):
        result: Tensor = handle_torch_function(
            batch_norm, (x, *terms), x, weight, bias, running_mean, running_var,
            training=training, momentum=momentum, eps=eps, activation=activation,
            residual=residual,
        )  # fmt: skip
        return result
    if is_torchs(x, *terms):
        y = functional.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum or 0.0, eps
        )
        return activated(y if residual is None else y + residual, activation)
    if not training and (running_mean is None or running_var is None):
        raise ValueError(
            "batch_norm: expected running_mean and running_var for training=False, got None"
        )
    eps = _number("batch_norm: eps", eps)
    if momentum is not None:
        momentum = _number("batch_norm: momentum", momentum)
    running = (running_mean, running_var)
    out_dtype = getattr(x, "dtype", torch.float32)
    plan = _plan_of("batch", x, None, weight, bias, residual, running, activation, eps, out_dtype)
    if training and momentum is None:
        running = (None, None)
    call = _Call(plan, *running, training, 0.0 if momentum is None else momentum)
    return _run(call, x, weight, bias, residual)


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
        groups: Into how many groups channels are divided.
        weight: [C], dtype of x or fp32, or None.
        bias: As weight.
        eps: Added to variances.
        activation: As for :func:`batch_norm`.

    Returns:
        y as x; fp32 under autocast, as of ``torch.nn.functional.group_norm``.

    Raises:
        UnsupportedError: What :func:`norm_problem` says no kernel takes.
        TypeError: ``eps`` is no number.
    """
    if not torch.compiler.is_compiling() and has_torch_function_variadic(x, weight, bias):
        result: Tensor = handle_torch_function(
            group_norm, (x, weight, bias), x, groups, weight, bias, eps=eps, activation=activation
        )
        return result
    if is_torchs(x, weight, bias):
        return activated(functional.group_norm(x, groups, weight, bias, eps), activation)
    eps = _number("group_norm: eps", eps)
    out_dtype = getattr(x, "dtype", torch.float32)
    if isinstance(x, Tensor) and is_autocast(x.device.type):
        # In torch's list of what is computed in fp32; the kernel reads x as it is.
        out_dtype = torch.float32
    plan = _plan_of(
        "group", x, groups, weight, bias, None, (None, None), activation, eps, out_dtype
    )
    return _run(_Call(plan), x, weight, bias, None)
