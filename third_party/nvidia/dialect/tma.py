"""Views of ``ttng`` operations that move blocks with the TMA unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Value
from triton_ext.ir.dialects import OpReader, View

__all__ = [
    "AsyncTmaCopyGlobalToLocalOp",
    "AsyncTmaCopyLocalToGlobalOp",
    "AsyncTmaGatherOp",
    "AsyncTmaReduceOp",
    "AsyncTmaScatterOp",
    "TmaStoreWaitOp",
]


@dataclass(frozen=True, slots=True)
class AsyncTmaCopyGlobalToLocalOp(View):
    """``ttng.async_tma_copy_global_to_local %d[%i, %j] offsets = [%r] %buf, %bar, %pred : ..``.

    Attributes:
        desc: The descriptor, tiled or im2col.
        coord: Where the block starts, outermost first.
        offsets: Filter offsets, outermost first; only in im2col mode.
        result: The buffer that is written.
        barrier: The mbarrier that counts the bytes.
        pred: Whether the copy is issued.
        multicast: Whether all CTAs of the cluster get the block.
    """

    NAME: ClassVar[str] = "ttng.async_tma_copy_global_to_local"
    desc: Value
    coord: tuple[Value, ...]
    offsets: tuple[Value, ...]
    result: Value
    barrier: Value
    pred: Value
    multicast: bool

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTmaCopyGlobalToLocalOp:
        desc, coord, offsets = reader.take(), reader.take_bracket(), reader.take_bracket()
        rest = reader.take(), reader.take(), reader.take()
        return cls(reader.op, desc, coord, offsets, *rest, reader.flag("multicast"))

    @property
    def is_im2col(self) -> bool:
        """True for a descriptor in im2col mode."""
        return self.desc.type.startswith("!ttng.tensordesc_im2col<")


@dataclass(frozen=True, slots=True)
class AsyncTmaCopyLocalToGlobalOp(View):
    """``ttng.async_tma_copy_local_to_global %d[%i, %j] %buf : ..``.

    Attributes:
        desc: The descriptor.
        coord: Where the block starts, outermost first.
        src: The buffer that is read.
    """

    NAME: ClassVar[str] = "ttng.async_tma_copy_local_to_global"
    desc: Value
    coord: tuple[Value, ...]
    src: Value

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTmaCopyLocalToGlobalOp:
        return cls(reader.op, reader.take(), reader.take_bracket(), reader.take())


@dataclass(frozen=True, slots=True)
class AsyncTmaReduceOp(View):
    """``ttng.async_tma_reduce add, %d[%i, %j] %buf : ..``.

    Attributes:
        kind: ``add``, ``min``, ``max``, ``inc``, ``dec``, ``and``, ``or`` or ``xor``.
        desc: The descriptor.
        coord: Where the block starts, outermost first.
        src: The buffer that is read.
    """

    NAME: ClassVar[str] = "ttng.async_tma_reduce"
    kind: str
    desc: Value
    coord: tuple[Value, ...]
    src: Value

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTmaReduceOp:
        operands = reader.take(), reader.take_bracket(), reader.take()
        return cls(reader.op, reader.head, *operands)


@dataclass(frozen=True, slots=True)
class AsyncTmaGatherOp(View):
    """``ttng.async_tma_gather %d[%rows, %col] %buf, %bar, %pred : ..``.

    Attributes:
        desc: The descriptor.
        x_offsets: Tensor of row numbers.
        y_offset: First column.
        result: The buffer that is written.
        barrier: The mbarrier that counts the bytes.
        pred: Whether the copy is issued.
    """

    NAME: ClassVar[str] = "ttng.async_tma_gather"
    desc: Value
    x_offsets: Value
    y_offset: Value
    result: Value
    barrier: Value
    pred: Value

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTmaGatherOp:
        return cls(reader.op, *(reader.take() for _ in range(6)))


@dataclass(frozen=True, slots=True)
class AsyncTmaScatterOp(View):
    """``ttng.async_tma_scatter %d[%rows, %col] %buf : ..``.

    Attributes:
        desc: The descriptor.
        x_offsets: Tensor of row numbers.
        y_offset: First column.
        src: The buffer that is read.
    """

    NAME: ClassVar[str] = "ttng.async_tma_scatter"
    desc: Value
    x_offsets: Value
    y_offset: Value
    src: Value

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTmaScatterOp:
        return cls(reader.op, *(reader.take() for _ in range(4)))


@dataclass(frozen=True, slots=True)
class TmaStoreWaitOp(View):
    """``ttng.async_tma_store_wait {pendings = 0 : i32, read_only}``.

    Attributes:
        pendings: Stores that may be in flight behind the wait.
        read_only: Whether only reading from shared memory is waited for.
    """

    NAME: ClassVar[str] = "ttng.async_tma_store_wait"
    pendings: int
    read_only: bool

    @classmethod
    def _of(cls, reader: OpReader) -> TmaStoreWaitOp:
        return cls(reader.op, reader.integer("pendings"), reader.flag("read_only"))
