"""TTIR and TTGIR as a lossless tree.

``str(parse(text)) == text`` for every module that a Triton release prints, and an edit changes only
what it touches.  Operations, types and attributes that nobody here knows are kept as text and
still have operands, uses, results and regions.  Nothing outside the standard library is needed.

A pass reads, builds and replaces::

    module = parse(text, "kernel.ttgir")
    for op in module.walk():
        if op.name == "arith.divsi":
            new = Builder.before(op).create(
                "arith.divui",
                op.operands,
                [op.results[0].type],
                text="{results} = arith.divui {0}, {1} : {results.type}",
            )
            op.replace_with(new)
    print(module)

The rules are in the modules: who owns which character in :mod:`~triton_ext.ir.nodes`, how structure
is found in :mod:`~triton_ext.ir.parser`, which type belongs to which value in
:mod:`~triton_ext.ir.type_slots`, text templates in :mod:`~triton_ext.ir.builder`.
"""

from .builder import Builder
from .edits import (
    clone,
    clone_region_into,
    inline_block,
    move_after,
    move_before,
    move_to_end,
    move_to_start,
    rename,
)
from .functions import function_results, set_function_results
from .locations import Location
from .module import Module
from .nodes import Block, Operation, Region
from .reader import parse
from .structured import (
    append_block_argument,
    append_captures,
    append_if_results,
    append_iter_args,
    append_while_args,
)
from .values import BlockArgument, OpResult, Use, Value

__all__ = [
    "Block",
    "BlockArgument",
    "Builder",
    "Location",
    "Module",
    "OpResult",
    "Operation",
    "Region",
    "Use",
    "Value",
    "append_block_argument",
    "append_captures",
    "append_if_results",
    "append_iter_args",
    "append_while_args",
    "clone",
    "clone_region_into",
    "function_results",
    "inline_block",
    "move_after",
    "move_before",
    "move_to_end",
    "move_to_start",
    "parse",
    "rename",
    "set_function_results",
]
