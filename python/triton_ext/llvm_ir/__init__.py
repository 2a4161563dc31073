"""LLVM IR as a lossless tree.

``str(parse(text)) == text`` for every module that LLVM prints; an edit changes the instruction that
it is made on.  What an instruction means is read by views of the few that a rewrite needs, anything
else stays text.  Nothing outside the standard library is needed.

A rewrite finds and edits::

    module = parse(text, "kernel.ll")
    for function in module.functions:
        for instruction in list(function.instructions()):
            call = Call.match(instruction)
            if call is not None and call.callee == "@marker":
                ...
    print(module)
"""

from .debug_info import source_position
from .nodes import Block, Entity, Function, Instruction, Module
from .parser import parse
from .views import Binary, Call, Freeze, Operand, Phi, Select

__all__ = [
    "Binary",
    "Block",
    "Call",
    "Entity",
    "Freeze",
    "Function",
    "Instruction",
    "Module",
    "Operand",
    "Phi",
    "Select",
    "parse",
    "source_position",
]
