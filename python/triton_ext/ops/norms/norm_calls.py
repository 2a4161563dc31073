"""Calls of the kernels of normalizations on tensors with values: their plans, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.graph import increment_version

from triton_ext.errors import UnsupportedError
from triton_ext.ops.core.dispatch_cache import keep
from triton_ext.ops.core.memory_format import channels_last
from triton_ext.ops.norms.norm_arguments import check_fit
from triton_ext.ops.norms.norm_config import NormShape
from triton_ext.ops.norms.norm_launches import are_aligned
from triton_ext.ops.norms.norm_plan import NormPlan, Terms
from triton_ext.ops.norms.refusals import is_channels_last, norm_problem, recall, running_refusal

__all__ = ["Call", "plan_of"]

Tensor = torch.Tensor

# The interpreter runs the programs one after another; a few show how parts are merged.
_INTERPRETED_SMS = 1


@dataclass(slots=True)
class Call:
    """Arguments of a call other than x, weight, bias and residual.

    Attributes:
        plan: Its kernels.
        running_mean: [C] or None.
        running_var: [C] or None.
        uses_batch: Whether statistics are those of x.
        momentum: How far running statistics are moved, from 0 to 1.
        is_cached: Whether the plan was cached for the call's key, so that its tensors are aligned.
        batches: int64 [], how many batches there were, to be counted where statistics are those of
            x; or None.
    """

    plan: NormPlan
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    uses_batch: bool = True
    momentum: float = 0.0
    is_cached: bool = False
    batches: Tensor | None = None

    def moments(self, x: Tensor) -> Tensor:
        """Returns means and rstd, [2, images * groups]; moves running ones."""
        return self._forward(x, None, None, None, None)[0]

    def forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, means and rstd.

        Means of x are followed by other numbers, which kernels do not read.
        """
        plan = self.plan
        if self.uses_batch:
            y = torch.empty_like(x, dtype=plan.out_dtype)
            mean, rstd = self._forward(x, weight, bias, residual, y)
            return y, mean, rstd
        mean, rstd = self.running_mean, self.running_var
        return self.normalize(x, (mean, rstd, weight, bias), residual), mean, rstd

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
        moments = torch.empty(2, plan.shape.statistics, dtype=torch.float32, device=device)
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
        """Returns y; ``terms`` are means, rstd, weight and bias."""
        plan = self.plan
        y = torch.empty_like(x, dtype=plan.out_dtype)
        tensors = (x, residual, y, *terms)
        is_aligned = self.is_cached or are_aligned(*tensors)
        plan.normalize(not self.uses_batch).launch(tensors, is_aligned)
        return y

    def backward(
        self, saved: list[Tensor | None], dy: Tensor, needs: Sequence[bool]
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
        strides = plan.strides
        given = dy
        if dy.stride() != strides or dy.is_neg():
            dy = _in_order(dy)
        y = saved.pop()
        x, terms = self._checked(saved, y)
        saved.clear()
        if x.stride() != strides:
            x = _in_order(x)
        if y is not None and y.stride() != strides:
            y = _in_order(y)
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
        _, _, weight, bias = terms
        dweight = torch.empty_like(weight) if needs_weight else None
        dbias = torch.empty_like(bias) if needs_bias else None
        # Where it is short, dx may have the memory of a y that nobody else has.
        in_two = how.in_two if is_own and y is not None else None
        dx = torch.empty_like(x) if needs_x and in_two is None else None
        tensors = (x, dy, y, g, *terms, parts, means, dweight, dbias, dx, None)
        is_aligned = are_aligned(x, dy, y, *terms)
        if in_two is not None:
            others, of_x = in_two
            others.launch(tensors, is_aligned)
            del y, tensors
            dx = torch.empty_like(x)
            tensors = (x, dy, None, g, *terms, parts, means, dweight, dbias, dx, None)
            of_x.launch(tensors, is_aligned)
        else:
            how.launches.launch(tensors, is_aligned)
        if needs_residual and g is None:
            g = dy
        return dx, dweight, dbias, g

    def _checked(self, saved: Sequence[Any], y: Tensor | None) -> tuple[Tensor, Terms]:
        """Returns x and the terms of :meth:`normalize`, of the dtypes that the forward had."""
        x, weight, bias, mean, rstd = saved
        plan = self.plan
        # Hooks may have put others in the place of the saved ones.
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
        return x, (mean, rstd, weight, bias)


def _in_order(tensor: Tensor) -> Tensor:
    """Returns a tensor whose memory holds its values in the order of the kernels."""
    tensor = tensor.resolve_neg()
    return tensor if is_channels_last(tensor) else channels_last(tensor)


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
        groups: Number of groups, for ``"group"``.
        weight: [C] or None.
        bias: [C] or None.
        residual: As x, or None.
        running: Mean and variance [C], or None.
        activation: Its name.
        eps: Added to variances.
        out_dtype: Dtype of y.

    Raises:
        UnsupportedError: No kernel takes it.
        TypeError: As :func:`check_fit`.
        ValueError: As :func:`check_fit`.
    """
    words = ("norm_plan", kind, activation, eps, out_dtype)
    key, plan = recall(groups, words, x, weight, bias, residual, *running)
    if plan is not None:
        return plan
    check_fit(f"{kind}_norm", x, groups, weight, bias, residual, *running)
    refusal = norm_problem(kind, x, groups, weight, bias, residual, activation)
    if refusal is None:
        refusal = running_refusal(x, *running)
    if refusal is not None:
        raise UnsupportedError(f"{kind}_norm: {refusal}")
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    images = x.shape[0] if kind == "group" else 1
    num_sms = _INTERPRETED_SMS
    if x.is_cuda:
        num_sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    return keep(
        key,
        NormPlan(
            shape=NormShape(
                images=images, rows=rows // images, channels=channels, groups=groups or channels
            ),
            strides=x.stride(),
            term_dtypes=tuple([None if t is None else t.dtype for t in (*running, weight, bias)]),
            num_sms=num_sms,
            dtype=x.dtype,
            out_dtype=out_dtype,
            activation=activation,
            eps=eps,
        ),
    )
