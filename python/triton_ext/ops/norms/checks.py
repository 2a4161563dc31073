"""Checks of arguments of normalizations: mistakes, and refusals of the kernels.

Mistakes are ValueError and TypeError, as those of convolutions; a call without a mistake that no
kernel takes is UnsupportedError.  Every call without a cached plan checks the kinds of its
arguments.  Shapes, dtypes and devices are checked where kernels are to compute; elsewhere torch
checks them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from triton_ext.errors import UnsupportedError
from triton_ext.ops.api.checks import kind_of
from triton_ext.ops.api.operators import is_transformed
from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import PLAIN_TYPES, cached, keep, operand_key
from triton_ext.ops.core.epilogue import ACTIVATIONS
from triton_ext.ops.core.refusals import Refusal

__all__ = [
    "are_numbers",
    "check_kinds",
    "epsilon",
    "is_channels_last",
    "is_left_to_torch",
    "is_negated",
    "norm_problem",
    "number",
    "recall",
    "refusal",
]

Tensor = torch.Tensor

_ACTIVATIONS = ("identity", *(name for name in ACTIVATIONS if name != "none"))
_RESIDUAL_ACTIVATIONS = ("identity", "relu")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
# The kernels count rows, those of a tile after the last one included, and offsets in a tile in 32
# bits.
_MOST_ROWS = 1 << 30
_MOST_CHANNELS = 1 << 20
# Channels of a group are a tile of the kernels that merge.
_MOST_GROUP_CHANNELS = 1 << 13


# ---- Kinds of arguments -------------------------------------------------------------------------


def check_kinds(
    name: str, tensors: Mapping[str, object], numbers: Mapping[str, object], activation: object
) -> None:
    """Raises TypeError where an argument is no tensor or no number, ValueError for an activation.

    Tensors but x may be None.
    """
    for which, value in tensors.items():
        if not isinstance(value, Tensor) and (value is not None or which == "x"):
            raise TypeError(f"{name}: {which} must be a tensor, got {kind_of(value)}")
    for which, value in numbers.items():
        # A tensor's number is not read, which nobody could trace.
        is_number = isinstance(value, _NUMBERS) or hasattr(value, "__float__")
        if isinstance(value, bool) or not is_number:
            raise TypeError(f"{name}: {which} must be a number, got {kind_of(value)}")
    text = _activation_refusal(activation)
    if text is not None:
        raise ValueError(f"{name}: {text}")


def _activation_refusal(activation: object) -> str | None:
    if isinstance(activation, str) and activation in _ACTIVATIONS:
        return None
    return f"expected an activation of {', '.join(_ACTIVATIONS)}, got {activation!r}"


def number(name: str, value: Any) -> float:
    """Returns a number as plans have it: a tensor may hold another one at the next call."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}") from None


def epsilon(name: str, value: object) -> float:
    """Returns the number that is added to variances, of which a root is taken then."""
    eps = number(name, value)
    if not eps >= 0.0:
        raise ValueError(f"{name} must not be negative, got {eps}")
    return eps


def are_numbers(*values: object) -> bool:
    """Tells whether a graph may hold values: a tensor has another one at its next run."""
    return all([isinstance(value, _NUMBERS) for value in values])


# ---- Who computes -------------------------------------------------------------------------------


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
    """Tells whether torch observes operators, which kernels are not, so that it is to compute."""
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


# ---- Refusals -----------------------------------------------------------------------------------


def recall(
    groups: int | None, words: tuple[object, ...], *tensors: Tensor | None
) -> tuple[Hashable, Any]:
    """Returns the key of a normalization, and the value that is cached under it, or None."""
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
    if kind not in ("batch", "group"):
        return f"expected a kind of batch, group, got {kind!r}"
    if kind == "group" and type(groups) is not int:
        return f"expected groups as an int, got {groups!r}"
    groups = groups if kind == "group" else None
    # torch.compile must not trace the cache.
    key = found = None
    if not torch.compiler.is_compiling():
        words = ("norm_refusal", activation)
        key, found = recall(groups, words, x, weight, bias, residual)
    if found is None:
        terms = {"weight": weight, "bias": bias}
        refused = refusal(x, groups, terms, residual, activation)
        found = keep(key, (None if refused is None else refused.text,))
    text: str | None = found[0]
    return text


def refusal(
    x: Tensor,
    groups: int | None,
    terms: Mapping[str, Tensor | None],
    residual: Tensor | None,
    activation: str,
) -> Refusal | None:
    """Returns the first mistake in arguments, else why no kernel takes them, or None.

    Without groups it is BatchNorm; the terms are tensors [C] or None, by name.
    """
    tensors = {"x": x, **{name: term for name, term in terms.items() if term is not None}}
    if residual is not None:
        tensors["residual"] = residual
    found = _mistake(x, groups, tensors, activation)
    if found is None:
        text = _unsupported_input(x) or _unsupported(x, groups, residual, activation)
        text = text or _unsupported_views(tensors)
        found = None if text is None else Refusal(text, UnsupportedError)
    return found


def _mistake(
    x: Tensor, groups: int | None, tensors: Mapping[str, Any], activation: str
) -> Refusal | None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            return Refusal(f"{name} must be a tensor, got {kind_of(tensor)}", TypeError)
        if tensor.is_nested or tensor.layout is not torch.strided:
            layout = "a nested one" if tensor.is_nested else tensor.layout
            return Refusal(f"{name} must be a dense tensor, got {layout}", TypeError)
    if x.dim() < 2:
        return Refusal(f"expected x [N, C, *size], got {list(x.shape)}", ValueError)
    if not x.is_floating_point():
        return Refusal(f"expected x of a floating-point dtype, got {x.dtype}", TypeError)
    channels = x.shape[1]
    if groups is not None:
        if groups < 1:
            return Refusal(f"groups must be at least 1, got {groups}", ValueError)
        if channels % groups:
            return Refusal(f"{channels} channels do not divide into {groups} groups", ValueError)
    for name, tensor in tensors.items():
        is_term = name not in ("x", "residual")
        shape = (channels,) if is_term else x.shape
        if tensor.shape != shape:
            text = f"expected {name} {list(shape)}, got {list(tensor.shape)}"
            return Refusal(text, ValueError)
        if tensor.dtype != x.dtype and not (is_term and tensor.dtype == torch.float32):
            what = ": expected that or float32" if is_term else ""
            return Refusal(f"{name} is {tensor.dtype}, x is {x.dtype}{what}", TypeError)
        if tensor.device != x.device:
            return Refusal(f"{name} is on {tensor.device}, x is on {x.device}", ValueError)
    mistake = _activation_refusal(activation)
    return None if mistake is None else Refusal(mistake, ValueError)


def _unsupported_input(x: Tensor) -> str | None:
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
    return None


def _unsupported(
    x: Tensor, groups: int | None, residual: Tensor | None, activation: str
) -> str | None:
    images, channels = x.shape[0], x.shape[1]
    if groups is None:
        if x.numel() == channels:
            # In training torch refuses it, too.
            return "the kernels take more than one value per channel"
        if residual is not None and activation not in _RESIDUAL_ACTIVATIONS:
            return f"a residual is added in front of identity and relu, not of {activation}"
        return None
    if channels // groups > _MOST_GROUP_CHANNELS:
        return f"groups of {channels // groups} channels: the kernels add {_MOST_GROUP_CHANNELS}"
    if images * groups > _MOST_ROWS:
        return f"{groups} groups of {images} images: the kernels count to 2**30"
    if x.numel() == groups:
        return "torch refuses one value per group"
    return None if residual is None else "a residual is added behind BatchNorm only"


def _unsupported_views(tensors: Mapping[str, Tensor]) -> str | None:
    for name, tensor in tensors.items():
        if is_negated(tensor):
            return f"{name} is a negated view, whose memory holds other values; call resolve_neg()"
        if tensor.dim() == 1:
            if not tensor.is_contiguous():
                return f"{name} has strides, expected it packed"
        elif not is_channels_last(tensor):
            # A graph that says which strides holds for those alone.
            which = "" if torch.compiler.is_compiling() else f" of strides {list(tensor.stride())}"
            return (
                f"{name}{which} is not channels-last: expected dense pixels, channels side by side"
            )
    return None
