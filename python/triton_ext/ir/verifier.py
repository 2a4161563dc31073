"""What holds for every module, checked without Triton.

Scoping is checked in one walk (:class:`_Scopes`):

1. Each operand is a value whose definition dominates the operation: an earlier operation of the
   same block, an argument of a block around it, or something in a block that dominates its own.
   In unreachable blocks, and in regions whose order has no meaning (``builtin.module``, regions of
   operations that nobody here knows), anything in the region counts.
2. Nothing in an isolated region uses a value from outside of it.
3. Names of values are unique where they are visible, labels within their region, and a name is one
   token for MLIR's lexer: ``%`` and a number, or ``%`` and a name that starts with no digit.

Everything else is a rule of :data:`RULES`: a pattern (names of operations), a predicate that gives
what is wrong, and the message that it fills in.  What an encoding or a type may be is told in
:mod:`~triton_ext.ir.type_problems`.

Safe direction: what is not known (an operation of another dialect, a type that is not printed) is
not checked, so a module that is refused here is refused by every host, and a module that passes
here may still be refused by one.  The exception is a type that is longer than any host prints once
its aliases are written out: it is refused, because nothing can be compared with it.  So is an
encoding with parameters that some hosts read and only later stumble over, a ``vec`` that is no
power of two for instance, and a TMA copy whose indices or buffer do not fit its descriptor, which
3.6 reads and lowers to something else.
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
    """Every problem of a module, in the order of the text.

    Args:
        module: A module; of a part, the whole module is checked.
    """
    whole = module._whole or module
    facts = Facts(whole.aliases)
    for name, problem in facts.types.of_aliases(whole.aliases):
        yield _at_alias(whole, name, f"the encoding '{name}' is malformed: {problem}")
    yield from _Scopes(facts).check(whole.op)


def _at_alias(module: Module, name: str, message: str) -> VerifyError:
    """An error where an alias is defined; at the module for one that was added."""
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
    """Several blocks of a region, while they are checked one by one.

    Attributes:
        current: The one that is being checked.
    """

    def __init__(self, region: Region) -> None:
        self._dominance = Dominance(region) if _is_ordered(region) else None
        self.current = region._blocks[0]

    def are_visible(self, block: Block) -> bool:
        """Returns whether the current block can use values that another one defines."""
        dominance, current = self._dominance, self.current
        if dominance is None or current not in dominance:
            return True
        return block is not current and dominance.dominates(block, current)


class _Scopes:
    """Walks a tree with the values and names that are visible at each place."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.visible: set[Value] = set()
        # The values of regions with several blocks around the present place.
        self.in_blocks: dict[Value, tuple[_Blocks, Block]] = {}
        self.names: dict[str, Value] = {}

    def is_visible(self, value: Value) -> bool:
        """Returns whether a value's definition dominates the present place."""
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
        """Checks a region; what it defines is not visible any more behind it."""
        outer_visible, outer_names, outer_blocks = self.visible, self.names, self.in_blocks
        if region.isolated:
            self.visible, self.in_blocks = set(), {}
            # Hosts read the partitions of warp_specialize with the names around them in use.
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
        """Checks a block; operations see what is in front of them."""
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
                f"'{value._base}' is no name of an SSA value",
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
    """Why an operand may not be used here."""
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
    """The operation whose isolated region is around ``op`` and not around what ``holder`` holds."""
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
