"""The launches of one call: kernels in sequence, each with some of the call's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from triton_ext.ops.core.dispatch_cache import ALIGNMENT
from triton_ext.ops.core.launcher import Launched, Launcher, LaunchGroup

__all__ = ["Launches", "are_aligned"]

Tensor = torch.Tensor
Tensors = tuple[Tensor | None, ...]

# Calls that try to group their launches at most: kernels are prepared after their first launch, and
# never in the interpreter.
_MOST_TRIES = 3


def are_aligned(*tensors: Tensor | None) -> bool:
    """Tells whether all tensors begin at multiples of 16 bytes, as newly allocated memory does."""
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

    __slots__ = ("_group", "_steps", "_tries")

    def __init__(self, steps: Sequence[tuple[Launcher, tuple[int, ...]]]) -> None:
        self._steps = [(launcher, _pick_of(indices)) for launcher, indices in steps]
        self._group: LaunchGroup | None = None
        self._tries = _MOST_TRIES

    def launch(self, tensors: Tensors, is_aligned: bool) -> None:
        """Launches the kernels on the device of the first tensor.

        Args:
            tensors: Those of the call.
            is_aligned: The result of :func:`are_aligned` for all of them.
        """
        x: Any = tensors[0]
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                self._launch(tensors, is_aligned)
        else:
            self._launch(tensors, is_aligned)

    def _launch(self, tensors: Tensors, is_aligned: bool) -> None:
        if is_aligned and self._group is not None and self._group(tensors):
            return
        for launcher, pick in self._steps:
            picked = pick(tensors)
            launcher.launch(picked, _variant(picked))
        if is_aligned and self._tries and self._group is None:
            self._tries -= 1
            self._group = self._find_group(tensors)

    def _find_group(self, tensors: Tensors) -> LaunchGroup | None:
        launches = []
        for launcher, pick in self._steps:
            picked = pick(tensors)
            launches.append((Launched(launcher, picked, _variant(picked)), pick))
        return LaunchGroup.of(launches) if launches else None


def _pick_of(indices: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    # itemgetter returns no tuple for a single index; every kernel has more.
    return itemgetter(*indices)
