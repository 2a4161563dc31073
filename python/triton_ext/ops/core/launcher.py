"""Launches of kernels whose arguments a plan has fixed, and replays of the launches of a call.

A plan describes its tensors to its kernels: views, copies where a kernel wants another layout,
descriptors, memory that one kernel leaves to the next.  Where a call comes down to launches with
the addresses of its tensors and of new memory, later calls with the same call key launch with those
addresses and describe nothing (:class:`BoundPlan`).  One call is recorded to find that out: the
memory that it made, that torch computed nothing else, and its launches.  A kernel's argument that
begins where a tensor of the call begins is that tensor, in every call with this key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from threading import Lock
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triton_ext import backends, plugin
from triton_ext.ops.core.epilogue import Operands

_prepare_launch = backends.load("nvidia", "prepare_launch")

_compiled: ContextVar[list[Any] | None] = ContextVar("compiled", default=None)
_recorded: ContextVar[list[Launched] | None] = ContextVar("recorded", default=None)

Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Tensors = tuple[torch.Tensor | None, ...]


@contextlib.contextmanager
def compiling() -> Iterator[list[Any]]:
    """Within, launches compile their kernels, which the list collects, and launch nothing.

    Kernels that were launched before bypass Triton's front door and are launched.
    """
    kernels: list[Any] = []
    token = _compiled.set(kernels)
    try:
        yield kernels
    finally:
        _compiled.reset(token)


@contextlib.contextmanager
def recording() -> Iterator[list[Launched]]:
    """Within, the list collects what is launched by this thread."""
    launches: list[Launched] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


@dataclass(frozen=True, slots=True)
class _Bypass:
    """A compiled kernel, launched without Triton's front door.

    Attributes:
        run: Launches the compiled kernel through Triton's launcher.
        prepared: Launches it with the addresses of tensors, False where nothing was launched;
            ``None`` where that cannot be.  ``prepared.together`` launches others after it.
    """

    run: Callable[..., Any]
    prepared: Any


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches through Triton's front door once, then the compiled kernel itself.

    The front door specializes a kernel on its arguments: types, integers that are 1 or a multiple
    of 16, pointers on 16-byte boundaries.  A plan fixes all of them but those that ``launch`` gets.
    Bypassing the front door saves 25 us of 70 a call (H200 machine, 2026-11-20).

    A compiled kernel is launched with all its parameters prepared but the addresses of the tensors
    (docs/adr/0016-prepared-launches.md), or through Triton's launcher where that has more to do.

    Attributes:
        kernel: The ``@triton.jit`` function; its tensors come first among its parameters, then
            scalars, then constants.  A parameter ``operands`` is the tuple ``Operands`` of all
            tensors from its place on.
        grid: Number of programs, in three dimensions.
        scalars: Runtime arguments after the tensors.
        constants: Constexpr arguments, in the order of the parameters.
        options: Launch options.
    """

    kernel: Any
    grid: tuple[int, int, int]
    scalars: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, Any]
    _bypasses: dict[Hashable, _Bypass] = field(default_factory=dict)

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the kernel's arguments in front of its constants."""
        names = self.kernel.arg_names
        if "operands" in names:
            at = names.index("operands")
            tensors = (*tensors[:at], Operands(*tensors[at:]))
        return (*tensors, *self.scalars)

    def launch(self, tensors: tuple[Any, ...], variant: Hashable = None) -> None:
        """Launches the kernel.

        Args:
            tensors: Descriptors, tensors and ``None``, the kernel's first arguments.  The
                descriptors of a parameter differ in their tensors' addresses only.
            variant: Further facts that the front door specializes on and that may differ between
                launches: which tensors there are, and whether they are aligned.
        """
        launches = _recorded.get()
        if launches is not None:
            launches.append(Launched(self, tensors, variant))
        key = (variant, plugin.passes_key())
        bypass = self._bypasses.get(key)
        if bypass is not None and plugin.is_installed() and not self.kernel.pre_run_hooks:
            if bypass.prepared is None or not bypass.prepared(tensors):
                bypass.run(*self.arguments(tensors), *self.constants.values())
            return
        kernels = _compiled.get()
        if kernels is not None:
            options = {**self.constants, **self.options}
            given = self.arguments(tensors)
            kernels.append(self.kernel.warmup(*given, grid=self.grid, **options))
            return
        given = self.arguments(tensors)
        compiled = self.kernel[self.grid](*given, **self.constants, **self.options)
        # The interpreter compiles nothing.
        if compiled is not None:
            others = (*self.scalars, *self.constants.values())
            prepared = _prepare_launch(compiled, self.grid, tensors, others)
            self._bypasses[key] = _Bypass(compiled[self.grid], prepared)


@dataclass(frozen=True, slots=True)
class Launched:
    """Arguments of one :meth:`Launcher.launch`."""

    launcher: Launcher
    tensors: tuple[Any, ...]
    variant: Hashable


class LaunchGroup:
    """Launches of one call that differ from those of another in the addresses of tensors only.

    The kernels were prepared for a key of the plugin's passes.
    """

    __slots__ = ("_kernels", "_key", "_launch")

    def __init__(
        self, key: Hashable, kernels: tuple[Any, ...], launch: Callable[[tuple[Any, ...]], bool]
    ) -> None:
        self._key = key
        self._kernels = kernels
        self._launch = launch

    @classmethod
    def of(cls, launches: Sequence[tuple[Launched, Pick]]) -> LaunchGroup | None:
        """Returns the group of launches, each with a function that picks its tensors of a call's.

        ``None`` where a launch was not prepared.
        """
        key = plugin.passes_key()
        steps = []
        for launched, pick in launches:
            bypass = launched.launcher._bypasses.get((launched.variant, key))
            if bypass is None or bypass.prepared is None:
                return None
            steps.append((bypass.prepared, pick))
        (first, pick), *others = steps
        launch = first.together(pick, others)
        kernels = tuple({id(k): k for k in (each.launcher.kernel for each, _ in launches)}.values())
        return None if launch is None else cls(key, kernels, launch)

    def __call__(self, tensors: tuple[Any, ...]) -> bool:
        """Launches with the tensors of a call, for descriptors those that they describe.

        All begin on 16-byte boundaries.  Returns False where not all was launched, so that each
        takes a :meth:`Launcher.launch`.
        """
        if plugin.passes_key() != self._key or not plugin.is_installed():
            return False
        for kernel in self._kernels:
            if kernel.pre_run_hooks:
                return False
        return self._launch(tensors)


# --- replays ------------------------------------------------------------------------------------

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


# Shape, strides and dtype of new memory.
_Memory = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _memory(tensor: torch.Tensor) -> _Memory:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


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
        """True where calls need nothing but memory and launches."""
        return self._replay is not None

    def run_plan(self, *given: torch.Tensor | None) -> torch.Tensor:
        """Runs the plan, which describes its tensors; they may begin anywhere."""
        return self._run(self.plan, *given)

    def run(self, *given: torch.Tensor | None) -> torch.Tensor:
        """Returns the new output of tensors, x first, each on a 16-byte boundary."""
        replay = self._replay
        if replay is None:
            return self._record(given) if self._tries else self._run(self.plan, *given)
        x: Any = given[0]
        shape, strides, dtype = replay.output
        y: torch.Tensor = x.new_empty_strided(shape, strides, dtype=dtype)
        if replay.is_alone:
            done = replay.launch((*given, y, None, None, _NO_MEMORY))
        else:
            flags = zeroed_flags(x.device, replay.flags) if replay.flags else None
            works = [x.new_empty_strided(a, b, dtype=c) for a, b, c in replay.works]
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
    """Records the memory that torch makes, and whether it does nothing else but make views."""

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
    """Returns how later calls are replayed; ``None`` where this call does not show it."""
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


def zeroed_flags(device: torch.device, count: int) -> torch.Tensor:
    """Returns flags of a kernel, int32 zeros, that no kernel of another stream uses.

    A kernel leaves zeros behind, so those of a stream are made once.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        # Memory of the graph: it is zeroed in every replay.
        return torch.zeros(count, dtype=torch.int32, device=device)
    with _flags_lock:  # two threads of one stream get the same
        return _stream_flags(device, torch.cuda.current_stream(device).cuda_stream, count)


_flags_lock = Lock()


# None is ever freed: a kernel of its stream might still use it.  torch has few streams, counts are
# few, and one entry takes some KB.
@cache
def _stream_flags(device: torch.device, stream: int, count: int) -> torch.Tensor:
    def make() -> torch.Tensor:
        with torch.cuda.device(device):
            flags = torch.zeros(count, dtype=torch.int32, device=device)
            torch.cuda.current_stream().synchronize()
        return flags

    # In a thread of its own: torch.compile runs functions, before it captures them in a graph, with
    # the graph's memory for what their thread allocates, and lets them keep none of it.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
