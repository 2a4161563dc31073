"""Typed views of ``amdg`` operations.

TDM operations have two printed forms.  Up to 3.7 a copy has coordinates and a predicate,
``%d[%i, %j] into %m, %pred``.  From 3.8 on ``amdg.update_tensor_descriptor`` puts them into the
descriptor, and the copy is ``%d into %m``.  One view reads both; fields that a form lacks are
empty or ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Operation, OpResult, Value
from triton_ext.ir.dialects import OpReader, View

__all__ = [
    "AsyncCopyLocalToGlobalOp",
    "AsyncTdmCopyGlobalToLocalOp",
    "AsyncTdmCopyLocalToGlobalOp",
    "AsyncTdmFusedCopyGlobalToLocalOp",
    "AsyncTdmGatherOp",
    "AsyncTdmScatterOp",
    "AsyncWaitOp",
    "BufferAtomicRmwOp",
    "BufferLoadOp",
    "BufferLoadToLocalOp",
    "BufferStoreOp",
    "TdmCopy",
    "TdmWaitOp",
    "UpdateTensorDescriptorOp",
]


def _first(results: tuple[OpResult, ...]) -> OpResult | None:
    return results[0] if results else None


# ---- tensor data mover


@dataclass(frozen=True, slots=True)
class TdmCopy(View):
    """Base of the TDM copies of one block.

    Attributes:
        desc: The descriptor.
        indices: Coordinates, outermost first; empty from 3.8 on.
        buffer: The LDS buffer.
        pred: Whether to execute the copy (3.6: i1, 3.7: i32); ``None`` from 3.8 on and for stores.
        barrier: mbarrier that the copy arrives at, if any.
        token: The copy's token; ``None`` for stores before 3.9.
    """

    desc: Value
    indices: tuple[Value, ...]
    buffer: Value
    pred: Value | None
    barrier: Value | None
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> TdmCopy:
        desc, indices, buffer = reader.take(), reader.take_bracket(), reader.take()
        pred = barrier = None
        if not reader.follows("barrier"):
            pred = reader.take_optional(",")
        barrier = reader.take_optional("barrier")
        return cls(reader.op, desc, indices, buffer, pred, barrier, _first(reader.op.results))

    @property
    def warp_used_hint(self) -> int | None:
        """Bit mask of the waves that issue the copy, or ``None``."""
        return OpReader(self.op).optional_integer("warp_used_hint")


@dataclass(frozen=True, slots=True)
class AsyncTdmCopyGlobalToLocalOp(TdmCopy):
    """``%t = amdg.async_tdm_copy_global_to_local %d into %m : D -> M``."""

    NAME: ClassVar[str] = "amdg.async_tdm_copy_global_to_local"


@dataclass(frozen=True, slots=True)
class AsyncTdmCopyLocalToGlobalOp(TdmCopy):
    """``amdg.async_tdm_copy_local_to_global %d from %m : M -> D``."""

    NAME: ClassVar[str] = "amdg.async_tdm_copy_local_to_global"


@dataclass(frozen=True, slots=True)
class AsyncTdmFusedCopyGlobalToLocalOp(View):
    """``%t = amdg.async_tdm_fused_copy_global_to_local %d, %d2 into %m, %m2 {..} : ..`` (3.9).

    Attributes:
        descs: The descriptors.
        buffers: The LDS buffers, one for each.
        warp_used_hints: Bit masks of the waves that issue each part.
        token: The copy's token.
    """

    NAME: ClassVar[str] = "amdg.async_tdm_fused_copy_global_to_local"
    descs: tuple[Value, ...]
    buffers: tuple[Value, ...]
    warp_used_hints: tuple[int, ...]
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncTdmFusedCopyGlobalToLocalOp:
        descs, buffers = reader.take_until("into"), reader.take_rest()
        hints = reader.integers("warp_used_hints")
        return cls(reader.op, descs, buffers, hints, _first(reader.op.results))


@dataclass(frozen=True, slots=True)
class _Rows(View):
    """Base of gather and scatter.

    Attributes:
        desc: The descriptor.
        row_indices: Tensor of row indices.
        column: First column; ``None`` from 3.8 on.
        buffer: The LDS buffer.
        pred: Whether to execute the copy, if given.
        barrier: mbarrier that the copy arrives at, if any.
        token: The copy's token.
    """

    desc: Value
    row_indices: Value
    column: Value | None
    buffer: Value
    pred: Value | None
    barrier: Value | None
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> _Rows:
        desc, indices, buffer = reader.take(), reader.take_bracket(), reader.take()
        if not indices:
            raise reader.fail("row indices in brackets")
        column = indices[1] if len(indices) > 1 else None
        pred = None if reader.follows("barrier") else reader.take_optional(",")
        barrier = reader.take_optional("barrier")
        token = _first(reader.op.results)
        return cls(reader.op, desc, indices[0], column, buffer, pred, barrier, token)


@dataclass(frozen=True, slots=True)
class AsyncTdmGatherOp(_Rows):
    """``%t = amdg.async_tdm_gather %d[%idx] to %m : I, M -> D``."""

    NAME: ClassVar[str] = "amdg.async_tdm_gather"


@dataclass(frozen=True, slots=True)
class AsyncTdmScatterOp(_Rows):
    """``%t = amdg.async_tdm_scatter %d[%idx] from %m : I, M -> D``."""

    NAME: ClassVar[str] = "amdg.async_tdm_scatter"


@dataclass(frozen=True, slots=True)
class UpdateTensorDescriptorOp(View):
    """``%e = amdg.update_tensor_descriptor %d add_offsets = [%i, %j] pred = %p : D``.

    Attributes:
        desc: The descriptor.
        add_offsets: Offsets added to its coordinates, outermost first.
        set_bounds: New sizes, outermost first.
        pred: Whether to execute copies through the result.
        clamp_bounds: Whether sizes shrink by the offsets.
        result: The new descriptor.
    """

    NAME: ClassVar[str] = "amdg.update_tensor_descriptor"
    desc: Value
    add_offsets: tuple[Value, ...]
    set_bounds: tuple[Value, ...]
    pred: Value | None
    clamp_bounds: bool
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> UpdateTensorDescriptorOp:
        desc = reader.take()
        lists: dict[str, tuple[Value, ...]] = {}
        while reader.next < len(reader.operands) and reader.follows("["):
            word = reader.words[reader.next]
            name = "set_bounds" if "set_bounds" in word else "add_offsets"
            lists[name] = reader.take_bracket()
        pred = reader.take_optional("pred")
        offsets, bounds = lists.get("add_offsets", ()), lists.get("set_bounds", ())
        clamp = reader.flag("clamp_bounds")
        return cls(reader.op, desc, offsets, bounds, pred, clamp, reader.result())


# ---- waits


@dataclass(frozen=True, slots=True)
class TdmWaitOp(View):
    """``%w = amdg.async_tdm_wait %t {num = 0 : i32}``, and the counted wait that it becomes.

    Attributes:
        tokens: Copies to wait for.
        num: Operations or instructions that may remain in flight.
        counts_instructions: Whether ``num`` counts instructions
            (``amdg.async_tdm_intrinsic_wait``) and not operations.
        token: The wait's token.
    """

    NAME: ClassVar[str] = "amdg.async_tdm_wait"
    INTRINSIC: ClassVar[str] = "amdg.async_tdm_intrinsic_wait"
    tokens: tuple[Value, ...]
    num: int
    counts_instructions: bool
    token: OpResult | None

    @classmethod
    def match(cls, op: Operation) -> TdmWaitOp | None:
        """Returns the view of either wait, or ``None``."""
        if op.name not in (cls.NAME, cls.INTRINSIC):
            return None
        reader = OpReader(op)
        counted = op.name == cls.INTRINSIC
        num = reader.integer("count" if counted else "num")
        return cls(op, reader.take_rest(), num, counted, _first(op.results))


@dataclass(frozen=True, slots=True)
class AsyncWaitOp(View):
    """``%w = amdg.async_wait %g {num_inst = 3 : i32}``.

    Attributes:
        tokens: Groups to wait for.
        num_inst: Instructions that may remain in flight.
        token: The wait's token.
    """

    NAME: ClassVar[str] = "amdg.async_wait"
    tokens: tuple[Value, ...]
    num_inst: int
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncWaitOp:
        num = reader.integer("num_inst")
        return cls(reader.op, reader.take_rest(), num, _first(reader.op.results))


# ---- buffer operations and copies


@dataclass(frozen=True, slots=True)
class BufferLoadOp(View):
    """``%r = amdg.buffer_load %ptr[%offs], %mask, %other stride = %s : T``.

    Attributes:
        ptr: Scalar base pointer.
        offsets: Tensor of offsets in elements.
        mask: Elements to read.
        other: Values of masked elements.
        stride: Row stride, for swizzling in the cache.
        contiguity: Elements known to be contiguous; 1 if not printed.
        result: The loaded tensor.
    """

    NAME: ClassVar[str] = "amdg.buffer_load"
    ptr: Value
    offsets: Value
    mask: Value | None
    other: Value | None
    stride: Value | None
    contiguity: int
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> BufferLoadOp:
        operands = reader.take(), reader.take()
        mask, other = reader.take_optional(","), reader.take_optional(",")
        stride, contiguity = reader.take_optional("stride"), reader.integer("contiguity", 1)
        return cls(reader.op, *operands, mask, other, stride, contiguity, reader.result())


@dataclass(frozen=True, slots=True)
class BufferStoreOp(View):
    """``amdg.buffer_store %value, %ptr[%offs], %mask stride = %s : T``.

    Attributes:
        value: The stored tensor.
        ptr: Scalar base pointer.
        offsets: Tensor of offsets in elements.
        mask: Elements to write.
        stride: Row stride, for swizzling in the cache.
        contiguity: Elements known to be contiguous; 1 if not printed.
    """

    NAME: ClassVar[str] = "amdg.buffer_store"
    value: Value
    ptr: Value
    offsets: Value
    mask: Value | None
    stride: Value | None
    contiguity: int

    @classmethod
    def _of(cls, reader: OpReader) -> BufferStoreOp:
        operands = reader.take(), reader.take(), reader.take()
        optional = reader.take_optional(","), reader.take_optional("stride")
        return cls(reader.op, *operands, *optional, reader.integer("contiguity", 1))


@dataclass(frozen=True, slots=True)
class BufferAtomicRmwOp(View):
    """``%r = amdg.buffer_atomic_rmw add, acq_rel, gpu, %value, %ptr[%offs], %mask : T``.

    Attributes:
        kind: ``add``, ``fadd``, ``max``, ...
        value: The operand.
        ptr: Scalar base pointer.
        offsets: Tensor of offsets in elements.
        mask: Elements to update.
        stride: Row stride, for swizzling in the cache.
        result: The previous values.
    """

    NAME: ClassVar[str] = "amdg.buffer_atomic_rmw"
    kind: str
    value: Value
    ptr: Value
    offsets: Value
    mask: Value | None
    stride: Value | None
    result: OpResult

    @classmethod
    def _of(cls, reader: OpReader) -> BufferAtomicRmwOp:
        kind = reader.head.partition(",")[0].strip()
        operands = reader.take(), reader.take(), reader.take()
        optional = reader.take_optional(","), reader.take_optional("stride")
        return cls(reader.op, kind, *operands, *optional, reader.result())


@dataclass(frozen=True, slots=True)
class BufferLoadToLocalOp(View):
    """``%t = amdg.buffer_load_to_local %p[%o] mask = %k other = %x stride = %s into %m : ..``.

    Attributes:
        ptr: Scalar base pointer.
        offsets: Tensor of offsets in elements.
        mask: Elements to read.
        other: Values of masked elements.
        stride: Row stride, for swizzling in the cache.
        dst: The LDS buffer.
        contiguity: Elements known to be contiguous; 1 if not printed.
        token: The copy's token.
    """

    NAME: ClassVar[str] = "amdg.buffer_load_to_local"
    ptr: Value
    offsets: Value
    mask: Value | None
    other: Value | None
    stride: Value | None
    dst: Value
    contiguity: int
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> BufferLoadToLocalOp:
        operands = reader.take(), reader.take()
        mask, other = reader.take_optional("mask"), reader.take_optional("other")
        stride, dst = reader.take_optional("stride"), reader.take()
        contiguity, token = reader.integer("contiguity", 1), _first(reader.op.results)
        return cls(reader.op, *operands, mask, other, stride, dst, contiguity, token)


@dataclass(frozen=True, slots=True)
class AsyncCopyLocalToGlobalOp(View):
    """``%t = amdg.async_copy_local_to_global %m, %p mask %k {..} : M -> T``.

    Attributes:
        src: The LDS buffer.
        dst: Tensor of pointers.
        mask: Elements to write.
        contiguity: Elements known to be contiguous; 1 if not printed.
        token: The copy's token.
    """

    NAME: ClassVar[str] = "amdg.async_copy_local_to_global"
    src: Value
    dst: Value
    mask: Value | None
    contiguity: int
    token: OpResult | None

    @classmethod
    def _of(cls, reader: OpReader) -> AsyncCopyLocalToGlobalOp:
        operands = reader.take(), reader.take(), reader.take_optional("mask")
        contiguity = reader.integer("contiguity", 1)
        return cls(reader.op, *operands, contiguity, _first(reader.op.results))
