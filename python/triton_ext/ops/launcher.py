"""Launches a kernel whose arguments a plan has fixed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from triton_ext import backends, plugin

__all__ = ["Launcher", "compiling"]

_prepare_launch = backends.load("nvidia", "prepare_launch")

_compiled: ContextVar[list[Any] | None] = ContextVar("compiled", default=None)


@contextlib.contextmanager
def compiling() -> Iterator[list[Any]]:
    """Within, launches compile their kernels, which the list collects, and launch nothing.

    Only those that have not been launched yet: what was is launched around Triton's front door.
    """
    kernels: list[Any] = []
    token = _compiled.set(kernels)
    try:
        yield kernels
    finally:
        _compiled.reset(token)


@dataclass(frozen=True, slots=True)
class _Around:
    """A way around the front door.

    Attributes:
        run: Launches the compiled kernel through Triton's launcher.
        prepared: Launches it with the addresses of tensors; ``None`` where that cannot be.
    """

    run: Callable[..., Any]
    prepared: Callable[[tuple[Any, ...]], bool] | None


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches through Triton's front door once, then the compiled kernel itself.

    The front door specializes a kernel on its arguments: types, integers that are 1 or a multiple
    of 16, pointers on 16-byte boundaries.  A plan fixes them all but what ``launch`` is told.
    Going around the front door saves 25 us of 70 a call (H200 machine, 2026-11-20).

    A compiled kernel is launched with all its parameters prepared but the addresses of the tensors
    (docs/adr/0016-prepared-launches.md), or through Triton's launcher where that has more to do.

    Attributes:
        kernel: The ``@triton.jit`` function; its tensors come first among its parameters, then
            scalars, then constants.
        grid: Number of programs, in three dimensions.
        scalars: Runtime arguments behind the tensors.
        constants: Constexpr arguments, in the order of the parameters.
        options: Launch options.
    """

    kernel: Any
    grid: tuple[int, int, int]
    scalars: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, Any]
    _around: dict[Hashable, _Around] = field(default_factory=dict)

    def launch(self, tensors: tuple[Any, ...], variant: Hashable = None) -> None:
        """Launches the kernel.

        Args:
            tensors: Descriptors, tensors and ``None``, the kernel's first arguments.  The
                descriptors of a parameter differ in their tensors' addresses only.
            variant: What the front door would specialize on and may differ from launch to launch:
                which tensors there are, and whether they are aligned.
        """
        key = (variant, plugin.passes_key())
        around = self._way_around(key)
        if around is not None:
            if around.prepared is None or not around.prepared(tensors):
                around.run(*tensors, *self.scalars, *self.constants.values())
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
            self._around[key] = _Around(compiled[self.grid], prepared)

    def launch_again(self, tensors: tuple[Any, ...], variant: Hashable = None) -> bool:
        """Launches the kernel as an earlier :meth:`launch` of the same variant prepared it.

        Args:
            tensors: As for :meth:`launch`; for descriptors, the tensors that they describe.
            variant: As for :meth:`launch`.

        Returns:
            False where nothing was launched, so that it takes a :meth:`launch`.
        """
        around = self._way_around((variant, plugin.passes_key()))
        return around is not None and around.prepared is not None and around.prepared(tensors)

    def _way_around(self, key: Hashable) -> _Around | None:
        """Returns the way around the front door, where that would do nothing that we do not."""
        around = self._around.get(key)
        if around is None or not plugin.is_installed() or self.kernel.pre_run_hooks:
            return None
        return around
