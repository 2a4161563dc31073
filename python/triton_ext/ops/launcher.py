"""Launches a kernel whose arguments a plan has fixed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from triton_ext import plugin

__all__ = ["Launcher", "compiling"]

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


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Launches through Triton's front door once, then the compiled kernel itself.

    The front door specializes a kernel on its arguments: types, integers that are 1 or a multiple
    of 16, pointers on 16-byte boundaries.  A plan fixes them all but what ``launch`` is told.
    Going around the front door saves 25 us of 70 a call (H200 machine, 2026-11-20).

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
    _around: dict[Hashable, Callable[..., Any]] = field(default_factory=dict)

    def launch(self, tensors: tuple[Any, ...], variant: Hashable = None) -> None:
        """Launches the kernel.

        Args:
            tensors: Descriptors, tensors and ``None``, the kernel's first arguments.
            variant: What the front door would specialize on and may differ from launch to launch:
                which tensors there are, and whether they are aligned.
        """
        key = (variant, plugin.passes_key())
        around = self._around.get(key)
        if around is not None and plugin.is_installed() and not self.kernel.pre_run_hooks:
            around(*tensors, *self.scalars, *self.constants.values())
            return
        kernels = _compiled.get()
        if kernels is not None:
            options = {**self.constants, **self.options}
            kernels.append(self.kernel.warmup(*tensors, *self.scalars, grid=self.grid, **options))
            return
        compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants, **self.options)
        # The interpreter compiles nothing.
        if compiled is not None:
            self._around[key] = compiled[self.grid]
