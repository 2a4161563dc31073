"""Rules for ``torch.vmap``: a mapped dimension is folded into images or into channels.

Where only pixels are mapped, they are more images.  Where both operands are, every element is a
group of its own.  Where only the filter is, every element has output channels of its own.

Channels are ordered (group, element, channel of the group) where elements share the groups of an
operand that is not mapped, and (element, group, channel) where every element brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from triton_ext.ops.api import calls
from triton_ext.ops.core.epilogue import EpilogueArguments
from triton_ext.ops.core.memory_format import channels_last

__all__ = ["RULES"]

Tensor = torch.Tensor


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(
        f"vmap of a convolution: {what} is not supported; map over the rest and apply it "
        "afterwards, or use torch.nn.functional"
    )


def _into_images(tensor: Tensor, dim: int) -> Tensor:
    """[B, N, C, ...] to [B * N, C, ...]; the mapped dimension may be anywhere."""
    return channels_last(tensor.movedim(dim, 0).flatten(0, 1))


def _all_into_images(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Does the same; a tensor that is not mapped is repeated for every element."""
    if dim is None:
        tensor, dim = tensor.expand(count, *tensor.shape), 0
    return _into_images(tensor, dim)


def _into_channels(tensor: Tensor, dim: int) -> Tensor:
    """[B, N, C, ...] to [N, B * C, ...]."""
    return channels_last(tensor.movedim(dim, 1).flatten(1, 2))


def _into_groups(tensor: Tensor, dim: int, at: int, groups: int) -> Tensor:
    """Folds the mapped dimension into dimension ``at`` of the rest, after the groups."""
    whole = tensor.movedim(dim, 0)
    # [B, ..., g, c, ...] to [..., g, B, c, ...]
    parts = whole.unflatten(at + 1, (groups, whole.shape[at + 1] // groups)).movedim(0, at + 1)
    return parts.flatten(at, at + 2)


def _out_of_groups(tensor: Tensor, at: int, groups: int, count: int) -> Tensor:
    """Undoes :func:`_into_groups`: the mapped dimension comes first."""
    size = tensor.shape[at] // (groups * count)
    parts = tensor.unflatten(at, (groups, count, size)).movedim(at + 1, 0)
    return parts.flatten(at + 1, at + 2)


def _vector(bias: Tensor | None, dim: int | None, count: int, groups: int | None) -> Tensor | None:
    """Joins a bias [C] per element; after ``groups`` of both, or element by element."""
    if bias is None:
        return None
    whole = bias.expand(count, -1) if dim is None else bias.movedim(dim, 0)
    return whole.flatten() if groups is None else _into_groups(whole, 0, 0, groups)


def _check_bias(in_dims: Sequence[Any]) -> None:
    if in_dims[2] is not None and in_dims[1] is None:
        _refuse("a mapped bias with a filter that is not mapped")


def _fprop(info, in_dims, x, weight, bias, parameters, fallback):  # type: ignore[no-untyped-def]
    _check_bias(in_dims)
    (x_dim, w_dim, b_dim), count = in_dims[:3], info.batch_size
    groups = parameters.groups
    if w_dim is None:
        y = calls.fprop(_into_images(x, x_dim), weight, bias, parameters, fallback)
        return y.unflatten(0, (count, y.shape[0] // count)), 0
    if x_dim is None:
        bias = _vector(bias, b_dim, count, groups)
        folded = _into_groups(weight, w_dim, 0, groups)
        y = calls.fprop(x, folded, bias, parameters, fallback)
        return _out_of_groups(y, 1, groups, count), 0
    bias = _vector(bias, b_dim, count, None)
    folded = weight.movedim(w_dim, 0).flatten(0, 1)
    each = parameters._replace(groups=count * groups)
    y = calls.fprop(_into_channels(x, x_dim), folded, bias, each, fallback)
    return y.unflatten(1, (count, y.shape[1] // count)), 1


def _dgrad(info, in_dims, dy, weight, bias, parameters, size, fallback):  # type: ignore[no-untyped-def]
    _check_bias(in_dims)
    (dy_dim, w_dim, b_dim), count = in_dims[:3], info.batch_size
    groups = parameters.groups
    if w_dim is None:
        dx = calls.dgrad(_into_images(dy, dy_dim), weight, bias, parameters, size, fallback)
        return dx.unflatten(0, (count, dx.shape[0] // count)), 0
    if dy_dim is None:
        bias = _vector(bias, b_dim, count, groups)
        folded = weight.movedim(w_dim, 1).flatten(1, 2)
        dx = calls.dgrad(dy, folded, bias, parameters, size, fallback)
        return _out_of_groups(dx, 1, groups, count), 0
    bias = _vector(bias, b_dim, count, None)
    folded = weight.movedim(w_dim, 0).flatten(0, 1)
    each = parameters._replace(groups=count * groups)
    dx = calls.dgrad(_into_channels(dy, dy_dim), folded, bias, each, size, fallback)
    return dx.unflatten(1, (count, dx.shape[1] // count)), 1


def _wgrad(info, in_dims, x, dy, parameters, size, fallback):  # type: ignore[no-untyped-def]
    (x_dim, dy_dim), count = in_dims[:2], info.batch_size
    groups = parameters.groups
    if dy_dim is None:
        folded = channels_last(_into_groups(x, x_dim, 1, groups))
        dw = calls.wgrad(folded, dy, parameters, size, fallback)
        return dw.unflatten(1, (count, dw.shape[1] // count)), 1
    if x_dim is None:
        folded = channels_last(_into_groups(dy, dy_dim, 1, groups))
        dw = calls.wgrad(x, folded, parameters, size, fallback)
        return _out_of_groups(dw, 0, groups, count), 0
    each = parameters._replace(groups=count * groups)
    x, dy = _into_channels(x, x_dim), _into_channels(dy, dy_dim)
    dw = calls.wgrad(x, dy, each, size, fallback)
    return dw.unflatten(0, (count, dw.shape[0] // count)), 0


def _fused(info, in_dims, x, weight, *arguments):  # type: ignore[no-untyped-def]
    *operands, parameters, activation, out_dtype, function, fallback = arguments
    fields = (*operands, activation, out_dtype, function, None, None)
    epilogue = EpilogueArguments._make(fields)
    x_dim, *others, r_dim, _, _ = in_dims[:7]
    others += [in_dims[5], *(in_dims[6] or ())]
    if any(dim is not None for dim in others):
        _refuse("an epilogue where anything but x and residual is mapped")
    count = info.batch_size
    x = _all_into_images(x, x_dim, count)
    if epilogue.residual is not None:
        residual = _all_into_images(epilogue.residual, r_dim, count)
        epilogue = epilogue._replace(residual=residual)
    y = calls.fused(x, weight, epilogue, parameters, fallback)
    return y.unflatten(0, (count, y.shape[0] // count)), 0


def _into(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    del info, in_dims, arguments
    _refuse("out= or amax=")


#: By name of the operator without a backward; its twin has the same.  They get the parameters as
#: one value.
RULES: dict[str, Callable[..., Any]] = {
    "fprop": _fprop,
    "dgrad": _dgrad,
    "wgrad": _wgrad,
    "fprop_fused": _fused,
    "fprop_into": _into,
}
