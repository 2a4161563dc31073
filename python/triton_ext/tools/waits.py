"""``triton-ext waits``: the timeline of a kernel's asynchronous operations, to be looked at.

What is issued, what is in flight behind each operation, what each wait becomes and why, and what
the verifier says of it: as text, as an SVG picture, or as an HTML page.  The exit statuses are
those of ``triton-opt``: 0 if all went well, 1 after an error, 2 for a command line that cannot be
run.  A kernel whose waits are wrong is drawn, which is no error.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from triton_ext import backends
from triton_ext.errors import UnsupportedError
from triton_ext.ir import Module
from triton_ext.tools import pictures
from triton_ext.tools.command_line import CommandLineError
from triton_ext.tools.waits_text import render_text

if TYPE_CHECKING:
    from triton_ext.analysis.timeline import Timeline

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "draw what is in flight in a kernel, and what its asynchronous waits wait for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``waits``."""
    pictures.add_arguments(parser)
    pictures.add_host(parser)


def run(arguments: argparse.Namespace) -> int:
    """Draws one file; returns the exit status."""
    return pictures.draw(arguments, lambda module: _show(module, arguments))


def _show(module: Module, arguments: argparse.Namespace) -> int:
    from triton_ext.tools.waits_html import render_html
    from triton_ext.tools.waits_svg import render_svg

    features, host = pictures.host_of(arguments.host)
    host = host or "what is safe on every Triton"
    timeline = _timeline(module, arguments, features)
    name = pictures.name_of(arguments)
    colours = pictures.uses_colours(arguments)
    good = pictures.write(
        arguments,
        svg=lambda: render_svg(timeline, name, host),
        html=lambda: render_html(timeline, name, host),
        text=lambda: render_text(timeline, name, host, colours=colours),
    )
    return 0 if good else 1


def _timeline(
    module: Module, arguments: argparse.Namespace, features: frozenset[str] | None
) -> Timeline:
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
            module, arch=pictures.arch_of(arguments), features=features, function=arguments.function
        )
    except UnsupportedError as error:
        if arguments.arch:
            raise CommandLineError(f"argument --arch: {error}") from error
        raise module.op.error(str(error)) from error
    return timeline
