"""Offsets in the text of a module (``allocation.offset``)."""

from __future__ import annotations

from dataclasses import replace

from ...ir import Operation
from ...ir.attribute_values import ArrayAttr, IntegerAttr, parse_attribute
from .buffers import Buffer, FunctionAllocation, ModuleAllocation

__all__ = ["as_written", "has_offsets", "written_offsets"]

_OFFSET = "allocation.offset"


def has_offsets(allocation: ModuleAllocation) -> bool:
    """Returns whether every buffer of a module has an offset in its text.

    Args:
        allocation: The module's buffers, with any offsets.
    """
    buffers = (
        b for f in allocation.functions.values() for b in f.buffers if b.op is not f.function
    )
    return all(_OFFSET in buffer.op.attributes for buffer in buffers)


def written_offsets(op: Operation) -> tuple[int, ...]:
    """Returns the offsets of an operation's memory, one for each partition.

    ``allocation.offset = 0 : i32``, or a list.

    Raises:
        VerifyError: The operation has none, or a malformed one.
    """
    text = op.attributes.get(_OFFSET)
    if text is None:
        op.fail(f"expected '{_OFFSET}': allocate the module's shared memory first")
    found = parse_attribute(text)
    numbers = found.items if isinstance(found, ArrayAttr) else (found,)
    offsets = [each.number for each in numbers if isinstance(each, IntegerAttr)]
    if len(offsets) != len(numbers) or not offsets or min(offsets) < 0:
        op.fail(
            f"expected a number of bytes, or one for each partition, as '{_OFFSET}', found {text}"
        )
    return tuple(offsets)


def as_written(allocation: ModuleAllocation) -> ModuleAllocation:
    """Returns a module's buffers with the offsets of its text.

    Args:
        allocation: The same buffers, with any offsets.

    Raises:
        VerifyError: An operation has no offset, or not as many as buffers.
    """
    functions = {op: _function(found) for op, found in allocation.functions.items()}
    return replace(allocation, functions=functions)


def _function(found: FunctionAllocation) -> FunctionAllocation:
    offsets: dict[Operation, tuple[int, ...]] = {}
    for buffer in found.buffers:
        if buffer.op not in offsets and _has_place(buffer, found):
            count = sum(each.op is buffer.op for each in found.buffers)
            offsets[buffer.op] = _offsets(buffer.op, count)
    buffers = tuple(
        replace(buffer, offset=offsets[buffer.op][buffer.index]) if buffer.op in offsets else buffer
        for buffer in found.buffers
    )
    total = max([buffer.end for buffer in buffers], default=0)
    return replace(found, buffers=buffers, total=total, is_optimal=total == found.lower_bound)


def _has_place(buffer: Buffer, found: FunctionAllocation) -> bool:
    # Triton 3.6 to 3.8 do not write the offset of a function's warp states.
    return buffer.op is not found.function or _OFFSET in buffer.op.attributes


def _offsets(op: Operation, count: int) -> tuple[int, ...]:
    offsets = written_offsets(op)
    if len(offsets) != count:
        expected = "a number of bytes" if count == 1 else f"{count} numbers of bytes"
        op.fail(f"expected {expected} as '{_OFFSET}', found {op.attributes[_OFFSET]}")
    return offsets
