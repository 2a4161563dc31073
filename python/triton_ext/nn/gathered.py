"""Filters that FSDP gathers, in the memory order of the kernels: copied once per all-gather.

``fully_shard`` keeps parameters in torch's own order, and gathers them in it.  Kernels read filters
with their channels side by side, so without this module each of them would copy the filter at
every call: in the forward, in the backward, and once more where a checkpoint computes again.

The copy follows the gathered filter.  FSDP puts the gathered parameter into the module behind each
all-gather, and the sharded one back before it frees the memory of the gathered one (torch 2.6 to
2.13: ``FSDPParam._setattr_on_modules``, which calls ``setattr`` of modules that have their own).
So the copy is freed with the parameter, although a graph of autograd may have kept it, and filled
again with it, as FSDP does with the memory of parameters.  Where parameters are exchanged
otherwise, and where gradients are off, nothing is kept, and kernels copy at every call.
"""

from __future__ import annotations

from typing import Any

import torch

from triton_ext.ops.core.descriptors import channels_last

__all__ = ["GATHERED", "Gathered", "in_order", "replaced"]

Tensor = torch.Tensor

#: The attribute of a module that has a gathered filter.
GATHERED = "_gathered"


class Gathered:
    """A filter between an all-gather and its end, and its copy; copies and pickles are empty."""

    __slots__ = ("_copy", "_version", "_weight")

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._version = -1
        # Autograd's saved tensor shares its memory, but not its version, so refilling is no change.
        self._copy: Tensor | None = None

    def __reduce__(self) -> tuple[type[Gathered], tuple[()]]:
        return Gathered, ()

    def begin(self, weight: Tensor) -> None:
        """Starts following a filter that was gathered, and fills the copy again."""
        self._weight = weight
        copy = self._copy
        if copy is None:
            return
        if copy.shape != weight.shape or copy.dtype != weight.dtype:
            self._copy = None
            return
        self._fill(copy, weight)

    def end(self) -> None:
        """Frees the copy's memory; the gathered filter is about to be freed."""
        self._weight = None
        if self._copy is not None:
            self._copy.untyped_storage().resize_(0)

    def of(self, weight: Tensor) -> Tensor | None:
        """Returns the copy; ``None`` if this filter is not the gathered one."""
        if weight is not self._weight:
            return None
        if self._copy is None:
            copy = channels_last(weight.detach())
            if copy.data_ptr() == weight.data_ptr():
                return None  # a filter of one tap is in both orders
            self._copy, self._version = copy, weight._version
        elif self._version != weight._version:
            # Somebody writes to the gathered filter: what autograd has kept stays as it is.
            self._copy, self._version = channels_last(weight.detach()), weight._version
        return self._copy

    def _fill(self, copy: Tensor, weight: Tensor) -> None:
        storage = copy.untyped_storage()
        with torch.no_grad():
            storage.resize_(copy.numel() * copy.element_size())
            copy.copy_(weight)
        self._version = weight._version


def replaced(module: Any, old: object, new: object) -> None:
    """Follows the exchange of a module's filter.

    Args:
        module: The module whose ``weight`` was set.
        old: Its former weight.
        new: Its new weight.
    """
    known: Gathered | None = module.__dict__.get(GATHERED)
    if type(new) is torch.nn.Parameter:
        if isinstance(old, torch.nn.Parameter) and type(old) is not torch.nn.Parameter:
            if known is None:
                known = module.__dict__[GATHERED] = Gathered()
            known.begin(new)
        elif known is not None and old is not new:
            del module.__dict__[GATHERED]
    elif known is not None:
        known.end()


def in_order(known: Gathered, x: Tensor, weight: Tensor) -> Tensor:
    """Returns a gathered filter with its channels side by side, differentiably.

    Where no backward follows, or the filter is not the gathered one, returns it unchanged.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not x.requires_grad:
        # No backward reads the copy, and a copy made in inference mode could not be filled again.
        return weight
    copy = known.of(weight)
    if copy is None:
        return weight
    result: Tensor = _InOrder.apply(weight, copy)
    return result


class _InOrder(torch.autograd.Function):
    """The copy of a filter as if it were the filter."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        return copy.data

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None
