"""Convolutions seen before under autograd: their forward and backward go to plans at once.

``shortcut.py`` says which calls these are.  A backward is such a call where it is not itself
differentiated and the gradient that it gets is channels-last already.  What it is given is looked
at anew, since hooks may have put other tensors in the place of those that were saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops import shortcut
from triton_ext.ops.arguments import channels_last, pixel_dims
from triton_ext.ops.calls import Walk
from triton_ext.ops.execution import known_dgrad, known_fprop, known_wgrad
from triton_ext.ops.library import conv_gradients, transposed_gradients
from triton_ext.ops.repeats import Repeats

__all__ = ["SeenConvolution"]

Tensor = torch.Tensor

_is_grad_enabled = torch.is_grad_enabled


class SeenConvolution:
    """A forward or a transposed convolution of calls of one look.

    Args:
        forward: Runs its plan with x, weight and bias.
        numbers: All numbers as the caller gave them, of a call with a key.
        walk: Those of the operators.
        is_transposed: Whether it is transposed.
    """

    __slots__ = ("is_transposed", "run", "walk", "words")

    def __init__(
        self,
        forward: Repeats,
        numbers: tuple[object, ...],
        walk: Walk,
        *,
        is_transposed: bool = False,
    ) -> None:
        self.run = forward.run
        self.walk = walk
        self.is_transposed = is_transposed
        #: What a key of its backward has beside the tensors.
        self.words = ("backward", is_transposed, *numbers)

    def differentiate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns y, of which autograd knows where it comes from."""
        y: Tensor = _apply(self, x, weight, bias)
        return y

    def gradients(
        self, x: Tensor, weight: Tensor, grad: Tensor, needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight and bias, computed by the operators."""
        compute = transposed_gradients if self.is_transposed else conv_gradients
        return compute(x, weight, grad, self.walk, needs)

    def gradient_of_x(self, x: Tensor, weight: Tensor, grad: Tensor) -> Repeats | None:
        """Returns what computes that of x, of ``grad`` and weight, as the operators did."""
        if self.is_transposed:
            return known_fprop(grad, weight, None, *self.walk)
        return known_dgrad(grad, weight, None, *self.walk, x.shape[2:])

    def gradient_of_weight(self, x: Tensor, weight: Tensor, grad: Tensor) -> Repeats | None:
        """Returns what computes that of the weight, of :meth:`images`, as the operators did."""
        inputs, outputs = self.images(x, grad)
        return known_wgrad(inputs, outputs, *self.walk, weight.shape[2:])

    def images(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Returns input and output of the convolution whose filter it is."""
        return (grad, x) if self.is_transposed else (x, grad)


@dataclass(slots=True)
class _Gradients:
    """The gradients of calls of one look; ``None`` for one that was not asked for, or is torch's.

    Attributes:
        of_x: Of the gradient of y, and of the weight.
        of_weight: Of ``SeenConvolution.images``.
    """

    of_x: Repeats | None = None
    of_weight: Repeats | None = None

    def covers(self, needs_x: bool, needs_weight: bool) -> bool:
        """Tells whether all that is asked for is here."""
        return not ((needs_x and self.of_x is None) or (needs_weight and self.of_weight is None))


class _Convolution(torch.autograd.Function):
    """A convolution seen before; the derivatives of its gradients are those of the operators."""

    @staticmethod
    def forward(
        ctx: Any, seen: SeenConvolution, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.seen = seen
        ctx.save_for_backward(x, weight)
        return seen.run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        _, *needs = ctx.needs_input_grad
        needs_x, needs_weight, needs_bias = needs
        seen = ctx.seen
        key = None if _is_grad_enabled() else shortcut.look(seen.words, (grad, x, weight))
        known = shortcut.known(key)
        if known is None or not known.covers(needs_x, needs_weight):
            gradients = seen.gradients(x, weight, grad, needs)
            if key is not None and _is_in_order(grad):
                known = known or _Gradients()
                if needs_x:
                    known.of_x = seen.gradient_of_x(x, weight, grad)
                if needs_weight:
                    known.of_weight = seen.gradient_of_weight(x, weight, grad)
                shortcut.keep(key, known)
            return None, *gradients
        dx = known.of_x.run(grad, weight) if needs_x else None
        dw = known.of_weight.run(*seen.images(x, grad)) if needs_weight else None
        return None, dx, dw, grad.sum(pixel_dims(grad)) if needs_bias else None


# What Function.apply asks first, whether a transform is at work, is asked before.
_apply = super(torch.autograd.Function, _Convolution).apply


def _is_in_order(grad: Tensor) -> bool:
    """Tells whether a gradient is dense and channels-last as it is."""
    ordered = channels_last(grad)
    return ordered.data_ptr() == grad.data_ptr() and ordered.stride() == grad.stride()
