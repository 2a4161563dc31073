"""Calls of a forward plan that look like one before, launched without describing their tensors.

A plan describes its tensors to the kernel: views of them, copies where the kernel wants them
otherwise, descriptors.  Where it comes down to the tensors themselves, at their own addresses, a
later call with tensors of the same look needs none of that: the prepared launch takes addresses.
What it comes down to is seen at one call: an argument that begins where a tensor begins is that
tensor, described as the plan describes all of that look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from triton_ext.ops.conv_launch import ForwardPlan
from triton_ext.ops.descriptors import ROW_BYTES
from triton_ext.ops.epilogue import NO_OPERANDS, EpilogueOperands

__all__ = ["Repeats"]

Tensors = tuple[torch.Tensor | None, ...]

# How often it is looked for where two tensors are one, so that it cannot be told which is meant.
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Places:
    """What a plan passes to its kernel.

    Attributes:
        pick: The kernel's tensors, out of those of the call, the output and ``None``.
        variant: As ``Launcher.launch`` has it.
        shape: Of the output.
        strides: Of the output.
        dtype: Of the output.
    """

    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    variant: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Repeats:
    """Runs a plan for calls of one look: shapes, strides, dtypes and device.

    Args:
        plan: Any with ``run(x, weight, operands)``; those of the forward kernels get shorter.
    """

    __slots__ = ("_places", "_plan", "_tries")

    def __init__(self, plan: Any) -> None:
        self._plan = plan
        self._places: _Places | None = None
        self._tries = _MOST_TRIES if isinstance(plan, ForwardPlan) else 0

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scale: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        out_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the new output; arguments as for ``ForwardPlan.run``."""
        given = (x, weight, bias, scale, residual, out_scale)
        places = self._places
        if places is not None and _are_aligned(given):
            y = x.new_empty_strided(places.shape, places.strides, dtype=places.dtype)
            if self._plan.launcher.launch_again(places.pick((*given, y, None)), places.variant):
                return y
        operands = NO_OPERANDS
        if any(tensor is not None for tensor in given[2:]):
            operands = EpilogueOperands(
                bias=bias, scale=scale, residual=residual, out_scale=out_scale
            )
        result: torch.Tensor = self._plan.run(x, weight, operands)
        if self._tries and places is None and _are_aligned(given):
            self._tries -= 1
            self._look(given, result, operands)
        return result

    def _look(self, given: Tensors, y: torch.Tensor, operands: EpilogueOperands) -> None:
        """Finds out where the plan passes which tensor, if it passes them as they are."""
        x, weight, *_ = given
        if y.is_cuda and y.device.index != torch.cuda.current_device():
            # What the arguments are copied by would be launched on another device.
            return
        tensors = (*given, y)
        places = {t.data_ptr(): i for i, t in enumerate(tensors) if t is not None}
        if len(places) < sum(t is not None for t in tensors):
            return
        self._tries = 0
        arguments, variant = self._plan.arguments(x, weight, y, operands)
        nothing = len(tensors)
        found = []
        for argument in arguments:
            if argument is None:
                found.append(nothing)
                continue
            place = places.get(getattr(argument, "base", argument).data_ptr())
            if place is None:
                return
            found.append(place)
        self._places = _Places(
            itemgetter(*found), variant, tuple(y.shape), tuple(y.stride()), y.dtype
        )


def _are_aligned(tensors: Tensors) -> bool:
    """Tells whether all begin at multiples of 16 bytes, which kernels are compiled for."""
    return not any(t is not None and t.data_ptr() % ROW_BYTES for t in tensors)
