"""Launches a kernel whose arguments a plan has fixed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any, Protocol

import torch

from triton_ext import backends, plugin

__all__ = ["LaunchGroup", "Launched", "Launcher", "compiling", "recording", "zeroed_flags"]

_prepare_launch = backends.load("nvidia", "prepare_launch")

_compiled: ContextVar[list[Any] | None] = ContextVar("compiled", default=None)
_recorded: ContextVar[list[Launched] | None] = ContextVar("recorded", default=None)


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


Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class _Prepared(Protocol):
    """A kernel with all its parameters but the addresses of the tensors; the vendor has it."""

    def __call__(self, tensors: tuple[Any, ...]) -> bool:
        """Launches; False where nothing was launched."""
        ...

    def together(
        self, first: Pick, others: Sequence[tuple[Any, Pick]]
    ) -> Callable[[tuple[Any, ...]], bool] | None:
        """Returns a launch of this kernel and of others after it."""
        ...


@dataclass(frozen=True, slots=True)
class _Bypass:
    """A compiled kernel, launched without Triton's front door.

    Attributes:
        run: Launches the compiled kernel through Triton's launcher.
        prepared: Launches it with the addresses of tensors; ``None`` where that cannot be.
    """

    run: Callable[..., Any]
    prepared: _Prepared | None


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
            scalars, then constants.
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
        bypass = self._bypass_for(key)
        if bypass is not None:
            if bypass.prepared is None or not bypass.prepared(tensors):
                bypass.run(*tensors, *self.scalars, *self.constants.values())
            return
        kernels = _compiled.get()
        if kernels is not None:
            options = {**self.constants, **self.options}
            kernels.append(self.kernel.warmup(*tensors, *self.scalars, grid=self.grid, **options))
            return
        compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants, **self.options)
        # The interpreter compiles nothing.
        if compiled is not None:
            others = (*self.scalars, *self.constants.values())
            prepared = _prepare_launch(compiled, self.grid, tensors, others)
            self._bypasses[key] = _Bypass(compiled[self.grid], prepared)

    def _bypass_for(self, key: Hashable) -> _Bypass | None:
        """Returns the bypass of the front door; ``None`` where the front door has more to do."""
        bypass = self._bypasses.get(key)
        if bypass is None or not plugin.is_installed() or self.kernel.pre_run_hooks:
            return None
        return bypass


@dataclass(frozen=True, slots=True)
class Launched:
    """Arguments of one :meth:`Launcher.launch`.

    Attributes:
        launcher: The launcher.
        tensors: The kernel's first arguments.
        variant: Further facts that the front door specializes on.
    """

    launcher: Launcher
    tensors: tuple[Any, ...]
    variant: Hashable


@contextlib.contextmanager
def recording() -> Iterator[list[Launched]]:
    """Within, the list collects what is launched by this thread."""
    launches: list[Launched] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


class LaunchGroup:
    """Launches of one call that differ from those of another in the addresses of tensors only.

    Args:
        key: Key of the plugin's passes for which the kernels were prepared.
        kernels: The ``@triton.jit`` functions.
        launch: Launches all of them.
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
        """Returns the group; ``None`` where a launch was not prepared.

        Args:
            launches: Each with a function that picks its tensors out of those of a call.
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
        """Launches.

        Args:
            tensors: Those of the call, on 16-byte boundaries; for descriptors, the tensors that
                they describe.

        Returns:
            False where not all was launched, so that each takes a :meth:`Launcher.launch`.
        """
        if plugin.passes_key() != self._key or not plugin.is_installed():
            return False
        for kernel in self._kernels:
            if kernel.pre_run_hooks:
                return False
        return self._launch(tensors)


def zeroed_flags(device: torch.device, count: int) -> torch.Tensor:
    """Returns flags of a kernel, int32 zeros, that no kernel of another stream uses.

    A kernel leaves zeros behind, so those of a stream are made once.

    Args:
        device: Where the kernel runs.
        count: How many.
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
