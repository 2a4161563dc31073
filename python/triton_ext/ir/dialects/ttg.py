"""Views of ``ttg`` operations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from ..nodes import Block, Operation
from ..values import OpResult, Value
from .tt import UnaryOp
from .view import OpReader, View

__all__ = [
    "PARTITIONS",
    "AsyncCommitGroupOp",
    "AsyncCopyGlobalToLocalOp",
    "AsyncWaitOp",
    "ConvertLayoutOp",
    "LocalAllocOp",
    "LocalDeallocOp",
    "LocalLoadOp",
    "LocalStoreOp",
    "MemDescIndexOp",
    "MemDescReinterpretOp",
    "MemDescReshapeOp",
    "MemDescSubsliceOp",
    "MemDescTransOp",
    "Partition",
    "WarpSpecializeOp",
    "captures_of",
]

_OFFSETS = re.compile(r"\s*\[\s*((?:-?\d{1,18}(?:\s*,\s*-?\d{1,18})*)?)\s*\]", re.ASCII)
#: Name of the operation that holds the partitions of a ``ttg.warp_specialize``.
PARTITIONS: Final = "ttg.warp_specialize.partitions"
_NUM_WARPS = re.compile(r"num_warps\s*\(\s*(\d{1,9})\s*\)", re.ASCII)


def _token(reader: OpReader) -> OpResult | None:
    results = reader.op.results
    return results[0] if results else None


@dataclass(frozen=True, slots=True)
class AsyncCopyGlobalToLocalOp(View):
    """``%t = ttg.async_copy_global_to_local %src, %dst mask %m other %o : T -> <...>``.

    Attributes:
        src: Tensor of pointers.
        dst: The buffer.
        mask: Elements to read.
        other: Values of masked elements.
        contiguity: Elements known to be contiguous; 1 if not printed.
        token: The copy's token; ``None`` if the text does not name it.
    """

    NAME: ClassVar[str] = "ttg.async_copy_global_to_local"
    src: Value
    dst: Value
    mask: Value | None
    other: Value | None
    contiguity: int
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncCopyGlobalToLocalOp:
        operands = reader.take(), reader.take()
        optional = reader.take_optional("mask"), reader.take_optional("other")
        contiguity = reader.integer("contiguity", 1)
        return cls(reader.op, *operands, *optional, contiguity, _token(reader))


@dataclass(frozen=True, slots=True)
class AsyncCommitGroupOp(View):
    """``%g = ttg.async_commit_group tokens %t``.

    Attributes:
        tokens: Copies of the group.
        token: The group's token; ``None`` if the text does not name it.
    """

    NAME: ClassVar[str] = "ttg.async_commit_group"
    tokens: tuple[Value, ...]
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncCommitGroupOp:
        return cls(reader.op, reader.take_rest(), _token(reader))


@dataclass(frozen=True, slots=True)
class AsyncWaitOp(View):
    """``%w = ttg.async_wait %g {num = 2 : i32}``.

    Attributes:
        tokens: Groups to wait for.
        num: Groups that may remain in flight.
        token: The wait's token; ``None`` if the text does not name it.
    """

    NAME: ClassVar[str] = "ttg.async_wait"
    tokens: tuple[Value, ...]
    num: int
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncWaitOp:
        return cls(reader.op, reader.take_rest(), reader.integer("num"), _token(reader))


@dataclass(frozen=True, slots=True)
class LocalAllocOp(View):
    """``%b = ttg.local_alloc %src : (T) -> !ttg.memdesc<...>``.

    Attributes:
        src: Initial contents, if any.
        result: The buffer.
    """

    NAME: ClassVar[str] = "ttg.local_alloc"
    src: Value | None
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> LocalAllocOp:
        return cls(reader.op, reader.take_optional(), reader.result())


@dataclass(frozen=True, slots=True)
class LocalDeallocOp(View):
    """``ttg.local_dealloc %b : !ttg.memdesc<...>``.

    Attributes:
        src: The buffer.
    """

    NAME: ClassVar[str] = "ttg.local_dealloc"
    src: Value

    @classmethod
    def _of(cls, reader: OpReader) -> LocalDeallocOp:
        return cls(reader.op, reader.take())


@dataclass(frozen=True, slots=True)
class LocalLoadOp(View):
    """``%r = ttg.local_load %b token %t : !ttg.memdesc<...> -> T``.

    Attributes:
        src: The buffer.
        token: The wait that made the buffer readable.
        result: The tensor.
    """

    NAME: ClassVar[str] = "ttg.local_load"
    src: Value
    token: Value | None
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> LocalLoadOp:
        return cls(reader.op, reader.take(), reader.take_optional("token"), reader.result())


@dataclass(frozen=True, slots=True)
class LocalStoreOp(View):
    """``ttg.local_store %src, %b : T -> !ttg.memdesc<...>``.

    Attributes:
        src: The tensor.
        dst: The buffer.
    """

    NAME: ClassVar[str] = "ttg.local_store"
    src: Value
    dst: Value

    @classmethod
    def _of(cls, reader: OpReader) -> LocalStoreOp:
        return cls(reader.op, reader.take(), reader.take())


@dataclass(frozen=True, slots=True)
class MemDescIndexOp(View):
    """``%v = ttg.memdesc_index %b[%i] : T -> U``.

    Attributes:
        src: An array of buffers.
        index: Index of the buffer.
        result: The buffer.
    """

    NAME: ClassVar[str] = "ttg.memdesc_index"
    src: Value
    index: Value
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> MemDescIndexOp:
        return cls(reader.op, reader.take(), reader.take(), reader.result())


@dataclass(frozen=True, slots=True)
class MemDescSubsliceOp(View):
    """``%v = ttg.memdesc_subslice %b[0, 32] : T -> U``.

    Attributes:
        src: The buffer.
        offsets: Start of the slice, per dimension.
        result: The slice.
    """

    NAME: ClassVar[str] = "ttg.memdesc_subslice"
    src: Value
    offsets: tuple[int, ...]
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> MemDescSubsliceOp:
        src = reader.take()
        offsets = reader.integers("offsets")
        match = _OFFSETS.match(reader.words[1])
        if match is not None:
            offsets = tuple(int(x) for x in match[1].split(",") if x.strip())
        return cls(reader.op, src, offsets, reader.result())


@dataclass(frozen=True, slots=True)
class MemDescTransOp(View):
    """``%v = ttg.memdesc_trans %b {order = array<i32: 1, 0>} : T -> U``.

    Attributes:
        src: The buffer.
        order: Dimension of the source for each dimension of the result.
        result: The permuted view.
    """

    NAME: ClassVar[str] = "ttg.memdesc_trans"
    src: Value
    order: tuple[int, ...]
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> MemDescTransOp:
        return cls(reader.op, reader.take(), reader.integers("order"), reader.result())


@dataclass(frozen=True, slots=True)
class MemDescReshapeOp(UnaryOp):
    """``%v = ttg.memdesc_reshape %b : T -> U``."""

    NAME: ClassVar[str] = "ttg.memdesc_reshape"


@dataclass(frozen=True, slots=True)
class MemDescReinterpretOp(UnaryOp):
    """``%v = ttg.memdesc_reinterpret %b : T -> U``."""

    NAME: ClassVar[str] = "ttg.memdesc_reinterpret"


@dataclass(frozen=True, slots=True)
class ConvertLayoutOp(UnaryOp):
    """``%r = ttg.convert_layout %x : T -> U``."""

    NAME: ClassVar[str] = "ttg.convert_layout"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of ``ttg.warp_specialize``.

    Attributes:
        block: Its first block; the arguments are the captured values, in order.
        num_warps: Warps that run it.
    """

    block: Block
    num_warps: int


@dataclass(frozen=True, slots=True)
class WarpSpecializeOp(View):
    """``%r = ttg.warp_specialize(%a) default { ... } partition0(%x: T) num_warps(1) { ... }``.

    Attributes:
        captures: Captured values.
        default: First block of the default region.
        partitions: The partitions.
        requested_registers: Registers per thread of each partition; empty if not given.
        results: The values that the default region yields.
    """

    NAME: ClassVar[str] = "ttg.warp_specialize"
    captures: tuple[Value, ...]
    default: Block
    partitions: tuple[Partition, ...]
    requested_registers: tuple[int, ...]
    results: tuple[OpResult, ...]

    @classmethod
    def _of(cls, reader: OpReader) -> WarpSpecializeOp:
        op = reader.op
        if not op.regions:
            raise reader.fail("a region 'default'")
        default, *others = (region.blocks[0] for region in op.regions)
        warps = [int(match[1]) for match in _NUM_WARPS.finditer(reader.words[-1])]
        if len(warps) != len(others):
            warps = list(reader.integers("partitionNumWarps"))
        if len(warps) != len(others):
            raise reader.fail("the number of warps of each partition")
        partitions = tuple(Partition(b, n) for b, n in zip(others, warps, strict=True))
        registers = reader.integers("requestedRegisters")
        return cls(op, reader.take_rest(), default, partitions, registers, op.results)


def captures_of(op: Operation) -> tuple[Value, ...]:
    """Returns the captured values of a ``ttg.warp_specialize``.

    Args:
        op: A ``ttg.warp_specialize``, or the nested operation with the partitions.  If that has no
            operands, the captures are those of the enclosing operation.
    """
    around = op
    while around.name == PARTITIONS and not around.operands and around.parent_op is not None:
        around = around.parent_op
    return around.operands
