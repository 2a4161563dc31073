"""Edits that change an operation together with its regions, types and users.

Each takes valid IR and leaves valid IR: printed syntax, names, types and def-use chains match those
that the host would print and build itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from . import lexer
from .builder import Builder, fresh_name, indentation, naming_region
from .nodes import Block, Operation, Region
from .segments import (
    ArgumentSlot,
    AttributesSlot,
    OperandSlot,
    OperandTypeSlot,
    RegionSlot,
    Segment,
    ValueTypeSlot,
    cut,
    declaration_end,
    find_declaration,
)
from .values import BlockArgument, OpResult, Value

__all__ = [
    "append_block_argument",
    "append_captures",
    "append_if_results",
    "append_iter_args",
    "append_while_args",
]


P = ParamSpec("P")
R = TypeVar("R")


def _as_printed(edit: Callable[P, R]) -> Callable[P, R]:
    """Decorates an edit to refuse operations that MLIR would print differently."""

    @functools.wraps(edit)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return edit(*args, **kwargs)
        except (AssertionError, IndexError, StopIteration, ValueError) as error:
            place = args[0]
            op = place.parent_op if isinstance(place, Block) else place
            assert isinstance(op, Operation)  # the signatures of the edits
            raise op.error(f"cannot edit '{op.name}': MLIR would print it differently") from error

    return checked


@_as_printed
def append_if_results(
    if_op: Operation, then_values: Sequence[Value], else_values: Sequence[Value]
) -> tuple[OpResult, ...]:
    """Adds results to an ``scf.if``, and an else region if there is none.

    Args:
        if_op: The operation.
        then_values: The additional values that its first region yields.
        else_values: Values that its second region yields, of the same types.

    Raises:
        VerifyError: This is not an ``scf.if``, or the values do not pair up.
    """
    _expect(if_op, "scf.if")
    types = _common_types(if_op, then_values, else_values)
    if not types:
        return ()
    segments = cut(if_op)
    if len(if_op._regions) == 1:
        _add_else(if_op, segments)
    had_results = bool(if_op._results)
    results = _append_results(if_op, types)
    if had_results:
        at = _last(segments, ValueTypeSlot) + 1
        segments[at:at] = _listed([ValueTypeSlot(result) for result in results])
        _put_types_in_parentheses(segments)
    else:
        at = _first(segments, OperandSlot) + 1
        segments[at:at] = [" -> (", *_joined([ValueTypeSlot(r) for r in results]), ")"]
    for region, values in zip(if_op._regions, (then_values, else_values), strict=True):
        _extend_terminator(region._blocks[-1], "scf.yield", values)
    if_op._touch()
    return results


@_as_printed
def append_iter_args(
    loop_op: Operation, inits: Sequence[Value]
) -> tuple[tuple[BlockArgument, OpResult], ...]:
    """Adds loop-carried values to an ``scf.for``, each yielding itself.

    The caller replaces the new operands of the yield by the values of the next iteration.

    Args:
        loop_op: The operation.
        inits: The initial values.

    Returns:
        The argument in the body and the result of the loop, for each value.

    Raises:
        VerifyError: This is not an ``scf.for``; for ``scf.while`` see :func:`append_while_args`.
    """
    _expect(loop_op, "scf.for")
    if not inits:
        return ()
    types = [value.type for value in inits]
    segments = cut(loop_op)
    body = loop_op._regions[0]._blocks[0]
    had_results = bool(loop_op._results)
    args = _append_arguments(body, inits, types)
    first = len(loop_op._operands)
    _append_operands(loop_op, inits)
    pairs = _assignments(args, first)
    results = _append_results(loop_op, types)
    slots: list[Segment] = [ValueTypeSlot(result) for result in results]
    if had_results:
        at = max(i for i, s in enumerate(segments) if _is_result_type(s)) + 1
        segments[at:at] = _listed(slots)
        _put_types_in_parentheses(segments)
        at = _last(segments, OperandSlot, first) + 1
        segments[at:at] = [", ", *pairs]
    else:
        at = _last(segments, OperandSlot, first) + 1
        segments[at:at] = [" iter_args(", *pairs, ") -> (", *_joined(slots), ")"]
    _extend_terminator(body, "scf.yield", args)
    loop_op._touch()
    return tuple(zip(args, results, strict=True))


@_as_printed
def append_while_args(
    loop_op: Operation, inits: Sequence[Value]
) -> tuple[tuple[BlockArgument, BlockArgument, OpResult], ...]:
    """Adds loop-carried values to an ``scf.while``, each passed on unchanged.

    Args:
        loop_op: The operation.
        inits: The initial values.

    Returns:
        For each value the argument of the region before ``do``, that of the one after it, and the
        result.

    Raises:
        VerifyError: This is not an ``scf.while`` with both of its regions.
    """
    _expect(loop_op, "scf.while")
    if len(loop_op._regions) != 2:
        loop_op.fail("expected an 'scf.while' with two regions")
    if not inits:
        return ()
    types = [value.type for value in inits]
    segments = cut(loop_op)
    before, after = (region._blocks[0] for region in loop_op._regions)
    had_inits, had_results = bool(loop_op._operands), bool(loop_op._results)
    before_args = _append_arguments(before, inits, types)
    first = len(loop_op._operands)
    _append_operands(loop_op, inits)
    results = _append_results(loop_op, types)
    pairs = _assignments(before_args, first)
    inputs: list[Segment] = [OperandTypeSlot(first + i) for i in range(len(inits))]
    outputs: list[Segment] = [ValueTypeSlot(result) for result in results]
    if had_results:
        at = _last(segments, ValueTypeSlot) + 1
        segments[at:at] = _listed(outputs)
        _put_types_in_parentheses(segments)
    else:
        _insert_in_literal(loop_op, segments, "-> (", _joined(outputs))
    if had_inits:
        at = _last(segments, OperandTypeSlot) + 1
        segments[at:at] = _listed(inputs)
        at = _last(segments, OperandSlot, first) + 1
        segments[at:at] = [", ", *pairs]
    else:
        _insert_in_literal(loop_op, segments, ": (", _joined(inputs))
        _insert_in_literal(loop_op, segments, "scf.while", [" (", *pairs, ")"])
    after_args = _append_label_arguments(after, inits, types)
    _extend_terminator(before, "scf.condition", before_args)
    _extend_terminator(after, "scf.yield", after_args)
    loop_op._touch()
    return tuple(zip(before_args, after_args, results, strict=True))


@_as_printed
def append_captures(
    ws_op: Operation, values: Sequence[Value]
) -> tuple[tuple[BlockArgument, ...], ...]:
    """Adds captures to the partitions of a ``ttg.warp_specialize``.

    Args:
        ws_op: The operation.
        values: The values; the default region uses them directly.

    Returns:
        For each partition its new arguments.

    Raises:
        VerifyError: This is not a ``ttg.warp_specialize`` in its custom form.
    """
    _expect(ws_op, "ttg.warp_specialize")
    if not values:
        return tuple(() for _ in ws_op._regions[1:])
    types = [value.type for value in values]
    segments = cut(ws_op)
    first = len(ws_op._operands)
    _append_operands(ws_op, values)
    names: list[Segment] = [OperandSlot(first + i) for i in range(len(values))]
    slots: list[Segment] = [OperandTypeSlot(first + i) for i in range(len(values))]
    if first:
        at = _last(segments, OperandTypeSlot) + 1
        segments[at:at] = _listed(slots)
        at = _last(segments, OperandSlot, first) + 1
        segments[at:at] = _listed(names)
    else:
        # The types come last, so earlier offsets stay valid.
        _insert_in_literal(ws_op, segments, ": (", _joined(slots), last=True)
        _insert_in_literal(ws_op, segments, "ttg.warp_specialize(", _joined(names))
    found = []
    for number, region in enumerate(ws_op._regions[1:]):
        block = region._blocks[0]
        had_args = bool(block._args)
        old = block._args[-1] if had_args else None
        args = _append_arguments(block, values, types, with_locations=True)
        pieces = _declarations(args)
        if old is None:
            _insert_in_literal(ws_op, segments, f"partition{number}(", pieces)
        else:
            _insert_behind_argument(segments, old, [", ", *pieces])
        found.append(tuple(args))
    ws_op._touch()
    return tuple(found)


@_as_printed
def append_block_argument(block: Block, incoming: Sequence[Value]) -> BlockArgument:
    """Adds an argument to a block that ``cf.br`` and ``cf.cond_br`` branch to.

    Args:
        block: A block with a label, not the first of its region.
        incoming: The values, one for each edge into the block: predecessors in printed order, and
            the edges of each in the order of its successors.

    Raises:
        VerifyError: The block cannot have predecessors, or their number differs.
    """
    edges = [
        (op, number)
        for op in block.predecessors
        for number, successor in enumerate(op._successors)
        if successor is block
    ]
    if block.label is None or block.parent._blocks[0] is block:
        block.parent_op.fail("cannot add an argument to the first block of a region")
    if len(edges) != len(incoming) or not edges:
        block.parent_op.fail(
            f"expected a value for each of the {len(edges)} edges into '{block.label}',"
            f" found {len(incoming)}"
        )
    types = _common_types(block.parent_op, [incoming[0]] * len(incoming), incoming)
    for op, _ in edges:
        _expect(op, "cf.br", "cf.cond_br")
    for (op, number), value in zip(edges, incoming, strict=True):
        _append_to_successor(op, number, value)
    return _append_label_arguments(block, incoming[:1], types[:1])[0]


# ---- helpers: the tree


def _expect(op: Operation, *names: str) -> None:
    """Refuses other operations, and the generic form, whose text these edits do not support."""
    if op.name not in names:
        op.fail(f"expected {' or '.join(repr(name) for name in names)}, found '{op.name}'")
    if op.is_quoted:
        op.fail(f"cannot edit '{op.name}' in its generic form: print the module with the host")


def _common_types(op: Operation, left: Sequence[Value], right: Sequence[Value]) -> list[str]:
    if len(left) != len(right):
        op.fail(f"expected as many values on both sides, found {len(left)} and {len(right)}")
    types = []
    for one, other in zip(left, right, strict=True):
        if one.type != other.type:
            op.fail(
                f"'{one.name}' and '{other.name}' must have one type, found '{one.type}'"
                f" and '{other.type}'"
            )
        types.append(one.type)
    return types


def _append_operands(op: Operation, values: Sequence[Value]) -> None:
    for value in values:
        op._operands.append(value)
        value._add_user(op)


def _append_results(op: Operation, types: Sequence[str]) -> tuple[OpResult, ...]:
    """Appends results to the last group, whose users now print other names."""
    results = op._results
    first = len(results)
    if results:
        _ = results[-1].name  # names it if the text does not
        base, number = results[-1]._base, results[-1]._number
        if number < 0:
            for user in dict.fromkeys(results[-1]._users):
                cut(user)
                user._touch()
            results[-1]._number = number = 0
    else:
        assert op.parent is not None  # structured operations are in a block
        word = op.name.rpartition(".")[2]
        base, number = fresh_name(naming_region(op.parent), word), -1
    for offset, type_ in enumerate(types, 1):
        single = number < 0 and len(types) == 1
        results.append(OpResult(op, len(results), base, -1 if single else number + offset, type_))
    return tuple(results[first:])


def _append_arguments(
    block: Block, values: Sequence[Value], types: Sequence[str], *, with_locations: bool = False
) -> list[BlockArgument]:
    region = naming_region(block)
    args = []
    for value, type_ in zip(values, types, strict=True):
        name = fresh_name(region, value._base)
        arg = BlockArgument(block, len(block._args), name, type_)
        if with_locations:
            arg.loc_text = _location_of(block, value)
        block._args.append(arg)
        args.append(arg)
    return args


def _location_of(block: Block, value: Value) -> str | None:
    """Returns the value's location, or ``None`` in a module without locations."""
    if isinstance(value, BlockArgument):
        raw = value.loc_text
    else:
        owner = value.owner
        raw = owner.loc_text if isinstance(owner, Operation) else None
    module = block.parent_op.module
    if raw is None and module is not None and module.op.loc_text is not None:
        return "loc(unknown)"
    return raw


def _append_label_arguments(
    block: Block, values: Sequence[Value], types: Sequence[str]
) -> list[BlockArgument]:
    """Appends arguments to a block's label, and creates the label if needed."""
    if block.label is None:
        block.label = "^bb0"
        holder = block.parent_op
        block._lead = f"\n{indentation(holder)}"
        block._label_segments = ["^bb0", ":"]
    block._touch_label()
    segments = block._label_segments
    assert segments is not None  # cut or made above
    old = block._args[-1] if block._args else None
    args = _append_arguments(block, values, types, with_locations=True)
    pieces = _declarations(args)
    if old is not None:
        _insert_behind_argument(segments, old, [", ", *pieces])
    else:
        head = segments[0]
        assert isinstance(head, str)  # a label without arguments is literal
        rest = head[len(block.label) :].removeprefix("()")
        segments[:1] = [block.label, "(", *pieces, ")", rest]
    return args


def _extend_terminator(block: Block, name: str, values: Sequence[Value]) -> None:
    """Adds operands to the terminator of a block, and creates it if it is not printed."""
    terminator = block.terminator
    if terminator is None:
        slots = ", ".join(f"{{{index}}}" for index in range(len(values)))
        types = ", ".join(f"{{{index}.type}}" for index in range(len(values)))
        Builder.at_end(block).create(name, values, text=f"{name} {slots} : {types}")
        return
    _expect(terminator, name)
    segments = cut(terminator)
    first = len(terminator._operands)
    _append_operands(terminator, values)
    names: list[Segment] = [OperandSlot(first + i) for i in range(len(values))]
    types_: list[Segment] = [OperandTypeSlot(first + i) for i in range(len(values))]
    typed = [i for i, segment in enumerate(segments) if isinstance(segment, OperandTypeSlot)]
    if typed:
        segments[typed[-1] + 1 : typed[-1] + 1] = _listed(types_)
        at = _last(segments, OperandSlot, first) + 1
        segments[at:at] = _listed(names)
    else:
        pieces = [" ", *_joined(names), " : ", *_joined(types_)]
        if name == "scf.condition":
            _insert_in_literal(terminator, segments, ")", pieces)
        elif any(isinstance(segment, AttributesSlot) for segment in segments):
            at = _last(segments, AttributesSlot) + 1
            segments[at:at] = pieces
        else:
            _insert_in_literal(terminator, segments, name, pieces)
    terminator._touch()


def _add_else(if_op: Operation, segments: list[Segment]) -> None:
    """Gives an ``scf.if`` an empty second region."""
    region = Region(if_op, if_op.source, isolated=False)
    region._blocks.append(Block(region))
    region._tail = f"\n{indentation(if_op)}"
    at = _last(segments, RegionSlot) + 1
    closing = segments[at]
    assert isinstance(closing, str)  # the brace after a region is literal
    assert closing.startswith("}")
    if_op._regions.append(region)
    segments[at : at + 1] = ["} else {", RegionSlot(region), closing]


# ---- helpers: segments


def _first(segments: list[Segment], kind: type) -> int:
    return next(i for i, segment in enumerate(segments) if isinstance(segment, kind))


def _last(segments: list[Segment], kind: type, below: int | None = None) -> int:
    """Returns the index of the last slot of a kind; for operands, the last below a number."""
    return max(
        i
        for i, segment in enumerate(segments)
        if isinstance(segment, kind)
        and (below is None or (isinstance(segment, OperandSlot) and segment.index < below))
    )


def _is_result_type(segment: Segment) -> bool:
    return isinstance(segment, ValueTypeSlot) and isinstance(segment.value, OpResult)


def _joined(pieces: Sequence[Segment]) -> list[Segment]:
    """Returns the pieces separated by commas."""
    return _listed(pieces)[1:]


def _listed(pieces: Sequence[Segment]) -> list[Segment]:
    """Returns the pieces with a comma before each."""
    return [segment for piece in pieces for segment in (", ", piece)]


def _assignments(args: Sequence[BlockArgument], first: int) -> list[Segment]:
    """``%arg = %init`` for each argument."""
    pieces: list[Segment] = []
    for offset, arg in enumerate(args):
        pieces += [", ", ArgumentSlot(arg), " = ", OperandSlot(first + offset)]
    return pieces[1:]


def _declarations(args: Sequence[BlockArgument]) -> list[Segment]:
    """``%arg: type loc(...)`` for each argument."""
    pieces: list[Segment] = []
    for arg in args:
        pieces += [", ", ArgumentSlot(arg), ": ", ValueTypeSlot(arg)]
        if arg.loc_text is not None:
            pieces.append(f" {arg.loc_text}")
    return pieces[1:]


def _insert_in_literal(
    op: Operation, segments: list[Segment], mark: str, pieces: list[Segment], *, last: bool = False
) -> None:
    """Inserts pieces after the first (or last) occurrence of a literal text."""
    numbers = range(len(segments))
    for index in reversed(numbers) if last else numbers:
        literal = segments[index]
        if isinstance(literal, str) and mark in literal:
            at = (literal.rfind(mark) if last else literal.find(mark)) + len(mark)
            parts: list[Segment] = [literal[:at], *pieces, literal[at:]]
            segments[index : index + 1] = [part for part in parts if part != ""]
            return
    op.fail(f"expected '{mark}' in the text of '{op.name}'")


def _insert_behind_argument(
    segments: list[Segment], arg: BlockArgument, pieces: list[Segment]
) -> None:
    """Inserts pieces after an argument's type, attributes and location."""
    at = find_declaration(segments, arg)
    assert at is not None  # at least the parenthesis follows
    literal = segments[at]
    assert isinstance(literal, str)  # found above
    end = declaration_end(literal, arg)
    parts: list[Segment] = [literal[:end], *pieces, literal[end:]]
    segments[at : at + 1] = [part for part in parts if part != ""]


def _merge_literals(segments: list[Segment]) -> None:
    """Joins adjacent literal pieces."""
    merged: list[Segment] = []
    for segment in segments:
        if isinstance(segment, str) and merged and isinstance(merged[-1], str):
            merged[-1] += segment
        else:
            merged.append(segment)
    segments[:] = merged


def _put_types_in_parentheses(segments: list[Segment]) -> None:
    """Adds the parentheses that a single result type may lack."""
    types = [i for i, segment in enumerate(segments) if _is_result_type(segment)]
    before = segments[types[0] - 1]
    if not isinstance(before, str) or not before.endswith("("):
        segments.insert(types[-1] + 1, ")")
        segments.insert(types[0], "(")


def _append_to_successor(op: Operation, number: int, value: Value) -> None:
    """Adds an operand to one successor of a branch."""
    segments = cut(op)
    _merge_literals(segments)
    at, end = _find_successor(op, segments, number)
    literal = segments[at]
    assert isinstance(literal, str)  # names of blocks are literal
    if literal.startswith("(", end):
        # After the last name and the last type of this successor's list.
        close = next(
            i
            for i in range(at + 1, len(segments))
            if isinstance(s := segments[i], str) and s.startswith(")")
        )
        names = [i for i in range(at, close) if isinstance(segments[i], OperandSlot)]
        slot = segments[names[-1]]
        assert isinstance(slot, OperandSlot)
        index = slot.index + 1
        _renumber(segments, index)
        segments[close:close] = [", ", OperandTypeSlot(index)]
        segments[names[-1] + 1 : names[-1] + 1] = [", ", OperandSlot(index)]
    else:
        index = sum(isinstance(segment, OperandSlot) for segment in segments[:at])
        _renumber(segments, index)
        pieces: list[Segment] = ["(", OperandSlot(index), " : ", OperandTypeSlot(index), ")"]
        parts: list[Segment] = [literal[:end], *pieces, literal[end:]]
        segments[at : at + 1] = [part for part in parts if part != ""]
    op._operands.insert(index, value)
    value._add_user(op)
    op._touch()


def _find_successor(op: Operation, segments: list[Segment], number: int) -> tuple[int, int]:
    """Returns the segment that names a successor, and the offset after the name in it."""
    for index, segment in enumerate(segments):
        if isinstance(segment, str):
            for match in lexer.BLOCK_NAME.finditer(segment):
                if number == 0:
                    return index, match.end()
                number -= 1
    op.fail(f"expected the name of a block in '{op.name}'")


def _renumber(segments: list[Segment], first: int) -> None:
    """Increments operand numbers from ``first`` on, to make room for an operand."""
    for index, segment in enumerate(segments):
        if isinstance(segment, OperandSlot) and segment.index >= first:
            segments[index] = replace(segment, index=segment.index + 1)
        elif isinstance(segment, OperandTypeSlot) and segment.index >= first:
            segments[index] = OperandTypeSlot(segment.index + 1, segment.spelling)
