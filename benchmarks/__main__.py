"""Command line of the benchmarks: picks the case and hands over to it."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.harness import emit

# Name of the case: the module with its add_arguments(parser) and run(arguments) -> exit code.
CASES = {
    "bank_conflicts": "benchmarks.bank_conflicts",
    "calls": "benchmarks.calls",
    "choosing": "benchmarks.choosing",
    "conv": "benchmarks.conv",
    "conv_fprop": "benchmarks.conv_fprop",
    "copy_widths": "benchmarks.copy_widths",
    "depthwise": "benchmarks.depthwise",
    "dgrad_sweep": "benchmarks.dgrad_sweep",
    "epilogue": "benchmarks.epilogue",
    "fp8": "benchmarks.fp8",
    "fprop_kinds": "benchmarks.fprop_kinds",
    "gluon_conv": "benchmarks.gluon_conv",
    "import_time": "benchmarks.import_time",
    "ir": "benchmarks.ir",
    "launch": "benchmarks.launch",
    "memcheck": "benchmarks.memcheck",
    "norm_calls": "benchmarks.norm_calls",
    "norms": "benchmarks.norms",
    "reproduce": "benchmarks.reproduce",
    "row_packing": "benchmarks.row_packing",
    "small_copies": "benchmarks.small_copies",
    "tune_suites": "benchmarks.tune_suites",
    "waits": "benchmarks.waits",
    "wgrad_sweep": "benchmarks.wgrad_sweep",
    "zoo": "benchmarks.zoo",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one case; returns 0, or another number where a result was wrong or a config failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
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
