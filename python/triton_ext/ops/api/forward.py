"""Forward convolutions of any number of dimensions, from torch's arguments to an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from triton_ext.ops.api import calls
from triton_ext.ops.api.bound import BoundConvolution
from triton_ext.ops.api.checks import (
    Fallback,
    check_epilogue,
    check_extra,
    check_groups,
    check_memory,
    check_out,
    check_out_dtype,
    check_types,
    check_unbatched,
    parse_fallback,
    rank_error,
)
from triton_ext.ops.api.execution import bind_fprop, bind_fused
from triton_ext.ops.api.reference import apply_activation
from triton_ext.ops.core.dispatch_cache import (
    autocast_operands,
    cached,
    cast_dtype,
    function_key,
    is_differentiated,
    keep,
)
from triton_ext.ops.core.epilogue import ACTIVATIONS, EpilogueArguments, output_dtype
from triton_ext.ops.core.launcher import BoundPlan
from triton_ext.ops.core.memory_format import empty_channels_last
from triton_ext.ops.core.parameters import ConvParameters, GivenParameters

__all__ = ["convolve", "convolve_fused"]

Tensor = torch.Tensor


def convolve(
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    given: GivenParameters,
    fallback: Fallback,
) -> Tensor:
    """Convolves without an epilogue, as the public function of so many dimensions does."""
    name = _NAMES[dims]
    key = function_key(name, (x, weight, bias), given, (fallback,))
    bound = cached(key)
    if bound is not None:
        if is_differentiated(x, weight, bias):
            return bound.differentiate(x, weight, bias)
        return bound.run(x, weight, bias)
    if key is None and (operands := autocast_operands(x, weight, bias)) is not None:
        x, weight, bias = operands
        return convolve(dims, x, weight, bias, given, fallback)
    check_types(name, x, weight, bias, fallback=fallback)
    check_groups(name, given[3])
    if x.dim() == dims + 1:
        return convolve(dims, x.unsqueeze(0), weight, bias, given, fallback).squeeze(0)
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight)
    parameters = ConvParameters.parse(given, weight.shape[2:])
    y = calls.fprop(x, weight, bias, parameters, parse_fallback(fallback))
    if key is not None:
        forward = bind_fprop(x, weight, bias, parameters)
        if isinstance(forward, BoundPlan):
            keep(key, BoundConvolution(forward, given, parameters))
    return y


def convolve_fused(
    dims: int,
    x: Tensor,
    weight: Tensor,
    fused: tuple[Any, ...],
    given: GivenParameters,
    fallback: Fallback,
) -> Tensor:
    """Convolves with an epilogue, as the public function of so many dimensions does.

    Args:
        dims: Spatial dimensions.
        x: As for the function.
        weight: As for the function.
        fused: The fields of :class:`EpilogueArguments`; a tuple is made in less time.
        given: Stride, padding, dilation and groups.
        fallback: As for the function.
    """
    name = _NAMES[dims]
    bias, scale, residual, out_scale, extra, activation, out_dtype, function, out, amax = fused
    key = None
    tensors = (x, weight, bias, scale, residual, out_scale)
    if amax is function is extra is out is None:
        key = function_key(name, tensors, given, (fallback, activation, out_dtype))
        if key is not None and is_differentiated(*tensors):
            key = None
        bound = cached(key)
        if bound is not None:
            return bound.run(*tensors)
    epilogue = EpilogueArguments._make(fused)
    _check_tensors(name, x, weight, epilogue, fallback)
    check_groups(name, given[3])
    extra = () if extra is None else extra
    check_extra(name, function, extra)
    check_out_dtype(name, x, out_dtype)
    if x.dim() == dims + 1:
        check_unbatched(name, dims, residual=residual, out=out)
        x, residual, out = (t if t is None else t.unsqueeze(0) for t in (x, residual, out))
        epilogue = epilogue._replace(residual=residual, out=out)
        return convolve_fused(dims, x, weight, epilogue, given, fallback).squeeze(0)
    _check_rank_and_activation(name, dims, x, weight, activation)
    parameters = ConvParameters.parse(given, weight.shape[2:])
    may_fall_back = parse_fallback(fallback)
    size = parameters.output_size(x.shape[2:], weight.shape[2:])
    shape = (x.shape[0], weight.shape[0], *size)
    check_epilogue(name, x, shape, scale, residual, out_scale, amax, extra)
    handle = None if function is None else calls.function_handle(function, len(extra))
    epilogue = epilogue._replace(extra=extra, function=handle)
    if out is not None or amax is not None:
        return _convolve_into(name, x, weight, shape, epilogue, parameters, may_fall_back)
    y = _convolve(x, weight, epilogue, parameters, may_fall_back)
    if key is not None and isinstance(
        forward := bind_fused(x, weight, epilogue, parameters), BoundPlan
    ):
        keep(key, forward)
    return y


# By number of dimensions.
_NAMES = ("", "conv1d", "conv2d", "conv3d")


def _check_tensors(
    name: str, x: Tensor, weight: Tensor, epilogue: EpilogueArguments, fallback: Fallback
) -> None:
    names = ("scale", "residual", "out_scale", "amax", "out")
    others = {which: getattr(epilogue, which) for which in names}
    # These have no derivative, by torch either.
    strict = any(each is not None for each in (epilogue.amax, epilogue.out, epilogue.function))
    fallback = "error" if strict else fallback
    check_types(name, x, weight, epilogue.bias, fallback=fallback, others=others)


def _check_rank_and_activation(
    name: str, dims: int, x: Tensor, weight: Tensor, activation: str
) -> None:
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight)
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{name}: expected an activation of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )


def _convolve(
    x: Tensor,
    weight: Tensor,
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
    may_fall_back: bool,
) -> Tensor:
    later = "none"
    tensors = (x, weight, *epilogue[:4], *epilogue.extra)
    is_kept = calls.is_differentiated(*tensors) or calls.is_traced()
    if is_kept and epilogue.function is None and epilogue.activation not in _SLOPE_BY_Y:
        # The backward needs the input of the activation, so torch applies it to a kept tensor.
        later = epilogue.activation
        epilogue = epilogue._replace(activation="none")
    y = calls.fused(x, weight, epilogue, parameters, may_fall_back)
    return apply_activation(y, later)


# Activations whose slope follows from their output.
_SLOPE_BY_Y = ("none", "relu", "tanh")


def _convolve_into(
    name: str,
    x: Tensor,
    weight: Tensor,
    shape: Sequence[Any],
    epilogue: EpilogueArguments,
    parameters: ConvParameters,
    may_fall_back: bool,
) -> Tensor:
    tensors = (x, weight, *epilogue[:4], *epilogue.extra)
    out, amax = epilogue.out, epilogue.amax
    given = (*tensors, out, amax)
    if calls.is_differentiated(*given) and any(t is not None and t.requires_grad for t in given):
        raise RuntimeError(
            f"{name}: out= and amax= do not support automatic differentiation, but one of the "
            "arguments requires grad; call it under torch.no_grad()"
        )
    dtype = output_dtype(cast_dtype(x), epilogue.out_dtype)
    if out is None:
        out = empty_channels_last(shape, dtype, x.device)
    else:
        check_out(name, out, shape, dtype, x.device)
        check_memory(name, "out", out, tensors)
    if amax is not None:
        check_memory(name, "amax", amax, (*tensors, out))
    epilogue = epilogue._replace(out_dtype=dtype, out=out)
    calls.fused_into(x, weight, epilogue, parameters, may_fall_back)
    return out
