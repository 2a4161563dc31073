"""``triton-ext explain``: its options; what it does needs torch, as ``ops.api.explain``."""

from __future__ import annotations

import argparse
import sys

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "say which kernel computes a convolution, and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    parser.add_argument(
        "shape",
        help="a convolution such as '32,256,56,56 -> 256 k3 g32': batch, Ci and size of x; Co; "
        "filter k; stride s, dilation d, padding p (half the filter) and groups g",
    )
    parser.add_argument(
        "--direction",
        nargs="+",
        choices=("fprop", "dgrad", "wgrad"),
        default=["fprop"],
        help="fprop by default",
    )
    parser.add_argument("--dtype", default="float16", help="of the operands (float16)")
    parser.add_argument(
        "--gpu", choices=("h200", "h100"), default="h200", help="the GPU, which need not be there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status; 1 where no kernel takes a direction."""
    try:
        from triton_ext.ops.tuning import command
    except ImportError as error:
        sys.stderr.write(f"triton-ext explain: error: it needs torch: {error}\n")
        return 2
    return command.explain(arguments)
