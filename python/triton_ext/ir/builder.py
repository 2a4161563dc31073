"""Creates operations from text.

Operations are given as text in the printed form and read by the same parser, so every operation of
every host can be created, including custom syntax and regions.  Names that the text defines are
replaced by fresh ones; names that it uses are looked up in the given bindings.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ..errors import ParseError, VerifyError
from .attributes import print_entry
from .lexer import Source
from .locations import Location
from .nodes import Block, Operation, Region
from .reader import parse_fragment
from .result_counts import ONE_RESULT
from .segments import cut, set_location
from .text_checks import check_attribute, check_location, check_type, require_text
from .type_slots import bind_types
from .values import Value

__all__ = ["Builder", "fresh_name", "indentation"]

# Beside a comma or after a parenthesis this is meant as a slot, not as an attribute dictionary.
_NO_SLOT = re.compile(r"(?<=[,(])\s*(\{[\w.$-]+\})|(\{[\w.$-]+\})(?=\s*,)", re.ASCII)
_SLOT = re.compile(r"\{(?:(\d+)(\.type)?|(results)(\.type)?)\}")
_NO_RESULTS = re.compile(r"\{results\}\s*=\s*")
_RESULT_KEY = "%$results"


class Builder:
    """Inserts operations at a point in a block, in order.

    Args:
        block: The block.
        anchor: The operation to insert before; ``None`` for the block's end.
        loc: Location of operations without one of their own.
    """

    __slots__ = ("anchor", "block", "loc")

    def __init__(
        self, block: Block, anchor: Operation | None = None, loc: str | None = None
    ) -> None:
        self.block = block
        self.anchor = anchor
        self.loc = loc

    @classmethod
    def before(cls, op: Operation) -> Builder:
        """Inserts before an operation, with its location."""
        return cls(_block_of(op), op, op.loc_text)

    @classmethod
    def after(cls, op: Operation) -> Builder:
        """Inserts after an operation, with its location."""
        block = _block_of(op)
        index = block._index(op) + 1
        return cls(block, block._ops[index] if index < len(block._ops) else None, op.loc_text)

    @classmethod
    def at_start(cls, block: Block) -> Builder:
        """Inserts before a block's first operation."""
        return cls(block, block._ops[0] if block._ops else None, block.parent_op.loc_text)

    @classmethod
    def at_end(cls, block: Block) -> Builder:
        """Inserts at the end of a block, even after a terminator."""
        near = block._ops[-1] if block._ops else block.parent_op
        return cls(block, None, near.loc_text or block.parent_op.loc_text)

    def create(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[str] = (),
        text: str | None = None,
        *,
        attributes: Mapping[str, str] | None = None,
        loc: Location | str | None = None,
        hint: str | None = None,
    ) -> Operation:
        """Creates one operation.

        Args:
            name: Name with the dialect.
            operands: Its operands.
            result_types: The types of its results.
            text: Its printed form with ``{results}`` for the names of the results (omitted
                together with the ``=`` if there are none), ``{0}``, ``{1}``, ... for the operands,
                ``{0.type}`` and ``{results.type}`` for types.  All other braces are text.  By
                default the operation is printed in the generic form, which every host reads.
            attributes: Raw text of attributes for the generic form; ``unit`` prints no value.
            loc: The location; by default the builder's.
            hint: Base name of the results.

        Raises:
            ParseError: The text is malformed.
            TypeError: A text is not a string, or an operand is not a :class:`Value`.
            VerifyError: It is not one operation with this name and these results, or the text gives
                a result another type; a type, an attribute or the location is malformed; a slot has
                no operand, or an operand has no slot.
        """
        require_text(name, "the name of an operation")
        if isinstance(result_types, str):
            raise TypeError(f"expected a list of result types of '{name}', found {result_types!r}")
        for number, type_ in enumerate(result_types):
            check_type(self.block.parent_op, f"result {number} of '{name}'", type_)
        for operand in operands:
            if not isinstance(operand, Value):
                raise TypeError(f"expected a Value as operand of '{name}', found {operand!r}")
        if text is None:
            for key, raw in (attributes or {}).items():
                check_attribute(self.block.parent_op, key, raw, holder=name)
            text = _generic_form(name, operands, result_types, attributes or {})
        require_text(text, f"the form of '{name}'")
        _check_slots(name, text, len(operands))
        count = len(result_types)
        if not count:
            text = _NO_RESULTS.sub("", text)

        def fill(match: re.Match[str]) -> str:
            if match[1] is not None:
                operand = operands[int(match[1])]
                return operand.type if match[2] else f"%$op{match[1]}"
            if match[4]:
                return ", ".join(result_types)
            return _RESULT_KEY if count == 1 else f"{_RESULT_KEY}:{count}"

        bindings = {f"$op{index}": operand for index, operand in enumerate(operands)}
        base = hint if hint is not None else name.rpartition(".")[2]
        ops = self._insert(_SLOT.sub(fill, text), bindings, loc, base)
        made = ops[0] if len(ops) == 1 else None
        # Results that are not asked for may stay unnamed.
        if made is None or made.name != name or sum(bool(r._base) for r in made._results) != count:
            for op in reversed(ops):
                op.erase()
            raise VerifyError(
                f"expected one operation '{name}' with {count} results, found the text: {text}"
            )
        if count > 1:
            _check_results(made, text)
        _check_types(made, result_types, text)
        for result, type_ in zip(made._results, result_types, strict=False):
            result._type = type_
        return made

    def parse(
        self,
        text: str,
        bindings: Mapping[str, Value] | None = None,
        *,
        loc: Location | str | None = None,
    ) -> tuple[Operation, ...]:
        """Creates the operations of a text.

        Args:
            text: One or more operations as printed, with any indentation.
            bindings: The values that the text may name: key ``a`` is ``%a`` in the text.  Names
                that the text defines itself are replaced by similar fresh ones.
            loc: Location of operations without one; by default the builder's.

        Raises:
            ParseError: The text is malformed or names an unbound value.
        """
        return tuple(self._insert(text, bindings or {}, loc, None))

    def _insert(
        self,
        text: str,
        bindings: Mapping[str, Value],
        loc: Location | str | None,
        hint: str | None,
    ) -> list[Operation]:
        require_text(text, "the operations to make")
        raw = loc.raw if isinstance(loc, Location) else loc if loc is not None else self.loc
        if raw is not None:
            require_text(raw, "the location of new operations")
            raw = raw if raw.startswith("loc(") else f"loc({raw})"
            check_location(self.block.parent_op, "new operations", raw)
        return self.insert_text(textwrap.dedent(text).strip(), bindings, raw, hint)

    def insert_text(
        self, text: str, bindings: Mapping[str, Value], loc: str | None, hint: str | None = None
    ) -> list[Operation]:
        """Creates the operations of a text without indentation.

        Args:
            text: The text.
            bindings: See :meth:`parse`.
            loc: Location, ``loc(...)``, of operations without one; ``None`` to leave them without.
            hint: Base name of the results.
        """
        block = self.block
        indent = indentation_in(block)
        source = Source(f"\n{indent}".join(text.split("\n")), "<builder>")
        visible = {f"%{name.removeprefix('%')}": value for name, value in bindings.items()}
        for value in visible.values():
            _ = value.name  # used values need a name
        labels = {b.label: b for b in block.parent._blocks if b.label is not None}
        scratch = Block(block.parent)
        uses = [(value, len(value._users)) for value in dict.fromkeys(visible.values())]
        try:
            parse_fragment(source, scratch, visible, labels)
        except ParseError:
            for value, count in uses:
                del value._users[count:]
            raise
        made = scratch._ops
        region = naming_region(block)
        inner = [op for top in made for op in top.walk()]
        for op in inner:
            cut(op)
        for top in made:
            top.parent = block
            for op in top.walk():
                _rename_definitions(op, region, hint)
                op._dirty = True
                if loc is not None and op._loc is None:
                    set_location(op, loc)
        place(made, block, self.anchor, indent)
        return made


def place(ops: Sequence[Operation], block: Block, anchor: Operation | None, indent: str) -> None:
    """Inserts operations into a block, each on its own line.

    Args:
        ops: Detached operations.
        block: The block.
        anchor: The operation to insert before; ``None`` for the end.
        indent: Indentation of the first; the others have their lead already.
    """
    if not ops:
        return
    there = block._ops
    index = len(there) if anchor is None else block._index(anchor)
    ops[0]._lead = f"\n{indent}"
    top_level = block.parent_op._span[4] == 0
    if index < len(there) and (there[index].lead.find("\n") < 0 or (top_level and index == 0)):
        # Aliases stay first; an operation starts on its own line.
        if top_level and index == 0:
            ops[0]._lead = there[index].lead
        there[index]._lead = f"\n{indent}"
    there[index:index] = ops
    block._near = index + len(ops)
    block.parent_op._touch()
    for op in there[index : index + len(ops) + 1]:
        if op._lead is not None:
            op._dirty = True


def _block_of(op: Operation) -> Block:
    if op.parent is None:
        op.fail(f"cannot insert next to '{op.name}': it is not in a block")
    return op.parent


def _check_results(made: Operation, text: str) -> None:
    """Removes a new operation if it has more results than operations of its name can have.

    Raises:
        VerifyError: It has.
    """
    if made.name in ONE_RESULT:
        count = len(made._results)
        made.erase()
        raise VerifyError(f"'{made.name}' has one result, found {count} types of results: {text}")


def _check_types(made: Operation, types: Sequence[str], text: str) -> None:
    """Erases a new operation if its text gives a result another type than the caller.

    Raises:
        VerifyError: It does; printed, the operation would have the type of the text.
    """
    bind_types(made)
    for number, (result, given) in enumerate(zip(made._results, types, strict=False)):
        found = result._type
        if found is None or found == given:
            continue
        from .rules import Facts

        module = made.module
        if Facts(module.aliases if module is not None else {}).equal(found, given):
            continue
        made.erase()
        raise VerifyError(
            f"'{made.name}': result {number} has type '{found}' in the text, and '{given}' was "
            f"given: {text}",
            notes=("write {results.type} in the text, and the given types stand there",),
        )


def _check_slots(name: str, text: str, count: int) -> None:
    """Checks that every slot has an operand, and every operand a slot.

    Raises:
        VerifyError: One has not.
    """
    used = set(_operand_numbers(text))
    for index in used:
        if index >= count:
            raise VerifyError(f"'{name}': '{{{index}}}' exceeds the last operand: {text}")
    for match in _NO_SLOT.finditer(text):
        slot = match[1] or match[2]
        if _SLOT.fullmatch(slot) is None:
            raise VerifyError(
                f"'{name}': '{slot}' is not a slot: {text}",
                notes=("slots are {0}, {1}, ..., {0.type}, {results} and {results.type}",),
            )
    for index in range(count):
        if index not in used:
            raise VerifyError(f"'{name}': operand {index} has no '{{{index}}}': {text}")


def _operand_numbers(text: str) -> list[int]:
    return [int(match[1][:9]) for match in _SLOT.finditer(text) if match[1] is not None]


def _generic_form(
    name: str, operands: Sequence[Value], result_types: Sequence[str], attributes: Mapping[str, str]
) -> str:
    entries = ", ".join(print_entry(key, raw) for key, raw in attributes.items())
    names = ", ".join(f"{{{index}}}" for index in range(len(operands)))
    types = ", ".join(operand.type for operand in operands)
    dictionary = f" {{{entries}}}" if entries else ""
    outputs = ", ".join(result_types)
    if len(result_types) != 1 or outputs.startswith("("):
        outputs = f"({outputs})"
    return f'{{results}} = "{name}"({names}){dictionary} : ({types}) -> {outputs}'


def indentation(op: Operation) -> str:
    """Returns the blanks before an operation's first character, if it starts its line."""
    lead = op.lead
    line = lead[lead.rfind("\n") + 1 :]
    return line if not line.strip() else ""


def indentation_in(block: Block) -> str:
    for op in block._ops:
        if "\n" in op.lead:
            return indentation(op)
    holder = block.parent_op
    if holder._span[4] == 0:
        return ""
    return indentation(holder) + "  "


def naming_region(block: Block) -> Region:
    """Returns the region in which a new name must be unique.

    This is the body of the function: partitions of ``ttg.warp_specialize`` cannot use outer names,
    but hosts refuse a partition that defines a name that is visible around it.
    """
    region = block.parent
    while not region.isolated or region.parent.name.startswith("ttg.warp_specialize"):
        outer = region.parent.parent
        if outer is None:
            break
        region = outer.parent
    return region


def fresh_name(region: Region, hint: str) -> str:
    """Returns an unused name in a region, with its ``%``.

    Args:
        region: The result of :func:`naming_region`.
        hint: Start of the name.
    """
    names = names_of(region)
    hint = re.sub(r"[^\w$.-]", "_", hint.removeprefix("%"), flags=re.ASCII)
    base = with_letters(f"%{hint}")
    if base not in names:
        names[base] = 0
        return base
    number = names[base]
    while f"{base}_{number}" in names:
        number += 1
    names[base] = number + 1
    names[f"{base}_{number}"] = 0
    return f"{base}_{number}"


def names_of(region: Region) -> dict[str, int]:
    """Returns all names ever given in a region, each with the next number to try."""
    if region._names is None:
        region._names = dict.fromkeys((value._base for value in definitions_in(region)), 0)
    return region._names


def with_letters(name: str) -> str:
    """Returns a name that can take a suffix: a plain number, ``%4``, cannot."""
    return f"%v{name[1:]}" if not name[1:] or name[1].isdigit() else name


def definitions_in(region: Region) -> Iterator[Value]:
    """Yields every value defined in a region."""
    regions = [region]
    while regions:
        for block in regions.pop()._blocks:
            yield from block._args
            for op in block._ops:
                yield from op._results
                regions += op._regions


def _rename_definitions(op: Operation, region: Region, hint: str | None) -> None:
    """Gives the definitions of an operation names that are free in its new place."""
    base = chosen = ""
    for result in op._results:
        if not result._base:
            return  # named on demand
        if result._base != base or result._number <= 0:
            base = result._base
            chosen = fresh_name(region, hint if hint is not None and base == _RESULT_KEY else base)
        result._base = chosen
    for inner in op._regions:
        for block in inner._blocks:
            for arg in block._args:
                arg._base = fresh_name(region, arg._base)
            if block._args:
                block._touch_label()
