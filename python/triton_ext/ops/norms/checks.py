"""Checks of arguments, refusals, plans that are cached, and calls left to torch.

Mistakes are ValueError and TypeError, as those of convolutions; a call without a mistake that no
kernel takes is UnsupportedError.  Shapes, dtypes and devices are checked where kernels are to
compute; elsewhere torch checks them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from triton_ext.ops.api.checks import kind_of
from triton_ext.ops.api.operators import is_transformed
from triton_ext.ops.core.device import IS_INTERPRETED, describe
from triton_ext.ops.core.dispatch_cache import PLAIN_TYPES, cached, keep, operand_key
from triton_ext.ops.core.epilogue import ACTIVATIONS
from triton_ext.ops.core.refusals import Refusal
from triton_ext.ops.norms.plan import NormPlan, NormShape, is_channels_last

Tensor = torch.Tensor
#: The tensors of a call, x first; the last ones may be missing.
Given = tuple[Tensor | None, ...]
_NAMES = ("x", "weight", "bias", "running_mean", "running_var", "residual")

_ACTIVATIONS = ("identity", *(name for name in ACTIVATIONS if name != "none"))
_RESIDUAL_ACTIVATIONS = ("identity", "relu")
#: Numbers that a graph may hold: a tensor has another one at its next run.
NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The kernels count rows, those of a tile after the last one included, and offsets in a tile in 32
# bits.
_MOST_ROWS = 1 << 30
_MOST_CHANNELS = 1 << 20
# Channels of a group are a tile of the kernels that merge.
_MOST_GROUP_CHANNELS = 1 << 13


#: GroupNorm, BatchNorm with statistics of x, BatchNorm with running ones.
Kind = Literal["group", "training", "evaluation"]

#: True for operators of ours in graphs of torch.compile; Inductor generates the others.
#: docs/norms.md counts the bytes that either moves.
IS_OPERATOR: dict[Kind, bool] = {"group": True, "training": False, "evaluation": False}

_RECORDING_MODES = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)


def is_left_to_torch(*tensors: object) -> bool:
    """Tells whether torch traces or transforms the call, so that torch has to compute it."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_transformed()
        or forward_ad._current_level >= 0
        or any([torch._C._get_dispatch_mode(key) is not None for key in _RECORDING_MODES])
        or any([type(t) not in PLAIN_TYPES and _dispatches(t) for t in tensors])
    )


def _dispatches(tensor: object) -> bool:
    """Tells whether a tensor's class computes by itself: fake, distributed and nested ones."""
    own = getattr(type(tensor), "__torch_dispatch__", None)
    return isinstance(tensor, Tensor) and own is not Tensor.__torch_dispatch__


def is_operator(kind: Kind) -> bool:
    """Tells whether the caller is being compiled into a graph with our operators.

    Exported graphs have none: they run without this package.  Nor have forward-mode derivatives and
    transforms of torch.func, for which torch refuses operators.  The checks are expressions that
    torch.compile traces; torch 2.11 traces neither a comparison of the interpreter with None nor
    the number of layers.
    """
    return (
        torch.compiler.is_dynamo_compiling()
        and IS_OPERATOR[kind]
        # The function is_exporting() is always true in what torch 2.11 traces.
        and not torch.compiler._is_exporting_flag
        and forward_ad._current_level < 0
        and not isinstance(
            torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter
        )
    )


def check_kinds(
    name: str, given: tuple[object, ...], numbers: Mapping[str, object], activation: object
) -> None:
    """Raises TypeError where an argument is no tensor or no number, ValueError for an activation.

    Tensors but x may be None.
    """
    refused = _kind_refusal(given, numbers, activation)
    if refused is not None:
        raise refused.kind(f"{name}: {refused.text}")


def _kind_refusal(
    given: tuple[object, ...], numbers: Mapping[str, object], activation: object
) -> Refusal | None:
    for which, value in zip(_NAMES, given, strict=False):
        if not isinstance(value, Tensor) and (value is not None or which == "x"):
            return Refusal(f"{which} must be a tensor, got {kind_of(value)}", TypeError)
    for which, value in numbers.items():
        # A tensor's number is not read, which nobody could trace.
        is_number = isinstance(value, NUMBERS) or hasattr(value, "__float__")
        if isinstance(value, bool) or not is_number:
            return Refusal(f"{which} must be a number, got {kind_of(value)}", TypeError)
    if isinstance(activation, str) and activation in _ACTIVATIONS:
        return None
    names = ", ".join(_ACTIVATIONS)
    return Refusal(f"expected an activation of {names}, got {activation!r}", ValueError)


def number(name: str, value: Any) -> float:
    """Returns an argument as a float; a tensor's number counts for this call alone."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}") from None


def plan_of(
    given: Given, groups: int | None, uses_batch: bool, activation: str, eps: float,
    out_dtype: torch.dtype,
) -> NormPlan:  # fmt: skip
    """Returns the plan of a normalization: GroupNorm, or BatchNorm where groups are ``None``.

    Raises the first of its refusals.
    """
    key = _key(groups, ("norm_plan", uses_batch, activation, eps, out_dtype), given)
    plan: NormPlan | None = cached(key)
    if plan is not None:
        return plan
    refused = refusal(given, groups, activation)
    if refused is not None:
        norm = "batch_norm" if groups is None else "group_norm"
        raise refused.kind(f"{norm}: {refused.text}")
    x: Any = given[0]
    terms = (*given, None, None)[1:5]
    plan = NormPlan(
        shape=NormShape.of(x, groups),
        strides=x.stride(),
        term_dtypes=tuple([None if term is None else term.dtype for term in terms]),
        device=describe(x.device),
        dtype=x.dtype,
        out_dtype=out_dtype,
        activation=activation,
        eps=eps,
        uses_batch=uses_batch,
    )
    return keep(key, plan)


def _key(groups: int | None, words: tuple[object, ...], given: Given) -> Hashable:
    """Returns the call key of an operator; ``None`` for what is no tensor or has no hash."""
    # Equal numbers of other types are the same key.
    if groups is not None and type(groups) is not int:
        return None
    try:
        negated = tuple([tensor is not None and tensor.is_neg() for tensor in given])
        key = operand_key((groups, words, negated), given)
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return None  # the refusal says why
    return key


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
    given = (x, weight, bias, None, None, residual)
    # torch.compile must not trace the cache.
    key = None
    if not torch.compiler.is_compiling():
        key = _key(groups, ("norm_refusal", activation), given)
    text: str | None = cached(key)
    if text is None:
        refused = refusal(given, groups, activation)
        text = keep(key, "" if refused is None else refused.text)
    return text or None


def refusal(given: Given, groups: int | None, activation: object) -> Refusal | None:
    """Returns the first mistake in arguments, else why no kernel takes them, or None.

    Without groups it is BatchNorm.
    """
    found = _kind_refusal(given, {}, activation)
    if found is not None:
        return found
    x: Any = given[0]
    pairs = zip(_NAMES, given, strict=False)
    tensors = {name: each for name, each in pairs if each is not None}
    found = _mistake(x, groups, tensors)
    if found is None:
        text = _unsupported_input(x)
        text = text or _unsupported(x, groups, "residual" in tensors, activation)
        text = text or _unsupported_views(tensors)
        found = None if text is None else Refusal(text)
    return found


def _mistake(x: Tensor, groups: int | None, tensors: Mapping[str, Tensor]) -> Refusal | None:
    for name, tensor in tensors.items():
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
    return None


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
    x: Tensor, groups: int | None, has_residual: bool, activation: object
) -> str | None:
    images, channels = x.shape[0], x.shape[1]
    if groups is None:
        if x.numel() == channels:
            # In training torch refuses it, too.
            return "the kernels take more than one value per channel"
        if has_residual and activation not in _RESIDUAL_ACTIVATIONS:
            return f"a residual is added before identity and relu, not before {activation}"
        return None
    if channels // groups > _MOST_GROUP_CHANNELS:
        return f"groups of {channels // groups} channels: the kernels add {_MOST_GROUP_CHANNELS}"
    if images * groups > _MOST_ROWS:
        return f"{groups} groups of {images} images: the kernels count to 2**30"
    if x.numel() == groups:
        return "torch refuses one value per group"
    return "a residual is added after BatchNorm only" if has_residual else None


def is_negated(tensor: Tensor) -> bool:
    """Tells whether memory holds a tensor's values negated; False while torch traces."""
    return not torch.compiler.is_compiling() and tensor.is_neg()


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
