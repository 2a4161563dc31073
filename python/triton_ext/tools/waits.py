"""``triton-ext waits``: the timeline of a kernel's asynchronous operations, to be looked at.

What is issued, what is in flight behind each operation, what each wait becomes and why, and what
the verifier says of it: as text, as an SVG picture, or as an HTML page.  The exit statuses are
those of ``triton-opt``: 0 if all went well, 1 after an error, 2 for a command line that cannot be
run.  A kernel whose waits are wrong is drawn, which is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from triton_ext import backends
from triton_ext.errors import SourceError, TritonExtError, UnsupportedError
from triton_ext.ir import Module, parse
from triton_ext.ir.functions import FUNCTIONS, symbol_of
from triton_ext.passes.options import near
from triton_ext.tools import files
from triton_ext.tools.command_line import CommandLineError
from triton_ext.tools.waits_text import render_text

if TYPE_CHECKING:
    from triton_ext.analysis.timeline import Timeline

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "draw what is in flight in a kernel, and what its asynchronous waits wait for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``waits``."""
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="TTGIR; - is stdin")
    parser.add_argument("--arch", default="", help="the GPU, by default the module's ttg.target")
    parser.add_argument("--function", default="", help="only this function")
    parser.add_argument(
        "--host",
        choices=("auto", "none"),
        default="auto",
        help="draw for the installed Triton, or for what is safe on every release",
    )
    parser.add_argument("--svg", metavar="OUT", help="write a picture")
    parser.add_argument("--html", metavar="OUT", help="write a page with the picture")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colours in the text"
    )


def run(arguments: argparse.Namespace) -> int:
    """Draws one file; returns the exit status."""
    name = "<stdin>" if arguments.file == "-" else arguments.file
    paths = [os.path.realpath(p) for p in (arguments.file, arguments.svg, arguments.html) if p]
    if len(set(paths)) < len(paths):
        text = "FILE, --svg and --html have to be different files"
        sys.stderr.write(f"triton-ext waits: error: {text}\n")
        return 2
    try:
        text = files.read(arguments.file)
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{name}: error: cannot be read: {error}\n")
        return 1
    try:
        module = parse(text, name)
        features, host = _host(arguments.host)
        timeline = _timeline(module, arguments, features)
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except CommandLineError as error:
        sys.stderr.write(f"triton-ext waits: error: {error}\n")
        return 2
    except TritonExtError as error:
        sys.stderr.write(f"{name}: error: {error}\n")
        return 1
    return 0 if _write_all(timeline, name, host, arguments) else 1


def _host(choice: str) -> tuple[frozenset[str] | None, str]:
    """The capabilities of the installed Triton, and what to call it."""
    nobody = "what is safe on every Triton"
    if choice == "none":
        return None, nobody
    from triton_ext.host import HostError, detect, features

    try:
        return features(), f"triton {detect().version}"
    except HostError:
        return None, nobody


def _timeline(
    module: Module, arguments: argparse.Namespace, features: frozenset[str] | None
) -> Timeline:
    _check_function(arguments.function, module)
    target = module.op.attributes.get("ttg.target", "").strip('"')
    vendor = target.partition(":")[0]
    if vendor not in ("", "hip") and not arguments.arch:
        module.op.fail(
            "expected a module for an AMD GPU ('ttg.target' such as \"hip:gfx1250\"), "
            f"found '{target}'",
            "groups of cp.async and mbarriers of other vendors are not drawn",
        )
    try:
        timeline: Timeline = backends.load("amd", "async-timeline")(
            module, arch=arguments.arch, features=features, function=arguments.function
        )
    except UnsupportedError as error:
        if arguments.arch:
            raise CommandLineError(f"argument --arch: {error}") from error
        raise module.op.error(str(error)) from error
    return timeline


def _check_function(name: str, module: Module) -> None:
    functions = {symbol_of(op) or "" for op in module.walk() if op.name in FUNCTIONS}
    if name and name not in functions:
        raise CommandLineError(
            f"argument --function: expected a function of the module, found '{name}'; "
            f"{near(name, functions)}"
        )


def _write_all(timeline: Timeline, name: str, host: str, arguments: argparse.Namespace) -> bool:
    from triton_ext.tools.waits_html import render_html
    from triton_ext.tools.waits_svg import render_svg

    good = True
    if arguments.svg:
        good &= files.write(render_svg(timeline, name, host), arguments.svg)
    if arguments.html:
        good &= files.write(render_html(timeline, name, host), arguments.html)
    if not (arguments.svg or arguments.html):
        colours = arguments.color == "always" or (arguments.color == "auto" and _is_terminal())
        good &= files.write(render_text(timeline, name, host, colours=colours), "-")
    return good


def _is_terminal() -> bool:
    # NO_COLOR: https://no-color.org
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not os.environ.get("NO_COLOR")
