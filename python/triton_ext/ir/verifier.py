"""The verifier: rules that every module must follow, checked without Triton.

Scoping is checked in one walk (:class:`_Scopes`):

1. The definition of each operand dominates the operation: an earlier operation of the same block,
   an argument of an enclosing block, or something in a dominating block.  In unreachable blocks,
   and in regions without an order (``builtin.module``, regions of unknown operations), anything in
   the region counts.
2. Nothing in an isolated region uses a value from outside.
3. Names of values are unique in their scope, labels within their region, and a name is one token
   for MLIR's lexer: ``%`` and a number, or ``%`` and a name that does not start with a digit.

Everything else is a rule of :data:`RULES`: a pattern (names of operations), a predicate, and a
message.  :mod:`~triton_ext.ir.type_problems` checks encodings and types.

Safe direction: unknown operations and types that are not printed are not checked, so every host
refuses a module that is refused here, and may refuse one that passes.  There are three exceptions,
which are refused here: a type that is longer than any host prints after expanding its aliases,
because it cannot be compared; an encoding with parameters that some hosts read and fail on later,
such as a ``vec`` that is not a power of two; and a TMA copy whose indices or buffer do not fit its
descriptor, which 3.6 reads and lowers to something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import VerifyError
from . import lexer
from .dominance import Dominance
from .nodes import Block, Operation, Region
from .rules import Facts, rules_of
from .type_slots import KNOWN_DIALECTS
from .values import BlockArgument, OpResult, Value

if TYPE_CHECKING:
    from .module import Module

__all__ = ["find_problems"]

_NAME = re.compile("%" + lexer.SUFFIX_ID, re.ASCII)
_ORDERED_DIALECTS = KNOWN_DIALECTS | {"func", "llvm"}


def find_problems(module: Module) -> Iterator[VerifyError]:
    """Yields every problem of a module, in printed order.

    Args:
        module: A module; for a part, the whole module is checked.
    """
    whole = module._whole or module
    facts = Facts(whole.aliases)
    for name, problem in facts.types.of_aliases(whole.aliases):
        yield _at_alias(whole, name, f"the encoding '{name}' is malformed: {problem}")
    yield from _Scopes(facts).check(whole.op)


def _at_alias(module: Module, name: str, message: str) -> VerifyError:
    """Returns an error at the definition of an alias; at the module for an added one."""
    source = module.source
    found = re.search(rf"^{re.escape(name)}(?=\s*=)", source.text, re.MULTILINE)
    if found is None:
        return module.op.error(message)
    line, column = source.line_and_column(found.start())
    return VerifyError(
        message,
        filename=source.filename,
        line=line,
        column=column,
        source_line=source.line_at(found.start()),
    )


class _Blocks:
    """The blocks of a region while they are checked one by one.

    Attributes:
        current: The block being checked.
    """

    def __init__(self, region: Region) -> None:
        self._dominance = Dominance(region) if _is_ordered(region) else None
        self.current = region._blocks[0]

    def are_visible(self, block: Block) -> bool:
        """Returns whether the current block can use values of another one."""
        dominance, current = self._dominance, self.current
        if dominance is None or current not in dominance:
            return True
        return block is not current and dominance.dominates(block, current)


class _Scopes:
    """Walks a tree with the visible values and names."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.visible: set[Value] = set()
        # The values of enclosing regions with several blocks.
        self.in_blocks: dict[Value, tuple[_Blocks, Block]] = {}
        self.names: dict[str, Value] = {}

    def is_visible(self, value: Value) -> bool:
        """Returns whether a value's definition dominates the current operation."""
        if value in self.visible:
            return True
        blocks, block = self.in_blocks.get(value, (None, None))
        return blocks is not None and block is not None and blocks.are_visible(block)

    def check(self, op: Operation) -> Iterator[VerifyError]:
        """Checks an operation and everything inside it."""
        visible = self.visible
        for index, operand in enumerate(op._operands):
            if operand not in visible and not self.is_visible(operand):
                yield _not_visible(op, index, operand)
        for rule in rules_of(op.name):
            try:
                broken = rule.predicate(op, self.facts)
            except VerifyError as error:
                yield op.error(error.message, *error.notes)
                break
            if broken is not None:
                yield op.error(rule.message.format(op=op.name, **broken))
        for region in op._regions:
            yield from self.check_region(region)

    def check_region(self, region: Region) -> Iterator[VerifyError]:
        """Checks a region; its definitions are not visible after it."""
        outer_visible, outer_names, outer_blocks = self.visible, self.names, self.in_blocks
        if region.isolated:
            self.visible, self.in_blocks = set(), {}
            # Hosts read the partitions of warp_specialize with outer names in use.
            inherits = region.parent.name.startswith("ttg.warp_specialize")
            self.names = dict(outer_names) if inherits else {}
        blocks = region._blocks
        added: list[Value] = []
        names: list[str] = []
        if len(blocks) == 1 and _is_ordered(region):
            yield from self.check_block(blocks[0], added, names)
        else:
            yield from self.check_blocks(region, added, names)
        if region.isolated:
            self.visible, self.names = outer_visible, outer_names
            self.in_blocks = outer_blocks
            return
        self.visible.difference_update(added)
        for name in names:
            self.names.pop(name, None)

    def check_block(
        self, block: Block, added: list[Value], names: list[str]
    ) -> Iterator[VerifyError]:
        """Checks a block; operations see earlier definitions."""
        for arg in block._args:
            yield from self.define(block.parent_op, arg, added, names)
        for op in block._ops:
            yield from self.check(op)
            for result in op._results:
                yield from self.define(op, result, added, names)

    def check_blocks(
        self, region: Region, added: list[Value], names: list[str]
    ) -> Iterator[VerifyError]:
        """Checks several blocks: each sees all of the blocks that dominate it."""
        blocks = region._blocks
        labels: set[str] = set()
        for block in blocks:
            if block.label is not None:
                if block.label in labels:
                    yield region.parent.error(f"redefinition of block '{block.label}'")
                labels.add(block.label)
        state = _Blocks(region)
        defined = {value: (state, block) for block in blocks for value in _definitions(block)}
        self.in_blocks.update(defined)
        for block in blocks:
            state.current = block
            mine: list[Value] = []
            yield from self.check_block(block, mine, names)
            self.visible.difference_update(mine)
        for value in defined:
            del self.in_blocks[value]

    def define(
        self, op: Operation, value: Value, added: list[Value], names: list[str]
    ) -> Iterator[VerifyError]:
        """Makes a value and its name visible."""
        self.visible.add(value)
        added.append(value)
        if isinstance(value, OpResult) and (value._number > 0 or not value._base):
            return
        if _NAME.fullmatch(value._base) is None:
            yield op.error(
                f"'{value._base}' is not a valid SSA value name",
                "expected '%' and digits, or '%', a letter or one of '$._-', and letters, digits "
                "or '$._-'",
            )
        known = self.names.get(value._base)
        if known is not None and known is not value:
            note = known._holder._note("the other one is defined here")
            yield op.error(f"redefinition of SSA value '{value._base}'", *note)
            return
        self.names[value._base] = value
        names.append(value._base)


def _is_ordered(region: Region) -> bool:
    return region.parent.name.partition(".")[0] in _ORDERED_DIALECTS


def _definitions(block: Block) -> list[Value]:
    return [*block._args, *(result for op in block._ops for result in op._results)]


def _not_visible(op: Operation, index: int, operand: Value) -> VerifyError:
    """Returns why an operand must not be used here."""
    owner = operand._holder
    block = operand.owner
    gone = owner.module is not op.module
    if isinstance(operand, BlockArgument) and isinstance(block, Block):
        gone = gone or block not in block.parent._blocks
    if gone:
        return op.error(
            f"operand {index} of '{op.name}', '{operand.name}', belongs to no operation of this "
            "module",
            "its definition was erased, or is in another module",
        )
    note = owner._note("defined here")
    around = _isolated_between(op, owner if isinstance(operand, BlockArgument) else owner.parent_op)
    if around is not None:
        return op.error(
            f"operand {index} of '{op.name}', '{operand.name}', is defined outside of the isolated "
            f"region of '{around.name}'",
            *note,
        )
    return op.error(
        f"operand {index} of '{op.name}', '{operand.name}', does not dominate this use", *note
    )


def _isolated_between(op: Operation, holder: Operation | None) -> Operation | None:
    """Returns the operation whose isolated region contains ``op`` but not ``holder``'s contents."""
    block = op.parent
    while block is not None:
        region = block.parent
        if region.parent is holder and not region.isolated:
            return None
        if region.isolated:
            outer: Operation | None = holder
            while outer is not None and outer is not region.parent:
                outer = outer.parent_op
            return None if outer is region.parent else region.parent
        block = region.parent.parent
    return None
