"""Views of ``scf`` operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..nodes import Block, Operation
from ..values import BlockArgument, OpResult, Value
from .view import OpReader, View

__all__ = ["ConditionOp", "ForOp", "IfOp", "WhileOp", "YieldOp"]


@dataclass(frozen=True, slots=True)
class ForOp(View):
    """``%r = scf.for %i = %lb to %ub step %s iter_args(%a = %init) -> (T) { ... }``.

    Attributes:
        lower_bound: First value of the induction variable.
        upper_bound: Exclusive upper bound.
        step: Step of the induction variable.
        inits: Initial value of each loop-carried value.
        body: The block; its first argument is the induction variable.
        results: Loop-carried values after the loop.
    """

    NAME: ClassVar[str] = "scf.for"
    lower_bound: Value
    upper_bound: Value
    step: Value
    inits: tuple[Value, ...]
    body: Block
    results: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> ForOp:
        op = reader.op
        bounds = reader.take(), reader.take(), reader.take()
        return cls(op, *bounds, reader.take_rest(), op.regions[0].blocks[0], op.results)

    @property
    def induction_variable(self) -> BlockArgument:
        """The induction variable."""
        return self.body.args[0]

    @property
    def is_unsigned(self) -> bool:
        """Returns whether the bounds are compared as unsigned numbers."""
        head = OpReader(self.op).head.split()
        return head[:1] == ["unsigned"] or "unsignedCmp" in self.op.attributes

    @property
    def iter_args(self) -> tuple[BlockArgument, ...]:
        """The loop-carried values in the body."""
        return self.body.args[1:]

    @property
    def yielded(self) -> tuple[Value, ...]:
        """The values that the body yields; empty if no ``scf.yield`` is printed."""
        terminator = self.body.terminator
        return terminator.operands if terminator is not None else ()


@dataclass(frozen=True, slots=True)
class IfOp(View):
    """``%r = scf.if %c -> (T) { ... } else { ... }``.

    Attributes:
        condition: The condition.
        then_block: Block of the first region.
        else_block: Block of the second one, or ``None``.
        results: The yielded values.
    """

    NAME: ClassVar[str] = "scf.if"
    condition: Value
    then_block: Block
    else_block: Block | None
    results: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> IfOp:
        op = reader.op
        blocks = [region.blocks[0] for region in op.regions]
        other = blocks[1] if len(blocks) > 1 else None
        return cls(op, reader.take(), blocks[0], other, op.results)


@dataclass(frozen=True, slots=True)
class WhileOp(View):
    """``%r = scf.while (%a = %init) : (T) -> U { ... } do { ... }``.

    Attributes:
        inits: Initial value of each argument of the first region.
        before: Block that ends in ``scf.condition``.
        after: Block that ends in ``scf.yield``.
        results: Values that the condition passes on when the loop ends.
    """

    NAME: ClassVar[str] = "scf.while"
    inits: tuple[Value, ...]
    before: Block
    after: Block
    results: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> WhileOp:
        op = reader.op
        before, after = (region.blocks[0] for region in op.regions)
        return cls(op, reader.take_rest(), before, after, op.results)


@dataclass(frozen=True, slots=True)
class YieldOp(View):
    """``scf.yield %a : T``, and ``ttg.warp_yield``.

    Attributes:
        values: The yielded values.
    """

    NAME: ClassVar[str] = "scf.yield"
    values: tuple[Value, ...]

    @classmethod
    def match(cls, op: Operation) -> YieldOp | None:
        """Returns the view of a yield, or ``None``."""
        return cls(op, op.operands) if op.name in ("scf.yield", "ttg.warp_yield") else None


@dataclass(frozen=True, slots=True)
class ConditionOp(View):
    """``scf.condition(%c) %a : T``.

    Attributes:
        condition: Whether the loop continues.
        values: Arguments of the second region, or the loop's results.
    """

    NAME: ClassVar[str] = "scf.condition"
    condition: Value
    values: tuple[Value, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> ConditionOp:
        return cls(reader.op, reader.take(), reader.take_rest())
