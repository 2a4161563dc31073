"""``mlir-translate``: prints a module of the LLVM dialect as LLVM IR.

Lit files pipe what ``triton-opt`` lowered into it.  Triton's library, which has LLVM in it, does
the work.  It binds one translation of LLVM's tool of that name, ``--mlir-to-llvmir``; others are
refused by name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from triton_ext import __version__
from triton_ext.host import HostError
from triton_ext.host.process import HostProcess, find_library
from triton_ext.tools.files import read, write
from triton_ext.tools.streams import Parser, tool

__all__ = ["SUMMARY", "main"]

SUMMARY = "print a module of the LLVM dialect as LLVM IR (mlir-translate)"

_TOOL = "mlir-translate"


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit status: 1 if the module cannot be read or translated, 2 for a wrong command line.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not arguments.to_llvm_ir:
        parser.error("expected --mlir-to-llvmir, the one translation that there is")
    name = "<stdin>" if arguments.file == "-" else arguments.file
    try:
        text = read(arguments.file)
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{name}: error: cannot be read: {error}\n")
        return 1
    try:
        with HostProcess(find_library()) as host:
            result = host.run(text, name, to_llvm_ir=True)
    except HostError as error:
        sys.stderr.write(f"{_TOOL}: error: {error}\n")
        return 1
    for diagnostic in result.diagnostics:
        sys.stderr.write(f"{diagnostic}\n")
    if result.text is None:
        return 1
    return 0 if write(result.text, arguments.output) else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_TOOL,
        description="Prints a module of the LLVM dialect as LLVM IR, through Triton's library.",
        epilog="LLVM's own mlir-translate has more translations and options.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="-: standard input")
    parser.add_argument(
        *("-mlir-to-llvmir", "--mlir-to-llvmir"),
        action="store_true",
        dest="to_llvm_ir",
        help="the one translation that there is",
    )
    parser.add_argument("-o", metavar="FILE", dest="output", default="-", help="output; -: stdout")
    parser.add_argument("--version", action="version", version=f"{_TOOL} of {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
