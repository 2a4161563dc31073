"""A way past argument checks and torch's dispatcher for calls that were seen before.

An eager call on plain tensors, without a derivative, autocast, a dispatch mode or a transform at
work, ends in its plan whatever is asked on the way.  Such calls are known by what they look like:
the second one goes to the plan at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.autograd import forward_ad

from triton_ext.ops.autocast import is_autocast
from triton_ext.ops.calls import is_transformed
from triton_ext.ops.descriptors import ROW_BYTES
from triton_ext.ops.machine import IS_INTERPRETED
from triton_ext.ops.plans import PlanCache, allows_tf32
from triton_ext.ops.repeats import Repeats

__all__ = ["forget", "keep", "key_of", "plan_of"]

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# What else may be in a key: names, a dtype; other things need not even be hashable.
_WORDS = {str, torch.dtype, type(None)}
# Equal values of these are the same argument; 1.0 and True equal 1.
_EXACT = {int, str}

_known: PlanCache[Repeats] = PlanCache()


def forget() -> None:
    """Forgets all calls."""
    _known.clear()


def _is_exact(value: object) -> bool:
    """Tells whether equal values are the same argument."""
    kind = type(value)
    return kind in _EXACT or (kind is tuple and set(map(type, value)) == {int})  # type: ignore[call-overload]


def _is_watched() -> bool:
    """Tells whether somebody but the operators has to do with calls on plain tensors."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or is_transformed()
        or forward_ad._current_level >= 0
    )


def key_of(
    name: str,
    tensors: tuple[torch.Tensor | None, ...],
    numbers: tuple[object, ...],
    rest: tuple[Hashable, ...] = (),
) -> Hashable:
    """Returns what a call looks like; ``None`` where it has to take the whole way.

    Args:
        name: Of the function.
        tensors: x first; all that the call got, ``None`` for those it did not.  Nothing about them
            was checked.
        numbers: Stride, padding, dilation and groups as the caller gave them.
        rest: Everything else that decides what is done: names, dtypes.
    """
    if _is_watched():
        return None
    may_differentiate = torch.is_grad_enabled()
    looks: list[Hashable] = [name, rest]
    for tensor in tensors:
        if tensor is None:
            looks.append(None)
            continue
        if type(tensor) not in _PLAIN_TYPES or not (tensor.is_cuda or IS_INTERPRETED):
            return None
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg():
            return None
        if may_differentiate and tensor.requires_grad:
            return None
        looks += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    x = tensors[0]
    if x is None or x.data_ptr() % ROW_BYTES or is_autocast("cuda" if x.is_cuda else "cpu"):
        return None
    if not _EXACT.issuperset(map(type, numbers)) and not all(map(_is_exact, numbers)):
        return None
    if not _WORDS.issuperset(map(type, rest)):
        return None
    looks.append(numbers)
    if x.dtype is torch.float32:
        looks.append(allows_tf32())
    return tuple(looks)


def plan_of(key: Hashable) -> Repeats | None:
    """Returns what runs the plan of calls of this look; ``None`` where none is known."""
    return None if key is None else _known.get(key)


def keep(key: Hashable, plan: Any) -> None:
    """Keeps the plan of a call that took the whole way; ``None`` where it has none."""
    if key is not None and plan is not None:
        _known.keep(key, Repeats(plan))
