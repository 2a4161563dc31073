"""The convolutions as operators of torch: fake tensors, autograd, autocast, vmap.

Every direction is two operators.  torch enters Python for an operator with a backward even where
nothing is differentiated, which costs more than the rest of a call; so there is one without:

    fprop          conv            y of x, weight and bias
    dgrad          conv_input      dx of dy and weight; with a bias, a transposed convolution
    wgrad          conv_weight     dw of x and dy
    fprop_fused    conv_fused      y with an epilogue
    fprop_into                     the same into tensors that are given

Each direction is linear in both operands, so the gradients of each are the other two; that makes
derivatives of any order.  Registered by hand rather than by ``torch.library.custom_op``, whose
wrapper alone costs 11 us a call (3 us; torch 2.13, CPU build, 2026-11-20).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from triton_ext.ops import batching, calls
from triton_ext.ops.arguments import (
    channels_last,
    check_pair,
    empty_channels_last,
    fprop_size,
    is_per_image,
    operator_name,
    output_dtype,
    pixel_dims,
    problem_of,
)
from triton_ext.ops.autocast import cast_operands
from triton_ext.ops.calls import Walk, dgrad, fprop, function_of, fused, wgrad
from triton_ext.ops.execution import (
    Epilogue,
    check_operands,
    run_dgrad,
    run_fprop,
    run_fused,
    run_wgrad,
)
from triton_ext.ops.plans import geometry_refusal, tensor_refusal

__all__ = ["conv_gradients", "transposed_gradients"]

_WALK = "int[] stride, int[] padding, int[] dilation, SymInt groups"
_EPILOGUE = (
    "Tensor? bias, Tensor? scale, Tensor? residual, Tensor? out_scale, Tensor[] extra, "
    f"{_WALK}, str activation, ScalarType? out_dtype, str? function, bool fallback"
)
_SCHEMAS = {
    ("fprop", "conv"): f"(Tensor x, Tensor weight, Tensor? bias, {_WALK}, bool fallback) -> Tensor",
    ("dgrad", "conv_input"): (
        f"(Tensor dy, Tensor weight, Tensor? bias, {_WALK}, SymInt[] input_size, bool fallback) "
        "-> Tensor"
    ),
    ("wgrad", "conv_weight"): (
        f"(Tensor x, Tensor dy, {_WALK}, SymInt[] filter_size, bool fallback) -> Tensor"
    ),
    ("fprop_fused", "conv_fused"): f"(Tensor x, Tensor weight, {_EPILOGUE}) -> Tensor",
    ("fprop_into",): (
        f"(Tensor x, Tensor weight, {_EPILOGUE}, Tensor(a!) out, Tensor(b!)? amax) -> ()"
    ),
}

Tensor = torch.Tensor


def _epilogue(
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    out_scale: Tensor | None,
    extra: Sequence[Tensor],
    activation: str,
    out_dtype: torch.dtype | None,
    function: str | None,
) -> Epilogue:
    return Epilogue(
        bias=bias,
        scale=scale,
        residual=residual,
        out_scale=out_scale,
        extra=tuple(extra),
        activation=activation,
        out_dtype=out_dtype,
        function=function_of(function),
    )


# --- on real tensors ----------------------------------------------------------------------------


def _run_fused(  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, out_scale, extra, stride, padding, dilation, groups,
    activation, out_dtype, function, fallback,
) -> Tensor:  # fmt: skip
    epilogue = _epilogue(bias, scale, residual, out_scale, extra, activation, out_dtype, function)
    return run_fused(x, weight, epilogue, stride, padding, dilation, groups, fallback)


def _run_into(  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, out_scale, extra, stride, padding, dilation, groups,
    activation, out_dtype, function, fallback, out, amax,
) -> None:  # fmt: skip
    epilogue = _epilogue(bias, scale, residual, out_scale, extra, activation, out_dtype, function)
    run_fused(x, weight, epilogue, stride, padding, dilation, groups, fallback, out, amax)


# --- on fake tensors ----------------------------------------------------------------------------


def _fake_y(  # type: ignore[no-untyped-def]
    x, weight, bias, stride, padding, dilation, groups, fallback, out_dtype=None, mixed_bias=False
) -> Tensor:
    operator = operator_name(x.dim())
    check_pair(operator, ("x", x), weight, bias, groups, mixed_bias=mixed_bias)
    if not fallback:
        refusal = tensor_refusal("fprop", operator, {"x": x})
        # Symbolic sizes are left to the call with real ones.
        sizes = (*x.shape[1:], *weight.shape, groups)
        if refusal is None and all(type(size) is int for size in sizes):
            # An empty batch has a geometry as well: that of one image.
            walk = (tuple(stride), tuple(padding), tuple(dilation), groups)
            refusal = geometry_refusal(problem_of((1, *x.shape[1:]), tuple(weight.shape), *walk))
        if refusal is not None:
            raise refusal.error()
    size = fprop_size(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    shape = (x.shape[0], weight.shape[0], *size)
    return empty_channels_last(shape, output_dtype(x.dtype, out_dtype), x.device)


def _fake_dx(  # type: ignore[no-untyped-def]
    dy, weight, bias, stride, padding, dilation, groups, input_size, fallback
) -> Tensor:
    operator = f"conv_transpose{dy.dim() - 2}d"
    check_pair(operator, ("dy", dy), weight, bias, groups, transposed=True)
    if not fallback and (refusal := tensor_refusal("dgrad", operator, {"dy": dy})) is not None:
        raise refusal.error()
    shape = (dy.shape[0], weight.shape[1] * groups, *input_size)
    return empty_channels_last(shape, dy.dtype, dy.device)


def _fake_dw(  # type: ignore[no-untyped-def]
    x, dy, stride, padding, dilation, groups, filter_size, fallback
) -> Tensor:
    check_operands(x, dy, groups)
    operator = f"{operator_name(x.dim())}_weight"
    tensors = {"x": x, "dy": dy}
    if not fallback and (refusal := tensor_refusal("wgrad", operator, tensors)) is not None:
        raise refusal.error()
    shape = (dy.shape[1], x.shape[1] // groups, *filter_size)
    return empty_channels_last(shape, x.dtype, x.device)


def _fake_fused(  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, out_scale, extra, stride, padding, dilation, groups,
    activation, out_dtype, function, fallback,
) -> Tensor:  # fmt: skip
    del scale, residual, out_scale, extra, activation, function
    return _fake_y(
        x, weight, bias, stride, padding, dilation, groups, fallback, out_dtype, mixed_bias=True
    )


def _fake_into(*arguments: Any) -> None:
    *forward, _out, _amax = arguments
    _fake_fused(*forward)


# --- autograd -----------------------------------------------------------------------------------


def _named(walk: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(("stride", "padding", "dilation", "groups"), walk, strict=True))


def _setup_conv(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, _, *walk, _ = inputs
    ctx.walk = _named(walk)
    ctx.save_for_backward(x, weight)


def conv_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, walk: Walk, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of a forward convolution's x, weight and bias.

    Args:
        x: [N, Ci, *input_size].
        weight: [Co, Ci / groups, *filter_size].
        grad: [N, Co, *output_size], in whatever memory order.
        walk: Stride, padding, dilation and groups as the operators have them.
        needs: Which gradients are asked for; the others are ``None``.
    """
    needs_x, needs_w, needs_b = needs
    # Whoever computed grad did not know that channels are to be contiguous.
    grad = channels_last(grad)
    dx = dgrad(grad, weight, None, *walk, x.shape[2:], True) if needs_x else None
    dw = wgrad(x, grad, *walk, weight.shape[2:], True) if needs_w else None
    db = grad.sum(pixel_dims(grad)) if needs_b else None
    return dx, dw, db


def _conv_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    gradients = conv_gradients(x, weight, grad, tuple(ctx.walk.values()), ctx.needs_input_grad[:3])
    return *gradients, None, None, None, None, None


def _setup_conv_input(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    dy, weight, _, *walk, _, _ = inputs
    ctx.walk = _named(walk)
    ctx.save_for_backward(dy, weight)


def transposed_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, walk: Walk, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the gradients of a transposed convolution's x, weight and bias.

    As :func:`conv_gradients`, but x is what the forward convolution with this weight gives.
    """
    needs_x, needs_w, needs_b = needs
    grad = channels_last(grad)
    dx = fprop(grad, weight, None, *walk, True) if needs_x else None
    dw = wgrad(grad, x, *walk, weight.shape[2:], True) if needs_w else None
    db = grad.sum(pixel_dims(grad)) if needs_b else None
    return dx, dw, db


def _conv_input_backward(ctx, grad):  # type: ignore[no-untyped-def]
    dy, weight = ctx.saved_tensors
    walk = tuple(ctx.walk.values())
    gradients = transposed_gradients(dy, weight, grad, walk, ctx.needs_input_grad[:3])
    return *gradients, None, None, None, None, None, None


def _setup_conv_weight(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, dy, *walk, _, _ = inputs
    ctx.walk = _named(walk)
    ctx.save_for_backward(x, dy)


def _conv_weight_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, dy = ctx.saved_tensors
    needs_x, needs_dy = ctx.needs_input_grad[:2]
    dx = (
        dgrad(dy, grad, None, **ctx.walk, input_size=x.shape[2:], fallback=True)
        if needs_x
        else None
    )
    ddy = fprop(x, grad, None, **ctx.walk, fallback=True) if needs_dy else None
    return dx, ddy, None, None, None, None, None, None


def _setup_fused(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, out_scale, extra, *walk = inputs[:11]
    ctx.walk = _named(walk)
    ctx.activation, ctx.out_dtype, function, _ = inputs[11:]
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
    # What relu and tanh give tells their slope; the others need what they were given.
    y = output if ctx.activation in ("relu", "tanh") else None
    ctx.save_for_backward(x, weight, bias, scale, residual, y)
    ctx.count_extra = len(extra)


def _fused_backward(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight, bias, scale, residual, y = ctx.saved_tensors
    needs_x, needs_w, needs_b, needs_s, needs_r = ctx.needs_input_grad[:5]
    if ctx.activation == "relu":
        grad = grad * (y > 0)
    elif ctx.activation == "tanh":
        grad = grad * (1 - y * y)
    elif ctx.activation != "none":
        z = fused(
            x,
            weight,
            bias,
            scale,
            residual,
            None,
            [],
            *ctx.walk.values(),
            "none",
            torch.float32,
            None,
            True,
        )
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
        acc = fprop(x, weight, None, **ctx.walk, fallback=True)
        product = grad.float() * acc.float()
        ds = product.sum(pixel_dims(grad)) if scale.numel() > 1 else product.sum()
        ds = ds.reshape(scale.shape).to(scale.dtype)
    if scale is not None:
        grad = grad * (scale.view(-1, *ones) if scale.numel() > 1 else scale.reshape(()))
    grad = channels_last(grad.to(x.dtype))
    dx = (
        dgrad(grad, weight, None, **ctx.walk, input_size=x.shape[2:], fallback=True)
        if needs_x
        else None
    )
    dw = (
        wgrad(x, grad, **ctx.walk, filter_size=weight.shape[2:], fallback=True) if needs_w else None
    )
    return (dx, dw, db, ds, dr, None, [None] * ctx.count_extra, *(None,) * 8)


def _through_activation(z: Tensor, activation: str, grad: Tensor) -> Tensor:
    """Returns the gradient in front of an activation that was given z."""
    aten = torch.ops.aten
    if activation == "silu":
        return aten.silu_backward(grad, z)
    return aten.gelu_backward(grad, z, approximate="none" if activation == "gelu" else "tanh")


# --- autocast -----------------------------------------------------------------------------------


def _autocast(name: str, device: str) -> Callable[..., Any]:
    """Returns what runs under autocast."""
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

_REAL: dict[str, Callable[..., Any]] = {
    "fprop": run_fprop,
    "dgrad": run_dgrad,
    "wgrad": run_wgrad,
    "fprop_fused": _run_fused,
    "fprop_into": _run_into,
}
_FAKE: dict[str, Callable[..., Any]] = {
    "fprop": _fake_y,
    "dgrad": _fake_dx,
    "wgrad": _fake_dw,
    "fprop_fused": _fake_fused,
    "fprop_into": _fake_into,
}
_BACKWARD: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "conv": (_conv_backward, _setup_conv),
    "conv_input": (_conv_input_backward, _setup_conv_input),
    "conv_weight": (_conv_weight_backward, _setup_conv_weight),
    "conv_fused": (_fused_backward, _setup_fused),
}

_library = torch.library.Library("triton_ext", "FRAGMENT")


def _register() -> None:
    for names, schema in _SCHEMAS.items():
        for name in names:
            qualified = f"triton_ext::{name}"
            torch.library.define(qualified, schema, tags=(torch.Tag.needs_fixed_stride_order,))
            torch.library.impl(qualified, ("CPU", "CUDA"))(_REAL[names[0]])
            torch.library.register_fake(qualified)(_FAKE[names[0]])
            for device in ("cpu", "cuda"):
                _library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")
            torch.library.register_vmap(qualified, batching.RULES[names[0]])
    for (plain, *twin), _ in _SCHEMAS.items():
        for name in twin:
            backward, setup = _BACKWARD[name]
            torch.library.register_autograd(f"triton_ext::{name}", backward, setup_context=setup)
            calls.functions[name] = _functions(plain, name)


def _functions(plain: str, name: str) -> calls.Functions:
    """Returns an operator with a backward as functions of autograd."""
    op = getattr(torch.ops.triton_ext, plain).default
    backward, setup = _BACKWARD[name]

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
        "vmap": staticmethod(batching.RULES[plain]),
    }
    base = (torch.autograd.Function,)
    return calls.Functions(
        eager=type(f"Differentiable_{plain}", base, eager),
        transformed=type(f"Transformable_{plain}", base, transformed),
        casts=tuple(a.name not in _NOT_CAST for a in op._schema.arguments),
    )


_register()
