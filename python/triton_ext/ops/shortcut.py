"""A way past argument checks and torch's dispatcher for calls that were seen before.

An eager call on plain tensors, without a dispatch mode, a transform or an autocast that changes
them, ends in its plan whatever is asked on the way.  Such calls are known by what they look like:
the second one goes to the plan at once, or to autograd with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from triton_ext.ops.autocast import cast_operands, is_autocast
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.descriptors import ROW_BYTES
from triton_ext.ops.plans import PlanCache, allows_tf32

__all__ = [
    "PLAIN_TYPES",
    "cast",
    "forget",
    "is_differentiated",
    "is_watched",
    "keep",
    "key_of",
    "known",
    "look",
]

#: Of tensors that nothing but autograd has to do with.
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# What else may be in a key: names, a dtype; other things need not even be hashable.
_WORDS = {str, torch.dtype, type(None)}
# Equal values of these are the same argument; 1.0 and True equal 1.
_EXACT = {int, str}
# Tuples of integers by their ids: modules have the same ones at every call.
_exact_tuples: dict[int, tuple[int, ...]] = {}
_MOST_TUPLES = 4096

_known: PlanCache[Any] = PlanCache()

# Looked up once: each is asked at every call.
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.get_dynamic_layer_stack_depth
_is_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled


def forget() -> None:
    """Forgets all calls."""
    _known.clear()


def known(key: Hashable) -> Any:
    """Returns what was kept for calls of a look; ``None`` where nothing was, and for no look."""
    # What torch traces has no look, and is not to see what is kept.
    return None if key is None else _known.get(key)


def keep(key: Hashable, value: Any) -> None:
    """Keeps what does the work of calls of a look; nothing for ``None`` as the look."""
    if key is not None:
        _known.keep(key, value)


def is_differentiated(*tensors: torch.Tensor | None) -> bool:
    """Tells whether autograd has to do with a call that has a key."""
    if _is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _is_exact(value: object) -> bool:
    """Tells whether equal values are the same argument; torch.Size has integers alone."""
    kind = type(value)
    if kind in _EXACT or kind is torch.Size:
        return True
    if kind is not tuple or set(map(type, value)) != {int}:  # type: ignore[call-overload]
        return False
    if len(_exact_tuples) >= _MOST_TUPLES:
        _exact_tuples.clear()
    _exact_tuples[id(value)] = value  # type: ignore[assignment]
    return True


def is_watched() -> bool:
    """Tells whether somebody but the operators has to do with calls on plain tensors."""
    return (
        is_compiling()
        or _is_tracing()
        or _dispatch_modes() > 0
        or _transforms() > 0
        or forward_ad._current_level >= 0
        or (_function_modes() > 0 and _is_told())
    )


def _is_told() -> bool:
    """Tells whether a mode is told of functions that has to do with more than new tensors."""
    modes = map(torch._C._get_function_stack_at, range(_function_modes()))
    return any(type(mode) is not DeviceContext for mode in modes)


def cast(*tensors: torch.Tensor | None) -> tuple[Any, ...] | None:
    """Returns the operands of a call without a key as autocast wants them.

    ``None`` where it is not autocast that keeps the call from having a key.
    """
    if is_watched() or not _is_any_autocast():
        return None
    for tensor in tensors:
        if tensor is not None and type(tensor) not in PLAIN_TYPES:
            return None
    first = tensors[0]
    if first is None or not is_autocast(first.device.type):
        return None
    wanted = cast_operands(tensors, (True,) * len(tensors), first.device.type)
    for given, operand in zip(tensors, wanted, strict=True):
        if given is not operand:
            return wanted
    return None


def key_of(
    name: str,
    tensors: tuple[torch.Tensor | None, ...],
    numbers: tuple[object, ...],
    rest: tuple[Hashable, ...] = (),
) -> Hashable:
    """Returns what a call looks like; ``None`` where it has to take the whole way.

    Whether something is differentiated does not show in it.

    Args:
        name: Of the function.
        tensors: x first; all that the call got, ``None`` for those it did not.  Nothing about them
            was checked.
        numbers: Stride, padding, dilation and groups as the caller gave them, and sizes.
        rest: Everything else that decides what is done: names, dtypes.
    """
    if is_compiling():
        return None
    for value in numbers:
        if type(value) is int or _exact_tuples.get(id(value)) is value:
            continue
        if not _is_exact(value):
            return None
    for value in rest:
        if type(value) not in _WORDS:
            return None
    return look((name, numbers, rest), tensors)


def look(words: Hashable, tensors: tuple[torch.Tensor | None, ...]) -> Hashable:
    """Returns what a call looks like whose other arguments equal no others; as :func:`key_of`.

    Args:
        words: All arguments but the tensors.
        tensors: As for :func:`key_of`.
    """
    if is_watched():
        return None
    x = tensors[0]
    looks: list[Hashable] = [words]
    addresses = 0
    try:
        for tensor in tensors:
            if tensor is None:
                looks.append(None)
                continue
            if type(tensor) not in PLAIN_TYPES:
                return None
            if tensor.is_neg():
                return None
            looks.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.device))
            addresses |= tensor.data_ptr()
    except (AttributeError, RuntimeError):
        # No tensor, one that is not dense, or what a transform of torch.func left behind.
        return None
    if x is None or addresses % ROW_BYTES or not (x.is_cuda or IS_INTERPRETED):
        return None
    if _is_any_autocast() and _is_cast(x, tensors):
        return None
    if x.dtype is torch.float32:
        looks.append(allows_tf32())
    return tuple(looks)


def _is_cast(x: torch.Tensor, tensors: tuple[torch.Tensor | None, ...]) -> bool:
    """Tells whether autocast changes any of the tensors."""
    device = "cuda" if x.is_cuda else "cpu"
    if not is_autocast(device):
        return False
    dtype = torch.get_autocast_dtype(device)
    return any(tensor is not None and tensor.dtype != dtype for tensor in tensors)
