"""Chooses for each pass of a pipeline whether this package or the installed Triton runs it.

``auto`` takes ours where we have the pass with these options, so that the result does not depend on
which Triton is installed, and Triton's for everything else.  A pass of ours that meets something
that only Triton knows (:class:`~triton_ext.errors.NotModelledError`) leaves the module to Triton's
pass of that name (:func:`left_to_host`).  Nothing of Triton is started before a pass, or its name,
is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triton_ext.errors import NotModelledError, PipelineError, UnsupportedError
from triton_ext.passes import PassSpec, Pipeline, registry
from triton_ext.passes.options import near, unknown_options, with_options
from triton_ext.passes.pipeline import MODULE

if TYPE_CHECKING:
    from triton_ext.host.passes import HostPasses
    from triton_ext.host.process import Call, HostProcess

__all__ = ["ExtStep", "Host", "HostStep", "Step", "hiding", "left_to_host", "plan"]

_ANY = ("any", MODULE)


@dataclass(frozen=True, slots=True)
class ExtStep:
    """Passes of ours that run one behind the other."""

    pipeline: Pipeline

    @property
    def names(self) -> tuple[str, ...]:
        """The passes."""
        return tuple(spec.name for spec in self.pipeline.specs())


@dataclass(frozen=True, slots=True)
class HostStep:
    """Passes of Triton's that run in one pass manager."""

    calls: tuple[Call, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The passes."""
        return tuple(call.name for call in self.calls)


Step = ExtStep | HostStep


class Host:
    """The installed Triton, started when it is first needed.

    Args:
        allowed: ``False`` for ``--host=none``.
        log: The types of messages that its passes log, with commas; empty for all, ``None`` for
            none.
    """

    def __init__(self, allowed: bool, log: str | None = None) -> None:
        self.allowed = allowed
        self._log = log
        self._process: HostProcess | None = None
        self._passes: HostPasses | None = None

    @property
    def process(self) -> HostProcess:
        """The child process.

        Raises:
            UnsupportedError: There is no Triton, or it must not be used.
        """
        if not self.allowed:
            raise UnsupportedError("--host=none was given")
        if self._process is None:
            from triton_ext.host.process import HostProcess, find_library

            self._process = HostProcess(find_library(), self._log)
        return self._process

    @property
    def passes(self) -> HostPasses:
        """Its passes.

        Raises:
            UnsupportedError: There is no Triton, or it must not be used.
        """
        if self._passes is None:
            from triton_ext.host.passes import load_passes

            self._passes = load_passes(self.process)
        return self._passes

    @property
    def is_there(self) -> bool:
        """True if a Triton is installed and may be used."""
        try:
            return self.process is not None
        except UnsupportedError:
            return False

    def features(self) -> frozenset[str] | None:
        """Names of what it can do; ``None`` where it is not there."""
        from triton_ext.host import HostError, features

        try:
            return features() if self.allowed else None
        except HostError:
            return None

    def close(self) -> None:
        """Ends the child process."""
        if self._process is not None:
            self._process.close()


def plan(
    pipeline: Pipeline, provider: str, host: Host, *, theirs: Collection[str] = ()
) -> list[Step]:
    """Divides a pipeline into steps of ours and steps of Triton's.

    Args:
        pipeline: What to run.
        provider: ``auto``, ``host`` or ``ext``.
        host: The installed Triton.
        theirs: Passes that Triton runs, whatever the provider.

    Raises:
        PipelineError: A pass or an option is not there, or cannot run where it stands.
    """
    steps: list[Step] = []
    ours: list[tuple[tuple[str, ...], PassSpec]] = []
    calls: list[Call] = []
    for path, spec in _leaves(pipeline, ()):
        call = _choose(spec, path, "host" if spec.name in theirs else provider, host)
        if call is None:
            if calls:
                steps.append(HostStep(tuple(calls)))
                calls = []
            ours.append((path, spec))
        else:
            if ours:
                steps.append(ExtStep(_nested(ours)))
                ours = []
            calls.append(call)
    if ours:
        steps.append(ExtStep(_nested(ours)))
    if calls:
        steps.append(HostStep(tuple(calls)))
    return steps


def left_to_host(
    steps: Sequence[Step], error: NotModelledError, provider: str, host: Host
) -> list[Step] | None:
    """Returns the steps with Triton's pass in place of the one of ours that refused.

    Args:
        steps: What was run.
        error: The error of the pass.
        provider: ``auto``, ``host`` or ``ext``.
        host: The installed Triton.

    Returns:
        The steps; ``None`` where Triton cannot run that pass, or must not.
    """
    if provider != "auto" or not host.is_there:
        return None
    found: list[Step] = []
    for step in steps:
        if isinstance(step, HostStep):
            found.append(step)
            continue
        try:
            found += plan(step.pipeline, provider, host, theirs={error.pass_name})
        except PipelineError:
            return None
    return found


def hiding(pipeline: Pipeline, provider: str, host: Host) -> list[str]:
    """Returns a remark for each pass of another package that runs instead of Triton's.

    That one of ours does is what ``auto`` says; that an installed package changes what a command
    line means is not seen from it.

    Args:
        pipeline: What is run.
        provider: ``auto``, ``host`` or ``ext``.
        host: The installed Triton.
    """
    if provider != "auto":
        return []
    known = registry.entries()
    remarks: dict[str, str] = {}
    for spec in pipeline.specs():
        entry = known.get(spec.name)
        if entry is None or entry.origin.startswith("triton_ext."):
            continue
        if host.is_there and spec.name in host.passes.passes:
            remarks[spec.name] = (
                f"'{spec.name}' is the pass of {entry.origin}, which hides that of triton "
                f"{host.passes.version}; --pass-provider=host runs Triton's"
            )
    return list(remarks.values())


def _leaves(
    pipeline: Pipeline, around: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], PassSpec]]:
    """Every pass with the anchors around it."""
    path = (*around, pipeline.anchor)
    for item in pipeline.items:
        if isinstance(item, Pipeline):
            yield from _leaves(item, path)
        else:
            yield path, item


def _nested(leaves: Sequence[tuple[tuple[str, ...], PassSpec]]) -> Pipeline:
    """Puts passes back under their anchors; neighbours share them.

    A pipeline that Triton's passes divide runs its two halves on all functions one after the other
    instead of on one function after the other, which makes no difference to passes that see only
    their own function.
    """
    return _grouped(leaves[0][0][0], [(path[1:], spec) for path, spec in leaves])


def _grouped(anchor: str, leaves: Sequence[tuple[tuple[str, ...], PassSpec]]) -> Pipeline:
    items: list[PassSpec | Pipeline] = []
    index = 0
    while index < len(leaves):
        path, spec = leaves[index]
        if not path:
            items.append(spec)
            index += 1
            continue
        end = index
        while end < len(leaves) and leaves[end][0][:1] == path[:1]:
            end += 1
        items.append(_grouped(path[0], [(p[1:], s) for p, s in leaves[index:end]]))
        index = end
    return Pipeline(anchor, tuple(items))


def _choose(spec: PassSpec, path: tuple[str, ...], provider: str, host: Host) -> Call | None:
    """The call of Triton's adder, or ``None`` for a pass of ours."""
    problem: PipelineError | None = None
    entry = registry.entries().get(spec.name) if provider != "host" else None
    if entry is not None:
        try:
            pass_type = entry.load()
            try:
                with_options(pass_type, spec)
            except PipelineError as error:
                # Triton's may have the option.  A pass that is broken is never replaced: what a
                # command line means would depend on whether a package is healthy.
                if not unknown_options(pass_type, spec):
                    raise
                problem = error
            else:
                return None
        except PipelineError:
            raise
        except (Exception, SystemExit) as error:  # A pass of another package may raise anything.
            spec.fail(f"pass '{spec.name}' of {entry.origin} does not load: {_said(error)}")
    if provider != "ext" and host.is_there and spec.name in host.passes.passes:
        try:
            return _call(spec, path, host.passes)
        except PipelineError as error:
            # Ours knows the pass too, and says more about its options.
            raise problem or error from None
    if problem is not None:
        raise problem
    _no_such_pass(spec, provider, host)
    return None


def _said(error: BaseException) -> str:
    """One line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _call(spec: PassSpec, path: tuple[str, ...], passes: HostPasses) -> Call:
    anchor = passes.passes[spec.name].anchor
    inner = path[-1]
    if MODULE in path[1:]:
        spec.fail(
            f"triton {passes.version} runs '{spec.name}' on the module, its binding cannot run it "
            "on modules inside of it"
        )
    if inner not in (*_ANY, anchor):
        spec.fail(
            f"triton {passes.version} runs '{spec.name}' on {anchor or MODULE}, its binding cannot "
            f"run it on {inner}"
        )
    try:
        return passes.bind(spec.name, spec.options)
    except UnsupportedError as error:
        spec.fail(str(error))


def _no_such_pass(spec: PassSpec, provider: str, host: Host) -> None:
    ours = registry.names() if provider != "host" else ()
    notes: list[str] = []
    known = set(ours)
    if provider == "ext":
        notes.append("--pass-provider=ext leaves out Triton's own passes")
    else:
        try:
            known.update(host.passes.passes)
        except UnsupportedError as error:
            notes.append(f"Triton's own passes are not available: {error}")
    if provider == "host" and spec.name in registry.names():
        version = f"triton {host.passes.version}" if host.is_there else "Triton"
        spec.fail(
            f"there is no pass '{spec.name}' in {version}: it is one of "
            f"{registry.entries()[spec.name].origin}, and --pass-provider=host leaves those out",
            "--pass-provider=auto takes passes of both",
            *notes,
        )
    spec.fail(f"there is no pass '{spec.name}'", near(spec.name, known), *notes)
