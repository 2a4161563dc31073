"""Bound convolutions: calls with one function key under autograd, whose backward replays too.

A backward has a call key where it is not differentiated itself and its gradient is channels-last.
The key describes the tensors that it is given, because hooks may have replaced the saved ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops.api.execution import Bound, bind_dgrad, bind_fprop, bind_wgrad
from triton_ext.ops.api.library import conv_gradients, transposed_gradients
from triton_ext.ops.core.dispatch_cache import backward_key, cached, keep
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.memory_format import channels_last, pixel_dims
from triton_ext.ops.core.parameters import ConvParameters

__all__ = ["BoundConvolution"]

Tensor = torch.Tensor

_is_grad_enabled = torch.is_grad_enabled


class BoundConvolution:
    """A forward or a transposed convolution, for calls with one function key.

    Args:
        forward: Computes it from x, weight and bias.
        given: All numbers as the caller gave them, of a call with a key.
        parameters: Those of the operators.
        is_transposed: Whether it is transposed.
    """

    __slots__ = ("is_transposed", "parameters", "run", "words")

    def __init__(
        self,
        forward: BoundPlan,
        given: tuple[object, ...],
        parameters: ConvParameters,
        *,
        is_transposed: bool = False,
    ) -> None:
        self.run = forward.run
        self.parameters = parameters
        self.is_transposed = is_transposed
        #: The key of its backward has these beside the tensors.
        self.words = ("backward", is_transposed, *given)

    def differentiate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns y, recorded by autograd."""
        y: Tensor = _apply(self, x, weight, bias)
        return y

    def gradients(
        self, x: Tensor, weight: Tensor, grad: Tensor, needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight and bias, computed by the operators."""
        compute = transposed_gradients if self.is_transposed else conv_gradients
        return compute(x, weight, grad, self.parameters, needs)

    def bind_gradient_of_x(self, x: Tensor, weight: Tensor, grad: Tensor) -> BoundPlan | None:
        """Returns what computes the gradient of x from ``grad`` and weight, if a kernel does."""
        if self.is_transposed:
            return _plan_of(bind_fprop(grad, weight, None, self.parameters))
        return _plan_of(bind_dgrad(grad, weight, None, self.parameters, x.shape[2:]))

    def bind_gradient_of_weight(self, x: Tensor, weight: Tensor, grad: Tensor) -> BoundPlan | None:
        """Returns what computes the gradient of weight from :meth:`images`, if a kernel does."""
        return _plan_of(bind_wgrad(*self.images(x, grad), self.parameters, weight.shape[2:]))

    def images(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Returns input and output of the convolution that has this filter."""
        return (grad, x) if self.is_transposed else (x, grad)


def _plan_of(bound: Bound) -> BoundPlan | None:
    return bound if isinstance(bound, BoundPlan) else None


@dataclass(slots=True)
class _Gradients:
    """Gradients for backwards with one key; ``None`` for one that is torch's or not needed yet.

    Attributes:
        of_x: Computes it from the gradient of y and the weight.
        of_weight: Computes it from ``BoundConvolution.images``.
    """

    of_x: BoundPlan | None = None
    of_weight: BoundPlan | None = None

    def covers(self, needs_x: bool, needs_weight: bool) -> bool:
        """Tells whether all gradients that are needed are here."""
        return not ((needs_x and self.of_x is None) or (needs_weight and self.of_weight is None))


class _Convolution(torch.autograd.Function):
    """A bound convolution; the derivatives of its gradients are those of the operators."""

    @staticmethod
    def forward(
        ctx: Any, bound: BoundConvolution, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.bound = bound
        ctx.save_for_backward(x, weight)
        return bound.run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        _, *needs = ctx.needs_input_grad
        needs_x, needs_weight, needs_bias = needs
        bound = ctx.bound
        key = None if _is_grad_enabled() else backward_key(bound.words, (grad, x, weight))
        found = cached(key)
        if found is None or not found.covers(needs_x, needs_weight):
            gradients = bound.gradients(x, weight, grad, needs)
            if key is not None and _is_in_order(grad):
                found = found or _Gradients()
                if needs_x:
                    found.of_x = bound.bind_gradient_of_x(x, weight, grad)
                if needs_weight:
                    found.of_weight = bound.bind_gradient_of_weight(x, weight, grad)
                keep(key, found)
            return None, *gradients
        dx = found.of_x.run(grad, weight) if needs_x else None
        dw = found.of_weight.run(*bound.images(x, grad)) if needs_weight else None
        return None, dx, dw, grad.sum(pixel_dims(grad)) if needs_bias else None


# Function.apply first asks for transforms, which a call with a key has none of.
_apply = super(torch.autograd.Function, _Convolution).apply


def _is_in_order(grad: Tensor) -> bool:
    """Tells whether a gradient is dense and channels-last as it is."""
    ordered = channels_last(grad)
    return ordered.data_ptr() == grad.data_ptr() and ordered.stride() == grad.stride()
