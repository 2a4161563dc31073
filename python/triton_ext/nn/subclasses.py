"""Classes for modules whose own class is derived from torch's convolutions or norms.

The class of such a module is replaced by one that is derived from it and from ours, in this order:

    class Causal(torch.nn.Conv3d): ...          # the user's
    class Causal(<the user's>, triton_ext.nn.Conv3d): ...    # made here, with the same name

So the user's ``forward`` runs, and ``super().forward(x)``, ``self._conv_forward(...)`` and
``torch.nn.Conv3d.forward(self, x)`` in it reach our kernel.  Where a ``forward`` calls
``torch.nn.functional.conv3d`` itself, it runs under :class:`triton_ext.nn.accelerate.Redirect`.
One kernel computes a norm of timm and the activation that it applies.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from triton_ext.nn.accelerate import Redirect
from triton_ext.nn.padding import unpadded
from triton_ext.nn.steps import drops_nothing, is_watched, name_of, own_activation

__all__ = ["base_of", "class_for", "derived", "is_plain", "pads", "refusal_of"]

# The attribute of a class made here that holds the user's class.
_BASE = "_triton_ext_base"

# And ours, where the user's class has no forward of its own.
_OURS = "_triton_ext_plain"

_OF_TORCH = "torch.nn.modules.conv"
_FUNCTIONS = frozenset(
    ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
)


def base_of(kind: type) -> Any:
    """Returns the user's class of a class that :func:`class_for` made; ``None`` for others."""
    return vars(kind).get(_BASE)


def is_plain(kind: type, kinds: Sequence[type]) -> bool:
    """Tells whether a class is one of some classes, or derives from one without an own forward.

    Args:
        kind: Any class.
        kinds: Classes of :mod:`triton_ext.nn.modules`.
    """
    return kind in kinds or vars(kind).get(_OURS) in kinds


def refusal_of(kind: Any, ours: Any = None) -> str:
    """Returns why a class gets no class from here; empty if it gets one.

    Args:
        kind: The user's class.
        ours: As for :func:`class_for`.
    """
    if issubclass(kind, LazyModuleMixin) or (ours is not None and issubclass(kind, ours)):
        return f"it is a {kind.__name__}"
    try:
        class_for(kind, ours)
    except TypeError as error:
        return f"it is a {kind.__name__}, from which no class can be derived ({error})"
    return ""


@functools.cache
def class_for(kind: Any, ours: Any = None) -> Any:
    """Returns the class that stands in for a user's class.

    Copies and pickles of its instances name the user's class and ``ours``; constructing it gives
    an instance of the user's class.

    Args:
        kind: The user's class, derived from a convolution or a norm of torch.
        ours: The class of :mod:`triton_ext.nn` for that; ``None`` for another module, whose forward
            then runs under :class:`triton_ext.nn.accelerate.Redirect`.

    Raises:
        TypeError: Python refuses to derive from ``kind``.
    """

    def reduce(self: Any, protocol: Any) -> Any:
        made, arguments, *rest = kind.__reduce_ex__(self, 2)
        if made is not copyreg.__newobj__:
            return (made, arguments, *rest)
        return (_empty, (kind, ours, *arguments[1:]), *rest)

    namespace: dict[str, Any] = {"__reduce_ex__": reduce, _BASE: kind}
    if hasattr(ours, "forward_for"):
        namespace["forward"] = functools.wraps(kind.forward)(ours.forward_for(kind))
    elif hasattr(ours, "normalized"):
        namespace["forward"] = functools.wraps(kind.forward)(_activated(kind))
    elif ours is None or _calls_functions(kind):
        namespace["forward"] = functools.wraps(kind.forward)(_redirected(kind))
    elif not _own_forwards(kind):
        namespace[_OURS] = ours
    return derived(kind, (kind,) if ours is None else (kind, ours), namespace)


def derived(kind: Any, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """Returns a class that looks like another one; constructing it gives an instance of that.

    Args:
        kind: The class that it looks like, whose name, module and docstring it has.
        bases: Its bases, ``kind`` first.
        namespace: Other attributes that it defines.

    Raises:
        TypeError: Python refuses to derive from ``kind``.
    """

    def construct(cls: type, *arguments: Any, **keywords: Any) -> Any:
        return kind(*arguments, **keywords)

    looks = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(kind)(kind.__name__, bases, {**looks, "__new__": construct, **namespace})


def _redirected(kind: Any) -> Any:
    """Returns the forward of a class whose own one calls torch's functions."""
    is_convolution = issubclass(kind, torch.nn.modules.conv._ConvNd)

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return kind.forward(self, *arguments, **keywords)
        how = (self.fallback, self.counts()) if is_convolution else ()
        with Redirect(*how, pads=True):
            result = unpadded(kind.forward(self, *arguments, **keywords))
        return result

    return forward


def _activated(kind: Any) -> Any:
    """Returns the forward of a norm of timm that applies an activation itself."""

    def forward(self: Any, x: Any) -> Any:
        act = own_activation(self)
        name = name_of(act) if drops_nothing(self) else None
        if name is not None and not is_watched(act, self.drop):
            y = self.normalized(x, None, name)
            if y is not None:
                return y
        return kind.forward(self, x)

    return forward


def _empty(kind: Any, ours: Any, *arguments: Any) -> Any:
    """Returns an instance without attributes yet; copies and pickles call it."""
    return kind.__new__(class_for(kind, ours), *arguments)


def pads(module: torch.nn.Module) -> bool:
    """Tells whether a module's forward may pad the input of a convolution of its own."""
    kind = type(module)
    forward = vars(kind).get("forward")
    code = getattr(forward, "__code__", None)
    return (
        code is not None
        and "pad" in code.co_names
        and base_of(kind) is None
        and "forward" not in vars(module)
        and any(hasattr(child, "pack_weight") for child in module._modules.values())
    )


def _calls_functions(kind: type) -> bool:
    """Tells whether methods of a class call torch's functions instead of its methods."""
    if not _own_forwards(kind):
        return False
    names = {name for each in _own(kind) for code in _codes(each) for name in code.co_names}
    return bool(names & {*_FUNCTIONS, "pad"}) or not (
        "_conv_forward" in names or "forward" in names
    )


def _own(kind: type) -> list[type]:
    """Returns the classes in front of torch's."""
    return list(itertools.takewhile(lambda base: base.__module__ != _OF_TORCH, kind.__mro__))


def _own_forwards(kind: type) -> bool:
    """Tells whether a class overrides a method between a call and the kernel."""
    methods = ("__call__", "_call_impl", "forward", "_conv_forward")
    return any(name in vars(each) for each in _own(kind) for name in methods)


def _codes(kind: type) -> Iterator[CodeType]:
    """Yields the code of a class's methods and of the functions in them."""
    found = [getattr(value, "__func__", value) for value in vars(kind).values()]
    todo = [code for each in found if isinstance(code := getattr(each, "__code__", None), CodeType)]
    while todo:
        code = todo.pop()
        yield code
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]
