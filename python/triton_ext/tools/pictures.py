"""The command line of the tools that draw a file: what they read, and where pictures go.

The exit statuses are those of ``triton-opt``: 0 if all went well, 1 after an error, 2 for a command
line that cannot be run.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable

from triton_ext.errors import SourceError, TritonExtError
from triton_ext.ir import Module, parse
from triton_ext.ir.functions import FUNCTIONS, symbol_of
from triton_ext.passes.options import near
from triton_ext.tools import files
from triton_ext.tools.command_line import CommandLineError

__all__ = [
    "add_arguments",
    "add_host",
    "arch_of",
    "check_function",
    "draw",
    "host_of",
    "name_of",
    "uses_colours",
    "write",
]


class _Named(argparse.Action):
    """Stores a name; an empty one, as an unset variable of a shell leaves it, is refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Stores it."""
        if not values:
            raise argparse.ArgumentError(self, "expected a name, found an empty one")
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that all of them have."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", action=_Named, help="TTGIR; - is stdin"
    )
    parser.add_argument(
        "--arch", default="", action=_Named, help="the GPU, by default the module's ttg.target"
    )
    parser.add_argument("--function", default="", action=_Named, help="only this function")
    parser.add_argument("--svg", metavar="OUT", action=_Named, help="write a picture")
    parser.add_argument(
        "--html", metavar="OUT", action=_Named, help="write a page with the picture"
    )
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colours in the text"
    )


def add_host(parser: argparse.ArgumentParser) -> None:
    """Adds the option that says for which Triton to draw."""
    parser.add_argument(
        "--host",
        choices=("auto", "none"),
        default="auto",
        help="draw for the installed Triton, or for what holds on every release",
    )


def host_of(choice: str) -> tuple[frozenset[str] | None, str]:
    """The capabilities of the installed Triton and its name; ``None`` for no one in particular."""
    if choice == "none":
        return None, ""
    from triton_ext.host import HostError, detect, features

    try:
        return features(), f"triton {detect().version}"
    except HostError:
        return None, ""


def name_of(arguments: argparse.Namespace) -> str:
    """Returns the name of the input in errors."""
    name: str = arguments.file
    return "<stdin>" if name == "-" else name


def draw(arguments: argparse.Namespace, show: Callable[[Module], int]) -> int:
    """Reads the file and shows it; errors are printed.

    Args:
        arguments: The command line; ``command`` is the tool's name.
        show: Draws a module, and returns the exit status.

    Returns:
        The exit status.
    """
    name = name_of(arguments)
    if _has_clash(arguments):
        said = "FILE, --svg and --html have to be different files"
        sys.stderr.write(f"triton-ext {arguments.command}: error: {said}\n")
        return 2
    try:
        text = files.read(arguments.file)
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{name}: error: cannot be read: {error}\n")
        return 1
    try:
        if not text.strip():
            raise TritonExtError("the input is empty")
        module = parse(text, name)
        module.verify()
        check_function(arguments.function, module)
        return show(module)
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
    except CommandLineError as error:
        sys.stderr.write(f"triton-ext {arguments.command}: error: {error}\n")
        return 2
    except TritonExtError as error:
        sys.stderr.write(f"{name}: error: {error}\n")
    except Exception as error:  # As the pass manager does: a fault of ours is one error, too.
        sys.stderr.write(f"{_fault_of(arguments.command, error)}\n")
    return 1


def _has_clash(arguments: argparse.Namespace) -> bool:
    """Returns whether an output is the input, or the other output."""
    outputs = [output for output in (arguments.svg, arguments.html) if output]
    if len(outputs) == 2 and (outputs[0] == outputs[1] or files.are_same(*outputs)):
        return True
    return any(files.are_same(arguments.file, output) for output in outputs)


def _fault_of(command: str, error: Exception) -> SourceError:
    """An exception that nobody meant to raise, at the line that raised it."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return SourceError(
        f"'triton-ext {command}' failed: {type(error).__name__}: {error}",
        filename=raised.filename,
        line=raised.lineno or 0,
        column=1,
        source_line=raised.line,
        notes=(
            "this is a fault of triton-ext, not of the module",
            "to report it takes this message, the module, and what 'triton-ext doctor' prints",
        ),
    )


def arch_of(arguments: argparse.Namespace) -> str:
    """The GPU of ``--arch``, which may be spelled as modules spell it, ``hip:gfx950``."""
    given: str = arguments.arch
    vendor, _, arch = given.rpartition(":")
    return arch if vendor == ("hip" if arch.startswith("gfx") else "cuda") else given


def check_function(name: str, module: Module) -> None:
    """Refuses a function that a module has not.

    Raises:
        CommandLineError: It is none of the module.
    """
    functions = {symbol_of(op) or "" for op in module.walk() if op.name in FUNCTIONS}
    if name and name not in functions:
        raise CommandLineError(
            f"argument --function: expected a function of the module, found '{name}'; "
            f"{near(name, functions)}"
        )


def write(
    arguments: argparse.Namespace,
    *,
    svg: Callable[[], str],
    html: Callable[[], str],
    text: Callable[[], str],
) -> bool:
    """Writes the pictures that are asked for, or else the text to standard output.

    Returns:
        Whether all could be written.
    """
    if not (arguments.svg or arguments.html):
        return files.write(text(), "-")
    asked = ((svg, arguments.svg), (html, arguments.html))
    return files.write_all([(render(), output) for render, output in asked if output])


def uses_colours(arguments: argparse.Namespace) -> bool:
    """Returns whether the text is printed in colours."""
    # NO_COLOR: https://no-color.org
    is_welcome = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return bool(arguments.color == "always" or (arguments.color == "auto" and is_welcome))
