"""torch's convolutions by our kernels wherever they are called: ``with nn.accelerate():``.

A torch function mode intercepts ``torch.nn.functional.conv2d`` and its five relatives.  The caller
may be a module of torch, another library, ``weight_norm``, a parametrization or a subclass with a
forward of its own.  A call that our kernels take runs them; torch computes every other call.
Outside of the block nothing changes; inside, each torch function takes about a microsecond more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from triton_ext import ops
from triton_ext.errors import TritonExtError
from triton_ext.nn.calls import Calls, count
from triton_ext.nn.padding import Padded, Pending, padded
from triton_ext.ops.api.checks import Fallback, parse_fallback
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.kernels.copies import pad_channels_last, to_channels_last

__all__ = ["Redirect", "accelerate"]

Tensor = torch.Tensor

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Our function for each of torch's, and the dimensions of a batch of its inputs.
_OURS: dict[Any, tuple[Callable[..., Tensor], int]] = {
    getattr(torch, f"{kind}{dims}d"): (getattr(ops, f"{kind}{dims}d"), dims + 2)
    for kind in ("conv", "conv_transpose")
    for dims in (1, 2, 3)
}


_FORWARD = (ops.conv1d, ops.conv2d, ops.conv3d)


class Redirect(TorchFunctionMode):
    """A context in which torch's convolution functions run our kernels where these take the call.

    Calls that torch.compile traces stay torch's.

    Args:
        fallback: ``"torch"``: torch computes what no kernel takes, and where autograd records
            nothing what the planner finds it faster for; ``"error"``: a refusal is an error.
        calls: Where calls are counted; new counts by default.
        pads: Whether convolutions pad with zeros what ``torch.nn.functional.pad`` was to pad
            (:mod:`triton_ext.nn.padding`).

    Attributes:
        calls: Counts of the calls within.
        leaves_ours: Calls of ``triton_ext.ops`` are not its business, and keep their fast path.
    """

    leaves_ours = True

    def __init__(
        self, fallback: Fallback = "torch", calls: Calls | None = None, *, pads: bool = False
    ) -> None:
        super().__init__()
        self._pending = Pending() if pads else None
        self.calls = Calls("nn.accelerate()") if calls is None else calls
        self._fallback = fallback

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        ours = _OURS.get(func)
        if ours is None or torch.compiler.is_compiling():
            y = self._padded(*args, **keywords) if func is torch.nn.functional.pad else None
            if y is None and self._pending is not None:
                self._pending.before(func, args, keywords)
            return func(*args, **keywords) if y is None else y
        operator, rank = ours
        original = args
        given = dict(keywords)
        x = args[0] if args else given.pop("input", None)
        if type(x) is Padded:
            x, args, given = _merged(x, args, given, rank if operator in _FORWARD else 0)
        if type(x) not in _PLAIN or not (x.is_cuda or IS_INTERPRETED):
            where = f"on {x.device.type}" if type(x) in _PLAIN else f"a {type(x).__name__}"
            self.calls.add_torch(f"its input is {where}")
            return func(*original, **keywords)
        try:
            x = to_channels_last(x) if x.dim() == rank else x
            is_open = self._fallback == "torch" and not torch.is_grad_enabled()
            given |= {"fallback": self._fallback, "prefer": "fastest" if is_open else "ours"}
            return count(self.calls, operator, x, *args[1:], **given)
        except (TritonExtError, TypeError, ValueError):
            if self._fallback == "error":
                raise
            y = func(*original, **keywords)  # torch's result, or its error
            self.calls.add_torch("no kernel takes its arguments")
            return y

    def __exit__(self, *error: Any) -> None:
        if self._pending is not None and error[0] is None:
            self._pending.pad()
        super().__exit__(*error)

    def _padded(
        self, input: Any, pad: Any, mode: str = "constant", value: float | None = None
    ) -> Any:
        """Returns the input, padded by a kernel or later; ``None`` where torch has to pad it."""
        if type(input) not in _PLAIN or type(pad) not in (tuple, list):
            return None
        if not all([type(side) is int for side in pad]):
            return None  # numbers of tensors may change, and keys may not have them
        if mode == "constant" and self._pending is not None:
            y = padded(input, pad, mode, value)
            return None if y is None else self._pending.add(y)
        # Its caller may view a result in torch's order.
        is_last = input.dim() > 2 and input.stride(1) == 1
        return pad_channels_last(input, tuple(pad), mode) if is_last else None


_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _merged(
    x: Padded, args: tuple[Any, ...], given: dict[str, Any], rank: int
) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Returns the input of a convolution without its zeros, and the other arguments by name.

    Args:
        x: The input.
        args: Arguments by position; the input is the first one.
        given: Arguments by name, without the input.
        rank: Dimensions of a batch of inputs; 0 for a transposed convolution, which pads otherwise.
    """
    named = {**dict(zip(_NAMES, args, strict=False)), **given}
    if rank != x.dim() or len(args) > len(_NAMES):
        return x.real(), args, given
    padding = named.get("padding", 0)
    padding = (padding,) * (rank - 2) if type(padding) is int else padding
    inner, padding = x.merged(padding)
    named |= {"padding": padding}
    named.pop("input", None)
    return inner, (), named


def accelerate(fallback: Fallback = "torch") -> Redirect:
    """Returns a context in which torch's convolutions run our kernels where these take the call.

    ``torch.nn.functional.conv1d`` to ``conv3d`` and ``conv_transpose1d`` to ``conv_transpose3d``
    are redirected, whoever calls them, and so is ``torch.nn.functional.pad`` of channels-last
    tensors with ``mode="replicate"`` or ``"reflect"``.  An input that is not channels-last is
    copied, and the output is channels-last.  Autograd, autocast and DDP work as outside.

        with nn.accelerate() as redirect:
            y = model(x)
        print(redirect.calls.ours, redirect.calls.torch, redirect.calls.refusals)

    :func:`triton_ext.nn.convert` costs less host time per call where it reaches a module.

    Args:
        fallback: As for :func:`triton_ext.nn.convert`.

    Raises:
        ValueError: Another ``fallback``.
    """
    parse_fallback(fallback)
    return Redirect(fallback)
