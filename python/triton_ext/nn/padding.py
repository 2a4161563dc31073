"""Zeros around the input of a convolution, left to its kernel instead of being written to memory.

Many networks pad by ``torch.nn.functional.pad`` and convolve what comes out: causal convolutions of
video, "same" padding with a stride, an odd pixel in front of a downsampling.  Within a module that
is converted, ``pad`` returns a :class:`Padded`: the tensor without the zeros, and their number.  A
convolution of this package adds them to its padding.  Anything else that reads the tensor gets it
padded by torch, at its first use.

Safe direction: what may write to the unpadded tensor before the convolution has read it pads first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from triton_ext.ops.core.descriptors import channels_last_strides
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.dispatch_cache import PLAIN_TYPES, is_differentiated, is_observed

__all__ = ["PAD_MODULES", "Padded", "PadsConvolution", "Pending", "padded", "unpadded"]

Tensor = torch.Tensor

#: torch's modules that pad with zeros, or with a constant that may be 0.
PAD_MODULES = tuple(
    getattr(torch.nn, f"{kind}Pad{dims}d") for kind in ("Zero", "Constant") for dims in (1, 2, 3)
)

# Paddings by those of a convolution and the sides: call keys want the same tuple at every call.
_paddings: dict[Any, tuple[tuple[int, int], ...]] = {}
_MOST_PADDINGS = 4096


class Padded(torch.Tensor):
    """A tensor [N, C, *size] that is padded with zeros when it is read."""

    _inner: Tensor
    _sides: tuple[int, ...]
    _real: Tensor | None
    _written: int | None

    # Only operators are intercepted.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, sides: tuple[int, ...]) -> Padded:
        """Makes one of a tensor and the sides of ``torch.nn.functional.pad``."""
        size = list(inner.shape)
        for index in range(len(sides) // 2):
            size[-1 - index] += sides[2 * index] + sides[2 * index + 1]
        made: Padded = torch.Tensor._make_wrapper_subclass(
            cls, size, channels_last_strides(size), dtype=inner.dtype, device=inner.device
        )
        made._inner, made._sides, made._real = inner, sides, None
        made._written = None if inner.is_inference() else inner._version
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Padded, Padded.real, (args, kwargs or {}))
        return func(*args, **kwargs)

    def real(self) -> Tensor:
        """Returns the padded tensor, the same one at every call."""
        if self._real is None:
            self._check()
            self._real = torch.ops.aten.constant_pad_nd.default(self._inner, self._sides, 0)
            del self._inner
        return self._real

    def _check(self) -> None:
        if self._written is not None and self._inner._version != self._written:
            raise RuntimeError(
                "a tensor was written to, by something else than a function of torch, between its "
                "padding and the convolution; call triton_ext.nn.revert(module) for this module"
            )

    def merged(self, padding: Any) -> tuple[Tensor, Any]:
        """Returns a tensor and the padding with which a convolution computes the same.

        Args:
            padding: That of the convolution.
        """
        if self._real is not None or type(padding) is not tuple:
            return self.real(), padding
        self._check()
        key = (padding, self._sides)
        found = _paddings.get(key)
        if found is None:
            pairs = zip(self._sides[::2], self._sides[1::2], strict=True)
            sides = [*pairs, *[(0, 0)] * (len(padding) - len(self._sides) // 2)][::-1]
            if len(_paddings) >= _MOST_PADDINGS:
                _paddings.clear()
            found = _paddings[key] = tuple(
                (own + low, own + high) for own, (low, high) in zip(padding, sides, strict=True)
            )
        return self._inner, found


def unpadded(result: Any) -> Any:
    """Returns the result of a module with plain tensors in it."""
    if type(result) is Tensor:
        return result
    return tree_map_only(Padded, Padded.real, result)


def padded(x: Any, sides: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Returns what ``torch.nn.functional.pad`` returns, not padded yet; ``None`` for other calls.

    Args:
        x: The input.
        sides: Pixels in front of and behind each dimension, the last dimension first.
        mode: As for torch's function.
        value: As for torch's function.
    """
    if type(x) not in PLAIN_TYPES or mode != "constant" or value not in (None, 0):
        return None
    if type(sides) not in (tuple, list) or not {type(side) for side in sides} <= {int}:
        return None
    rank, count = x.dim(), len(sides)
    if rank not in (3, 4, 5) or count % 2 or not 2 <= count <= 2 * (rank - 2) or min(sides) < 0:
        return None
    if not (x.is_cuda or IS_INTERPRETED) or x.is_meta or not x.numel() or is_differentiated(x):
        return None
    return Padded(x, tuple(sides))


# Methods that change no tensor, though their names end as of those that do.
_READS = frozenset(
    f"__{name}__" for name in ("get", "getitem", "len", "iter", "add", "radd", "sub", "mul", "rmul")
)


class Pending:
    """The :class:`Padded` tensors of a call of a module."""

    def __init__(self) -> None:
        self._alive: list[weakref.ref[Padded]] = []

    def add(self, tensor: Padded) -> Padded:
        """Adds one and returns it."""
        self._alive.append(weakref.ref(tensor))
        return tensor

    def before(self, func: Any, args: tuple[Any, ...], keywords: Any) -> None:
        """Pads all of them where a function may write to a tensor."""
        if not self._alive:
            return
        name = getattr(func, "__name__", "_")
        if name in _READS:
            return
        writes = name.endswith("_") or "out" in keywords or keywords.get("inplace")
        if not writes and getattr(func, "__module__", "") == "torch.nn.functional":
            writes = any(argument is True for argument in args)  # it may be named inplace
        if writes:
            self.pad()

    def pad(self) -> None:
        """Pads those that somebody still has."""
        for reference in self._alive:
            tensor = reference()
            if tensor is not None:
                tensor.real()
        self._alive.clear()


class PadsConvolution:
    """Mixin of a padding module in front of a convolution in a ``Sequential``."""

    @staticmethod
    def forward_for(kind: Any) -> Callable[[Any, Any], Any]:
        """Returns the forward of a class that is made from torch's class."""

        def forward(self: Any, x: Any) -> Any:
            y = None
            if not torch.compiler.is_compiling() and not is_observed():
                y = padded(x, self.padding, "constant", self.value)
            return kind.forward(self, x) if y is None else y

        return forward
