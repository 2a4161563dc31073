"""Edits that move, copy and dissolve operations.

Names stay unique where they are visible: what an operation defines gets a fresh name wherever its
old one is taken at the new place.  Comments in front of an operation and its location move along,
indentation is that of the new place.  Whether values are defined in front of their uses afterwards
is the caller's to see to; ``Module.verify`` tells.
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
    """Takes an operation out of its place and puts it in front of another one.

    Raises:
        VerifyError: One of them is in no block, or ``anchor`` is ``op`` or inside of it.
    """
    if op is not anchor:
        _move(op, Builder.before(anchor).block, anchor)


def move_after(op: Operation, anchor: Operation) -> None:
    """Takes an operation out of its place and puts it behind another one.

    Raises:
        VerifyError: One of them is in no block, or ``anchor`` is inside of ``op``.
    """
    if op is anchor:
        return
    block = Builder.after(anchor).block
    index = block._index(anchor) + 1
    following = block._ops[index] if index < len(block._ops) else None
    if following is not op:
        _move(op, block, following)


def move_to_start(op: Operation, block: Block) -> None:
    """Makes an operation the first one of a block."""
    first = block._ops[0] if block._ops else None
    if first is not op:
        _move(op, block, first)


def move_to_end(op: Operation, block: Block) -> None:
    """Makes an operation the last one of a block, in front of its terminator if it has one."""
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
    """The own-line comments in front of an operation."""
    return [line.strip() for line in op.lead.split("\n")[1:-1] if line.strip().startswith("//")]


def clone(
    op: Operation,
    builder: Builder,
    mapping: Mapping[Value, Value] | None = None,
) -> Operation:
    """Copies an operation, with its regions, attributes and locations.

    Args:
        op: What to copy; it may be in another module whose aliases have the same meaning.
        builder: Where the copy goes.
        mapping: The values that it uses instead; others that it takes from around it stay.

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
    """The text of an operation whose first line is not indented, nor the others that much."""
    indent = indentation(op)
    return op.text.replace(f"\n{indent}", "\n") if indent else op.text


def _free_values(ops: Sequence[Operation]) -> list[Value]:
    """What operations use and do not define."""
    inner = [op for top in ops for op in top.walk()]
    defined = {value for op in inner for value in _defined_by(op)}
    found: dict[Value, None] = {}
    for op in inner:
        for operand in op._operands:
            if operand not in defined:
                found[operand] = None
    return list(found)


def _defined_by(op: Operation) -> Iterator[Value]:
    """The results of an operation and the arguments of its blocks."""
    yield from op._results
    for region in op._regions:
        for block in region._blocks:
            yield from block._args


def _copy_types(old: Operation, new: Operation) -> None:
    for left, right in zip(_defined_by(old), _defined_by(new), strict=True):
        if right._type is None:
            right._type = left.known_type


def clone_region_into(region: Region, builder: Builder, args: Sequence[Value]) -> tuple[Value, ...]:
    """Copies the operations of a region with one block, its terminator left out.

    Args:
        region: What to copy.
        builder: Where the copies go.
        args: What the region's arguments are in the copy.

    Returns:
        What the terminator passes on, in terms of the copy.

    Raises:
        VerifyError: The region has several blocks, or other arguments.
    """
    block = _only_block(region, args)
    mapping: dict[Value, Value] = dict(zip(block._args, args, strict=True))
    last = block.terminator
    body = [op for op in block._ops if op is not last]
    for old, new in zip(body, _clone_all(body, builder, mapping), strict=True):
        mapping.update(zip(old._results, new._results, strict=True))
    return tuple(mapping.get(value, value) for value in (last._operands if last else ()))


def inline_block(block: Block, anchor: Operation, args: Sequence[Value] = ()) -> tuple[Value, ...]:
    """Moves the operations of a region's only block in front of an operation.

    The block stays behind without any operation but its terminator, so what held it has to be
    erased or filled::

        values = inline_block(if_op.regions[0].blocks[0], if_op)
        for result, value in zip(if_op.results, values):
            result.replace_all_uses_with(value)
        if_op.erase()

    Args:
        block: The block.
        anchor: Where its operations go; often the operation that holds the block.
        args: What replaces its arguments.

    Returns:
        What its terminator passes on.

    Raises:
        VerifyError: The block is one of several, or has other arguments.
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
    """Gives a value another name, wherever it is printed.

    Args:
        value: The value; of a group ``%x:2`` all results are renamed.
        hint: What the name should be; a number is added where it is taken.

    Returns:
        The new name of the value.

    Raises:
        TypeError: ``hint`` is no text.
        VerifyError: The value is in no block.
    """
    require_text(hint, f"the name of '{value.name}'")
    block = value.owner if isinstance(value, BlockArgument) else value._holder.parent
    if block is None or isinstance(block, Operation):
        value._holder.fail(f"cannot rename '{value.name}': it is not in a block")
    _rename(value, fresh_name(naming_region(block), hint))
    return value.name


def _group(value: Value) -> list[Value]:
    """All results that are printed under one name."""
    if isinstance(value, OpResult) and value._number >= 0:
        return [r for r in value._owner._results if r._base == value._base and r._number >= 0]
    return [value]


def _rename(value: Value, base: str) -> None:
    group = _group(value)
    for one in group:
        # A slot keeps the source's spelling for as long as the name is that of when it was cut.
        for op in dict.fromkeys([one._holder, *one._users]):
            cut(op)
            op._touch()
        if isinstance(one, BlockArgument):
            one._owner._touch_label()
    for one in group:
        one._base = base


def name_results(op: Operation) -> None:
    """Names the results of an operation whose text names none, after the operation.

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
    """Gives what detached operations define names that are free in a block's function."""
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
    """Whether something that stands in a region has a name."""
    if name not in names_of(region):
        return False
    if name not in region._definitions:
        # It was given since values were looked at.
        found: dict[str, list[Value]] = {}
        for value in definitions_in(region):
            if not isinstance(value, OpResult) or value._number <= 0:
                found.setdefault(value._base, []).append(value)
        found.setdefault(name, [])
        region._definitions = found
    return any(v._base == name and _stands_in(v, region) for v in region._definitions[name])


def _stands_in(value: Value, region: Region) -> bool:
    """Whether a value is defined by what stands in a region now."""
    block = value.owner if isinstance(value, BlockArgument) else value._holder.parent
    while isinstance(block, Block):
        if block.parent is region:
            return True
        block = block.parent.parent.parent
    return False


# ---- indentation


def _reindent(op: Operation, before: str, after: str) -> None:
    """Moves every line inside of an operation by as much as its first one moves."""
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
