"""Views of ``tt`` operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..attribute_values import Attribute
from ..nodes import Operation
from ..values import OpResult, Value
from .view import OpReader, View

__all__ = [
    "AddPtrOp",
    "BroadcastOp",
    "DescriptorLoadOp",
    "DescriptorStoreOp",
    "DotOp",
    "ExpandDimsOp",
    "LoadOp",
    "MakeRangeOp",
    "SplatOp",
    "StoreOp",
    "TransOp",
    "UnaryOp",
]


@dataclass(frozen=True, slots=True)
class LoadOp(View):
    """``%r = tt.load %ptr, %mask, %other : T``.

    Attributes:
        ptr: Pointer, or tensor of pointers.
        mask: Elements to read.
        other: Values of masked elements.
        cache_policy: The policy (3.9), or ``None``.
        result: The loaded value.
    """

    NAME: ClassVar[str] = "tt.load"
    ptr: Value
    mask: Value | None
    other: Value | None
    cache_policy: Attribute | None
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> LoadOp:
        operands = reader.take(), reader.take_optional(), reader.take_optional()
        return cls(reader.op, *operands, reader.attribute("cachePolicy"), reader.result())


@dataclass(frozen=True, slots=True)
class StoreOp(View):
    """``tt.store %ptr, %value, %mask : T``.

    Attributes:
        ptr: Pointer, or tensor of pointers.
        value: The stored value.
        mask: Elements to write.
    """

    NAME: ClassVar[str] = "tt.store"
    ptr: Value
    value: Value
    mask: Value | None

    @classmethod
    def _of(cls, reader: OpReader) -> StoreOp:
        return cls(reader.op, reader.take(), reader.take(), reader.take_optional())


@dataclass(frozen=True, slots=True)
class AddPtrOp(View):
    """``%r = tt.addptr %ptr, %offset : T, U``.

    Attributes:
        ptr: Pointer, or tensor of pointers.
        offset: Offset in elements.
        result: The moved pointer.
    """

    NAME: ClassVar[str] = "tt.addptr"
    ptr: Value
    offset: Value
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> AddPtrOp:
        return cls(reader.op, reader.take(), reader.take(), reader.result())


@dataclass(frozen=True, slots=True)
class MakeRangeOp(View):
    """``%r = tt.make_range {end = 128 : i32, start = 0 : i32} : T``.

    Attributes:
        start: First number.
        end: One more than the last number.
        result: The range.
    """

    NAME: ClassVar[str] = "tt.make_range"
    start: int
    end: int
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> MakeRangeOp:
        bounds = reader.integer("start"), reader.integer("end")
        return cls(reader.op, *bounds, reader.result())


@dataclass(frozen=True, slots=True)
class UnaryOp(View):
    """An operation of one operand and one result.

    Attributes:
        src: The operand.
        result: The result.
    """

    src: Value
    result: OpResult

    @classmethod
    def match(cls, op: Operation) -> UnaryOp | None:
        """Returns the view of an operation of this class's name; for the base, of any one."""
        name = getattr(cls, "NAME", op.name)
        if op.name != name or len(op.operands) != 1 or len(op.results) != 1:
            return None
        return cls(op, op.operands[0], op.results[0])


@dataclass(frozen=True, slots=True)
class SplatOp(UnaryOp):
    """``%r = tt.splat %x : T -> U``."""

    NAME: ClassVar[str] = "tt.splat"


@dataclass(frozen=True, slots=True)
class BroadcastOp(UnaryOp):
    """``%r = tt.broadcast %x : T -> U``."""

    NAME: ClassVar[str] = "tt.broadcast"


@dataclass(frozen=True, slots=True)
class ExpandDimsOp(View):
    """``%r = tt.expand_dims %x {axis = 1 : i32} : T -> U``.

    Attributes:
        src: The tensor.
        axis: Index of the new dimension.
        result: The tensor with an additional dimension of size 1.
    """

    NAME: ClassVar[str] = "tt.expand_dims"
    src: Value
    axis: int
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> ExpandDimsOp:
        return cls(reader.op, reader.take(), reader.integer("axis"), reader.result())


@dataclass(frozen=True, slots=True)
class TransOp(View):
    """``%r = tt.trans %x {order = array<i32: 1, 0>} : T -> U``.

    Attributes:
        src: The tensor.
        order: Dimension of the source for each dimension of the result.
        result: The permuted tensor.
    """

    NAME: ClassVar[str] = "tt.trans"
    src: Value
    order: tuple[int, ...]
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> TransOp:
        return cls(reader.op, reader.take(), reader.integers("order"), reader.result())


@dataclass(frozen=True, slots=True)
class DotOp(View):
    """``%d = tt.dot %a, %b, %c : T * U -> V``.

    Attributes:
        a: Left operand.
        b: Right operand.
        c: The accumulator.
        result: The result.
    """

    NAME: ClassVar[str] = "tt.dot"
    a: Value
    b: Value
    c: Value
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> DotOp:
        operands = reader.take(), reader.take(), reader.take()
        return cls(reader.op, *operands, reader.result())


@dataclass(frozen=True, slots=True)
class DescriptorLoadOp(View):
    """``%r = tt.descriptor_load %desc[%i, %j] : T -> U``.

    Attributes:
        desc: The descriptor.
        indices: Start of the block, outermost first.
        result: The block.
    """

    NAME: ClassVar[str] = "tt.descriptor_load"
    desc: Value
    indices: tuple[Value, ...]
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> DescriptorLoadOp:
        return cls(reader.op, reader.take(), reader.take_bracket(), reader.result())


@dataclass(frozen=True, slots=True)
class DescriptorStoreOp(View):
    """``tt.descriptor_store %desc[%i, %j], %src : T, U``.

    Attributes:
        desc: The descriptor.
        indices: Start of the block, outermost first.
        src: The block.
    """

    NAME: ClassVar[str] = "tt.descriptor_store"
    desc: Value
    indices: tuple[Value, ...]
    src: Value

    @classmethod
    def _of(cls, reader: OpReader) -> DescriptorStoreOp:
        return cls(reader.op, reader.take(), reader.take_bracket(), reader.take())
