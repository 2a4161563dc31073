"""The private names of Triton that we replace, each behind one function.

Every replacement returns a :class:`Link`.  It is undone only if nobody replaced the name again
after us: then ours stays in the chain, and the caller makes it a pass-through.  It can also be lost
behind our back (``knobs.runtime.scope()`` restores the hook slot at its end), and a link tells so.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from triton_ext.host.detect import detect

__all__ = [
    "KEY_PREFIX",
    "Link",
    "StagesHook",
    "accepts_no_arguments",
    "asks_hook_for_key",
    "cache_key",
    "chain_stages_hook",
    "interpreter_cvt",
    "interpreting",
    "is_gluon",
    "key_places",
    "make_ir",
    "plugin_is_reached",
    "takes_key",
    "tensordesc_arg",
]

StagesHook = Callable[..., Any]

# How the plugin's cache key begins; whoever reads it in the hook's key knows that it is reached.
KEY_PREFIX: Final = "triton_ext-"

# Where Triton 3.6 makes its keys: module and name.
_KEY_PLACES: Final = {
    "on disk": ("triton.compiler.compiler", "get_cache_key"),
    "of compiles": ("triton.runtime.jit", "get_cache_key"),
    "in memory": ("triton.runtime.jit", "compute_cache_key"),
}


@dataclass(frozen=True, slots=True)
class Link:
    """Our place in the chain behind one of Triton's names.

    Attributes:
        undo: Restores what was there; returns whether it could.
        is_reached: Tells whether Triton still comes through here.
    """

    undo: Callable[[], bool]
    is_reached: Callable[[], bool]


def plugin_is_reached() -> bool:
    """Tells whether compiles go through the plugin: its key is in what the stages hook returns.

    Cheap enough for every launch (0.3 us), so it asks the hook rather than its signature.
    """
    from triton import knobs

    hook = knobs.runtime.add_stages_inspection_hook
    if hook is None:
        return False
    try:
        return KEY_PREFIX in hook()[0]
    except TypeError:
        return False  # a hook written for 3.6, which cannot be asked


def chain_stages_hook(make: Callable[[StagesHook | None], StagesHook]) -> Link:
    """Puts a stages hook into ``triton.knobs.runtime``, in front of the one that is there.

    Args:
        make: Given the present hook or ``None``, returns the hook to install.

    Returns:
        The link; it counts as reached while the plugin's key is in what the slot returns.
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

    return Link(undo, plugin_is_reached)


def is_gluon(language: object) -> bool:
    """Tells whether the language that Triton hands to a stages hook is Gluon."""
    return getattr(language, "name", "") == "GLUON"


def key_places() -> tuple[str, ...]:
    """Names the places at which Triton's keys of compiled kernels have to be extended: on disk, of
    compiles under way, and in memory (3.6); none where Triton asks the stages hook for its key.
    """
    return () if asks_hook_for_key() else tuple(_KEY_PLACES)


def cache_key(place: str, extend: Callable[[], str]) -> Link:
    """Makes what ``extend`` returns part of a key.

    Args:
        place: One of :func:`key_places`.
        extend: Returns what to append; called once for each key, at every launch too.
    """
    module, name = _KEY_PLACES[place]

    def extended(previous: Callable[..., str]) -> Callable[..., str]:
        return lambda *args, **kwargs: previous(*args, **kwargs) + extend()

    return _replace(importlib.import_module(module), name, extended)


def asks_hook_for_key() -> bool:
    """Tells whether Triton asks the stages hook for a key (3.7 and newer).

    The call leaves no trace outside a function body, so this is told by the release.
    """
    return detect().release >= (3, 7)


def takes_key() -> bool:
    """Tells whether Triton's keys can be extended: by the hook's, or at the names of 3.6."""
    if asks_hook_for_key():
        return True
    return all(
        hasattr(importlib.import_module(module), name) for module, name in _KEY_PLACES.values()
    )


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


def tensordesc_arg(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Link:
    """Replaces what turns a host tensor descriptor into kernel arguments.

    Triton binds it when it builds a kernel's launcher (3.8 and newer) or looks it up at each launch
    (before), so this has to happen before the first launch of a kernel.

    Args:
        make: Given a function of a descriptor, its metadata and the launch's other arguments,
            returns another one; the third argument, empty before 3.8, may be left out.
    """
    import triton.backends.nvidia.driver as driver

    def adapted(previous: Callable[..., Any]) -> Callable[..., Any]:
        if len(inspect.signature(previous).parameters) > 2:
            return make(previous)
        return make(lambda arg, metadata, _: previous(arg, metadata))

    return _replace(driver, "make_tensordesc_arg", adapted)


def interpreter_cvt(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Link:
    """Replaces what turns a kernel argument into a value of Triton's interpreter."""
    import triton.runtime.interpreter as interpreter

    return _replace(interpreter, "_implicit_cvt", make)


def make_ir(make: Callable[[Callable[..., Any]], Callable[..., Any]], *, gluon: bool) -> Link:
    """Replaces what turns the source of a kernel, ``@triton.jit`` or Gluon, into a module."""
    if gluon:
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source
    return _replace(Source, "make_ir", make)


def _replace(
    module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Link:
    previous = getattr(module, name)
    replacement = make(previous)
    setattr(module, name, replacement)

    def undo() -> bool:
        if getattr(module, name) is not replacement:
            return False
        setattr(module, name, previous)
        return True

    def is_reached() -> bool:
        # Whoever replaced it after us calls us; only a restored original does not.
        return getattr(module, name) is not previous

    return Link(undo, is_reached)
