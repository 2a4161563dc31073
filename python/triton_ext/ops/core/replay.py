"""Replays of a plan: later calls with the same call key launch without describing their tensors.

A plan describes its tensors to its kernels: views, copies where a kernel wants another layout,
descriptors, memory that one kernel leaves to the next.  Where a call comes down to launches with
the addresses of its tensors and of new memory, later calls with the same key need nothing else,
because prepared launches take addresses.  One call is recorded to find that out: the memory that it
made, that torch computed nothing else, and its launches.  A kernel's argument that begins where a
tensor of the call begins is that tensor, described in the same way at every call with this key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triton_ext.ops.core.launcher import Launched, LaunchGroup, recording, zeroed_flags

__all__ = ["BoundPlan"]

Tensors = tuple[torch.Tensor | None, ...]

# Calls that are recorded at most: where two tensors are one or kernels are not prepared yet, none
# shows what a replay needs.
_MOST_TRIES = 3

_EMPTY = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
)


# Its address is that of all tensors without elements.
_NO_MEMORY = torch.empty(0, device="cpu")


@dataclass(frozen=True, slots=True)
class _Memory:
    """New memory of a call.

    Attributes:
        shape: In elements.
        strides: In elements.
        dtype: Dtype of its elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Replay:
    """The launches of a plan with the tensors of a call.

    Attributes:
        output: The memory that it returns.
        works: Further memory that its kernels write and read.
        flags: Number of flags that its kernels have; 0 without any.
        is_alone: Whether there is neither further memory nor flags.
        launch: Launches the kernels with the tensors of the call, the output, flags, further
            memory, None and a tensor without memory, in this order.
    """

    output: _Memory
    works: tuple[_Memory, ...]
    flags: int
    is_alone: bool
    launch: LaunchGroup


class BoundPlan:
    """A plan for the calls with one call key: shapes, strides, dtypes and device.

    Args:
        plan: The plan.
        run: Runs the plan, its first argument, with the tensors of a call, some of which may be
            ``None``, and returns a new tensor.
    """

    __slots__ = ("_replay", "_run", "_tries", "plan")

    def __init__(self, plan: Any, run: Callable[..., torch.Tensor]) -> None:
        self.plan = plan
        self._run = run
        self._replay: _Replay | None = None
        self._tries = _MOST_TRIES

    @property
    def is_prepared(self) -> bool:
        """Whether calls need nothing but memory and launches."""
        return self._replay is not None

    def run_plan(self, *given: torch.Tensor | None) -> torch.Tensor:
        """Runs the plan, which describes its tensors; they may begin anywhere."""
        return self._run(self.plan, *given)

    def run(self, *given: torch.Tensor | None) -> torch.Tensor:
        """Returns the new output.

        Args:
            given: The tensors, x first, each on a 16-byte boundary.
        """
        replay = self._replay
        if replay is None:
            return self._record(given) if self._tries else self._run(self.plan, *given)
        x: Any = given[0]
        memory = replay.output
        y: torch.Tensor = x.new_empty_strided(memory.shape, memory.strides, dtype=memory.dtype)
        if replay.is_alone:
            done = replay.launch((*given, y, None, None, _NO_MEMORY))
        else:
            flags = zeroed_flags(x.device, replay.flags) if replay.flags else None
            works = [x.new_empty_strided(m.shape, m.strides, dtype=m.dtype) for m in replay.works]
            done = replay.launch((*given, y, flags, *works, None, _NO_MEMORY))
        return y if done else self._run(self.plan, *given)

    def _record(self, given: Tensors) -> torch.Tensor:
        """Runs the plan, and records which memory it makes and what it launches with it."""
        x: Any = given[0]
        if x.is_cuda and (
            # Another device is current within the plan only; the flags of a graph are its own.
            x.device.index != torch.cuda.current_device()
            or torch.cuda.is_current_stream_capturing()
        ):
            return self._run(self.plan, *given)
        self._tries -= 1
        with recording() as launches, _MemoryRecorder() as recorder:
            y = self._run(self.plan, *given)
        if recorder.is_pure and launches:
            self._replay = _replay_of(given, y, recorder.made, launches)
        return y


class _MemoryRecorder(TorchDispatchMode):
    """Records memory that torch makes.

    Attributes:
        made: The memory.
        is_pure: Whether torch did nothing else but make views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.is_pure = True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        result = function(*args, **(kwargs or {}))
        if function in _EMPTY:
            self.made.append(result)
        elif not function.is_view:
            self.is_pure = False
        return result


def _replay_of(
    given: Tensors, y: torch.Tensor, made: list[torch.Tensor], launches: list[Launched]
) -> _Replay | None:
    """Returns how later calls are replayed; ``None`` where this call does not show it.

    Args:
        given: The tensors of the call.
        y: Its output.
        made: All memory that was made.
        launches: All launches.
    """
    memories = [tensor for tensor in made if tensor.data_ptr()]
    own = [tensor for tensor in memories if tensor.data_ptr() == y.data_ptr()]
    if len(own) != 1 or own[0].numel() != y.numel() or own[0].dtype != y.dtype:
        return None
    works = [tensor for tensor in memories if tensor is not own[0]]
    if not all(map(_is_dense, (y, *memories))):
        return None
    places: dict[int, int] = {}
    tensors = (*given, y, None, *works, None, _NO_MEMORY)
    nothing = len(tensors) - 2
    for index, tensor in enumerate(tensors):
        if tensor is not None and places.setdefault(tensor.data_ptr(), index) != index:
            return None  # two begin at one address
    flag_place, flags = len(given) + 1, 0
    steps = []
    for launched in launches:
        found = []
        for argument in launched.tensors:
            tensor = getattr(argument, "base", argument)
            place: int | None = nothing if tensor is None else places.get(tensor.data_ptr())
            if place is None and not flags and _are_flags(tensor):
                flags, place = tensor.numel(), flag_place
                places[tensor.data_ptr()] = place
            if place is None:
                return None
            found.append(place)
        # itemgetter makes no tuple of one index; every kernel has two tensors.
        steps.append((launched, itemgetter(*found)))
    launch = LaunchGroup.of(steps)
    if launch is None:
        return None
    is_alone = not works and not flags
    return _Replay(_memory(y), tuple(map(_memory, works)), flags, is_alone, launch)


def _memory(tensor: torch.Tensor) -> _Memory:
    return _Memory(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor's elements fill its memory, in any order."""
    sizes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    expected = 1
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _are_flags(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is what the kernels of a stream leave zeroed."""
    if not tensor.is_cuda or tensor.dtype != torch.int32 or tensor.dim() != 1:
        return False
    return tensor.data_ptr() == zeroed_flags(tensor.device, tensor.numel()).data_ptr()
