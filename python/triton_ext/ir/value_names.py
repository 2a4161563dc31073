"""The names that MLIR prints for the values of a module, whatever the text calls them.

MLIR forgets names when it reads a module and creates new ones when it prints it: ``%arg0`` for the
arguments of an entry block, ``%0``, ``%1`` or ``%2#1`` for results and for the arguments of other
blocks, and a word if an operation proposes one (``%c0_i32``, ``%cst_0``, ``%token``).  Values of a
region are numbered before those of nested regions, so names repeat in sibling regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from .attribute_values import BoolAttr, IntegerAttr
from .dialects.arith import ConstantOp
from .nodes import Operation, Region
from .values import Value

__all__ = ["printed_names"]

#: Proposed names of operations with several results; tokens are found by their type.
_RESULTS: Final = {
    "arith.addui_extended": ("sum", "overflow"),
    "arith.mului_extended": ("low", "high"),
    "arith.mulsi_extended": ("low", "high"),
    "tt.split": ("outLHS", "outRHS"),
    "ttng.tmem_alloc": ("result", "token"),
    "ttng.tmem_load": ("result", "red"),
}
_GPU_INDICES: Final = frozenset(
    {"gpu.block_dim", "gpu.block_id", "gpu.cluster_block_id", "gpu.cluster_dim", "gpu.cluster_id"}
    | {"gpu.cluster_dim_blocks", "gpu.global_id", "gpu.grid_dim", "gpu.thread_id"}
)
_DIM: Final = re.compile(r"\b(?:gpu\.\w+|dimension)\W+(?:#gpu<dim )?([xyz])\b", re.ASCII)


def printed_names(top: Operation) -> dict[Value, str]:
    """Returns the names that MLIR prints for the values in an operation.

    Args:
        top: An operation whose regions use no outer values, a module or a function.
    """
    names: dict[Value, str] = {}
    todo = [(region, _Numbering()) for region in reversed(top.regions)]
    while todo:
        region, numbering = todo.pop()
        numbering = numbering.copy()
        names.update(numbering.of_region(region))
        ops = [op for block in region.blocks for op in block.ops]
        todo += [(inner, numbering) for op in reversed(ops) for inner in reversed(op.regions)]
    return names


@dataclass(slots=True)
class _Numbering:
    """The next numbers, and the used words."""

    value: int = 0
    argument: int = 0
    conflict: int = 0
    used: frozenset[str] = frozenset()

    def copy(self) -> _Numbering:
        return replace(self)

    def of_region(self, region: Region) -> Iterator[tuple[Value, str]]:
        for number, block in enumerate(region.blocks):
            for argument in block.args:
                if number:
                    yield argument, self._number()
                else:
                    yield argument, self._word(f"arg{self.argument}")
                    self.argument += 1
            for op in block.ops:
                if op.results:
                    yield from self._of_results(op)

    def _of_results(self, op: Operation) -> Iterator[tuple[Value, str]]:
        words = _words(op)
        if words:
            yield from zip(op.results, map(self._word, words), strict=True)
            return
        base = self._number()
        for number, result in enumerate(op.results):
            yield result, base if len(op.results) == 1 else f"{base}#{number}"

    def _number(self) -> str:
        self.value += 1
        return f"%{self.value - 1}"

    def _word(self, word: str) -> str:
        """Returns a word, with a number after it if it is in use."""
        found = word
        while found in self.used:
            found = f"{word}_{self.conflict}"
            self.conflict += 1
        self.used |= {found}
        return f"%{found}"


def _words(op: Operation) -> tuple[str, ...]:
    """Returns the words that an operation proposes for its results, or none."""
    constant = ConstantOp.match(op)
    if constant is not None:
        return (_constant_word(constant),)
    if op.name in _GPU_INDICES:
        dim = _DIM.search(op.text)
        return (f"{op.name.removeprefix('gpu.')}_{dim[1]}",) if dim is not None else ()
    words: tuple[str, ...] = _RESULTS.get(op.name, ())
    if len(words) < len(op.results):
        words = (words[0], "token", *words[1:]) if words else ()
    elif len(op.results) == 2 and op.name == "ttng.tmem_load":
        is_token = op.results[1].known_type == "!ttg.async.token"
        words = ("result", "token" if is_token else "red")
    return words[: len(op.results)]


def _constant_word(constant: ConstantOp) -> str:
    attribute = constant.attribute
    if isinstance(attribute, BoolAttr):
        return "true" if attribute.value else "false"
    if not isinstance(attribute, IntegerAttr):
        return "cst"
    type_ = str(attribute.type or "i64")
    if type_ == "i1":
        return "true" if attribute.number else "false"
    return f"c{attribute.number}" + ("" if type_ == "index" else f"_{type_}")
