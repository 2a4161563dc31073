"""Puts our passes into Triton's pipeline: the stages hook, its cache key, what runs where.

Guarantees:

* ``install()`` and ``uninstall()`` are idempotent and chain to what was there before.
* The cache key is a digest of everything of ours that can change a compiled kernel, so a changed
  pass recompiles and a kernel compiled with us is never served without us.
* A module with nothing of ours in it costs one print and one substring search; a launch costs one
  call that returns a constant.
"""

from __future__ import annotations

import hashlib
import pathlib
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from triton_ext import backends, host
from triton_ext.host import module as host_module
from triton_ext.host import seams
from triton_ext.ir import Module, parse
from triton_ext.markers import LIBRARY

__all__ = ["cache_key", "install", "is_installed", "run_passes", "uninstall"]

# The one piece of global state: what has to be undone, and whether our links in foreign chains act.
_lock = threading.Lock()
_undo: list[Callable[[], bool]] = []
_active = False


def install() -> None:
    """Registers the plugin with the installed Triton; does nothing if it is registered.

    Importing ``triton_ext.language``, ``triton_ext.gluon`` or ``triton_ext.ops`` calls this.  Call
    it before the first launch of a kernel that uses an :class:`triton_ext.Im2ColDescriptor`.

    Raises:
        HostError: There is no usable Triton.
    """
    global _active
    host.detect()
    with _lock:
        _active = True
        if _undo:
            return
        _undo.append(seams.chain_stages_hook(_stages_hook))
        _undo.append(seams.tensordesc_arg(_gated("wrap_make_tensordesc_arg")))
        if seams.interpreting():
            _undo.append(seams.interpreter_cvt(_gated("wrap_implicit_cvt")))


def uninstall() -> None:
    """Takes the plugin out; kernels that were compiled with it are not served any more.

    Where somebody chained to us after our ``install()``, our link stays in that chain and passes
    everything through.
    """
    global _active
    with _lock:
        _active = False
        # Links that somebody chained to have to stay known, or a new install() would chain twice.
        _undo[:] = [undo for undo in _undo if not undo()]


def is_installed() -> bool:
    """Tells whether the plugin acts on compiles and launches."""
    return _active


@lru_cache(maxsize=1)
def cache_key() -> str:
    """Returns a digest of our version and of every source file that can change a compiled kernel.

    All of the package's Python files count: device functions and passes decide what is compiled,
    and which of the others they reach is not worth tracking.
    """
    digest = hashlib.sha256()
    for package in _package_folders():
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    return f"triton_ext-{digest.hexdigest()}"


def _package_folders() -> list[pathlib.Path]:
    """The package's folder and the vendors', which lie elsewhere in an editable install."""
    import triton_ext

    folders = {pathlib.Path(path) for path in triton_ext.__path__}
    for vendor in backends.VENDORS:
        folders.update(backends.folders(vendor))
    return sorted(folders)


def _stages_hook(previous: seams.StagesHook | None) -> seams.StagesHook:
    def hook(
        backend: Any = None,
        stages: Any = None,
        options: Any = None,
        language: Any = None,
        capability: Any = None,
    ) -> tuple[str, str] | None:
        if stages is None:
            return key()
        if previous is not None:
            previous(backend, stages, options, language, capability)
        if _active and "ttgir" in stages:
            stages["ttgir"] = _wrap_ttgir(stages["ttgir"])
        return None

    if previous is None:
        own: tuple[str, str] | None = None

        def key() -> tuple[str, str]:
            # Runs at every launch of every kernel: nothing but a test and a constant.
            nonlocal own
            if not _active:
                return ("", "")
            if own is None:
                own = (cache_key(), cache_key())
            return own
    else:
        # A hook written for 3.6 takes the five arguments only; it has no key to add.
        keyless = not seams.accepts_no_arguments(previous)

        def key() -> tuple[str, str]:
            theirs, digest = ("", "") if keyless else previous()
            if not _active:
                return (theirs, digest)
            return (f"{theirs}{cache_key()}", f"{digest}{cache_key()}")

    return hook


def _wrap_ttgir(inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def ttgir(source: Any, metadata: Any) -> Any:
        module = inner(source, metadata)
        text = host_module.print_module(module)
        if LIBRARY not in text:
            return module
        tree = run_passes(text)
        lowered = host_module.parse_module(str(tree), module.context)
        metadata["tensordesc_meta"] = backends.load("nvidia", "annotate_metadata")(
            tree, lowered.get_tensordesc_metadata()
        )
        return lowered

    return ttgir


def run_passes(text: str, filename: str = "<ttgir>") -> Module:
    """Runs the pipeline of the ``ttgir`` stage on the printed form of a module.

    Raises:
        PassError: The module cannot be lowered; the error stands at the user's source line.
    """
    module = parse(text, filename)
    backends.load("nvidia", "lower-im2col")().run(module)
    return module


def _gated(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a replacement of a vendor's that passes through while the plugin is not installed."""

    def make(previous: Callable[..., Any]) -> Callable[..., Any]:
        replacement = backends.load("nvidia", name)(previous)

        def gate(*args: Any) -> Any:
            return replacement(*args) if _active else previous(*args)

        return gate

    return make
