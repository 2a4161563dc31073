"""``test-print-alias``: prints the alias sets of shared memory as remarks, for tests.

The remarks have the form of upstream's pass of this name: ``%2 -> %0,%1`` for a value that may
refer to what ``%0`` and ``%1`` allocate, with the names that MLIR prints.  Results are named at
their operation; what a loop carries, as it starts, at the loop; the arguments of a block at the
branch that ends it.  Every function is looked at alone, and the module stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.analysis.alias_sets import AliasSets, is_buffer
from triton_ext.ir import Module, Operation, Value
from triton_ext.ir.dialects import scf
from triton_ext.ir.functions import FUNCTIONS
from triton_ext.ir.value_names import printed_names
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext

__all__ = ["PrintAlias"]


@dataclass(frozen=True, slots=True)
class PrintAlias(Pass):
    """Prints the allocations that each descriptor of shared memory may refer to."""

    name: ClassVar[str] = "test-print-alias"

    def run(self, module: Module, context: PassContext) -> None:
        """Makes one remark for each descriptor that may refer to an allocation."""
        names = printed_names(module.op)
        for function in [op for op in module.walk() if op.name in FUNCTIONS]:
            sets = AliasSets.of(function)
            for op in function.walk():
                for value, start in _printed(op):
                    _print(op, value, start, sets, names, context)


def _printed(op: Operation) -> list[tuple[Value, Value]]:
    """Returns the values to print at an operation, each with the one whose alias set is meant."""
    if op.successors and not op.results and op.parent is not None:
        return [(argument, argument) for argument in op.parent.args]
    loop = scf.ForOp.match(op)
    carried = zip(loop.iter_args, loop.inits, strict=False) if loop is not None else ()
    return [*carried, *((result, result) for result in op.results)]


def _print(
    op: Operation,
    value: Value,
    start: Value,
    sets: AliasSets,
    names: Mapping[Value, str],
    context: PassContext,
) -> None:
    if not is_buffer(start):
        return
    found = sets.alias_set(start)
    if found.allocations:
        listed = ",".join(sorted(names[allocation] for allocation in found.allocations))
        notes = () if found.is_complete else ("it may refer to memory from outside as well",)
        context.remark(op, f"{names[value]} -> {listed}", *notes)
