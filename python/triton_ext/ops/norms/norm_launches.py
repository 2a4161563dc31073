"""The launches of one call: kernels one behind the other, each with some of the call's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from triton_ext.ops.launcher import Launched, Launcher, Together

__all__ = ["ALIGNMENT", "Launches", "are_aligned"]

Tensor = torch.Tensor
Tensors = tuple[Tensor | None, ...]

#: Where memory begins that was just allocated, in bytes, or at a multiple.
ALIGNMENT = 16
# How often a call looks whether its kernels can be launched together: not before all have been
# launched, and not at all in the interpreter.
_MOST_TRIES = 3


def are_aligned(*tensors: Tensor | None) -> bool:
    """Tells whether all tensors begin where memory that was just allocated begins."""
    addresses = 0
    for tensor in tensors:
        if tensor is not None:
            addresses |= tensor.data_ptr()
    return not addresses % ALIGNMENT


def _variant(tensors: Tensors) -> tuple[int, ...]:
    return tuple([-1 if t is None else t.data_ptr() % ALIGNMENT for t in tensors])


class Launches:
    """Kernels with the same arguments at every launch but for their tensors.

    Args:
        steps: Each with the indices of its tensors among those of the call; a call has tensors and
            ``None`` in the same places as any other.
    """

    __slots__ = ("_steps", "_together", "_tries")

    def __init__(self, steps: Sequence[tuple[Launcher, tuple[int, ...]]]) -> None:
        self._steps = [(launcher, _pick_of(indices)) for launcher, indices in steps]
        self._together: Together | None = None
        self._tries = _MOST_TRIES

    def launch(self, tensors: Tensors, is_aligned: bool) -> None:
        """Launches the kernels on the device of the first tensor.

        Args:
            tensors: Those of the call.
            is_aligned: Of all of them, as :func:`are_aligned` tells.
        """
        x: Any = tensors[0]
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                self._launch(tensors, is_aligned)
        else:
            self._launch(tensors, is_aligned)

    def _launch(self, tensors: Tensors, is_aligned: bool) -> None:
        if is_aligned and self._together is not None and self._together(tensors):
            return
        for launcher, pick in self._steps:
            picked = pick(tensors)
            launcher.launch(picked, _variant(picked))
        if is_aligned and self._tries and self._together is None:
            self._tries -= 1
            self._together = self._find_together(tensors)

    def _find_together(self, tensors: Tensors) -> Together | None:
        launches = []
        for launcher, pick in self._steps:
            picked = pick(tensors)
            launches.append((Launched(launcher, picked, _variant(picked)), pick))
        return Together.of(launches) if launches else None


def _pick_of(indices: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    # Of a single one it would be no tuple; every kernel has more.
    return itemgetter(*indices)
