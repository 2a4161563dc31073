"""Command line of the benchmarks: picks the case and hands over to it."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys

from benchmarks.harness import emit

# Name of the case: the module with its add_arguments(parser) and run(arguments) -> exit code.
CASES = {
    "bank_conflicts": "benchmarks.bank_conflicts",
    "calls": "benchmarks.calls",
    "compare": "benchmarks.compare",
    "import_time": "benchmarks.import_time",
    "ir": "benchmarks.ir",
    "memcheck": "benchmarks.memcheck",
    "norms": "benchmarks.norms",
    "reproduce": "benchmarks.reproduce",
    "waits": "benchmarks.waits",
    "zoo": "benchmarks.zoo",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one case; returns 0, or another number where a result was wrong or a config failed."""
    # A line per case.
    lines = functools.partial(argparse.HelpFormatter, max_help_position=20, width=130)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=lines
    )
    cases = parser.add_subparsers(dest="case", required=True, metavar="case")
    modules = {name: importlib.import_module(path) for name, path in CASES.items()}
    for name, module in modules.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        case = cases.add_parser(name, help=summary, description=summary)
        module.add_arguments(case)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        # By the case, whose usage helps; argparse would show that of all.
        cases.choices[arguments.case].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = modules[arguments.case].run(arguments)
    except KeyboardInterrupt:
        emit("interrupted")
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
