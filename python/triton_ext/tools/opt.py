"""``triton-opt``: reads a module, runs passes over it, prints it.

Upstream's command lines run unchanged: each pass is a flag, in the order given, or they stand in
``--pass-pipeline``; ``-split-input-file``, ``-verify-diagnostics``, ``-o`` and what MLIR's own tool
takes besides (:mod:`~triton_ext.tools.command_line`).  Passes are ours or those of the installed
Triton (:mod:`~triton_ext.tools.providers`); Triton runs in a child process, and only if it is
needed.

Comments are left out of the output, as MLIR leaves them out (FileCheck would find its own patterns
in them); ``-keep-comments`` prints every byte that no pass touched as it was.

A diagnostic stands at the user's source line, which an operation's location tells.  For an
operation without a location that is its place in the input, as in MLIR.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from triton_ext import __version__
from triton_ext.errors import (
    NotModelledError,
    ParseError,
    SourceError,
    TritonExtError,
    VerifyError,
)
from triton_ext.host.diagnostics import Diagnostic, of_error, of_errors
from triton_ext.host.module import readable
from triton_ext.ir import Module, Operation, parse
from triton_ext.ir.lexer import BYTE_ORDER_MARK
from triton_ext.passes import PassManager, PassReport, PassTiming, Remark, Statistic, registry
from triton_ext.passes.manager import ALL
from triton_ext.passes.options import near, options_of
from triton_ext.passes.pipeline import MODULE
from triton_ext.strings import lines_of, without_carriage_returns
from triton_ext.tools import ir_text
from triton_ext.tools.command_line import (
    OPTIONS,
    Arguments,
    CommandLineError,
    parse_arguments,
)
from triton_ext.tools.dumps import Dumps
from triton_ext.tools.expectations import MatchTime, verify
from triton_ext.tools.files import read, write
from triton_ext.tools.input_places import locate, place_in_text, with_source
from triton_ext.tools.pretty_locations import with_pretty_locations
from triton_ext.tools.providers import ExtStep, Host, HostStep, Step, hiding, left_to_host, plan
from triton_ext.tools.reproducer import with_reproducer
from triton_ext.tools.streams import tool

__all__ = ["SUMMARY", "main"]

SUMMARY = "run passes over a module's text (triton-opt)"

# Those that some release of Triton reads, and those that its passes make.
_DIALECTS = frozenset(
    {"amdg", "amdgpu", "arith", "builtin", "cf", "func", "gluon", "gpu", "llvm", "math", "nvg"}
    | {"nvgpu", "nvvm", "nvws", "proton", "proton_gpu", "rocdl", "scf", "tt", "ttg", "tti"}
    | {"ttng", "ub", "vector"}
)

_USAGE = "usage: triton-opt [options] [FILE]\n\nRuns passes over the text of a module.\n"


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``triton-opt`` and returns its exit status.

    0 if all went well; 1 after an error, or with ``-verify-diagnostics`` after one that nobody
    expected; 2 for a command line that cannot be understood.

    Args:
        argv: The arguments; those of the process by default.
    """
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        text = None
        if arguments.run_reproducer:
            text = read(arguments.file)
            arguments = with_reproducer(arguments, text)
    except TritonExtError as error:
        return _refuse(error)
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(arguments, error)
    log = arguments.debug_only or None
    if log is None and arguments.debug:
        log = ""
    host = Host(allowed=arguments.host != "none", log=log)
    try:
        try:
            if arguments.show:
                return 0 if write(_show(arguments.show, host), "-") else 1
            steps = plan(arguments.pipeline, arguments.provider, host)
            _check_dumps(arguments, host)
            uses_host = _uses_host(arguments, steps, host)
            for remark in hiding(arguments.pipeline, arguments.provider, host):
                sys.stderr.write(f"triton-opt: remark: {remark}\n")
        except TritonExtError as error:
            return _refuse(error)
        if arguments.dump_pipeline:
            count = len(arguments.pipeline.items)
            sys.stderr.write(f"Pass Manager with {count} passes:\n{arguments.pipeline}\n\n")
        runner = _Runner(arguments, steps, host, uses_host=uses_host)
        return _run(arguments, runner, text)
    except TritonExtError as error:  # Triton cannot be started.
        _refuse(error)
        return 1
    finally:
        host.close()


def _refuse(error: TritonExtError) -> int:
    text = str(error) if isinstance(error, SourceError) else f"triton-opt: error: {error}"
    sys.stderr.write(f"{text}\n")
    if isinstance(error, CommandLineError):
        sys.stderr.write("triton-opt --help lists what there is\n")
    return 2


def _unreadable(arguments: Arguments, error: Exception) -> int:
    sys.stderr.write(f"{_filename(arguments)}: error: cannot be read: {error}\n")
    return 1


def _filename(arguments: Arguments) -> str:
    return "<stdin>" if arguments.file == "-" else arguments.file


def _check_dumps(arguments: Arguments, host: Host) -> None:
    """Refuses to print around a pass that is not there; one that does not run prints nothing."""
    runs = {spec.name for spec in arguments.pipeline.specs()}
    for when in ("before", "after"):
        for name in sorted(getattr(arguments, f"print_{when}") - {ALL, *runs}):
            known = runs | set(registry.names())
            if host.is_there:
                known |= set(host.passes.passes)
            if name not in known:
                raise CommandLineError(
                    f"'--mlir-print-ir-{when}={name}': there is no pass of that name; "
                    f"{near(name, known)}"
                )


def _uses_host(arguments: Arguments, steps: Sequence[Step], host: Host) -> bool:
    """Returns whether Triton reads, verifies and prints the modules."""
    theirs = next((step.names[0] for step in steps if isinstance(step, HostStep)), None)
    if arguments.keep_comments and theirs is not None:
        raise CommandLineError(
            f"'--keep-comments' prints our text, but '{theirs}' is a pass of Triton's, which reads "
            "and prints the module without comments"
        )
    asked = arguments.host == "always" or arguments.names_from_locations
    if asked or theirs is not None:
        return host.process is not None
    return not steps and not arguments.keep_comments and host.is_there


def _run(arguments: Arguments, runner: _Runner, text: str | None) -> int:
    filename = _filename(arguments)
    try:
        text = read(arguments.file) if text is None else text
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(arguments, error)
    if not arguments.keep_comments:
        text = without_carriage_returns(text)
    parts = [(0, text)]
    if arguments.split_marker is not None:
        parts = ir_text.split(text, arguments.split_marker)
    printed: list[str] = []
    good = True
    left = MatchTime()
    for first_line, part in parts:
        # Empty lines in front keep the line numbers of the whole file.
        padded = "\n" * first_line + part
        outcome = runner.run(padded, filename, first_line)
        problems: Sequence[Diagnostic] = outcome.diagnostics
        if arguments.verify_diagnostics:
            only = arguments.verify_diagnostics == "only-expected"
            problems = verify(
                outcome.diagnostics,
                part,
                filename,
                only_expected=only,
                without_notes=outcome.without_notes,
                left=left,
                first_line=first_line,
            )
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        good &= not any(problem.severity == "error" for problem in problems)
        if outcome.text is not None:
            printed.append(outcome.text)
    if arguments.timing:
        sys.stderr.write(PassReport(timings=tuple(runner.timings)).timing_table())
    if arguments.statistics:
        sys.stderr.write(_statistics(runner.statistics))
    joined = f"{arguments.output_marker}\n".join(printed)
    if arguments.output == "-" or good:
        good &= write(joined, arguments.output)
    return 0 if good else 1


@dataclass(slots=True)
class _Outcome:
    """Result of the passes on one module.

    Attributes:
        text: The text to print; ``None`` after an error.
        diagnostics: In the order in which they were reported.
        without_notes: Whether the notes of the errors are not known.
    """

    text: str | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    without_notes: bool = False


class _LeftToHostError(Exception):
    """A run stopped at a pass of ours that leaves the module to Triton's.

    Args:
        error: The error of our pass.
        steps: The steps to run instead.
    """

    def __init__(self, error: NotModelledError, steps: Sequence[Step]) -> None:
        super().__init__(error.message)
        self.error = error
        self.steps = steps


class _Runner:
    """Runs the steps of a pipeline over one module after the other.

    Args:
        arguments: The command line.
        steps: The passes to run.
        host: The installed Triton.
        uses_host: Whether it reads, verifies and prints.
    """

    def __init__(
        self, arguments: Arguments, steps: Sequence[Step], host: Host, *, uses_host: bool
    ) -> None:
        self._arguments = arguments
        self._steps = steps
        self._host = host
        self._uses_host = uses_host
        self.timings: list[PassTiming] = []
        self.statistics: list[Statistic] = []

    def run(self, text: str, filename: str, first_line: int) -> _Outcome:
        """Runs everything over the text of one module.

        Args:
            text: The module, with empty lines in front for the lines before it.
            filename: Its name.
            first_line: Number of those empty lines.
        """
        outcome = _Outcome()
        try:
            if text.startswith(BYTE_ORDER_MARK):
                parse(text, filename)  # Triton only says that the character is unexpected.
            if not self._uses_host:
                module = self._run_ours(text, filename, outcome)
                if module is not None:
                    outcome.text = self._print_ours(module, first_line)
            else:
                outcome.text = self._run_with_host(self._steps, text, filename, outcome)
        except _LeftToHostError as left:
            outcome = self._run_left(left, text, filename)
        except SourceError as error:  # Text that cannot be read again or written out.
            outcome.diagnostics.append(of_error(error))
        if outcome.diagnostics:
            lines, found = lines_of(text[first_line:]), outcome.diagnostics
            outcome.diagnostics = [with_source(d, filename, lines, first_line) for d in found]
        return outcome

    def _print_ours(self, module: Module, first_line: int) -> str:
        if not self._arguments.keep_comments:
            ir_text.normalize(module)
        text = str(module)
        if self._arguments.local_scope:
            text = ir_text.expand_aliases(module)
        text = text[first_line:]
        if self._arguments.keep_comments:
            return text
        text = ir_text.with_types_in_line(ir_text.without_comments(text))
        if not self._arguments.debug_info:
            text = ir_text.without_locations(text)
        elif self._arguments.pretty_debug_info:
            text = with_pretty_locations(text)
        text = text.strip("\n")
        return f"{text}\n" if text else ""

    def _run_ours(self, text: str, filename: str, outcome: _Outcome) -> Module | None:
        """Runs a pipeline of ours alone; ``None`` after an error."""
        try:
            module = parse(text, filename)
            if not self._arguments.allow_unregistered:
                sys.stderr.write(_unknown_dialects(module, filename))
            if not self._steps and self._arguments.verify_each:
                module.verify()
        except SourceError as refused:
            outcome.diagnostics.append(of_error(refused))
            return None
        error, remarks = self._run_passes(module, self._steps)
        self._leave_to_host(self._steps, error)
        places = [remark.line for remark in remarks]
        if error is not None and not isinstance(error, VerifyError):
            places.append(error.line)
        if 0 in places:
            # Once more, over operations that all have a location.
            located = parse(text, filename)
            locate(located, filename)
            quiet = _Runner(
                _without_dumps(self._arguments), self._steps, self._host, uses_host=False
            )
            error_again, remarks = quiet._run_passes(located, self._steps)
            error = error_again if error is not None else None
        outcome.diagnostics += [_of_remark(remark) for remark in remarks]
        if error is not None:
            outcome.diagnostics += of_errors(error)
        return module if error is None else None

    def _run_passes(
        self, module: Module, steps: Sequence[Step]
    ) -> tuple[SourceError | None, tuple[Remark, ...]]:
        remarks: list[Remark] = []
        dumps = Dumps(self._arguments)
        before, after = dumps.for_manager
        for step in steps:
            assert isinstance(step, ExtStep)  # the callers give no other
            manager = PassManager(
                step.pipeline,
                verify_each=self._arguments.verify_each,
                print_before=before & {ALL, *step.names},
                print_after=after & {ALL, *step.names},
                print_sink=dumps.take,
                host_features=self._host.features,
            )
            try:
                report = manager.run(module)
            except SourceError as error:
                dumps.failed(module)
                return error, tuple(remarks)
            remarks += report.remarks
            self.timings += report.timings
            self.statistics += report.statistics
        return None, tuple(remarks)

    def _leave_to_host(self, steps: Sequence[Step], error: SourceError | None) -> None:
        """Stops a run that Triton can go on with.

        Raises:
            _LeftToHostError: A pass refused a module that Triton's pass may take.
        """
        if isinstance(error, NotModelledError) and not self._arguments.keep_comments:
            found = left_to_host(steps, error, self._arguments.provider, self._host)
            if found is not None:
                raise _LeftToHostError(error, found)

    def _run_left(self, left: _LeftToHostError, text: str, filename: str) -> _Outcome:
        """Runs the steps anew, one more of them Triton's."""
        outcome = _Outcome()
        name = left.error.pass_name
        try:
            outcome.text = self._run_with_host(left.steps, text, filename, outcome)
        except _LeftToHostError as again:
            return self._run_left(again, text, filename)
        aborted = f"aborted while running '{name}'"
        if any(aborted in diagnostic.message for diagnostic in outcome.diagnostics):
            # Ours says why.
            return _Outcome(diagnostics=of_errors(left.error))
        sys.stderr.write(
            f"triton-opt: remark: Triton's own '{name}' runs on this module: {left.error.message}\n"
        )
        return outcome

    def _run_with_host(
        self, wanted: Sequence[Step], text: str, filename: str, outcome: _Outcome
    ) -> str | None:
        """Runs a pipeline with Triton's parser, verifier and printer; ``None`` after an error."""
        outcome.diagnostics += _malformed_partitions(text, filename)
        if outcome.diagnostics:
            return None
        plain, name, host = "", filename, self._host
        steps = list(wanted)
        # Triton reads first, and verifies and prints what our last pass left.
        if not steps or isinstance(steps[0], ExtStep):
            steps.insert(0, HostStep(()))
        if isinstance(steps[-1], ExtStep):
            steps.append(HostStep(()))
        for step in steps:
            if isinstance(step, HostStep):
                printed = self._run_host_step(host, step, text, name, outcome)
                if printed is None:
                    return None
                text, plain = printed
            else:
                # Every operation has a location now, which is the user's.
                module = _parse_printed(host, text, name)
                error, remarks = self._run_passes(module, [step])
                self._leave_to_host(wanted, error)
                outcome.diagnostics += [_of_remark(remark) for remark in remarks]
                if error is not None:
                    outcome.diagnostics += of_errors(error)
                    return None
                text = str(module)
            if step.names:
                name = f"<module after '{step.names[-1]}'>"
        # With locations, Triton's binding prints the names in them as well; without, neither.
        keeps_names = self._arguments.names_from_locations
        if self._arguments.debug_info:
            output = text if keeps_names else ir_text.with_names_of(text, plain)
        else:
            output = ir_text.without_locations(text).strip("\n") + "\n" if keeps_names else plain
        if self._arguments.local_scope:
            output = ir_text.expand_aliases(_parse_printed(host, output, name))
        if self._arguments.debug_info and self._arguments.pretty_debug_info:
            output = with_pretty_locations(output)
        return output

    def _run_host_step(
        self, host: Host, step: HostStep, text: str, name: str, outcome: _Outcome
    ) -> tuple[str, str] | None:
        """The module with and without locations; ``None`` after an error."""
        dumps = Dumps(self._arguments)
        one_by_one = dumps.needs_states(step.names) or self._arguments.timing
        result = host.process.run(
            text,
            name,
            step.calls,
            allow_unregistered=self._arguments.allow_unregistered,
            one_by_one=one_by_one,
            failed_state=self._arguments.after_failure,
        )
        sys.stderr.write(result.other)
        if one_by_one:
            dumps.of_host(step.names, result)
            for call, seconds in zip(step.calls, result.seconds, strict=False):
                self.timings.append(PassTiming(call.name, MODULE, seconds, 0.0))
        outcome.diagnostics += result.diagnostics
        outcome.without_notes |= result.without_notes
        if result.text is None or result.plain is None:
            return None
        return readable(result.text), result.plain


def _unknown_dialects(module: Module, filename: str) -> str:
    """Notes about operations of dialects that no Triton has, one for each dialect."""
    first: dict[str, Operation] = {}
    for op in module.walk():
        dialect, dot, _ = op.name.partition(".")
        if dot and dialect not in _DIALECTS:
            first.setdefault(dialect, op)
    notes = []
    for dialect, op in first.items():
        line, column = place_in_text(op)
        message = (
            f"no release of Triton has the dialect '{dialect}'; its operations are kept as they "
            "are where Triton is not asked (-allow-unregistered-dialect: without this note)"
        )
        notes.append(
            Diagnostic(
                severity="note", message=message, filename=filename, line=line, column=column
            )
        )
    return "".join(f"{note}\n" for note in notes)


def _malformed_partitions(text: str, filename: str) -> list[Diagnostic]:
    """Returns errors of partitioned encodings, on which Triton would abort."""
    if "ttg.partitioned_shared" not in text:
        return []
    try:
        parse(text, filename).verify()
    except SourceError as error:
        return of_errors(error)
    return []


def _without_dumps(arguments: Arguments) -> Arguments:
    """The same command line without the printing of modules before and behind passes."""
    return replace(
        arguments, print_before=set(), print_after=set(), after_change=False, after_failure=False
    )


def _parse_printed(host: Host, text: str, name: str) -> Module:
    """Reads what Triton printed.

    Raises:
        ParseError: We cannot read it; the error says whose text it is.
    """
    try:
        return parse(text, name)
    except ParseError as error:
        version = host.process.library.version
        raise ParseError(
            f"the output of triton {version} cannot be read: {error.message}",
            filename=f"<printed by triton {version}>",
            line=error.line,
            column=error.column,
            source_line=error.source_line,
            notes=error.notes,
        ) from error


def _of_remark(remark: Remark) -> Diagnostic:
    return Diagnostic(
        severity=remark.severity,
        message=remark.message,
        filename=remark.filename if remark.filename != "<unknown>" else "",
        line=remark.line,
        column=remark.column,
        source_line=remark.source_line,
        notes=tuple(Diagnostic(severity="note", message=note) for note in remark.notes),
    )


def _statistics(counted: Sequence[Statistic]) -> str:
    sums: dict[tuple[str, str], int] = {}
    for one in counted:
        key = (one.pass_name, one.name)
        sums[key] = sums.get(key, 0) + one.count
    rows = [f"  {count:8}  {name}: {what}" for (name, what), count in sums.items()]
    return "\n".join(["===- pass statistics -===", *rows]) + "\n"


def _show(what: str, host: Host) -> str:
    if what == "version":
        version = f"triton {host.process.library.version}" if host.is_there else "no Triton"
        return f"triton-opt of triton-ext {__version__}, {version}\n"
    if what == "dialects":
        return f"Available Dialects: {','.join(_dialects(host))}\n"
    if what == "passes":
        names = set(registry.names()) | set(host.passes.passes if host.is_there else ())
        return "".join(f"{name}\n" for name in sorted(names))
    return _help(host)


def _dialects(host: Host) -> list[str]:
    """The dialects that the installed Triton reads; without one, those that some release reads."""
    if not host.is_there:
        return sorted(_DIALECTS)
    # The binding has no list: what it says to an operation that no dialect has tells it.
    asked = {name: host.process.run(f'"{name}.?"() : () -> ()\n', "") for name in _DIALECTS}
    return sorted(
        name
        for name, result in asked.items()
        if not any("unregistered dialect" in each.message for each in result.diagnostics)
    )


def _help(host: Host) -> str:
    lines = [_USAGE, "Options:"]
    for name, option in OPTIONS.items():
        if name == "h":
            continue
        dash = "-" if len(name) == 1 else "--"
        value = {"none": "", "optional": f"[={option.meta}]", "required": f"={option.meta}"}
        spelled = f"{dash}{name}" + (value[option.value] if option.meta else "")
        lines += _row(spelled, option.help)
    lines += ["", "Passes of triton-ext:"]
    for name in registry.names():
        try:
            lines += _row(f"--{name}", _own_summary(name))
            lines += _row("", _own_options(name))
        except Exception as error:  # A pass of another package may raise anything.
            said = str(error).partition("\n")[0] or type(error).__name__
            lines += _row(f"--{name}", f"(does not load: {said})")
    if host.is_there:
        lines += ["", f"Passes of triton {host.passes.version}:"]
        for name, known in host.passes.passes.items():
            options = sorted({option for adder in known.adders for option in adder.settable})
            lines += _row(f"--{name}", " ".join(f"{option}=..." for option in options))
    return "\n".join(lines) + "\n"


def _own_summary(name: str) -> str:
    """The first line of the docstring of a pass."""
    return (registry.lookup(name).__doc__ or "").strip().partition("\n")[0]


def _own_options(name: str) -> str:
    """The options of a pass with their defaults."""
    words = []
    for option in options_of(registry.lookup(name)):
        default = option.default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        words.append(f"{option.name}={shown}")
    return " ".join(words)


def _row(left: str, right: str) -> list[str]:
    if not right:
        return [f"  {left}"] if left else []
    if len(left) < 38:
        return [f"  {left:<38}{right}"]
    return [f"  {left}", f"{'':40}{right}"]


if __name__ == "__main__":
    sys.exit(main())
