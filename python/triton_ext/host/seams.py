"""The private names of Triton that we replace, each behind one function.

Every replacement returns a callable that undoes it, and undoes it only if nobody replaced the name
again after us: then ours stays in the chain, and the caller makes it a pass-through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = [
    "StagesHook",
    "accepts_no_arguments",
    "chain_stages_hook",
    "interpreter_cvt",
    "interpreting",
    "tensordesc_arg",
]

StagesHook = Callable[..., Any]


def chain_stages_hook(make: Callable[[StagesHook | None], StagesHook]) -> Callable[[], bool]:
    """Puts a stages hook into ``triton.knobs.runtime``, in front of the one that is there.

    Args:
        make: Given the present hook or ``None``, returns the hook to install.

    Returns:
        A function that restores the slot and tells whether it could.
    """
    from triton import knobs

    previous = knobs.runtime.add_stages_inspection_hook
    hook = make(previous)
    knobs.runtime.add_stages_inspection_hook = hook

    def undo() -> bool:
        if knobs.runtime.add_stages_inspection_hook is not hook:
            return False
        knobs.runtime.add_stages_inspection_hook = previous
        return True

    return undo


def accepts_no_arguments(hook: StagesHook) -> bool:
    """Tells whether a hook can be asked for its cache key (hooks written for 3.6 cannot)."""
    try:
        inspect.signature(hook).bind()
    except TypeError:
        return False
    return True


def interpreting() -> bool:
    """Tells whether ``TRITON_INTERPRET=1`` is in force (kernels defined now are interpreted)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def tensordesc_arg(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], bool]:
    """Replaces what turns a host tensor descriptor into kernel arguments.

    Triton binds it when it builds a kernel's launcher (3.8 and newer) or looks it up at each launch
    (before), so this has to happen before the first launch of a kernel.
    """
    import triton.backends.nvidia.driver as driver

    return _replace(driver, "make_tensordesc_arg", make)


def interpreter_cvt(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], bool]:
    """Replaces what turns a kernel argument into a value of Triton's interpreter."""
    import triton.runtime.interpreter as interpreter

    return _replace(interpreter, "_implicit_cvt", make)


def _replace(
    module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], bool]:
    previous = getattr(module, name)
    replacement = make(previous)
    setattr(module, name, replacement)

    def undo() -> bool:
        if getattr(module, name) is not replacement:
            return False
        setattr(module, name, previous)
        return True

    return undo
