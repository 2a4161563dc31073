"""Edits that move, copy and inline operations.

Names stay unique in their scope: a moved or copied definition gets a fresh name if its old one is
taken at the new place.  Comments before an operation and its location move along; indentation is
adjusted.  The caller ensures that definitions dominate their uses; ``Module.verify`` checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .builder import (
    Builder,
    definitions_in,
    fresh_name,
    indentation,
    indentation_in,
    names_of,
    naming_region,
    place,
    with_letters,
)
from .nodes import Block, Operation, Region
from .segments import CommentSlot, Segment, cut
from .text_checks import require_text
from .values import BlockArgument, OpResult, Value

__all__ = [
    "clone",
    "clone_region_into",
    "inline_block",
    "move_after",
    "move_before",
    "move_to_end",
    "move_to_start",
    "rename",
]


def move_before(op: Operation, anchor: Operation) -> None:
    """Moves an operation before another one.

    Raises:
        VerifyError: One of them is in no block, or ``anchor`` is ``op`` or inside it.
    """
    if op is not anchor:
        _move(op, Builder.before(anchor).block, anchor)


def move_after(op: Operation, anchor: Operation) -> None:
    """Moves an operation after another one.

    Raises:
        VerifyError: One of them is in no block, or ``anchor`` is inside ``op``.
    """
    if op is anchor:
        return
    block = Builder.after(anchor).block
    index = block._index(anchor) + 1
    following = block._ops[index] if index < len(block._ops) else None
    if following is not op:
        _move(op, block, following)


def move_to_start(op: Operation, block: Block) -> None:
    """Moves an operation to the start of a block."""
    first = block._ops[0] if block._ops else None
    if first is not op:
        _move(op, block, first)


def move_to_end(op: Operation, block: Block) -> None:
    """Moves an operation to the end of a block, before its terminator if it has one."""
    last = block.terminator
    if last is op:
        op.fail(f"cannot move '{op.name}': it ends its block")
    _move(op, block, last)


def _move(op: Operation, block: Block, anchor: Operation | None) -> None:
    _move_all([op], block, anchor)


def _move_all(ops: Sequence[Operation], block: Block, anchor: Operation | None) -> None:
    """Moves operations, in order."""
    around: Operation | None = block.parent_op
    while around is not None:
        if around in ops:
            around.fail(f"cannot move '{around.name}' into itself")
        around = around.parent_op
    other_region = False
    for op in ops:
        if op.parent is None:
            op.fail(f"cannot move '{op.name}': it is not in a block")
        if op.parent.parent is not block.parent:
            other_region = True
            if op._successors:
                op.fail(f"cannot move '{op.name}' to another region: it names blocks of its own")
    moved = [(op, indentation(op), _comments(op)) for op in ops]
    for op in ops:
        op._detach()
    if other_region:
        _make_unique(ops, block)
    indent = indentation_in(block)
    for op, before, comments in moved:
        _reindent(op, before, indent)
        op.parent = block
        place([op], block, anchor, indent)
        if comments:
            lead = op.lead
            lines = "".join(f"\n{indent}{line}" for line in comments)
            op._lead = f"{lead[: lead.rfind(chr(10))]}{lines}\n{indent}"


def _comments(op: Operation) -> list[str]:
    """Returns the own-line comments before an operation."""
    return [line.strip() for line in op.lead.split("\n")[1:-1] if line.strip().startswith("//")]


def clone(
    op: Operation,
    builder: Builder,
    mapping: Mapping[Value, Value] | None = None,
) -> Operation:
    """Copies an operation, with its regions, attributes and locations.

    Args:
        op: The operation; it may be in another module whose aliases have the same meaning.
        builder: Insertion point of the copy.
        mapping: Replacements of used values; others stay the same.

    Returns:
        The copy.  Its results and everything that it defines have fresh names.

    Raises:
        VerifyError: The operation names blocks, and the copy goes to another region.
    """
    return _clone_all([op], builder, mapping or {})[0]


def _clone_all(
    ops: Sequence[Operation], builder: Builder, mapping: Mapping[Value, Value]
) -> list[Operation]:
    if not ops:
        return []
    for op in ops:
        if op._successors and (op.parent is None or op.parent.parent is not builder.block.parent):
            op.fail(f"cannot copy '{op.name}' to another region: it names blocks of its own")
    free = {value.name: value for value in _free_values(ops)}
    for name, value in list(free.items()):
        if name.endswith("#0") and isinstance(value, OpResult):
            free.setdefault(value._base, value)
    text = "\n".join(_text_at_margin(op) for op in ops)
    made = builder.insert_text(text, free, None)
    originals = [inner for op in ops for inner in op.walk()]
    copies = [inner for op in made for inner in op.walk()]
    for old, new in zip(originals, copies, strict=True):
        _copy_types(old, new)
    for new in copies:
        for index, operand in enumerate(new._operands):
            replacement = mapping.get(operand)
            if replacement is not None:
                new.set_operand(index, replacement)
    return made


def _text_at_margin(op: Operation) -> str:
    """Returns the text of an operation without its indentation."""
    indent = indentation(op)
    return op.text.replace(f"\n{indent}", "\n") if indent else op.text


def _free_values(ops: Sequence[Operation]) -> list[Value]:
    """Returns the values that operations use and do not define."""
    inner = [op for top in ops for op in top.walk()]
    defined = {value for op in inner for value in _defined_by(op)}
    found: dict[Value, None] = {}
    for op in inner:
        for operand in op._operands:
            if operand not in defined:
                found[operand] = None
    return list(found)


def _defined_by(op: Operation) -> Iterator[Value]:
    """Yields the results of an operation and the arguments of its blocks."""
    yield from op._results
    for region in op._regions:
        for block in region._blocks:
            yield from block._args


def _copy_types(old: Operation, new: Operation) -> None:
    for left, right in zip(_defined_by(old), _defined_by(new), strict=True):
        if right._type is None:
            right._type = left.known_type


def clone_region_into(region: Region, builder: Builder, args: Sequence[Value]) -> tuple[Value, ...]:
    """Copies the operations of a region with one block, without its terminator.

    Args:
        region: The region.
        builder: Insertion point of the copies.
        args: Replacements of the region's arguments.

    Returns:
        The operands of the terminator, in terms of the copy.

    Raises:
        VerifyError: The region has several blocks, or another number of arguments.
    """
    block = _only_block(region, args)
    mapping: dict[Value, Value] = dict(zip(block._args, args, strict=True))
    last = block.terminator
    body = [op for op in block._ops if op is not last]
    for old, new in zip(body, _clone_all(body, builder, mapping), strict=True):
        mapping.update(zip(old._results, new._results, strict=True))
    return tuple(mapping.get(value, value) for value in (last._operands if last else ()))


def inline_block(block: Block, anchor: Operation, args: Sequence[Value] = ()) -> tuple[Value, ...]:
    """Moves the operations of a region's only block before an operation.

    The block keeps only its terminator, so its operation has to be erased or filled::

        values = inline_block(if_op.regions[0].blocks[0], if_op)
        for result, value in zip(if_op.results, values):
            result.replace_all_uses_with(value)
        if_op.erase()

    Args:
        block: The block.
        anchor: The operation to insert before; often the one that holds the block.
        args: Replacements of the block's arguments.

    Returns:
        The operands of its terminator.

    Raises:
        VerifyError: The block is one of several, or has another number of arguments.
    """
    _only_block(block.parent, args)
    for arg, value in zip(block._args, args, strict=True):
        arg.replace_all_uses_with(value)
    last = block.terminator
    if anchor.parent is None:
        anchor.fail(f"cannot move anything in front of '{anchor.name}': it is not in a block")
    _move_all([op for op in block._ops if op is not last], anchor.parent, anchor)
    return tuple(last._operands) if last is not None else ()


def _only_block(region: Region, args: Sequence[Value]) -> Block:
    holder = region.parent
    if len(region._blocks) != 1:
        holder.fail(
            f"cannot inline a region of '{holder.name}' with {len(region._blocks)} blocks: "
            "expected one block"
        )
    block = region._blocks[0]
    if len(args) != len(block._args):
        holder.fail(
            f"expected {len(block._args)} values for the arguments of the region, found {len(args)}"
        )
    return block


# ---- names


def rename(value: Value, hint: str) -> str:
    """Renames a value, wherever it is printed.

    Args:
        value: The value; for a group ``%x:2`` all results are renamed.
        hint: The new name; a number is added if it is taken.

    Returns:
        The new name of the value.

    Raises:
        TypeError: ``hint`` is not a string.
        VerifyError: The value is in no block.
    """
    require_text(hint, f"the name of '{value.name}'")
    block = value.owner if isinstance(value, BlockArgument) else value._holder.parent
    if block is None or isinstance(block, Operation):
        value._holder.fail(f"cannot rename '{value.name}': it is not in a block")
    _rename(value, fresh_name(naming_region(block), hint))
    return value.name


def _group(value: Value) -> list[Value]:
    """Returns all results that share a printed name."""
    if isinstance(value, OpResult) and value._number >= 0:
        return [r for r in value._owner._results if r._base == value._base and r._number >= 0]
    return [value]


def _rename(value: Value, base: str) -> None:
    group = _group(value)
    for one in group:
        # A slot prints the source's spelling while the name is the one at the time of the cut.
        for op in dict.fromkeys([one._holder, *one._users]):
            cut(op)
            op._touch()
        if isinstance(one, BlockArgument):
            one._owner._touch_label()
    for one in group:
        one._base = base


def name_results(op: Operation) -> None:
    """Names the results of an operation whose text has no names for them.

    Raises:
        VerifyError: The operation is in no block.
    """
    if op.parent is None:
        op.fail(f"cannot name the results of '{op.name}': it is not in a block")
    cut(op)
    base = fresh_name(naming_region(op.parent), op.name.rpartition(".")[2])
    for result in op._results:
        result._base = base
    op._touch()


def _make_unique(ops: Sequence[Operation], block: Block) -> None:
    """Gives the definitions of detached operations names that are free in a block's function."""
    region = naming_region(block)
    names = names_of(region)
    for top in ops:
        for op in top.walk():
            for value in _defined_by(op):
                if isinstance(value, OpResult) and (value._number > 0 or not value._base):
                    continue
                if _is_taken(region, value._base):
                    hint = with_letters(value._base)
                    number = names.get(hint, 0)
                    while f"{hint}_{number}" in names:
                        number += 1
                    names[hint] = number + 1
                    _rename(value, f"{hint}_{number}")
                names.setdefault(value._base, 0)
                known = region._definitions.setdefault(value._base, [])
                if not any(value is other for other in known):
                    known.append(value)


def _is_taken(region: Region, name: str) -> bool:
    """Returns whether a value in a region has a name."""
    if name not in names_of(region):
        return False
    if name not in region._definitions:
        # The name was given after the values were collected.
        found: dict[str, list[Value]] = {}
        for value in definitions_in(region):
            if not isinstance(value, OpResult) or value._number <= 0:
                found.setdefault(value._base, []).append(value)
        found.setdefault(name, [])
        region._definitions = found
    return any(v._base == name and _stands_in(v, region) for v in region._definitions[name])


def _stands_in(value: Value, region: Region) -> bool:
    """Returns whether the definition of a value is inside a region now."""
    block = value.owner if isinstance(value, BlockArgument) else value._holder.parent
    while isinstance(block, Block):
        if block.parent is region:
            return True
        block = block.parent.parent.parent
    return False


# ---- indentation


def _reindent(op: Operation, before: str, after: str) -> None:
    """Shifts every line of an operation by the change of its first one."""
    if before == after:
        return
    old, new = f"\n{before}", f"\n{after}"
    for inner in op.walk():
        if inner is not op:
            inner._lead = inner.lead.replace(old, new)
        if inner._regions:
            segments = cut(inner)
            segments[:] = [_with_indent(segment, old, new) for segment in segments]
            inner._dirty = True
        for region in inner._regions:
            region._tail = region._tail.replace(old, new)
            for block in region._blocks:
                if block.label is not None:
                    block._touch_label()
                    block._lead = (block._lead or "").replace(old, new)


def _with_indent(segment: Segment, old: str, new: str) -> Segment:
    if isinstance(segment, CommentSlot):
        return CommentSlot(segment.text.replace(old, new))
    return segment.replace(old, new) if isinstance(segment, str) else segment
