"""Patch points in Triton: one function for each private name that we replace.

If another extension still calls ours after we remove it, it stays in their chain, and the caller
makes it a pass-through.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from triton_ext.host.chain import PROBE, PatchPoint
from triton_ext.host.detect import detect

__all__ = [
    "KEY_PREFIX",
    "PROBE",
    "PatchPoint",
    "StagesHook",
    "asks_hook_for_key",
    "before_compile",
    "cache_key",
    "create_driver",
    "gluon_signature",
    "interpreter_cvt",
    "interpreter_dot",
    "interpreting",
    "is_gluon",
    "key_of",
    "key_places",
    "make_ir",
    "plugin_is_reached",
    "stages_hook",
    "takes_key",
    "tensordesc_arg",
]

StagesHook = Callable[..., Any]

# The plugin's cache key begins with this; if the hook's key contains it, the plugin is reached.
KEY_PREFIX: Final = "triton_ext-"

# Where Triton 3.6 makes its keys: module and name.
_KEY_PLACES: Final = {
    "on disk": ("triton.compiler.compiler", "get_cache_key"),
    "of compiles": ("triton.runtime.jit", "get_cache_key"),
    "in memory": ("triton.runtime.jit", "compute_cache_key"),
}


def plugin_is_reached() -> bool:
    """Tells whether compiles go through the plugin: the stages hook's key contains its key.

    Cheap enough for every launch (0.3 us), so it asks the hook rather than its signature.
    """
    hook = _knobs().runtime.add_stages_inspection_hook
    if hook is None:
        return False
    theirs = key_of(hook)
    return theirs is not None and KEY_PREFIX in theirs[0]


@cache
def _knobs() -> Any:
    # An import within a function would take longer than all other checks of a launch.
    from triton import knobs

    return knobs


def key_of(hook: StagesHook) -> tuple[str, str] | None:
    """Returns the key and digest of a stages hook; ``None`` for one that has none.

    A hook written for 3.6 cannot be asked: it needs its five arguments, or unpacks ``*args``.
    """
    try:
        key: tuple[str, str] = hook()
    except (TypeError, ValueError, IndexError):
        return None
    return key


def stages_hook(make: Callable[[StagesHook | None], StagesHook]) -> PatchPoint:
    """Returns the patch point of the stages hook.

    Args:
        make: Given the present hook or ``None``, returns the hook to install.

    Returns:
        The patch point; ours counts as reached if the plugin's key is part of the hook's result.  A
        hook for 3.6, which cannot be asked, counts as one that does not call ours.
    """
    from triton import knobs

    return PatchPoint(
        "knobs.runtime.add_stages_inspection_hook",
        knobs.runtime,
        "add_stages_inspection_hook",
        make,
        is_present=lambda _: plugin_is_reached(),
    )


def before_compile(action: Callable[[], None]) -> tuple[PatchPoint, ...]:
    """Makes Triton call something at the beginning of every compile, before it makes a key."""
    from triton.compiler import compiler

    def in_front(previous: Callable[..., Any]) -> Callable[..., Any]:
        def parse_options(source: Any) -> Any:
            if source is PROBE:
                return PROBE
            action()
            return previous(source)

        return parse_options

    # The first thing that triton.compile asks its source.  Gluon's derives from the first.
    sources = (compiler.ASTSource, compiler.IRSource)
    return tuple(
        PatchPoint(f"{source.__name__}.parse_options", source, "parse_options", in_front)
        for source in sources
    )


def is_gluon(language: object) -> bool:
    """Tells whether the language that Triton hands to a stages hook is Gluon."""
    return getattr(language, "name", "") == "GLUON"


def key_places() -> tuple[str, ...]:
    """Names the places at which Triton's keys of compiled kernels have to be extended: on disk, of
    compiles under way, and in memory (3.6); none where Triton asks the stages hook for its key.
    """
    return () if asks_hook_for_key() else tuple(_KEY_PLACES)


def cache_key(place: str, extend: Callable[[], str]) -> PatchPoint:
    """Makes the result of ``extend`` part of a cache key.

    Args:
        place: One of :func:`key_places`.
        extend: Returns what to append; called once for each key, at every launch too.
    """
    module, name = _KEY_PLACES[place]

    def extended(previous: Callable[..., str]) -> Callable[..., Any]:
        def key(*args: Any, **kwargs: Any) -> Any:
            if args and args[0] is PROBE:
                return PROBE
            made, ours = previous(*args, **kwargs), extend()
            # Ours may be further back in the chain as well.
            return made if ours and ours in made else made + ours

        return key

    return PatchPoint(f"{module}.{name}", importlib.import_module(module), name, extended)


def asks_hook_for_key() -> bool:
    """Tells whether Triton asks the stages hook for a key (3.7 and newer).

    The call leaves no trace outside a function body, so the release's number decides.
    """
    return detect().release >= (3, 7)


def takes_key() -> bool:
    """Tells whether Triton's keys can be extended: by the hook's, or at the names of 3.6."""
    if asks_hook_for_key():
        return True
    return all(
        hasattr(importlib.import_module(module), name) for module, name in _KEY_PLACES.values()
    )


def interpreting() -> bool:
    """Tells whether ``TRITON_INTERPRET=1`` is in force (kernels defined now are interpreted)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def tensordesc_arg(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> PatchPoint:
    """Returns the patch point of the conversion of a host tensor descriptor to kernel arguments.

    Triton binds it when it builds a kernel's launcher (3.8 and newer) or looks it up at each launch
    (before), so this must be installed before the first launch of a kernel.

    Args:
        make: Given a function of a descriptor, its metadata and the launch's other arguments,
            returns another one; the third argument, empty before 3.8, may be omitted.  It returns
            :data:`PROBE` if that is the descriptor.
    """
    import triton.backends.nvidia.driver as driver

    def adapted(previous: Callable[..., Any]) -> Callable[..., Any]:
        if len(inspect.signature(previous).parameters) > 2:
            return make(previous)
        return make(lambda arg, metadata, _: previous(arg, metadata))

    name = "make_tensordesc_arg"
    return PatchPoint(f"triton.backends.nvidia.driver.{name}", driver, name, adapted, arguments=2)


def interpreter_cvt(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> PatchPoint:
    """Returns the patch point of the conversion of kernel arguments for Triton's interpreter.

    Args:
        make: Returns the replacement, which returns :data:`PROBE` for itself.
    """
    import triton.runtime.interpreter as interpreter

    name = "_implicit_cvt"
    return PatchPoint(f"triton.runtime.interpreter.{name}", interpreter, name, make)


def interpreter_dot(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> PatchPoint:
    """Patches the product of matrices in Triton's interpreter.

    Args:
        make: Returns the replacement, which returns :data:`PROBE` for itself as the second
            argument.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    name = "create_dot"
    return PatchPoint(f"InterpreterBuilder.{name}", InterpreterBuilder, name, make, arguments=3)


def create_driver(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> PatchPoint:
    """Patches the choice of the GPU driver, which Triton makes at the first launch.

    Args:
        make: Returns the replacement, which returns :data:`PROBE` for itself.
    """
    # ``triton.runtime.driver`` as an attribute is an object of this module.
    module = importlib.import_module("triton.runtime.driver")
    name = "_create_driver"
    return PatchPoint(f"{module.__name__}.{name}", module, name, make)


def make_ir(make: Callable[[Callable[..., Any]], Callable[..., Any]], *, gluon: bool) -> PatchPoint:
    """Returns the patch point of the front end of ``@triton.jit`` or Gluon kernels.

    Args:
        make: Returns the replacement, which returns :data:`PROBE` for that source.
        gluon: Whether it is for Gluon's sources.
    """
    if gluon:
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source
    return PatchPoint(f"{Source.__name__}.make_ir", Source, "make_ir", make)


def gluon_signature(
    source: Callable[[Callable[..., Any]], Callable[..., Any]],
    str_to_ty: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> tuple[PatchPoint, ...]:
    """Returns the patch points of the signature of a Gluon kernel.

    Args:
        source: Returns the replacement of the constructor of a source, which sets its signature.
        str_to_ty: Returns the replacement of the parser of types in a signature, also of
            ``@triton.jit`` kernels.

    Both replacements return :data:`PROBE` for itself.
    """
    import triton.compiler.code_generator as code_generator
    from triton.experimental.gluon._runtime import GluonASTSource

    module = code_generator.__name__
    return (
        PatchPoint(f"{GluonASTSource.__name__}.__init__", GluonASTSource, "__init__", source),
        PatchPoint(f"{module}.str_to_ty", code_generator, "str_to_ty", str_to_ty),
    )
