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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triton_ext import backends, plugin
from triton_ext.ops.core.epilogue import NO_OPERANDS, EpilogueArguments, Operands

_prepare_launch = backends.load("nvidia", "prepare_launch")

_compiled: ContextVar[list[Any] | None] = ContextVar("compiled", default=None)
_recorded: ContextVar[list[Launched] | None] = ContextVar("recorded", default=None)

Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Tensors = tuple[torch.Tensor | None, ...]


@contextlib.contextmanager
def _collecting(variable: ContextVar[list[Any] | None]) -> Iterator[list[Any]]:
    found: list[Any] = []
    token = variable.set(found)
    try:
        yield found
    finally:
        variable.reset(token)


def compiling() -> contextlib.AbstractContextManager[list[Any]]:
    """Within the context, launches only compile; the list collects the compiled kernels.

    Kernels that were launched before are launched.
    """
    return _collecting(_compiled)


def recording() -> contextlib.AbstractContextManager[list[Launched]]:
    """Within the context, the list collects the launches of this thread."""
    return _collecting(_recorded)


class _Bypass(NamedTuple):
    """A compiled kernel, launched without ``JITFunction.run``."""

    run: Callable[..., Any]  # launches it through Triton's launcher
    # Launches it with the addresses of tensors; returns False where it launched nothing.  None
    # where no launch can be prepared.  ``prepared.together`` launches others after it.
    prepared: Any


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches through ``JITFunction.run`` once, then the compiled kernel itself.

    ``JITFunction.run`` specializes a kernel on its arguments: types, integers that are 1 or a
    multiple of 16, pointers on 16-byte boundaries.  A plan fixes all of them but those of tensors.
    Bypassing it saves 25 us of 70 a call (host of an H200, 2026-11-20).

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

    def bypass(self, tensors: tuple[Any, ...]) -> _Bypass | None:
        """Returns the compiled kernel for tensors like these; ``None`` before the first launch."""
        return self._bypasses.get((_specialization(tensors), plugin.passes_key()))

    def launch(self, tensors: tuple[Any, ...]) -> None:
        """Launches the kernel.

        Args:
            tensors: Descriptors, tensors and ``None``, the kernel's first arguments; the last one
                may be a tuple of further arguments of an epilogue's function.  The descriptors of a
                parameter differ in their tensors' addresses and dtypes only.
        """
        launches = _recorded.get()
        if launches is not None:
            launches.append((self, tensors))
        bypass = self.bypass(tensors)
        if bypass is not None and plugin.is_installed() and not self.kernel.pre_run_hooks:
            if bypass.prepared is None or not bypass.prepared(tensors):
                bypass.run(*self.arguments(tensors), *self.constants.values())
            return
        given, options = self.arguments(tensors), {**self.constants, **self.options}
        kernels = _compiled.get()
        if kernels is not None:
            kernels.append(self.kernel.warmup(*given, grid=self.grid, **options))
            return
        compiled = self.kernel[self.grid](*given, **options)
        key = _specialization(tensors)
        # The interpreter compiles nothing.
        if compiled is not None and key is not None:
            others = (*self.scalars, *self.constants.values())
            prepared = _prepare_launch(compiled, self.grid, tensors, others)
            self._bypasses[key, plugin.passes_key()] = _Bypass(compiled[self.grid], prepared)


#: A launcher, and the tensors of a launch.
Launched = tuple[Launcher, tuple[Any, ...]]


def _specialization(tensors: tuple[Any, ...]) -> Hashable:
    """Returns what Triton specializes tensors and descriptors on, beyond the plan's fields.

    ``None`` with further arguments, which it may specialize on in any way.
    """
    found: list[Hashable] = []
    for each in tensors:
        if each is None:
            found.append(None)
        elif isinstance(each, torch.Tensor):
            found += (each.dtype, each.data_ptr() % 16)
        elif type(each) is tuple:
            return None
        else:
            found.append(each.base.dtype)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """Launches of one call that differ from those of another in the addresses of tensors only."""

    _key: Hashable  # of the plugin's passes that the kernels were prepared for
    _kernels: tuple[Any, ...]
    _launch: Callable[[tuple[Any, ...]], bool]

    @classmethod
    def of(cls, launches: Sequence[tuple[Launched, Pick]]) -> LaunchGroup | None:
        """Returns the group of launches; functions pick the tensors of each from those of a call.

        ``None`` where a launch was not prepared.
        """
        steps = []
        for (launcher, tensors), pick in launches:
            bypass = launcher.bypass(tensors)
            if bypass is None or bypass.prepared is None:
                return None
            steps.append((bypass.prepared, pick))
        (first, pick), *others = steps
        launch = first.together(pick, others)
        kernels = tuple({id(each.kernel): each.kernel for (each, _), _ in launches}.values())
        return None if launch is None else cls(plugin.passes_key(), kernels, launch)

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


# Calls that may try to group their launches: kernels are prepared after their first launch, never
# in the interpreter, and two tensors of a recorded call may be one.
_MOST_TRIES = 3

# A launcher, and names of tensors that it gets in place of others.
Step = tuple[Launcher, Mapping[str, str]]


class Launches:
    """Kernels in sequence, with the same arguments at every launch but for their tensors.

    ``order`` are the names of a call's tensors, as the kernels' parameters are named; calls have
    tensors and ``None`` in the same places.
    """

    __slots__ = ("_group", "_steps", "_tries")

    def __init__(self, order: Sequence[str], steps: Sequence[Step]) -> None:
        self._steps = []
        for launcher, instead in steps:
            names = [name[:-4] for name in launcher.kernel.arg_names if name.endswith("_ptr")]
            pick = itemgetter(*[order.index(instead.get(name, name)) for name in names])
            self._steps.append((launcher, pick))
        self._group: LaunchGroup | None = None
        self._tries = _MOST_TRIES

    def launch(self, tensors: Tensors, is_aligned: bool) -> None:
        """Launches the kernels on the device of the first tensor.

        With ``is_aligned``, all tensors begin on 16-byte boundaries.
        """
        x: Any = tensors[0]
        if x.is_cuda and x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return self.launch(tensors, is_aligned)
        if is_aligned and self._group is not None and self._group(tensors):
            return None
        launches = []
        for launcher, pick in self._steps:
            picked = pick(tensors)
            launcher.launch(picked)
            launches.append(((launcher, picked), pick))
        if is_aligned and launches and self._tries and self._group is None:
            self._tries -= 1
            self._group = LaunchGroup.of(launches)
        return None


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


class _Replay(NamedTuple):
    """The launches of a plan with the tensors of a call."""

    output: _Memory  # what it returns
    works: tuple[_Memory, ...]  # further memory that its kernels write and read
    flags: int  # number of flags that its kernels have; 0 without any
    is_alone: bool  # whether there is neither further memory nor flags
    # Launches the kernels with the tensors of the call, the output, flags, further memory, None and
    # a tensor without memory, in this order.
    launch: LaunchGroup


@dataclass(slots=True, eq=False)
class BoundPlan:
    """A plan for the calls with one call key: shapes, strides, dtypes and device."""

    plan: Any
    _replay: _Replay | None = None
    _tries: int = _MOST_TRIES

    def _run(self, first: Any, second: Any, *operands: Any) -> torch.Tensor:
        given = EpilogueArguments(*operands).operands() if operands else NO_OPERANDS
        y: torch.Tensor = self.plan.run(first, second, given)
        return y

    def run(self, *given: torch.Tensor | None) -> torch.Tensor:
        """Returns a new output.

        ``given`` are both operands and the epilogue's tensors in the order of its arguments, each
        on a 16-byte boundary or ``None``.
        """
        replay = self._replay
        if replay is None:
            return self._record(given) if self._tries else self._run(*given)
        x: Any = given[0]
        shape, strides, dtype = replay.output
        y: torch.Tensor = x.new_empty_strided(shape, strides, dtype=dtype)
        if replay.is_alone:
            done = replay.launch((*given, y, None, None, _NO_MEMORY))
        else:
            flags = zeroed_flags(x.device, replay.flags) if replay.flags else None
            works = [x.new_empty_strided(a, b, dtype=c) for a, b, c in replay.works]
            done = replay.launch((*given, y, flags, *works, None, _NO_MEMORY))
        return y if done else self._run(*given)

    def _record(self, given: Tensors) -> torch.Tensor:
        """Runs the plan, and records which memory it makes and what it launches with it."""
        x: Any = given[0]
        if x.is_cuda and (
            # Another device is current within the plan only; the flags of a graph are its own.
            x.device.index != torch.cuda.current_device()
            or torch.cuda.is_current_stream_capturing()
        ):
            return self._run(*given)
        self._tries -= 1
        with recording() as launches, _MemoryRecorder() as recorder:
            y = self._run(*given)
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
        for argument in launched[1]:
            base: Any = getattr(argument, "base", argument)
            place: int | None = nothing if base is None else places.get(base.data_ptr())
            if place is None and not flags and _are_flags(base):
                flags, place = base.numel(), flag_place
                places[base.data_ptr()] = place
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
