"""``test-tritonamdgpu-range-analysis``: prints ranges of integers as remarks, for tests.

The remarks have the form of upstream's pass of this name: ``unsigned : [..] signed : [..]`` for
function arguments and results, ``non-neg``, ``result is true`` or ``result is false`` for
comparisons, and ``inferred total trip count: ..`` for loops.  The pass does not change the module.

The module attributes ``test.pid-bound-x``, ``-y`` and ``-z`` give the greatest program ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.ranges import RangeAnalysis
from triton_ext.backends.amd.analysis.ranges import RANGE_RULES
from triton_ext.ir import Module, Operation
from triton_ext.ir.attribute_values import IntegerAttr, parse_attribute
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext
from triton_ext.passes.places import error_at

__all__ = ["PrintRanges"]

_LOOPS = ("scf.for", "scf.while")


@dataclass(frozen=True, slots=True)
class PrintRanges(Pass):
    """Prints the range of every integer argument and result."""

    name: ClassVar[str] = "test-tritonamdgpu-range-analysis"

    def run(self, module: Module, context: PassContext) -> None:
        """Emits the remarks.

        Raises:
            PassError: A module attribute is not a valid program id.
            VerifyError: An operation is malformed.
        """
        analysis = RangeAnalysis.of(module, RANGE_RULES, _programs(module))
        for op in module.walk():
            if op.name in FUNCTIONS and op.regions:
                _print_arguments(op, analysis, context)
        for op in module.walk():
            _print_results(op, analysis, context)


def _programs(module: Module) -> dict[int, int]:
    """Returns the greatest program ids that the module's attributes give, by axis."""
    found = {}
    for axis, letter in enumerate("xyz"):
        name = f"test.pid-bound-{letter}"
        text = module.op.attributes.get(name)
        if text is None:
            continue
        value = parse_attribute(text)
        if not isinstance(value, IntegerAttr) or value.number < 0:
            raise error_at(
                module.op, f"expected a non-negative integer as '{name}', found '{text}'"
            )
        found[axis] = value.number
    return found


def _print_arguments(function: Operation, analysis: RangeAnalysis, context: PassContext) -> None:
    arguments = function.regions[0].blocks[0].args
    for number, argument in enumerate(arguments):
        if analysis.is_reached(argument):
            which = f"arg {number}: " if len(arguments) > 1 else ""
            context.remark(argument, f"{which}{analysis.range(argument)}")


def _print_results(op: Operation, analysis: RangeAnalysis, context: PassContext) -> None:
    for number, result in enumerate(op.results):
        found = analysis.range(result)
        if found is None or not analysis.is_reached(result):
            continue
        which = f"result {number}: " if len(op.results) > 1 else ""
        context.remark(op, f"{which}{found}")
        if op.name == "arith.cmpi" and found.truth is not None:
            context.remark(op, f"result is {'true' if found.truth else 'false'}")
        if found.smin >= 0:
            context.remark(op, f"{which}non-neg")
    if op.name in _LOOPS:
        context.remark(op, f"inferred total trip count: {analysis.total_trip_count(op)}")
