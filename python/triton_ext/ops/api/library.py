"""The convolutions as operators of torch: fake tensors, autograd, autocast, vmap.

Every direction is two operators, which ``calls.py`` describes.  torch enters Python for an operator
with a backward even where nothing is differentiated, which costs more than the rest of a call; so
there is one without:

    fprop          conv            y of x, weight and bias
    dgrad          conv_input      dx of dy and weight; with a bias, a transposed convolution
    wgrad          conv_weight     dw of x and dy
    fprop_fused    conv_fused      y with an epilogue
    fprop_into                     the same into tensors that are given

Each direction is linear in both operands, so the gradients of each are the other two; that makes
derivatives of any order.  They are registered by hand rather than by ``torch.library.custom_op``,
whose wrapper alone costs 11 us a call (3 us; torch 2.13, CPU build, 2026-11-20).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from triton_ext.ops.api import batching, calls
from triton_ext.ops.api.calls import (
    DGRAD,
    FPROP,
    FUSED,
    INTO,
    OPERATORS,
    WGRAD,
    Operator,
    dgrad,
    fprop,
    fused,
    wgrad,
)
from triton_ext.ops.api.checks import check_operands, check_pair, operator_name
from triton_ext.ops.api.execution import run_dgrad, run_fprop, run_fused, run_wgrad
from triton_ext.ops.core.dispatch_cache import cast_operands
from triton_ext.ops.core.epilogue import EpilogueArguments, is_per_image, output_dtype
from triton_ext.ops.core.memory_format import channels_last, empty_channels_last, pixel_dims
from triton_ext.ops.core.parameters import ConvParameters
from triton_ext.ops.core.refusals import geometry_refusal, tensor_refusal

__all__ = ["conv_gradients", "transposed_gradients"]

Tensor = torch.Tensor


# --- on real tensors ----------------------------------------------------------------------------


def _run_fused(x: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    *operands, parameters, activation, out_dtype, function, fallback = arguments
    fields = (*operands, activation, out_dtype, function, None, None)
    epilogue = EpilogueArguments._make(fields)
    return run_fused(x, weight, epilogue, parameters, fallback)


def _run_into(x: Tensor, weight: Tensor, *arguments: Any) -> None:
    *operands, parameters, activation, out_dtype, function, fallback, out, amax = arguments
    fields = (*operands, activation, out_dtype, function, out, amax)
    epilogue = EpilogueArguments._make(fields)
    run_fused(x, weight, epilogue, parameters, fallback)


# --- on fake tensors ----------------------------------------------------------------------------


def _fake_y(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    fallback: bool,
    out_dtype: torch.dtype | None = None,
    mixed_bias: bool = False,
) -> Tensor:
    operator, groups = operator_name(x.dim()), parameters.groups
    check_pair(operator, ("x", x), weight, bias, groups, mixed_bias=mixed_bias)
    if not fallback:
        refusal = tensor_refusal("fprop", operator, {"x": x})
        # Symbolic sizes are left to the call with real ones.
        sizes = (*x.shape[1:], *weight.shape, groups)
        if refusal is None and all(type(size) is int for size in sizes):
            # An empty batch has a geometry as well: that of one image.
            problem = parameters.problem((1, *x.shape[1:]), tuple(weight.shape))
            refusal = geometry_refusal(problem)
        if refusal is not None:
            raise refusal.error()
    size = parameters.output_size(x.shape[2:], weight.shape[2:])
    shape = (x.shape[0], weight.shape[0], *size)
    return empty_channels_last(shape, output_dtype(x.dtype, out_dtype), x.device)


def _fake_dx(
    dy: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parameters: ConvParameters,
    input_size: Sequence[Any],
    fallback: bool,
) -> Tensor:
    operator, groups = f"conv_transpose{dy.dim() - 2}d", parameters.groups
    check_pair(operator, ("dy", dy), weight, bias, groups, is_transposed=True)
    if not fallback and (refusal := tensor_refusal("dgrad", operator, {"dy": dy})) is not None:
        raise refusal.error()
    shape = (dy.shape[0], weight.shape[1] * groups, *input_size)
    return empty_channels_last(shape, dy.dtype, dy.device)


def _fake_dw(
    x: Tensor,
    dy: Tensor,
    parameters: ConvParameters,
    filter_size: Sequence[Any],
    fallback: bool,
) -> Tensor:
    groups = parameters.groups
    check_operands(x, dy, groups)
    operator = f"{operator_name(x.dim())}_weight"
    tensors = {"x": x, "dy": dy}
    if not fallback and (refusal := tensor_refusal("wgrad", operator, tensors)) is not None:
        raise refusal.error()
    shape = (dy.shape[1], x.shape[1] // groups, *filter_size)
    return empty_channels_last(shape, x.dtype, x.device)


def _fake_fused(x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    *_, parameters, _, out_dtype, _, fallback = arguments
    return _fake_y(x, weight, bias, parameters, fallback, out_dtype, mixed_bias=True)


def _fake_into(*arguments: Any) -> None:
    *forward, _out, _amax = arguments
    _fake_fused(*forward)


# --- autograd -----------------------------------------------------------------------------------


def _setup_conv(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, _, ctx.parameters, _ = FPROP.grouped(inputs)
    ctx.save_for_backward(x, weight)


def conv_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, parameters: ConvParameters, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of a forward convolution's x, weight and bias.

    Args:
        x: [N, Ci, *input_size].
        weight: [Co, Ci / groups, *filter_size].
        grad: [N, Co, *output_size], in any memory order.
        parameters: Those of the convolution.
        needs: Which gradients are asked for; the others are ``None``.
    """
    needs_x, needs_w, needs_b = needs
    # `grad` may not be channels-last.
    grad = channels_last(grad)
    dx = dgrad(grad, weight, None, parameters, x.shape[2:], True) if needs_x else None
    dw = wgrad(x, grad, parameters, weight.shape[2:], True) if needs_w else None
    db = grad.sum(pixel_dims(grad)) if needs_b else None
    return dx, dw, db


def _conv_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    gradients = conv_gradients(x, weight, grad, ctx.parameters, ctx.needs_input_grad[:3])
    return *gradients, None, None, None, None, None


def _setup_conv_input(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    dy, weight, _, ctx.parameters, _, _ = DGRAD.grouped(inputs)
    ctx.save_for_backward(dy, weight)


def transposed_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, parameters: ConvParameters, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of a transposed convolution's x, weight and bias.

    As :func:`conv_gradients`, but x is the output of the forward convolution with this weight.
    """
    needs_x, needs_w, needs_b = needs
    grad = channels_last(grad)
    dx = fprop(grad, weight, None, parameters, True) if needs_x else None
    dw = wgrad(grad, x, parameters, weight.shape[2:], True) if needs_w else None
    db = grad.sum(pixel_dims(grad)) if needs_b else None
    return dx, dw, db


def _conv_input_backward(ctx, grad):  # type: ignore[no-untyped-def]
    dy, weight = ctx.saved_tensors
    gradients = transposed_gradients(dy, weight, grad, ctx.parameters, ctx.needs_input_grad[:3])
    return *gradients, None, None, None, None, None, None


def _setup_conv_weight(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, dy, ctx.parameters, _, _ = WGRAD.grouped(inputs)
    ctx.save_for_backward(x, dy)


def _conv_weight_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, dy = ctx.saved_tensors
    needs_x, needs_dy = ctx.needs_input_grad[:2]
    dx = dgrad(dy, grad, None, ctx.parameters, x.shape[2:], True) if needs_x else None
    ddy = fprop(x, grad, None, ctx.parameters, True) if needs_dy else None
    return dx, ddy, None, None, None, None, None, None


def _setup_fused(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    arguments = FUSED.grouped(inputs)
    x, weight, bias, scale, residual, out_scale, extra, ctx.parameters = arguments[:8]
    ctx.activation, ctx.out_dtype, function, _ = arguments[8:]
    if function is not None or out_scale is not None or output.dtype.itemsize == 1:
        what = (
            "epilogue="
            if function is not None
            else "out_scale="
            if out_scale is not None
            else f"an output of {output.dtype}"
        )
        raise NotImplementedError(
            f"{operator_name(x.dim())}: {what} has no derivative; call it under torch.no_grad()"
        )
    # The slope of relu and tanh follows from y; the others need their input.
    y = output if ctx.activation in ("relu", "tanh") else None
    ctx.save_for_backward(x, weight, bias, scale, residual, y)
    ctx.count_extra = len(extra)


def _fused_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, y = ctx.saved_tensors
    needs_x, needs_w, needs_b, needs_s, needs_r = ctx.needs_input_grad[:5]
    parameters = ctx.parameters
    if ctx.activation == "relu":
        grad = grad * (y > 0)
    elif ctx.activation == "tanh":
        grad = grad * (1 - y * y)
    elif ctx.activation != "none":
        epilogue = EpilogueArguments(bias, scale, residual, out_dtype=torch.float32)
        z = fused(x, weight, epilogue, parameters, True)
        grad = _through_activation(z, ctx.activation, grad.float())
    ones = (1,) * (grad.dim() - 2)
    ds = db = dr = None
    if needs_r:
        dr = grad
        if is_per_image(residual, grad.shape):
            dr = grad.sum(pixel_dims(grad)[1:], keepdim=True, dtype=torch.float32)
        dr = dr.to(residual.dtype)
    if needs_b:
        db = grad.sum(pixel_dims(grad), dtype=torch.float32).to(bias.dtype)
    if needs_s:
        acc = fprop(x, weight, None, parameters, True)
        product = grad.float() * acc.float()
        ds = product.sum(pixel_dims(grad)) if scale.numel() > 1 else product.sum()
        ds = ds.reshape(scale.shape).to(scale.dtype)
    if scale is not None:
        grad = grad * (scale.view(-1, *ones) if scale.numel() > 1 else scale.reshape(()))
    grad = grad.to(x.dtype)
    dx, dw, _ = conv_gradients(x, weight, grad, parameters, (needs_x, needs_w, False))
    return (dx, dw, db, ds, dr, None, [None] * ctx.count_extra, *(None,) * 8)


def _through_activation(z: Tensor, activation: str, grad: Tensor) -> Tensor:
    """Returns the gradient of an activation's input z."""
    aten = torch.ops.aten
    if activation == "silu":
        return aten.silu_backward(grad, z)
    return aten.gelu_backward(grad, z, approximate="none" if activation == "gelu" else "tanh")


# --- autocast -----------------------------------------------------------------------------------


def _autocast(name: str, device: str) -> Callable[..., Any]:
    """Returns the implementation of an operator under autocast."""
    op = getattr(torch.ops.triton_ext, name).default
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
    casts = [argument.name not in _NOT_CAST for argument in op._schema.arguments]

    def run(*arguments: Any) -> Any:
        arguments = cast_operands(arguments, casts, device)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return op(*arguments)

    return run


_NOT_CAST = {"scale", "out_scale", "extra", "out", "amax"}


# --- registration -------------------------------------------------------------------------------

_REAL: dict[Operator, Callable[..., Any]] = {
    FPROP: run_fprop,
    DGRAD: run_dgrad,
    WGRAD: run_wgrad,
    FUSED: _run_fused,
    INTO: _run_into,
}
_FAKE: dict[Operator, Callable[..., Any]] = {
    FPROP: _fake_y,
    DGRAD: _fake_dx,
    WGRAD: _fake_dw,
    FUSED: _fake_fused,
    INTO: _fake_into,
}
_BACKWARD: dict[Operator, tuple[Callable[..., Any], Callable[..., None]]] = {
    FPROP: (_conv_backward, _setup_conv),
    DGRAD: (_conv_input_backward, _setup_conv_input),
    WGRAD: (_conv_weight_backward, _setup_conv_weight),
    FUSED: (_fused_backward, _setup_fused),
}

_library = torch.library.Library("triton_ext", "FRAGMENT")


def _register(operator: Operator) -> None:
    for name in filter(None, (operator.name, operator.differentiable)):
        qualified = f"triton_ext::{name}"
        tags = (torch.Tag.needs_fixed_stride_order,)
        torch.library.define(qualified, operator.schema, tags=tags)
        torch.library.impl(qualified, ("CPU", "CUDA"))(operator.flat(_REAL[operator]))
        torch.library.register_fake(qualified)(operator.flat(_FAKE[operator]))
        for device in ("cpu", "cuda"):
            _library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")
        torch.library.register_vmap(qualified, _batching(operator))
    if operator.differentiable:
        backward, setup = _BACKWARD[operator]
        qualified = f"triton_ext::{operator.differentiable}"
        torch.library.register_autograd(qualified, backward, setup_context=setup)
        calls.functions[operator.differentiable] = _functions(operator)


def _batching(operator: Operator) -> Callable[..., Any]:
    """Returns the rule for ``torch.vmap``, of flat arguments."""
    rule = batching.RULES[operator.name]

    def of_flat(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return rule(info, in_dims, *operator.grouped(arguments))

    return of_flat


def _functions(operator: Operator) -> calls.Functions:
    """Returns an operator with a backward as functions of autograd."""
    op = getattr(torch.ops.triton_ext, operator.name).default
    backward, setup = _BACKWARD[operator]

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        output: Tensor = op(*arguments)
        setup(ctx, arguments, output)
        return output

    def backward_of_lists(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The operators' backward gives a list for a list of tensors, autograd wants None.
        return tuple(None if isinstance(g, list) else g for g in backward(ctx, grad))

    eager = {"forward": staticmethod(forward), "backward": staticmethod(backward_of_lists)}
    transformed = {
        "forward": staticmethod(lambda *arguments: op(*arguments)),
        "setup_context": staticmethod(setup),
        "backward": staticmethod(backward_of_lists),
        "vmap": staticmethod(_batching(operator)),
    }
    base = (torch.autograd.Function,)
    return calls.Functions(
        eager=type(f"Differentiable_{operator.name}", base, eager),
        transformed=type(f"Transformable_{operator.name}", base, transformed),
        casts=tuple(a.name not in _NOT_CAST for a in op._schema.arguments),
    )


for _operator in OPERATORS:
    _register(_operator)
