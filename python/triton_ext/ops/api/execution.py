"""Calls on real tensors: cached plans, or torch's convolution.

:func:`bind` returns what computes the calls with one operator key (shapes, strides, dtypes,
devices, parameters): a :class:`BoundPlan`, or a :class:`Refusal`.  The dispatch cache keeps both.
A :class:`BoundConvolution` computes the calls with one function key under autograd; its backward
replays, too, where it is not differentiated itself and its gradient is channels-last.  The key of a
backward describes the tensors that it is given, because hooks may have replaced the saved ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_ext.ops.api import operators
from triton_ext.ops.api.checks import check, check_pixels
from triton_ext.ops.api.operators import (
    GRADIENTS,
    ConvCall,
    by_torch,
    function_of,
    gradient_call,
    torch_calls,
)
from triton_ext.ops.core.case import Direction
from triton_ext.ops.core.descriptors import channels_last, empty_channels_last, pixel_dims
from triton_ext.ops.core.dispatch_cache import cached, keep, operand_key, tensor_key
from triton_ext.ops.core.epilogue import PLAIN, EpilogueArguments
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.plan import Plan
from triton_ext.ops.core.planner import plan_or_refusal
from triton_ext.ops.core.problem import ConvParameters
from triton_ext.ops.core.refusals import Refusal, address_refusal, residual_refusal, tensor_refusal

Tensor = torch.Tensor

_is_grad_enabled = torch.is_grad_enabled


def run(c: ConvCall) -> Tensor:
    """Returns the output of a call, dense, channels contiguous: ``epilogue.out`` if it is given."""
    bound, epilogue = bind(c), c.epilogue
    fallback = c.fallback and epilogue.function is None
    if epilogue.amax is not None and c.first.shape[0] == 0:
        epilogue.amax.zero_()
    refusal: Refusal | None = None
    if isinstance(bound, Refusal):
        if not (fallback and bound.by_torch):
            raise bound.error()
        refusal = bound
    elif fallback:
        # Without a fallback, the plan itself refuses an address.
        refusal = address_refusal(c.name(), c.pixels())
    if refusal is not None:
        torch_calls.add(refusal.text)
        y = by_torch(c)
        return y if epilogue.out is None else epilogue.out.copy_(y)
    assert isinstance(bound, BoundPlan)
    return bound.plan.run(c.first, c.second, epilogue.operands(), epilogue.out)


def bind(c: ConvCall) -> BoundPlan | Refusal:
    """Returns what computes the output of the call's tensors; not further ones of a function."""
    epilogue, size = c.epilogue, None if c.size is None else tuple(c.size)
    words = (
        *(c.operator.name, c.parameters, size, epilogue.activation, epilogue.out_dtype),
        epilogue.function,
    )
    key = operand_key(words, (*c.tensors(), epilogue.amax))
    bound: BoundPlan | Refusal | None = cached(key)
    if bound is None:
        check(c)
        plan = _plan(c)
        bound = plan if isinstance(plan, Refusal) else BoundPlan(plan)
        keep(key, bound)
    return bound


@dataclass(frozen=True, slots=True)
class _EmptyPlan:
    """The plan of an empty batch: there is nothing to compute."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def run(
        self, first: Tensor, second: Tensor, operands: EpilogueArguments, out: Tensor | None = None
    ) -> Tensor:
        if out is None:
            out = empty_channels_last(self.shape, self.dtype, first.device)
        # A filter gets a sum over no pixels; the other directions have no element to write.
        return out.zero_()


def _plan(c: ConvCall) -> Plan | _EmptyPlan | Refusal:
    """Returns the plan of a call, or its refusal."""
    direction, case = c.operator.direction, c.case(function_of(c.epilogue.function))
    dtype = case.output_dtype
    if direction != "fprop":
        check_pixels(c)
    refusal = tensor_refusal(direction, c.name(), c.pixels())
    refusal = refusal or residual_refusal(c.name(), c.epilogue.residual, dtype)
    plan = refusal or plan_or_refusal(case, c.first.device)
    if isinstance(plan, Refusal) and direction == "fprop":
        # Torch would compute sums of int8 that stay integers modulo 256.
        sums_alone = replace(case.epilogue, out_dtype=None, amax=False) == PLAIN
        by_torch = case.dtype != torch.int8 or dtype.is_floating_point or sums_alone
        return replace(plan, by_torch=by_torch)
    if c.first.shape[0] or isinstance(plan, Refusal):
        return plan
    return _EmptyPlan(c.shapes()[2], dtype)


def gradients(
    direction: Direction,
    tensors: tuple[Tensor, Tensor, Tensor],
    parameters: ConvParameters,
    needs: Sequence[bool],
    calls: Any = None,
    plans: Sequence[BoundPlan | None] | None = None,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of both operands of a direction and, if ``needs`` has it, of the bias.

    ``tensors`` are both operands, and the gradient of the output in any memory order.  ``calls``
    counts the calls, with the names of ``plans``.
    """
    first, second, grad = tensors
    if direction != "wgrad":
        grad = channels_last(grad)  # it may not be
    found: list[Tensor | None] = [None] * len(needs)
    for operand in (0, 1):
        if needs[operand]:
            c = gradient_call(direction, operand, (first, second, grad), parameters)
            before = torch_calls.count
            found[operand] = operators.call(c)
            if calls is not None:
                calls.add_gradient(operand, plans and plans[operand], before)
    if len(needs) > 2 and needs[2]:
        found[2] = grad.sum(pixel_dims(grad))
    return tuple(found)


class BoundConvolution:
    """A forward or a transposed convolution, for calls with one function key.

    Args:
        call: A call of it, without an epilogue but a bias.
        forward: Computes it from the operands and the bias.
        given: All numbers as the caller gave them, of a call with a key.
    """

    __slots__ = ("calls", "count", "direction", "parameters", "plan", "run", "words")

    def __init__(self, call: ConvCall, forward: BoundPlan, given: tuple[object, ...]) -> None:
        self.run, self.plan = forward.run, forward.plan
        self.parameters = call.parameters
        self.direction: Direction = call.operator.direction
        #: The key of its backward has these beside the tensors.
        self.words = ("backward", self.direction, *given)
        #: Counts the gradients; with ``count``, of :meth:`followed`.
        self.calls: Any = None
        self.count = 0

    def followed(self, calls: Any) -> BoundConvolution:
        """Returns a copy whose calls are those of a module; ``calls`` counts their gradients."""
        made = copy(self)
        made.calls = calls
        return made

    def differentiate(self, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the output, recorded by autograd."""
        y: Tensor = _apply(self, first, second, bias)
        return y


#: Why torch computes a call that a kernel takes.
FASTER = "torch, predicted or measured to be faster"


class TorchConvolution:
    """torch's own convolution, for calls with one function key."""

    __slots__ = ("_how", "count")

    def __init__(self, call: ConvCall) -> None:
        self._how = (call.operator, call.parameters, call.size)
        self.count = 0

    def followed(self, calls: Any) -> TorchConvolution:
        """Returns a copy, as :meth:`BoundConvolution.followed`; its gradients are torch's."""
        return copy(self)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """Returns the output; autograd may record it."""
        operator, parameters, size = self._how
        epilogue = EpilogueArguments(bias)
        torch_calls.add(FASTER)
        return by_torch(ConvCall(operator, first, second, epilogue, parameters, size, True))

    differentiate = run


class _Convolution(torch.autograd.Function):
    """A bound convolution; the derivatives of its gradients are those of the operators."""

    @staticmethod
    def forward(
        ctx: Any, bound: BoundConvolution, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.bound = bound
        ctx.save_for_backward(first, second)
        return bound.run(first, second, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        _, *needs = ctx.needs_input_grad
        bound, tensors = ctx.bound, (first, second, grad)
        key = None
        if not _is_grad_enabled():
            key = tensor_key(bound.words, (grad, first, second), is_convolution=True)
        found: list[BoundPlan | None] | None = cached(key)
        if found is None or (needs[0] and not found[0]) or (needs[1] and not found[1]):
            if key is not None and _is_in_order(grad):
                found = found or [None, None]
                for operand in (0, 1):
                    if needs[operand]:
                        call = gradient_call(bound.direction, operand, tensors, bound.parameters)
                        plan = bind(call)
                        found[operand] = plan if isinstance(plan, BoundPlan) else None
                keep(key, found)
            how = (bound.direction, tensors, bound.parameters, needs)
            return None, *gradients(*how, bound.calls, found)
        (_, a, b), (_, c, d) = GRADIENTS[bound.direction]
        dx = found[0].run(tensors[a], tensors[b]) if needs[0] and found[0] else None
        dw = found[1].run(tensors[c], tensors[d]) if needs[1] and found[1] else None
        if bound.calls is not None:
            of_first, of_second = bound.calls.gradients
            if needs[0]:
                of_first[found[0]] += 1
            if needs[1]:
                of_second[found[1]] += 1
        return None, dx, dw, grad.sum(pixel_dims(grad)) if needs[2] else None


# Function.apply first asks for transforms, which a call with a key has none of.
_apply = super(torch.autograd.Function, _Convolution).apply


def _is_in_order(grad: Tensor) -> bool:
    """Tells whether a gradient is dense and channels-last as it is."""
    ordered = channels_last(grad)
    return ordered.data_ptr() == grad.data_ptr() and ordered.stride() == grad.stride()
