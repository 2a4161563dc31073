"""Puts our passes into Triton's pipeline: the stages hook, its cache key, what runs where.

Guarantees:

* ``install()`` and ``uninstall()`` are idempotent and chain to what was there before.  Whoever
  replaces ours later without calling it has ours in front again at the next compile, and a warning.
* The cache key is a digest of everything of ours that can change a compiled kernel, so a changed
  pass recompiles and a kernel compiled with us is never served without us.
* A module that needs none of our passes (:mod:`triton_ext.own_passes`) costs one print and a
  substring search for each; a launch costs one call that returns a constant.
* Passes of others run where :func:`add_pass` or :func:`extra_passes` says, and enter the key with
  their pipeline's text, their fields and the sources that decide what they do.
* A compile runs the passes that its key was made of, or fails where they were changed since.

``TRITON_EXT_WAITS=host`` leaves the wait counts of AMD kernels to Triton's own pass, and
``TRITON_EXT_LDS=host`` the places of partitioned values in LDS;
``TRITON_EXT_COALESCE=host`` leaves asynchronous copies of Gluon kernels in their layouts;
``TRITON_EXT_VERIFY_WAITS=1`` refuses a kernel one of whose asynchronous waits is not enough.  These
are read once, when the first kernel is compiled or looked up.
``TRITON_EXT_VERIFY=1`` verifies the module behind every pass.  Without it the host's own verifier
checks the result, and only if it refuses are the passes run again to find the one that is to blame.
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any

from triton_ext import backends, host
from triton_ext.errors import (
    PassError,
    SourceError,
    TritonExtError,
    UnsupportedError,
    VerifyError,
)
from triton_ext.host import module as host_module
from triton_ext.host import patch_points
from triton_ext.host.detect import wrap_create_driver
from triton_ext.host.dots import wrap_interpreted_dot
from triton_ext.ir import Module, parse
from triton_ext.ir.functions import FUNCTIONS, symbol_of, visibility_of
from triton_ext.markers import JOIN_LIBRARY, LIBRARY, MARKED
from triton_ext.own_passes import host_has, is_set, own_for, own_passes
from triton_ext.passes import Pass, PassManager, Pipeline
from triton_ext.passes.sources import add_content, add_files, add_sources

__all__ = [
    "STAGES",
    "Link",
    "add_pass",
    "cache_key",
    "chain",
    "extra_passes",
    "install",
    "is_installed",
    "passes_key",
    "remove_pass",
    "run_passes",
    "uninstall",
]

#: The stages behind which passes can run.
STAGES = ("ttir", "ttgir")

_log = logging.getLogger("triton_ext")


@dataclass(frozen=True, slots=True)
class Link:
    """A place of Triton's in which the plugin stands.

    Attributes:
        title: Its name.
        is_reached: Whether Triton comes through the plugin there.
        in_front: Who stands in front of the plugin, or in its place; empty for nobody.
        behind: Who stands behind it and is called by it; empty for nobody but Triton.
    """

    title: str
    is_reached: bool
    in_front: str
    behind: str


@dataclass(frozen=True, slots=True)
class _Extra:
    """Passes of somebody else.

    Attributes:
        stage: The stage behind which they run.
        pipeline: Their text.
        manager: Runs them.
        digest: Of their text, their fields and the sources that decide what they do.
    """

    stage: str
    pipeline: str
    manager: PassManager
    digest: str


# The one piece of global state: where we are chained, whether we act there, and the passes of
# others, a tuple that is replaced and never changed.
_lock = threading.Lock()
_chained: tuple[patch_points.PatchPoint, ...] = ()
_active = False
_extra: tuple[_Extra, ...] = ()
# The passes in this thread's last key; ``None`` for a key without the plugin.
_asked = threading.local()
_NOT_ASKED = object()


def install() -> None:
    """Registers the plugin with the installed Triton; does nothing where it is registered.

    A registration that was lost (``knobs.runtime.scope()`` restores the hook slot at its end, a
    foreign hook may not call ours) is made again, here and at the beginning of every compile.

    Importing ``triton_ext.language``, ``triton_ext.gluon`` or ``triton_ext.ops`` calls this.  Call
    it before the first launch of a kernel that uses an :class:`triton_ext.Im2ColDescriptor`.

    Raises:
        HostError: There is no usable Triton.
    """
    global _active, _chained
    host.detect()
    with _lock:
        _active = True
        _chained = _patch_points()
        for patch_point in _chained:
            if not patch_point.is_reached():
                patch_point.chain()


def uninstall() -> None:
    """Takes the plugin out; kernels that were compiled with it are not served any more.

    Where somebody chained to us after our ``install()``, our link stays in that chain and passes
    everything through.
    """
    global _active
    with _lock:
        _active = False
        for patch_point in _chained:
            patch_point.unchain()


def _patch_points() -> tuple[patch_points.PatchPoint, ...]:
    return (
        patch_points.stages_hook(_stages_hook),
        *(_key_patch_point(place) for place in patch_points.key_places()),
        patch_points.tensordesc_arg(_wrapper("wrap_make_tensordesc_arg")),
        patch_points.make_ir(_wrapper("wrap_make_ir"), gluon=False),
        patch_points.make_ir(_wrapper("wrap_make_ir"), gluon=True),
        *_signature_patch_points(),
        *patch_points.before_compile(_keep),
        patch_points.create_driver(lambda previous: wrap_create_driver(previous, _is_active)),
        *_interpreter_patch_points(),
    )


def _signature_patch_points() -> tuple[patch_points.PatchPoint, ...]:
    if host_has("im2col-copies"):
        return ()
    # There Gluon knows no im2col descriptors.
    return patch_points.gluon_signature(
        _wrapper("gluon.wrap_source"), _wrapper("gluon.wrap_str_to_ty")
    )


def _interpreter_patch_points() -> tuple[patch_points.PatchPoint, ...]:
    if not patch_points.interpreting():
        return ()
    return (
        patch_points.interpreter_cvt(_wrapper("wrap_implicit_cvt")),
        patch_points.interpreter_dot(lambda previous: wrap_interpreted_dot(previous, _is_active)),
    )


def _key_patch_point(place: str) -> patch_points.PatchPoint:
    make = _key_maker()
    return patch_points.cache_key(place, lambda: make()[0])


def _keep() -> None:
    """Chains again where somebody took our place; Triton calls it in front of every compile."""
    if not _active:
        return
    for patch_point in [patch_point for patch_point in _chained if not patch_point.is_reached()]:
        _log.warning(
            "%s no longer calls triton-ext, because %s took its place; triton-ext was put in front "
            "of that again",
            patch_point.title,
            patch_point.in_front or "Triton's own function",
        )
        with _lock:
            patch_point.chain()


def chain() -> tuple[Link, ...]:
    """Tells for each place of Triton's in which the plugin stands who else is there.

    Nothing where it is not installed.
    """
    if not _active:
        return ()
    return tuple(
        Link(patch_point.title, patch_point.is_reached(), patch_point.in_front, patch_point.behind)
        for patch_point in _chained
    )


def is_installed() -> bool:
    """Tells whether the plugin acts on compiles and launches."""
    return _active and patch_points.plugin_is_reached()


def _is_active() -> bool:
    return _active


@lru_cache(maxsize=1)
def cache_key() -> str:
    """Returns a digest of our version and of every source file that can change a compiled kernel.

    All of the package's Python files count: device functions and passes decide what is compiled,
    and which of the others they reach is not worth tracking.
    """
    digest = hashlib.sha256(" ".join(own.export for own in own_passes()).encode())
    for package in _package_folders():
        add_files(digest, package)
    return f"{patch_points.KEY_PREFIX}{digest.hexdigest()}"


def add_pass(stage: str, passes: str | Pipeline | Pass | Sequence[Pass]) -> None:
    """Makes passes run in every compile of this process from now on, and installs the plugin.

    They run behind Triton's own passes of the stage and behind what was added before.  Kernels that
    were compiled without them are compiled again.  Whoever changes passes while another thread
    compiles makes that compile fail.

    Args:
        stage: ``"ttgir"`` or ``"ttir"`` (which Gluon kernels do not have).
        passes: A pipeline as text, ``"my-pass{factor=2}"``, or passes.

    Raises:
        ValueError: There is no such stage.
        PipelineError: The pipeline cannot be read, or a pass is not there.
        UnsupportedError: The host would serve kernels from its cache that were compiled without
            them, or the source of a pass cannot be found.
    """
    global _extra
    entry = _make_extra(stage, passes)
    install()
    with _lock:
        _extra = (*_extra, entry)


def remove_pass(stage: str, passes: str | Pipeline | Pass | Sequence[Pass]) -> None:
    """Removes the equal pipeline that :func:`add_pass` added last.

    Raises:
        ValueError: No equal pipeline was added.
    """
    pipeline = str(PassManager(passes))
    found = [entry for entry in _extra if (entry.stage, entry.pipeline) == (stage, pipeline)]
    if not found:
        there = ", ".join(f"{entry.pipeline} after {entry.stage}" for entry in _extra) or "none"
        raise ValueError(f"{pipeline} was not added after {stage!r}; added are: {there}")
    _drop(found[-1])


@contextmanager
def extra_passes(
    stage: str, passes: str | Pipeline | Pass | Sequence[Pass]
) -> Iterator[PassManager]:
    """Makes passes run in every compile of this process while the context lasts.

    See :func:`add_pass`, whose arguments and errors these are.
    """
    global _extra
    entry = _make_extra(stage, passes)
    install()
    with _lock:
        _extra = (*_extra, entry)
    try:
        yield entry.manager
    finally:
        _drop(entry)


def _drop(entry: _Extra) -> None:
    global _extra
    with _lock:
        _extra = tuple(other for other in _extra if other is not entry)


def _make_extra(stage: str, passes: str | Pipeline | Pass | Sequence[Pass]) -> _Extra:
    if stage not in STAGES:
        raise ValueError(f"passes can run after {' and '.join(map(repr, STAGES))}, not {stage!r}")
    host.require("stages-hook-key")
    manager = PassManager(passes, host_features=host.features)
    digest = hashlib.sha256()
    add_content(digest, stage, str(manager).encode())
    for pass_ in manager.passes:
        # The text of a pipeline need not tell any two values apart.
        for field in fields(pass_):
            add_content(digest, field.name, repr(getattr(pass_, field.name)).encode())
        add_sources(digest, type(pass_))
    return _Extra(stage, str(manager), manager, digest.hexdigest())


def passes_key() -> tuple[str, ...]:
    """A key of the passes that :func:`add_pass` and :func:`extra_passes` added; empty without any.

    For whoever keeps compiled kernels and launches them without Triton's front door.
    """
    return tuple(entry.digest for entry in _extra) if _extra else ()


def _full_key(extra: tuple[_Extra, ...]) -> str:
    """The cache key with the passes of others."""
    return "-".join([cache_key(), *(entry.digest for entry in extra)])


def _key_maker() -> Callable[[], tuple[str, str]]:
    """Returns what makes our part of the key, and remembers what it was made of."""
    own: tuple[tuple[_Extra, ...], tuple[str, str]] | None = None

    def ours(extra: tuple[_Extra, ...]) -> tuple[str, str]:
        # Runs at every launch of every kernel: nothing but two tests and a constant.
        nonlocal own
        made = own
        if made is None or made[0] is not extra:
            full = _full_key(extra)
            # One assignment, so that no other thread sees the one without the other.
            own = made = (extra, (full, full))
        return made[1]

    def mine() -> tuple[str, str]:
        extra = _asked.extra = _extra if _active else None
        return ("", "") if extra is None else ours(extra)

    return mine


def _package_folders() -> list[pathlib.Path]:
    """The package's folder and the vendors', which lie elsewhere in an editable install."""
    import triton_ext

    folders = {pathlib.Path(path) for path in triton_ext.__path__}
    for vendor in backends.VENDORS:
        folders.update(backends.folders(vendor))
    return sorted(folders)


def _stages_hook(previous: patch_points.StagesHook | None) -> patch_points.StagesHook:
    def hook(
        backend: Any = None,
        stages: Any = None,
        options: Any = None,
        language: Any = None,
        capability: Any = None,
    ) -> tuple[str, str] | None:
        if stages is None:
            return key()
        # Taken, so that it is compared with the stages that were asked for right behind it only.
        asked = _asked.__dict__.pop("extra", _NOT_ASKED)
        if previous is not None:
            _asked.wrapped = None
            previous(backend, stages, options, language, capability)
            if _asked.wrapped is stages:
                return None  # A foreign hook called another link of ours, further back.
        now = _extra if _active else None
        if asked is not _NOT_ASKED and asked != now and host_has("stages-hook-key"):
            raise UnsupportedError(
                "the passes of compiles changed, or the plugin was installed or uninstalled, after "
                "Triton had made the cache key of this kernel, which would be stored under a wrong "
                "key; launch it again, and change passes while no other thread compiles"
            )
        if now is not None:
            _asked.wrapped = stages
            changed: list[str] = []
            for name in STAGES:
                if name in stages:
                    is_gluon = patch_points.is_gluon(language)
                    inner = _naming(name, stages[name], changed)
                    stages[name] = _wrap_stage(name, inner, now, is_gluon, changed)
            if "llir" in stages:
                stages["llir"] = _wrap_llir(_naming("llir", stages["llir"], changed))
        return None

    mine = _key_maker()
    if previous is None:
        key = mine
    else:

        def key() -> tuple[str, str]:
            theirs, digest = patch_points.key_of(previous) or ("", "")
            text, own_digest = mine()
            if text in theirs:
                return (theirs, digest)  # Another link of ours, further back.
            return (f"{theirs}{text}", f"{digest}{own_digest}")

    return hook


def _naming(
    stage: str, inner: Callable[[Any, Any], Any], changed: list[str]
) -> Callable[[Any, Any], Any]:
    """Makes a failure of a stage name the passes of others that changed its input.

    Triton's verifier accepts operations that no later pass of Triton's can lower.

    Args:
        stage: The stage.
        inner: Runs it.
        changed: The passes that changed the module so far, each with its stage.
    """

    def named(source: Any, metadata: Any) -> Any:
        try:
            return inner(source, metadata)
        except RuntimeError as error:
            if not changed or isinstance(error, TritonExtError):
                raise
            raise PassError(
                f"triton's stage '{stage}' failed on a module that {' and '.join(changed)} "
                f"changed: {error}",
                filename=f"<{stage}>",
                notes=("triton printed the operation that it cannot lower to standard error",),
            ) from error

    return named


def _wrap_stage(
    stage: str,
    inner: Callable[[Any, Any], Any],
    extra: tuple[_Extra, ...],
    is_gluon: bool,
    changed: list[str],
) -> Callable[[Any, Any], Any]:
    """Puts passes behind a stage: those that the key was made of, whatever is added since.

    Args:
        stage: The stage.
        inner: Runs it.
        extra: The passes of others.
        is_gluon: Whether the kernel is a Gluon kernel.
        changed: Gets the passes of others that changed the module, each with its stage.
    """
    has_extra = any(entry.stage == stage for entry in extra)

    def wrapped(source: Any, metadata: Any) -> Any:
        module = inner(source, metadata)
        if stage != "ttgir" and not has_extra:
            return module
        text = host_module.print_module(module)
        if not has_extra and not own_for(stage, text, is_gluon):
            return module
        behind: list[str] = []
        tree = run_passes(text, stage=stage, extra=extra, is_gluon=is_gluon, changed=behind)
        if not tree.is_changed:
            return module
        try:
            lowered = host_module.parse_module(str(tree), module.context)
        except VerifyError as error:
            # Only now, because it costs more than all of the passes.
            run_passes(text, stage=stage, context=module.context, extra=extra, is_gluon=is_gluon)
            own = own_for(stage, text, is_gluon)
            error.notes += tuple(each.way_out for each in own if each.way_out)
            raise
        changed.extend(behind)
        if stage == "ttgir":
            # As Triton does at the end of this stage; what it noted is of the module before.
            entries = lowered.get_tensordesc_metadata()
            if LIBRARY in text:
                entries = backends.load("nvidia", "annotate_metadata")(tree, entries)
            if "ttg.partitioned_shared" in str(tree):
                entries = backends.load("amd", "annotate-metadata")(tree, entries)
            metadata["tensordesc_meta"] = entries
        return lowered

    return wrapped


def _wrap_llir(inner: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    """Puts behind LLVM IR what the host cannot do of im2col copies, and joined WGMMAs."""
    if host_has("im2col-copies"):
        word, export = ".multicast::cluster", "order-multicast-operands"
    else:
        word, export = MARKED, "lower-im2col-calls"
    own = ((word, export), (JOIN_LIBRARY, "join-wgmma"))

    def wrapped(source: Any, metadata: Any) -> str:
        text: str = inner(source, metadata)
        for mark, name in own:
            if mark in text:
                text = backends.load("nvidia", name)(text)
        return text

    return wrapped


def run_passes(
    text: str,
    filename: str | None = None,
    *,
    stage: str = "ttgir",
    context: Any | None = None,
    extra: tuple[_Extra, ...] | None = None,
    is_gluon: bool = False,
    changed: list[str] | None = None,
) -> Module:
    """Runs what runs behind a stage on the printed form of a module.

    Args:
        text: The module.
        filename: Its name in errors; by default the stage's in angle brackets.
        stage: One of :data:`STAGES`.
        context: An MLIR context in which Triton verifies the module behind each pass as well; by
            default the package verifies it if ``TRITON_EXT_VERIFY=1``, and Triton does not.
        extra: The passes of others; by default those that are added now.
        is_gluon: Whether it is of a Gluon kernel.
        changed: Gets the passes of others that changed the module, each with its stage.

    Raises:
        PassError: The module cannot be lowered; the error stands at the user's source line.  Or
            passes of others removed or renamed a kernel.
        VerifyError: Verification was asked for, and a pass left an invalid module behind.
    """
    verify = is_set("TRITON_EXT_VERIFY") or context is not None
    verifier = Module.verify if context is None else partial(_verify_with_host, context=context)
    own = own_for(stage, text, is_gluon)
    blamed = own
    try:
        module = parse(text, filename if filename is not None else f"<{stage}>")
        for each in own:
            blamed = (each,)
            manager = PassManager([each.make()], host_features=host.features)
            _run(manager.verifying(verify, verifier), module)
    except SourceError as error:
        # A user who cannot change the pass needs a setting that avoids it.
        error.notes += tuple(each.way_out for each in blamed if each.way_out)
        raise
    for entry in _extra if extra is None else extra:
        if entry.stage == stage:
            kernels, before = _kernels(module), str(module)
            _run(entry.manager.verifying(verify, verifier), module)
            lost = kernels - _kernels(module)
            if lost:
                # Triton looks for the kernel by its name, and aborts where there is none.
                raise PassError(
                    f"the passes '{entry.pipeline}' removed or renamed the kernel '{min(lost)}'",
                    filename=module.source.filename,
                )
            if changed is not None and str(module) != before:
                changed.append(f"'{entry.pipeline}' behind {stage}")
    return module


def _verify_with_host(module: Module, context: Any) -> None:
    module.verify()
    host_module.verify(module, context)


def _kernels(module: Module) -> set[str]:
    """The names of the functions that can be launched."""
    functions = [op for op in module.walk() if op.name in FUNCTIONS]
    public = (op for op in functions if visibility_of(op) == "public")
    return {name for name in map(symbol_of, public) if name is not None}


def _run(manager: PassManager, module: Module) -> None:
    for remark in manager.run(module).remarks:
        _log.log(logging.WARNING if remark.severity == "warning" else logging.INFO, "%s", remark)


def _wrapper(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a vendor's replacement; it asks us whether the plugin is installed."""
    wrap = backends.load("nvidia", name)
    return lambda previous: wrap(previous, _is_active)
