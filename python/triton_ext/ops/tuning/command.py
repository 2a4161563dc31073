"""The commands ``triton-ext tune`` and ``explain``; ``triton_ext.tools`` has their options."""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from triton_ext.errors import TritonExtError, UnsupportedError, for_terminal
from triton_ext.ops.api.explain import explain_case, fields_of
from triton_ext.ops.core.case import DIRECTIONS, Case, Direction
from triton_ext.ops.core.device import KNOWN, device_of
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.core.refusals import DTYPES
from triton_ext.ops.core.tables import (
    Table,
    TableError,
    kind_of,
    read_table,
    user_folder,
    user_path,
)
from triton_ext.ops.tuning.collect import Calls, check_inputs, collect, parse_shape
from triton_ext.ops.tuning.measure import CompilePool, default_jobs
from triton_ext.ops.tuning.runs import COMPILE_SECONDS, survey, tune
from triton_ext.ops.tuning.store import check_writable, reload, update_table

#: Name of the module of a model's file, which its classes have in ``__module__``.
_MODEL_MODULE = "__triton_ext_model__"


class CommandError(TritonExtError):
    """A command line, or a file that it names, that cannot be used."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        The exit status: 1 where a candidate failed or a convolution was not reached in the time, 2
        for a wrong call.
    """
    try:
        if arguments.merge:
            return _merge(arguments)
        # Words that are wrong on any machine, before a GPU is searched for.
        if not arguments.model and not arguments.shapes:
            raise CommandError("expected a model's file, --shapes or --merge")
        arguments.dtype = _dtype(arguments.dtype) if arguments.dtype else None
        arguments.shapes = [_problem(text) for text in arguments.shapes or ()]
        if arguments.model:
            _check_file(arguments.model)
        return _dry_run(arguments) if arguments.dry_run else _tune(arguments)
    except (CommandError, UnsupportedError, TableError) as error:
        sys.stderr.write(f"triton-ext tune: error: {for_terminal(error)}\n")
        return 2


def explain(arguments: argparse.Namespace) -> int:
    """Runs ``triton-ext explain``; returns 1 where no kernel takes a direction."""
    try:
        dtype, problem = _dtype(arguments.dtype), _problem(arguments.shape)
    except CommandError as error:
        sys.stderr.write(f"triton-ext explain: error: {for_terminal(error)}\n")
        return 2
    found = [
        explain_case(Case(direction=each, problem=problem, dtype=dtype), KNOWN[arguments.gpu])
        for each in arguments.direction
    ]
    sys.stdout.write("\n\n".join(map(str, found)) + "\n")
    return int(any(each.refusals for each in found))


def _merge(arguments: argparse.Namespace) -> int:
    """Merges files into the one of ``--out``, or each into the user's table of its GPU."""
    if arguments.model or arguments.shapes or arguments.dry_run:
        raise CommandError("--merge takes files only: no model, no shapes, no --dry-run")
    tables = []
    for path in arguments.merge:
        table = read_table(path)
        if table is None:
            raise CommandError(f"{path}: there is no such file")
        tables.append(table)
    gpus = sorted({table.gpu for table in tables})
    if arguments.out is not None and len(gpus) > 1:
        raise CommandError(f"--out takes tables of one GPU, these are of {', '.join(gpus)}")
    for table in tables:
        _write(arguments.out or user_path(table.gpu), table)
    reload()
    return 0


def _write(path: pathlib.Path, table: Table) -> None:
    """Merges choices into a file."""
    try:
        result = update_table(path, table)
    except OSError as error:
        raise _unwritable(path, error) from error
    sys.stdout.write(f"{path}: {len(result.entries)} choices for {table.gpu}\n")


def _unwritable(path: pathlib.Path, error: OSError) -> CommandError:
    return CommandError(f"{path}: cannot be written: {error.strerror or error}")


def _dry_run(arguments: argparse.Namespace) -> int:
    """Lists what would be measured, on the GPU here or an H200; compiles and writes nothing."""
    device, note = KNOWN["h200"], ", which is assumed: there is no GPU"
    if torch.cuda.is_available():
        device, note = device_of(torch.device("cuda"), "tune"), ""
    found = survey(_cases(arguments), device, arguments.candidates, arguments.force)
    for each in found:
        lines = [f"  {kind_of(config):<16}{fields_of(config)}" for config in each.configs]
        sys.stdout.write("\n".join([str(each), *lines]) + "\n")
    counts = [len(each.configs) for each in found if each.configs]
    jobs = arguments.jobs or default_jobs()
    seconds = math.ceil(sum(counts) / jobs) * COMPILE_SECONDS
    sys.stdout.write(
        f"{len(counts)} of {len(found)} convolutions to measure, {sum(counts)} configurations to "
        f"compile, about {seconds:.0f} s with --jobs {jobs}; for {device.name}{note}\n"
    )
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        try:
            check_writable(arguments.out)
        except OSError as error:
            raise _unwritable(arguments.out, error) from error
    is_kept = _is_kept(arguments.out)
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise UnsupportedError(
            "there is no GPU to measure on: torch.cuda.is_available() is false "
            f"(torch {torch.__version__}, CUDA {built})"
        )
    with CompilePool(arguments.jobs) as pool:
        # Their imports take as long as the model.
        pool.start()
        report = tune(
            _cases(arguments),
            rounds=arguments.rounds,
            count=arguments.candidates,
            force=arguments.force,
            seconds=arguments.time_limit,
            save=is_kept,
            progress=not arguments.quiet,
            compiler=pool,
        )
    shown = any(outcome.is_new for outcome in report.outcomes) and not arguments.quiet
    # Outcomes that were measured were shown one by one.
    text = "\n".join([*report.failures, report.summary]) if shown else str(report)
    sys.stdout.write(f"{text}\n")
    if report.outcomes and is_kept:
        sys.stdout.write(f"kept in {user_path(report.gpu)}\n")
    if arguments.out is not None:
        _write(arguments.out, report.table)
    return int(bool(report.failures) or report.unreached > 0)


def _is_kept(out: pathlib.Path | None) -> bool:
    """Tells whether the user's table can be written; refuses where choices would go nowhere."""
    try:
        folder = user_folder()
        check_writable(folder / "table.json")
    except TableError as error:
        problem = str(error)
    except OSError as error:
        reason = error.strerror or error
        problem = f"{folder}: choices cannot be kept: {reason}; set TRITON_EXT_TUNING_DIR"
    else:
        return True
    if out is None:
        raise CommandError(problem)
    text = for_terminal(f"{problem}; {out} alone is written")
    sys.stderr.write(f"triton-ext tune: warning: {text}\n")
    return False


def _directions(arguments: argparse.Namespace) -> tuple[Direction, ...]:
    if arguments.direction:
        return tuple(each for each in DIRECTIONS if each in arguments.direction)
    if arguments.training:
        return DIRECTIONS
    return ("fprop", "dgrad") if arguments.model else ("fprop",)


def _dtype(name: str) -> torch.dtype:
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES["fprop"]]
    if name not in names:
        raise CommandError(f"dtype '{name}': expected one of {', '.join(names)}")
    return DTYPES["fprop"][names.index(name)]


def _problem(text: str) -> ConvProblem:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _cases(arguments: argparse.Namespace) -> list[Case]:
    dtype, directions, calls = arguments.dtype, _directions(arguments), Calls()
    for problem in arguments.shapes:
        for direction in directions:
            calls.add(Case(direction=direction, problem=problem, dtype=dtype or torch.bfloat16))
    if arguments.model:
        training = arguments.training or "wgrad" in directions
        met = _collected(*load_model(arguments.model), training)
        met = met if dtype is None else met.in_dtype(dtype)
        for case in (*met.cases, *met.refused):
            if case.direction in directions:
                calls.add(case)
    for case, refusal in calls.refused.items():
        sys.stderr.write(for_terminal(f"not tuned: {case}: {refusal}") + "\n")
    return calls.cases


def _collected(model: torch.nn.Module, example_inputs: Any, training: bool) -> Calls:
    try:
        return collect(model, example_inputs, training=training)
    except Exception as error:  # whatever a model does that fake tensors cannot
        text = str(error).partition("\n")[0][:200]
        reason = for_terminal(f"{type(error).__name__}: {text}")
        sys.stderr.write(f"fake-tensor run failed ({reason}); running the model for real\n")
    try:
        return collect(model, example_inputs, training=training, fake=False)
    except Exception as error:  # whatever a model does that its inputs do not fit
        raise CommandError(
            f"the model does not run on its example_inputs: {type(error).__name__}: {error}"
        ) from error


def _check_file(path: pathlib.Path) -> None:
    if path.is_dir():
        raise CommandError(f"{path}: is a folder: expected a model's Python file")
    if not path.is_file():
        raise CommandError(f"{path}: there is no such file")


def load_model(path: pathlib.Path) -> tuple[torch.nn.Module, Sequence[Any]]:
    """Returns the model and its inputs of a Python file.

    It has ``model`` and ``example_inputs``, or ``build()``, which returns both.

    Raises:
        CommandError: There is no such file, it cannot be run, it defines neither, or they are
            nothing that a model is run on.
    """
    _check_file(path)
    spec = importlib.util.spec_from_file_location(_MODEL_MODULE, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look for the module of a class there.
    sys.modules[_MODEL_MODULE] = module
    # Files beside it, as where Python runs it.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
        build = getattr(module, "build", None)
        names = [name for name in ("model", "example_inputs") if hasattr(module, name)]
        found = build() if build is not None else tuple(getattr(module, name) for name in names)
    except (Exception, SystemExit) as error:  # whatever the file does
        raise CommandError(
            f"{path}: {_place(error, path)}{type(error).__name__}: {error}"
        ) from error
    finally:
        if folder in sys.path:  # whatever the file did to it
            sys.path.remove(folder)
    if not isinstance(found, tuple) or len(found) != 2:
        text = "defines neither model and example_inputs nor build(), which returns both"
        if build is not None:
            text = f"build() returned {type(found).__name__}: expected the model and its "
            text += "example_inputs"
        raise CommandError(f"{path}: {text}")
    model, example_inputs = found
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{path}: the model is a {type(model).__name__}: expected a Module")
    try:
        check_inputs(str(path), model, example_inputs)
    except TypeError as error:
        raise CommandError(str(error)) from error
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    return model, example_inputs


def _place(error: BaseException, path: pathlib.Path) -> str:
    """Returns the line of a file at which an error came out; empty where it has none."""
    name = str(path.absolute())
    if isinstance(error, SyntaxError) and error.filename == name:
        return f"line {error.lineno}: "
    lines = [
        each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == name
    ]
    return f"line {lines[-1]}: " if lines else ""
