"""The console script ``triton-ext``: one entry point for the tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from triton_ext import __version__
from triton_ext.tools import doctor, opt

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``triton-ext`` and returns its exit status.

    Args:
        argv: The arguments; those of the process by default.
    """
    parser = argparse.ArgumentParser(prog="triton-ext", description="Tools of triton-ext.")
    parser.add_argument("--version", action="version", version=f"triton-ext {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, tool in (("doctor", doctor), ("opt", opt)):
        command = commands.add_parser(name, help=tool.SUMMARY, description=tool.SUMMARY)
        tool.add_arguments(command)
        command.set_defaults(run=tool.run)
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status
