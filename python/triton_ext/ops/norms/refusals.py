"""What the kernels of normalizations do not take."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal, TypeVar

import torch
from torch.autograd import forward_ad

from triton_ext.ops.arguments import channels_last_strides
from triton_ext.ops.calls import is_transformed
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.norms.norm_arguments import (
    activation_mistake,
    dense_mistake,
    residual_mistake,
    term_mistake,
)
from triton_ext.ops.plans import PlanCache

__all__ = [
    "dense_problem",
    "is_channels_last",
    "is_negated",
    "is_torchs",
    "norm_problem",
    "recall",
    "running_problem",
]

Tensor = torch.Tensor
Value = TypeVar("Value")

_RESIDUAL_ACTIVATIONS = ("identity", "relu")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The kernels count rows, and those of a tile behind the last, in 32 bits; so do offsets in a tile.
_MOST_ROWS = 1 << 30
_MOST_CHANNELS = 1 << 20
# Of a group: they are a tile of the kernels that merge.
_MOST_GROUP_CHANNELS = 1 << 13

_answers: PlanCache[tuple[str | None]] = PlanCache()


def is_channels_last(x: Tensor) -> bool:
    """Tells whether [N, C, *size] is dense and its channels lie side by side."""
    rank = x.dim()
    if torch.compiler.is_compiling():
        # Of symbolic sizes torch 2.11 says that nothing is contiguous.
        strides = zip(x.stride(), channels_last_strides(x.shape), x.shape, strict=True)
        return all([found == wanted or size == 1 for found, wanted, size in strides])
    if rank == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    if rank == 5:
        return x.is_contiguous(memory_format=torch.channels_last_3d)
    return x.transpose(1, 2).is_contiguous()


def is_negated(tensor: Tensor) -> bool:
    """Tells whether memory holds a tensor's values negated; nobody can tell while torch traces."""
    return not torch.compiler.is_compiling() and tensor.is_neg()


def is_torchs(*tensors: object) -> bool:
    """Tells whether torch is to compute it: it looks at operators, which kernels do not show it.

    Args:
        tensors: What is computed with; what is no tensor says nothing.
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
    return any([type(t) not in _PLAIN_TYPES and _dispatches(t) for t in tensors])


_PLAIN_TYPES = (Tensor, torch.nn.Parameter, type(None))
_RECORDING_MODES = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def _dispatches(tensor: object) -> bool:
    """Tells whether a tensor's class computes by itself: fake, distributed and nested ones."""
    own = getattr(type(tensor), "__torch_dispatch__", None)
    return isinstance(tensor, Tensor) and own is not Tensor.__torch_dispatch__


def _look(*tensors: Tensor | None) -> tuple[object, ...]:
    """What plans and refusals depend on; raises where something is no dense tensor."""
    return tuple(
        [
            None if t is None else (t.shape, t.stride(), t.dtype, t.device, t.is_neg())
            for t in tensors
        ]
    )


def recall(
    cache: PlanCache[Value], groups: int | None, words: tuple[object, ...], *tensors: Tensor | None
) -> tuple[Hashable, Value | None]:
    """Returns the key of a call, and what a cache has under it; ``None`` for either without.

    Args:
        cache: What is kept by the look of calls.
        groups: Of GroupNorm.
        words: What else it depends on.
        tensors: Whose look it depends on.
    """
    # Equal numbers of other types are the same key.
    if groups is None or type(groups) is int:
        try:
            key = (groups, words, _look(*tensors))
            return key, cache.get(key)
        except (AttributeError, RuntimeError, TypeError):
            pass  # no tensors, or no hash: the problem says so
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
        groups: Of ``"group"``.
        weight: [C] or None.
        bias: [C] or None.
        residual: Added in front of the activation, or None; of ``"batch"``.
        activation: Its name.
    """
    if torch.compiler.is_compiling():
        # What is kept is nothing to trace.
        return _find_problem(kind, x, groups, weight, bias, residual, activation)
    recalled = recall(_answers, groups, (kind, activation), x, weight, bias, residual)
    key, known = recalled
    if known is not None:
        return known[0]
    found = _find_problem(kind, x, groups, weight, bias, residual, activation)
    return found if key is None else _answers.keep(key, (found,))[0]


def _find_problem(
    kind: str,
    x: Tensor,
    groups: int | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> str | None:
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias), ("the residual", residual)):
        problem = None if tensor is None and name != "x" else dense_problem(name, tensor)
        if problem is not None:
            return problem
    problem = _input_problem(x) or _group_problem(kind, x, groups)
    if problem is not None:
        return problem
    for name, term in (("weight", weight), ("bias", bias)):
        problem = None if term is None else _term_problem(name, term, x)
        if problem is not None:
            return problem
    mistake = activation_mistake(activation)
    if mistake is not None:
        return mistake[1]
    return None if residual is None else _residual_problem(kind, x, residual, activation)


def dense_problem(name: str, tensor: Any) -> str | None:
    """Returns why something is no dense tensor whose memory holds its values."""
    mistake = dense_mistake(name, tensor)
    if mistake is not None:
        return mistake[1]
    if is_negated(tensor):
        return f"{name} is a negated view, whose memory holds other values; call resolve_neg()"
    return None


def _input_problem(x: Tensor) -> str | None:
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


def _group_problem(kind: str, x: Tensor, groups: int | None) -> str | None:
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


def _term_problem(name: str, term: Tensor, x: Tensor) -> str | None:
    mistake = term_mistake(name, term, x)
    if mistake is not None:
        return mistake[1]
    return None if term.is_contiguous() else f"{name} has strides, expected it packed"


def _residual_problem(kind: str, x: Tensor, residual: Tensor, activation: str) -> str | None:
    if kind != "batch":
        return "a residual is added behind BatchNorm only"
    if activation not in _RESIDUAL_ACTIVATIONS:
        return f"a residual is added in front of identity and relu, not of {activation}"
    mistake = residual_mistake(residual, x)
    if mistake is not None:
        return mistake[1]
    return None if is_channels_last(residual) else "the residual is not channels-last"


def running_problem(x: Tensor, mean: Tensor | None, variance: Tensor | None) -> str | None:
    """Returns why no kernel reads or writes running statistics; ``None`` if one does."""
    for name, running in (("running_mean", mean), ("running_var", variance)):
        if running is None:
            continue
        problem = dense_problem(name, running) or _term_problem(name, running, x)
        if problem is not None:
            return problem
    return None
