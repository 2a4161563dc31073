"""Calls of the kernels of normalizations on tensors with values: their plans, and their order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.graph import increment_version

from triton_ext.errors import UnsupportedError
from triton_ext.ops.arguments import channels_last
from triton_ext.ops.norms.norm_config import NormShape
from triton_ext.ops.norms.norm_plan import NormPlan, Terms, are_aligned
from triton_ext.ops.norms.refusals import is_channels_last, norm_problem, recall, running_problem
from triton_ext.ops.plans import PlanCache

__all__ = ["Call", "plan_of"]

Tensor = torch.Tensor

# The interpreter runs the programs one after another; a few show how parts are merged.
_INTERPRETED_SMS = 1

_plans: PlanCache[NormPlan] = PlanCache()


@dataclass(slots=True)
class Call:
    """What a call has beside its tensors.

    Attributes:
        plan: Its kernels.
        running_mean: [C] or None.
        running_var: [C] or None.
        uses_batch: Whether statistics are those of x.
        momentum: Of the running statistics.
        was_seen: Whether there was one of this look, whose tensors are aligned.
    """

    plan: NormPlan
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    uses_batch: bool = True
    momentum: float = 0.0
    was_seen: bool = False

    def moments(self, x: Tensor) -> Tensor:
        """Returns means and 1 / standard deviations, [2, images * groups]; moves running ones."""
        with _on_device(x):
            is_aligned = are_aligned(x, self.running_mean, self.running_var)
            return self._moments(x, is_aligned)[0]

    def _moments(self, x: Tensor, is_aligned: bool) -> tuple[Tensor, Tensor]:
        """Returns what :meth:`moments` does, and its second row."""
        plan, mean, variance = self.plan, self.running_mean, self.running_var
        moments = torch.empty(2, plan.shape.statistics, dtype=torch.float32, device=x.device)
        rstd = moments[1]
        is_aligned = is_aligned and plan.rows_are_aligned
        # The first row begins where all of it begins.
        plan.statistics(is_aligned, x, moments, rstd, mean, variance, self.momentum)
        if mean is not None and not mean.is_inference():
            increment_version(mean)
        if variance is not None and not variance.is_inference():
            increment_version(variance)
        return moments, rstd

    def forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, means and spreads.

        Means of x lie in front of other numbers; kernels read no further.
        """
        plan, uses_batch = self.plan, self.uses_batch
        mean, spread = self.running_mean, self.running_var
        is_aligned = self.was_seen or are_aligned(x, weight, bias, residual, mean, spread)
        with _on_device(x):
            if uses_batch:
                mean, spread = self._moments(x, is_aligned)
                is_aligned = is_aligned and plan.rows_are_aligned
            terms = (mean, spread, weight, bias)
            return plan.normalize(is_aligned, x, residual, terms, not uses_batch), mean, spread

    def normalize(self, x: Tensor, terms: Terms, residual: Tensor | None) -> Tensor:
        """Returns y; ``terms`` are means, spreads, weight and bias."""
        is_aligned = are_aligned(x, residual, *terms)
        with _on_device(x):
            return self.plan.normalize(is_aligned, x, residual, terms, not self.uses_batch)

    def backward(
        self, x: Tensor, dy: Tensor, y: Tensor | None, terms: Terms, needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight, bias and residual; ``None`` for what needs none.

        Args:
            x: As for the forward.
            dy: Of y's shape; the residual's gradient may be this one.
            y: Where a ReLU is behind a residual, or None.
            terms: As for :meth:`normalize`.
            needs: Of which there are gradients.
        """
        plan, is_variance = self.plan, not self.uses_batch
        needs_x, needs_weight, needs_bias, needs_residual = needs
        _, _, weight, bias = terms
        strides = plan.strides
        if dy.stride() != strides or dy.is_neg():
            dy = _in_order(dy)
        # Hooks may have put others in the place of the saved ones.
        if x.stride() != strides:
            x = _in_order(x)
        if y is not None and y.stride() != strides:
            y = _in_order(y)
        dx = dweight = dbias = means = None
        g, is_before = dy, plan.activation == "identity"
        writes_g = needs_residual and not is_before
        needs_means = needs_x and not is_variance
        with _on_device(x):
            is_aligned = are_aligned(x, dy, y, *terms)
            if writes_g or needs_means or needs_weight or needs_bias:
                parts, written = plan.gradient_sums(
                    is_aligned, x, dy, y, terms, is_variance, writes_g
                )
                if written is not None:
                    g, y, is_before = written, None, True
                dweight = torch.empty_like(weight) if needs_weight else None
                dbias = torch.empty_like(bias) if needs_bias else None
                if needs_means or needs_weight or needs_bias:
                    means = plan.merge_gradients(
                        is_aligned, parts, weight, dweight, dbias, needs_means
                    )
            if needs_x:
                dx = plan.input_gradient(is_aligned, x, g, y, terms, means, is_variance, is_before)
        return dx, dweight, dbias, g if needs_residual else None


def _in_order(tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory holds its values in the order of the kernels."""
    tensor = tensor.resolve_neg()
    return tensor if is_channels_last(tensor) else channels_last(tensor)


def _on_device(x: Tensor) -> Any:
    """Makes the device of a tensor the current one; kernels are launched there."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return _NOTHING


_NOTHING = contextlib.nullcontext()


def plan_of(
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
    """Returns the kernels of a normalization.

    Args:
        kind: ``"batch"`` or ``"group"``.
        x: [N, C, *size].
        groups: Of ``"group"``.
        weight: [C] or None.
        bias: [C] or None.
        residual: As x, or None.
        running: Mean and variance [C], or None.
        activation: Its name.
        eps: Added to variances.
        out_dtype: Of y.

    Raises:
        UnsupportedError: No kernel takes it.
    """
    words = (kind, activation, eps, out_dtype)
    recalled = recall(_plans, groups, words, x, weight, bias, residual, *running)
    key, plan = recalled
    if plan is not None:
        return plan
    problem = norm_problem(kind, x, groups, weight, bias, residual, activation)
    if problem is None:
        problem = running_problem(x, *running)
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
            strides=x.stride(),
            num_sms=num_sms,
            dtype=x.dtype,
            out_dtype=out_dtype,
            activation=activation,
            eps=eps,
        ),
    )
