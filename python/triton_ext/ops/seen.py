"""Convolutions seen before under autograd: their forward and backward go to plans at once.

``shortcut.py`` says which calls these are.  A backward is such a call where it is not itself
differentiated and the gradient that it gets is channels-last already.  What it is given is looked
at anew, since hooks may have put other tensors in the place of those that were saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.ops import calls, shortcut
from triton_ext.ops.arguments import channels_last, pixel_dims
from triton_ext.ops.calls import Walk
from triton_ext.ops.execution import known_dgrad, known_wgrad
from triton_ext.ops.library import conv_gradients
from triton_ext.ops.repeats import Repeats

__all__ = ["SeenConvolution"]

Tensor = torch.Tensor

_is_grad_enabled = torch.is_grad_enabled


class SeenConvolution:
    """A forward convolution of calls of one look.

    Args:
        forward: Runs its plan with x, weight and bias.
        numbers: Stride, padding, dilation and groups as the caller gave them, of a call with a key.
        walk: The same as the operators have them.
    """

    __slots__ = ("numbers", "run", "walk")

    def __init__(self, forward: Repeats, numbers: tuple[object, ...], walk: Walk) -> None:
        self.run = forward.run
        self.numbers = ("backward", *numbers)
        self.walk = walk

    def differentiate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns y, of which autograd knows where it comes from."""
        y: Tensor = _apply(self, x, weight, bias)
        return y


@dataclass(slots=True)
class _Gradients:
    """The gradients of calls of one look; ``None`` for one that was not asked for, or is torch's.

    Attributes:
        of_x: Of dy and weight.
        of_weight: Of x and dy.
    """

    of_x: Repeats | None = None
    of_weight: Repeats | None = None


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
        seen = ctx.seen
        key = None
        if not _is_grad_enabled():
            key = shortcut.look(seen.numbers, (grad, x, weight))
        known = shortcut.known(key)
        needs_x, needs_weight, needs_bias = needs
        if known is None:
            gradients = conv_gradients(x, weight, grad, seen.walk, needs)
            if key is not None and _is_in_order(grad):
                known = _Gradients()
                if needs_x:
                    known.of_x = known_dgrad(grad, weight, None, *seen.walk, x.shape[2:])
                if needs_weight:
                    known.of_weight = known_wgrad(x, grad, *seen.walk, weight.shape[2:])
                shortcut.keep(key, known)
            return None, *gradients
        dx = _of_x(known, x, weight, grad, seen.walk) if needs_x else None
        dw = _of_weight(known, x, weight, grad, seen.walk) if needs_weight else None
        return None, dx, dw, grad.sum(pixel_dims(grad)) if needs_bias else None


# What Function.apply asks first, whether a transform is at work, is asked before.
_apply = super(torch.autograd.Function, _Convolution).apply


def _of_x(known: _Gradients, x: Tensor, weight: Tensor, dy: Tensor, walk: Walk) -> Tensor:
    if known.of_x is not None:
        return known.of_x.run(dy, weight)
    size = x.shape[2:]
    dx = calls.dgrad(dy, weight, None, *walk, size, True)
    known.of_x = known_dgrad(dy, weight, None, *walk, size)
    return dx


def _of_weight(known: _Gradients, x: Tensor, weight: Tensor, dy: Tensor, walk: Walk) -> Tensor:
    if known.of_weight is not None:
        return known.of_weight.run(x, dy)
    size = weight.shape[2:]
    dw = calls.wgrad(x, dy, *walk, size, True)
    known.of_weight = known_wgrad(x, dy, *walk, size)
    return dw


def _is_in_order(grad: Tensor) -> bool:
    """Tells whether a gradient is dense and channels-last as it is."""
    ordered = channels_last(grad)
    return ordered.data_ptr() == grad.data_ptr() and ordered.stride() == grad.stride()
