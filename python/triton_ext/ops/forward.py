"""The forward convolutions of any number of dimensions, from torch's arguments to an operator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from triton_ext.ops import calls, shortcut
from triton_ext.ops.arguments import (
    check_groups,
    empty_channels_last,
    fprop_size,
    output_dtype,
    rank_error,
    walk_of,
)
from triton_ext.ops.autocast import cast_dtype
from triton_ext.ops.checks import (
    Fallback,
    Numbers,
    Padding,
    check_epilogue,
    check_extra,
    check_memory,
    check_out,
    check_out_dtype,
    check_types,
    check_unbatched,
    parse_fallback,
)
from triton_ext.ops.epilogue import ACTIVATIONS
from triton_ext.ops.execution import Epilogue, known_fprop, known_fused
from triton_ext.ops.reference import apply_activation
from triton_ext.ops.seen import SeenConvolution

__all__ = ["convolve", "convolve_fused"]

Tensor = torch.Tensor


def convolve(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Padding,
    dilation: Numbers,
    groups: int,
    fallback: Fallback,
) -> Tensor:
    given = (stride, padding, dilation, groups)
    key = shortcut.key_of(name, (x, weight, bias), given, (fallback,))
    seen = shortcut.known(key)
    if seen is not None:
        if shortcut.is_differentiated(x, weight, bias):
            return seen.differentiate(x, weight, bias)
        return seen.run(x, weight, bias)
    if key is None and (operands := shortcut.cast(x, weight, bias)) is not None:
        x, weight, bias = operands
        return convolve(name, dims, x, weight, bias, stride, padding, dilation, groups, fallback)
    check_types(name, x, weight, bias, fallback=fallback)
    check_groups(name, groups)
    if x.dim() == dims + 1:
        x = x.unsqueeze(0)
        return convolve(
            name, dims, x, weight, bias, stride, padding, dilation, groups, fallback
        ).squeeze(0)
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight)
    stride, padding, dilation = walk_of(stride, padding, dilation, weight.shape[2:])
    may_fall_back = parse_fallback(fallback)
    y = calls.fprop(x, weight, bias, stride, padding, dilation, groups, may_fall_back)
    if key is not None:
        walk = (stride, padding, dilation, groups)
        forward = known_fprop(x, weight, bias, *walk)
        if forward is not None:
            shortcut.keep(key, SeenConvolution(forward, given, walk))
    return y


def convolve_fused(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Padding,
    dilation: Numbers,
    groups: int,
    fallback: Fallback,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str,
    out_scale: Tensor | None,
    out_dtype: torch.dtype | None,
    amax: Tensor | None,
    epilogue: Any,
    extra: Sequence[Tensor] | None,
    out: Tensor | None,
) -> Tensor:
    key = None
    if amax is epilogue is extra is out is None:
        tensors = (x, weight, bias, scale, residual, out_scale)
        numbers = (stride, padding, dilation, groups)
        key = shortcut.key_of(name, tensors, numbers, (fallback, activation, out_dtype))
        if key is not None and shortcut.is_differentiated(*tensors):
            key = None
        known = shortcut.known(key)
        if known is not None:
            return known.run(*tensors)
    others = {"scale": scale, "residual": residual, "out_scale": out_scale}
    _check_tensors(name, (x, weight, bias), others, amax, out, fallback, epilogue)
    check_groups(name, groups)
    extra = () if extra is None else extra
    check_extra(name, epilogue, extra)
    check_out_dtype(name, x, out_dtype)
    if x.dim() == dims + 1:
        check_unbatched(name, dims, residual=residual, out=out)
        x, residual, out = (t if t is None else t.unsqueeze(0) for t in (x, residual, out))
        return convolve_fused(
            name, dims, x, weight, bias, stride, padding, dilation, groups, fallback, scale,
            residual, activation, out_scale, out_dtype, amax, epilogue, extra, out,
        ).squeeze(0)  # fmt: skip
    _check_rank_and_activation(name, dims, x, weight, activation)
    walk = (*walk_of(stride, padding, dilation, weight.shape[2:]), groups)
    may_fall_back = parse_fallback(fallback)
    shape = (x.shape[0], weight.shape[0], *fprop_size(x.shape[2:], weight.shape[2:], *walk[:3]))
    check_epilogue(name, x, shape, scale, residual, out_scale, amax, extra)
    function = None if epilogue is None else calls.function_handle(epilogue, len(extra))
    operands = (x, weight, bias, scale, residual, out_scale, list(extra))
    how = (activation, out_dtype, function, may_fall_back)
    if out is not None or amax is not None:
        return _convolve_into(name, shape, operands, walk, how, amax, out)
    y = _convolve(operands, walk, how)
    if key is not None:
        _keep(key, operands, walk, how)
    return y


def _check_tensors(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor | None],
    others: dict[str, Tensor | None],
    amax: Tensor | None,
    out: Tensor | None,
    fallback: Fallback,
    epilogue: Any,
) -> None:
    others = {**others, "amax": amax, "out": out}
    # What has no derivative at all has none by torch either.
    strict = amax is not None or out is not None or epilogue is not None
    check_types(name, *tensors, fallback="error" if strict else fallback, others=others)


def _check_rank_and_activation(
    name: str, dims: int, x: Tensor, weight: Tensor, activation: str
) -> None:
    if x.dim() != dims + 2 or weight.dim() != dims + 2:
        raise rank_error(name, dims, ("x", x), weight)
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{name}: expected an activation of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )


# Of the next three: operands are the tensors of calls.fused; walk is stride, padding, dilation and
# groups; how is the activation, the output's dtype, the epilogue's handle, and whether torch may
# compute it.


def _convolve(operands: tuple[Any, ...], walk: tuple[Any, ...], how: tuple[Any, ...]) -> Tensor:
    activation, out_dtype, function, may_fall_back = how
    *tensors, extra = operands
    later = "none"
    is_kept = calls.is_differentiated(*tensors, *extra) or calls.is_traced()
    if is_kept and function is None and activation not in ("none", "relu", "tanh"):
        # Their slope needs what they are given, so that has to be kept: as torch does it.
        activation, later = "none", activation
    y = calls.fused(*operands, *walk, activation, out_dtype, function, may_fall_back)
    return apply_activation(y, later)


def _convolve_into(
    name: str,
    shape: tuple[int, ...],
    operands: tuple[Any, ...],
    walk: tuple[Any, ...],
    how: tuple[Any, ...],
    amax: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    activation, out_dtype, function, may_fall_back = how
    x, extra = operands[0], operands[-1]
    tensors = (*operands[:-1], *extra)
    given = (*tensors, out, amax)
    if calls.is_differentiated(*given) and any(t is not None and t.requires_grad for t in given):
        raise RuntimeError(
            f"{name}: out= and amax= do not support automatic differentiation, but one of the "
            "arguments requires grad; call it under torch.no_grad()"
        )
    dtype = output_dtype(cast_dtype(x), out_dtype)
    if out is None:
        out = empty_channels_last(shape, dtype, x.device)
    else:
        check_out(name, out, shape, dtype, x.device)
        check_memory(name, "out", out, tensors)
    if amax is not None:
        check_memory(name, "amax", amax, (*tensors, out))
    calls.fused_into(*operands, *walk, activation, dtype, function, may_fall_back, out, amax)
    return out


def _keep(
    key: Hashable, operands: tuple[Any, ...], walk: tuple[Any, ...], how: tuple[Any, ...]
) -> None:
    x, weight, bias, scale, residual, out_scale, _ = operands
    activation, out_dtype, _, _ = how
    epilogue = Epilogue(
        bias=bias,
        scale=scale,
        residual=residual,
        activation=activation,
        out_dtype=out_dtype,
        out_scale=out_scale,
        function=None,
        extra=(),
    )
    again = known_fused(x, weight, epilogue, *walk)
    if again is not None:
        shortcut.keep(key, again)
