"""Where values come from, as a reader of a kernel calls it: buffers and tokens."""

from __future__ import annotations

from triton_ext.analysis.alias_sets import view_source
from triton_ext.analysis.buffer_reference import BufferReferences
from triton_ext.ir import Block, BlockArgument, Operation, OpResult, Value
from triton_ext.ir.dialects import arith

__all__ = ["buffer_name", "token_origins", "variable_of"]

_ALLOCATION = "ttg.local_alloc"
_SLOT = "ttg.memdesc_index"


def buffer_name(buffer: Value, references: BufferReferences) -> str:
    """What a buffer is called: ``%a[2]`` for slot 2 of the allocation ``%a``.

    A part of ``%a`` that a loop carries is ``%a[...]``.  The variable of the user's program that
    an allocation comes from stands in front where it has another name: ``rows %12[2]``.
    """
    slots = ""
    while isinstance(buffer, OpResult) and buffer.owner.operands:
        op = buffer.owner
        if op.name == _SLOT and len(op.operands) > 1:
            slot = arith.constant_int(op.operands[1])
            slots = f"[{op.operands[1].name if slot is None else slot}]{slots}"
        source = view_source(op)
        if source is None:
            break
        buffer = source
    allocations = references.allocations(buffer)
    is_allocation = isinstance(buffer, OpResult) and buffer.owner.name == _ALLOCATION
    if is_allocation or not allocations:
        return f"{_called(buffer)}{slots}"
    return " or ".join(sorted(f"{_called(allocation)}[...]" for allocation in allocations))


def variable_of(value: Value) -> str | None:
    """The variable of the user's program that a value comes from, where its location says so."""
    loc = value.owner.loc if isinstance(value, OpResult) else None
    return loc.name if loc is not None else None


def _called(buffer: Value) -> str:
    variable = variable_of(buffer)
    return buffer.name if variable in (None, buffer.name[1:]) else f"{variable} {buffer.name}"


def token_origins(token: Value) -> tuple[Operation, ...]:
    """The operations that make a token, through what loops carry and branches hand out.

    An operation with regions that is not of ``scf`` is not looked into.
    """
    found: dict[Operation, None] = {}
    seen: set[Value] = set()
    left = [token]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, BlockArgument):
            left.extend(reversed(_handed_in(value)))
        elif isinstance(value, OpResult) and value.owner.regions:
            left.extend(reversed(_handed_out(value)))
        elif isinstance(value, OpResult):
            found[value.owner] = None
    return tuple(found)


def _handed_in(argument: BlockArgument) -> list[Value]:
    op = argument.owner.parent_op
    carried = argument.index - 1
    if op.name != "scf.for" or carried < 0:
        return []
    return _at(op.operands[3:], carried) + _at(_yielded(argument.owner), carried)


def _handed_out(result: OpResult) -> list[Value]:
    op = result.owner
    if not op.name.startswith("scf."):
        return []
    inits = _at(op.operands[3:], result.index) if op.name == "scf.for" else []
    blocks = [block for region in op.regions for block in region.blocks[-1:]]
    return inits + [value for block in blocks for value in _at(_yielded(block), result.index)]


def _yielded(block: Block) -> tuple[Value, ...]:
    last = block.ops[-1] if block.ops else None
    return last.operands if last is not None and last.name == "scf.yield" else ()


def _at(values: tuple[Value, ...], index: int) -> list[Value]:
    return [values[index]] if index < len(values) else []
