"""TTIR and TTGIR as a lossless tree.

``str(parse(text)) == text`` for every module that a Triton release prints, and an edit changes only
the text it concerns.  Unknown operations, types and attributes are kept as text and still have
operands, uses, results and regions.  Needs only the standard library.

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

The modules define the rules: ownership of characters in :mod:`~triton_ext.ir.nodes`, structure in
:mod:`~triton_ext.ir.parser`, types of values in :mod:`~triton_ext.ir.type_slots`, text templates in
:mod:`~triton_ext.ir.builder`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from .attribute_values import parse_attribute
    from .linear_layout import LinearLayout
    from .types import parse_type

__all__ = [
    "Block",
    "BlockArgument",
    "Builder",
    "LinearLayout",
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
    "parse_attribute",
    "parse_type",
    "rename",
    "set_function_results",
]

#: Imported on first use: tools that only parse and print start faster without them.
_LAZY = {
    "LinearLayout": "linear_layout",
    "parse_attribute": "attribute_values",
    "parse_type": "types",
}


def __getattr__(name: str) -> object:
    """Imports a name of :data:`_LAZY`."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
