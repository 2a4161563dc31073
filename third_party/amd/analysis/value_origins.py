"""Names the buffers and tokens that values come from, for messages."""

from __future__ import annotations

from triton_ext.analysis.alias_sets import view_source
from triton_ext.analysis.buffer_reference import BufferReferences
from triton_ext.analysis.value_flow import ValueFlow
from triton_ext.ir import Operation, OpResult, Value
from triton_ext.ir.dialects import arith

__all__ = ["buffer_name", "token_origins", "variable_of"]

_ALLOCATION = "ttg.local_alloc"
_SLOT = "ttg.memdesc_index"


def buffer_name(buffer: Value, references: BufferReferences) -> str:
    """Returns the name of a buffer: ``%a[2]`` for slot 2 of the allocation ``%a``.

    A part of ``%a`` that a loop carries is ``%a[...]``.  The variable of the user's program comes
    first if it has another name: ``rows %12[2]``.
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
    """Returns the user's variable that a value comes from, if its location names one."""
    loc = value.owner.loc if isinstance(value, OpResult) else None
    return loc.name if loc is not None else None


def _called(buffer: Value) -> str:
    variable = variable_of(buffer)
    return buffer.name if variable in (None, buffer.name[1:]) else f"{variable} {buffer.name}"


def token_origins(token: Value) -> tuple[Operation, ...]:
    """Returns the operations that create a token, following control flow inside a function."""
    origins = ValueFlow().origins(token).values
    return tuple(dict.fromkeys(each.owner for each in origins if isinstance(each, OpResult)))
