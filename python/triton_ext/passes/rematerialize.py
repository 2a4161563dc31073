"""Computes a tensor anew in another encoding, where that is cheap, instead of converting it.

A conversion of pointers may go through shared memory and a barrier; the few operations that make
pointers of a range and scalars cost a thread about as many instructions.

Safe direction: where an operation is not known here, nothing is computed and the caller converts.
Not handled: values that a loop carries, constants that are no splats, and what was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from triton_ext.ir import Builder, Module, Operation, OpResult, Value
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.dialects import OpReader, arith
from triton_ext.ir.edits import clone
from triton_ext.ir.encodings import DistributedEncoding, SliceEncoding
from triton_ext.ir.types import TensorType

__all__ = ["MOST_OPERATIONS", "can_be_computed", "rematerialized", "type_with"]

#: Operations that are computed anew for one value at most; a dear one counts for several.
MOST_OPERATIONS: Final = 16
# No GPU has an instruction that divides integers; by a constant it takes a product and a shift.
_DIVISIONS: Final = frozenset({"arith.divsi", "arith.divui", "arith.remsi", "arith.remui"})
_DIVISION_COST: Final = 12

# Operations without operands that are tensors, and those whose operands have the result's encoding.
_SOURCES: Final = frozenset({"tt.make_range", "tt.splat"})
_ARITH: Final = """
    addi subi muli andi ori xori shli shrsi shrui divsi divui remsi remui minsi minui maxsi maxui
    cmpi extsi extui trunci
"""
_ELEMENTWISE: Final = frozenset(
    {"tt.addptr", "tt.broadcast", *(f"arith.{name}" for name in _ARITH.split())}
)
_KNOWN: Final = _SOURCES | _ELEMENTWISE | {"tt.expand_dims"}


def rematerialized(value: Value, encoding: DistributedEncoding, op: Operation) -> Value | None:
    """The value in another encoding, computed in front of an operation that uses it.

    Args:
        value: A tensor.
        encoding: The encoding.
        op: The operation.

    Returns:
        The new value; ``None`` where it takes operations that are not known here, or too many.
    """
    module = op.module
    assert module is not None
    types = AliasTable(module.aliases)
    wanted = _plan(value, encoding, types)
    if wanted is None:
        return None
    made: dict[tuple[Value, DistributedEncoding], Value] = {}
    builder = Builder.before(op)
    for old, target in wanted:
        assert isinstance(old, OpResult)
        operands = {o: made[o, t] for o, t in _operands(old.owner, target, types)}
        new = clone(old.owner, builder, operands).results[0]
        new.set_type(type_with(old, target, module))
        made[old, target] = new
    return made[value, encoding]


def can_be_computed(value: Value, encoding: DistributedEncoding, types: AliasTable) -> bool:
    """Returns whether :func:`rematerialized` would compute a value in another encoding."""
    return _plan(value, encoding, types) is not None


def type_with(value: Value, encoding: DistributedEncoding, module: Module) -> str:
    """The type of a tensor with another encoding, which gets an alias."""
    type_ = AliasTable(module.aliases).type(value.type)
    assert isinstance(type_, TensorType)
    if not isinstance(encoding, SliceEncoding):
        module.add_alias(f"#{encoding.MNEMONIC.partition('.')[2]}", encoding.print())
    return replace(type_, encoding=encoding).print(AliasTable(module.aliases))


def _plan(
    value: Value, encoding: DistributedEncoding, types: AliasTable
) -> list[tuple[Value, DistributedEncoding]] | None:
    """Returns the values to compute, in order; ``None`` where one cannot be, or for too many."""
    wanted: dict[tuple[Value, DistributedEncoding], None] = {}
    # Ways to an operation are counted, not operations: a chain of x + x has few of these.
    left = MOST_OPERATIONS
    for one in _needed(value, encoding, types):
        if one is None:
            return None
        left -= _cost(one[0])
        if left < 0:
            return None
        wanted.pop(one, None)
        wanted[one] = None  # behind all that need it
    return list(reversed(wanted))


def _cost(value: Value) -> int:
    assert isinstance(value, OpResult)
    op = value.owner
    if op.name not in _DIVISIONS:
        return 1
    return 1 if _is_constant(op.operands[1]) else _DIVISION_COST


def _is_constant(value: Value) -> bool:
    op = value.owner if isinstance(value, OpResult) else None
    if op is not None and op.name == "tt.splat":
        return _is_constant(op.operands[0])
    return op is not None and op.name == arith.ConstantOp.NAME


def _needed(
    value: Value, encoding: DistributedEncoding, types: AliasTable
) -> Iterator[tuple[Value, DistributedEncoding] | None]:
    """Yields the values to compute, each before its operands; ``None`` for one that cannot be."""
    stack: list[tuple[Value, DistributedEncoding]] = [(value, encoding)]
    while stack:
        now, target = stack.pop(0)
        op = now.owner if isinstance(now, OpResult) else None
        if op is None or not _is_known(op):
            yield None
            return
        yield now, target
        stack += _operands(op, target, types)


def _is_known(op: Operation) -> bool:
    constant = arith.ConstantOp.match(op)
    return constant.is_splat if constant is not None else op.name in _KNOWN


def _operands(
    op: Operation, encoding: DistributedEncoding, types: AliasTable
) -> list[tuple[Value, DistributedEncoding]]:
    """The tensors that an operation needs, with the encodings that give its result one."""
    if op.name in _SOURCES or op.name == arith.ConstantOp.NAME:
        return []
    if op.name == "tt.expand_dims":
        encoding = SliceEncoding(OpReader(op).integer("axis"), encoding)
    return [(o, encoding) for o in op.operands if isinstance(types.type(o.type), TensorType)]
