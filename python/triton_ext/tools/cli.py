"""The console script ``triton-ext``: one entry point for the tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triton_ext import __version__
from triton_ext.tools import doctor, explain, lds, mlir_translate, opt, split_file, tune, waits
from triton_ext.tools.streams import Parser, tool

__all__ = ["main"]


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``triton-ext`` and returns its exit status.

    Args:
        argv: The arguments; those of the process by default.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # These read their command lines as LLVM's tools do, which argparse cannot.
    if given[:1] == ["opt"]:
        return opt.main(given[1:])
    if given[:1] == ["split-file"]:
        return split_file.main(given[1:])
    if given[:1] == ["mlir-translate"]:
        return mlir_translate.main(given[1:])
    parser = Parser(prog="triton-ext", description="Tools of triton-ext.")
    parser.add_argument("--version", action="version", version=f"triton-ext {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("doctor", help=doctor.SUMMARY, description=doctor.SUMMARY)
    doctor.add_arguments(command)
    command.set_defaults(run=doctor.run)
    commands.add_parser("opt", help=opt.SUMMARY)
    commands.add_parser("split-file", help=split_file.SUMMARY)
    commands.add_parser("mlir-translate", help=mlir_translate.SUMMARY)
    command = commands.add_parser("waits", help=waits.SUMMARY, description=waits.SUMMARY)
    waits.add_arguments(command)
    command.set_defaults(run=waits.run)
    command = commands.add_parser("lds", help=lds.SUMMARY, description=lds.SUMMARY)
    lds.add_arguments(command)
    command.set_defaults(run=lds.run)
    command = commands.add_parser("tune", help=tune.SUMMARY, description=tune.SUMMARY)
    tune.add_arguments(command)
    command.set_defaults(run=tune.run)
    command = commands.add_parser("explain", help=explain.SUMMARY, description=explain.SUMMARY)
    explain.add_arguments(command)
    command.set_defaults(run=explain.run)
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        # By the command, whose usage helps; argparse would show that of all.
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    status: int = arguments.run(arguments)
    return status
