"""Calls of the kernels on tensors with values; the same of torch's operators for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn import functional

from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.dispatch_cache import keep
from triton_ext.ops.norms.checks import is_channels_last, recall, refusal
from triton_ext.ops.norms.plan import NormPlan, NormShape, are_aligned

__all__ = ["Call", "activated", "differentiable_gradients", "in_order", "plan_of"]

Tensor = torch.Tensor
#: Means, rstd, weight and bias.
Terms = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

# The interpreter runs the programs one after another; a few show how parts are merged.
_INTERPRETED_SMS = 1


def plan_of(
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
    """Returns the kernels of a normalization: GroupNorm, or BatchNorm where groups are ``None``.

    Raises:
        UnsupportedError: No kernel takes it.
        TypeError: A value that is no dense tensor; unknown or mixed dtypes.
        ValueError: Sizes, groups, devices or an activation that do not fit.
    """
    words = ("norm_plan", activation, eps, out_dtype)
    key, found = recall(groups, words, x, weight, bias, residual, *running)
    if found is not None:
        plan: NormPlan = found
        return plan
    names = ("weight", "bias", "running_mean", "running_var")
    terms = dict(zip(names, (weight, bias, *running), strict=True))
    refused = refusal(x, groups, terms, residual, activation)
    if refused is not None:
        norm = "batch_norm" if groups is None else "group_norm"
        raise refused.kind(f"{norm}: {refused.text}")
    num_sms = _INTERPRETED_SMS
    if x.is_cuda:
        num_sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    plan = NormPlan(
        shape=NormShape.of(x, groups),
        strides=x.stride(),
        term_dtypes=tuple([None if t is None else t.dtype for t in (*running, weight, bias)]),
        num_sms=num_sms,
        dtype=x.dtype,
        out_dtype=out_dtype,
        activation=activation,
        eps=eps,
    )
    return keep(key, plan)


def in_order(tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory holds its values in the order of the kernels."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.dim() < 3 or is_channels_last(tensor) else channels_last(tensor)


@dataclass(slots=True)
class Call:
    """Arguments of a call other than x, weight, bias and residual."""

    plan: NormPlan
    running_mean: Tensor | None = None  # [C]
    running_var: Tensor | None = None  # [C]
    uses_batch: bool = True  # whether statistics are those of x
    momentum: float = 0.0  # how far running statistics are moved, from 0 to 1
    is_cached: bool = False  # whether the plan was cached for the call's key: tensors are aligned
    batches: Tensor | None = None  # int64 [], counts batches where statistics are those of x

    def moments(self, x: Tensor) -> Tensor:
        """Returns means and rstd, [2, images * groups]; moves running ones."""
        return self._forward(x, None, None, None, None)[0]

    def forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, means and rstd.

        Means of x are followed by other numbers, which kernels do not read.
        """
        if self.uses_batch:
            y = torch.empty_like(x, dtype=self.plan.out_dtype)
            mean, rstd = self._forward(x, weight, bias, residual, y)
            return y, mean, rstd
        statistics: Any = (self.running_mean, self.running_var)
        return self.normalize(x, (*statistics, weight, bias), residual), *statistics

    def _forward(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        y: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Writes y, if there is one; returns the statistics of x and its second row."""
        plan, device = self.plan, x.device
        mean, variance, batches = self.running_mean, self.running_var, self.batches
        size = plan.means_size // 2
        moments = torch.empty(2, size, dtype=torch.float32, device=device)
        rstd = moments[1]
        parts = torch.empty(plan.parts_size, dtype=torch.float32, device=device)
        # The first row begins where all of it begins.
        tensors = (x, residual, y, moments, rstd, weight, bias, parts, mean, variance, batches)
        is_aligned = are_aligned(rstd) if self.is_cached else are_aligned(*tensors)
        has_mean, has_variance = mean is not None, variance is not None
        key = (self.momentum, has_mean, has_variance, batches is not None, y is not None)
        plan.forward(key).launch(tensors, is_aligned)
        # Versions of running statistics stay, as after torch's call: a backward in training mode
        # reads none of them, and may run after this call.
        if batches is not None and not batches.is_inference():
            increment_version(batches)
        return moments, rstd

    def normalize(self, x: Tensor, terms: Terms, residual: Tensor | None) -> Tensor:
        """Returns y of means, rstd, weight and bias."""
        plan = self.plan
        y = torch.empty_like(x, dtype=plan.out_dtype)
        tensors = (x, residual, y, *terms)
        is_aligned = self.is_cached or are_aligned(*tensors)
        plan.normalize(not self.uses_batch).launch(tensors, is_aligned)
        return y

    def backward(
        self, saved: list[Any], dy: Tensor, needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight, bias and residual; ``None`` for what needs none.

        Args:
            saved: x, weight, bias, means and rstd as for the forward, and y where a ReLU
                follows a residual, or None.  Emptied, so that tensors without other owners are
                freed when no kernel reads them any more.
            dy: [N, C, *size]; the residual's gradient may be this tensor.
            needs: Which gradients are computed.

        Raises:
            TypeError: A saved tensor came back in another dtype.
        """
        plan = self.plan
        self._check(*saved)
        x, weight, bias, mean, rstd, y = saved
        saved.clear()
        strides, given = plan.strides, dy
        if dy.stride() != strides or dy.is_neg():
            dy = in_order(dy)
        if x.stride() != strides:
            x = in_order(x)
        if y is not None and y.stride() != strides:
            y = in_order(y)
        needs_x, needs_weight, needs_bias, needs_residual = needs
        how = plan.gradients((tuple(needs), y is not None, not self.uses_batch))
        device, wide = x.device, torch.float32
        parts = torch.empty(plan.parts_size, dtype=wide, device=device) if how.adds else None
        means = torch.empty(plan.means_size, dtype=wide, device=device) if how.needs_means else None
        # A copy, as of the gradient that comes from pooling, is written over: autograd keeps the
        # one that it was made of, and at the end of a network is where memory is short.
        is_own = dy.data_ptr() != given.data_ptr() and dy.dtype is x.dtype
        g = None
        if how.writes_g:
            g = dy if is_own else torch.empty_like(x)
        dweight = torch.empty_like(weight) if needs_weight else None
        dbias = torch.empty_like(bias) if needs_bias else None
        # Where it is short, dx may have the memory of a y that nobody else has.
        in_two = how.in_two if is_own and y is not None else None
        dx = torch.empty_like(x) if needs_x and in_two is None else None
        terms = (mean, rstd, weight, bias)
        tensors = (x, dy, y, g, *terms, parts, means, dweight, dbias, dx, None)
        is_aligned = are_aligned(x, dy, y, *terms)
        if in_two is None:
            how.launches.launch(tensors, is_aligned)
        else:
            others, of_x = in_two
            others.launch(tensors, is_aligned)
            del y, tensors
            dx = torch.empty_like(x)
            tensors = (x, dy, None, g, *terms, parts, means, dweight, dbias, dx, None)
            of_x.launch(tensors, is_aligned)
        if needs_residual and g is None:
            g = dy
        return dx, dweight, dbias, g

    def _check(self, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any) -> None:
        """Refuses saved tensors that are not of the forward's dtypes: hooks may replace them."""
        plan = self.plan
        of_mean, of_rstd, of_weight, of_bias = plan.term_dtypes
        if self.uses_batch:
            of_mean = of_rstd = torch.float32
        if (
            x.dtype is not plan.dtype
            or mean.dtype is not of_mean
            or rstd.dtype is not of_rstd
            or (weight is not None and weight.dtype is not of_weight)
            or (bias is not None and bias.dtype is not of_bias)
            or (y is not None and y.dtype is not plan.out_dtype)
        ):
            raise TypeError(
                f"hooks on saved tensors gave back x as {x.dtype} and means as {mean.dtype}, "
                f"expected {plan.dtype} and {of_mean}, and all others as they were"
            )


# ---- With torch's operators ---------------------------------------------------------------------

_FUNCTIONS: dict[str, Any] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
}


def activated(y: Tensor, activation: str) -> Tensor:
    """Applies an activation by its name."""
    return y if activation == "identity" else _FUNCTIONS[activation](y)


def _normalized(
    x: Tensor,
    shape: NormShape,
    statistics: Sequence[Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalizes in fp32, differentiable to any order."""
    channel = (1, -1, *(1,) * (x.dim() - 2))
    wide = x.float()
    if statistics is not None:
        mean, variance = (each.float().view(channel) for each in statistics)
        y = (wide - mean) * torch.rsqrt(variance + eps)
    elif shape.images == shape.group_channels == 1:
        # Channels of all images, or of one image whose groups are channels.
        dims = [0, *range(2, x.dim())]
        variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
        y = (wide - mean) * torch.rsqrt(variance + eps)
    else:
        parts = wide.unflatten(1, (shape.groups, -1)).flatten(2)
        variance, mean = torch.var_mean(parts, 2, correction=0, keepdim=True)
        y = ((parts - mean) * torch.rsqrt(variance + eps)).view(x.shape)
    if weight is not None:
        y = y * weight.float().view(channel)
    return y if bias is None else y + bias.float().view(channel)


def differentiable_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    *,
    shape: NormShape,
    statistics: Sequence[Tensor] | None,
    activation: str,
    eps: float,
    out_dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Returns gradients of x, weight, bias and residual, which torch differentiates again.

    Args:
        dy: Gradient of the result.
        x: [N, C, *size].
        weight: [C] or None.
        bias: [C] or None.
        y: Output of a ReLU after a residual, which tells where it passed; or None.
        shape: Which elements are normalized together.
        statistics: Mean and variance [C]; ``None`` for those of x.
        activation: Its name; of no meaning with a y.
        eps: Added to variances.
        out_dtype: Dtype of the result.
        needs: Which gradients are computed.
    """
    if y is not None:
        dy, activation = dy * (y > 0), "identity"
    found = activated(_normalized(x, shape, statistics, weight, bias, eps), activation)
    terms = zip((x, weight, bias), needs[:3], strict=True)
    inputs = [term for term, is_needed in terms if is_needed]
    gradients: Any = iter(())
    if inputs:
        gradients = iter(torch.autograd.grad(found.to(out_dtype), inputs, dy, create_graph=True))
    return (
        *(next(gradients) if is_needed else None for is_needed in needs[:3]),
        dy if needs[3] else None,
    )
