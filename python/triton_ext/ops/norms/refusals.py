"""Refusals: normalizations that no kernel takes, and why."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from triton_ext.ops.api.operators import is_transformed
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import PLAIN_TYPES, cached, keep, operand_key
from triton_ext.ops.core.memory_format import channels_last_strides
from triton_ext.ops.norms.norm_arguments import (
    activation_mistake,
    dense_mistake,
    residual_mistake,
    term_mistake,
)

__all__ = [
    "dense_refusal",
    "is_channels_last",
    "is_left_to_torch",
    "is_negated",
    "norm_problem",
    "recall",
    "running_refusal",
]

Tensor = torch.Tensor

_RESIDUAL_ACTIVATIONS = ("identity", "relu")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The kernels count rows, those of a tile after the last one included, and offsets in a tile in 32
# bits.
_MOST_ROWS = 1 << 30
_MOST_CHANNELS = 1 << 20
# Channels of a group are a tile of the kernels that merge.
_MOST_GROUP_CHANNELS = 1 << 13


def is_channels_last(x: Tensor) -> bool:
    """Tells whether [N, C, *size] is dense and its channels lie side by side."""
    rank = x.dim()
    if torch.compiler.is_compiling():
        # torch 2.11 says that tensors of symbolic sizes are not contiguous.
        strides = zip(x.stride(), channels_last_strides(x.shape), x.shape, strict=True)
        return all([found == wanted or size == 1 for found, wanted, size in strides])
    if rank == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    if rank == 5:
        return x.is_contiguous(memory_format=torch.channels_last_3d)
    return x.transpose(1, 2).is_contiguous()


def is_negated(tensor: Tensor) -> bool:
    """Tells whether memory holds a tensor's values negated; False while torch traces."""
    return not torch.compiler.is_compiling() and tensor.is_neg()


def is_left_to_torch(*tensors: object) -> bool:
    """Tells whether torch observes operators, which kernels are not, so that it is to compute.

    Args:
        tensors: The tensors of the call; values of other classes do not count.
    """
    if (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_transformed()
        or forward_ad._current_level >= 0
    ):
        return True
    if torch._C._len_torch_dispatch_stack() > 0:
        modes = (torch._C._get_dispatch_mode(key) for key in _RECORDING_MODES)
        if any(mode is not None for mode in modes):
            return True
    return any([t is not None and type(t) not in PLAIN_TYPES and _dispatches(t) for t in tensors])


_RECORDING_MODES = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def _dispatches(tensor: object) -> bool:
    """Tells whether a tensor's class computes by itself: fake, distributed and nested ones."""
    own = getattr(type(tensor), "__torch_dispatch__", None)
    return isinstance(tensor, Tensor) and own is not Tensor.__torch_dispatch__


def recall(
    groups: int | None, words: tuple[object, ...], *tensors: Tensor | None
) -> tuple[Hashable, Any]:
    """Returns the key of a normalization, and what is cached under it; ``None`` without.

    Args:
        groups: Number of groups for GroupNorm.
        words: Further arguments.
        tensors: The tensors.
    """
    # Equal numbers of other types are the same key.
    if groups is None or type(groups) is int:
        try:
            negated = tuple([tensor is not None and tensor.is_neg() for tensor in tensors])
            key = operand_key((groups, words, negated), tensors)
            return key, cached(key)
        except (AttributeError, RuntimeError, TypeError):
            pass  # no tensors, or no hash: the refusal says so
    return None, None


def norm_problem(
    kind: Literal["batch", "group"],
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> str | None:
    """Returns why no kernel takes a normalization; ``None`` if one does.

    Args:
        kind: ``"batch"`` or ``"group"``.
        x: [N, C, *size].
        groups: Number of groups, for ``"group"``.
        weight: [C] or None.
        bias: [C] or None.
        residual: Added before the activation, for ``"batch"``, or None.
        activation: Its name.
    """
    if torch.compiler.is_compiling():
        # torch.compile must not trace the cache.
        return _find_refusal(kind, x, groups, weight, bias, residual, activation)
    words = ("norm_refusal", kind, activation)
    key, found = recall(groups, words, x, weight, bias, residual)
    if found is None:
        found = keep(key, (_find_refusal(kind, x, groups, weight, bias, residual, activation),))
    return found[0]


def _find_refusal(
    kind: str,
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> str | None:
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias), ("the residual", residual)):
        refusal = None if tensor is None and name != "x" else dense_refusal(name, tensor)
        if refusal is not None:
            return refusal
    refusal = _input_refusal(x) or _group_refusal(kind, x, groups)
    if refusal is not None:
        return refusal
    for name, term in (("weight", weight), ("bias", bias)):
        refusal = None if term is None else _term_refusal(name, term, x)
        if refusal is not None:
            return refusal
    mistake = activation_mistake(activation)
    if mistake is not None:
        return mistake[1]
    return None if residual is None else _residual_refusal(kind, x, residual, activation)


def dense_refusal(name: str, tensor: Any) -> str | None:
    """Returns why something is no dense tensor whose memory holds its values."""
    mistake = dense_mistake(name, tensor)
    if mistake is not None:
        return mistake[1]
    if is_negated(tensor):
        return f"{name} is a negated view, whose memory holds other values; call resolve_neg()"
    return None


def _input_refusal(x: Tensor) -> str | None:
    if x.dim() not in (3, 4, 5):
        return f"expected x [N, C, *size] of one to three dimensions, got {list(x.shape)}"
    if x.dtype not in _DTYPES:
        return f"x is {x.dtype}: the kernels take float16, bfloat16 and float32"
    if x.device.type != "cuda" and not (IS_INTERPRETED and x.device.type == "cpu"):
        return f"x is on {x.device}: the kernels run on a GPU"
    if not x.numel():
        return f"x is empty: {list(x.shape)}"
    rows = x.numel() // x.shape[1]
    if rows > _MOST_ROWS or x.shape[1] > _MOST_CHANNELS:
        return f"{rows} pixels of {x.shape[1]} channels: the kernels count to 2**30 and 2**20"
    if not is_channels_last(x):
        # A graph that says which strides holds for those alone.
        which = "" if torch.compiler.is_compiling() else f" of strides {list(x.stride())}"
        return f"x{which} is not channels-last: expected dense pixels, channels side by side"
    return None


def _group_refusal(kind: str, x: Tensor, groups: int | None) -> str | None:
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    if kind == "batch":
        # In training torch refuses it, too.
        return "the kernels take more than one value per channel" if rows == 1 else None
    if kind != "group":
        return f"expected a kind of batch, group, got {kind!r}"
    if groups is not None and type(groups) is not int:
        return f"expected groups as an int, got {groups!r}"
    if groups is None or groups < 1 or channels % groups:
        return f"{channels} channels do not divide into {groups} groups"
    if channels // groups > _MOST_GROUP_CHANNELS:
        return f"groups of {channels // groups} channels: the kernels add {_MOST_GROUP_CHANNELS}"
    if x.shape[0] * groups > _MOST_ROWS:
        return f"{groups} groups of {x.shape[0]} images: the kernels count to 2**30"
    values = rows // x.shape[0] * channels // groups
    return "torch refuses one value per group" if values * x.shape[0] == 1 else None


def _term_refusal(name: str, term: Tensor, x: Tensor) -> str | None:
    mistake = term_mistake(name, term, x)
    if mistake is not None:
        return mistake[1]
    return None if term.is_contiguous() else f"{name} has strides, expected it packed"


def _residual_refusal(kind: str, x: Tensor, residual: Tensor, activation: str) -> str | None:
    if kind != "batch":
        return "a residual is added behind BatchNorm only"
    if activation not in _RESIDUAL_ACTIVATIONS:
        return f"a residual is added in front of identity and relu, not of {activation}"
    mistake = residual_mistake(residual, x)
    if mistake is not None:
        return mistake[1]
    return None if is_channels_last(residual) else "the residual is not channels-last"


def running_refusal(x: Tensor, mean: Tensor | None, variance: Tensor | None) -> str | None:
    """Returns why no kernel reads or writes running statistics; ``None`` if one does."""
    for name, running in (("running_mean", mean), ("running_var", variance)):
        if running is None:
            continue
        refusal = dense_refusal(name, running) or _term_refusal(name, running, x)
        if refusal is not None:
            return refusal
    return None
