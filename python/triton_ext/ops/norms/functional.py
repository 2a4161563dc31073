"""BatchNorm and GroupNorm as differentiable functions, and the operators of compiled graphs.

A traced function calls operators; eager calls need none:

    GroupNorm     norm_forward                    backward: norm_backward
    BatchNorm     batch_moments, norm_forward     backward: norm_backward

Only ``batch_moments`` writes, to the running statistics, and it is not differentiated: so a graph
moves them once per call, whatever it computes again for a backward.  Statistics of x are one tensor
[2, images * groups], means and rstd.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_variadic

from triton_ext.ops.api.checks import check_groups
from triton_ext.ops.core.descriptors import empty_channels_last
from triton_ext.ops.core.dispatch_cache import (
    PLAIN_TYPES,
    cached,
    is_autocast,
    is_differentiated,
    keep,
    tensor_key,
)
from triton_ext.ops.core.epilogue import apply_activation
from triton_ext.ops.norms.checks import (
    NUMBERS,
    Kind,
    check_kinds,
    is_left_to_torch,
    is_operator,
    number,
    plan_of,
    refusal,
)
from triton_ext.ops.norms.plan import NOT_RUNNING, NormPlan, NormShape, Running, in_order

Tensor = torch.Tensor
Term = Tensor | None


def activated(y: Tensor, activation: str) -> Tensor:
    """Applies an activation by its name."""
    return y if activation == "identity" else apply_activation(y, activation)


def _normalized(
    x: Tensor, shape: NormShape, statistics: Sequence[Tensor] | None, weight: Term, bias: Term,
    eps: float,
) -> Tensor:  # fmt: skip
    """Normalizes in fp32, differentiable to any order."""
    channel = (1, -1, *(1,) * (x.dim() - 2))
    wide = x.float()
    if statistics is not None:
        mean, variance = (each.float().view(channel) for each in statistics)
    elif shape.images == shape.group_channels == 1:
        # Channels of all images, or of one image whose groups are channels.
        dims = [0, *range(2, x.dim())]
        variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    else:
        wide = wide.unflatten(1, (shape.groups, -1)).flatten(2)
        variance, mean = torch.var_mean(wide, 2, correction=0, keepdim=True)
    y = ((wide - mean) * torch.rsqrt(variance + eps)).view(x.shape)
    if weight is not None:
        y = y * weight.float().view(channel)
    return y if bias is None else y + bias.float().view(channel)


def differentiable_gradients(
    dy: Tensor, saved: Sequence[Any], needs: Sequence[bool], shape: NormShape,
    statistics: Sequence[Tensor] | None, eps: float, activation: str, out_dtype: torch.dtype,
) -> tuple[Term, ...]:  # fmt: skip
    """Returns gradients of x, weight, bias and residual, which torch differentiates again.

    ``saved`` are x, weight, bias and y, the output of a ReLU after a residual, which tells where it
    passed, or None.  Statistics are mean and variance [C], ``None`` for those of x.
    """
    x, weight, bias, y = saved
    if y is not None:
        dy, activation = dy * (y > 0), "identity"
    found = activated(_normalized(x, shape, statistics, weight, bias, eps), activation)
    inputs = [term for term, is_needed in zip(saved, needs[:3], strict=False) if is_needed]
    gradients: Any = iter(())
    if inputs:
        gradients = iter(torch.autograd.grad(found.to(out_dtype), inputs, dy, create_graph=True))
    first = [next(gradients) if is_needed else None for is_needed in needs[:3]]
    return *first, dy if needs[3] else None


class _Norm(torch.autograd.Function):
    """A normalization that torch differentiates."""

    @staticmethod
    def forward(ctx, x, weight, bias, residual, plan, running, is_aligned):  # type: ignore[no-untyped-def]
        """Returns y."""
        y, mean, rstd = plan.forward(x, weight, bias, residual, running, is_aligned)
        if not plan.uses_batch:
            # A call in training mode may move them before the backward, unnoticed by autograd.
            mean, rstd = mean.clone(), rstd.clone()
        # y tells where a ReLU after a residual passed, which is not computed again.
        needs_y = residual is not None and plan.activation == "relu"
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if needs_y else None)
        ctx.has_residual = residual is not None
        ctx.plan = plan
        return y

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        """Returns the gradients of the tensors."""
        plan, saved, needs = ctx.plan, list(ctx.saved_tensors), ctx.needs_input_grad[:4]
        nothing = (None, None, None)
        is_differentiated = torch.is_grad_enabled()
        # The gradients will be differentiated, or dy is a batch of gradients (is_grads_batched).
        if is_differentiated or not torch._C._has_storage(dy):
            x, weight, bias, mean, rstd, y = saved
            statistics = None if plan.uses_batch else (mean, rstd)
            with torch.enable_grad():
                found = differentiable_gradients(
                    dy, (x, weight, bias, y), needs, plan.shape, statistics,
                    plan.eps, plan.activation, plan.out_dtype,
                )  # fmt: skip
            if not is_differentiated:
                # Legacy vmap, which torch.autograd.grad uses, has no detach().
                found = tuple(None if t is None else t.clone() for t in found)
            return *found, *nothing
        if torch.compiler.is_compiling():
            # Compiled autograd traces the backward of eager calls.
            return *_untraced_gradients(plan, saved, dy, needs), *nothing
        if ctx.has_residual:
            # Where the graph is not kept, tensors saved for this backward alone are freed in it.
            ctx.maybe_clear_saved_tensors()
        return *plan.backward(saved, dy, needs), *nothing


_untraced_gradients: Any = torch._disable_dynamo(NormPlan.backward)

# Function.apply first asks for transforms, and for tensors that they left behind, which a call with
# a key has none of.
_apply: Any = super(torch.autograd.Function, _Norm).apply


def normalize(
    plan: NormPlan, x: Tensor, weight: Term, bias: Term, residual: Term = None,
    running: Running = NOT_RUNNING, is_cached: bool = False,
) -> Tensor:  # fmt: skip
    """Returns y of a call with its plan; autograd records it.

    The plan of a call with a key is cached for that, so that all tensors are aligned.
    """
    if is_differentiated(x, weight, bias, residual):
        apply = _apply if is_cached else _Norm.apply
        y: Tensor = apply(x, weight, bias, residual, plan, running, is_cached)
        return y
    return plan.forward(x, weight, bias, residual, running, is_cached)[0]


def norm_key(tensors: tuple[Any, ...], how: Any, activation: Any, eps: Any) -> Hashable:
    """Returns the key of a call, under which its plan is cached; ``None`` if it has none.

    ``how`` is ``training`` of BatchNorm, a bool, or ``groups`` of GroupNorm, an int.  Nothing was
    checked: all may be anything.
    """
    # Equal values of other types are other arguments.
    kind = type(how)
    if type(eps) is not float or type(activation) is not str or not (kind is bool or kind is int):
        return None
    if has_torch_function_variadic(*tensors):
        return None
    x = tensors[0]
    # Other classes have no key.
    is_wide = kind is int and type(x) in PLAIN_TYPES and is_autocast(x.device.type)
    return tensor_key(("norm", kind, how, is_wide, activation, eps), tensors)


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
        residual: As x, added before the activation, or None.

    Returns:
        y as x.

    Raises:
        UnsupportedError: A normalization that no kernel takes; :func:`norm_problem` says why.
        ValueError: Sizes or devices that do not fit each other; an activation that there is not;
            no statistics: not training, and a running one is None; ``eps`` is negative.
        TypeError: A value that is not a dense tensor; ``training`` that is not a bool; ``eps`` or
            ``momentum`` that is not a number; mixed dtypes.
    """
    given = (x, weight, bias, running_mean, running_var, residual)
    key = norm_key(given, training, activation, eps)
    plan = cached(key)
    if plan is not None and type(momentum) is float:
        running = Running(running_mean, running_var, momentum)
        return normalize(plan, x, weight, bias, residual, running, is_cached=True)
    how = {"training": training, "momentum": momentum, "eps": eps, "activation": activation}
    if not torch.compiler.is_compiling() and has_torch_function_variadic(*given):
        result: Tensor = handle_torch_function(
            batch_norm, given, *given[:5], residual=residual, **how
        )
        return result
    numbers = {"eps": eps} if momentum is None else {"momentum": momentum, "eps": eps}
    check_kinds("batch_norm", given, numbers, activation)
    if not isinstance(training, (bool, torch.SymBool)):
        raise TypeError(f"batch_norm: training must be a bool, got {training!r}")
    if not training and (running_mean is None or running_var is None):
        raise ValueError(
            "batch_norm: expected running_mean and running_var for training=False, got None"
        )
    return _compute("batch_norm", key, given, None, training, momentum, eps, activation)


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
        groups: Number of groups that the channels divide into.
        weight: [C], dtype of x or fp32, or None.
        bias: As weight.
        eps: Added to variances.
        activation: As for :func:`batch_norm`.

    Returns:
        y as x; fp32 under autocast, as of ``torch.nn.functional.group_norm``.

    Raises:
        UnsupportedError: A normalization that no kernel takes; :func:`norm_problem` says why.
        ValueError: As :func:`batch_norm`; groups that are not an integer, or into which channels do
            not divide.
        TypeError: As :func:`batch_norm`.
    """
    given = (x, weight, bias)
    key = norm_key(given, groups, activation, eps)
    plan = cached(key)
    if plan is not None:
        return normalize(plan, x, weight, bias, is_cached=True)
    if not torch.compiler.is_compiling() and has_torch_function_variadic(*given):
        result: Tensor = handle_torch_function(
            group_norm, given, x, groups, weight, bias, eps=eps, activation=activation
        )
        return result
    check_kinds("group_norm", given, {"eps": eps}, activation)
    check_groups("group_norm", groups)
    every = (*given, None, None, None)
    return _compute("group_norm", key, every, groups, True, 0.0, eps, activation)


def _compute(
    name: str, key: Hashable, given: tuple[Any, ...], groups: int | None, training: bool,
    momentum: Any, eps: Any, activation: str,
) -> Tensor:  # fmt: skip
    """Returns y of a call without a cached plan; BatchNorm's has no groups."""
    x, weight, bias, mean, variance, residual = given
    # Autocast computes GroupNorm in fp32; the kernel reads x as it is.
    is_wide = groups is not None and is_autocast(x.device.type)
    out_dtype = torch.float32 if is_wide else x.dtype
    if is_left_to_torch(*given):
        kind: Kind = "group" if groups is not None else "training" if training else "evaluation"
        # A graph holds no numbers of tensors, which have others at its next run.
        are_numbers = isinstance(eps, NUMBERS) and isinstance(momentum, (type(None), *NUMBERS))
        is_held = are_numbers and (groups is None or type(groups) is int)
        if is_operator(kind) and is_held and refusal(given, groups, activation) is None:
            moments = None
            if kind == "training":
                moved = (mean, variance) if momentum is not None else (None, None)
                with torch.no_grad():
                    moments = _operators.batch_moments.default(x, *moved, momentum or 0.0, eps)
                mean = variance = None
            y: Tensor = _operators.norm_forward.default(
                x, weight, bias, residual, moments, mean, variance, groups, eps, activation,
                out_dtype,
            )[0]  # fmt: skip
            return y
        if groups is None:
            y = functional.batch_norm(
                x, mean, variance, weight, bias, training, momentum or 0.0, eps
            )
        else:
            y = functional.group_norm(x, groups, weight, bias, eps)
        return activated(y if residual is None else y + residual, activation)
    eps = number(f"{name}: eps", eps)
    if not eps >= 0.0:  # a root is taken of it
        raise ValueError(f"{name}: eps must not be negative, got {eps}")
    if momentum is not None:
        momentum = number(f"{name}: momentum", momentum)
    groups = None if groups is None else int(groups)
    plan = keep(key, plan_of(given, groups, training, activation, eps, out_dtype))
    running = NOT_RUNNING if training and momentum is None else Running(mean, variance, momentum)
    return normalize(plan, x, weight, bias, residual, running)


_operators: Any = torch.ops.triton_ext
_TERMS = "Tensor? weight, Tensor? bias"
_MOVED = "Tensor(a!)? running_mean, Tensor(b!)? running_var"
_STATISTICS = "Tensor? moments, Tensor? running_mean, Tensor? running_var"
_REST = "SymInt? groups, float eps, str activation, ScalarType out_dtype"


def _plan(
    x: Tensor, weight: Term, bias: Term, residual: Term, running: Sequence[Term], uses_batch: bool,
    groups: int | None, eps: float, activation: str, out_dtype: torch.dtype,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns a plan, x, weight, bias and residual, in the memory order that tracing cannot see."""
    tensors = [None if each is None else in_order(each) for each in (x, weight, bias, residual)]
    given = (*tensors[:3], *running, tensors[3])
    return plan_of(given, groups, uses_batch, activation, eps, out_dtype), *tensors


def _run_moments(x, running_mean, running_var, momentum, eps) -> Tensor:  # type: ignore[no-untyped-def]
    running = (running_mean, running_var)
    plan, x, *_ = _plan(x, None, None, None, running, True, None, eps, "identity", x.dtype)
    found: Tensor = plan.forward(x, running=Running(*running, momentum), has_y=False)[1]
    return found


def _fake_moments(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _run_forward(  # type: ignore[no-untyped-def]
    x, weight, bias, residual, moments, running_mean, running_var, *rest
) -> tuple[Tensor, Tensor]:
    running, uses_batch = Running(running_mean, running_var), running_mean is None
    plan, *tensors = _plan(x, weight, bias, residual, running[:2], uses_batch, *rest)
    y, mean, _ = plan.forward(*tensors, running, statistics=moments)
    return y, mean if uses_batch and moments is None else x.new_empty(0)


def _fake_forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *_, moments, running_mean, _, groups, _, _, out_dtype = arguments
    found = x.new_empty(0)
    if moments is None and running_mean is None:
        found = x.new_empty((2, x.shape[0] * groups), dtype=torch.float32)
    return empty_channels_last(x.shape, out_dtype, x.device), found


def _run_backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, moments, running_mean, running_var, y, *arguments
) -> tuple[Tensor, ...]:
    *rest, needs = arguments
    running, uses_batch = (running_mean, running_var), moments is not None
    plan, x, weight, bias, y = _plan(x, weight, bias, y, running, uses_batch, *rest)
    mean, rstd = moments if uses_batch else running
    found = plan.backward([x, weight, bias, mean, rstd, y], dy, needs)
    # An operator returns no None.
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in found)


def _fake_backward(dy: Tensor, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    weight, bias, *_, needs = arguments
    pixels = empty_channels_last(x.shape, x.dtype, x.device)
    return tuple(
        torch.empty_like(like) if is_needed else x.new_empty(0)
        for like, is_needed in zip((pixels, weight, bias, pixels), needs, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, residual, moments, *running, groups, eps, activation, out_dtype = inputs
    y, found = output
    if moments is None and running[0] is None:
        moments = found
    # y tells where a ReLU after a residual passed, as in the eager call.
    needs_y = residual is not None and activation == "relu"
    ctx.mark_non_differentiable(found)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, moments, *running, y if needs_y else None)
    ctx.rest = (groups, eps, activation, out_dtype)


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    """Returns the gradients of x, weight, bias and residual, and None for other arguments."""
    saved, needs = ctx.saved_tensors, list(ctx.needs_input_grad[:4])
    x, weight, bias, moments, *running, y = saved
    nothing = (None,) * 7
    if dy is None:
        return (None,) * 4 + nothing
    if torch.is_grad_enabled():
        groups, *rest = ctx.rest
        statistics = running if moments is None else None
        shape = NormShape.of(x, groups)
        terms = (x, weight, bias, y)
        return (*differentiable_gradients(dy, terms, needs, shape, statistics, *rest), *nothing)
    is_given = needs[3] and ctx.rest[2] == "identity"
    if is_given:
        # An operator returns no memory that it gets.
        needs[3] = False
    found = _operators.norm_backward.default(dy, *saved, *ctx.rest, needs)
    gradients = [each if is_needed else None for each, is_needed in zip(found, needs, strict=True)]
    if is_given:
        gradients[3] = dy
    return (*gradients, *nothing)


def _register(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    qualified = f"triton_ext::{name}"
    torch.library.define(qualified, schema, tags=(torch.Tag.needs_fixed_stride_order,))
    # The backend "eager" runs a graph by itself, and would trace what it calls.
    torch.library.impl(qualified, ("CPU", "CUDA"))(torch._disable_dynamo(run))
    torch.library.register_fake(qualified)(fake)


_schema = f"(Tensor x, {_MOVED}, float momentum, float eps) -> Tensor"
_register("batch_moments", _schema, _run_moments, _fake_moments)
# The moments are empty where statistics are given.
_schema = f"(Tensor x, {_TERMS}, Tensor? residual, {_STATISTICS}, {_REST})"
_schema += " -> (Tensor y, Tensor moments)"
_register("norm_forward", _schema, _run_forward, _fake_forward)
_schema = (
    f"(Tensor dy, Tensor x, {_TERMS}, {_STATISTICS}, Tensor? y, {_REST}, bool[] needs) "
    "-> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dresidual)"
)
_register("norm_backward", _schema, _run_backward, _fake_backward)
torch.library.register_autograd(
    "triton_ext::norm_forward",
    torch._disable_dynamo(_backward),
    setup_context=torch._disable_dynamo(_setup),
)
