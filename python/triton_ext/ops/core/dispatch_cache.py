"""One cache from call keys to what computes such calls, for convolutions and normalizations.

A call key describes a call: its function, its arguments, and shape, strides, dtype and device of
its tensors.  Operators have :func:`operand_key`.  Public functions have :func:`function_key` and
:func:`tensor_key`, with arguments as the caller gave them: an eager call on plain, aligned tensors,
outside of dispatch modes, transforms and autocast, launches its kernels directly.  Other calls have
no function key (``None``) and go through torch's dispatcher.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._device import DeviceContext

from triton_ext.ops.core.device import IS_INTERPRETED

Tensor = torch.Tensor
Value = TypeVar("Value")

#: Addresses of tensors in calls with a function key are multiples of this many bytes.
ALIGNMENT = 16

#: Classes of tensors that compute nothing by themselves.
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# Other values may not be hashable.
_WORDS = {str, torch.dtype, type(None)}
# Equal values of these are the same argument; 1.0 and True equal 1.
_EXACT = {int, str}
# Tuples of integers by their ids: modules have the same ones at every call.
_exact_tuples: dict[int, tuple[Any, ...]] = {}
_MOST_TUPLES = 4096

# Looked up once: each is asked at every call.
_is_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.get_dynamic_layer_stack_depth
_is_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled


class DispatchCache(Generic[Value]):
    """Values by call key; the oldest go when there are ``size``."""

    def __init__(self, size: int = 8192) -> None:
        self._size = size
        self._values: dict[Hashable, Value] = {}
        self._changing = threading.RLock()  # a look-up needs no lock
        self.get = self._values.get

    def keep(self, key: Hashable, value: Value) -> Value:
        """Keeps a value and returns it."""
        with self._changing:
            while len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
            self._values[key] = value
        return value

    def clear(self) -> None:
        """Removes all values."""
        with self._changing:
            self._values.clear()


_cache: DispatchCache[Any] = DispatchCache()
#: Returns the cached value of a call key, which is not None here, or None.
get = _cache.get
#: Empties the cache, as after a change of tables or families.
clear = _cache.clear


def cached(key: Hashable) -> Any:
    """Returns the cached value of a call key; ``None`` if there is none, or for no key."""
    # A traced call has no key, and torch.compile must not trace the look-up.
    return None if key is None else get(key)


def keep(key: Hashable, value: Value) -> Value:
    """Caches a value under a call key, unless that is ``None``; returns the value."""
    return value if key is None else _cache.keep(key, value)


def allows_tf32() -> bool:
    """Tells whether torch's settings let convolutions of fp32 round their operands to TF32."""
    precision: str = torch.backends.cudnn.conv.fp32_precision
    return precision == "tf32"


def operand_key(words: Hashable, tensors: tuple[Tensor | None, ...]) -> Hashable:
    """Returns the key of a call of an operator on dense tensors, x first.

    ``words`` are the operator and all arguments but the tensors.
    """
    key: list[Hashable] = [words]
    for t in tensors:
        key.append(None if t is None else (t.shape, t.stride(), t.dtype, t.device))
    x = tensors[0]
    if x is not None and x.dtype is torch.float32:
        key.append(allows_tf32())
    return tuple(key)


def function_key(
    name: str,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[object, ...],
    rest: tuple[Hashable, ...] = (),
) -> Hashable:
    """Returns the key of a call of a convolution; ``None`` if it takes the dispatcher.

    The key does not tell whether autograd records the call.  Arguments are not checked.
    ``tensors`` are all of the call, x first; ``numbers`` stride, padding, dilation, groups and
    sizes as the caller gave them; ``rest`` all else that decides what is computed: names, dtypes.
    """
    if is_observed():
        return None
    for value in numbers:
        if type(value) is int or _exact_tuples.get(id(value)) is value:
            continue
        if not _is_exact(value):
            return None
    for value in rest:
        if type(value) not in _WORDS:
            return None
    return _tensor_key((name, numbers, rest), tensors, True)


def tensor_key(
    words: Hashable, tensors: tuple[Any, ...], *, is_convolution: bool = False
) -> Hashable:
    """Returns the key of a call on plain, dense, aligned tensors that nothing observes, or None.

    ``words`` are all arguments but the tensors; equal ones are the same arguments.
    """
    return None if is_observed() else _tensor_key(words, tensors, is_convolution)


def _tensor_key(words: Hashable, tensors: tuple[Any, ...], is_convolution: bool) -> Hashable:
    key: list[Hashable] = [words]
    addresses = 0
    try:
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            elif type(tensor) in PLAIN_TYPES and not tensor.is_neg():
                key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                addresses |= tensor.data_ptr()
            else:
                return None
    except (AttributeError, RuntimeError):
        # No tensor, one that is not dense, or a dead wrapper of torch.func.
        return None
    if addresses % ALIGNMENT:
        return None
    if is_convolution:
        x = tensors[0]
        if x is None or not (x.is_cuda or IS_INTERPRETED):
            return None
        if _is_any_autocast() and _is_cast(x, tensors):
            return None
        if x.dtype is torch.float32:
            key.append(allows_tf32())
    return tuple(key)


def _is_exact(value: Any) -> bool:
    """Tells whether equal values are the same argument; torch.Size has integers alone."""
    kind = type(value)
    if kind in _EXACT or kind is torch.Size:
        return True
    if kind is not tuple or not (_are_integers(value) or all(map(_are_integers, value))):
        return False
    if len(_exact_tuples) >= _MOST_TUPLES:
        _exact_tuples.clear()
    _exact_tuples[id(value)] = value
    return True


def _are_integers(value: Any) -> bool:
    return type(value) is tuple and set(map(type, value)) == {int}


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Tells whether autograd records a call that has a function key."""
    if _is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def is_observed() -> bool:
    """Tells whether torch traces or transforms calls, or a mode intercepts them."""
    return (
        is_compiling()
        or _is_tracing()
        or _dispatch_modes() > 0
        or _transforms() > 0
        or forward_ad._current_level >= 0
        or (_function_modes() > 0 and _is_intercepted())
    )


def _is_intercepted() -> bool:
    """Tells whether a function mode intercepts functions of this package."""
    modes = map(torch._C._get_function_stack_at, range(_function_modes()))
    return any(
        type(mode) is not DeviceContext and not getattr(mode, "leaves_ours", False)
        for mode in modes
    )


# float64 stays what it is, and so does what is smaller than half precision.
_ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)


def is_autocast(device: str) -> bool:
    """Tells whether autocast is on for a type of device; there are others, such as ``meta``."""
    return device in ("cuda", "cpu") and torch.is_autocast_enabled(device)


def is_cast(operand: torch.Tensor) -> bool:
    """Tells whether autocast casts an operand."""
    return operand.dtype in _ELIGIBLE and is_autocast(operand.device.type)


def cast_dtype(operand: torch.Tensor) -> torch.dtype:
    """Returns the dtype of an operand in a call: autocast's, where that casts it."""
    return torch.get_autocast_dtype(operand.device.type) if is_cast(operand) else operand.dtype


def cast_operands(operands: Sequence[Tensor | None], device: str) -> tuple[Any, ...]:
    """Returns operands, those of a device cast to its autocast dtype."""
    dtype = torch.get_autocast_dtype(device)

    def cast(operand: Tensor | None) -> Tensor | None:
        if operand is None or operand.device.type != device or operand.dtype not in _ELIGIBLE:
            return operand
        return operand.to(dtype)

    return tuple([cast(operand) for operand in operands])


def autocast_operands(*tensors: Tensor | None) -> tuple[Any, ...] | None:
    """Returns the operands of a call without a key as autocast casts them.

    ``None`` where the call has no key for another reason.
    """
    if is_observed() or not _is_any_autocast():
        return None
    x = tensors[0]
    is_plain = all([t is None or type(t) in PLAIN_TYPES for t in tensors])
    if x is None or not is_plain or not is_autocast(x.device.type):
        return None
    wanted = cast_operands(tensors, x.device.type)
    is_same = all([given is cast for given, cast in zip(tensors, wanted, strict=True)])
    return None if is_same else wanted


def _is_cast(x: Tensor, tensors: tuple[Tensor | None, ...]) -> bool:
    """Tells whether autocast changes any of the tensors."""
    device = "cuda" if x.is_cuda else "cpu"
    if not is_autocast(device):
        return False
    dtype = torch.get_autocast_dtype(device)
    return any(tensor is not None and tensor.dtype != dtype for tensor in tensors)
