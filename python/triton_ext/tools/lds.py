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
from dataclasses import replace

from triton_ext import backends
from triton_ext.analysis.allocation import ModuleAllocation
from triton_ext.analysis.memory_map import ModuleMap, SharedMemory
from triton_ext.analysis.memory_mapper import map_of
from triton_ext.errors import PassError
from triton_ext.host.diagnostics import of_error
from triton_ext.ir import Module
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import ttg
from triton_ext.ir.encodings import PartitionedSharedEncoding
from triton_ext.passes import error_at
from triton_ext.passes.shared_memory import check_capacity
from triton_ext.strings import lines_of
from triton_ext.tools import pictures
from triton_ext.tools.command_line import CommandLineError
from triton_ext.tools.input_places import locate, with_source
from triton_ext.tools.lds_text import render_text

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
            "argument --placement: 'triton' needs an installed Triton, and --host=auto"
        )
    memory = _memory(module, pictures.arch_of(arguments))
    _check_partitions(module, memory)
    found = map_of(
        module,
        memory,
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
    return 0 if good & _report(module, found, name) else 1


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
            raise CommandLineError(
                f"argument --arch: expected a known GPU, found '{arch}'; {known}"
            )
        module.op.fail(f"the shared memory of '{target}' is not known", known)
    return found


def _check_partitions(module: Module, memory: SharedMemory) -> None:
    """Refuses values in more partitions than there are.

    Raises:
        VerifyError: There is one.
    """
    table = AliasTable.of(module.aliases)
    for op in module.walk():
        encoding = None
        if op.name == ttg.LocalAllocOp.NAME:
            encoding = getattr(table.type(op.results[0].type), "encoding", None)
        if not isinstance(encoding, PartitionedSharedEncoding):
            continue
        count, buffer = encoding.num_partitions, op.results[0].name
        if not memory.partitions:
            op.fail(
                f"expected a GPU whose {memory.name} has physical partitions, such as gfx1250, for "
                f"the encoding #ttg.partitioned_shared of '{buffer}', found {memory.arch}"
            )
        if count > memory.partitions:
            op.fail(
                f"expected at most {memory.partitions} partitions, the number of {memory.arch}, "
                f"found {count} in the encoding of '{buffer}'"
            )


def _report(module: Module, found: ModuleMap, name: str) -> bool:
    """Tells what is missing in the picture and what does not fit; returns whether all does."""
    memory = found.memory
    unknown = [missing for function in found.functions for missing in function.unknown]
    if not (unknown or found.too_big):
        return True
    lines = lines_of(str(module))
    locate(module, name)
    problems = []
    for missing in unknown:
        said = f"the memory that '{missing.name}' needs while it runs is not shown: its size is not"
        error = error_at(missing.op, f"{said} known")
        problems.append(replace(of_error(error), severity="warning"))
    for function in found.too_big:
        made = function.allocation
        if made is None:
            continue
        try:
            whole = ModuleAllocation(functions={made.function: made}, total=made.total)
            check_capacity(whole, memory.bytes, f"{memory.name} of {memory.arch}")
        except PassError as error:
            problems.append(of_error(error))
    for problem in problems:
        sys.stderr.write(f"{with_source(problem, name, lines)}\n")
    return not found.too_big
