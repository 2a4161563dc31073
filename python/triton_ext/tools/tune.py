"""``triton-ext tune``: its options; what it does needs torch and is ``triton_ext.ops.tuning``."""

from __future__ import annotations

import argparse
import pathlib
import sys

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "measure tile configurations for a model's convolutions and keep the fastest"


def _count(text: str) -> int:
    """Reads a number of things, of which there is at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found '{text}'")
    return int(text)


def _seconds(text: str) -> float:
    """Reads a time, which is positive."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, found '{text}'")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    parser.add_argument(
        "model",
        nargs="?",
        type=pathlib.Path,
        metavar="MODEL.py",
        help="defines model and example_inputs, or build() that returns both",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        metavar="SHAPE",
        help="convolutions such as 32x64x56x56_128_k3x3_s2x2: batch, Ci, size; Co; filter; stride",
    )
    parser.add_argument(
        "--merge",
        nargs="+",
        type=pathlib.Path,
        metavar="FILE",
        help="measure nothing: take the choices of these files into --out or your own table",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FILE", help="also write the choices to a file to share"
    )
    parser.add_argument(
        "--direction",
        nargs="+",
        choices=("fprop", "dgrad", "wgrad"),
        help="fprop by default (of a model also what its transposed convolutions call)",
    )
    parser.add_argument(
        "--training", action="store_true", help="run the model's backward, and tune all directions"
    )
    parser.add_argument("--dtype", help="of the operands, instead of the model's: bfloat16")
    parser.add_argument("--jobs", type=_count, help="compiling processes (one per core but one)")
    parser.add_argument("--candidates", type=_count, default=6, help="configurations each (6)")
    parser.add_argument(
        "--rounds", type=_count, default=6, help="measurements of each (6); even is fair"
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="S",
        help="seconds after which nothing more is measured; exits with 1 where something is left",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list what would be measured; needs no GPU"
    )
    parser.add_argument("--force", action="store_true", help="measure what is known, too")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    try:
        from triton_ext.ops.tuning import command
    except ImportError as error:
        sys.stderr.write(f"triton-ext tune: error: it needs torch: {error}\n")
        return 2
    return command.run(arguments)
