"""``triton-ext lds``: where a kernel's buffers lie in shared memory, and what accesses cost.

Which buffer lies where from when to when, what is never used, how much is alive and how much there
is; and for each kind of access the banks that one instruction keeps busy, wavefront by wavefront:
as text, as an SVG picture, or as an HTML page.  The exit statuses are those of ``triton-opt``: 0 if
all went well, 1 after an error, 2 for a command line that cannot be run.  A kernel that needs more
than there is, is drawn as well; then the status is 1.
"""

from __future__ import annotations

import argparse
import sys

from triton_ext import backends
from triton_ext.analysis.memory_map import ModuleMap, SharedMemory
from triton_ext.analysis.memory_mapper import map_of
from triton_ext.ir import Module
from triton_ext.tools import pictures
from triton_ext.tools.command_line import CommandLineError
from triton_ext.tools.lds_text import render_text
from triton_ext.tools.lds_words import kib, warnings

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "draw where a kernel's buffers lie in shared memory, and its bank conflicts"
_VENDORS = {"cuda": "nvidia", "hip": "amd"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``lds``."""
    pictures.add_arguments(parser)
    pictures.add_host(parser)
    parser.add_argument(
        "--placement",
        choices=("ext", "triton"),
        default="ext",
        help="draw the offsets of allocate-shared-memory, or those of the installed Triton",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draws one file; returns the exit status."""
    return pictures.draw(arguments, lambda module: _show(module, arguments))


def _show(module: Module, arguments: argparse.Namespace) -> int:
    from triton_ext.tools.lds_svg import render_html, render_svg

    features, _ = pictures.host_of(arguments.host)
    if features is None and arguments.placement == "triton":
        raise CommandLineError(
            "argument --placement: which Triton places the buffers is not known: none is "
            "installed, or --host=none"
        )
    found = map_of(
        module,
        _memory(module, arguments.arch),
        function=arguments.function,
        features=features,
        as_triton=arguments.placement == "triton",
    )
    name = pictures.name_of(arguments)
    good = pictures.write(
        arguments,
        svg=lambda: render_svg(found, name),
        html=lambda: render_html(found, name, render_text(found, name)),
        text=lambda: render_text(found, name, colours=pictures.uses_colours(arguments)),
    )
    return 0 if good & _report(found, name) else 1


def _memory(module: Module, arch: str) -> SharedMemory:
    """The shared memory of the GPU that is asked for, or that the module is for."""
    target = module.op.attributes.get("ttg.target", "").strip('"')
    vendor, _, named = target.partition(":")
    wanted = arch or named
    if not wanted:
        module.op.fail(
            'expected a module for a GPU (\'ttg.target\' such as "cuda:90" or "hip:gfx1250")',
            "--arch says which GPU it is for, such as sm_90 or gfx1250",
        )
    if arch:
        vendor = "hip" if arch.startswith("gfx") else "cuda"
    found: SharedMemory | None = None
    if vendor in _VENDORS:
        found = backends.load(_VENDORS[vendor], "shared-memory")(wanted)
    if found is None:
        known = "known are NVIDIA's, such as sm_90, and gfx90a, gfx942, gfx950, gfx1250"
        if arch:
            raise CommandLineError(f"argument --arch: '{arch}' is no GPU that is known; {known}")
        module.op.fail(f"the shared memory of '{target}' is not known", known)
    return found


def _report(found: ModuleMap, name: str) -> bool:
    """Tells what is missing in the picture and what does not fit; returns whether all does."""
    for function in found.functions:
        for said in warnings(function):
            sys.stderr.write(f"{name}: warning: {said}\n")
    for function in found.too_big:
        missing = function.total - found.memory.bytes
        sys.stderr.write(
            f"{name}: error: out of {found.memory.name} of {found.memory.arch}: '{function.name}' "
            f"needs {function.total} bytes, there are {found.memory.bytes}, {missing} bytes are "
            f"missing; {kib(function.peak)} are alive at once\n"
        )
    return not found.too_big
