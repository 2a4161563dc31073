"""The command line of ``triton-opt``, read as LLVM's command line library reads it.

One dash or two; a value behind ``=`` or, where one is needed, as the next argument; everything that
is no option of the tool is a pass, with its options behind ``=``; passes run in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from triton_ext.errors import PipelineError, TritonExtError
from triton_ext.passes import registry
from triton_ext.passes.options import near
from triton_ext.passes.pipeline import MODULE, PassSpec, Pipeline, parse_pipeline
from triton_ext.tools.mlir_options import REFUSED

__all__ = ["OPTIONS", "Arguments", "CommandLineError", "Option", "parse_arguments"]

DEFAULT_MARKER = "// -----"

#: In the names to print before or after: every pass.
ALL = "*"


class CommandLineError(TritonExtError):
    """An argument that cannot be understood."""


@dataclass(slots=True, kw_only=True)
class Arguments:
    """The options and the pipeline of a command line.

    Attributes:
        file: The input; ``-``: standard input.
        output: The output; ``-``: standard output.
        split_marker: Line that separates modules; ``None``: the input is one module.
        output_marker: The line that is printed between the modules.
        verify_diagnostics: ``all``, ``only-expected``, or empty.
        allow_unregistered: Whether operations of unknown dialects are accepted.
        debug_info: Whether locations are printed.
        pretty_debug_info: Whether they are printed in the short form, which cannot be read again.
        local_scope: Whether aliases are printed as what they stand for.
        print_before: Names of passes to print the module before; ``*``: all.
        print_after: The same for behind.
        after_change: Whether a module is printed behind a pass only if the pass changed it.
        after_failure: Whether it is printed behind a pass only if the pass failed.
        timing: Whether the time of each pass is printed.
        statistics: Whether what the passes counted is printed.
        names_from_locations: Whether values are named by the names in their locations.
        debug: Whether Triton's passes print their log.
        debug_only: The only types of messages that are in it, with commas; empty for all.
        dump_pipeline: Whether the pipeline is printed before it runs.
        run_reproducer: Whether the pipeline is that of the reproducer in the input.
        verify_each: Whether the module is verified behind each of our passes.
        provider: ``auto``, ``host`` or ``ext``.
        host: ``auto``, ``always`` or ``none``.
        keep_comments: Whether comments and what no pass touched are printed as they were.
        show: ``help``, ``version``, ``passes``, ``dialects``, or empty to run.
        pipeline: The passes to run.
    """

    file: str = "-"
    output: str = "-"
    split_marker: str | None = None
    output_marker: str = DEFAULT_MARKER
    verify_diagnostics: str = ""
    allow_unregistered: bool = False
    debug_info: bool = False
    pretty_debug_info: bool = False
    local_scope: bool = False
    print_before: set[str] = field(default_factory=set)
    print_after: set[str] = field(default_factory=set)
    after_change: bool = False
    after_failure: bool = False
    timing: bool = False
    statistics: bool = False
    names_from_locations: bool = False
    debug: bool = False
    debug_only: str = ""
    dump_pipeline: bool = False
    run_reproducer: bool = False
    verify_each: bool = True
    provider: str = "auto"
    host: str = "auto"
    keep_comments: bool = False
    show: str = ""
    pipeline: Pipeline = field(default_factory=lambda: Pipeline(MODULE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of the tool.

    Attributes:
        help: One line.
        value: ``none`` (a flag), ``optional`` (only behind ``=``) or ``required``.
        meta: Name of the value in the help.
        choices: The allowed values; empty: any.
        apply: Stores the value; a flag that is given without one has ``""``.
    """

    help: str
    value: str = "none"
    meta: str = ""
    choices: tuple[str, ...] = ()
    apply: Callable[[Arguments, str], None]


def _flag(name: str, text: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        setattr(arguments, name, value != "false")

    return Option(help=text, choices=("true", "false"), apply=apply)


def _store(name: str, text: str, *, meta: str = "", choices: tuple[str, ...] = ()) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        setattr(arguments, name, value)

    meta = meta or "|".join(choices)
    return Option(help=text, value="required", meta=meta, choices=choices, apply=apply)


def _optional(name: str, default: str, text: str, meta: str, *choices: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        setattr(arguments, name, value or default)

    return Option(help=text, value="optional", meta=meta, choices=choices, apply=apply)


def _names(name: str, text: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        parts = (registry.canonical(part) for part in value.split(",") if part)
        getattr(arguments, name).update(parts)

    return Option(help=text, value="required", meta="PASS,...", apply=apply)


def _every(name: str, text: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        if value != "false":
            getattr(arguments, name).add(ALL)

    return Option(help=text, choices=("true", "false"), apply=apply)


def _show(what: str, text: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        arguments.show = what

    return Option(help=text, apply=apply)


def _without_effect(text: str, *choices: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        """Does nothing: the tool always behaves so."""

    return Option(help=text, value="optional", meta="|".join(choices), choices=choices, apply=apply)


def _always_off(name: str, text: str) -> Option:
    def apply(arguments: Arguments, value: str) -> None:
        if value != "false":
            raise CommandLineError(f"option '--{name}' can only be false here: {text}")

    return Option(help="only false: " + text, value="optional", meta="false", apply=apply)


_ALWAYS = "accepted; it is always so here"

OPTIONS: dict[str, Option] = {
    "o": _store("output", "output; - (the default): standard output", meta="FILE"),
    "split-input-file": _optional(
        "split_marker", DEFAULT_MARKER, "take the parts between marker lines as modules", "MARKER"
    ),
    "output-split-marker": _store("output_marker", "what is printed between them", meta="MARKER"),
    "verify-diagnostics": _optional(
        "verify_diagnostics",
        "all",
        "compare diagnostics with the expected-... comments of the input",
        "all|only-expected",
        "all",
        "only-expected",
    ),
    "allow-unregistered-dialect": _flag(
        "allow_unregistered", "accept operations of unknown dialects"
    ),
    "pass-pipeline": Option(
        help="the passes to run, as in builtin.module(a{x=1},tt.func(b))",
        value="required",
        meta="TEXT",
        apply=lambda arguments, value: None,  # by parse_arguments
    ),
    "pass-provider": _store(
        "provider",
        "who runs a pass that both have: this package (auto, ext) or Triton (host)",
        choices=("auto", "host", "ext"),
    ),
    "host": _store(
        "host",
        "Triton reads, verifies and prints if its passes run or no pass does (auto), always, or "
        "never (none)",
        choices=("auto", "always", "none"),
    ),
    "verify-each": _flag("verify_each", "verify the module behind each pass (the default)"),
    "keep-comments": _flag("keep_comments", "print comments and blank lines as they were"),
    "mlir-print-debuginfo": _flag("debug_info", "print locations"),
    "mlir-pretty-debuginfo": _flag(
        "pretty_debug_info", "with --mlir-print-debuginfo: print them for reading, a.py:3:7"
    ),
    "mlir-print-local-scope": _flag("local_scope", "print what aliases stand for"),
    "mlir-use-nameloc-as-prefix": _flag(
        "names_from_locations", "name values by the names in their locations"
    ),
    "mlir-print-ir-before": _names("print_before", "print the module before these passes"),
    "mlir-print-ir-after": _names("print_after", "print the module behind these passes"),
    "mlir-print-ir-before-all": _every("print_before", "print the module before each pass"),
    "mlir-print-ir-after-all": _every("print_after", "print the module behind each pass"),
    "mlir-print-ir-after-change": _flag(
        "after_change", "print it behind a pass only if the pass changed it"
    ),
    "mlir-print-ir-after-failure": _flag(
        "after_failure", "print it behind a pass only if the pass failed"
    ),
    "mlir-print-ir-module-scope": _without_effect(_ALWAYS, "true", "false"),
    "mlir-disable-threading": _without_effect(_ALWAYS, "true", "false"),
    "mlir-print-op-on-diagnostic": _always_off(
        "mlir-print-op-on-diagnostic", "diagnostics show the line of the input"
    ),
    "mlir-print-stacktrace-on-diagnostic": _always_off(
        "mlir-print-stacktrace-on-diagnostic", "Triton's binding does not offer it"
    ),
    "mlir-timing": _flag("timing", "print the time of each pass"),
    "mlir-timing-display": _without_effect("accepted; there is one form", "list", "tree"),
    "mlir-pass-statistics": _flag("statistics", "print what our passes counted"),
    "mlir-pass-statistics-display": _without_effect(
        "accepted; there is one form", "list", "pipeline"
    ),
    "dump-pass-pipeline": _flag("dump_pipeline", "print the pipeline before it runs"),
    "run-reproducer": _flag(
        "run_reproducer", "run the pipeline of the reproducer that stands in the input"
    ),
    "debug": _flag("debug", "print what Triton's passes and its LLVM log"),
    "debug-only": _store("debug_only", "the same of these DEBUG_TYPEs only", meta="TYPE,..."),
    "show-dialects": _show("dialects", "print the names of the dialects that can be read"),
    "list-passes": _show("passes", "print the names of the passes"),
    "help": _show("help", "print this"),
    "h": _show("help", "print this"),
    "version": _show("version", "print the version"),
}


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Reads a command line.

    Raises:
        CommandLineError: An option of the tool is used in a wrong way.
        PipelineError: The text of a pipeline or of a pass's options cannot be read.
    """
    arguments = Arguments()
    specs: list[PassSpec] = []
    pipeline: Pipeline | None = None
    files: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "-" or not word.startswith("-"):
            files.append(word)
            continue
        if word == "--":
            files.extend(rest)
            break
        name, equals, value = word.lstrip("-").partition("=")
        option = OPTIONS.get(name)
        if option is None:
            _refuse_unknown(word, name)
            specs.append(_pass(name, value))
            continue
        if option.value == "none" and not option.choices and equals:
            raise CommandLineError(f"option '{word}' takes no value")
        if option.value == "required" and not equals:
            found = next(rest, None)
            if found is None:
                raise CommandLineError(f"option '{word}' needs a value: {option.meta}")
            value = found
        if option.choices and (value or equals) and value not in option.choices:
            raise CommandLineError(
                f"option '{word}' takes {' or '.join(option.choices)}, found '{value}'"
            )
        if name == "o":
            _check_output(arguments, word, value)
        if name == "pass-pipeline":
            if pipeline is not None:
                raise CommandLineError("option '--pass-pipeline' is given twice")
            if not value.strip():
                raise CommandLineError(
                    f"option '{word}' needs a pipeline; the empty one is 'builtin.module()'"
                )
            pipeline = _present(parse_pipeline(value))
        option.apply(arguments, value)
    if len(files) > 1:
        raise CommandLineError(f"more than one input: {', '.join(files)}")
    if pipeline is not None and specs:
        raise CommandLineError(
            f"'--pass-pipeline' cannot be used together with single passes ('-{specs[0].name}')"
        )
    arguments.file = files[0] if files else "-"
    if pipeline is None:
        pipeline = _present(Pipeline(MODULE, tuple(specs)))
    arguments.pipeline = pipeline
    _check(arguments)
    return arguments


def _present(pipeline: Pipeline) -> Pipeline:
    """Returns a pipeline with the present names of passes that are given by former names."""
    items = [
        _present(item)
        if isinstance(item, Pipeline)
        else replace(item, name=registry.canonical(item.name))
        for item in pipeline.items
    ]
    return replace(pipeline, items=tuple(items))


def _check_output(arguments: Arguments, word: str, value: str) -> None:
    """Refuses a second output, which would silently leave the first one out, and one without name.

    Standard output as the second one is none, as it is the default.
    """
    if not value:
        raise CommandLineError(
            f"option '{word}' needs the name of a file, or - for standard output"
        )
    if arguments.output != "-":
        raise CommandLineError(
            f"option '{word}' is given twice: '{arguments.output}' and '{value}'"
        )


def _refuse_unknown(word: str, name: str) -> None:
    """Refuses an option of MLIR's own tool, which would be taken for a pass."""
    if name in REFUSED:
        raise CommandLineError(f"option '{word}' is not supported: {REFUSED[name]}")
    if name.startswith("mlir-"):
        raise CommandLineError(f"there is no option '{word}'; {near(name, OPTIONS)}")


def _check(arguments: Arguments) -> None:
    if arguments.host == "none" and arguments.provider == "host":
        raise CommandLineError("'--host=none' leaves nothing to '--pass-provider=host'")
    if arguments.host == "none" and arguments.names_from_locations:
        raise CommandLineError(
            "'--mlir-use-nameloc-as-prefix' is for Triton's printer, which '--host=none' leaves out"
        )
    if arguments.host == "none" and (arguments.debug or arguments.debug_only):
        raise CommandLineError(
            "'--debug' prints what Triton's passes log, which '--host=none' leaves out"
        )
    if arguments.keep_comments and (arguments.host == "always" or arguments.names_from_locations):
        other = "--host=always"
        if arguments.names_from_locations:
            other = "--mlir-use-nameloc-as-prefix"
        raise CommandLineError(f"'--keep-comments' prints our text, '{other}' that of Triton")


def _pass(name: str, options: str) -> PassSpec:
    """``-name`` or ``-name="a=1 b=2"``."""
    if not options:
        return parse_spec(name)
    inner = options[1:-1] if options[0] == "{" and options[-1] == "}" else options
    return parse_spec(f"{name}{{{inner}}}")


def parse_spec(text: str) -> PassSpec:
    """Reads one pass with its options.

    Raises:
        PipelineError: The text is something else.
    """
    items = parse_pipeline(text).items
    if len(items) != 1 or not isinstance(items[0], PassSpec):
        raise PipelineError(f"expected one pass with its options, found '{text}'")
    return items[0]
