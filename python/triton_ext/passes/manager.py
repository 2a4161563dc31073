"""Runs passes over a module: nesting, verification after each, dumps, timing, statistics.

A pass that is anchored on ``tt.func`` runs on one function after the other, together with the
passes beside it in its pipeline, as in MLIR.  A pass in a pipeline of modules that is anchored on
functions is nested for the caller; one that is anchored on modules cannot run on a function.
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from triton_ext.errors import (
    NotModelledError,
    PassError,
    PipelineError,
    SourceError,
    TritonExtError,
    VerifyError,
)
from triton_ext.ir import Module, Operation, parse
from triton_ext.passes import registry
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext, Remark, Statistic, no_host
from triton_ext.passes.options import near, spec_of
from triton_ext.passes.pipeline import MODULE, Pipeline, parse_pipeline

__all__ = ["ALL", "PassManager", "PassReport", "PassTiming"]

#: In ``print_before`` and ``print_after``: every pass.
ALL = "*"


@dataclass(frozen=True, slots=True)
class PassTiming:
    """How long one run of a pass took.

    Attributes:
        pass_name: The pass.
        anchor: The operation that it ran on: ``builtin.module``, or a function's name.
        seconds: Time in the pass.
        verify_seconds: Time in the verifier behind it.
    """

    pass_name: str
    anchor: str
    seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class PassReport:
    """Timings, statistics and remarks of a run.

    Attributes:
        timings: One entry for each run of a pass, in order.
        statistics: Summed up by pass and name, in the order of their first mention.
        remarks: Remarks and warnings in the order in which they were made.
    """

    timings: tuple[PassTiming, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def timing_table(self) -> str:
        """A table of the timings, summed up by pass, and their share of the total."""
        total = sum(t.seconds + t.verify_seconds for t in self.timings)
        rows: dict[str, float] = {}
        for timing in self.timings:
            rows[timing.pass_name] = rows.get(timing.pass_name, 0.0) + timing.seconds
        verifying = sum(t.verify_seconds for t in self.timings)
        if verifying:
            rows["(verify)"] = verifying
        lines = ["===- pass execution timing -===", f"  total: {total:.4f} s"]
        for name, seconds in sorted(rows.items(), key=lambda row: -row[1]):
            share = 100 * seconds / total if total else 0.0
            lines.append(f"  {seconds:10.4f} ({share:5.1f}%)  {name}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Stage:
    """Passes, and pipelines nested in them, that run on the operations of one name."""

    anchor: str
    items: tuple[Pass | _Stage, ...]


@dataclass(slots=True)
class _Run:
    """Collects the report of one run."""

    timings: list[PassTiming] = field(default_factory=list)
    statistics: dict[tuple[str, str], int] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def report(self) -> PassReport:
        counted = tuple(Statistic(*key, count) for key, count in self.statistics.items())
        return PassReport(tuple(self.timings), counted, tuple(self.remarks))


@dataclass(frozen=True, slots=True, init=False)
class PassManager:
    """A pipeline that is ready to run, as often as one likes.

    Attributes:
        verify_each: Whether the module is verified before the first pass and behind each.
        verifier: What verifies it; ``Module.verify`` unless :meth:`verifying` says otherwise.
        print_before: Names of the passes in front of which the module is printed; ``"*"`` for all.
        print_after: The same for behind.
        print_sink: Takes what is printed; standard error without one.
        timing: Whether a table of the timings is printed at the end.
        host_features: What passes are told of the Triton that compiles the module
            (:class:`PassContext`).
    """

    verify_each: bool
    verifier: Callable[[Module], None]
    print_before: frozenset[str]
    print_after: frozenset[str]
    print_sink: Callable[[str], object] | None
    timing: bool
    host_features: Callable[[], frozenset[str] | None]
    _stage: _Stage

    def __init__(
        self,
        passes: str | Pipeline | Pass | Sequence[Pass],
        *,
        verify_each: bool = True,
        print_before: Collection[str] = (),
        print_after: Collection[str] = (),
        print_sink: Callable[[str], object] | None = None,
        timing: bool = False,
        host_features: Callable[[], frozenset[str] | None] = no_host,
    ) -> None:
        """Looks up and configures the passes.

        Args:
            passes: A pipeline, its text, or passes.
            verify_each: See the attributes.
            print_before: See the attributes.
            print_after: See the attributes.
            print_sink: See the attributes.
            timing: See the attributes.
            host_features: See the attributes.

        Raises:
            TypeError: ``passes`` is none of these.
            PipelineError: A pass or option is not there, a pass cannot run where it stands, an
                option's value cannot be written, or a name to print around is no pass of these.
        """
        if isinstance(passes, str):
            passes = parse_pipeline(passes)
        if isinstance(passes, Pipeline):
            stage = _resolve(passes)
        else:
            given = _given(passes)
            stage = _Stage(MODULE, tuple(_nested(one, MODULE) for one in given))
        specs = [spec_of(one) for one in _flat(stage)]  # refuses what no text of a pipeline can say
        _check_names({spec.name for spec in specs}, {*print_before, *print_after})
        set_ = object.__setattr__  # frozen, and the pipeline is resolved only here
        set_(self, "_stage", stage)
        set_(self, "verify_each", verify_each)
        set_(self, "verifier", Module.verify)
        set_(self, "print_before", frozenset(print_before))
        set_(self, "print_after", frozenset(print_after))
        set_(self, "print_sink", print_sink)
        set_(self, "timing", timing)
        set_(self, "host_features", host_features)

    def __str__(self) -> str:
        """The text of the pipeline, options that have their default left out."""
        return _stage_text(self._stage)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Every pass in the order of the pipeline's text."""
        return tuple(_flat(self._stage))

    def verifying(
        self, verify_each: bool, verifier: Callable[[Module], None] = Module.verify
    ) -> PassManager:
        """Returns the same manager with verification switched on or off.

        Args:
            verify_each: Whether the module is verified before the first pass and behind each.
            verifier: Raises a ``SourceError`` for an invalid module.
        """
        if (verify_each, verifier) == (self.verify_each, self.verifier):
            return self
        made = copy.copy(self)
        object.__setattr__(made, "verify_each", verify_each)
        object.__setattr__(made, "verifier", verifier)
        return made

    def run(self, module: Module) -> PassReport:
        """Runs the pipeline on a module, in place.

        Raises:
            PassError: A pass cannot do its work, or raised what is no error of ours.
            VerifyError: The module is invalid before the first pass, or behind a pass, which the
                error names.
        """
        run = _Run()
        if self.verify_each and self._stage.items:
            self.verifier(module)
        self._run_stage(self._stage, module, module, run)
        report = run.report()
        if self.timing:
            self._print(report.timing_table())
        return report

    def _run_stage(self, stage: _Stage, part: Module, whole: Module, run: _Run) -> None:
        for item in stage.items:
            if isinstance(item, Pass):
                self._run_pass(item, part, whole, run)
                continue
            for op in _targets(part.op, item.anchor):
                self._run_stage(item, part.part(op), whole, run)

    def _run_pass(self, pass_: Pass, part: Module, whole: Module, run: _Run) -> None:
        name = pass_.name
        self._dump("Before", self.print_before, pass_, part)
        context = PassContext(name, self.host_features)
        start = time.perf_counter()
        try:
            pass_.run(part, context)
        except PassError as error:
            if isinstance(error, NotModelledError):
                error.pass_name = name
            if not error.line:
                # Nothing else tells where it comes from.
                error.notes += (f"pass '{name}' says so",)
            raise
        except TritonExtError:
            raise
        except (Exception, SystemExit) as error:
            self._refuse_invalid(name, whole)
            raise _fault_of(pass_, error) from error
        end = time.perf_counter()
        if self.verify_each:
            self._verify_behind(name, whole)
        verified = time.perf_counter() - end if self.verify_each else 0.0
        run.timings.append(PassTiming(name, part.op.name, end - start, verified))
        run.remarks += context.remarks
        for key, count in context.counts.items():
            counted = run.statistics.get((name, key), 0)
            run.statistics[name, key] = counted + count
        self._dump("After", self.print_after, pass_, part)

    def _refuse_invalid(self, name: str, module: Module) -> None:
        """Says of an input that nobody has verified why a pass could not do its work on it.

        Raises:
            VerifyError: The text that was parsed is invalid.
        """
        if self.verify_each:
            return
        try:
            self.verifier(parse(module.source.text, module.source.filename))
        except SourceError as error:
            error.notes += (f"pass '{name}' failed on this module, which nobody had verified",)
            raise error from None

    def _verify_behind(self, name: str, module: Module) -> None:
        try:
            self.verifier(module)
        except SourceError as error:
            raise VerifyError(
                f"pass '{name}' left an invalid module: {error.message}",
                filename=error.filename,
                line=error.line,
                column=error.column,
                source_line=error.source_line,
                notes=error.notes,
            ) from error

    def _dump(self, when: str, wanted: frozenset[str], pass_: Pass, part: Module) -> None:
        if ALL in wanted or pass_.name in wanted:
            title = f"IR Dump {when} {type(pass_).__name__} ({pass_.name})"
            self._print(f"// -----// {title} //----- //\n{part.op.module}\n")

    def _print(self, text: str) -> None:
        (self.print_sink or sys.stderr.write)(text)


def _given(passes: object) -> tuple[Pass, ...]:
    """The passes that are given as such."""
    given = (passes,) if isinstance(passes, Pass) else passes
    wanted = "expected a pipeline, its text, a pass or a list of passes"
    if not isinstance(given, Iterable):
        raise TypeError(f"{wanted}, found {passes!r}")
    found = []
    for one in given:
        if not isinstance(one, Pass):
            what = (
                f"the class {one.__name__}, not one of it" if isinstance(one, type) else repr(one)
            )
            raise TypeError(f"{wanted}, found in the list: {what}")
        found.append(one)
    return tuple(found)


def _check_names(known: set[str], wanted: set[str]) -> None:
    for name in sorted(wanted - known - {ALL}):
        raise PipelineError(
            f"there is no pass '{name}' in this pipeline to print the module around",
            notes=(near(name, known),),
        )


def _resolve(pipeline: Pipeline) -> _Stage:
    """Looks up everything that a pipeline names."""
    items: list[Pass | _Stage] = []
    for item in pipeline.items:
        if isinstance(item, Pipeline):
            items.append(_resolve(item))
            continue
        pass_ = registry.build(item)
        try:
            items.append(_nested(pass_, pipeline.anchor))
        except PipelineError as error:
            item.fail(error.message, *error.notes)
    return _Stage(pipeline.anchor, tuple(items))


def _nested(pass_: Pass, anchor: str) -> Pass | _Stage:
    """The pass, inside of a pipeline of its own where it is anchored further in."""
    wanted = pass_.anchor
    if wanted is None or wanted == anchor or anchor == "any":
        return pass_
    if anchor == MODULE:
        return _Stage(wanted, (pass_,))
    raise PipelineError(
        f"pass '{pass_.name}' runs on '{wanted}', it cannot stand in a pipeline of '{anchor}'",
        notes=(f"put it beside the pipeline of '{anchor}', not inside",),
    )


def _targets(op: Operation, anchor: str) -> list[Operation]:
    """The operations directly inside of one that a nested pipeline runs on."""
    inside = [inner for region in op.regions for block in region.blocks for inner in block.ops]
    if anchor == "any":
        return [inner for inner in inside if any(region.isolated for region in inner.regions)]
    return [inner for inner in inside if inner.name == anchor]


def _fault_of(pass_: Pass, error: BaseException) -> PassError:
    """An exception that a pass did not mean to raise, at the line of the pass that led to it.

    That is the innermost one in the file of its class; what it called is told in a note.
    """
    frames = traceback.extract_tb(error.__traceback__)
    files = {code.co_filename for code in _codes(type(pass_))}
    raised = frames[-1]
    place = next((frame for frame in reversed(frames) if frame.filename in files), raised)
    notes = ["this is a fault of the pass, not of the module"]
    if place is not raised:
        notes.append(f"raised at {raised.filename}:{raised.lineno}")
    return PassError(
        f"pass '{pass_.name}' failed: {type(error).__name__}: {error}",
        filename=place.filename,
        line=place.lineno or 0,
        column=1,
        source_line=place.line,
        notes=tuple(notes),
    )


def _codes(pass_type: type[Pass]) -> Iterator[types.CodeType]:
    """The code of what the classes of a pass define, less what the base class of all does."""
    for cls in pass_type.__mro__:
        if cls is not Pass:
            for member in vars(cls).values():
                if isinstance(member, types.FunctionType):
                    yield member.__code__


def _stage_text(stage: _Stage) -> str:
    parts = [
        str(spec_of(item)) if isinstance(item, Pass) else _stage_text(item) for item in stage.items
    ]
    return f"{stage.anchor}({','.join(parts)})"


def _flat(stage: _Stage) -> list[Pass]:
    found: list[Pass] = []
    for item in stage.items:
        found += [item] if isinstance(item, Pass) else _flat(item)
    return found
